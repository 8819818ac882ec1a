"""Whether rows differ by the rounding of floating point numbers alone.

A sum depends on the order of its additions, by some units in its last place. The order in which records of different
partitions met is not recorded.

Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RELATIVE = 1e-9
"""Numbers are close if their difference is at most this share of the larger one; a double has 16 digits."""


def close(one: pa.Array, other: pa.Array) -> bool:
    """Return whether two columns are equal, but for the rounding of numbers in them."""
    if len(one) != len(other) or one.type != other.type:
        return False
    if pa.types.is_struct(one.type):
        return one.is_null().equals(other.is_null()) and all(map(close, one.flatten(), other.flatten()))
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    if not one.is_null().equals(other.is_null()):
        return False
    left, right = (np.asarray(pc.fill_null(each, 0.0), dtype=np.float64) for each in (one, other))
    return bool(np.isclose(left, right, rtol=RELATIVE, atol=0.0, equal_nan=True).all())


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables have the same rows in any order, but for the rounding of numbers in them."""
    if one.schema.names != other.schema.names or one.num_rows != other.num_rows:
        return False
    exact = [field.name for field in one.schema if _sorts(field.type) and not pa.types.is_floating(field.type)]
    rounded = [field.name for field in one.schema if pa.types.is_floating(field.type)]
    if not rounded:
        return False
    order = [(name, "ascending") for name in (*exact, *rounded)]
    left, right = (each.sort_by(order).combine_chunks() for each in (one, other))
    return all(close(_whole(left, name), _whole(right, name)) for name in one.schema.names)


def _sorts(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
