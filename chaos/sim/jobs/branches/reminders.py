"""A branch with a keyed function: a timer reports every record a while after its event time, and the function counts.

The function keeps the records of a key that wait in a map, and sets its one timer to the earliest. So a report is lost
if a timer or an element is, and repeated if either comes back. A handler that is called for a time at which nothing
waits reports NOTHING.

Source: docs/design/0065-keyed-functions.md, 0066-rounds-of-timers.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row, Watched
from holdfast.chaos.sim.jobs.expected.reminders import AFTER_US, reminders
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

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
    """Of the reports of its key, from 1."""


class Remind(hf.KeyedProcess[Any, Reminded]):
    """Reports each record when its time has come, the earliest first."""

    waiting = hf.Map(int, int)
    """By id: when it is due, in microseconds since 1970."""
    reported = hf.Value(int)
    alarm = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Any) -> None:
        """Let a record wait."""
        self.waiting.set(r.id, (r.at - EPOCH) // US + AFTER_US)
        self._set_alarm()

    @alarm.fires
    def report(self, ctx: hf.Context) -> None:
        """Report what is due now."""
        assert ctx.event_time is not None
        now_us = (ctx.event_time - EPOCH) // US
        due = sorted((at, id) for id, at in self.waiting.items() if at <= now_us)
        for at, id in due or [(now_us, NOTHING)]:
            self.reported.set(self.reported.get(0) + 1)
            ctx.emit(Reminded(ctx.key, id, at, self.reported.get(0)))
            self.waiting.remove(id)
        self._set_alarm()

    def _set_alarm(self) -> None:
        if times := [at for _, at in self.waiting.items()]:
            self.alarm.set(EPOCH + min(times) * US)


def remind(records: Stream) -> None:
    """Add the branch to a job."""
    records.key_by("key").process(REMIND_OPERATOR, Remind(), to=Reminded).sink(REMINDED, MemorySink())


class Reminders:
    """The reports, compared with the records."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._fail = watched, watched.fail

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """No report is repeated, wrong, or earlier than time allows."""
        self._compare(when, cut, rows, added)
        for row in added:
            if row["due_us"] > latest_us:
                self._fail("P11 early", f"reminders, {when}: {row} is reported, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """What is left was read by then."""
        self._compare(when, cut, rows, rows)

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """Every record was reported or waits, and the timer of a key is set to the earliest that waits."""
        known = reminders(self._watched.partitions, cut)
        waiting = {row[WAITING_ID]: (row["key"], row[WAITING_DUE]) for row in read(f"{REMIND_OPERATOR}.waiting")}
        if wrong := sorted(id for id, each in waiting.items() if known.get(id) != each):
            self._fail("I9 state", f"reminders, {when}: records {wrong} wait as {[waiting[id] for id in wrong]}")
        counted = Counter(key for key, _ in waiting.values())
        counted.update({row["key"]: row["reported"] or 0 for row in read(REMIND_OPERATOR)})
        if counted != (expected := Counter(key for key, _ in known.values())):
            self._fail("I9 state", f"reminders, {when}: {counted} wait or were reported, of {expected} by key")
        alarms = {row["key"]: row["at"] for row in read(f"{REMIND_OPERATOR}.alarm")}
        earliest: dict[int, int] = {}
        for key, due in waiting.values():
            earliest[key] = min(due, earliest.get(key, due))
        if alarms != earliest:
            self._fail("I9 state", f"reminders, {when}: timers by key are {alarms}, expected {earliest}")

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record was reported; those of a key were counted, and reported in the order of their times."""
        self._compare("at the end", everything, rows, rows)
        found = {row["id"] for row in rows}
        if lost := sorted(set(reminders(self._watched.partitions, everything)) - found):
            self._fail("I1 loss", f"reminders: records {lost} were never reported")
        by_key: dict[int, list[Row]] = {}
        for row in sorted(rows, key=lambda row: int(row["nth"])):
            by_key.setdefault(row["key"], []).append(row)
        prompt = self._watched.prompt(AFTER_US)
        for key, reports in by_key.items():
            if [row["nth"] for row in reports] != list(range(1, len(reports) + 1)):
                self._fail("I9 state", f"reminders: key {key} counted {[row['nth'] for row in reports]}")
            latest = reports[0]["due_us"]
            for row in reports:
                if row["due_us"] < latest and row["id"] in prompt:
                    self._fail("I3 order", f"reminders: {row} was reported after one that was due at {latest}")
                latest = max(latest, row["due_us"])

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """Every report is one of a record, at its time, and there is one of each.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        partitions = self._watched.partitions
        everything = reminders(partitions, oracle.whole(partitions))
        for row in rows:
            if (row["key"], row["due_us"]) != everything.get(row["id"]):
                self._fail("P10 timers", f"reminders, {when}: no timer was set for {row}")
        for what in ("id", "nth"):
            counted = Counter((row["key"], row[what]) for row in rows)
            if twice := sorted(each for each, count in counted.items() if count > 1):
                self._fail("I2 duplicate", f"reminders, {when}: (key, {what}) {twice} were reported twice")
        read = reminders(partitions, cut)
        if early := [row for row in by_then if row["id"] not in read]:
            self._fail("I5 visible", f"reminders, {when}: {early} were not read by then")


BRANCH = Branch(REMINDERS, 0.08, "reminders 40", REMINDED, None, remind, Reminders)
