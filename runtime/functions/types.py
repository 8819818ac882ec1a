"""Types of input columns, and how values of any of them are kept in columns of state.

Numbers, times and booleans are kept in a nullable column of fixed width; text and bytes in one of variable width;
decimals as 16 bytes, the lowest first. Values of other types are not kept.

Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.contract import StateColumn
from holdfast.state.keys.canonical import is_textual

DECIMAL_BYTES = 16


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are points in time or lengths of time."""
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether values are integers or floats of 32 or 64 bits."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind.bit_width >= 32))


def is_decimal(kind: pa.DataType) -> bool:
    """Return whether values are decimals of up to 38 digits."""
    return bool(pa.types.is_decimal128(kind))


def is_kept(kind: pa.DataType) -> bool:
    """Return whether values of a type can be kept, and compared."""
    return is_number(kind) or is_time(kind) or is_textual(kind) or is_decimal(kind) or bool(pa.types.is_boolean(kind))


def plain_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the type in which a value of fixed width is kept; times and dates as the integers behind them."""
    if is_time(kind):
        return np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def value_column(kind: pa.DataType) -> StateColumn:
    """Return the column of state for a value of a type, or null."""
    if is_textual(kind):
        return StateColumn(kind, nullable=True)
    if is_decimal(kind):
        return StateColumn(pa.large_binary(), nullable=True)
    return StateColumn(plain_dtype(kind), nullable=True)


def stored(values: pa.Array) -> pa.Array:
    """Return values as their column of state holds them."""
    kind = values.type
    if is_decimal(kind):
        return as_bytes(values).cast(pa.large_binary())
    if is_textual(kind):
        return values.cast(pa.large_utf8() if pa.types.is_string(kind) else _large(kind))
    return values if pa.types.is_boolean(kind) else values.view(pa.from_numpy_dtype(plain_dtype(kind)))


def loaded(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a column of state in the type that they had."""
    if isinstance(values, np.ndarray):
        values = pa.array(values, from_pandas=False)
    if is_decimal(kind):
        return as_decimals(values.cast(pa.binary(DECIMAL_BYTES)), kind)
    if is_textual(kind):
        return values if values.type == kind else values.cast(kind)
    return values if values.type == kind else values.view(kind)


def as_bytes(values: pa.Array) -> pa.Array:
    """Return decimals as 16 bytes each, not copied."""
    return pa.Array.from_buffers(pa.binary(DECIMAL_BYTES), len(values), values.buffers(), offset=values.offset)


def as_decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what `as_bytes` returned as decimals."""
    return pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)


def _large(kind: pa.DataType) -> pa.DataType:
    return pa.large_utf8() if pa.types.is_large_string(kind) else pa.large_binary()


def canonical(values: pa.Array) -> pa.Array:
    """Return values with one form of zero and of NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    return pa.array(numbers, values.type, from_pandas=False)
