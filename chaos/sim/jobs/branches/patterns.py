"""A branch that matches a pattern in the records of each place, whose records are all in one partition.

So their order is known, also among equal times, and the matches follow from the records that were not late. Which
were is taken from the late output.

Source: PROTOCOL P11; docs/design/0069-patterns.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row, Watched
from holdfast.chaos.sim.jobs.expected.patterns import PEAK, WITHIN_US, Match, matches
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

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
    found = records.match(MATCH_OPERATOR, pattern, key="place", to=Falls)
    found.sink(MATCHED, MemorySink())
    found.late.select("id").sink(MATCHED_LATE, MemorySink())


class Matched:
    """The matches, compared with the records."""

    def __init__(self, watched: Watched) -> None:
        self._records = {r.id: r for records in watched.partitions for r in records}
        self._watched, self._fail = watched, watched.fail

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """No match is wrong by itself, or was emitted before time had passed its last row."""
        self._compare(when, cut, rows, added)
        for row in added:
            if (at := self._records[row["last_id"]].at) >= latest_us:
                self._fail("P11 early", f"pattern, {when}: {row} ends at {at}, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Nothing is in a match that was read after the base epoch."""
        self._compare(when, cut, rows, rows)

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """A partial match is not over."""
        rows = read(MATCH_OPERATOR)
        if over := [row for row in rows if round(row["ends"].timestamp() * SECOND_US) <= earliest_us]:
            self._fail("P11 open", f"pattern, {when}: {over} are still kept, but time is at least {earliest_us}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """The matches are those of the records that were not late."""
        self._compare("at the end", everything, rows, rows)
        late_ids = {row["id"] for row in late}
        if wrong := sorted(late_ids & self._watched.prompt(1)):
            self._fail("P11 late", f"pattern: records {wrong} are late, although no watermark had passed them")
        read = oracle.read(self._watched.partitions, everything)
        expected, found = matches(record for record in read if record.id not in late_ids), set(map(_ids, rows))
        if found != expected:
            self._fail("I1 pattern", f"pattern: lost {sorted(expected - found)}, wrong {sorted(found - expected)}")

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """Every row is a match by itself, and none overlaps another one.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        counted = Counter(id for row in rows for id in _ids(row))
        if twice := sorted(id for id, count in counted.items() if count > 1):
            self._fail("I2 duplicate", f"pattern, {when}: records {twice} are in two matches")
        read = {record.id for record in oracle.read(self._watched.partitions, cut)}
        if early := [row for row in by_then if not set(_ids(row)) <= read]:
            self._fail("I5 visible", f"pattern, {when}: {early} were not read by then")
        for ids in map(_ids, rows):
            if ids not in matches(self._records[id] for id in ids):
                self._fail("I1 pattern", f"pattern, {when}: {[self._records[id] for id in ids]} are no match")


def _ids(row: Row) -> Match:
    return row["first_id"], row["rise_id"], row["last_id"]


BRANCH = Branch(PATTERNS, 0.08, "patterns 3", MATCHED, MATCHED_LATE, match_falls, Matched)
