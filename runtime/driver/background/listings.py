"""Lists the partitions of a run's sources in the background, for the master (P12).

The driver has separate connections, opened at the first listing. A listing that differs from the known partitions
counts only if each of these sources still has the history that was read: a recreated source has other partitions too.
That is asked after the partitions were listed, so it holds for the listing.

Source: PROTOCOL P12; docs/decisions/0022-source-identity.md, 0035-partition-discovery.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.model import SourcePosition
from holdfast.ports import Lane
from holdfast.runtime.driver.events import ListPartitions
from holdfast.runtime.driver.partitions import FIRST_RECORD
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.same_source import refuse_other_sources
from holdfast.runtime.plan.source import OpenSource


class Listings:
    """The listings of one run; the lane opens, reads and closes the sources.

    Args:
        lane: Returns the lane of the listings.
    """

    def __init__(self, job: str, sources: Sequence[SourceSpec], lane: Callable[[], Lane]) -> None:
        self._job, self._sources, self._lane = job, sources, lane
        self._opened: dict[str, OpenSource] = {}
        self._asked = False

    def ask(self, asked: ListPartitions, done: Callable[[object], None]) -> None:
        """List the sources; `done` gets all partitions, or the error."""
        self._asked = True
        self._lane().submit(lambda: self._list(asked), done)

    def close(self) -> None:
        """Close the connections, after a listing that is under way."""
        if self._asked:
            self._lane().submit(self._close, lambda _: None)

    def _list(self, asked: ListPartitions) -> tuple[SourcePosition, ...]:
        return tuple(at for spec in self._sources for at in self._of(spec, asked))

    def _of(self, spec: SourceSpec, asked: ListPartitions) -> list[SourcePosition]:
        if spec.name not in self._opened:
            self._opened[spec.name] = spec.source.open()
        source, listed_partitions = self._opened[spec.name], asked.known.get(spec.name, ())
        there = source.partitions()
        if set(there) != set(listed_partitions):
            refuse_other_sources(self._job, asked.positions, {spec.name: source})
        return [
            SourcePosition(spec.name, p, FIRST_RECORD if p in listed_partitions else source.retention_start(p))
            for p in there
        ]

    def _close(self) -> None:
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()
