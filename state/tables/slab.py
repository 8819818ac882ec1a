"""An array that grows without moving.

Growing an array by copying stalls the operator for tens of milliseconds once it holds millions
of records. A slab that outgrows its first few elements reserves address space for many more elements than it has;
the system allocates memory only for the pages that are written. Beyond the reservation, or where address
space is limited (RLIMIT_AS, strict overcommit), it doubles and copies.

A slab gets its room from a `Memory`: the process's own (PLAIN), or a swap area (state/paging/swap.py), which keeps its
resident regions inside a budget.

Invariants
    - Elements below the size asked for keep their values.
    - The array begins at a cache line, so a record of a power of two bytes lies in as few lines as possible.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Rows = NDArray[np.int64]
"""Numbers of slots or of rows, shape (n,)."""
RESERVED = 1 << 25
_FIRST = 1 << 9
_LINE = 64


UNLIMITED = 1 << 62
UNIT_BITS = 21
UNIT_BYTES = 1 << UNIT_BITS
"""Bytes that become resident together, and leave memory together: a huge page."""


class Memory(Protocol):
    """Where the arrays of tables get their room, and how much of it one call of a kernel may bring into memory."""

    def room(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Reserve address space for `size` elements, beginning at a cache line.

        Raises:
            MemoryError: there is not so much address space.
        """

    def zeros(self, size: int) -> NDArray[np.int64]:
        """Return an array of zero words."""

    def use(self, room: NDArray[Any], size: int) -> NDArray[Any]:
        """Return the part of a room to use from now on; it has at least `size` elements, and never moves.

        Elements after it may lose their content.
        """

    @property
    def bytes_max(self) -> int:
        """Bytes of memory that may become resident between two calls of settle(); UNLIMITED while all fits."""

    @property
    def refused(self) -> str:
        """Why tables cannot leave memory although they are larger than their budget; empty if they can."""

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Make units of the array at an address resident, to read or to write them. Anything else may be read too."""

    def settle(self) -> None:
        """Bring resident memory back inside the budget. No address changes."""


class PlainMemory:
    """The memory of the process, without a budget."""

    bytes_max, refused = UNLIMITED, ""

    def room(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Reserve address space for `size` elements."""
        spare = _LINE // dtype.itemsize
        array = np.empty(size + spare, dtype)
        first = -array.ctypes.data % _LINE // dtype.itemsize
        return array[first : first + size]

    def zeros(self, size: int) -> NDArray[np.int64]:
        """Return an array of zero words."""
        return np.zeros(size, np.int64)

    def use(self, room: NDArray[Any], size: int) -> NDArray[Any]:
        """Return the room: the system hands out its pages when they are written."""
        return room

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Do nothing; all is resident."""

    def settle(self) -> None:
        """Do nothing; there is no budget."""


PLAIN = PlainMemory()


class TableContents(NamedTuple):
    """The contents of a table: its arrays in use, by name, and other numbers."""

    arrays: dict[str, NDArray[Any]]
    numbers: dict[str, int]


class Slab:
    """One growing array; `array` is its whole capacity, of which the owner uses the first elements; it is at `address`.

    Args:
        dtype: Type of the elements.
        reserved: Elements to reserve address space for.
        first: Elements of the first array.
        memory: Where the room comes from.
    """

    __slots__ = ("_memory", "_reserved", "_room", "address", "array")

    def __init__(self, dtype: DTypeLike, reserved: int = RESERVED, first: int = _FIRST, memory: Memory = PLAIN) -> None:
        self._reserved, self._memory = reserved, memory
        # Reserving costs two system calls and a page; most tables are small, and many are short-lived.
        self._room: NDArray[Any] = PLAIN.room(np.dtype(dtype), first)
        self.array: NDArray[Any] = self._room
        self.address: int = self.array.ctypes.data

    @classmethod
    def over(cls, room: NDArray[Any], size: int, reserved: int, memory: Memory) -> Slab:
        """Return a slab whose first `size` elements are in a room of this memory already."""
        slab = cls(room.dtype, reserved, 1, memory)
        slab._room, slab.array = room, memory.use(room, size)
        slab.address = room.ctypes.data
        return slab

    def hold(self, size: int, used: int | None = None) -> None:
        """Make room for this many elements; only the first `used` ones keep their values if given."""
        if size <= self.array.size:
            return
        if size <= self._room.size:
            self.array = self._memory.use(self._room, size)
            return
        new_size = max(size, 2 * self.array.size)
        try:
            room = self._memory.room(self.array.dtype, max(new_size, self._reserved))
        except MemoryError:
            room = self._memory.room(self.array.dtype, new_size)
        kept, new_array = self.array.size if used is None else used, self._memory.use(room, size)
        step = max(1, self._memory.bytes_max // (2 * self.array.itemsize))
        for first in range(0, kept, step):
            new_array[first : min(kept, first + step)] = self.array[first : min(kept, first + step)]
            self._memory.settle()
        self._room, self.array, self.address = room, new_array, new_array.ctypes.data

    def shrink(self, size: int) -> None:
        """Give back the room after the first `size` elements, where the memory takes it."""
        if size < self.array.size:
            self.array = self._memory.use(self._room, size)
