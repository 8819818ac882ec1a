"""Committed changes of one table that the cold store does not have yet.

Invariants
    - Ranges are erased in the cold store before any row is written that was committed after them.
    - A slot is in the list once.

Carries out PROTOCOL P15 (order of writes).
Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.state.tables.expiry import Through, joined
from holdfast.state.tables.slab import Rows

_NO_ROWS: Rows = np.empty(0, np.int64)


class Unapplied:
    """Slots in the order of their commits, and the ranges that come before all of them."""

    def __init__(self) -> None:
        self._slots: list[Rows] = []
        self.through: Through | None = None
        """Ranges that the cold store must still erase; a covered row read from there is void."""

    @property
    def count(self) -> int:
        """The number of slots."""
        return sum(slots.size for slots in self._slots)

    def note(self, slots: Rows) -> None:
        """Add committed slots that are not in the list."""
        if slots.size:  # the same keys in every epoch must not add up while the cold store refuses writes
            self._slots.append(slots)

    def erase(self, through: Through) -> None:
        """Add a committed range."""
        self.through = joined((self.through, through))

    def keep(self, wanted: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """Drop the slots that are not wanted."""
        kept = (slots[wanted(slots)] for slots in self._slots)
        self._slots = [slots for slots in kept if slots.size]

    def next(self, rows_max: int) -> Rows:
        """Return the next slots to apply."""
        while len(self._slots) > 1 and not self._slots[0].size:
            self._slots.pop(0)
        return self._slots[0][:rows_max] if self._slots else _NO_ROWS

    def done(self, slots: Rows) -> None:
        """Note that the slots that next() returned are in the cold store."""
        if slots.size:
            assert np.array_equal(self._slots[0][: slots.size], slots)
            self._slots[0] = self._slots[0][slots.size :]
