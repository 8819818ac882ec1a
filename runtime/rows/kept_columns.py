"""Columns of a stream as columns of state, for operators that keep whole rows.

State has numbers, booleans, text and bytes (docs/decisions/0040). Times and dates are kept as their integers, decimals
as their bytes, nested columns as bytes in MessagePack (nested/packed.py; docs/decisions/0118).

Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.runtime.rows.nested.packed import is_packed, packed, unpacked
from holdfast.state.tables.spec import ColumnSpec, Values

_LARGE = {pa.string_view(): pa.large_utf8(), pa.binary_view(): pa.large_binary()}


def kept_column(field: pa.Field, name: str) -> ColumnSpec | None:
    """Return the state column that keeps the values of a stream's column; None if state cannot keep them."""
    kind = field.type
    if _is_text(kind):
        return ColumnSpec(name, _LARGE.get(kind, kind), None, nullable=field.nullable)
    if _width(kind) is not None or is_packed(kind):
        return ColumnSpec(name, pa.large_binary(), None, nullable=field.nullable)
    if (stored := _integer(kind) or _number(kind)) is None:
        return None
    dtype = np.dtype(stored.to_pandas_dtype())
    return ColumnSpec(name, dtype, None if field.nullable else dtype.type(0).item(), nullable=field.nullable)


def to_state(values: pa.Array, column: ColumnSpec) -> Values:
    """Return values of a stream's column as those of the state column that keeps them."""
    kind = values.type
    if pa.types.is_nested(kind):
        return packed(values)
    if (width := _width(kind)) is not None:
        values = pa.Array.from_buffers(
            pa.binary(width), len(values), values.buffers(), values.null_count, values.offset
        )
    elif (integer := _integer(kind)) is not None:
        values = values.view(integer)
    if not column.plain:
        return values.cast(column.arrow)
    return np.asarray(values.to_numpy(zero_copy_only=False), column.dtype)


def from_state(values: Values, kind: pa.DataType) -> pa.Array:
    """Return values of a state column as those of the stream's column of this type that it keeps."""
    array = pa.array(values, from_pandas=False) if isinstance(values, np.ndarray) else values
    if pa.types.is_nested(kind):
        return unpacked(array, kind)
    if (width := _width(kind)) is not None:
        fixed = array.cast(pa.binary(width))
        return pa.Array.from_buffers(kind, len(fixed), fixed.buffers(), fixed.null_count, fixed.offset)
    if _integer(kind) is not None:
        return array.view(kind)
    return array if array.type == kind else array.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind in _LARGE)


def _width(kind: pa.DataType) -> int | None:
    """Return how many bytes a value has, of a type that is kept as bytes of a fixed number."""
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return None


def _integer(kind: pa.DataType) -> pa.DataType | None:
    """Return the integers as which times and dates are kept."""
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return None
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _number(kind: pa.DataType) -> pa.DataType | None:
    number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if number else None
