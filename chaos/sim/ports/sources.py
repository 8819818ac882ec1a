"""A source as a driver lists it: its calls may fail, and the driver may end in one.

Source: PROTOCOL P12; docs/decisions/0035-partition-discovery.md.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import Unavailable
from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.traits import SourceTraits


class ListedSource(Source, OpenSource):
    """A source in the plan of one driver; everything but listing is the source's own."""

    schema: pa.Schema
    where: str
    traits: SourceTraits
    row_type: type | None = None

    def __init__(self, world: Surroundings, process: Process, source: Source) -> None:
        self._world, self._process, self._source = world, process, source.open()
        self.schema, self.where, self.traits = source.schema, source.where, source.traits

    def identity(self, partition: int, offset: int) -> str:
        return self._source.identity(partition, offset)

    def changed(self, identity: str) -> str | None:
        return self._source.changed(identity)

    def end_offsets(self) -> dict[int, int]:
        return self._source.end_offsets()

    def retention_start(self, partition: int) -> int:
        return self._source.retention_start(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        return self._source.read(partition, offset, max_bytes)

    def ended(self, partition: int, offset: int) -> bool:
        return self._source.ended(partition, offset)

    def open(self) -> ListedSource:
        return self

    def partitions(self) -> list[int]:
        return self._process.call(self._list, _listing)

    def _list(self) -> list[int]:
        if self._world.faults.strikes(Fault.LISTING_REFUSED, _listing):
            self._world.schedule.journal.say(self._process.name, "lists a source: refused")
            raise Unavailable("the source is unreachable", next_step="try again")
        return self._source.partitions()


def _listing() -> tuple[Point, ...]:
    return (Point.PARTITIONS,)
