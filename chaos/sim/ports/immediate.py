"""A table with immediate writes, as one worker sees it, and the invariants of every read.

Requests and replies are lost and writes land late, as in chaos/sim/ports/targets.py; a late write is checked against
the fence at the time it lands. A reader may see rows that no checkpoint holds yet. It never sees a row that no record
produced or an older row after a newer one, and it sees every row of a completed epoch.

Invariants
    - A write changes rows, tags and fence in one transaction, or nothing.

Source: PROTOCOL P22; docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.stores import LATE_S
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.chaos.sim.ports.targets import PlannedTable, is_refused
from holdfast.errors import Fenced, Unavailable
from holdfast.model import Writer
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner, Written
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.memory.sink import MemoryTarget

T = TypeVar("T")


class ProcessTable(PlannedTable[ImmediateTable], ImmediateSink):
    """The sink in the plan of one worker."""

    def __init__(self, world: Surroundings, process: Process) -> None:
        super().__init__(world, process, world.lasts)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> MemoryTarget:
        """Nothing is ever staged for this sink."""
        return self._table.open(job_uuid, writer, claim)

    def open_immediate(self, owner: Owner) -> ProcessWrites:
        return ProcessWrites(self._world, self._process, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        return self._table.written(job_uuid, sink)


class ProcessWrites(ImmediateTarget):
    """One owner's access to the table. See immediate.ImmediateTarget."""

    def __init__(self, world: Surroundings, process: Process, owner: Owner) -> None:
        self._world, self._process, self.owner, self.table = world, process, owner, world.lasts
        self._reached: dict[Origin, int] = {}

    def fence(self, starts: Mapping[Origin, int]) -> None:
        effect = partial(self.table.fence, self.owner, starts)
        self._process.call(lambda: self._heard("fence", effect, _fencing), _fencing)

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        return self._process.call(lambda: self._send(origin, offset, batches), _writing)

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        return self.table.forget_tombstones(self.owner, committed)

    def close(self) -> None:
        """There is nothing to release."""

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
