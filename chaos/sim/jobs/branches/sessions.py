"""A branch with session windows per bucket, which may merge, with a lateness.

A result lists the ids of its records, so it is compared exactly. Which records are late, and which sessions had been
emitted when a record came between them, depends on the order in which partitions were read. Late records are taken from
the late output. Two sessions that touch may only be apart because of a record that event time had passed when it came.

Source: PROTOCOL P11, P27; docs/design/0063-sessions.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row, Watched
from holdfast.chaos.sim.jobs.expected.sessions import GAP_US, LATENESS_US, Session, session_of
from holdfast.chaos.sim.jobs.oracle import Cut, Input
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

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


class Visits:
    """The sessions, compared with the records."""

    def __init__(self, watched: Watched) -> None:
        self._records = {r.id: r for records in watched.partitions for r in records}
        self._watched, self._fail = watched, watched.fail

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """The sessions are right, and none was emitted too early."""
        self._compare(when, cut, rows, added)
        for row in added:
            if (end := _shown(row).end) + LATENESS_US > latest_us:
                self._fail("P11 early", f"sessions, {when}: {row} ends at {end}, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Nothing is in a session that was read after the base epoch."""
        self._compare(when, cut, rows, rows)

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """An open session is one of its records, and is not over."""
        rows = read(VISITS_OPERATOR)
        self._compare(when, cut, rows, rows)
        if over := [row for row in rows if _shown(row).end + LATENESS_US <= earliest_us]:
            self._fail("P11 open", f"sessions, {when}: {over} are still open, but time is at least {earliest_us}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record is in one session or late, and sessions that touch are one."""
        self._compare("at the end", everything, rows, rows)
        late_ids = Counter(row["id"] for row in late)
        if twice := sorted(id for id, count in late_ids.items() if count > 1):
            self._fail("I2 duplicate", f"sessions: records {twice} are late twice")
        emitted = {id for row in rows for id in row["ids"]}
        if both := sorted(emitted & late_ids.keys()):
            self._fail("P11 late", f"sessions: records {both} are in a session, but also late")
        if wrong := sorted(late_ids.keys() & self._watched.prompt(GAP_US + LATENESS_US)):
            self._fail(
                "P11 late", f"sessions: records {wrong} are late, although no watermark had passed their session"
            )
        read = {record.id for record in oracle.read(self._watched.partitions, everything)}
        if lost := sorted(read - emitted - late_ids.keys()):
            self._fail("I1 loss", f"sessions: records {lost} are neither in a session nor late")
        self._compare_touching(rows)

    def _compare_touching(self, rows: Sequence[Row]) -> None:
        prompt = self._watched.prompt(LATENESS_US)
        for one, other in combinations(rows, 2):
            between = [*_touching(one, self._of(other)), *_touching(other, self._of(one))]
            if between and {record.id for record in between} <= prompt:
                self._fail("I1 sessions", f"sessions: {one} and {other} are one, by {between}")

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """Every row is a session of its records, and no record is in two.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        counted = Counter(id for row in rows for id in row["ids"])
        if twice := sorted(id for id, count in counted.items() if count > 1):
            self._fail("I2 duplicate", f"sessions, {when}: records {twice} are in two")
        read = {record.id for record in oracle.read(self._watched.partitions, cut)}
        if early := [row for row in by_then if not set(row["ids"]) <= read]:
            self._fail("I5 visible", f"sessions, {when}: {early} were not read by then")
        for row in rows:
            if _shown(row) != (expected := session_of(self._of(row))):
                self._fail("I1 sessions", f"sessions, {when}: {row} should be {expected}")

    def _of(self, row: Row) -> list[Input]:
        return [self._records[id] for id in row["ids"]]


def _shown(row: Row) -> Session:
    start, end = (round(row[name].timestamp() * SECOND_US) for name in ("window_start", "window_end"))
    return Session(row["bucket"], start, end, row["total"])


def _touching(row: Row, records: Sequence[Input]) -> list[Input]:
    session = _shown(row)
    return [record for record in records if record.bucket == session.bucket and session.touches(record)]


BRANCH = Branch(SESSIONS, 0.08, "sessions 127", VISITS, VISITS_LATE, count_visits, Visits)
