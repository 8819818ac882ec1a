"""Compares the output of event-time windows with the oracle: each record is in one result or late, never both.

Which records are late depends on the order in which partitions were read, so that is taken from the late output. The
rest follows from the rules and is checked: a record that its own partition's watermark had not passed is not late
unless partitions may be idle, a window is emitted once, and the watermark of a partition is a function of the records
before its offset. A window is emitted no earlier and no later than event time allows (clocks.py).

Source: PROTOCOL P11, P13; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.chaos.sim.checks.clocks import Clocks
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut
from holdfast.chaos.sim.jobs.workload import OUT_OF_ORDERNESS_S, Scenario, Windowing
from holdfast.model import Tag, Writer

Fail = Callable[[str, str], None]
Row = Mapping[str, Any]
SECOND_US = 1_000_000
SETTLED_S = 1.0
"""A partition that has no records since a deployment is idle after a second, and one with records is quiet half a
second after its last. Only if the deployment was this long before that record do the two certainly overlap."""


class WindowCheck:
    """The two sinks of a window operator."""

    def __init__(self, scenario: Scenario, windowing: Windowing, fail: Fail) -> None:
        self._partitions, self._fail = scenario.partitions, fail
        self._size, self._delay = windowing.size_s * SECOND_US, OUT_OF_ORDERNESS_S * SECOND_US
        self._rows = 0
        self._lateness = windowing.lateness_s * SECOND_US
        self.clocks = Clocks(scenario.partitions, self._delay, windowing.idles, fail, scenario.added)
        self._never_late: set[int] = set()
        self._rests, self._arrivals = scenario.rests, scenario.arrivals
        self._deployed: list[float] = []
        """When subtasks were deployed, in virtual seconds."""
        if not windowing.idles:
            self._never_late = oracle.never_late(scenario.partitions, self._size, self._lateness, self._delay)

    def look(self, writer: Writer, tag: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A delivery committed: no window is emitted twice, none of these holds more than was read by then."""
        most = oracle.windows(self._partitions, cut, self._size, ())
        self._by_window(rows)
        added, self._rows = rows[self._rows :], len(rows)
        latest = self.clocks.latest(tag.epoch)
        for place, row in self._by_window(added).items():
            if place[1] + self._lateness > latest:
                self._fail(
                    "P11 early", f"{writer} at epoch {tag.epoch} emits window {place}, but time is at most {latest}"
                )
            if row[0] > most.get(place, [0])[0]:
                self._fail(
                    "I5 visible",
                    f"{writer} at epoch {tag.epoch}: window {place} is {row}, at most {most.get(place)} was read",
                )

    def taken_back(self, to: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed output: no window holds more than was read by the base epoch."""
        self._rows = 0
        most = oracle.windows(self._partitions, cut, self._size, ())
        for place, row in self._by_window(rows).items():
            if row[0] > most.get(place, [0])[0]:
                self._fail(
                    "P21 repair",
                    f"after going back to {to}: window {place} is {row}, at most {most.get(place)} was read",
                )
        self._rows = len(rows)

    def look_late(self, rows: Sequence[Row]) -> None:
        """Late records were delivered."""
        late = [int(row["id"]) for row in rows]
        if len(set(late)) != len(late):
            self._fail("I2 duplicate", f"records are late twice: {sorted({i for i in late if late.count(i) > 1})}")
        overtaken = self.clocks.overtaken
        if wrong := sorted(i for i in set(late) & self._never_late if i // PARTITION_STRIDE not in overtaken):
            self._fail(
                "P11 late", f"records {wrong} are late, although their partition's watermark had not passed them"
            )

    def completed(self, manifest: Mapping[str, Any]) -> None:
        """An epoch completed: the watermark of every partition follows from its records."""
        for at in manifest["positions"]:
            expected = oracle.watermark(self._partitions[at["partition"]], at["offset"], self._delay)
            if at.get("watermark") != expected:
                self._fail("P11 watermark", f"the manifest has {at}, expected watermark {expected}")

    def restored(self, when: str, cut: Cut, rows: Sequence[Row], late: Sequence[Row] | None) -> None:
        """An open window holds its records read by then.

        Args:
            late: The records late by the end; None if they do not determine which were late at `when`.
        """
        ids = {int(row["id"]) for row in late or ()}
        expected_windows = oracle.windows(self._partitions, cut, self._size, ids)
        earliest, _ = self.clocks.bounds(cut)
        for place, row in self._by_window(rows).items():
            if place[1] + self._lateness <= earliest:
                self._fail("P11 open", f"{when}: window {place} is still open, but time is at least {earliest}")
            there = expected_windows.get(place, [0])
            if row[0] > there[0] if late is None else row != there:
                self._fail("I9 state", f"{when}: window {place} is {row}, expected {there}")

    def deployed(self, at: float) -> None:
        """A worker was deployed: it knows of no silence before."""
        self._deployed.append(at)

    def _rested_long(self, id: int) -> bool:
        """Return whether the run that read this record had seen its partition idle while another one was active."""
        resting = id // PARTITION_STRIDE
        back = self._arrivals[resting][-1]
        lasts = [each[-1] for partition, each in enumerate(self._arrivals) if each and partition != resting]
        active_until = max((last for last in lasts if last < back), default=0.0)
        since = max((at for at in self._deployed if at < back), default=0.0)
        return since <= active_until - SETTLED_S

    def at_end(self, everything: Cut, windows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record that was not late is in the result of its window."""
        ids = {int(row["id"]) for row in late}
        read = {r.id for p, records in enumerate(self._partitions) for r in records[: everything.get(p, 0)]}
        always_late = {id for id in self._rests if self._rested_long(id)}
        if waited := sorted((always_late & read) - ids):
            self._fail(
                "P11 idle", f"records {waited} are not late, although their partition was idle for long before them"
            )
        expected = oracle.windows(self._partitions, everything, self._size, ids)
        found = self._by_window(windows)
        if found != expected:
            wrong = {place: (found.get(place), expected.get(place)) for place in found.keys() | expected.keys()}
            differ = {place: pair for place, pair in sorted(wrong.items()) if pair[0] != pair[1]}
            self._fail(
                "I1 loss", f"windows, (found, expected) by bucket and end: {differ}; late records: {sorted(ids)}"
            )

    def _by_window(self, rows: Sequence[Row]) -> dict[tuple[int, int], list[int]]:
        aggregates: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            place = int(row["bucket"]), round(row["window_end"].timestamp() * SECOND_US)
            if place in aggregates:
                self._fail("P11 windows", f"window {place} was emitted twice")
            aggregates[place] = [int(row[name]) for name in ("n", "total", "low", "high")]
        return aggregates
