"""When tombstones of an immediate sink go: as soon as a checkpoint has passed them, in any order."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, JobUuid, SnapshotHandle, SourcePosition, Subtask, Timeline
from holdfast.runtime.plan.immediate import immediate_sink
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.sql.sink import ImmediateSqlTable
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects


@dataclass
class Seen:
    place: int
    n: int


class Writes:
    """The writes of one worker into a real file; epochs are closed and committed by hand."""

    def __init__(self, folder: Path, sink: Callable[[ImmediateSink], ImmediateSink] = lambda sink: sink) -> None:
        self.file = folder / "out.db"
        create_log(LocalObjects(folder / "seen"), schema_of(Seen))
        app = hf.App("seen", root=str(folder / "root"))
        seen = app.source("seen", hf.Log(folder / "seen", Seen), partitioned_by=["place"])
        seen.sink("last", hf.SQLite(self.file, "last", ["place"], delivery="idempotent"))
        plan = app.plan()
        [spec] = plan.sinks
        immediate = immediate_sink(spec)
        assert immediate is not None
        immediate.prepare(spec.schema, spec.upsert_key)
        self.plan = replace(plan, sinks=(replace(spec, sink=sink(immediate)),))
        self.epochs = 0
        self.begin(1)

    def begin(self, generation: int, offset: int = 0) -> None:
        """Start a generation, which reads from this offset."""
        self.timers: list[Callable[[], object]] = []
        self.ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        self.writes = ImmediateWrites(self.plan, self.ports, lambda _, then: self.timers.append(then), self.failed)
        at = (SourcePosition("seen", 0, offset),)
        handle = SnapshotHandle(Subtask(0), (0, self.plan.key_groups), (), Epoch(0), ())
        number = Generation(generation)
        self.writes.deploy(
            m.Deploy(
                JobUuid("j"), number, Timeline(1), Epoch(1), Epoch(0), m.ActiveRole(Subtask(0)), (), handle, at, (), ()
            )
        )
        self.settle()

    def write(self, offset: int, place: int, op: int = PUT) -> None:
        """Write what came from the records below the offset."""
        row = {"place": place, "n": offset, OP: op}
        schema = schema_of(Seen).append(pa.field(OP, pa.int8()))
        self.writes.collect("last", pa.RecordBatch.from_pylist([row], schema=schema))
        self.writes.arrived("seen", 0, offset)
        self.settle()

    def close_epoch(self, offset: int) -> Epoch:
        self.epochs += 1
        self.writes.noted(Epoch(self.epochs), (SourcePosition("seen", 0, offset),))
        return Epoch(self.epochs)

    def commit(self, epoch: Epoch) -> None:
        self.writes.committed(epoch)
        self.settle()

    def settle(self) -> None:
        while (waiting := self.ports.lanes.waiting()) or self.timers:
            for lane in waiting:
                lane.step()
            due, self.timers = self.timers, []
            for then in due:
                then()

    def tombstones(self) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            return int(db.execute("SELECT count(*) FROM holdfast_tombstone").fetchone()[0])

    def failed(self, error: BaseException) -> None:
        raise error


class LostReplySink(ImmediateSqlTable):
    """A sink whose reply to the first write of each generation is lost."""

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return LostReplyTarget(super().open_immediate(owner))


class LostReplyTarget:
    def __init__(self, target: ImmediateTarget) -> None:
        self._target, self._heard = target, False
        self.fence, self.forget, self.close = target.fence, target.forget, target.close

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        deleted = self._target.write(origin, offset, batches)
        if not self._heard:
            self._heard = True
            raise Unavailable("the reply was lost", next_step="try again")
        return deleted


def with_lost_replies(sink: ImmediateSink) -> ImmediateSink:
    assert isinstance(sink, ImmediateSqlTable)
    return LostReplySink(sink.table)


class TestTombstones:
    def test_tombstones_ahead_of_a_commit_are_removed_by_the_commit_that_covers_them(self, tmp_path: Path) -> None:
        it = Writes(tmp_path)
        it.write(50, place=1)
        first = it.close_epoch(50)
        it.write(100, place=1, op=DELETE)
        it.commit(first)
        assert it.tombstones() == 1
        it.commit(it.close_epoch(100))
        assert it.tombstones() == 0

    def test_tombstones_of_an_older_generation_are_removed_when_the_newer_one_passes_them(self, tmp_path: Path) -> None:
        it = Writes(tmp_path)
        it.write(100, place=1, op=DELETE)
        it.begin(2, offset=0)
        it.commit(it.close_epoch(0))
        it.write(100, place=1, op=DELETE)
        it.commit(it.close_epoch(100))
        assert it.tombstones() == 0

    def test_tombstones_of_a_write_whose_reply_was_lost_are_removed(self, tmp_path: Path) -> None:
        it = Writes(tmp_path, with_lost_replies)
        it.commit(it.close_epoch(0))
        it.write(100, place=1, op=DELETE)
        it.commit(it.close_epoch(100))
        assert it.tombstones() == 0
