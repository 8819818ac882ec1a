"""The NumPy tables that the compiled ones replaced: the oracle of their property tests.

Columns by slot, an open-addressing index over arrays, keys verified in an arena of canonical bytes. Every operation
works on whole columns; eviction renumbers all slots. Shares spec, deltas and ranges with the tables that it checks, and
neither records nor kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.keys.keygroups import splitmix64_inverse
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import Expiries, Through, covered
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, Values


def dtype_of(column: ColumnSpec) -> DTypeLike:
    """Return how values lie here: those of columns that are not plain as Python's objects."""
    return column.dtype if column.plain else object


def outward(column: ColumnSpec, values: NDArray[Any]) -> Values:
    """Return values as deltas have them."""
    return values if column.plain else pa.array(values.tolist(), column.arrow)


def inward(values: Values) -> NDArray[Any]:
    """Return values as they lie here."""
    if isinstance(values, np.ndarray):
        return values
    objects = np.empty(len(values), object)
    objects[:] = values.to_pylist()
    return objects


class Slab:
    """One growing column."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.array: NDArray[Any] = np.empty(512, np.dtype(np.dtype(dtype).type))

    def hold(self, rows: int) -> None:
        if rows > self.array.size:
            grown = np.empty(max(rows, 2 * self.array.size), self.array.dtype)
            grown[: self.array.size] = self.array
            self.array = grown


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


_WORD = 8
_TAIL_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)


class KeyArena:
    """Canonical keys by slot; append-only."""

    def __init__(self) -> None:
        self.count = 0
        self._used = 0
        self._words = Slab(np.uint64)
        self._starts = Slab(np.int64)
        self._lengths = Slab(np.int32)

    def append(self, batch: KeyBatch, rows: Rows) -> None:
        """Store the keys of these rows as the next slots, in order."""
        lengths = batch.lengths[rows]
        # At least one word, else an empty key would be compared with its neighbour's word.
        words = np.maximum((lengths + _WORD - 1) // _WORD, 1)
        ends = self._used + np.cumsum(words)
        if not rows.size:
            return
        end = self.count + rows.size
        for slab, size in ((self._words, int(ends[-1])), (self._starts, end), (self._lengths, end)):
            slab.hold(size)
        starts = ends - words
        self._starts.array[self.count : end] = starts
        self._lengths.array[self.count : end] = lengths
        at, to, left = batch.starts[rows], starts, lengths
        while at.size:
            self._words.array[to] = batch.words(at, left)
            more = left > _WORD
            at, to, left = at[more] + _WORD, to[more] + 1, left[more] - _WORD
        self._used, self.count = int(ends[-1]), end

    def same(self, batch: KeyBatch) -> Same:
        """Return a function that tests whether rows of a batch equal the keys at slots."""

        def same(rows: Rows, slots: Rows) -> NDArray[np.bool_]:
            lengths = batch.lengths[rows]
            equal: NDArray[np.bool_] = self._lengths.array.take(slots) == lengths
            asked = np.flatnonzero(equal)
            at, stored, left = batch.starts[rows[asked]], self._starts.array.take(slots[asked]), lengths[asked]
            while asked.size:
                agree = batch.words(at, left) == self._words.array.take(stored)
                if not agree.all():
                    equal[asked[~agree]] = False
                more = agree & (left > _WORD)
                if more.all():
                    at, stored, left = at + _WORD, stored + 1, left - _WORD
                else:
                    asked = asked[more]
                    at, stored, left = at[more] + _WORD, stored[more] + 1, left[more] - _WORD
            return equal

        return same

    def take(self, slots: Rows) -> pa.Array:
        """Return the canonical keys of these slots, large_binary."""
        lengths = self._lengths.array.take(slots).astype(np.int64)
        first = self._starts.array.take(slots)
        data = self._words.array[: self._used].view(np.uint8)
        return codec.from_bytes(data.take(codec.ragged(first * _WORD, lengths)), lengths)


class KeyBatch:
    """Canonical keys of one batch, readable one word at a time."""

    __slots__ = ("_at", "lengths", "starts")

    def __init__(self, canonical: pa.Array) -> None:
        data, self.starts, self.lengths = codec.bytes_of(canonical)
        # A word may begin at any byte; the array is a sliding window of 8 bytes.
        self._at = np.ndarray((data.size - _WORD + 1,), "<u8", data, strides=(1,))

    def words(self, at: Rows, left: Rows) -> NDArray[np.uint64]:
        """Return the words that begin at these bytes, with zeros beyond the `left` bytes of each key."""
        words: NDArray[np.uint64] = self._at[at]
        words &= _TAIL_MASKS.take(left, mode="clip")
        return words


WORKING, COMMITTED, DIRTY, ERASED = (np.uint8(1 << bit) for bit in range(4))
"""Flags of a slot: the key exists now; existed at the last commit; was written since the last barrier; is absent
because it expired."""
NEITHER = np.uint8(255) ^ (WORKING | COMMITTED)


class SlotColumns:
    """Slots of one operator's keys."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._clear()

    def _clear(self) -> None:
        self._index = Index()
        self._arena = None if self.spec.key.injective else KeyArena()
        self._working = {column.name: Slab(dtype_of(column)) for column in self.spec.columns}
        self._committed = {column.name: Slab(dtype_of(column)) for column in self.spec.columns}
        self._flags, self._claims = Slab(np.uint8), Slab(np.int32)
        self._born = 0

    def __len__(self) -> int:
        """The number of slots, of present and absent keys."""
        return self._index.count

    def column(self, name: str) -> NDArray[Any]:
        """Return the working values by slot, to read and write; valid until the next slots(), which may move them."""
        return self._working[name].array[: self._index.count]

    def is_present(self, slots: Rows) -> NDArray[np.bool_]:
        """Return whether the keys exist now."""
        present: NDArray[np.bool_] = (self._flags.array.take(slots) & WORKING) != 0
        return present

    def keys_at(self, slots: Rows) -> Keys:
        """Return the keys of slots."""
        if self._arena is None:
            return self.spec.key.from_ints(splitmix64_inverse(self._index.hashes.take(slots)))
        return self.spec.key.from_canonical(self._arena.take(slots))

    def key_columns(self, slots: Rows) -> list[pa.Array]:
        """Return the key columns of slots."""
        return self.spec.key.decode(self.keys_at(slots))

    def _slots_in(self, through: Through) -> Rows:
        """Return the existing slots in the ranges."""
        slots = np.flatnonzero(self._flags.array[: self._index.count] & (WORKING | COMMITTED))
        return slots[covered(self.keys_at(slots), through)]

    def _keyed(self, keys: Keys) -> tuple[Callable[..., Any] | None, Callable[[Rows], None] | None]:
        """Return how the index compares these keys with stored ones, and how it stores them."""
        arena = self._arena
        if arena is None:
            return None, None
        batch = KeyBatch(keys.canonical())
        return arena.same(batch), lambda rows: arena.append(batch, rows)

    def _find(self, keys: Keys) -> Rows:
        return self._index.find(keys.hashes, self._keyed(keys)[0])

    def _place(self, keys: Keys) -> Rows:
        """Find or insert; new slots have default values and are absent."""
        slots = self._index.slots(keys.hashes, *self._keyed(keys))
        first, end = self._born, self._index.count
        if end > first:
            for slab in (self._flags, self._claims, *self._working.values(), *self._committed.values()):
                slab.hold(end)
            self._flags.array[first:end] = 0
            for column in self.spec.columns:
                self._working[column.name].array[first:end] = column.default
                self._committed[column.name].array[first:end] = column.default
            self._born = end
        return slots

    def _empty(self, side: dict[str, Slab], slots: Rows) -> None:
        for column in self.spec.columns:
            side[column.name].array[slots] = column.default

    def _each_once(self, slots: Rows) -> Rows:
        """Drop repeated slots: each writes its row to its slot's claim, and exactly one of them reads it back."""
        rows = np.arange(slots.size, dtype=np.int32)
        self._claims.array[slots] = rows
        once: Rows = slots[self._claims.array.take(slots) == rows]
        return once


_NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Frozen:
    slots: Rows
    delta: OperatorDelta
    erased: Rows
    """Slots that only the delta's ranges cover."""


class NumpyTable(SlotColumns):
    """Keyed state of one operator in one worker.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
    """

    def __init__(self, spec: TableSpec, key_group_count: int) -> None:
        super().__init__(spec)
        self._key_group_count = key_group_count
        self._open: list[Rows] = []
        self._intervals: list[tuple[Epoch, Rows]] = []
        self._frozen: list[_Frozen] = []
        self._expiries = Expiries()
        self.committed_through = NO_EPOCH

    # Reading and writing a batch

    def slots(self, keys: Keys) -> Rows:
        """Return the slot of every key, int64; keys not seen yet get one, valid until the next drop_vacant()."""
        return self._place(keys)

    def changing(self, slots: Rows) -> Callable[[str], NDArray[Any]]:
        """Touch slots; return what returns the working values of a column."""
        self.touch(slots)
        return self.column

    def touch(self, slots: Rows) -> None:
        """Mark slots that were or will be written in this batch: their keys exist and they are dirty."""
        flags = self._flags.array.take(slots)
        both = WORKING | DIRTY
        rows = np.flatnonzero((flags & both) != both)
        if not rows.size:
            return
        fresh, flags = slots[rows], flags[rows]
        self._flags.array[fresh] = (flags | both) & ~ERASED
        self._note(fresh, flags)

    def delete(self, slots: Rows) -> None:
        """Make the keys absent; touching them again starts from the default values."""
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = (flags | DIRTY) & ~(WORKING | ERASED)
        self._empty(self._working, slots)
        self._note(slots, flags)

    def expire(self, slots: Rows, through: Through) -> None:
        """Erase the windows that ended at or before `through` of their key group, by ranges and not key by key.

        Args:
            slots: Every present slot in the ranges, each once; the caller must have examined all present() keys.
            through: The ranges; they do not apply to key groups that are not owned.
        """
        self._flags.array[slots] = (self._flags.array.take(slots) & ~WORKING) | ERASED
        self._empty(self._working, slots)
        self._expiries.note(slots, through)

    def changed(self) -> Rows:
        """Return the slots touched or deleted since the last barrier, each once, without expired ones."""
        if len(self._open) > 1:
            self._open = [np.concatenate(self._open)]
        return self._open[0] if self._open else _NO_ROWS

    def present(self) -> Rows:
        """Return the slots of all keys that exist now."""
        return np.flatnonzero(self._flags.array[: self._index.count] & WORKING)

    # Epochs

    def freeze(self, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch: keep the values of all slots that became dirty since the last commit known now."""
        self.commit(committed_through)
        assert self.committed_through >= committed_through, "a barrier commits an epoch that never froze here"
        assert epoch > max([self.committed_through, *(past for past, _ in self._intervals)]), "epochs must increase"
        # Sorted slots are gathered now and scattered later from front to back, which is 3 times faster.
        opened = np.sort(self.changed())
        self._open = []
        slots, flags = opened, self._flags.array.take(opened) & ~DIRTY
        self._flags.array[opened] = flags
        self._expiries.close(epoch)
        if self._intervals:
            slots = np.sort(self._each_once(np.concatenate([opened, *(past for _, past in self._intervals)])))
            flags = self._flags.array.take(slots)
        if not self._intervals and not (known := (flags & ~NEITHER) != 0).all():
            # Created and deleted since the last commit: there is nothing to delete anywhere.
            slots, flags = slots[known], flags[known]
        erased, through = self._expiries.slots(), self._expiries.through()
        if erased.size:
            # Also touched since the previous commit, and written after it: the ranges or the row suffice.
            erased = self._each_once(erased[(self._flags.array.take(erased) & ERASED) != 0])
            rows = np.flatnonzero((flags & ERASED) == 0)
            slots, flags = slots[rows], flags[rows]
            if not self._intervals and not (self._flags.array.take(erased) & COMMITTED).any():
                through = None  # created and expired since the last commit
        self._intervals.append((epoch, opened))
        values = self._outward(self._working, slots)
        puts = (flags & WORKING) != 0
        follows, number, keys = self.committed_through, self.spec.operator, self.keys_at(slots)
        delta = OperatorDelta(epoch, follows, number, self._key_group_count, keys, puts, values, through)
        self._frozen.append(_Frozen(slots, delta, erased))

    def delta(self, epoch: Epoch) -> OperatorDelta:
        """Return the delta frozen for this epoch; it exists until the epoch is committed or rolled back."""
        return next(frozen.delta for frozen in self._frozen if frozen.delta.epoch == epoch)

    def froze(self, epoch: Epoch) -> bool:
        """Return whether the epoch is frozen here and neither committed nor rolled back."""
        return any(frozen.delta.epoch == epoch for frozen in self._frozen)

    def commit(self, through: Epoch) -> None:
        """Treat the values frozen for this completed epoch as committed. A hint: the next freeze repeats it."""
        if through <= self.committed_through or not any(frozen.delta.epoch <= through for frozen in self._frozen):
            return
        newest = next((frozen for frozen in self._frozen if frozen.delta.epoch == through), None)
        assert newest is not None, f"epoch {through} is reported complete, but this worker never froze it"
        slots, delta = newest.slots, newest.delta
        self._erase_committed(newest.erased)
        for name, values in delta.columns.items():
            self._committed[name].array[slots] = inward(values)
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = np.where(delta.puts, flags | COMMITTED, flags & ~COMMITTED)
        self._frozen = [frozen for frozen in self._frozen if frozen.delta.epoch > through]
        self._intervals = [(epoch, past) for epoch, past in self._intervals if epoch > through]
        self._expiries.commit(through)
        self.committed_through = through

    def holds(self, base: Epoch) -> bool:
        """Return whether roll_back(base) is possible."""
        return base == self.committed_through or self.froze(base)

    def roll_back(self, base: Epoch) -> bool:
        """Return to the end of the completed epoch `base` without any I/O; False if it is not held here (P10)."""
        if not self.holds(base):
            return False
        self.commit(base)
        slots = np.sort(np.concatenate([self._expiries.slots(), *self._open, *(past for _, past in self._intervals)]))
        for name, slab in self._committed.items():
            self._working[name].array[slots] = slab.array.take(slots)
        flags = self._flags.array.take(slots) & ~(DIRTY | WORKING | ERASED)
        self._flags.array[slots] = flags | np.where(flags & COMMITTED, WORKING, np.uint8(0))
        self._open, self._intervals, self._frozen, self._expiries = [], [], [], Expiries()
        return True

    def get_committed(self, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        columns = zip(key, self.spec.key.types, strict=True)
        keys = self.spec.key.encode([pa.array([value], kind) for value, kind in columns])
        slot = int(self._find(keys)[0])
        if slot < 0 or not self._flags.array[slot] & COMMITTED:
            return None
        return {name: slab.array[[slot]].tolist()[0] for name, slab in self._committed.items()}

    # Restoring

    def absorb(self, delta: OperatorDelta) -> None:
        """Write a committed delta of the changelog into both working and committed values."""
        assert not (self._open or self._intervals), "a changelog is absorbed into a table that runs ahead of it"
        if delta.through is not None:
            erased = self._slots_in(delta.through)
            self._erase_committed(erased)
            self._empty(self._working, erased)
            self._flags.array[erased] &= ~WORKING
        slots = self._place(delta.keys)
        flags = np.where(delta.puts, WORKING | COMMITTED, np.uint8(0))
        self._flags.array[slots] = (self._flags.array.take(slots) & NEITHER) | flags
        for column in self.spec.columns:
            values = inward(delta.columns[column.name]).copy()
            values[~delta.puts] = column.default
            self._working[column.name].array[slots] = values
            self._committed[column.name].array[slots] = values

    def drop_vacant(self) -> None:
        """Drop the slots whose keys are permanently absent; present ones stay."""
        keep = (self._flags.array[: self._index.count] & (DIRTY | WORKING | COMMITTED)) != 0
        for slots in (self._expiries.slots(), *(past for _, past in self._intervals)):
            keep[slots] = True
        self._renumber(np.flatnonzero(keep))

    def _renumber(self, kept: Rows) -> None:
        """Rebuild index and columns with the kept slots only."""
        keys, flags, sides = self.keys_at(kept), self._flags.array.take(kept), (self._working, self._committed)
        values = [{name: slab.array.take(kept) for name, slab in side.items()} for side in sides]
        place = np.full(self._index.count, -1, np.int64)
        self._clear()
        slots = place[kept] = self._place(keys)
        self._flags.array[slots] = flags
        for side, arrays in zip((self._working, self._committed), values, strict=True):
            for name, array in arrays.items():
                side[name].array[slots] = array
        self._open = [place[slots] for slots in self._open]
        self._intervals = [(epoch, place[slots]) for epoch, slots in self._intervals]
        self._frozen = [_Frozen(place[each.slots], each.delta, place[each.erased]) for each in self._frozen]
        expiries = self._expiries
        expiries._open = [place[slots] for slots in expiries._open]
        expiries._closed = [(epoch, place[slots], through) for epoch, slots, through in expiries._closed]

    # Inner parts

    def _outward(self, side: dict[str, Slab], slots: Rows) -> Columns:
        return {c.name: outward(c, side[c.name].array.take(slots)) for c in self.spec.columns}

    def _note(self, slots: Rows, flags: NDArray[np.uint8]) -> None:
        """Add the slots that were not dirty before to the open interval."""
        clean = slots[(flags & DIRTY) == 0]
        if clean.size:
            self._open.append(self._each_once(clean))

    def _erase_committed(self, erased: Rows) -> None:
        """Make slots absent whose ranges are committed; without ranges, their keys were never committed."""
        self._flags.array[erased] &= ~(COMMITTED | ERASED)
        self._empty(self._committed, erased)
