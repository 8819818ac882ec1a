"""Whole-array operations on the values of a column: NumPy arrays if it is plain, else Arrow arrays.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import ColumnSpec, Values


def taken(values: Values, rows: Rows) -> Values:
    """Return the values of these rows."""
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def sliced(values: Values, first: int, end: int) -> Values:
    """Return the values of rows [first, end), not copied."""
    return values[first:end] if isinstance(values, np.ndarray) else values.slice(first, end - first)


def concatenated(parts: Sequence[Values]) -> Values:
    """Return values one after another. Stored parts of a nullable column without a null may be NumPy arrays."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return pa.concat_arrays([pa.array(part, from_pandas=False) if _is_numpy(part) else part for part in parts])


def differ(one: Values, other: Values) -> NDArray[np.bool_]:
    """Return which values differ: a null equals a null, NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.asarray((one != other) & ~(np.isnan(one) & np.isnan(other)))
    left, right = arrow(one), arrow(other)
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    if pa.types.is_floating(left.type):
        unequal = pc.and_not(unequal, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    either = pc.xor(left.is_null(), right.is_null())
    return np.asarray(pc.or_(unequal, either).to_numpy(zero_copy_only=False), bool)


def arrow(values: Values) -> pa.Array:
    """Return values as an Arrow array; NaN stays NaN."""
    return pa.array(values, from_pandas=False) if _is_numpy(values) else values


def has_numpy_form(values: pa.Array) -> bool:
    """Return whether stored values have a fixed width and no null."""
    return not values.null_count and bool(pa.types.is_primitive(values.type))


def numpy(values: pa.Array) -> Values:
    """Return stored values as they are compared and merged: a NumPy array, if they have that form."""
    if not has_numpy_form(values):
        return values
    return np.asarray(values.to_numpy(zero_copy_only=False))


def default_of(column: ColumnSpec, rows: int) -> Values:
    """Return the value of an absent key, `rows` times."""
    if column.plain:
        return np.full(rows, column.default, column.dtype)
    return pa.nulls(rows, column.arrow) if column.nullable else pa.array([column.default] * rows, column.arrow)


def void_of(values: Values, rows: int) -> pa.Array:
    """Return values for rows that have none, like ranges in segments, never null."""
    if isinstance(values, np.ndarray):
        return pa.array(np.zeros(rows, values.dtype))
    if pa.types.is_primitive(values.type):
        return pa.array(np.zeros(rows, values.type.to_pandas_dtype()), values.type)
    return pa.array([b""] * rows, pa.large_binary()).cast(values.type)


def scalar(values: Values, row: int) -> Any:
    """Return one value as Python has it."""
    return values[row].item() if isinstance(values, np.ndarray) else values[row].as_py()


def _is_numpy(values: Values) -> bool:
    return isinstance(values, np.ndarray)
