"""Compares the view of a reader of the targets with the oracle, after every delivery and at the end.

Which keys and partitions belong to which writer is not assumed but learnt from their writes; so an
early omission by a writer is found at the end, when all owners are known. If the job is rescaled,
keys and partitions have no fixed writer, and only the end is compared.

Source: PROTOCOL P25 (visibility is atomic per writer and epoch); research I1, I2, I3, I5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut
from holdfast.chaos.sim.jobs.workload import Scenario
from holdfast.model import Tag, Writer

Fail = Callable[[str, str], None]
Row = Mapping[str, Any]


class AppendCheck:
    """The append sink."""

    def __init__(self, scenario: Scenario, fail: Fail) -> None:
        self._scenario, self._fail = scenario, fail
        self._writers: dict[int, Writer] = {}
        self._seen: list[tuple[Writer, Tag, Cut, dict[int, int]]] = []
        self._rows = 0
        self._ids: dict[int, list[int]] = {}

    def look(self, writer: Writer, tag: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """Take the rows that this writer's delivery added; all of its rows must then match the epoch."""
        for row in rows[self._rows :]:
            partition = int(row["id"]) // PARTITION_STRIDE
            if not self._scenario.moves_rows and self._writers.setdefault(partition, writer) != writer:
                self._fail("I5 visible", f"two writers wrote rows of partition {partition}")
            self._ids.setdefault(partition, []).append(int(row["id"]))
        self._rows = len(rows)
        if self._scenario.moves_rows:
            return
        expected_ids = oracle.passing(self._scenario.partitions, cut, self._scenario.above)
        counts: dict[int, int] = {}
        for partition, owner in self._writers.items():
            if owner == writer:
                self._compare(f"{writer} at epoch {tag.epoch}", partition, expected_ids[partition])
                counts[partition] = len(expected_ids[partition])
        self._seen.append((writer, tag, cut, counts))

    def taken_back(self, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed rows: the rest, of all writers, must match the base epoch.

        A partition that the base lacks is discovered again, and another writer may get it: nothing of it is left that
        could be overtaken. So earlier views are compared before the writers of such partitions are forgotten.
        """
        self._compare_seen()
        self._seen = []
        self._writers = {partition: writer for partition, writer in self._writers.items() if partition in cut}
        self._ids, self._rows = {}, len(rows)
        for row in rows:
            self._ids.setdefault(int(row["id"]) // PARTITION_STRIDE, []).append(int(row["id"]))
        for partition, ids in oracle.passing(self._scenario.partitions, cut, self._scenario.above).items():
            self._compare("the base of a rewind", partition, ids)

    def at_end(self, everything: Cut, rows: Sequence[Row]) -> None:
        """Compare all rows, and earlier views of partitions whose writer was not known yet."""
        if len(rows) != self._rows:
            self._fail("I1 loss", f"{len(rows)} rows at the end, {self._rows} after the last delivery")
        expected = oracle.passing(self._scenario.partitions, everything, self._scenario.above)
        for partition, ids in expected.items():
            self._compare("the end", partition, ids)
        self._compare_seen()

    def _compare_seen(self) -> None:
        """Compare earlier views with the rows of partitions whose writer was not known yet."""
        for writer, tag, cut, counts in self._seen:
            then = oracle.passing(self._scenario.partitions, cut, self._scenario.above)
            for partition, owner in self._writers.items():
                if owner == writer and counts.get(partition, 0) != len(then[partition]):
                    self._fail("I5 visible", f"{writer} at epoch {tag.epoch} lacked rows of partition {partition}")

    def _compare(self, when: str, partition: int, expected: list[int]) -> None:
        visible_ids = self._ids.get(partition, [])
        if visible_ids == expected:
            return
        twice = sorted({id for id in visible_ids if visible_ids.count(id) > 1})
        lost = sorted(set(expected) - set(visible_ids))
        early = sorted(set(visible_ids) - set(expected))
        rule = "I2 duplicate" if twice else "I1 loss" if lost else "I5 visible" if early else "I3 order"
        self._fail(rule, f"partition {partition} as of {when}: twice {twice}, lost {lost}, early {early}")


class Upserted:
    """One upsert sink.

    Args:
        by: Its key column.
        expected: Returns the oracle's row of every key.
    """

    def __init__(
        self, name: str, by: str, expected: Callable[[Cut], Mapping[Any, Row]], rescales: bool, fail: Fail
    ) -> None:
        self._name, self._by, self._expected, self._rescales, self._fail = name, by, expected, rescales, fail
        self._writers: dict[Any, Writer] = {}
        self._seen: list[tuple[Writer, Tag, Cut, frozenset[Any]]] = []

    def look(self, writer: Writer, tag: Tag, cut: Cut, keys: set[Any], rows: Sequence[Row]) -> None:
        """Take the keys that this delivery wrote; all rows of the writer must then match the epoch."""
        if self._rescales:
            return
        for key in sorted(keys):
            if self._writers.setdefault(key, writer) != writer:
                self._fail("I5 visible", f"{self._name}: two writers wrote key {key}")
        expected_rows = self._expected(cut)
        mine = {row[self._by]: row for row in rows if self._writers.get(row[self._by]) == writer}
        for key, row in mine.items():
            if row != expected_rows.get(key):
                what = f"{self._name}: {writer} at epoch {tag.epoch} shows {row}, expected {expected_rows.get(key)}"
                self._fail("I5 visible", what)
        self._seen.append((writer, tag, cut, frozenset(mine)))

    def taken_back(self, to: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed rows: the rest, of all writers, must match the base epoch."""
        found, expected = {row[self._by]: row for row in rows}, self._expected(cut)
        if found != expected:
            self._fail("P21 repair", f"{self._name} repaired to {to} shows {found}, expected {expected}")

    def at_end(self, everything: Cut, rows: Sequence[Row]) -> None:
        """Compare all rows, and earlier views of keys whose writer was not known yet."""
        expected = self._expected(everything)
        found = {row[self._by]: row for row in rows}
        if found != expected:
            wrong = {key: (found.get(key), expected.get(key)) for key in found.keys() | expected.keys()}
            differ = {key: pair for key, pair in sorted(wrong.items()) if pair[0] != pair[1]}
            self._fail("I1 loss", f"{self._name}: (found, expected) by key: {differ}")
        for writer, tag, cut, keys in self._seen:
            rows_then = self._expected(cut)
            then = {key for key in rows_then if self._writers.get(key) == writer}
            if then != keys:
                self._fail("I5 visible", f"{self._name}: {writer} at epoch {tag.epoch} lacked keys {then - keys}")
