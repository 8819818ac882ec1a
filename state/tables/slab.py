"""An array that grows without moving.

Growing an array by copying stalls the operator for tens of milliseconds once it holds millions
of records. A slab that outgrows its first few elements reserves address space for many more elements than it has;
the system allocates memory only for the pages that are written. Beyond the reservation, or where address
space is limited (RLIMIT_AS, strict overcommit), it doubles and copies.

Invariants
    - Elements below the size asked for keep their values.
    - The array begins at a cache line, so a record of a power of two bytes lies in as few lines as possible.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Rows = NDArray[np.int64]
"""Numbers of slots or of rows, shape (n,)."""
RESERVED = 1 << 25
_FIRST = 1 << 9
_LINE = 64


class Slab:
    """One growing array; `array` is its whole capacity, of which the owner uses the first elements; it is at `address`.

    Args:
        dtype: Of the elements.
        reserved: Elements to reserve address space for.
        first: Elements of the first array.
    """

    __slots__ = ("_reserved", "address", "array")

    def __init__(self, dtype: DTypeLike, reserved: int = RESERVED, first: int = _FIRST) -> None:
        self._reserved = reserved
        # Reserving costs two system calls and a page; most tables are small, and many are short-lived.
        self.array: NDArray[Any] = _room(np.dtype(dtype), first)
        self.address: int = self.array.ctypes.data

    def hold(self, size: int, used: int | None = None) -> None:
        """Make room for this many elements; only the first `used` ones keep their values if given."""
        if size <= self.array.size:
            return
        wanted = max(size, 2 * self.array.size)
        try:
            grown = _room(self.array.dtype, max(wanted, self._reserved))
        except MemoryError:
            grown = _room(self.array.dtype, wanted)
        kept = self.array.size if used is None else used
        grown[:kept] = self.array[:kept]
        self.array, self.address = grown, grown.ctypes.data


def _room(dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    """Return room that begins at a cache line."""
    spare = _LINE // dtype.itemsize
    array = np.empty(size + spare, dtype)
    first = -array.ctypes.data % _LINE // dtype.itemsize
    return array[first : first + size]
