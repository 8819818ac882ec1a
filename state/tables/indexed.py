"""Records found by an index: one record per key, in a slab; finding, inserting, and the room for both.

A record has a number, its *slot*, which it keeps until the key is dropped; the next new key takes the slot then. This
module gives kernels their memory and keys, and makes room for them; layout.py defines the form of a record.

Invariants
    - A new record has default values and no flags but USED.
    - Between two calls of Memory.settle(), kernels reach about `bytes_max` of the slabs: rows come in parts, ordered by
      their records, and sweeps in ranges (placing.py). Results come in the order of the caller's rows.

Pure: no clock, thread or I/O; the seed of the index comes from state/compiled/seed.py.
Source: docs/decisions/0036-records-and-kernels.md, docs/decisions/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.compiled import seed
from holdfast.state.compiled.sources import NO_SOURCES, Sources, Words, addresses_of
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.batches import SLACK, GivenKeys, OrderedBatch, hashed_words
from holdfast.state.tables.kernels.layout import BLOCK_ROWS, PROGRAM_FIELDS, SCRATCH_GAP, Control, Flag, KeyPart
from holdfast.state.tables.placing import (
    Part,
    Reached,
    arrived,
    cut,
    limited,
    order_of,
    parts,
    places_of,
    reach,
    units_max,
    units_of,
)
from holdfast.state.tables.slab import PLAIN, RESERVED, UNIT_BYTES, UNLIMITED, Memory, Rows, Slab, TableContents
from holdfast.state.tables.spec import TableSpec
from holdfast.state.tables.words import Arena, ValueWords

Program = NDArray[np.int64]
"""Operations of the kernels' fold, shape (steps, PROGRAM_FIELDS)."""
NO_PROGRAM: Program = np.empty((0, PROGRAM_FIELDS), np.int64)
TEXT_WORDS = 3
COMPACTED_FROM = 1 << 20
"""Bytes of the smallest arena that is compacted."""
PART_ROWS_MIN = 16
_FIRST_BITS = 9
_FIRST_SLOTS = BLOCK_ROWS
_FIRST_ARENA = 1 << 12
_FREED_AT_ONCE = 1 << 14
"""Slots whose tags are computed and then deleted, while both are in the cache."""
_SHRUNK_FROM = 1 << 14
"""Slots of the smallest table that gives room back."""
_LINE_WORDS = 8
"""Words of a cache line. A record that would be one word short of a line is padded, so that it lies in no other."""
_TAG_BITS = 31
_TAG_MASK = (1 << _TAG_BITS) - 1
_TAG_PLACE_BITS = 15
"""A tag without these bits, 16 are left, is a place in the index: the upper bits are the entry's home."""
_SLOT_REACH = 1 << 13
"""Bytes that a new key may touch without making them resident first: the record of a reused slot, twice a page."""
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_BYTES = np.empty(0, np.uint8)
_NO_PLACES = np.empty((0, 0), np.int64)


