"""What a batch costs a worker however small it is: read, decoded, filtered, computed, encoded, and written.

One production loop in one thread, so nothing waits: JSON as it comes from a topic, two steps, JSON as it goes into
one, whose producer drops it. Reading faster than records come makes batches small, and their fixed cost is what
such a job has for latency.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
from harness import Bench
from peer_jobs import EURO, Bid, Passed
from pieces import Pieces

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, SnapshotHandle, SourcePosition, Subtask, Timeline, WorkerId
from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.sinks.contract.immediate import AheadTarget, Owner
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.kafka.encoding import JsonValues
from holdfast.sinks.kafka.repeating import RepeatingTarget
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.kafka.target import Records
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.objects import MemoryObjects

PARTITIONS, ROWS = 2, (10, 100, 1_000)
VALUE = b'{"auction":%d,"bidder":567890,"price":4321,"channel":"channel-7","dateTime":1796000000000}'
PLACE = KafkaPlace("nowhere.example:9092", "passed")


class Topic:
    """Records of a topic, decoded for each read."""

    def __init__(self) -> None:
        self.rows = 1
        """How many a read gives."""
        self._lines = JsonLines(hf.JSON(Bid).schema, "ms")
        self._values = pa.array([VALUE % n for n in range(max(ROWS))], pa.binary())

    def __call__(self, offset: int) -> pa.RecordBatch:
        """Return the records of a read."""
        batch, refused = self._lines.decode(self._values[: self.rows])
        assert not refused
        return batch


@dataclass
class Dropping:
    """A producer that counts the records, and drops them."""

    records: int = 0

    ahead_max: int = 1
    begun: int = 0

    def find_topic(self) -> None: ...
    def close(self) -> None: ...
    def ring(self) -> None: ...
    def begin(self, records: Sequence[Records]) -> None:
        self.records += sum(len(each.values) for each in records)
        self.begun += 1

    def advance(self, wait_s: float) -> int:
        done, self.begun = self.begun, 0
        return done


@dataclass(frozen=True)
class Dropped(RepeatingKafka):
    producer: Dropping = field(default_factory=Dropping)

    def open_ahead(self, owner: Owner) -> AheadTarget:
        return RepeatingTarget(lambda: self.producer, self.topic.records())


class Copy:
    """The job, in one worker."""

    def __init__(self, folder: Path) -> None:
        self.topic, self.producer = Topic(), Dropping()
        self.pieces = Pieces(hf.JSON(Bid).schema, Bid, PARTITIONS, self.topic)
        app = hf.App("pieces", root=str(folder))
        passed = app.source("bids", self.pieces).filter(pl.col("price") > 100)
        cheaper = passed.select("auction", "bidder", "dateTime", price=pl.col("price") * EURO)
        assert hf.JSON(Passed).schema is not None
        cheaper.sink("out", Dropped(KafkaSink(PLACE, JsonValues("ms")), self.producer))
        self._ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        self._loop = WorkerLoop(WorkerId("w"), app.plan(), self._ports, Limits())
        handle, number = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ()), Generation(1)
        read = tuple(SourcePosition("bids", partition, 0) for partition in range(PARTITIONS))
        given = (
            JobUuid("j"),
            number,
            Timeline(1),
            Epoch(1),
            Epoch(0),
            m.ActiveRole(Subtask(0)),
            (),
            handle,
            read,
            (),
            (),
        )
        self._loop.received(m.Deploy(*given, claim=Claim("first", number)))

    def run(self, batches: int, rows: int) -> float:
        """Process so many batches of each partition; return the processor time of all threads."""
        before, began = self.producer.records, time.process_time()
        self.topic.rows, self.pieces.end = rows, self.pieces.end + batches * rows
        while self._loop.turn():
            while waiting := self._ports.lanes.waiting():
                waiting[0].step()
        assert self.producer.records - before == PARTITIONS * batches * rows
        return time.process_time() - began


def bench_small_batches(bench: Bench, tmp_path: Path) -> None:
    """Batches of three sizes, each written before the next is read."""
    batches = bench.size("batches", smoke=2, full=1_000)
    copy = Copy(tmp_path)
    copy.run(2, max(ROWS))
    with bench.timed():
        spent = {rows: copy.run(batches, rows) / (PARTITIONS * batches) for rows in ROWS}
    bench.report(per=len(ROWS) * PARTITIONS * batches, unit="batch", check=copy.producer.records)
    each = ", ".join(f"of {rows:,} rows {seconds * 1e6:,.0f}" for rows, seconds in spent.items())
    bench.note(f"us of CPU for a batch {each}")
