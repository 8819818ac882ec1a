"""Values of a resident table's records: working and committed ones, of fixed width and of any.

words.py defines how values lie in the words of a record, indexed.py how a record is found.

Invariants
    - Committed values are in a second slab with the same slots. They mean something only while COMMITTED is set.
    - Words of working, committed and frozen values name bytes of one arena; the code that moves bytes rewrites all
      three.

Pure: no clock, thread or I/O.
Source: docs/decisions/0036-records-and-kernels.md, docs/decisions/0040-values-of-any-width.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.state.compiled.sources import Words
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables import indexed
from holdfast.state.tables.indexed import (
    NO_PROGRAM,
    PART_ROWS_MIN,
    IndexedRecords,
    Program,
    listed,
    slots_in,
)
from holdfast.state.tables.kernels.layout import PROGRAM_FIELDS, Control, Do, Flag
from holdfast.state.tables.placing import Reached, parts
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import VALUE_BYTES_MAX, Columns, ColumnSpec, Values
from holdfast.state.tables.words import Arena, narrowed, words_of

__all__ = ["NO_PROGRAM", "PART_ROWS_MIN", "Program", "Side", "Step", "TableRecords"]

Step = tuple[Do, str, int]
"""An operation, the column of state that it changes, and the number of its input."""
_KEY_SHOWN = 60
_NO_ROWS: Rows = np.empty(0, np.int64)


class Merging(NamedTuple):
    """How the values of several records become one."""

    program: Program
    columns: tuple[ColumnSpec, ...]
    """Plain columns, in the order of the matrix that the program fills."""


class TableRecords(IndexedRecords):
    """The keys of one operator and their values."""

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

    def merging(self, steps: Sequence[Step]) -> Merging:
        """Return the functions that merge the columns that these steps fold."""
        program = self.program((do.merging, name, number) for number, (do, name, _) in enumerate(steps))
        return Merging(program, tuple(self.spec.column(name) for _, name, _ in steps))

    def merged(self, merging: Merging, slots: Rows, groups: Rows, count: int) -> Columns | None:
        """Merge the working values of slots by group, in the order of the slots; these stay as they are.

        Args:
            groups: The group of every slot, 0 to count - 1.

        Returns:
            One value per group, the default for one without slots; None if a sum of integers left 64 bits on the way.
        """
        defaults = words_of((np.array([column.default], column.dtype) for column in merging.columns), 1)
        merged_rows, beyond = np.repeat(np.ascontiguousarray(defaults.T), count, axis=0), 0
        slots, groups = listed(slots), listed(groups)
        for part in parts(self._memory, slots_in(self._records, self._width, slots, write=False)):
            given = self._records.array, self._control, slots[part], groups[part]
            beyond |= self._merging.merge_rows(*given, merging.program, merged_rows, self._scratch)
        words = np.ascontiguousarray(merged_rows.T)
        columns = zip(merging.columns, words, strict=True)
        return None if beyond else {column.name: narrowed(row, np.dtype(column.dtype)) for column, row in columns}

    def _committed_of(self, slots: Rows, *, write: bool) -> Reached:
        return slots_in(self._committed_values, self._values.count, slots, write)

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

    def key_columns(self, slots: Rows) -> list[Any]:
        """Return the key columns of slots."""
        return self.spec.key.decode(self.keys_at(slots))

    def read(self, name: str, slots: Rows) -> pa.Array:
        """Return the working values of slots as an Arrow array, a copy; for columns that are not plain."""
        column = self.spec.column(name)
        words = self._gather(np.array(slots, np.int64), self._key + 1, self._values.count)
        values: pa.Array = self._values.unpack_column(column, words, self._bytes)
        return values

    def read_columns(self, names: Iterable[str], slots: Rows) -> Columns:
        """Return the working values of slots in several columns, copies: NumPy arrays of plain columns, else Arrow."""
        words = self._gather(np.array(slots, np.int64), self._key + 1, self._values.count)
        return {name: self._values.unpack_column(self.spec.column(name), words, self._bytes) for name in names}

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
        bits, word_mask = dict[int, int](), np.zeros(self._values.count + 2, np.int8)
        for name, values in columns.items():
            column, at = self.spec.column(name), self._values.at[name]
            self._values.pack_column(column, values, words, self._bytes)
            word_mask[at + 1 : at + (3 if column.varying else 2)] = 1
            if column.nullable:
                word, bit = self._values.null_bit[name]
                bits[word] = bits.get(word, 0) | 1 << bit
        edges = np.diff(word_mask)
        for first, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            self._scatter(slots, int(first), words[first:end])  # neighbours in one pass over the records
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

    def _hold_bytes(self, more: int) -> None:
        """Compact the arena of values before bytes are appended, if it has grown enough since it was examined."""
        if self._bytes is not None and self._bytes.used + more > self._bytes_checked_at:
            self._compact_bytes()

    def _compact_bytes(self) -> None:
        """Copy the arena of values if most of it belongs to no value any longer."""
        arena = self._bytes
        if arena is None or arena.used <= indexed.COMPACTED_FROM:
            return
        live, _ = self._followed(arena, None)
        if 2 * live < arena.used:
            fresh = Arena(self._slots.copy_bytes, self._memory)
            # Words are rewritten only after every byte was copied: memory may run out before.
            for side, moved in self._followed(arena, fresh)[1]:
                side.starts[side.rows] = moved
            self._bytes = arena = fresh
        # Until the live bytes have doubled, less than half is void, unless values went: the share bounds that work.
        self._bytes_checked_at = max(2 * live, arena.used + max(indexed.COMPACTED_FROM, arena.used // 4))

    def _followed(self, arena: Arena, fresh: Arena | None) -> tuple[int, list[tuple[Side, Words]]]:
        """Follow all words that name bytes of the arena; copy the bytes to a fresh one if it is given.

        Bytes that two sides of a slot share are copied once.

        Returns:
            How many bytes are named, and the offset in the fresh arena for every row of every side.
        """
        live, moves, high = 0, list[tuple[Side, Words]](), int(self._control[Control.HIGH])
        for at in self._values.varying:
            earlier_sides = list[tuple[Words, Words]]()
            for side in self._sides(at):
                starts, lengths = side.starts[side.rows], side.lengths[side.rows]
                new_starts, own = np.zeros_like(starts), starts != 0
                for old, new in earlier_sides:
                    shared = own & (old[side.slots] == starts)
                    new_starts[shared] = new[side.slots[shared]]
                    own &= ~shared
                live += int(lengths[own].sum())
                if fresh is not None:
                    new_starts[own] = fresh.take_from(arena, starts[own], lengths[own])
                old_of, new_of = np.zeros(high, np.int64), np.zeros(high, np.int64)
                old_of[side.slots], new_of[side.slots] = starts, new_starts
                earlier_sides.append((old_of, new_of))
                moves.append((side, new_starts))
        return live, moves

    def _sides(self, at: int) -> Iterator[Side]:
        """Yield where offsets and lengths of a column are that are still needed: working, then committed values."""
        self._hold_committed()
        high, values = int(self._control[Control.HIGH]), self._values.count
        records = self._records.array[: high * self._width].reshape(high, self._width)
        committed_values = self._committed_values.array[: high * values].reshape(high, values)
        states, first = records[:, self._key], self._key + 1 + at
        used, known = np.flatnonzero(states), np.flatnonzero(states & int(Flag.COMMITTED))
        yield Side(records[:, first], records[:, first + 1], used, used)
        yield Side(committed_values[:, at], committed_values[:, at + 1], known, known)

    def _set(self, slots: Rows, clear: int, add: int = 0) -> None:
        slots = listed(slots)
        for part in self.parts_of(slots):
            self._slots.set_flags(self._records.array, self._control, slots[part], int(clear), int(add))

    def _reset(self, slots: Rows, clear: int, add: int = 0) -> None:
        """Change flags of slots, and give them the default values."""
        slots = listed(slots)
        for part in self.parts_of(slots):
            given = self._records.array, self._control, slots[part], self._defaults
            self._slots.reset(*given, int(clear), int(add))

    def _scan(self, wanted: int, without: int = 0) -> Rows:
        """Return the used slots with one of the flags `wanted` (0: any slot) and none of `without`."""
        slots, count = np.empty(int(self._control[Control.HIGH]), np.int64), 0
        for first, end in self._sweep():
            given = self._records.array, self._control, first, end, int(wanted), int(without)
            count += self._slots.scan(*given, slots[count:])
        return slots[:count].copy() if 2 * count < slots.size else slots[:count]

    def _columns(self, words: Words) -> Columns:
        """Return the columns of values, shape (words of values, n)."""
        return self._values.unpack(words, self._bytes)


class Side(NamedTuple):
    """Words that name bytes of the arena of values: of some slots, the working, the committed or frozen ones."""

    starts: Words
    lengths: Words
    rows: Rows
    """Where the words of the slots are in the arrays."""
    slots: Rows


def _varying_bytes(columns: Mapping[str, Values]) -> int:
    """Return at least the bytes that columns of variable width append to the arena."""
    return sum(0 if isinstance(values, np.ndarray) else int(values.nbytes) for values in columns.values())
