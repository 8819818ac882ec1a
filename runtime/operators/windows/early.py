"""Early results of windows: which rows of state changed since their windows were shown, and when they are shown next.

Every record marks the row of state that it is folded into. Windows are shown in passes. A pass begins at the first
multiple of the interval after the oldest change that was not shown. At least an interval must have passed since the
last round of the previous pass. It takes the rows that are marked when it begins, in rounds, between batches of
records; a round shows the open windows of its rows and clears their marks. A row that changes after its round is marked
for the next pass. Slices of one key are in one round, so that a window that consists of several is shown once per pass.
marked.py finds the rows, in turns that are bounded whatever the size of the state.

A separate table of the state, with one row per key group, has the time of the last display and of the oldest change
that was not shown. So a restored operator knows without a look at its rows whether there is anything to show.

Invariants
    - A row has a mark if an open window with it has changed since that window was last shown, or never was.
    - While a row has a mark, there is a time at which a round is due.
    - Two rounds with the same window are at least the interval apart, by the clock that rounds receive.
    - Marks and times are in the state before the barrier's freeze, together with the shown results, if `note` is
      called.

Pure; the clock is a parameter.
Source: docs/decisions/0082-early-results.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.model import NEVER_US
from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.contract import OperatorContext, TableDraft, part_name
from holdfast.runtime.operators.windows.marked import MARK, MarkedRows
from holdfast.runtime.time.windows import CLOCK_KEY
from holdfast.state.keys.keygroups import key_of_group
from holdfast.state.tables.spec import ColumnSpec

SHOWN, SINCE = "shown", "since"
TIMES_TABLE = TableDraft(
    CLOCK_KEY,
    (ColumnSpec(SHOWN, np.dtype(np.int64), NEVER_US), ColumnSpec(SINCE, np.dtype(np.int64), NEVER_US)),
    "_early",
)
"""The table that a step with early results adds to its own; no user's state can have its name."""
ROUND_ROWS = 4_096
"""Rows of the first round; later ones have as many as fit a turn."""


class EarlySchedule:
    """When rounds are due; times in microseconds since 1970, by the worker's clock.

    Args:
        every_us: The interval.
        shown_us: When windows were last shown; NEVER_US: never.
        since_us: The oldest change that was not shown; NEVER_US: none.
    """

    def __init__(self, every_us: int, shown_us: int = NEVER_US, since_us: int = NEVER_US) -> None:
        self._every_us, self._shown_us, self._since_us = every_us, shown_us, since_us
        self._pass_us: int | None = None
        """The oldest change that the pass in progress shows."""

    @property
    def times(self) -> tuple[int, int]:
        """When windows were last shown, and the oldest change that was not; NEVER_US: never, none."""
        return self._shown_us, self._since_us if self._pass_us is None else self._pass_us

    @property
    def in_pass(self) -> bool:
        """Whether a pass is in progress."""
        return self._pass_us is not None

    @property
    def has_changes(self) -> bool:
        """Whether a row was marked that the pass in progress does not show."""
        return self._since_us != NEVER_US

    def changed(self, now_us: int) -> None:
        """Note that a row was marked."""
        if self._since_us == NEVER_US:
            self._since_us = now_us

    def due_us(self) -> int | None:
        """Return when the next round is due; None if there is nothing to show."""
        if self._pass_us is not None:
            return self._pass_us
        if self._since_us == NEVER_US:
            return None
        following = self._since_us - self._since_us % self._every_us + self._every_us
        return max(following, self._shown_us + self._every_us)

    def look(self, now_us: int) -> bool:
        """Look at the clock; return whether a round is due.

        Times that a clock which was ahead has left are replaced by this one: an interval may pass twice, and no window
        waits until the clock has caught up.
        """
        self._shown_us, self._since_us = min(self._shown_us, now_us), min(self._since_us, now_us)
        if self._pass_us is not None:
            self._pass_us = min(self._pass_us, now_us)
        due_us = self.due_us()
        return due_us is not None and due_us <= now_us

    def begin(self) -> None:
        """Begin a pass: changes from now on are for the next one."""
        assert not self.in_pass and self._since_us != NEVER_US
        self._pass_us, self._since_us = self._since_us, NEVER_US

    def show(self, now_us: int) -> None:
        """Note that a round shows windows."""
        self._shown_us = now_us

    def end(self) -> None:
        """End the pass: all of its rows were shown or deleted."""
        self._pass_us = None

    def give_up(self) -> None:
        """End the pass with rows left, which have their marks: the next one shows them."""
        if self._pass_us is not None:
            self._since_us, self._pass_us = self._pass_us, None