class IndexedRecords:
    """The keys of one operator, and where their values are.

    Args:
        memory: Where slabs and index get their room.
    """

    def __init__(self, spec: TableSpec, memory: Memory = PLAIN) -> None:
        from holdfast.state.tables.kernels import (
            index,
            merging,
            reordering,
            rows,
            slots,
        )  # imports the compiler, which few commands need

        self.spec, self._memory = spec, memory
        self._index, self._rows, self._slots, self._reordering = index, rows, slots, reordering
        self._merging = merging
        self._key = spec.key.word_count if spec.key.fixed else TEXT_WORDS
        self._values = ValueWords(spec)
        width = self._key + 1 + self._values.count
        self._width = width + 1 if width % _LINE_WORDS == _LINE_WORDS - 1 else width
        self._defaults = self._values.defaults()
        self._defaults_at = self._defaults.ctypes.data
        self._scratch = np.empty((BLOCK_ROWS + SCRATCH_GAP) * (self._key + 5), np.int64)
        self.drops = 0
        """Grows whenever a slot may get another key."""
        self._clear()

    def _clear(self) -> None:
        self.drops += 1
        control = np.zeros(Control.FIELDS, np.int64)
        control[Control.BITS], control[Control.MOVED] = _FIRST_BITS, -1
        control[Control.SEED], control[Control.MASK] = seed.of_process(), _TAG_MASK
        control[Control.WORDS], control[Control.KEY] = self._width, self._key
        control[Control.TEXT] = not self.spec.key.fixed
        control[Control.DIRTY], control[Control.VALUES] = Flag.EVEN, self._values.count
        self._control, self._control_at = control, control.ctypes.data
        memory, values = self._memory, self._values.count
        self._records = Slab(np.int64, RESERVED * self._width, _FIRST_SLOTS * self._width, memory)
        self._committed_values = Slab(np.int64, RESERVED * values, _FIRST_SLOTS * values, memory)
        self._entries, self._old = _Entries(memory, 1 << _FIRST_BITS), _Entries(memory, 1)
        self._opened, self._free = Slab(np.int64, memory=memory), Slab(np.int64, first=1, memory=memory)
        self._arena = Slab(np.uint8, first=1 if self.spec.key.fixed else _FIRST_ARENA, memory=memory)
        self._bytes = Arena(self._slots.copy_bytes, self._memory) if self._values.varying else None
        self._bytes_checked_at = COMPACTED_FROM

    def stored(self) -> TableContents:
        """Return the parts of the records."""
        arrays = {
            "control": self._control,
            "records": self._records.array,
            "committed": self._committed_values.array,
            "entries": self._entries.array,
            "old": self._old.array,
            "free": self._free.array,
            "arena": self._arena.array,
        }
        numbers = {"checked": self._bytes_checked_at}
        if self._bytes is not None:
            arrays["bytes"], numbers["used"] = self._bytes.array, self._bytes.used
        return TableContents(arrays, numbers)

    def _adopt(self, stored: TableContents, rooms: Mapping[str, NDArray[Any]]) -> None:
        """Take records in place of these."""
        self._clear()
        arrays = stored.arrays
        self._control = np.array(arrays["control"])
        self._control_at = self._control.ctypes.data

        def slab(name: str, words: int = 1) -> Slab:
            return Slab.over(rooms.get(name, arrays[name]), arrays[name].size, RESERVED * words, self._memory)

        def entries(name: str) -> _Entries:
            return _Entries.over(rooms.get(name, arrays[name]), arrays[name].size, self._memory)

        self._records, self._committed_values = slab("records", self._width), slab("committed", self._values.count)
        self._free, self._arena = slab("free"), slab("arena")
        self._entries, self._old = entries("entries"), entries("old")
        self._bytes_checked_at = stored.numbers["checked"]
        if self._bytes is not None:
            self._bytes.adopt(slab("bytes"), stored.numbers["used"])

    def __len__(self) -> int:
        """The number of keys in memory, present and absent."""
        return int(self._control[Control.COUNT])

    @property
    def limited(self) -> bool:
        """Return whether tables are larger than their budget."""
        return limited(self._memory)

    def parts_of(self, slots: Rows) -> Iterator[Part]:
        """Yield the rows of slots in the order of their records, in parts; each is resident until it was used."""
        return parts(self._memory, self._records_of(slots, write=True))

    def _records_of(self, slots: Rows, *, write: bool) -> Reached:
        return slots_in(self._records, self._width, slots, write)

    def _sweep(self, first: int = 0, end: int = UNLIMITED) -> Iterator[tuple[int, int]]:
        """Cut all slots ever used, or some, into ranges [first, end) of records; memory is settled after each."""
        size, high = 8 * self._width, min(end, int(self._control[Control.HIGH]))
        step = max(1, self._memory.bytes_max // (2 * size))
        for low in range(first, high, step):
            past = min(high, low + step)
            if self.limited:
                offsets = np.append(np.arange(low * size, past * size, UNIT_BYTES), (past - 1) * size)
                reach(self._memory, Reached(self._records.address, offsets, size, write=False))
            yield low, past
            self._memory.settle()

    def keys_at(self, slots: Rows) -> Keys:
        """Return the keys of slots."""
        return self._keys_of(self._gather(slots, 0, self._key))

    def leading_at(self, slots: Rows) -> Words:
        """Return the first key column of slots, which must be an integer or a time that is never null."""
        return self._gather(slots, 0, 1)[0] if self.spec.key.fixed else self.keys_at(slots).leading()

    def _keys_of(self, words: Words) -> Keys:
        """Return the keys that key words name."""
        kind = self.spec.key
        if kind.fixed:
            return kind.from_words(words)
        hashes, starts, lengths = words
        ends = np.cumsum(lengths)
        data = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
        to = ends - lengths
        for part in parts(self._memory, Reached(self._arena.address, starts, 1, write=False)):
            places = starts[part].copy(), lengths[part].copy(), to[part].copy()
            self._slots.copy_bytes(self._arena.array, *places, data)
        return kind.from_canonical(codec.from_bytes(data, lengths), hashes.view(np.uint64))

    def _gather(self, slots: Rows, first: int, count: int) -> Words:
        """Return words first, first + 1, ... of slots, shape (count, slots)."""
        return self._gather_from(self._records, self._width, first, slots, count)

    def _gather_from(self, slab: Slab, width: int, first: int, slots: Rows, count: int) -> Words:
        words, slots = np.empty((count, slots.size), np.int64), listed(slots)
        for part in parts(self._memory, slots_in(slab, width, slots, write=False)):
            taken = slots[part]
            some = words if taken.size == slots.size else np.empty((count, taken.size), np.int64)
            self._slots.gather(slab.array, width, first, slots if some is words else taken, some)
            if some is not words:
                words[:, part] = some
        return words

    def _scatter_to(self, slab: Slab, width: int, first: int, slots: Rows, values: Words) -> None:
        slots = listed(slots)
        for part in parts(self._memory, slots_in(slab, width, slots, write=True)):
            self._slots.scatter(slab.array, width, first, slots[part], np.ascontiguousarray(values[:, part]))

    def add(self, keys: Keys) -> Rows:
        """Find or insert keys; return their slots."""
        return self._take(keys, mark=False)[0]

    def find(self, keys: Keys) -> Rows:
        """Return the slot of every key, -1 if it is absent."""
        if not self.limited:
            given_keys, slots = GivenKeys(keys), np.empty(len(keys), np.int64)
            self._rows.find_rows(self._places(), given_keys.places, slots, 0, self._scratch)
            return slots
        batch = self._ordered(keys)
        given_keys, slots = GivenKeys(batch.keys), batch.slots
        for part in batch.parts:
            self._reach_rows(batch, part, write=False)
            self._rows.find_rows(self._places(), given_keys.from_row(part.start), slots[part], 1, self._scratch)
            self._memory.settle()
        return arrived(slots, batch.order)

    def _take(
        self, keys: Keys, *, mark: bool, born: bool = False, program: Program = NO_PROGRAM, inputs: Sources = NO_SOURCES
    ) -> tuple[Rows, Rows]:
        """Find or insert keys, and fold rows; return the slots, and those of the new records if `born`."""
        rows, new = len(keys), list[Rows]()
        given_keys, new_slots = GivenKeys(keys), np.empty(rows if born else 0, np.int64)
        if not keys.type.fixed:
            self._hold_arena(given_keys.byte_count)
        if mark:
            self._opened.hold(int(self._control[Control.OPENED]) + rows, int(self._control[Control.OPENED]))
        batch = self._ordered(keys) if self.limited else OrderedBatch(keys, np.empty(rows, np.int64), [slice(0, rows)])
        inputs, _kept = self._reordered(inputs, batch.order)
        slots, likely = batch.slots, int(batch.tags is not None)
        given_keys = given_keys if batch.keys is keys else GivenKeys(batch.keys)
        for part in self._taken_of(batch):
            self._reach_rows(batch, part, write=True)
            next_row = part.start
            while True:
                taken = slots[: part.stop], next_row, likely, int(mark), new_slots
                next_row = self._rows.take_rows(
                    self._places(), given_keys.places, *taken, program, inputs, self._scratch
                )
                new.append(new_slots[: self._control[Control.BORN]].copy())
                if next_row == part.stop:
                    break
                self._make_room()
            self._memory.settle()
        return arrived(slots, batch.order), np.concatenate(new) if new else _NO_ROWS

    def _taken_of(self, batch: OrderedBatch) -> Iterator[slice]:
        """Yield the parts of a batch; those of new keys may become smaller, as slots are used again."""
        if batch.tags is None:
            yield from batch.parts
            return
        top = self._free.array[: self._control[Control.FREE]][-len(batch.keys) :]
        top[::-1] = np.sort(top)  # new keys take them from the end: neighbours now
        for part in batch.parts:
            start = part.start
            while start < part.stop:
                rows = part.stop - start
                rows = self._reach_free(rows) if start >= batch.known else rows
                yield slice(start, start + rows)
                start += rows

    def _reach_free(self, rows: int) -> int:
        """Make the records of the slots resident that new keys take again; return how many rows may take them."""
        slots = self._free.array[: self._control[Control.FREE]][: -rows - 1 : -1]
        if not slots.size:
            return rows
        reached = self._records_of(slots, write=True)
        beyond = np.flatnonzero(np.diff(units_of(reached.offsets)))[units_max(self._memory) - 1 :]
        rows = int(beyond[0]) + 1 if beyond.size else rows
        reach(self._memory, reached._replace(offsets=reached.offsets[:rows]))
        return rows

    def _ordered(self, keys: Keys) -> OrderedBatch:
        """Order the rows of a batch: the keys that the index may hold by their records, the others by their entries."""
        tags, likely = self._tags_of(hashed_words(keys)), np.empty(len(keys), np.int64)
        order = order_of(tags >> _TAG_PLACE_BITS)
        if order is not None:
            tags = tags[order]
        for part in cut(self._memory, units_of(self._entries_of(tags))):
            self._reach_entries(tags[part], write=False)
            self._reordering.likely_slots(self._places(), tags[part], likely[part])
            self._memory.settle()
        units, keys_at, by_record = self._units_of(likely)
        if by_record is not None:
            order = by_record if order is None else order[by_record]
            likely, tags, units = likely[by_record], tags[by_record], units[by_record]
            keys_at = None if keys_at is None else keys_at[by_record]
        known_count = int(np.count_nonzero(likely >= 0))
        row_parts = list(cut(self._memory, units[:known_count]))
        created_max = max(PART_ROWS_MIN, self._memory.bytes_max // _SLOT_REACH)
        for part in cut(self._memory, units_of(self._entries_of(tags[known_count:])), created_max):
            row_parts.append(slice(known_count + part.start, known_count + part.stop))
        return OrderedBatch(
            keys if order is None else keys.take(order), likely, row_parts, order, tags, known_count, keys_at
        )

    def _tags_of(self, words: Sequence[Words] | Words) -> Words:
        """Return the tags of keys, of which these are the words."""
        tags, kept = np.empty(len(words[0]), np.int64), [np.ascontiguousarray(each) for each in words]
        given = np.zeros(KeyPart.FIRST + len(kept), np.int64)
        given[KeyPart.COLUMNS], given[KeyPart.FIRST :] = len(kept), addresses_of(kept)
        self._reordering.tag_rows(self._places(), given, tags, self._scratch)
        return tags

    def _units_of(self, likely: Rows) -> tuple[Rows, Rows | None, Rows | None]:
        """Return which units likely slots reach, as numbers that rise with the order of the rows.

        Returns:
            The numbers; where the bytes of text keys are; the order, in which rows without a likely slot come last.
        """
        offsets = self._records_of(likely, write=False).offsets
        units, places, keys_at = units_of(offsets), places_of(offsets), None
        if not self.spec.key.fixed:
            known, keys_at = np.flatnonzero(likely >= 0), np.zeros_like(likely)
            [keys_at[known]] = self._gather(likely[known], 1, 1)
            arena = units_of(np.append(keys_at, self._control[Control.ARENA]))
            units = units * (arena[-1] + 1) + arena[:-1]
            places = units.copy()
        places[likely < 0] = int(places.max(initial=0)) + 1
        return units, keys_at, order_of(places)

    def _reach_rows(self, batch: OrderedBatch, part: slice, *, write: bool) -> None:
        """Make the memory resident that the rows of a part are likely to reach."""
        if batch.tags is None:
            return
        if write:
            self._reach_ends(part.stop - part.start if part.start >= batch.known else 0)
        if part.start < batch.known:
            slots = batch.slots[part]
            reach(self._memory, self._records_of(slots, write=write))
            if batch.keys_at is not None:
                reach(self._memory, Reached(self._arena.address, batch.keys_at[part], 1, write=False))
        elif write:
            self._reach_entries(batch.tags[part], write=True)

    def _reach_ends(self, created: int) -> None:
        """Make resident where the table grows: by the list of dirty slots, and by new keys if there may be any."""
        control = self._control
        ends = [(self._opened, Control.OPENED, 1)]
        if created:
            ends += [(self._records, Control.HIGH, self._width), (self._arena, Control.ARENA, 0)]
        for slab, field, width in ends:
            end = int(control[field]) * (8 * width or 1)
            reach(self._memory, Reached(slab.address, np.array([end]), 1 + 8 * width * created, write=True))

    def _entries_of(self, tags: Words) -> Rows:
        """Return where in the index the entries of tags begin, in bytes."""
        return _entries_at(tags, int(self._control[Control.BITS]))

    def _reach_entries(self, tags: Words, *, write: bool) -> None:
        """Make the entries of tags resident, which are in rising order, and those that a growing index moves next."""
        control = self._control
        reach(self._memory, Reached(self._entries.address, self._entries_of(tags), 8, write))
        if control[Control.MOVED] >= 0:
            old_bits = int(control[Control.OLD_BITS])
            reach(self._memory, Reached(self._old.address, _entries_at(tags, old_bits), 8, write))
            if write:
                at = np.array([(control[Control.START] + control[Control.MOVED]) & ((1 << old_bits) - 1)])
                reach(self._memory, Reached(self._old.address, at * 8, 8, write=True))
                reach(self._memory, Reached(self._entries.address, at * 16, 8, write=True))

    def _reordered(self, inputs: Sources, order: Rows | None) -> tuple[Sources, tuple[Words, NDArray[np.uint8]]]:
        """Return inputs in another order, and the arrays that they describe, which must be kept."""
        if order is None or not inputs.size:
            return inputs, (_NO_PLACES, _NO_BYTES)
        inputs, kept = inputs.copy(), np.empty((len(inputs), order.size), np.int64)
        bits = np.zeros(len(inputs) * (-(-order.size // 8)), np.uint8)
        self._reordering.reorder_inputs(inputs, order, kept, bits)
        return inputs, (kept, bits)

    def _places(self) -> Words:
        """Return where the parts are, in the order of TablePart."""
        records = self._records
        return np.array(
            [
                records.address,
                records.array.size,
                self._entries.address,
                self._old.address,
                self._control_at,
                self._free.address,
                self._opened.address,
                self._arena.address,
                self._defaults_at,
                self._defaults.size,
            ],
            np.int64,
        )

    def _make_room(self) -> None:
        """Make room for one more block of rows."""
        control = self._control
        self._records.hold((int(control[Control.HIGH]) + BLOCK_ROWS) * self._width)
        self._free_old_index()
        if control[Control.MOVED] < 0 and 2 * (control[Control.COUNT] + BLOCK_ROWS) > self._entries.array.size:
            empty = _first_empty(self._entries.array)
            self._old, self._entries = self._entries, _Entries(self._memory, 2 * self._entries.array.size)
            control[Control.OLD_BITS] = control[Control.BITS]
            control[Control.BITS] += 1
            control[Control.START], control[Control.MOVED] = empty + 1, 0

    def _free_old_index(self) -> None:
        if self._control[Control.MOVED] < 0 and self._old.array.size > 1:
            self._old = _Entries(self._memory, 1)

    def _hold_arena(self, more: int) -> None:
        """Make room for bytes of keys; copy the arena when most of it belongs to dropped keys."""
        used_bytes, void = int(self._control[Control.ARENA]), int(self._control[Control.VOID])
        if 2 * void > max(used_bytes, COMPACTED_FROM):
            self._keys_move()
            fresh, left = Slab(np.uint8, memory=self._memory), 0
            fresh.hold(used_bytes - void + SLACK, 0)
            for first, end in self._sweep():
                given = self._records.array, self._control, first, end, self._arena.array
                left = self._slots.compact_arena(*given, fresh.array, left)
            self._arena, used_bytes = fresh, left
            self._control[Control.ARENA], self._control[Control.VOID] = left, 0
        self._arena.hold(used_bytes + more + SLACK, used_bytes)

    def _keys_move(self) -> None:
        """Take the keys that belong to no record out of the arena, before records name another arena."""

    def _free_slots(self, slots: Rows) -> None:
        """Drop keys; their slots are used again."""
        self.drops += 1
        free, slots = int(self._control[Control.FREE]), listed(slots)
        self._free.hold(free + slots.size, free)
        words = self._key if self.spec.key.fixed else 1
        if not self.limited:
            for first in range(0, slots.size, _FREED_AT_ONCE):
                some = slots[first : first + _FREED_AT_ONCE]
                self._rows.free_slots(self._places(), some, self._tags_of(self._gather(some, 0, words)), 1, 1)
            return
        tags = self._tags_of(self._gather(slots, 0, words))
        order = order_of(tags >> _TAG_PLACE_BITS)
        by_tag, tags = (slots, tags) if order is None else (slots[order], tags[order])
        for part in cut(self._memory, units_of(self._entries_of(tags))):
            self._reach_entries(tags[part], write=True)
            self._rows.free_slots(self._places(), by_tag[part], tags[part], 1, 0)
            self._memory.settle()
        for freed in self.parts_of(slots):
            self._rows.free_slots(self._places(), slots[freed], _NO_ROWS, 0, 1)

    def _shrink(self) -> None:
        """Give back room if dropped keys have left most of it empty: after the last slot in use, and in the index."""
        control, slab = self._control, self._free.array
        high, free = int(control[Control.HIGH]), int(control[Control.FREE])
        if high < _SHRUNK_FROM or 2 * free < high:
            return
        if (slab[:free] == high - 1).any():
            listed = np.sort(slab[:free])
            last = int(np.count_nonzero(listed == np.arange(high - free, high)))
            # The lowest slots are used next, so that more of the highest ones become free.
            slab[: free - last] = listed[: free - last][::-1]
            control[Control.HIGH], control[Control.FREE] = high - last, free - last
            self._records.shrink((high - last) * self._width)
            self._committed_values.shrink((high - last) * self._values.count)
            self._free.shrink(free - last)
        if not self.spec.key.fixed:
            self._hold_arena(0)
        self._shrink_index()

    def _shrink_index(self) -> None:
        """Copy the index into a smaller one that is a quarter full, unless a generation is moving or little is won."""
        self._free_old_index()
        control, size = self._control, self._entries.array.size
        bits = max(_FIRST_BITS, (4 * (len(self) + BLOCK_ROWS) - 1).bit_length())
        if control[Control.MOVED] >= 0 or 2 << bits > size:
            return
        fresh = _Entries(self._memory, 1 << bits)
        step = max(1, self._memory.bytes_max // 16)
        for first in range(0, size, step):  # homes keep their order, so both indexes are passed through once
            self._index.refill(fresh.array, self._entries.array[first : first + step], bits)
            self._memory.settle()
        self._entries, control[Control.BITS] = fresh, bits


class _Entries:
    """Entries of an index; the system hands their memory out when they are written."""

    __slots__ = ("address", "array")

    def __init__(self, memory: Memory, size: int) -> None:
        self.array = memory.zeros(size)
        self.address: int = self.array.ctypes.data

    @classmethod
    def over(cls, room: NDArray[np.int64], size: int, memory: Memory) -> _Entries:
        """Return entries whose `size` words are in a room of this memory already."""
        entries = cls.__new__(cls)
        entries.array, entries.address = memory.use(room, size)[:size], room.ctypes.data
        return entries


def slots_in(slab: Slab, width: int, slots: Rows, write: bool) -> Reached:
    return Reached(slab.address, slots * (8 * width), 8 * width, write)


def _entries_at(tags: Words, bits: int) -> Rows:
    """Return where in an index the entries of tags begin, in bytes."""
    return (tags >> (_TAG_BITS - bits)) << 3


def _first_empty(entries: Words) -> int:
    """Return the first empty entry; the index is half empty, so it is near."""
    first, size = 0, 64
    while not (empty := np.flatnonzero(entries[first : first + size] == 0)).size:
        first, size = first + size, 2 * size
    return first + int(empty[0])


def listed(slots: Rows) -> Rows:
    """Return slots as kernels take them, who take no arrays that cannot be written, like those of Arrow."""
    return np.require(slots, np.int64, ["C", "W"])
