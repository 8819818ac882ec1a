"""A branch that joins the records with half of themselves, by bucket and event time.

Every record is on the left and those with an even value are on the right, so some records have no partner.

Which records are late depends on the order in which partitions were read, so that is taken from the late output. A pair
of records that no watermark of their partitions had passed must be in the result. A record without a partner is in the
result once, when no partner can come any longer, and never together with one.

Source: PROTOCOL P11; docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.compared import Compared
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row
from holdfast.chaos.sim.jobs.expected.joins import LOWER_S, SECOND_US, UPPER_S, fits
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

JOINS, JOINED, JOINED_LATE, JOIN_OPERATOR = "joins", "joined", "joined_late", "near"


def join_near(records: Stream) -> None:
    """Add the branch to a job."""
    left, right = (rows.select("id", "bucket", "at") for rows in (records, records.filter(pl.col("value") % 2 == 0)))
    within = hf.between(f"{LOWER_S}s", f"{UPPER_S}s")
    joined = left.join(JOIN_OPERATOR, right, on="bucket", within=within, how="left")
    joined.select("id", "id_right").sink(JOINED, MemorySink())
    joined.late.select("id", "id_right").sink(JOINED_LATE, MemorySink())


class Joined(Compared):
    """The pairs, compared with the records."""

    called = "join"

    def ids(self, row: Row) -> set[int]:
        """Return the record, and its partner if it has one."""
        return {row["id"], row["id_right"]} - {None}

    def due(self, row: Row) -> int | None:
        """A record without a partner comes out when none can come any longer."""
        return None if row["id_right"] is not None else self.records[row["id"]].at + UPPER_S * SECOND_US + 1

    def unique(self, row: Row) -> list[tuple[int, int | None]]:
        """A pair is there once, and so is a record without a partner."""
        return [_pair(row)]

    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """All rows are pairs that fit; a record without a partner has none."""
        pairs = list(map(_pair, rows))
        partnered = {left for left, right in pairs if right is not None}
        if both := sorted(left for left, right in pairs if right is None and left in partnered):
            self.fail("P11 unmatched", f"join, {when}: records {both} are in the result with a partner and without")
        for left, right in pairs:
            if right is not None and not fits(self.records[left], self.records[right]):
                self.fail("I1 join", f"join, {when}: {self.records[left]} and {self.records[right]} do not fit")

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """The result at the end shows rows that the state lacked."""

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record that was not late is in the result, with every partner that was not late either."""
        self.compare("at the end", everything, rows, rows)
        result_pairs, on_time = set(map(_pair, rows)), self.watched.prompt(1)
        lefts = [row["id"] for row in late if row["id"] is not None]
        rights = {row["id_right"] for row in late if row["id_right"] is not None}
        self.compare_late(lefts, {left for left, _ in result_pairs}, everything, 1)
        if wrong := sorted(rights & on_time):
            self.fail("P11 late", f"join: the partners {wrong} are late, although no watermark had passed them")
        if joined := sorted((left, right) for left, right in result_pairs if right in rights):
            self.fail("P11 late", f"join: {joined} are in the result, but the partner is also late")
        read = oracle.read(self.watched.partitions, everything)
        pairs = {(a.id, b.id) for a in read for b in read if fits(a, b) and {a.id, b.id} <= on_time}
        if lost := sorted(pairs - result_pairs):
            self.fail("I1 loss", f"join: the pairs {lost} are missing")


def _pair(row: Row) -> tuple[int, int | None]:
    return row["id"], row["id_right"]


BRANCH = Branch(JOINS, 0.12, "joins", JOINED, JOINED_LATE, join_near, Joined)
