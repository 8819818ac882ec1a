"""Records and index of a resident table: one record per key, in a slab, found by a compiled index.

A record has a number, its *slot*, which it keeps until the key is dropped; the next new key takes the slot then. This
module gives kernels their memory and keys, and makes room for them; layout.py says what a record looks like.

Invariants
    - A new record has default values and no flags but USED (and UNLOADED, if a cold store may hold the key).
    - Committed values are in a second slab with the same slots. They mean something only while COMMITTED is set.
    - Between two calls of Memory.settle(), kernels reach about `bytes_max` of the slabs: rows and sweeps come in parts.

Pure: no clock, thread or I/O; the seed of the index comes from state/compiled/seed.py.
Source: docs/design/0036-records-and-kernels.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.compiled import seed
from holdfast.state.compiled.sources import NO_SOURCES, Sources, Words, addresses_of
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.kernels.layout import BLOCK_ROWS, PROGRAM_FIELDS, SCRATCH_GAP, Control, Do, Flag, Given
from holdfast.state.tables.slab import PLAIN, RESERVED, Memory, Rows, Slab
from holdfast.state.tables.spec import Columns, TableSpec

Program = NDArray[np.int64]
"""Operations of the kernels' fold, shape (steps, PROGRAM_FIELDS)."""
Step = tuple[Do, str, int]
"""An operation, the column of state that it changes, and the number of its input."""
NO_PROGRAM: Program = np.empty((0, PROGRAM_FIELDS), np.int64)
TEXT_WORDS = 3
_FIRST_BITS = 9
_LINE_WORDS = 8
"""Words of a cache line. A record that would be one word short of a line is padded, so that it lies in no other."""
_TAG_MASK = (1 << 31) - 1
_SLACK = 8
"""Bytes behind the arena and a batch's keys that kernels may read."""
_COMPACTED_FROM = 1 << 20
_ROW_REACH = 4 << 16
"""Bytes that may become resident for a row: entry, record, committed values, text, and what the system maps around
each, 64 KiB by default."""
_PART_ROWS_MIN = 16
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_BYTES = np.zeros(_SLACK, np.uint8)


