"""How the values of a record lie in its words, and the bytes of those that have a variable width.

A value of fixed width is one word. One of variable width is two, offset and length in the arena. Words of null bits
come last, if a column is nullable. Records of a table of plain columns are one word per column, and have no arena.

Invariants
    - The arena is only appended to. Offset 0 is the empty value, and no two other values begin at the same offset.
    - A null has zeros in its words of fixed width, and the empty value otherwise.

Pure: no clock, thread or I/O.
Source: docs/decisions/0040-values-of-any-width.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.compiled.sources import Words
from holdfast.state.tables.placing import Reached, parts
from holdfast.state.tables.slab import Memory, Slab
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, Values
from holdfast.state.tables.values import arrow, default_of

NULLS_PER_WORD = 63
"""One bit less than a word has, so that no mask is negative."""
_SLACK = 8
_FIRST_BYTES = 1 << 12
_EMPTY_AT = 0
_NO_WORDS: Words = np.empty(0, np.int64)

Copy = Callable[[NDArray[np.uint8], Words, Words, Words, NDArray[np.uint8]], None]
"""The kernel copy_bytes."""


class Arena:
    """Bytes of values of variable width.

    Args:
        copy: The kernel that copies byte strings.
        memory: Where the bytes get their room.
        size: Bytes to make room for.
    """

    def __init__(self, copy: Copy, memory: Memory, size: int = _FIRST_BYTES) -> None:
        self._copy, self._memory, self._bytes = copy, memory, Slab(np.uint8, first=size + _SLACK, memory=memory)
        self.used = _EMPTY_AT + 1

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes, with the reserved room after them."""
        return self._bytes.array

    def adopt(self, data: Slab, used: int) -> None:
        """Take other bytes in place of these."""
        self._bytes, self.used = data, used

    def append(self, values: pa.Array) -> tuple[Words, Words]:
        """Append the bytes of large_utf8 or large_binary values; return their offsets and lengths."""
        if not len(values):
            return _NO_WORDS, _NO_WORDS
        offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
        first, end = int(offsets[0]), int(offsets[-1])
        lengths = np.diff(offsets)
        if values.null_count:
            lengths[values.is_null().to_numpy(zero_copy_only=False)] = 0
        starts = np.where(lengths == 0, _EMPTY_AT, offsets[:-1] - first + self.used)
        self._bytes.hold(self.used + end - first + _SLACK, self.used)
        if end > first:
            self._bytes.array[self.used : self.used + end - first] = np.frombuffer(
                values.buffers()[2], np.uint8, end - first, first
            )
        self.used += end - first
        return starts, lengths

    def take_from(self, other: Arena, starts: Words, lengths: Words) -> Words:
        """Copy values of another arena; return their offsets here."""
        ends = self.used + np.cumsum(lengths)
        total = int(ends[-1]) if ends.size else self.used
        self._bytes.hold(total + _SLACK, self.used)
        self._copy(other._bytes.array, starts, lengths, ends - lengths, self._bytes.array)
        self.used = total
        return np.where(lengths == 0, _EMPTY_AT, ends - lengths)

    def read(self, starts: Words, lengths: Words) -> tuple[Words, NDArray[np.uint8]]:
        """Return a copy of values, one after another: where each begins and the last ends, and the bytes."""
        starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
        edges = np.zeros(starts.size + 1, np.int64)
        np.cumsum(lengths, out=edges[1:])
        data = np.empty(int(edges[-1]), np.uint8)
        for part in parts(self._memory, Reached(self._bytes.address, starts, 1, write=False)):
            self._copy(self._bytes.array, starts[part], lengths[part], edges[:-1][part].copy(), data)
        return edges, data


