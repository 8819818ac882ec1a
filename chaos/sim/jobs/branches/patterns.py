"""A branch that matches a pattern in the records of each partition.

So their order is known, also among equal times, and the matches follow from the records that were not late. Which
were is taken from the late output. Neighbours are close together in event time and often arrive in another order.

Source: PROTOCOL P11; docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.compared import Compared
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row
from holdfast.chaos.sim.jobs.expected.patterns import PEAK, WITHIN_US, Match, matches
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

PATTERNS, MATCHED, MATCHED_LATE, MATCH_OPERATOR = "patterns", "matched", "matched_late", "falls"
SECOND_US = 1_000_000


@dataclass
class Falls:
    """A match."""

    first_id: int
    rise_id: int
    last_id: int


def match_falls(records: Stream) -> None:
    """Add the branch to a job."""
    value = pl.col("value")
    falls = hf.pattern("first", value < 0).not_followed_by("peak", value > PEAK).followed_by("rise", value > 0)
    pattern = falls.followed_by("last", value < 0).within(f"{WITHIN_US // SECOND_US}s")
    by_partition = records.select("id", "value", "at", partition=pl.col("id") // PARTITION_STRIDE)
    found = by_partition.match(MATCH_OPERATOR, pattern, key="partition", to=Falls)
    found.sink(MATCHED, MemorySink())
    found.late.select("id").sink(MATCHED_LATE, MemorySink())


class Matched(Compared):
    """The matches, compared with the records."""

    called = "pattern"

    def ids(self, row: Row) -> Match:
        """Return the records of the match; no other match has one of them."""
        return row["first_id"], row["rise_id"], row["last_id"]

    def due(self, row: Row) -> int:
        """A match comes out when event time has passed its last row."""
        return self.records[row["last_id"]].at + 1

    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """Every row alone is a match."""
        for ids in map(self.ids, rows):
            if ids not in matches(records := [self.records[id] for id in ids]):
                self.fail("I1 pattern", f"pattern, {when}: {records} are no match")

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """A partial match is not over."""
        rows = read(MATCH_OPERATOR)
        if over := [row for row in rows if round(row["ends"].timestamp() * SECOND_US) <= earliest_us]:
            self.fail("P11 open", f"pattern, {when}: {over} are still kept, but time is at least {earliest_us}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """The matches are those of the records that were not late."""
        self.compare("at the end", everything, rows, rows)
        late_ids = {row["id"] for row in late}
        if wrong := sorted(late_ids & self.watched.prompt(1)):
            self.fail("P11 late", f"pattern: records {wrong} are late, although no watermark had passed them")
        read = oracle.read(self.watched.partitions, everything)
        expected, found = matches(record for record in read if record.id not in late_ids), set(map(self.ids, rows))
        if found != expected:
            self.fail("I1 pattern", f"pattern: lost {sorted(expected - found)}, wrong {sorted(found - expected)}")


BRANCH = Branch(PATTERNS, 0.08, "patterns 3", MATCHED, MATCHED_LATE, match_falls, Matched)
