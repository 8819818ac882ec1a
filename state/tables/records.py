"""Records and index of a resident table: one record per key, in a slab, found by a compiled index.

A record has a number, its *slot*, which it keeps until the key is dropped; the next new key takes the slot then. This
module gives kernels their memory and keys, and makes room for them; layout.py says what a record looks like, words.py
how values lie in it.

Invariants
    - A new record has default values and no flags but USED (and UNLOADED, if a cold store may hold the key).
    - Committed values are in a second slab with the same slots. They mean something only while COMMITTED is set.
    - Between two calls of Memory.settle(), kernels reach about `bytes_max` of the slabs: rows and sweeps come in parts.
    - Words of working, committed and frozen values name bytes of one arena; whoever moves them rewrites all three.

Pure: no clock, thread or I/O; the seed of the index comes from state/compiled/seed.py.
Source: docs/design/0036-records-and-kernels.md, docs/design/0040-values-of-any-width.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.state.compiled import seed
from holdfast.state.compiled.sources import NO_SOURCES, Sources, Words, addresses_of
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.kernels.layout import BLOCK_ROWS, PROGRAM_FIELDS, SCRATCH_GAP, Control, Do, Flag, Given
from holdfast.state.tables.slab import PLAIN, RESERVED, Memory, Rows, Slab
from holdfast.state.tables.spec import VALUE_BYTES_MAX, Columns, TableSpec, Values
from holdfast.state.tables.words import Arena, ValueWords, narrowed

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
_KEY_SHOWN = 60
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_BYTES = np.zeros(_SLACK, np.uint8)


class Records:
    """The keys of one operator and their values.

    Args:
        memory: Where slabs and index get their room.
    """

    def __init__(self, spec: TableSpec, memory: Memory = PLAIN) -> None:
        from holdfast.state.tables.kernels import index, rows, slots  # imports the compiler, which few commands need

        self.spec, self._memory = spec, memory
        self._index, self._rows, self._slots = index, rows, slots
        self._key = spec.key.word_count if spec.key.fixed else TEXT_WORDS
        self._values = ValueWords(spec)
        width = self._key + 1 + self._values.count
        self._width = width + 1 if width % _LINE_WORDS == _LINE_WORDS - 1 else width
        self._defaults = self._values.defaults()
        self._defaults_at = self._defaults.ctypes.data
        self._scratch = np.empty((BLOCK_ROWS + SCRATCH_GAP) * (self._key + 5), np.int64)
        self._clear()

    def _clear(self) -> None:
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
        self._bytes_checked_at = _COMPACTED_FROM

    def __len__(self) -> int:
        """The number of keys in memory, present and absent."""
        return int(self._control[Control.COUNT])

    @property
    def nbytes(self) -> int:
        """Bytes in memory: records, committed values, index, arena, lists of slots."""
        control, values = self._control, self._values.count
        high, lists = int(control[Control.HIGH]), int(control[Control.OPENED] + control[Control.FREE])
        index = self._entries.array.nbytes + (self._old.array.nbytes if control[Control.MOVED] >= 0 else 0)
        arenas = int(control[Control.ARENA]) + (0 if self._bytes is None else self._bytes.used)
        return 8 * (high * (self._width + values) + lists) + index + arenas

    def column(self, name: str) -> NDArray[Any]:
        """Return the working values of a plain column by slot, to read.

        They are valid until the next slots(), which may move them.
        """
        values = self._writable(name)
        values.setflags(write=False)
        return values

    def _writable(self, name: str) -> NDArray[Any]:
        column, at = self.spec.column(name), self._values.at[name]
        assert column.plain, "values that are not plain are read and written as Arrow arrays"
        dtype, high = np.dtype(column.dtype), int(self._control[Control.HIGH])
        # The value of a narrow column is the low bytes of its word, which come first.
        return np.ndarray((high,), dtype, self._records.array, 8 * (self._key + 1 + at), (8 * self._width,))

    def program(self, steps: Iterable[Step]) -> Program:
        """Return the program of these steps, ordered so that every input is read once."""
        lines = []
        for do, name, column in sorted(steps, key=lambda step: step[2]):
            column_spec, at = self.spec.column(name), self._values.at[name]
            assert column_spec.plain, "programs fold plain columns"
            dtype = np.dtype(column_spec.dtype)
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
        """Return the working values of one plain column at these slots, a copy."""
        column = self.spec.column(name)
        assert column.plain, "other columns are read()"
        return narrowed(self._gather(slots, self._key + 1 + self._values.at[name], 1)[0], np.dtype(column.dtype))

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
        used, void = int(self._control[Control.ARENA]), int(self._control[Control.VOID])
        if 2 * void > max(used, _COMPACTED_FROM):
            self._keys_move()
            fresh, left = Slab(np.uint8, memory=self._memory), 0
            fresh.hold(used - void + _SLACK, 0)
            for part in self.parts(int(self._control[Control.HIGH])):
                given = self._records.array, self._control, part.start, part.stop, self._arena.array
                left = self._slots.compact_arena(*given, fresh.array, left)
            self._arena, used = fresh, left
            self._control[Control.ARENA], self._control[Control.VOID] = left, 0
        self._arena.hold(used + more + _SLACK, used)

    def _keys_move(self) -> None:
        """Take out of the arena the keys of whatever is no record, before records name another arena."""

    def _free_slots(self, slots: Rows) -> None:
        """Drop keys; their slots are used again."""
        free, slots = int(self._control[Control.FREE]), _listed(slots)
        self._free.hold(free + slots.size, free)
        for part in self.parts(slots.size):
            self._rows.free_slots(self._places(), slots[part])

    def _shrink(self) -> None:
        """Give back room if dropped keys have left most of it empty: behind the last slot in use, and in the index."""
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

    # Values of slots

    def read(self, name: str, slots: Rows) -> pa.Array:
        """Return the working values of slots as an Arrow array, a copy; for columns that are not plain."""
        column = self.spec.column(name)
        words = self._gather(np.array(slots, np.int64), self._key + 1, self._values.count)
        values: pa.Array = self._values.unpack_column(column, words, self._bytes)
        return values

    def write(self, slots: Rows, columns: Mapping[str, Values]) -> None:
        """Give slots working values, of one or more columns; of a slot that occurs twice, the later row counts.

        The keys must be touched to exist and be dirty.

        Raises:
            JobFailed: a value is too large; nothing was written.
        """
        slots = np.array(slots, np.int64)  # kernels take no arrays that cannot be written, like those of Arrow
        self.check_sizes(slots, columns)
        self._hold_bytes(_varying_bytes(columns))
        words = np.zeros((self._values.count, slots.size), np.int64)
        bits = dict[int, int]()
        for name, values in columns.items():
            column, at = self.spec.column(name), self._values.at[name]
            self._values.pack_column(column, values, words, self._bytes)
            self._scatter(slots, at, words[at : at + (2 if column.varying else 1)])
            if column.nullable:
                word, bit = self._values.null_bit[name]
                bits[word] = bits.get(word, 0) | 1 << bit
        for word, mask in bits.items():
            kept = self._gather(slots, self._key + 1 + word, 1) & ~np.int64(mask)
            self._scatter(slots, word, kept | words[word])

    def check_sizes(self, slots: Rows, columns: Mapping[str, Values]) -> None:
        """Refuse values that are too large, before anything of their batch is written.

        Raises:
            JobFailed: with operator and key.
        """
        for name, values in columns.items():
            if not self.spec.column(name).varying or values.nbytes <= VALUE_BYTES_MAX:
                continue
            lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False))
            if lengths.max(initial=0) > VALUE_BYTES_MAX:
                row = int(lengths.argmax())
                key = ", ".join(str(column[0].as_py()) for column in self.key_columns(slots[row : row + 1]))
                raise self._too_large(f"the value of {name!r}", int(lengths[row]), key)

    def _check_keys(self, keys: Keys) -> None:
        """Refuse keys that are too large. Raises JobFailed."""
        if keys.type.fixed or keys.canonical().nbytes <= VALUE_BYTES_MAX:
            return
        lengths = codec.bytes_of(keys.canonical())[2]
        if lengths.max(initial=0) > VALUE_BYTES_MAX:
            row = int(lengths.argmax())
            key = ", ".join(str(column[0].as_py()) for column in keys.type.decode(keys.take(np.array([row]))))
            raise self._too_large("the key itself", int(lengths[row]), key)

    def _too_large(self, what: str, size: int, key: str) -> JobFailed:
        shown = key if len(key) <= _KEY_SHOWN else f"{key[:_KEY_SHOWN]}..."
        return JobFailed(
            f"operator {self.spec.name!r} cannot keep the key {shown!r}: {what} has {size:,} bytes, "
            f"and state holds at most {VALUE_BYTES_MAX:,}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step="drop or shorten such values before this operator",
            where=Where(operator=self.spec.name),
        )

    def _write(self, slots: Rows, columns: Columns, absent: Rows = _NO_ROWS) -> None:
        """Give slots these values on both sides; rows `absent` get the default values."""
        self._hold_bytes(_varying_bytes(columns))
        values = self._values.pack(columns, slots.size, self._bytes)
        if absent.size:
            values[:, absent] = self._defaults[:, None]
        self._hold_committed()
        self._scatter(slots, 0, values)
        self._scatter_to(self._committed_values, self._values.count, 0, slots, values)

    def _scatter(self, slots: Rows, first: int, words: Words) -> None:
        """Write the words first, first + 1, ... of the values of slots, shape (words, slots)."""
        self._scatter_to(self._records, self._width, self._key + 1 + first, slots, words)

    def _committed_words(self, slots: Rows, exist: NDArray[np.bool_]) -> Words:
        """Return the committed values of slots; those that do not exist have the defaults."""
        self._hold_committed()
        words = self._gather_from(self._committed_values, self._values.count, 0, slots, self._values.count)
        words[:, ~exist] = self._defaults[:, None]
        return words

    def _hold_committed(self) -> None:
        self._committed_values.hold(int(self._control[Control.HIGH]) * self._values.count)

    # The arena of values

    def _hold_bytes(self, more: int) -> None:
        """Compact the arena of values before bytes are appended, if it has grown enough since it was examined."""
        if self._bytes is not None and self._bytes.used + more > self._bytes_checked_at:
            self._compact_bytes()

    def _compact_bytes(self) -> None:
        """Copy the arena of values if most of it belongs to no value any more."""
        arena = self._bytes
        if arena is None or arena.used <= _COMPACTED_FROM:
            return
        live, _ = self._followed(arena, None)
        if 2 * live < arena.used:
            fresh = Arena(self._slots.copy_bytes, self._memory)
            # Words are rewritten only after every byte was copied: memory may run out before.
            for side, moved in self._followed(arena, fresh)[1]:
                side.starts[side.rows] = moved
            self._bytes = arena = fresh
        # Until the live bytes have doubled, less than half is void, unless values went: the share bounds that work.
        self._bytes_checked_at = max(2 * live, arena.used + max(_COMPACTED_FROM, arena.used // 4))

    def _followed(self, arena: Arena, fresh: Arena | None) -> tuple[int, list[tuple[Side, Words]]]:
        """Follow all words that name bytes of the arena; copy the bytes to a fresh one if it is given.

        Bytes that two sides of a slot share are copied once.

        Returns:
            How many bytes are named, and the offset in the fresh arena for every row of every side.
        """
        live, moves, high = 0, list[tuple[Side, Words]](), int(self._control[Control.HIGH])
        for at in self._values.varying:
            known = list[tuple[Words, Words]]()
            for side in self._sides(at):
                starts, lengths = side.starts[side.rows], side.lengths[side.rows]
                moved, own = np.zeros_like(starts), starts != 0
                for old, new in known:
                    shared = own & (old[side.slots] == starts)
                    moved[shared] = new[side.slots[shared]]
                    own &= ~shared
                live += int(lengths[own].sum())
                if fresh is not None:
                    moved[own] = fresh.take_from(arena, starts[own], lengths[own])
                old_of, new_of = np.zeros(high, np.int64), np.zeros(high, np.int64)
                old_of[side.slots], new_of[side.slots] = starts, moved
                known.append((old_of, new_of))
                moves.append((side, moved))
        return live, moves

    def _sides(self, at: int) -> Iterator[Side]:
        """Yield where offsets and lengths of a column are that are still needed: working, then committed values."""
        self._hold_committed()
        high, values = int(self._control[Control.HIGH]), self._values.count
        records = self._records.array[: high * self._width].reshape(high, self._width)
        committed = self._committed_values.array[: high * values].reshape(high, values)
        states, first = records[:, self._key], self._key + 1 + at
        used, known = np.flatnonzero(states), np.flatnonzero(states & int(Flag.COMMITTED))
        yield Side(records[:, first], records[:, first + 1], used, used)
        yield Side(committed[:, at], committed[:, at + 1], known, known)

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
        """Return the columns of values, shape (words of values, n)."""
        return self._values.unpack(words, self._bytes)


_FIRST_SLOTS = BLOCK_ROWS
_SHRUNK_FROM = 1 << 14
"""Slots of the smallest table that gives room back."""
_FIRST_ARENA = 1 << 12


class Side(NamedTuple):
    """Words that name bytes of the arena of values: of some slots, the working, the committed or frozen ones."""

    starts: Words
    lengths: Words
    rows: Rows
    """Where the words of the slots are in the arrays."""
    slots: Rows


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


def _varying_bytes(columns: Mapping[str, Values]) -> int:
    """Return at least the bytes that columns of variable width append to the arena."""
    return sum(0 if isinstance(values, np.ndarray) else int(values.nbytes) for values in columns.values())


def _first_empty(entries: Words) -> int:
    """Return the first empty entry; the index is half empty, so it is near."""
    first, size = 0, 64
    while not (empty := np.flatnonzero(entries[first : first + size] == 0)).size:
        first, size = first + size, 2 * size
    return first + int(empty[0])


def _listed(slots: Rows) -> Rows:
    return np.ascontiguousarray(slots, np.int64)