class ValueWords:
    """Where every column of a table lies among the words of a record's values."""

    def __init__(self, spec: TableSpec) -> None:
        self.columns, self.plain = spec.columns, spec.plain
        self.at: dict[str, int] = {}
        """The first word of every column."""
        count = 0
        for column in spec.columns:
            self.at[column.name] = count
            count += 2 if column.varying else 1
        nullable = [column.name for column in spec.columns if column.nullable]
        self.null_bit = {name: (count + i // NULLS_PER_WORD, i % NULLS_PER_WORD) for i, name in enumerate(nullable)}
        """The word and the number of every column's null bit."""
        self.count = count + -(-len(nullable) // NULLS_PER_WORD)
        self.varying = tuple(self.at[column.name] for column in spec.columns if column.varying)
        """The first words of the columns of variable width."""

    def defaults(self) -> Words:
        """Return the words of an absent key."""
        if self.plain:
            return words_of([np.array([column.default], column.dtype) for column in self.columns], 1)[:, 0].copy()
        defaults = {column.name: default_of(column, 1) for column in self.columns}
        return self.pack(defaults, 1, None)[:, 0].copy()

    def pack(self, columns: Columns, rows: int, arena: Arena | None) -> Words:
        """Return columns as words, shape (count, rows); bytes are appended to the arena."""
        if self.plain:
            return words_of((columns[column.name] for column in self.columns), rows)
        words = np.zeros((self.count, rows), np.int64)
        for column in self.columns:
            self.pack_column(column, columns[column.name], words, arena)
        return words

    def pack_column(self, column: ColumnSpec, values: Values, words: Words, arena: Arena | None) -> None:
        """Write one column into the words of its rows, whose bits of null are not set; shape (count, rows)."""
        at = self.at[column.name]
        if column.plain:
            words[at] = words_of([np.asarray(values, column.dtype)], len(values))[0]
            return
        array = _of_type(column, values)
        if column.varying:
            assert column.nullable or not array.null_count, f"a null in the state column {column.name!r}"
            if arena is not None:  # without one, only empty values are packed
                words[at], words[at + 1] = arena.append(array)
        else:
            whole = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
            words[at] = words_of([whole.to_numpy(zero_copy_only=False)], len(array))[0]
        if column.nullable and array.null_count:
            word, bit = self.null_bit[column.name]
            words[word] |= array.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << bit

    def unpack(self, words: Words, arena: Arena | None) -> Columns:
        """Return the columns of words, shape (count, n); values of variable width are copied."""
        if self.plain:
            return {c.name: narrowed(row, np.dtype(c.dtype)) for c, row in zip(self.columns, words, strict=True)}
        return {column.name: self.unpack_column(column, words, arena) for column in self.columns}

    def unpack_column(self, column: ColumnSpec, words: Words, arena: Arena | None) -> Values:
        """Return one column of words, shape (count, n)."""
        at, null = self.at[column.name], None
        if column.nullable:
            word, bit = self.null_bit[column.name]
            null = (words[word] >> bit & 1) != 0
            null = null if null.any() else None
        if column.varying:
            assert arena is not None
            return _strings(column.arrow, *arena.read(words[at], words[at + 1]), null)
        values = narrowed(words[at], np.dtype(column.dtype))
        return pa.array(values, column.arrow, mask=null, from_pandas=False) if column.nullable else values


def words_of(columns: Iterable[NDArray[Any]], rows: int) -> Words:
    """Return columns of plain values as words, shape (columns, rows)."""
    arrays = list(columns)
    words = np.zeros((len(arrays), rows), np.int64)
    for row, array in zip(words, arrays, strict=True):
        if array.dtype.kind == "f" and array.dtype.itemsize < 8:
            row[:] = array.view(f"u{array.dtype.itemsize}")
        else:
            row[:] = array.view(np.int64) if array.dtype.itemsize == 8 else array
    return words


def narrowed(row: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values in words of one column."""
    if dtype.itemsize == 8:
        return row.view(dtype)
    return np.ascontiguousarray(row.view(dtype)[:: 8 // dtype.itemsize])


def _of_type(column: ColumnSpec, values: Values) -> pa.Array:
    given = arrow(values)
    return given if given.type == column.arrow else given.cast(column.arrow)


def _strings(kind: pa.DataType, edges: Words, data: NDArray[np.uint8], null: NDArray[np.bool_] | None) -> pa.Array:
    validity = None if null is None else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(kind, edges.size - 1, [validity, pa.py_buffer(edges), pa.py_buffer(data)])
