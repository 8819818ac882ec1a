"""A table that is written at once, as one worker sees it, and what must hold of it whenever somebody looks.

Requests and replies are lost and writes land late, as those of chaos/targets.py; a write that lands late meets the
fence as it is then. A reader sees rows that no checkpoint holds yet, but never a row that no record gave, never an
older one after a newer one, and every row of a completed epoch.

Invariants
    - A write changes rows, tags and fence together, or nothing.

Source: PROTOCOL P22; docs/design/0012.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from holdfast.chaos import oracle
from holdfast.chaos.faults import Fault
from holdfast.chaos.oracle import PARTITION_STRIDE, Cut
from holdfast.chaos.points import Point
from holdfast.chaos.schedule import Process
from holdfast.chaos.stores import LATE_S
from holdfast.chaos.targets import PlannedTable, is_refused
from holdfast.chaos.workload import Scenario
from holdfast.errors import Fenced, Unavailable
from holdfast.model import Writer
from holdfast.sinks.immediate import Origin, Owner, Written
from holdfast.sinks.memory import MemoryTarget
from holdfast.sinks.memory_immediate import ImmediateTable
from holdfast.sinks.owners import Claim

if TYPE_CHECKING:
    from holdfast.chaos.world import World

T = TypeVar("T")


class ProcessTable(PlannedTable[ImmediateTable]):
    """The sink in the plan of one worker."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, world.lasts)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> MemoryTarget:
        """See Sink.open; nothing is ever staged for it."""
        return self._table.open(job_uuid, writer, claim)

    def open_at_once(self, owner: Owner) -> ProcessWrites:
        """See ImmediateSink.open_at_once."""
        return ProcessWrites(self._world, self._process, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        """See ImmediateSink.written."""
        return self._table.written(job_uuid, sink)


class ProcessWrites:
    """One owner's way into the table. See immediate.ImmediateTarget."""

    def __init__(self, world: World, process: Process, owner: Owner) -> None:
        self._world, self._process, self.owner, self.table = world, process, owner, world.lasts
        self._reached: dict[Origin, int] = {}

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """See ImmediateTarget.fence."""
        effect = partial(self.table.fence, self.owner, starts)
        self._process.call(lambda: self._heard("fence", effect, _fencing), _fencing)

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        """See ImmediateTarget.write."""
        return self._process.call(lambda: self._send(origin, offset, batches), _writing)

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """See ImmediateTarget.forget."""
        return self.table.forget_tombstones(self.owner, committed)

    def close(self) -> None:
        """Nothing is held."""

    def _send(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        what = f"write of partition {origin.partition} below {offset}"
        if self._world.faults.strikes(Fault.SINK_LATE, _writing):
            delay = self._world.random.choice(LATE_S)
            late = f"{self._process.name}'s {what} lands late"
            self._world.schedule.land(delay, late, lambda: self._land_unheard(origin, offset, batches))
            raise self._unavailable(f"{what}: no reply, it lands in {delay} s")
        deleted = self._heard(what, lambda: self._land(origin, offset, batches), _writing)
        self._reached[origin] = max(offset, self._reached.get(origin, 0))
        return deleted

    def _heard(self, what: str, effect: Callable[[], T], at: Callable[[], tuple[Point, ...]]) -> T:
        faults = self._world.faults
        if is_refused(faults, at):
            raise self._unavailable(f"{what}: refused")
        result = effect()
        if faults.strikes(Fault.SINK_REPLY_LOST, at):
            raise self._unavailable(f"{what}: done, but the reply is lost")
        return result

    def _land(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        deleted = self.table.write(self.owner, origin, offset, batches, self._reached.get(origin, 0))
        self._say(f"partition {origin.partition} is written below {offset}")
        self._world.checks.lasts.written(self.owner, origin, self.table)
        return deleted

    def _land_unheard(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> None:
        try:
            self._land(origin, offset, batches)
        except Fenced:
            self._say(f"refuses generation {self.owner.generation}")

    def _say(self, what: str) -> None:
        self._world.schedule.journal.say(self._process.name, f"{self.owner.sink}: {what}")

    def _unavailable(self, what: str) -> Unavailable:
        self._say(what)
        return Unavailable(what, next_step="try again")


def _fencing() -> tuple[Point, ...]:
    return (Point.FENCE,)


def _writing() -> tuple[Point, ...]:
    return (Point.DELIVER,)


class Lasts:
    """What a reader sees of the table: of every place the last record, as far as it was read."""

    def __init__(self, scenario: Scenario, fail: Callable[[str, str], None]) -> None:
        self._scenario, self._fail = scenario, fail
        self._records = {r.id: r for records in scenario.partitions for r in records}
        self._shown: dict[int, int] = {}
        """Place to the offset of the record that is shown."""

    def written(self, owner: Owner, origin: Origin, table: ImmediateTable) -> None:
        """Look at every row after a write."""
        newest = table.fences[owner.job_uuid, owner.sink, origin].generation
        if owner.generation < newest:
            self._fail("P22 fence", f"generation {owner.generation} wrote from {origin}, which {newest} owns")
        for row in table.rows():
            record = self._records.get(row["id"])
            if record is None or row != oracle.shown(record):
                self._fail("I5 visible", f"{row} is no record")
                return
            offset = record.id % PARTITION_STRIDE
            if offset < self._shown.get(record.place, 0):
                what = f"place {record.place} shows offset {offset} after {self._shown[record.place]}"
                self._fail("P22 order", what)
            self._shown[record.place] = offset

    def completed(self, cut: Cut) -> None:
        """An epoch is complete: all its rows are there, or newer ones."""
        for place, record in oracle.lasts(self._scenario.partitions, cut, self._scenario.above).items():
            if self._shown.get(place, -1) < record.id % PARTITION_STRIDE:
                what = f"place {place} shows offset {self._shown.get(place)}, the checkpoint holds record {record}"
                self._fail("I1 loss", what)

    def at_end(self, everything: Cut, table: ImmediateTable) -> None:
        """Compare all rows with the last record of every place."""
        last = oracle.lasts(self._scenario.partitions, everything, self._scenario.above)
        expected = {place: oracle.shown(record) for place, record in last.items()}
        found = {row["place"]: row for row in table.rows()}
        if found != expected:
            self._fail("I1 loss", f"written at once: found {found}, expected {expected}")
