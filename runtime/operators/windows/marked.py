"""The marked rows of a pass of early results: found part by part, and given out in the order in which rounds take them.

A table may have millions of rows, and one turn must not look at them all. So a turn looks at `SCANNED_AT_ONCE` slots.
Where a window is one row, the marked rows of such a part are given out before the next part is looked at. Where a
window consists of several rows, those of one key have to be in one round. Then all marked rows are found first, and put
into the order of their key groups; after that a turn numbers the keys of a few key groups.

Invariants
    - Each row that was marked when the pass began, and still has its mark, is returned once.
    - If a window consists of several rows, the rows of one key are returned together.

Pure. Source: docs/decisions/0082-early-results.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.windows.merging import grouped
from holdfast.state.tables.spec import ColumnSpec
from holdfast.state.tables.table import StateTable

MARK = ColumnSpec("_unshown", np.dtype(np.int64))
"""1 if the row has a mark, else 0; no aggregate of a user can have its name."""
SCANNED_AT_ONCE = 1 << 16
"""Slots that one turn looks at."""
GROUPED_AT_ONCE = 1 << 16
"""Rows whose keys one turn numbers, unless one key group has more."""
NO_ROWS: Slots = np.empty(0, np.int64)


class MarkedRows:
    """The marked rows of one table.

    Args:
        key_groups: Key groups of the job.
        shared: Whether windows consist of several rows.
    """

    def __init__(self, table: StateTable, key_groups: int, shared: bool) -> None:
        self._table, self._key_groups, self._shared = table, key_groups, shared
        self.forget()

    def forget(self) -> None:
        """End the pass, whose slots may get other keys."""
        self._scanned = self._end = 0
        """How many slots were looked at, and how many will be."""
        self._found: list[tuple[Slots, NDArray[np.uint16]]] = []
        """Marked rows and their key groups, if windows consist of several rows."""
        self._in_groups = self._rows = _Parts(NO_ROWS, NO_ROWS)

    def begin(self) -> None:
        """Begin a pass over the rows that exist now."""
        self.forget()
        self._end = self._table.slots_used()

    @property
    def ended(self) -> bool:
        """Whether every row of the pass was returned or deleted."""
        return self._scanned >= self._end and self._in_groups.ended and self._rows.ended

    def take(self, rows: int) -> Slots:
        """Return the next rows, which have their marks: at most this many, unless one key has more.

        None does not mean that the pass has ended: a turn may have looked at slots without a mark.
        """
        if self._rows.ended:
            self._look_on()
        while not self._rows.ended:
            part = self._rows.take(rows)
            marked: Slots = part[self._table.values(MARK.name, part) != 0]  # those that are over have none
            if marked.size:
                return marked
        return NO_ROWS

    def _look_on(self) -> None:
        """Look at more slots, or number the keys of more rows."""
        if self._scanned < self._end:
            first, self._scanned = self._scanned, min(self._scanned + SCANNED_AT_ONCE, self._end)
            parts = self._table.present_parts(first, self._scanned)
            slots = np.concatenate([NO_ROWS, *(each[self._table.values(MARK.name, each) != 0] for each in parts)])
            if not self._shared:
                self._rows = _Parts(slots, np.arange(1, slots.size + 1))
                return
            self._found.append((slots, self._table.keys_at(slots).key_groups(self._key_groups)))
            if self._scanned == self._end:
                slots, groups = (np.concatenate(each) for each in zip(*self._found, strict=True))
                self._found, self._in_groups = [], _ordered(slots, groups)
        if not self._in_groups.ended and self._scanned == self._end:
            slots = self._in_groups.take(GROUPED_AT_ONCE)
            self._rows = _ordered(slots, grouped(self._table.keys_at(slots).routed()).numbers)


class _Parts:
    """Rows that are taken in order, in parts that end at some places only.

    Args:
        ends: After how many rows a part may end, in order; the last is the number of rows.
    """

    def __init__(self, rows: Slots, ends: Slots) -> None:
        self._rows, self._ends, self._at = rows, ends, 0

    @property
    def ended(self) -> bool:
        """Whether all rows were taken."""
        return self._at == self._rows.size

    def take(self, rows: int) -> Slots:
        """Take the next rows: at most this many, unless the first part has more."""
        fitting, least = np.searchsorted(self._ends, [self._at + rows, self._at], "right") - [1, 0]
        first, self._at = self._at, int(self._ends[max(fitting, least)])
        return self._rows[first : self._at]


def _ordered(slots: Slots, numbers: NDArray[np.integer[Any]]) -> _Parts:
    """Return rows in the order of their numbers; those with one number stay together."""
    order = np.argsort(numbers, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(numbers[order])) + 1, slots.size)
    return _Parts(slots[order], ends if slots.size else NO_ROWS)