class EarlyResults:
    """The rows of one operator on one subtask that are to be shown.

    Args:
        operator: Its name.
        every_us: The interval.
        overlap: How many windows hold a row, and how many rows a window consists of.
        merged_max: The most rows that a round merges, unless one key has more.
    """

    def __init__(self, operator: str, every_us: int, ctx: OperatorContext, overlap: int, merged_max: int) -> None:
        self._table, self._rows_max = ctx.table(operator), max(1, merged_max // overlap**2)
        self._times, self._time_slice = ctx.table(part_name(operator, TIMES_TABLE.part)), ctx.time_slice
        self._portions = ctx.time_slice.portions(operator)
        groups = ctx.key_groups
        self._keys = CLOCK_KEY.from_ints(key_of_group(np.arange(groups.first, groups.end), groups.count))
        self._schedule = EarlySchedule(every_us, *self._read())
        self._noted = self._schedule.times
        self._pace = ctx.time_slice.pace(ROUND_ROWS)
        self._marked = MarkedRows(self._table, groups.count, overlap > 1)

    def marks(self, is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the marks of the rows that records are about to change.

        Args:
            is_open: Whether a window with the row is open; there is nothing else to show.
        """
        if is_open.any() and not self._schedule.has_changes:
            self._schedule.changed(self._portions.time(self._time_slice.wall_us()))
        return is_open.astype(np.int64)

    def due_us(self) -> int | None:
        """Return the time at which a round is due; None if there is nothing to show."""
        return self._schedule.due_us()

    def take_round(self, now_us: int, at_once: int) -> Slots | None:
        """Return the rows of the next round, their marks cleared; None if none is due.

        It has no rows if this turn has only looked for some; then the next turn looks on.

        Args:
            at_once: The most rows that a turn should ask for.
        """
        if not self._schedule.look(now_us):
            return None
        if not self._schedule.in_pass:
            self._schedule.begin()
            self._marked.begin()
        most, _ = self._portions.begin(min(self._pace.rows, self._rows_max, at_once), lambda: now_us)
        slots = self._marked.take(most)
        self._portions.end(most, now_us)
        if slots.size:
            self._table.write(slots, {MARK.name: np.zeros(slots.size, np.int64)})
            self._schedule.show(now_us)
        if self._marked.ended:
            self._schedule.end()
        return slots if slots.size or self._schedule.in_pass else None

    def took(self, rows: int, seconds: float) -> None:
        """Note how long a round took, whose results were made at once."""
        self._pace.took(rows, seconds)

    def give_up(self) -> None:
        """Forget the rows of a pass in progress, because slots are about to get new keys; their marks stay."""
        self._marked.forget()
        self._schedule.give_up()

    def note(self) -> None:
        """Write the times into the state, before the barrier freezes it."""
        if (times := self._schedule.times) == self._noted:
            return
        slots = self._times.slots(self._keys)
        self._times.write(slots, dict(zip((SHOWN, SINCE), (np.full(slots.size, at) for at in times), strict=True)))
        self._noted = times

    def _read(self) -> tuple[int, int]:
        """Return the times of all owned key groups as one: when any was last shown, the oldest change of all."""
        slots = self._times.slots(self._keys)
        shown, since = (self._times.values(name, slots) for name in (SHOWN, SINCE))
        waiting = since[since != NEVER_US]
        return int(shown.max(initial=NEVER_US)), int(waiting.min()) if waiting.size else NEVER_US
