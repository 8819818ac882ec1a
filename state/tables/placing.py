"""Orders the rows of a batch by where their records are, and cuts them into parts that fit memory together.

While tables are larger than their budget, rows are taken in the order of the memory that they reach, not in that of
their arrival: so every unit of memory becomes resident once a batch. The order is stable, so the rows of one key keep
theirs.

Invariants
    - Every row is in one part.
    - The rows of a part reach a bounded number of units.

Pure: no clock, thread or I/O.
Source: docs/decisions/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.state.tables.slab import UNIT_BITS, UNIT_BYTES, UNLIMITED, Memory, Rows

PAGE_BITS = 12
_ARRAYS = 4
"""Arrays of which one part may reach units: records, committed values, index, bytes of keys."""
_RADIX_BITS = 16
"""NumPy sorts numbers of this many bits in linear time."""
_RADIX_MAX = (1 << _RADIX_BITS) - 1


def places_of(offsets: Rows) -> Rows:
    """Return the place of every offset: its page, or a larger piece of a large array, but not more than a unit."""
    beyond = int(offsets.max(initial=0)).bit_length() - _RADIX_BITS
    places: Rows = offsets >> min(max(PAGE_BITS, beyond), UNIT_BITS)
    return places


def units_of(offsets: Rows) -> Rows:
    """Return the unit of every offset."""
    return offsets >> UNIT_BITS


def order_of(places: Rows) -> Rows | None:
    """Return the order of rows by their places, stable; None if they are in order."""
    if places.size < 2 or bool((places[1:] >= places[:-1]).all()):
        return None
    low, high = int(places.min()), int(places.max())
    if high - low <= _RADIX_MAX:
        return np.argsort((places - low).astype(np.uint16), kind="stable")
    return np.argsort(places, kind="stable")


def distinct(slots: Rows) -> Rows:
    """Return every slot once, in order. np.unique builds a hash table first: 400 ns for each of many slots, not 10."""
    if slots.size < 2 or bool((slots[1:] > slots[:-1]).all()):
        return slots
    ordered: Rows = np.sort(slots)
    first = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


class Reached(NamedTuple):
    """The elements of one array that rows reach."""

    address: int
    offsets: Rows
    """Where it begins, in bytes, for every row."""
    size: int
    write: bool
    """It is written, not only read."""


Part = slice | Rows
"""Some rows of a batch."""


def limited(memory: Memory) -> bool:
    """Return whether tables are larger than their budget."""
    return memory.bytes_max < UNLIMITED


def parts(memory: Memory, *reached: Reached) -> Iterator[Part]:
    """Yield rows in parts, in the order of the first array; each is resident until the next, and memory is settled."""
    rows = reached[0].offsets.size
    if not limited(memory):
        if rows:
            yield slice(0, rows)
            memory.settle()
        return
    offsets = reached[0].offsets
    order = order_of(places_of(offsets))
    if order is not None:
        offsets = offsets[order]
    for part in cut(memory, units_of(offsets)):
        taken = part if order is None else order[part]
        for each in reached:
            reach(memory, each._replace(offsets=each.offsets[taken]))
        yield taken
        memory.settle()


def units_max(memory: Memory) -> int:
    """Return how many units of one array a part may reach; others reach as many in other arrays."""
    return max(1, memory.bytes_max // (_ARRAYS * UNIT_BYTES))


def cut(memory: Memory, units: Rows, rows_max: int = UNLIMITED) -> Iterator[slice]:
    """Cut rows, which are ordered by their units, into parts that reach as many units as memory lets them."""
    if not units.size:
        return
    borders = [0, *(np.flatnonzero(units[1:] != units[:-1]) + 1).tolist()][:: units_max(memory)]
    for first, end in zip(borders, [*borders[1:], units.size], strict=True):
        for begin in range(first, end, rows_max):
            yield slice(begin, min(end, begin + rows_max))


def reach(memory: Memory, reached: Reached) -> None:
    """Make the memory that rows reach, in about rising order, resident."""
    address, offsets, size, write = reached
    for units in (units_of(offsets), units_of(offsets[-1:] + (size - 1))):
        changes = np.flatnonzero(units[1:] != units[:-1]) + 1
        memory.bring(address, units[np.concatenate([[0], changes])].tolist(), write)


def arrived(ordered: NDArray[np.int64], order: Rows | None) -> NDArray[np.int64]:
    """Return values of ordered rows in the order in which the rows arrived."""
    if order is None:
        return ordered
    values = np.empty_like(ordered)
    values[order] = ordered
    return values
