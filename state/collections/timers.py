"""Timers: for each user key and number of a timer, the time at which an operator wants to be called.

A timer is a row with its time; the table's order by this time finds those that are due. To fire is to delete the row,
so a timer fires once per committed history: a rollback or a restore brings the row back, and it fires again.

An operator with timers of event time and of processing time has two tables: they are due by different clocks.

Pure: no clock, thread or I/O.
Source: docs/decisions/0041-ordered-rows-and-timers.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.collections.rows import existing, extended
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.state.tables.table import StateTable

_NEVER = (1 << 63) - 1
AT = ColumnSpec("at", np.dtype(np.int64), _NEVER)
"""The time of a timer in microseconds."""
TIMER = "timer"
"""The suffix: the number of a timer among those that an operator declares."""


class Fired(NamedTuple):
    """Timers that fired, the earliest first; those of the same time in the order of their user keys and numbers."""

    users: Keys
    timers: NDArray[np.int64]
    at_us: NDArray[np.int64]


class Timers:
    """The timers of one table."""

    def __init__(self, table: StateTable) -> None:
        assert table.spec.key.suffix == 1 and AT.name in table.spec.orders
        self.table = table

    @staticmethod
    def spec(operator: int, name: str, users: KeyType) -> TableSpec:
        """Return the table of timers by user key."""
        key = KeyType((*users.names, TIMER), (*users.types, pa.int16()), (*users.nullable, False), suffix=1)
        return TableSpec(operator, name, key, (AT,), orders=(AT.name,))

    def set(self, users: Keys, timers: NDArray[np.int64], at_us: NDArray[np.int64]) -> None:
        """Set one timer per row; the time replaces the timer's previous one, of an earlier row too."""
        slots = self.table.slots(self._keys(users, timers))
        self.table.touch(slots)
        self.table.write(slots, {AT.name: at_us})

    def clear(self, users: Keys, timers: NDArray[np.int64]) -> None:
        """Unset one timer per row; it may be unset already."""
        slots = distinct(existing(self.table, self._keys(users, timers)))
        self.table.delete(slots[slots >= 0])

    def at_us(self, users: Keys, timers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time of one timer per row; the last time of all if it is not set."""
        slots = existing(self.table, self._keys(users, timers))
        times, found = np.full(slots.size, _NEVER, np.int64), slots >= 0
        times[found] = self.table.values(AT.name, slots[found])
        return times

    def next_us(self) -> int | None:
        """Return the earliest time of all timers, None if none is set."""
        first = self.table.ordered(AT.name).through(_NEVER, 1)
        return int(self.table.values(AT.name, first)[0]) if first.size else None

    def fire(self, through_us: int, limit: int | None = None) -> Fired:
        """Unset and return the timers that are due at a time, the watermark or the processing time.

        A timer that is set while these are handled may be due already: call it until nothing is returned.

        Args:
            through_us: Timers up to this time, inclusive, are due.
            limit: Fire at most this many.
        """
        slots = self.table.ordered(AT.name).through(through_us, limit)
        keys, at_us = self.table.keys_at(slots), self.table.values(AT.name, slots)
        numbers = np.asarray(self.table.spec.key.decode(keys)[-1].to_numpy(), np.int64)
        self.table.delete(slots)
        return Fired(keys.routed(), numbers, at_us)

    def _keys(self, users: Keys, timers: NDArray[np.int64]) -> Keys:
        return extended(self.table.spec.key, users, [pa.array(timers.astype(np.int16))])
