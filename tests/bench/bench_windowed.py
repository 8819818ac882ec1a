"""Windowed count, sum and maximum: embedded log, two workers, exchange, an epoch a second, results into a log.

Every record must be in the result of its window or late: counts and sums of both outputs are checked against the input.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench_keyed_count import Used, records, run_job
from harness import Bench
from windowed_job import ROW_BYTES, SCHEMA, make

from holdfast.checkpoint.repository import Repository
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.routing import Router
from holdfast.runtime.worker.subtask import READ_BYTES_MAX
from holdfast.sinks.protocol.staging import Stage
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.store import Identity, StateStore
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS = 4
START_US = 1_767_225_600_000_000
RECORDS_PER_SECOND = 400_000
"""In event time; determines how many rows a window holds."""
JOB, WORKER = JobUuid("bench"), WorkerId("bench")
Result = TypeVar("Result")


@pytest.mark.e2e
@pytest.mark.parametrize("keys", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def bench_windowed(bench: Bench, tmp_path: Path, keys: int) -> None:
    """A row per key and ten seconds of event time; keys recur in every window: 40 or 4 times."""
    rows = bench.size("rows", smoke=400_000, full=64_000_000)
    keys = bench.size("keys", smoke=keys // 100, full=keys)
    rows, total = write_input(tmp_path, rows, keys)
    used = Used()
    with bench.timed():
        run_job(tmp_path, used, "windowed")
    results, late = results_checked(tmp_path, rows, total)
    bench.report(per=rows, unit="row", check=results)
    note_steady_state(bench, tmp_path)
    cpu_us = sum(used.cpu_s.values()) / rows * 1e6
    bench.note(f"CPU: {cpu_us:.3f} us per row of {ROW_BYTES} bytes, both workers together; {late} rows late")
    bench.note(f"memory: {', '.join(f'{size >> 20} MiB' for size in used.rss.values())} resident per worker")
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def bench_windowed_parts(bench: Bench, tmp_path: Path) -> None:
    """The same path in one thread without Spark, channels and checkpoints: breaks down the time of a row."""
    rows = bench.size("rows", smoke=100_000, full=8_000_000)
    keys = bench.size("keys", smoke=1_000, full=100_000)
    rows, _ = write_input(tmp_path, rows, keys)
    parts = Parts(tmp_path)
    with bench.timed():
        counted = parts.run()
    assert counted == rows == parts.rows_out()
    bench.report(per=rows, unit="row", check=parts.results)
    bench.note("CPU ns per row: " + ", ".join(f"{part} {s / rows * 1e9:.0f}" for part, s in parts.spent.items()))
    sizes = sorted(parts.segment_bytes)
    middle, largest = sizes[len(sizes) // 2], sizes[-1]
    bench.note(f"segments: {len(sizes)}, {sum(sizes):,} bytes, median {middle:,}, largest {largest:,}")


def bench_hopping_parts(bench: Bench, tmp_path: Path) -> None:
    """Windows of 10 s that begin every 2 s beside those that do not overlap. Budget: 1.5 times the time of a row."""
    rows = bench.size("rows", smoke=100_000, full=16_000_000)
    keys = bench.size("keys", smoke=1_000, full=100_000)
    rows, _ = write_input(tmp_path, rows, keys)
    shapes = {"tumbling": None, "hopping": "2s"}
    spent = dict[str, list[float]]()
    with bench.timed():
        for shape in (*shapes, *shapes) if bench.full else shapes:
            parts = Parts(tmp_path, shapes[shape])
            assert parts.run() == rows
            assert parts.rows_out() == rows * (1 if shape == "tumbling" else 5)
            spent.setdefault(shape, []).append(sum(parts.spent.values()) / rows * 1e9)
            listed = ", ".join(f"{part} {s / rows * 1e9:.0f}" for part, s in parts.spent.items())
            bench.note(f"{shape}: {parts.results:,} results; CPU ns per row: {listed}")
    bench.report(per=rows, unit="row", check=parts.results)
    ratios = [b / a for a, b in zip(spent["tumbling"], spent["hopping"], strict=True)]
    bench.note(f"hopping to tumbling, everything: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def write_input(
    folder: Path, rows: int, keys: int, written_too: Callable[[dict[int, pa.Table]], object] = lambda parts: None
) -> tuple[int, int]:
    """Write the log, times half a second out of order; return the number of rows and the sum of all values.

    Args:
        written_too: Receives the rows of every append, by partition.
    """
    store = open_objects(str(folder / "input"))
    create_log(store, SCHEMA, PARTITIONS)
    for name in ("out", "late"):
        (folder / name).mkdir(exist_ok=True)
    writer, rng, total = LogWriter(store), np.random.default_rng(1), 0
    share, written = min(rows // PARTITIONS, 500_000), 0
    for _ in range(rows // (share * PARTITIONS)):
        first = START_US + written * 1_000_000 // RECORDS_PER_SECOND
        parts = {}
        for partition in range(PARTITIONS):
            values = rng.integers(0, 1_000, share)
            total += int(values.sum())
            times = first + np.arange(share) * PARTITIONS * 1_000_000 // RECORDS_PER_SECOND
            times -= rng.integers(0, 500_000, share)
            columns = [rng.integers(0, keys, share), values, pa.array(times).view(SCHEMA.field("at").type)]
            parts[partition] = pa.table(columns, schema=SCHEMA)
        writer.append(parts)
        written_too(parts)
        written += share * PARTITIONS
    writer.seal()
    return written, total


def read_log(folder: Path) -> pa.Table:
    """Return all rows of a log."""
    reader = LogReader(open_objects(str(folder)))
    reader.refresh()
    found: list[pa.RecordBatch] = []
    for partition, end in reader.end_offsets().items():
        offset = 0
        while offset < end:
            batch, offset = reader.read(partition, offset, READ_BYTES_MAX)
            found += [] if batch is None else [batch]
    return pa.Table.from_batches(found, reader.meta.schema)


def results_checked(folder: Path, rows: int, total: int) -> tuple[int, int]:
    """Compare results and late rows with the input; return how many of both there are."""
    results, late = read_log(folder / "out"), read_log(folder / "late")
    assert pc.sum(results.column("n")).as_py() + late.num_rows == rows
    assert pc.sum(results.column("total")).as_py() + (pc.sum(late.column("v")).as_py() or 0) == total
    return results.num_rows, late.num_rows


def note_steady_state(bench: Bench, folder: Path) -> None:
    repository = Repository(open_objects(str(folder / "root" / "windowed")))
    job = repository.read_log()
    assert job is not None and job.finished
    ends = [(done.at / 1e6, records(repository.load_manifest(done.body.manifest))) for done in job.completed[:-1]]
    if len(ends) > 2:
        (first_s, first), (last_s, last) = ends[0], ends[-1]
        rate = (last - first) / (last_s - first_s) / 1e6
        bench.note(f"steady state: {rate:.2f} M rows/s over {len(ends) - 1} epochs")
    durations = sorted(done.body.duration_ms for done in job.completed)
    bench.note(f"checkpoints: {len(durations)}, median {durations[len(durations) // 2]} ms, longest {durations[-1]} ms")


class Parts:
    """The steps of a row, one after another."""

    def __init__(self, folder: Path, every: str | None = None) -> None:
        plan = make(folder, every).plan()
        self.spent: dict[str, float] = {}
        self.segment_bytes: list[int] = []
        self.results = self._counted = self._late = 0
        self._reader = LogReader(open_objects(str(folder / "input")))
        self._reader.refresh()
        self._edge, self._router = plan.edges[0], Router(plan.edges[0], 2, plan.key_groups)
        identity = Identity(JOB, Generation(1), Timeline(1), WORKER)
        tables = [operator.table for operator in plan.operators]
        self._state = StateStore(identity, tables, plan.key_groups, (0, plan.key_groups))
        named = {operator.name: self._state.table(operator.id) for operator in plan.operators}
        groups = KeyGroups(plan.key_groups, 0, plan.key_groups)
        self._operators = plan.operators
        self._stages = {spec.name: Stage(spec.schema, spec.upsert_key) for spec in plan.sinks}
        self._first = FragmentRuntime(plan.fragments[0], {}, self._exchange, self._write)
        last = plan.fragments[1]
        self._window = FragmentRuntime(last, named, lambda edge, batch: None, self._write, key_groups=groups)

    def run(self) -> int:
        """Read partition after partition in turns; return how many rows were counted."""
        offsets, counted, epoch = dict.fromkeys(range(PARTITIONS), 0), 0, 0
        newest = dict.fromkeys(range(PARTITIONS), START_US - 10_000_000)
        while offsets:
            for partition, offset in list(offsets.items()):
                read = partial(self._reader.read, partition, offset, READ_BYTES_MAX)
                batch, offsets[partition] = self._timed("read", read)
                if batch is None:
                    del offsets[partition]
                    continue
                counted += batch.num_rows
                newest[partition] = pc.max(batch.column("at")).value - 1_000_000
                self._first.on_batch(batch)
                self._timed("close windows", partial(self._window.on_watermark, min(newest.values())))
            epoch += 1
            self._close_epoch(epoch)
        self._timed("close windows", lambda: self._window.on_watermark((1 << 63) - 1))
        self._close_epoch(epoch + 1)
        return counted

    def rows_out(self) -> int:
        """Return how many rows are in results or late."""
        return self._counted + self._late

    def _exchange(self, edge: int, batch: pa.RecordBatch) -> None:
        for _, share in self._timed("hash and split", lambda: self._router.split(batch)):
            wire = self._timed("encode", lambda: share.serialize().to_pybytes())  # noqa: B023 - called at once
            came = self._timed("decode", lambda: pa.ipc.read_record_batch(pa.py_buffer(wire), self._edge.schema))  # noqa: B023
            self._timed("window", partial(self._window.on_batch, came))

    def _close_epoch(self, epoch: int) -> None:
        self._timed("freeze", lambda: self._window.on_barrier())
        for operator in self._operators:
            self._timed("freeze", partial(self._state.freeze, operator.id, Epoch(epoch), Epoch(epoch - 1)))
        header = SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(epoch - 1), WORKER)
        data = self._timed("seal", lambda: seal(header, self._state.deltas(Epoch(epoch))))
        self.segment_bytes.append(len(data))
        for stage in self._stages.values():
            self._timed("stage", stage.seal)
        self._timed("commit", lambda: self._state.commit(Epoch(epoch)))

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        if sink == "out":
            self.results += batch.num_rows
            self._counted += pc.sum(batch.column("n")).as_py()
        else:
            self._late += batch.num_rows
        self._stages[sink].add(batch)

    def _timed(self, part: str, work: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = work()
        self.spent[part] = self.spent.get(part, 0.0) + time.thread_time() - start
        return result
