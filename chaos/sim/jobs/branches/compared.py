"""Comparisons common to the watches over all branches.

Rows of a result are made of records. No row occurs twice. No row shows a record that was not read by then, or appears
before event time allowed it. If a branch has late rows, every record is in the result or late. Each branch adds its own
conditions for its rows.

Source: PROTOCOL P11, P25.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import ClassVar

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Row, Watched
from holdfast.chaos.sim.jobs.oracle import Cut


class Compared(ABC):
    """Base of the watches over rows that are made of records."""

    called: ClassVar[str]
    """Name of the branch in findings."""

    def __init__(self, watched: Watched) -> None:
        self.watched, self.fail = watched, watched.fail
        self.records = {record.id: record for records in watched.partitions for record in records}

    # The rows of a branch

    @abstractmethod
    def ids(self, row: Row) -> Collection[int]:
        """Return the ids of the records that a row is made of."""

    @abstractmethod
    def due(self, row: Row) -> int | None:
        """Return the event time before which a row must not come out, in microseconds; None: it may at any time."""

    @abstractmethod
    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """Compare rows with their records, whatever else was read."""

    def unique(self, row: Row) -> Iterable[Hashable]:
        """Return values that no other row has: its records, unless the branch overrides this."""
        return self.ids(row)

    # The watch

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """No row is wrong, repeated, or earlier than time allows."""
        self.compare(when, cut, rows, added)
        for row in added:
            if (due := self.due(row)) is not None and due > latest_us:
                self.fail("P11 early", f"{self.called}, {when}: {row} is due at {due}, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Nothing is in the result that was read after the base epoch."""
        self.compare(when, cut, rows, rows)

    def compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """Compare all rows.

        Args:
            by_then: Those whose records were read up to the cut.
        """
        counted = Counter(each for row in rows for each in self.unique(row))
        if twice := sorted((each for each, count in counted.items() if count > 1), key=str):
            self.fail("I2 duplicate", f"{self.called}, {when}: {twice} are there more than once")
        read = {record.id for record in oracle.read(self.watched.partitions, cut)}
        if early := [row for row in by_then if not read.issuperset(self.ids(row))]:
            self.fail("I5 visible", f"{self.called}, {when}: {early} were not read by then")
        self.compare_each(when, rows)

    def compare_late(self, late: Collection[int], shown: Collection[int], everything: Cut, lasting_us: int = 0) -> None:
        """Every record is in the result or late, and late only if event time may have passed it.

        Args:
            late: The ids of late records, as often as they are late.
            shown: The ids of the records in the result.
            lasting_us: A record is not late before event time is so far past its own.
        """
        of_late, of_shown = set(late), set(shown)
        if twice := sorted(id for id, count in Counter(late).items() if count > 1):
            self.fail("I2 duplicate", f"{self.called}: records {twice} are late more than once")
        if wrong := sorted(of_late & self.watched.prompt(lasting_us)):
            self.fail("P11 late", f"{self.called}: records {wrong} are late, although time had not passed them")
        if both := sorted(of_late & of_shown):
            self.fail("P11 late", f"{self.called}: records {both} are in the result, but also late")
        read = {record.id for record in oracle.read(self.watched.partitions, everything)}
        if lost := sorted(read - of_late - of_shown):
            self.fail("I1 loss", f"{self.called}: records {lost} are neither in the result nor late")
