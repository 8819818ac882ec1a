"""The rows that every reader of an immediately written table must find, at any moment.

Source: PROTOCOL P22; docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut
from holdfast.chaos.sim.jobs.workload import Scenario
from holdfast.sinks.contract.immediate import Origin, Owner
from holdfast.sinks.memory.immediate import ImmediateTable


class Lasts:
    """The table as a reader sees it: the last record of every place, as far as the source was read."""

    def __init__(self, scenario: Scenario, fail: Callable[[str, str], None]) -> None:
        self._scenario, self._fail = scenario, fail
        self._records = {r.id: r for records in scenario.partitions for r in records}
        self._shown: dict[int, int] = {}
        """The offset of the visible record, by place."""

    def written(self, owner: Owner, origin: Origin, table: ImmediateTable) -> None:
        """Check every row after a write."""
        newest = table.fences[owner.job_uuid, owner.sink, origin].generation
        if owner.generation < newest:
            self._fail("P22 fence", f"generation {owner.generation} wrote from {origin}, which {newest} owns")
        for row in table.rows():
            record = self._records.get(row["id"])
            if record is None or row != oracle.shown(record):
                self._fail("I5 visible", f"{row} matches no record")
                return
            offset = record.id % PARTITION_STRIDE
            if offset < self._shown.get(record.place, 0):
                what = f"place {record.place} shows offset {offset} after {self._shown[record.place]}"
                self._fail("P22 order", what)
            self._shown[record.place] = offset

    def completed(self, cut: Cut) -> None:
        """An epoch is complete: the table holds all its rows, or newer ones."""
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
            self._fail("I1 loss", f"immediate writes: found {found}, expected {expected}")
