"""Committed changes of one table that the cold store does not have yet.

Slots are handed out in runs, each in the order of the keys in the cold store: RocksDB takes sorted keys into its memory
in a fifth of the time that keys in any order need.

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

RUN_MAX, TEXT_RUN_MAX = 1 << 16, 1 << 13
"""Slots of a run, for keys of fixed and of any width: sorting one takes 8 ms on a slow processor. Of 600,000 keys of 12
bytes, a put costs 4.8 us in any order, 2.9 us in runs of 4,096, 1.3 us in runs of 65,536; 0.7 us if all are sorted."""
_NO_ROWS: Rows = np.empty(0, np.int64)


class Unapplied:
    """Slots, oldest commits first but for the order within a run, and the ranges that come before all of them."""

    def __init__(self) -> None:
        self._run = _NO_ROWS
        """Sorted; they come before the others."""
        self._slots: list[Rows] = []
        self.through: Through | None = None
        """Ranges that the cold store must still erase; a covered row read from there is void."""

    @property
    def count(self) -> int:
        """The number of slots."""
        return self._run.size + sum(slots.size for slots in self._slots)

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
        self._run = self._run[wanted(self._run)]

    def next(self, rows_max: int, run_max: int, in_order: Callable[[Rows], Rows]) -> Rows:
        """Return the next slots to apply.

        Args:
            run_max: How many are sorted together.
            in_order: Returns slots in the order of their keys in the cold store.
        """
        if not self._run.size:
            self._run = in_order(self._taken(run_max))
        return self._run[:rows_max]

    def done(self, slots: Rows) -> None:
        """Note that the slots that next() returned are in the cold store."""
        assert np.array_equal(self._run[: slots.size], slots)
        self._run = self._run[slots.size :]

    def _taken(self, room: int) -> Rows:
        """Take the oldest slots out of the list, so many at most."""
        taken = [_NO_ROWS]
        while room and self._slots:
            first = self._slots.pop(0)
            taken.append(first[:room])
            if first.size > room:
                self._slots.insert(0, first[room:])
            room -= taken[-1].size
        return np.concatenate(taken)
