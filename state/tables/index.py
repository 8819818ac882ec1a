"""Open-addressing index: key hash -> dense slot, a whole batch at a time.

A Python dict looks up 2 M keys/s; probing arrays with NumPy gives 30 M. Entries hold slot + 1
(0 = empty), and hashes are stored by slot, so an entry is 4 bytes. Slots are numbered
in the order of their creation and never freed; dropping rows means building another index.

The index grows by *generations*: a full one does not change and is searched first, while each call moves a bounded
share of its entries into one twice as large. The memory of the new one was zeroed before, a share with every new key,
since the system takes 0.2 s to hand out 128 MiB in one piece. So the cost of a call does not depend on the size of
the index.

Invariants
    - Equal keys get equal slots, even within one batch and while a generation is moving.
    - A generation is at most half full, so a probe always ends.
    - The old generation has moved completely before the new one is full.
    - New keys of a call get the slots count, count + 1, ..., in the order in which born() sees them.

Pure: no clock, thread or I/O.
Source: Knuth, The Art of Computer Programming 3, 6.4 (double hashing); DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.state.tables.slab import Slab

Rows = NDArray[np.int64]
Same = Callable[[Rows, Rows], NDArray[np.bool_]]
"""same(rows, slots): whether the key of each row is the key stored at its slot; their hashes are equal."""
Born = Callable[[Rows], None]
"""born(rows): store the keys of these rows as the next slots, in order."""

MOVED_MIN = 1 << 13
MOVED_PER_INSERT = 2
"""1 would suffice: a generation holds twice as many keys as the previous one."""
ZEROED_PER_INSERT = 20
"""16 would suffice: 2 x size entries over the last size / 8 keys of a generation."""
_FIRST_ENTRIES = 1 << 12
_STEP_SHIFT = np.uint64(33)
_ONE = np.uint64(1)


class Index:
    """Maps hashes to slots; the caller stores the keys themselves.

    `same` verifies keys whose hashes are equal; it is None if equal hashes mean equal keys.
    """

    def __init__(self) -> None:
        self.count = 0
        self._hash_of = Slab(np.uint64)
        self._entries = np.zeros(_FIRST_ENTRIES, np.int32)
        self._old: NDArray[np.int32] | None = None
        self._old_count = 0
        self._moved = 0
        self._next: NDArray[np.int32] | None = None
        self._zeroed = 0

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of every slot, shape (count,)."""
        return self._hash_of.array[: self.count]

    @property
    def moving(self) -> bool:
        """Return whether an old generation is still being moved."""
        return self._old is not None

    def find(self, hashes: NDArray[np.uint64], same: Same | None) -> Rows:
        """Return the slot of every key, -1 if it has none."""
        slots, _ = self._search(hashes, same)
        return slots

    def slots(self, hashes: NDArray[np.uint64], same: Same | None, born: Born | None = None) -> Rows:
        """Return the slot of every key; keys not seen yet get new slots."""
        slots, absent = self._search(hashes, same)
        if absent.size:
            self._make_room(absent.size)
            self._insert(hashes, absent, slots, same, born)
            self._prepare(ZEROED_PER_INSERT * absent.size)
        if self._old is not None:
            self._move(max(MOVED_MIN, MOVED_PER_INSERT * absent.size))
        return slots

    def _search(self, hashes: NDArray[np.uint64], same: Same | None) -> tuple[Rows, Rows]:
        """Return the slots found (-1 = none) and the rows without one."""
        slots, absent = self._probe(self._entries if self._old is None else self._old, hashes, None, same)
        if self._old is not None and absent.size:
            found, still = self._probe(self._entries, hashes[absent], absent, same)
            slots[absent] = found
            absent = absent[still]
        return slots, absent

    def _probe(
        self, entries: NDArray[np.int32], hashes: NDArray[np.uint64], rows: Rows | None, same: Same | None
    ) -> tuple[Rows, Rows]:
        """Search one generation; `rows` holds the row numbers by which `same` knows the hashes."""
        mask = np.uint64(entries.size - 1)
        stored = self._hash_of.array
        at = (hashes & mask).view(np.int64)
        slots = entries.take(at).astype(np.int64)
        slots -= 1
        hit = stored.take(slots) == hashes
        hit &= slots >= 0
        if same is not None:
            _verify(hit, slots, None, rows, same)
        left = np.flatnonzero(~hit)
        at, here = at.take(left), slots.take(left)
        absent = [left[:0]]
        # Here and below, take(flatnonzero(mask)) is several times faster than indexing with the mask.
        while left.size:
            occupied = np.flatnonzero(here >= 0)
            if occupied.size < left.size:
                absent.append(left.take(np.flatnonzero(here < 0)))
                left, at = left.take(occupied), at.take(occupied)
            hashed = hashes.take(left)
            at = _next(at, hashed, mask)
            here = entries.take(at).astype(np.int64)
            here -= 1
            hit = stored.take(here) == hashed
            hit &= here >= 0
            if same is not None:
                _verify(hit, here, left, rows, same)
            slots[left] = here
            miss = np.flatnonzero(~hit)
            left, at, here = left.take(miss), at.take(miss), here.take(miss)
        missing = np.concatenate(absent)
        missing.sort()
        return slots, missing

    def _insert(
        self, hashes: NDArray[np.uint64], rows: Rows, slots: Rows, same: Same | None, born: Born | None
    ) -> None:
        """Give slots to rows that no generation holds; rows of one new key share a slot.

        All rows at an empty entry write to it and read back which of them won. The others check the same
        entry again: it holds either their own key or one that they must probe past.
        """
        entries, mask = self._entries, np.uint64(self._entries.size - 1)
        hashed = hashes[rows]
        at = (hashed & mask).view(np.int64)
        while rows.size:
            here = entries.take(at).astype(np.int64) - 1
            empty = np.flatnonzero(here < 0)
            if empty.size:
                claims = np.arange(self.count + 1, self.count + 1 + empty.size, dtype=np.int32)
                entries[at[empty]] = claims
                winners = empty[entries.take(at[empty]) == claims]
                self._bear(entries, at[winners], hashed[winners], rows[winners], born)
                here[empty] = entries.take(at[empty]).astype(np.int64) - 1
            hit = self._hash_of.array.take(here) == hashed
            if same is not None:
                _verify(hit, here, rows, None, same)
            slots[rows[hit]] = here[hit]
            miss = ~hit
            rows, hashed = rows[miss], hashed[miss]
            at = _next(at[miss], hashed, mask)

    def _bear(
        self, entries: NDArray[np.int32], at: Rows, hashed: NDArray[np.uint64], rows: Rows, born: Born | None
    ) -> None:
        """Number the winners densely and store their hashes and keys."""
        end = self.count + rows.size
        entries[at] = np.arange(self.count + 1, end + 1, dtype=np.int32)
        self._hash_of.hold(end)
        self._hash_of.array[self.count : end] = hashed
        if born is not None:
            born(rows)
        self.count = end

    def _make_room(self, rows: int) -> None:
        """Begin a larger generation if `rows` more keys would fill more than half of this one."""
        if 2 * (self.count + rows) <= self._entries.size:
            return
        if self._old is not None:
            self._move(self._old_count)
        size = 1 << (2 * (self.count + rows) - 1).bit_length()
        if self._next is None or self._next.size < size:
            fresh = np.zeros(size, np.int32)
        else:
            self._prepare(self._next.size)
            fresh = self._next
        self._old, self._old_count, self._moved = self._entries, self.count, 0
        self._entries, self._next = fresh, None

    def _prepare(self, share: int) -> None:
        """Zero the next entries of the next generation, once this one holds three quarters of its maximum of keys."""
        if 8 * self.count < 3 * self._entries.size:
            return
        if self._next is None:
            self._next, self._zeroed = np.empty(2 * self._entries.size, np.int32), 0
        end = min(self._zeroed + share, self._next.size)
        self._next[self._zeroed : end] = 0
        self._zeroed = end

    def _move(self, share: int) -> None:
        """Move the next entries of the old generation; drop it after the last."""
        end = min(self._moved + share, self._old_count)
        entries, mask = self._entries, np.uint64(self._entries.size - 1)
        hashed: NDArray[np.uint64] = self._hash_of.array[self._moved : end]
        claims = np.arange(self._moved + 1, end + 1, dtype=np.int32)
        at = (hashed & mask).view(np.int64)
        while claims.size:
            empty = np.flatnonzero(entries.take(at) == 0)
            entries[at[empty]] = claims[empty]
            left = np.flatnonzero(entries.take(at) != claims)
            hashed, claims = hashed[left], claims[left]
            at = _next(at[left], hashed, mask)
        self._moved = end
        if end == self._old_count:
            self._old = None


def _next(at: Rows, hashed: NDArray[np.uint64], mask: np.uint64) -> Rows:
    """Return the entry after `at` in the probe order of every hash; an odd step visits all entries."""
    step = (hashed >> _STEP_SHIFT) | _ONE
    return ((at.view(np.uint64) + step) & mask).view(np.int64)


def _verify(hit: NDArray[np.bool_], slots: Rows, part: Rows | None, rows: Rows | None, same: Same) -> None:
    """Clear the hits whose stored key is a different key with the same hash."""
    found = np.flatnonzero(hit)
    if not found.size:
        return
    asked = found if part is None else part[found]
    hit[found] = same(asked if rows is None else rows[asked], slots[found])
