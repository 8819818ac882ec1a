"""Which columns of a large block are stored as planes of bytes, and how.

A packed column is an Arrow column of the same type whose buffer of values is planes (state/compiled/planes.py). Keys
that are one integer, which become differences first, and values of 64 bits can be packed. All other columns, and the
bitmaps of nulls, are stored as they are.

Invariants
    - unpacked(packed(batch, names), names) has the rows of the batch.

Pure: no clock, thread or I/O. Format: changelog.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SAMPLED_ROWS = 1 << 13
"""Rows of a block by which its packed columns are chosen."""
PACKED_SHARE_MAX, LARGER_MAX = 15 / 16, 9 / 8
"""A column is not packed if its sample hardly shrinks, since it is faster to read as it is; nor if it becomes this much
larger than unpacked. Up to there, planes are packed and read faster than a few bytes are worth."""
_KEY = "key"
_AS_THEY_ARE = ("kg", "kind", "end")


def packed_columns(batch: pa.RecordBatch) -> tuple[str, ...]:
    """Return the columns to pack in a block that begins with this batch."""
    sample = batch.slice(0, SAMPLED_ROWS)
    able = [field.name for field in batch.schema if _can_be_packed(field)]
    stored = packed(sample, able)
    return tuple(name for name in able if _is_worth_it(sample.column(name), stored.column(name)))


def packed(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Return the batch as it is stored, with planes in these columns."""
    from holdfast.state.compiled import planes  # imports the compiler, which few commands need

    return _with_values(batch, names, lambda name, words: planes.planes_of(words, differences=name == _KEY))


def unpacked(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Return the batch that is stored as this one."""
    return _with_values(batch, names, lambda name, stored: values_of(stored.view(np.uint8), name))


def values_of(stored: NDArray[np.uint8], name: str) -> NDArray[np.int64]:
    """Return the values in the planes of a column, as words."""
    from holdfast.state.compiled import planes  # imports the compiler, which few commands need

    return planes.words_of(stored, differences=name == _KEY)


def _can_be_packed(field: pa.Field) -> bool:
    return field.name not in _AS_THEY_ARE and pa.types.is_primitive(field.type) and bool(field.type.bit_width == 64)


def _is_worth_it(plain: pa.Array, stored: pa.Array) -> bool:
    codec = pa.Codec("zstd", compression_level=1)
    unpacked_size, packed_size = (codec.compress(pa.py_buffer(_data(column))).size for column in (plain, stored))
    return bool(packed_size <= min(LARGER_MAX * unpacked_size, PACKED_SHARE_MAX * 8 * len(plain)))


def _with_values(
    batch: pa.RecordBatch, names: Collection[str], converted: Callable[[str, NDArray[np.int64]], NDArray[Any]]
) -> pa.RecordBatch:
    """Return a batch with other values in these columns, and the same nulls."""
    columns = [
        _with_data(column, converted(name, _data(column))) if name in names else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.record_batch(columns, schema=batch.schema)


def _data(column: pa.Array) -> NDArray[np.int64]:
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def _with_data(column: pa.Array, data: NDArray[Any]) -> pa.Array:
    valid = pa.array(column.is_valid().to_numpy(zero_copy_only=False)).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(column.type, len(column), [valid, pa.py_buffer(data)], column.null_count)
