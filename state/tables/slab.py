"""A column that grows without moving.

Growing an array by copying stalls the operator for tens of milliseconds once it holds millions
of rows. A slab that outgrows its first few rows reserves address space for many more rows than it has;
the system allocates memory only for the pages that are written. Beyond the reservation, or where address
space is limited (RLIMIT_AS, strict overcommit), it doubles and copies.

Invariants
    - Rows below the size asked for keep their values.
    - Views taken earlier stay readable; after a copy they no longer see new values.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

RESERVED_ROWS = 1 << 25
_FIRST_ROWS = 1 << 9


class Slab:
    """One growing column; `array` is its whole capacity, of which the owner uses the first rows."""

    __slots__ = ("_reserved", "array")

    def __init__(self, dtype: DTypeLike, reserved: int = RESERVED_ROWS) -> None:
        # A pickled dtype equals NumPy's own object for the type but is not that object; np.add.at then takes a path
        # that is 15 times slower.
        plain = np.dtype(np.dtype(dtype).type)
        self._reserved = reserved
        # Reserving costs two system calls and a page; most tables are small, and many are short-lived.
        self.array: NDArray[Any] = np.empty(min(_FIRST_ROWS, reserved), plain)

    def hold(self, rows: int) -> None:
        """Make room for this many rows."""
        if rows <= self.array.size:
            return
        grown = _room(self.array.dtype, max(rows, 2 * self.array.size), self._reserved)
        grown[: self.array.size] = self.array
        self.array = grown


def _room(dtype: np.dtype[Any], rows: int, reserved: int) -> NDArray[Any]:
    """Return room for the rows; all of the reservation if they fit into it and the system grants it."""
    try:
        return np.empty(max(rows, reserved), dtype)
    except MemoryError:
        return np.empty(rows, dtype)
