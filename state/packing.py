"""Which columns of a large record batch are stored as planes of bytes, and how.

A packed batch is an Arrow batch of the same schema whose buffers of values are planes (state/compiled/planes.py). That
applies to keys that are one integer, which become differences first, and to values of 64 bits. All other columns, and
the bitmaps of nulls, are stored as they are.

Invariants
    - unpacked(packed(batch)) has the rows of the batch.

Pure: no clock, thread or I/O. Format: changelog.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_KEY = "key"
_AS_THEY_ARE = ("kg", "kind", "end")


def is_packed(field: pa.Field) -> bool:
    """Return whether a packed batch has planes in this column."""
    return field.name not in _AS_THEY_ARE and pa.types.is_primitive(field.type) and bool(field.type.bit_width == 64)


def has_planes(schema: pa.Schema) -> bool:
    """Return whether a packed batch differs from the batch."""
    return any(is_packed(field) for field in schema)


def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as it is stored."""
    from holdfast.state.compiled import planes  # imports the compiler, which few commands need

    return _with_values(batch, lambda field, words: planes.planes_of(words, differences=field.name == _KEY))


def unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch that is stored as this one."""
    return _with_values(batch, lambda field, stored: values_of(stored.view(np.uint8), field))


def values_of(stored: NDArray[np.uint8], field: pa.Field) -> NDArray[np.int64]:
    """Return the values in the planes of a column, as words."""
    from holdfast.state.compiled import planes  # imports the compiler, which few commands need

    return planes.words_of(stored, differences=field.name == _KEY)


def _with_values(
    batch: pa.RecordBatch, converted: Callable[[pa.Field, NDArray[np.int64]], NDArray[Any]]
) -> pa.RecordBatch:
    """Return a batch whose columns with planes have other values, and the same nulls."""
    columns = [
        _with_data(column, converted(field, _data(column))) if is_packed(field) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.record_batch(columns, schema=batch.schema)


def _data(column: pa.Array) -> NDArray[np.int64]:
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def _with_data(column: pa.Array, data: NDArray[Any]) -> pa.Array:
    valid = pa.array(column.is_valid().to_numpy(zero_copy_only=False)).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(column.type, len(column), [valid, pa.py_buffer(data)], column.null_count)
