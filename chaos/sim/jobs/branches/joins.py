"""A branch that joins the records with half of themselves, by bucket and event time.

Every record is on the left and those with an even value are on the right, so some records have no partner.

Which records are late depends on the order in which partitions were read, so that is taken from the late output. A pair
of records that no watermark of their partitions had passed must be in the result. A record without a partner is in the
result once, when no partner can come any more, and never together with one.

Source: PROTOCOL P11; docs/design/0060-joins.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import polars as pl

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row, Watched
from holdfast.chaos.sim.jobs.expected.joins import LOWER_S, SECOND_US, UPPER_S, fits
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

JOINS, JOINED, JOINED_LATE, JOIN_OPERATOR = "joins", "joined", "joined_late", "near"


def join_near(records: Stream) -> None:
    """Add the branch to a job."""
    left, right = (rows.select("id", "bucket", "at") for rows in (records, records.filter(pl.col("value") % 2 == 0)))
    within = hf.between(f"{LOWER_S}s", f"{UPPER_S}s")
    joined = left.join(JOIN_OPERATOR, right, on="bucket", within=within, how="left")
    joined.select("id", "id_right").sink(JOINED, MemorySink())
    joined.late.select("id", "id_right").sink(JOINED_LATE, MemorySink())


class Joined:
    """The pairs, compared with the records."""

    def __init__(self, watched: Watched) -> None:
        self._records = {r.id: r for records in watched.partitions for r in records}
        self._watched, self._fail = watched, watched.fail

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """The rows are right, and none was emitted too early."""
        self._compare(when, cut, rows, added)
        for row in added:
            left = self._records[row["id"]]
            if row["id_right"] is None and left.at + UPPER_S * SECOND_US + 1 > latest_us:
                self._fail("P11 early", f"{when}: {left} has no partner, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Nothing is in the result that was read after the base epoch."""
        self._compare(when, cut, rows, rows)

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """The result at the end shows what the state lacked."""

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record that was not late is in the result, with every partner that was not late either."""
        self._compare("at the end", everything, rows, rows)
        found, read = {(row["id"], row["id_right"]) for row in rows}, oracle.read(self._watched.partitions, everything)
        lefts = {row["id"] for row in late if row["id"] is not None}
        rights = {row["id_right"] for row in late if row["id_right"] is not None}
        on_time = self._watched.prompt(1)
        if wrong := sorted((lefts | rights) & on_time):
            self._fail("P11 late", f"join: records {wrong} are late, although no watermark had passed them")
        if joined := sorted(pair for pair in found if pair[0] in lefts or pair[1] in rights):
            self._fail("P11 late", f"join: {joined} are in the result, but also late")
        emitted = {left for left, _ in found}
        if lost := sorted(r.id for r in read if r.id not in emitted and r.id not in lefts):
            self._fail("I1 loss", f"join: records {lost} are neither in the result nor late")
        pairs = {(a.id, b.id) for a in read for b in read if fits(a, b) and {a.id, b.id} <= on_time}
        if lost_pairs := sorted(pairs - found):
            self._fail("I1 loss", f"join: the pairs {lost_pairs} are missing")

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """All rows are pairs that fit, once each; a record without a partner has none.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        counted = Counter((row["id"], row["id_right"]) for row in rows)
        read = {r.id for r in oracle.read(self._watched.partitions, cut)}
        if twice := sorted((pair for pair, count in counted.items() if count > 1), key=str):
            self._fail("I2 duplicate", f"join, {when}: {twice} were emitted twice")
        partnered = {left for left, right in counted if right is not None}
        if both := sorted(left for left, right in counted if right is None and left in partnered):
            self._fail("P11 unmatched", f"join, {when}: records {both} are in the result with a partner and without")
        if early := [row for row in by_then if not {row["id"], row["id_right"]} - {None} <= read]:
            self._fail("I5 visible", f"join, {when}: {early} were not read by then")
        for left, right in counted:
            if right is not None and not fits(self._records[left], self._records[right]):
                self._fail("I1 join", f"join, {when}: {self._records[left]} and {self._records[right]} do not fit")


BRANCH = Branch(JOINS, 0.12, "joins", JOINED, JOINED_LATE, join_near, Joined)