class Records:
    """The keys of one operator and their values.

    Args:
        memory: Where slabs and index get their room.
    """

    def __init__(self, spec: TableSpec, memory: Memory = PLAIN) -> None:
        from holdfast.state.tables.kernels import rows, slots  # imports the compiler, which few commands need

        self.spec, self._memory = spec, memory
        self._rows, self._slots = rows, slots
        self._key = spec.key.word_count if spec.key.fixed else TEXT_WORDS
        width = self._key + 1 + len(spec.columns)
        self._width = width + 1 if width % _LINE_WORDS == _LINE_WORDS - 1 else width
        self._value_at = {column.name: i for i, column in enumerate(spec.columns)}
        self._defaults = words_of([np.array([column.default], column.dtype) for column in spec.columns], 1)[:, 0].copy()
        self._defaults_at = self._defaults.ctypes.data
        self._scratch = np.empty((BLOCK_ROWS + SCRATCH_GAP) * (self._key + 5), np.int64)
        self._clear()

    def _clear(self) -> None:
        control = np.zeros(Control.FIELDS, np.int64)
        control[Control.BITS], control[Control.MOVED] = _FIRST_BITS, -1
        control[Control.SEED], control[Control.MASK] = seed.of_process(), _TAG_MASK
        control[Control.WORDS], control[Control.KEY] = self._width, self._key
        control[Control.TEXT] = not self.spec.key.fixed
        self._control, self._control_at = control, control.ctypes.data
        memory, values = self._memory, len(self.spec.columns)
        self._records = Slab(np.int64, RESERVED * self._width, _FIRST_SLOTS * self._width, memory)
        self._committed_values = Slab(np.int64, RESERVED * values, _FIRST_SLOTS * values, memory)
        self._entries, self._old = _Entries(memory, 1 << _FIRST_BITS), _Entries(memory, 1)
        self._opened, self._free = Slab(np.int64, memory=memory), Slab(np.int64, first=1, memory=memory)
        self._arena = Slab(np.uint8, first=1 if self.spec.key.fixed else _FIRST_ARENA, memory=memory)

    def __len__(self) -> int:
        """The number of keys in memory, present and absent."""
        return int(self._control[Control.COUNT])

    @property
    def nbytes(self) -> int:
        """Bytes in memory: records, committed values, index, arena, lists of slots."""
        control, values = self._control, len(self.spec.columns)
        high, lists = int(control[Control.HIGH]), int(control[Control.OPENED] + control[Control.FREE])
        index = self._entries.array.nbytes + (self._old.array.nbytes if control[Control.MOVED] >= 0 else 0)
        return 8 * (high * (self._width + values) + lists) + index + int(control[Control.ARENA])

    def column(self, name: str) -> NDArray[Any]:
        """Return the working values by slot, to read and write; valid until the next slots(), which may move them."""
        return self._view(self._records.array, self._width, self._key + 1, name)

    def committed_column(self, name: str) -> NDArray[Any]:
        """Return the committed values by slot; undefined where no value is committed."""
        self._hold_committed()
        return self._view(self._committed_values.array, len(self.spec.columns), 0, name)

    def _view(self, words: Words, width: int, first: int, name: str) -> NDArray[Any]:
        at = self._value_at[name]
        dtype, high = self.spec.columns[at].dtype, int(self._control[Control.HIGH])
        # The value of a narrow column is the low bytes of its word, which come first.
        return np.ndarray((high,), dtype, words, 8 * (first + at), (8 * width,))

    def program(self, steps: Iterable[Step]) -> Program:
        """Return the program of these steps, ordered so that every input is read once."""
        lines = []
        for do, name, column in sorted(steps, key=lambda step: step[2]):
            at = self._value_at[name]
            dtype = self.spec.columns[at].dtype
            shift = 64 - 8 * dtype.itemsize if dtype.kind == "i" else 0
            lines.append((int(do), self._key + 1 + at, column, shift))
        return np.array(lines, np.int64).reshape(-1, PROGRAM_FIELDS)

    def parts(self, rows: int) -> Iterator[slice]:
        """Cut rows, or slots, into parts that may be reached without settling memory; it is settled after each."""
        first = 0
        while first < rows:
            end = min(rows, first + self.rows_max)
            yield slice(first, end)
            self._memory.settle()
            first = end

    @property
    def rows_max(self) -> int:
        """Rows of a batch that may be taken without settling memory."""
        return max(_PART_ROWS_MIN, self._memory.bytes_max // _ROW_REACH)

    def _sweep(self) -> Iterator[tuple[int, int]]:
        """Cut all slots ever used into ranges [first, end) of records; memory is settled after each."""
        high, step = int(self._control[Control.HIGH]), max(1, self._memory.bytes_max // (8 * self._width))
        for first in range(0, high, step):
            yield first, min(high, first + step)
            self._memory.settle()

    def values(self, name: str, slots: Rows) -> NDArray[Any]:
        """Return the working values of one column at these slots."""
        at = self._value_at[name]
        return _narrowed(self._gather(slots, self._key + 1 + at, 1)[0], self.spec.columns[at].dtype)

    def flags_of(self, slots: Rows) -> Words:
        """Return the state words of slots."""
        [states] = self._gather(slots, self._key, 1)
        return np.asarray(states)

    def is_present(self, slots: Rows) -> NDArray[np.bool_]:
        """Return whether the keys exist now."""
        present: NDArray[np.bool_] = (self.flags_of(slots) & Flag.WORKING) != 0
        return present

    def keys_at(self, slots: Rows) -> Keys:
        """Return the keys of slots."""
        return self._keys_of(self._gather(slots, 0, self._key))

    def key_columns(self, slots: Rows) -> list[Any]:
        """Return the key columns of slots."""
        return self.spec.key.decode(self.keys_at(slots))

    def _keys_of(self, words: Words) -> Keys:
        """Return the keys that key words name."""
        kind = self.spec.key
        if kind.fixed:
            return kind.from_words(words)
        hashed, starts, lengths = words
        ends = np.cumsum(lengths)
        data = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
        to = ends - lengths
        for part in self.parts(ends.size):
            places = starts[part].copy(), lengths[part].copy(), to[part].copy()
            self._slots.copy_bytes(self._arena.array, *places, data)
        return kind.from_canonical(codec.from_bytes(data, lengths), hashed.view(np.uint64))

    def _gather(self, slots: Rows, first: int, count: int) -> Words:
        """Return words first, first + 1, ... of slots, shape (count, slots)."""
        return self._gather_from(self._records, self._width, first, slots, count)

    def _gather_from(self, slab: Slab, width: int, first: int, slots: Rows, count: int) -> Words:
        words, slots = np.empty((count, slots.size), np.int64), _listed(slots)
        for part in self.parts(slots.size):
            whole = part.stop - part.start == slots.size
            some = words if whole else np.empty((count, part.stop - part.start), np.int64)
            self._slots.gather(slab.array, width, first, slots[part], some)
            if not whole:
                words[:, part] = some
        return words

    def _scatter_to(self, slab: Slab, width: int, first: int, slots: Rows, values: Words) -> None:
        slots = _listed(slots)
        for part in self.parts(slots.size):
            self._slots.scatter(slab.array, width, first, slots[part], np.ascontiguousarray(values[:, part]))

    # Finding and inserting

    def add(self, keys: Keys) -> Rows:
        """Find or insert keys; return their slots."""
        return self._take(keys, mark=False)[0]

    def find(self, keys: Keys) -> Rows:
        """Return the slot of every key, -1 if it is absent."""
        slots = np.empty(len(keys), np.int64)
        given = _Given(keys)
        for part in self.parts(slots.size):
            self._rows.find_rows(self._places(), given.from_row(part.start), slots[part], self._scratch)
        return slots

    def _take(
        self, keys: Keys, *, mark: bool, born: bool = False, program: Program = NO_PROGRAM, inputs: Sources = NO_SOURCES
    ) -> tuple[Rows, Rows]:
        """Find or insert keys, and fold rows; return the slots, and those of the new records if `born`."""
        rows = len(keys)
        slots, done, new = np.empty(rows, np.int64), 0, list[Rows]()
        created = np.empty(rows if born else 0, np.int64)
        given = _Given(keys)
        if not keys.type.fixed:
            self._hold_arena(given.byte_count)
        if mark:
            self._opened.hold(int(self._control[Control.OPENED]) + rows, int(self._control[Control.OPENED]))
        end = min(rows, self.rows_max)
        while True:
            done = self._rows.take_rows(
                self._places(), given.places, slots[:end], done, int(mark), created, program, inputs, self._scratch
            )
            new.append(created[: self._control[Control.BORN]].copy())
            if done < end:
                self._make_room()
                continue
            self._memory.settle()
            if done == rows:
                return slots, np.concatenate(new)
            end = min(rows, done + self.rows_max)

    def _places(self) -> Words:
        """Return where the parts are, in the order of Place."""
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
        if control[Control.MOVED] < 0 and 2 * (control[Control.COUNT] + BLOCK_ROWS) > self._entries.array.size:
            empty = _first_empty(self._entries.array)
            self._old, self._entries = self._entries, _Entries(self._memory, 2 * self._entries.array.size)
            control[Control.OLD_BITS] = control[Control.BITS]
            control[Control.BITS] += 1
            control[Control.START], control[Control.MOVED] = empty + 1, 0

    def _hold_arena(self, more: int) -> None:
        """Make room for bytes of keys; copy the arena when most of it belongs to dropped keys."""
        used, void = int(self._control[Control.ARENA]), int(self._control[Control.VOID])
        if 2 * void > max(used, _COMPACTED_FROM):
            fresh, left = Slab(np.uint8, memory=self._memory), 0
            fresh.hold(used - void + _SLACK, 0)
            for part in self.parts(int(self._control[Control.HIGH])):
                given = self._records.array, self._control, part.start, part.stop, self._arena.array
                left = self._slots.compact_arena(*given, fresh.array, left)
            self._arena, used = fresh, left
            self._control[Control.ARENA], self._control[Control.VOID] = left, 0
        self._arena.hold(used + more + _SLACK, used)

    def _free_slots(self, slots: Rows) -> None:
        """Drop keys; their slots are used again."""
        free, slots = int(self._control[Control.FREE]), _listed(slots)
        self._free.hold(free + slots.size, free)
        for part in self.parts(slots.size):
            self._rows.free_slots(self._places(), slots[part])

    # Values of slots

    def _write(self, slots: Rows, values: Words) -> None:
        """Give slots these values, shape (columns, slots), on both sides."""
        columns = len(self.spec.columns)
        self._hold_committed()
        self._scatter_to(self._records, self._width, self._key + 1, slots, values)
        self._scatter_to(self._committed_values, columns, 0, slots, values)

    def _hold_committed(self) -> None:
        self._committed_values.hold(int(self._control[Control.HIGH]) * len(self.spec.columns))

    def _set(self, slots: Rows, clear: int, add: int = 0) -> None:
        slots = _listed(slots)
        for part in self.parts(slots.size):
            self._slots.set_flags(self._records.array, self._control, slots[part], int(clear), int(add))

    def _reset(self, slots: Rows, clear: int, add: int = 0) -> None:
        """Change flags of slots, and give them the default values."""
        slots = _listed(slots)
        for part in self.parts(slots.size):
            given = self._records.array, self._control, slots[part], self._defaults
            self._slots.reset(*given, int(clear), int(add))

    def _scan(self, wanted: int, without: int = 0) -> Rows:
        """Return the used slots with one of the flags `wanted` (0: any slot) and none of `without`."""
        found, count = np.empty(int(self._control[Control.HIGH]), np.int64), 0
        for first, end in self._sweep():
            given = self._records.array, self._control, first, end, int(wanted), int(without)
            count += self._slots.scan(*given, found[count:])
        return found[:count].copy() if 2 * count < found.size else found[:count]

    def _columns(self, words: Words) -> Columns:
        """Return the columns of values, shape (columns, n)."""
        return {column.name: _narrowed(row, column.dtype) for column, row in zip(self.spec.columns, words, strict=True)}


_FIRST_SLOTS = BLOCK_ROWS
_FIRST_ARENA = 1 << 12


def words_of(columns: Iterable[NDArray[Any]], rows: int) -> Words:
    """Return columns of values as words, shape (columns, rows)."""
    arrays = list(columns)
    words = np.zeros((len(arrays), rows), np.int64)
    for row, array in zip(words, arrays, strict=True):
        if array.dtype.kind == "f" and array.dtype.itemsize < 8:
            row[:] = array.view(f"u{array.dtype.itemsize}")
        else:
            row[:] = array.view(np.int64) if array.dtype.itemsize == 8 else array
    return words


def _narrowed(row: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values in words of one column."""
    if dtype.itemsize == 8:
        return row.view(dtype)
    return np.ascontiguousarray(row.view(dtype)[:: 8 // dtype.itemsize])


class _Entries:
    """Entries of an index; the system hands their memory out when they are written."""

    __slots__ = ("address", "array")

    def __init__(self, memory: Memory, size: int) -> None:
        self.array = memory.zeros(size)
        self.address = self.array.ctypes.data


class _Given:
    """The keys of a batch as kernels read them, kept alive."""

    def __init__(self, keys: Keys) -> None:
        if keys.type.fixed:
            self._kept: tuple[Words, ...] = tuple(keys.word_columns())
            starts = lengths = _NO_ROWS
            data = _NO_BYTES
        else:
            data, starts, lengths = codec.bytes_of(keys.canonical())
            starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
            self._kept = (np.ascontiguousarray(keys.hashes).view(np.int64),)
        self._bytes = starts, lengths, data
        at = addresses_of(self._kept), addresses_of((starts, lengths)), [data.ctypes.data]
        self.places = np.concatenate([[len(self._kept)], at[1], at[2], at[0]]).astype(np.int64, copy=False)
        """Where they are, in the order of Given."""
        self.byte_count = int(lengths.sum())

    def from_row(self, first: int) -> Words:
        """Return where the keys from this row on are."""
        places = self.places.copy()
        places[[Given.STARTS, Given.LENGTHS]] += 8 * first
        places[Given.FIRST :] += 8 * first
        return places


def _first_empty(entries: Words) -> int:
    """Return the first empty entry; the index is half empty, so it is near."""
    first, size = 0, 64
    while not (empty := np.flatnonzero(entries[first : first + size] == 0)).size:
        first, size = first + size, 2 * size
    return first + int(empty[0])


def _listed(slots: Rows) -> Rows:
    return np.ascontiguousarray(slots, np.int64)
