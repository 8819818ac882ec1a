"""Interval joins of impressions with clicks: shuffle, join, epochs of state, without Spark.

Every result is counted against the input, which has a known number of pairs.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from planned_source import PlannedSource

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.routing import Router
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.store import Identity, StateStore

TIME = pa.timestamp("us", tz="UTC")
SHOWN = pa.schema(
    [pa.field("at", TIME, False), pa.field("ad", pa.int64(), False), pa.field("price", pa.float64(), False)]
)
CLICKED = pa.schema(
    [pa.field("at", TIME, False), pa.field("ad", pa.int64(), False), pa.field("user", pa.int64(), False)]
)
START_US = 1_767_225_600_000_000
SECONDS_PER_BATCH = 5
CLICKS = 0.2
"""Clicks per impression."""
LATER_S = 60
"""Clicks follow within this time, and impressions are kept as long."""
Result = TypeVar("Result")


@pytest.mark.parametrize("how", ["inner", "left"])
def bench_join(bench: Bench, how: str) -> None:
    """A fifth of the impressions is clicked within a minute; every click finds one impression."""
    batches = bench.size("batches", smoke=4, full=160)
    rows = bench.size("rows per batch", smoke=10_000, full=50_000)
    given = list(input_of(batches, rows))
    parts, total = Parts(how), sum(batch.num_rows for _, batch, _ in given)
    with bench.timed():
        parts.run(given)
    clicks = sum(batch.num_rows for port, batch, _ in given if port == 1)
    assert parts.rows_out == (clicks if how == "inner" else batches * rows)
    bench.report(per=total, unit="row", check=parts.rows_out)
    bench.note("CPU ns per row: " + ", ".join(f"{part} {s / total * 1e9:.0f}" for part, s in parts.spent.items()))
    bench.note(
        f"tables: {parts.largest >> 20} MiB, process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB"
    )
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


@pytest.mark.parametrize("how", ["inner", pytest.param("left", marks=pytest.mark.slow)])
def bench_two_workers_join(bench: Bench, how: str) -> None:
    """Budget: at least 1 M rows per second. Two processes have half of the ads each; nothing is sent to the other."""
    batches = bench.size("batches", smoke=2, full=80)
    rows = bench.size("rows per batch", smoke=5_000, full=50_000)
    spawning = get_context("spawn")
    with bench.timed(), spawning.Pool(2, meet, (spawning.Barrier(2),)) as workers:
        found = workers.starmap(half_of_a_join, [(how, batches, rows)] * 2, chunksize=1)
    total, slowest = sum(rows for rows, _, _ in found), max(seconds for _, seconds, _ in found)
    bench.report(per=total, unit="row", check=sum(out for _, _, out in found))
    bench.note(f"{total / slowest / 1e6:.2f} M rows/s of both by the slower one's clock, which starts at the first row")
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


_together: Barrier | None = None


def meet(barrier: Barrier) -> None:
    """Keep what both processes wait for."""
    global _together
    _together = barrier


def half_of_a_join(how: str, batches: int, rows: int) -> tuple[int, float, int]:
    """Join, at the same time as the other process; return the rows in, the seconds and the rows out."""
    given, parts = list(input_of(batches, rows)), Parts(how)
    assert _together is not None
    _together.wait()
    began = time.perf_counter()
    parts.run(given)
    seconds = time.perf_counter() - began
    clicks = sum(batch.num_rows for port, batch, _ in given if port == 1)
    assert parts.rows_out == (clicks if how == "inner" else batches * rows)
    return sum(batch.num_rows for _, batch, _ in given), seconds, parts.rows_out


def input_of(batches: int, rows: int) -> list[tuple[int, pa.RecordBatch, int]]:
    """Return batches of impressions and clicks, with the watermark after each; every ad is shown once."""
    rng, found, waiting = np.random.default_rng(1), list[tuple[int, pa.RecordBatch, int]](), []
    for number in range(batches):
        first = START_US + number * SECONDS_PER_BATCH * 1_000_000
        times = first + np.sort(rng.integers(0, SECONDS_PER_BATCH * 1_000_000, rows))
        ads = rng.permutation(rows) + number * rows
        shown = pa.RecordBatch.from_arrays(
            [pa.array(times).view(TIME), pa.array(ads), pa.array(rng.random(rows))], schema=SHOWN
        )
        found.append((0, shown, first))
        clicked = rng.random(rows) < CLICKS
        waiting.append((times[clicked] + rng.integers(0, LATER_S * 1_000_000, int(clicked.sum())), ads[clicked]))
        end = first + SECONDS_PER_BATCH * 1_000_000
        click_times, click_ads = (np.concatenate(each) for each in zip(*waiting, strict=True))
        now = click_times < (end if number + 1 < batches else 1 << 62)
        columns = [
            pa.array(click_times[now]).view(TIME),
            pa.array(click_ads[now]),
            pa.array(rng.integers(0, 1 << 40, int(now.sum()))),
        ]
        found.append((1, pa.RecordBatch.from_arrays(columns, schema=CLICKED), end))
        waiting = [(click_times[~now], click_ads[~now])]
    return found


class Parts:
    """The steps of a row, one after another."""

    def __init__(self, how: str) -> None:
        app = hf.App("joined")
        shown = app.source("shown", PlannedSource(SHOWN), event_time="at")
        clicked = app.source("clicked", PlannedSource(CLICKED), event_time="at")
        joined = shown.join("clicks", clicked, on="ad", within=hf.between("0s", f"{LATER_S}s"), how=how)
        joined.sink("out", MemorySink())
        plan = app.plan()
        self.spent: dict[str, float] = {}
        self.rows_out = self.largest = 0
        self._routers = [Router(edge, 2, plan.key_groups) for edge in plan.edges]
        self._operators, self._names = plan.operators, [edge.schema.names for edge in plan.edges]
        identity = Identity(JobUuid("bench"), Generation(1), Timeline(1), WorkerId("bench"))
        tables = [operator.table for operator in plan.operators]
        self._state = StateStore(identity, tables, plan.key_groups, (0, plan.key_groups))
        self._tables = {operator.name: self._state.table(operator.id) for operator in plan.operators}
        groups = KeyGroups(plan.key_groups, 0, plan.key_groups)
        self._join = FragmentRuntime(plan.fragments[2], self._tables, self._send, self._write, key_groups=groups)

    def run(self, given: list[tuple[int, pa.RecordBatch, int]]) -> None:
        epoch = 0
        for number, (port, batch, watermark) in enumerate(given):
            for _, share in self._timed(
                "hash and split", partial(self._routers[port].split, batch.select(self._names[port]))
            ):
                self._timed("join", partial(self._join.on_batch, share, None, port))
            self._timed("unmatched", partial(self._join.on_watermark, watermark))
            if number % 16 == 15:
                epoch += 1
                self._close_epoch(epoch)
        self._timed("unmatched", partial(self._join.on_watermark, (1 << 63) - 1))
        self._close_epoch(epoch + 1)

    def _close_epoch(self, epoch: int) -> None:
        self.largest = max(self.largest, sum(table.nbytes for table in self._tables.values()))
        self._timed("expire", self._join.on_barrier)
        for operator in self._operators:
            self._timed("freeze", partial(self._state.freeze, operator.id, Epoch(epoch), Epoch(epoch - 1)))
        header = SegmentHeader(
            JobUuid("bench"), Generation(1), Timeline(1), Epoch(epoch), Epoch(epoch - 1), WorkerId("bench")
        )
        self._timed("seal", lambda: seal(header, self._state.deltas(Epoch(epoch))))
        self._timed("commit", lambda: self._state.commit(Epoch(epoch)))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        self.rows_out += batch.num_rows

    def _timed(self, part: str, work: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = work()
        self.spent[part] = self.spent.get(part, 0.0) + time.thread_time() - start
        return result
