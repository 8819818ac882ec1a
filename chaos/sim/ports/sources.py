"""A source as a driver lists it: its calls may fail, and the driver may end in one.

Source: PROTOCOL P12; docs/design/0035-partition-discovery.md.
"""

from __future__ import annotations

from typing import Any

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import Unavailable


class ListedSource:
    """A source in the plan of one driver; everything but listing is the source's own."""

    def __init__(self, world: Surroundings, process: Process, source: Any) -> None:
        self._world, self._process, self._source = world, process, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def open(self) -> ListedSource:
        """See Source.open."""
        return self

    def partitions(self) -> list[int]:
        """See OpenSource.partitions."""
        return self._process.call(self._list, _listing)

    def _list(self) -> list[int]:
        if self._world.faults.strikes(Fault.LISTING_REFUSED, _listing):
            self._world.schedule.journal.say(self._process.name, "lists a source: refused")
            raise Unavailable("the source is unreachable", next_step="try again")
        found: list[int] = self._source.partitions()
        return found


def _listing() -> tuple[Point, ...]:
    return (Point.PARTITIONS,)
