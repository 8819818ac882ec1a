"""Processing time of an operator: the worker's clock, which never goes back, over restores and changes of parallelism.

A function may store the time that it was shown, and be moved to a host whose clock is behind. So the last time shown is
in the state, in a separate table with one row per key group, and time continues from there. No other processing time is
recorded: decisions by a time that was never committed are discarded with the run.

Invariants
    - No function is shown a time before one that committed state may hold.
    - A time that was shown is in the state before the barrier's freeze, if `note` is called there.

Pure; the clock is a parameter.
Source: docs/decisions/0078-processing-time.md.
"""

from __future__ import annotations

import numpy as np

from holdfast.runtime.operators.contract import OperatorContext, TableDraft, part_name
from holdfast.runtime.time.windows import CLOCK_COLUMNS, CLOCK_KEY
from holdfast.state.keys.keygroups import key_of_group

NOW = "_now"
NOW_TABLE = TableDraft(CLOCK_KEY, CLOCK_COLUMNS, NOW)
"""The table that a step with processing time adds to its own; no user's state can have its name."""


class ProcessingClock:
    """The clock of one operator on one subtask."""

    def __init__(self, operator: str, ctx: OperatorContext) -> None:
        self._table, self._time_slice = ctx.table(part_name(operator, NOW_TABLE.part)), ctx.time_slice
        groups = ctx.key_groups
        self._keys = CLOCK_KEY.from_ints(key_of_group(np.arange(groups.first, groups.end), groups.count))
        noted: list[int] = self._table.values("at", self._table.slots(self._keys)).tolist()
        self._at_us, self._noted_us = max(0, *noted), max(0, min(noted))
        self.shown_us = 0
        """The last time that a function was shown since the operator was opened; 0 if none."""
        self.shown_in_portion: int | None = None
        """The same since `begin`; None if none was."""

    def tick(self) -> int:
        """Look at the clock; return the time, in microseconds since 1970."""
        return self.reach(self._time_slice.wall_us())

    def reach(self, at_us: int) -> int:
        """Advance to this time; return the time, which may be later."""
        self._at_us = max(self._at_us, at_us)
        return self._at_us

    def begin(self, at_us: int) -> int:
        """Begin a portion at this time; return the time, which may be later."""
        self.shown_in_portion = None
        return self.reach(at_us)

    def show(self) -> None:
        """Record that a function was shown the time of the last look."""
        self.shown_us = self.shown_in_portion = self._at_us

    def note(self) -> None:
        """Write the last time shown into the state, before the barrier freezes it."""
        if self.shown_us > self._noted_us:
            slots = self._table.slots(self._keys)
            self._table.changing(slots)("at")[slots] = self.shown_us
            self._noted_us = self.shown_us
