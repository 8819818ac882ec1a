"""Compares the output of a join with the input: pairs that must be there are, and nothing else.

Which records are late depends on the order in which partitions were read, so that is taken from the late output. A pair
of records that no watermark of their partitions had passed must be in the result. A record without a partner is in the
result once, when no partner can come any more, and never together with one.

Source: PROTOCOL P11; docs/design/0060-joins.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.chaos.sim.checks.clocks import Clocks
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.joined import LOWER_S, UPPER_S
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut, Input
from holdfast.chaos.sim.jobs.workload import OUT_OF_ORDERNESS_S, Scenario
from holdfast.model import Tag, Writer

SECOND_US = 1_000_000
Row = Mapping[str, Any]


class Joined:
    """The two sinks of the join."""

    def __init__(self, scenario: Scenario, clocks: Clocks, fail: Callable[[str, str], None]) -> None:
        self._records = {r.id: r for records in scenario.partitions for r in records}
        self._clocks, self._fail, self._seen = clocks, fail, 0
        self._on_time: set[int] = set()
        """Records that are never late."""
        if scenario.windowing is not None and not scenario.windowing.idles:
            delay = OUT_OF_ORDERNESS_S * SECOND_US
            for records in scenario.partitions:
                for offset, record in enumerate(records):
                    passed = oracle.watermark(records, offset, delay)
                    if passed is None or record.at >= passed:
                        self._on_time.add(record.id)

    def look(self, writer: Writer, tag: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A delivery committed: its rows are right, and none was emitted too early."""
        latest, when = self._clocks.latest(tag.epoch), f"{writer} at epoch {tag.epoch}"
        self._compare(when, cut, rows, rows[self._seen :])  # other writers may already show a later epoch (P25)
        for row in rows[self._seen :]:
            left = self._records[row["id"]]
            if row["id_right"] is None and left.at + UPPER_S * SECOND_US + 1 > latest:
                self._fail("P11 early", f"{when}: {left} has no partner, but time is at most {latest}")
        self._seen = len(rows)

    def taken_back(self, to: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed output: nothing is in the result that was read after the base epoch."""
        self._compare(f"after going back to {to}", cut, rows, rows)
        self._seen = len(rows)

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record that was not late is in the result, with every partner that was not late either."""
        self._compare("at the end", everything, rows, rows)
        found, read = {(row["id"], row["id_right"]) for row in rows}, self._read(everything)
        lefts = {row["id"] for row in late if row["id"] is not None}
        rights = {row["id_right"] for row in late if row["id_right"] is not None}
        overtaken = self._clocks.overtaken
        on_time = {id for id in self._on_time if id // PARTITION_STRIDE not in overtaken}
        if wrong := sorted((lefts | rights) & on_time):
            self._fail("P11 late", f"join: records {wrong} are late, although no watermark had passed them")
        if joined := sorted(pair for pair in found if pair[0] in lefts or pair[1] in rights):
            self._fail("P11 late", f"join: {joined} are in the result, but also late")
        emitted = {left for left, _ in found}
        if lost := sorted(r.id for r in read if r.id not in emitted and r.id not in lefts):
            self._fail("I1 loss", f"join: records {lost} are neither in the result nor late")
        pairs = {(a.id, b.id) for a in read for b in read if _fits(a, b) and {a.id, b.id} <= on_time}
        if lost_pairs := sorted(pairs - found):
            self._fail("I1 loss", f"join: the pairs {lost_pairs} are missing")

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """All rows are pairs that fit, once each; a record without a partner has none.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        counted, read = Counter((row["id"], row["id_right"]) for row in rows), {r.id for r in self._read(cut)}
        if twice := sorted((pair for pair, count in counted.items() if count > 1), key=str):
            self._fail("I2 duplicate", f"join, {when}: {twice} were emitted twice")
        partnered = {left for left, right in counted if right is not None}
        if both := sorted(left for left, right in counted if right is None and left in partnered):
            self._fail("P11 unmatched", f"join, {when}: records {both} are in the result with a partner and without")
        if early := [row for row in by_then if not {row["id"], row["id_right"]} - {None} <= read]:
            self._fail("I5 visible", f"join, {when}: {early} were not read by then")
        for left, right in counted:
            if right is not None and not _fits(self._records[left], self._records[right]):
                self._fail("I1 join", f"join, {when}: {self._records[left]} and {self._records[right]} do not fit")

    def _read(self, cut: Cut) -> list[Input]:
        return [r for r in self._records.values() if r.id % PARTITION_STRIDE < cut.get(r.id // PARTITION_STRIDE, 0)]


def _fits(left: Input, right: Input) -> bool:
    after = right.at - left.at
    return left.bucket == right.bucket and right.value % 2 == 0 and LOWER_S <= after / SECOND_US <= UPPER_S
