"""A branch with session windows per bucket, which may merge, with a lateness.

A result lists the ids of its records, so it is compared exactly. Which records are late, and which sessions had been
emitted when a record came between them, depends on the order in which partitions were read. Late records are taken from
the late output. Two sessions that touch may only be apart because of a record that event time had passed when it came.

Source: PROTOCOL P11, P27; docs/decisions/0063-sessions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import holdfast as hf
from holdfast.chaos.sim.jobs.branches.compared import Compared
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row
from holdfast.chaos.sim.jobs.expected.sessions import GAP_US, LATENESS_US, ExpectedSession, session_of
from holdfast.chaos.sim.jobs.oracle import Cut, Input
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

SESSIONS, VISITS, VISITS_LATE, VISITS_OPERATOR = "sessions", "visits", "visits_late", "sessions_of_buckets"
SECOND_US = 1_000_000


def count_visits(records: Stream) -> None:
    """Add the branch to a job."""
    window = records.key_by("bucket").window(
        hf.session(f"{GAP_US // SECOND_US}s"), allowed_lateness=f"{LATENESS_US // SECOND_US}s"
    )
    visits = window.agg(VISITS_OPERATOR, emit="final", ids=hf.collect("id"), total=hf.sum("value"))
    visits.sink(VISITS, MemorySink())
    visits.late.sink(VISITS_LATE, MemorySink())


class Visits(Compared):
    """The sessions, compared with the records."""

    called = "sessions"

    def ids(self, row: Row) -> list[int]:
        """Return the records of the session; no other session has one of them."""
        ids: list[int] = row["ids"]
        return ids

    def due(self, row: Row) -> int:
        """A session comes out when no record may be added to it any longer; one at its end still may."""
        return _shown(row).end + LATENESS_US + 1

    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """Every row is the session of its records."""
        for row in rows:
            if _shown(row) != (expected := session_of(self._of(row))):
                self.fail("I1 sessions", f"sessions, {when}: {row} should be {expected}")

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """An open session is one of its records, and is not over."""
        rows = read(VISITS_OPERATOR)
        self.compare(when, cut, rows, rows)
        if over := [row for row in rows if self.due(row) <= earliest_us]:
            self.fail("P11 open", f"sessions, {when}: {over} are still open, but time is at least {earliest_us}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record is in one session or late, and sessions that touch are one."""
        self.compare("at the end", everything, rows, rows)
        shown = {id for row in rows for id in self.ids(row)}
        self.compare_late([row["id"] for row in late], shown, everything, GAP_US + LATENESS_US + 1)
        self._compare_touching(rows)

    def _compare_touching(self, rows: Sequence[Row]) -> None:
        prompt = self.watched.prompt(LATENESS_US + 1)
        for one, other in combinations(rows, 2):
            between = [*_touching(one, self._of(other)), *_touching(other, self._of(one))]
            if between and {record.id for record in between} <= prompt:
                self.fail("I1 sessions", f"sessions: {one} and {other} are one, by {between}")

    def _of(self, row: Row) -> list[Input]:
        return [self.records[id] for id in self.ids(row)]


def _shown(row: Row) -> ExpectedSession:
    start, end = (round(row[name].timestamp() * SECOND_US) for name in ("window_start", "window_end"))
    return ExpectedSession(row["bucket"], start, end, row["total"])


def _touching(row: Row, records: Sequence[Input]) -> list[Input]:
    session = _shown(row)
    return [record for record in records if record.bucket == session.bucket and session.touches(record)]


BRANCH = Branch(SESSIONS, 0.08, "sessions 127", VISITS, VISITS_LATE, count_visits, Visits)
