"""Event time of an operator per key group, kept over restores and changes of parallelism.

The clock of a key group is the watermark up to which the operator has closed windows or expired state of its keys. It
is the larger of the input's watermark and the clock that the checkpoint holds, in a separate table with one row per key
group. So a closed window never opens again, whatever the watermark after a restore or a change of parallelism (P11).

Invariants
    - The clock of a key group never goes back.
    - The clock of every owned key group is in the state before the barrier's freeze, if `note` is called there.

Pure.
Source: docs/decisions/0006-watermarks.md; PROTOCOL P11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators.contract import KeyGroups, OperatorContext, TableDraft, part_name
from holdfast.runtime.time.windows import CLOCK_COLUMNS, CLOCK_KEY, not_held
from holdfast.state.keys.batch import Keys
from holdfast.state.keys.keygroups import key_of_group
from holdfast.state.tables.table import StateTable

CLOCK_TABLE = TableDraft(CLOCK_KEY, CLOCK_COLUMNS, "clock")
"""The table that a step with a clock adds to its own."""
Times = NDArray[np.int64]


class EventClock:
    """The clock of one operator on one subtask."""

    def __init__(self, operator: str, ctx: OperatorContext) -> None:
        self._table, self._key_groups = ctx.table(part_name(operator, CLOCK_TABLE.part)), ctx.key_groups
        owned = np.arange(self._key_groups.first, self._key_groups.end)
        self._keys = CLOCK_KEY.from_ints(key_of_group(owned, self._key_groups.count))
        self._changed = False
        self._at = self._read()
        self._note_uniform()

    @property
    def groups(self) -> KeyGroups:
        """The key groups of the job and of this subtask."""
        return self._key_groups

    def advance(self, at_us: int) -> Times | int | None:
        """Advance event time to this point; return the clock before, None if it has not moved."""
        if self._uniform is not None and at_us <= self._uniform:
            return None
        old: Times | int = self._at if self._uniform is None else self._uniform
        self._at, self._changed = np.maximum(self._at, at_us), True
        self._note_uniform()
        return old

    def of(self, keys: Callable[[], Keys]) -> Times | np.int64:
        """Return the clock of each key; a single value if it is the same for all."""
        if self._uniform is not None:
            return np.int64(self._uniform)
        return self.at(self._at, keys())

    def at(self, clock: Times, keys: Keys) -> Times:
        """Return the clock of each key from a clock per key group."""
        clocks: Times = clock[keys.key_groups(self._key_groups.count)]
        return clocks

    def note(self) -> None:
        """Write the clock into the state, before the barrier freezes it."""
        if self._changed:
            slots = self._table.slots(self._keys)
            self._table.changing(slots)("at")[slots] = self._at[self._key_groups.first : self._key_groups.end]
            self._changed = False

    def expired_through(self, after_us: int) -> Times:
        """Return per key group the last end that lies this long behind the clock; never for those not owned."""
        groups = self._key_groups
        through = np.full(groups.count, NEVER_US)
        owned = self._at[groups.first : groups.end]
        through[groups.first : groups.end] = np.maximum(owned, NEVER_US + after_us) - after_us
        return through

    def _read(self) -> Times:
        groups = self._key_groups
        # Key groups of other subtasks are never read; they must not keep the clock from being uniform.
        clock = np.full(groups.count, LAST_US)
        slots = self._table.slots(self._keys)
        clock[groups.first : groups.end] = self._table.values("at", slots)
        return clock

    def _note_uniform(self) -> None:
        """Record the clock if all owned key groups have the same, which they do except for a while after a restore."""
        owned = self._at[self._key_groups.first : self._key_groups.end]
        self._uniform: int | None = int(owned[0]) if owned.size and (owned == owned[0]).all() else None


def drop_vacant(table: StateTable, looked_up: int = 0) -> bool:
    """Drop the slots without a row once they are many; return whether it was done.

    Args:
        looked_up: An upper bound on the slots that were looked up and never written.
    """
    if not table.mostly_vacant(looked_up):
        return False
    table.drop_vacant()
    return True


def time_not_held(what: str, operator: str, column: str, at_us: int, job: str | None) -> JobFailed:
    """Return the failure for an event time that a function returned and that no state can hold."""
    return JobFailed(
        f"{what} {operator!r}: a function set {column!r} to a time that no window can hold: {not_held(at_us)}",
        not_done="the epoch was not completed; state and output stay as of the last checkpoint",
        next_step=f"return {column!r} unchanged, or filter such rows out in the function; then run "
        "the job again, which resumes from the last checkpoint",
        where=Where(job=job, operator=operator),
    )
