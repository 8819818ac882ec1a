"""What it costs to record the order of the input: the same job with and without the record, in turns, in one run.

One worker in one thread, with its channels to itself, so that nothing waits and small shares show: two copies of a job
take the same batches, a few of them at a time, one copy after the other, and close an epoch each. Small batches are
the worst case for the record, windows of many keys that for the order in which their results leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from pieces import Pieces

import holdfast as hf
from holdfast.model import (
    Barrier,
    Epoch,
    Generation,
    JobUuid,
    SnapshotHandle,
    SourcePosition,
    Subtask,
    Timeline,
    WorkerId,
)
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

PARTITIONS, KEYS = 4, 100_000
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("text", pa.utf8(), nullable=False),
        pa.field("v", pa.float64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
START_US, RECORDS_PER_SECOND = 1_767_225_600_000_000, 100_000


def piece_of(batches: list[pa.RecordBatch], offset: int) -> pa.RecordBatch:
    """Return the batch of a read, with times that advance with the offset."""
    batch = batches[offset // batches[0].num_rows % len(batches)]
    first = START_US + offset * PARTITIONS * 1_000_000 // RECORDS_PER_SECOND
    times = first + np.arange(batch.num_rows) * PARTITIONS * 1_000_000 // RECORDS_PER_SECOND
    columns = [*batch.columns[:-1], pa.array(times).view(SCHEMA.field("at").type)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Copy:
    """A job in one worker.

    Args:
        batches: What its partitions repeat.
    """

    def __init__(self, job: Callable[[hf.Stream[object]], None], batches: list[pa.RecordBatch], recorded: bool) -> None:
        self.pieces = Pieces(SCHEMA, None, PARTITIONS, partial(piece_of, batches))
        self.rows = batches[0].num_rows
        app = hf.App("pieces")
        job(app.source("rows", self.pieces, event_time="at"))
        self.store = MemoryObjects()
        self._ports = MemberPorts(VirtualClock(), self.store, MemoryNetwork(), MemoryState(), lambda _: None)
        self._loop = WorkerLoop(WorkerId("w"), app.plan(), self._ports, Limits())
        handle, self._number = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ()), Generation(1)
        read = tuple(SourcePosition("rows", partition, 0) for partition in range(PARTITIONS))
        peers = (m.Peer(Subtask(0), WorkerId("w"), ("here", 1)),)
        given = (
            JobUuid("j"),
            self._number,
            Timeline(1),
            Epoch(1),
            Epoch(0),
            m.ActiveRole(Subtask(0)),
            peers,
            handle,
            read,
        )
        self._loop.received(m.Deploy(*given, (), (), records_order=recorded))
        self._epoch = 0
        self.spent_s = 0.0

    def run(self, batches: int) -> None:
        """Take so many batches of each partition, and close the epoch."""
        began = time.process_time()
        self.pieces.end += batches * self.rows
        self._work()
        self._epoch += 1
        barrier = Barrier(Epoch(self._epoch), Epoch(self._epoch - 1), last=False)
        self._loop.received(m.Trigger(self._number, barrier))
        self._work()
        self.spent_s += time.process_time() - began

    def _work(self) -> None:
        while self._loop.turn() or self._ports.lanes.waiting():
            while waiting := self._ports.lanes.waiting():
                waiting[0].step()


def passed(rows: hf.Stream[object]) -> None:
    rows.sink("out", MemorySink())


def counted(rows: hf.Stream[object]) -> None:
    rows.key_by("k").agg("totals", rows=hf.count(), total=hf.sum("v")).sink("out", MemorySink(["k"]))


def tumbling(rows: hf.Stream[object]) -> None:
    rows.key_by("k").window(hf.tumbling("10s")).agg("sums", total=hf.sum("v")).sink("out", MemorySink())


def texts(rows: hf.Stream[object]) -> None:
    rows.key_by("text").window(hf.tumbling("10s")).agg("sums", total=hf.sum("v")).sink("out", MemorySink())


def hopping(rows: hf.Stream[object]) -> None:
    rows.key_by("k").window(hf.hopping("10s", every="2s")).agg("sums", total=hf.sum("v")).sink("out", MemorySink())


def drawn(rows: int, count: int, keys: int) -> list[pa.RecordBatch]:
    """Return batches of random rows."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(count):
        k = rng.integers(0, keys, rows)
        columns = [pa.array(k), pa.array([f"key-{n}" for n in k.tolist()]), pa.array(rng.random(rows))]
        batches.append(pa.RecordBatch.from_arrays([*columns, pa.nulls(rows, SCHEMA.field("at").type)], schema=SCHEMA))
    return batches


JOBS = {
    "12 rows a batch, passed on": (passed, 12, 8),
    "12 rows a batch, counted by key": (counted, 12, 8),
    "1,200 rows a batch, counted by key": (counted, 1_200, 8),
    "16,384 rows a batch, windows by number": (tumbling, 16_384, 16),
    "16,384 rows a batch, windows by text": (texts, 16_384, 16),
    "16,384 rows a batch, windows that overlap": (hopping, 16_384, 16),
}


@pytest.mark.parametrize("name", JOBS)
def bench_record_order(bench: Bench, name: str) -> None:
    """Budget: 1 % of the job."""
    job, rows, batches = JOBS[name]
    rounds = bench.size("rounds", smoke=2, full=30)
    given = drawn(rows, 8, bench.size("keys", smoke=100, full=KEYS))
    copies = [Copy(job, given, recorded) for recorded in (False, True)]
    for copy in copies:
        copy.run(batches)  # compiles, and inserts the first keys
    ratios = list[float]()
    with bench.timed():
        for number in range(rounds):
            before = [copy.spent_s for copy in copies]
            for copy in copies if number % 2 else copies[::-1]:
                copy.run(batches)
            off, on = (copy.spent_s - then for copy, then in zip(copies, before, strict=True))
            ratios.append(on / off)
    stored = [len(copy.store.list("orders")) for copy in copies]
    assert stored == [0, rounds + 1]
    bench.report(per=rounds * batches * PARTITIONS, unit="batch", check=copies[1].pieces.end)
    size = sum(len(copies[1].store.get(path)) for path in copies[1].store.list("orders")) / (rounds + 1)
    bench.note(f"{name}: with the record {np.median(ratios):.4f} of the time, {size:,.0f} bytes an epoch")
