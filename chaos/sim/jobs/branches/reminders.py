"""A branch with a keyed function: a timer reports every record a while after its event time, and the function counts.

The function keeps the records of a key that wait in a map, and its one timer is that of the earliest. A record that is
due later leaves the timer as it is, so a lost one is not set again by chance. A report is lost if a timer or an element
is, and repeated if either comes back. A handler that is called for a time at which nothing waits reports NOTHING.

Source: docs/decisions/0065-keyed-functions.md, 0066-rounds-of-timers.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.compared import Compared
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row
from holdfast.chaos.sim.jobs.expected.reminders import AFTER_US, reminders
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

REMINDERS, REMINDED, REMIND_OPERATOR = "reminders", "reminded", "remind"
NOTHING = -1
WAITING_ID, WAITING_DUE = "map_key", "value"
"""How a reader shows the key and the value of an element of a map."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)


@dataclass
class Reminded:
    """A report."""

    key: int
    id: int
    due_us: int
    nth: int
    """Number among the reports of its key, from 1."""


class Remind(hf.KeyedProcess[Any, Reminded]):
    """Reports each record when its time has come, the earliest first."""

    waiting = hf.Map(int, int)
    """By id: when it is due, in microseconds since 1970."""
    reported = hf.Value(int)
    alarm = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Any) -> None:
        """Let a record wait."""
        due = (r.at - EPOCH) // US + AFTER_US
        if all(due < at for _, at in self.waiting.items()):
            self.alarm.set(EPOCH + due * US)
        self.waiting.set(r.id, due)

    @alarm.fires
    def report(self, ctx: hf.Context) -> None:
        """Report the records that are due now."""
        assert ctx.event_time is not None
        now_us = (ctx.event_time - EPOCH) // US
        due = sorted((at, id) for id, at in self.waiting.items() if at <= now_us)
        for at, id in due or [(now_us, NOTHING)]:
            self.reported.set(self.reported.get(0) + 1)
            ctx.emit(Reminded(ctx.key, id, at, self.reported.get(0)))
            self.waiting.remove(id)
        if times := [at for _, at in self.waiting.items()]:
            self.alarm.set(EPOCH + min(times) * US)


def remind(records: Stream) -> None:
    """Add the branch to a job."""
    records.key_by("key").process(REMIND_OPERATOR, Remind(), to=Reminded).sink(REMINDED, MemorySink())


class Reminders(Compared):
    """The reports, compared with the records."""

    called = "reminders"

    def ids(self, row: Row) -> list[int]:
        """Return the record that is reported."""
        return [row["id"]]

    def due(self, row: Row) -> int:
        """A report comes out when its timer is due."""
        due_us: int = row["due_us"]
        return due_us

    def unique(self, row: Row) -> list[tuple[str, int, int]]:
        """A record is reported once, and so is a number of its key."""
        return [(what, row["key"], row[what]) for what in ("id", "nth")]

    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """Every report is one of a record, at its time."""
        partitions = self.watched.partitions
        everything = reminders(partitions, oracle.whole(partitions))
        for row in rows:
            if (row["key"], row["due_us"]) != everything.get(row["id"]):
                self.fail("P10 timers", f"reminders, {when}: no timer was set for {row}")

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """Every record was reported or waits until it is due; the timer of a key is set to the earliest that waits."""
        reminders_by_id = reminders(self.watched.partitions, cut)
        waiting = {row[WAITING_ID]: (row["key"], row[WAITING_DUE]) for row in read(f"{REMIND_OPERATOR}.waiting")}
        if wrong := sorted(id for id, each in waiting.items() if reminders_by_id.get(id) != each):
            self.fail("I9 state", f"reminders, {when}: records {wrong} wait as {[waiting[id] for id in wrong]}")
        counted = Counter(key for key, _ in waiting.values())
        counted.update({row["key"]: row["reported"] or 0 for row in read(REMIND_OPERATOR)})
        if counted != (expected := Counter(key for key, _ in reminders_by_id.values())):
            self.fail("I9 state", f"reminders, {when}: {counted} wait or were reported, of {expected} by key")
        # The timer of a record that came late fires only when time advances again.
        in_time = waiting.keys() & self.watched.prompt(AFTER_US)
        if overdue := sorted(id for id in in_time if waiting[id][1] <= earliest_us):
            self.fail("P11 open", f"reminders, {when}: records {overdue} wait, but time is at least {earliest_us}")
        alarms = {row["key"]: row["at"] for row in read(f"{REMIND_OPERATOR}.alarm")}
        earliest: dict[int, int] = {}
        for key, due in waiting.values():
            earliest[key] = min(due, earliest.get(key, due))
        if alarms != earliest:
            self.fail("I9 state", f"reminders, {when}: timers by key are {alarms}, expected {earliest}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record was reported; those of a key were counted, and reported in the order of their times."""
        self.compare("at the end", everything, rows, rows)
        found = {row["id"] for row in rows}
        if lost := sorted(set(reminders(self.watched.partitions, everything)) - found):
            self.fail("I1 loss", f"reminders: records {lost} were never reported")
        by_key: dict[int, list[Row]] = {}
        for row in sorted(rows, key=lambda row: int(row["nth"])):
            by_key.setdefault(row["key"], []).append(row)
        prompt = self.watched.prompt(AFTER_US)
        for key, reports in by_key.items():
            if [row["nth"] for row in reports] != list(range(1, len(reports) + 1)):
                self.fail("I9 state", f"reminders: key {key} counted {[row['nth'] for row in reports]}")
            latest = reports[0]["due_us"]
            for row in reports:
                if row["due_us"] < latest and row["id"] in prompt:
                    self.fail("I3 order", f"reminders: {row} was reported after one that was due at {latest}")
                latest = max(latest, row["due_us"])


BRANCH = Branch(REMINDERS, 0.08, "reminders 40", REMINDED, None, remind, Reminders)
