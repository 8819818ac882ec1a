"""Adapts rows of an earlier declaration of an operator to its present declaration.

Segments name the columns of state by *field id*, which a column keeps for the operator's life, whatever its name in
the code. A table names them by name. Everything that comes from a segment into a table passes here.

Invariants
    - A value is read by the column that wrote it, or by none: ids are never reused.
    - Only differences that the declaration explains are adapted: a column added later may be missing, a retired one
      present, a narrower type cast, a column become nullable. All others are refused, and so is a null in a column
      that forbids it.
    - A row without values has none afterwards: its extreme is the default of the present type.
    - A wider key has the same canonical bytes, hash and key group.

Pure: no clock, thread or I/O.
Source: docs/decisions/0038-schema-evolution.md, docs/decisions/0040-values-of-any-width.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from holdfast.errors import ConfigError
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, Values
from holdfast.state.tables.values import arrow, default_of


def declaration(spec: TableSpec) -> str:
    """Return a hash of everything that decides how rows of a table are packed; names of columns do not."""
    key = [f"{kind}{'?' if null else ''}" for kind, null in zip(spec.key.types, spec.key.nullable, strict=True)]
    columns = [f"{column.id}:{column.type_name}" for column in spec.columns]
    unrouted = f"{spec.key.unrouted}+{spec.key.suffix}" if spec.key.suffix else str(spec.key.unrouted)
    return xxhash.xxh3_64_hexdigest("\0".join([unrouted, *key, "", *columns]).encode())


def by_name(delta: OperatorDelta, spec: TableSpec) -> OperatorDelta:
    """Return a segment's delta as the table of the present declaration takes it.

    Raises:
        ConfigError: the declaration does not explain a difference.
    """
    names = {column.id: column.name for column in spec.columns}
    given = adapted(delta, spec)
    return given if all(old == new for old, new in names.items()) else given.renamed(names)


def adapted(delta: OperatorDelta, spec: TableSpec) -> OperatorDelta:
    """Return a segment's delta with the columns and key of the present declaration, under their ids.

    Raises:
        ConfigError: the declaration does not explain a difference.
    """
    assert delta.operator == spec.operator
    declared = {column.id: column for column in spec.columns}
    same_columns = delta.columns.keys() == declared.keys()
    if delta.keys.type == spec.key and same_columns and all(_fits(v, declared[n]) for n, v in delta.columns.items()):
        return delta
    named = columns_by_name(delta.columns, len(delta.keys), spec)
    columns = {column.id: named[column.name] for column in spec.columns}
    return replace(delta, keys=_keys(delta.keys, spec), columns=columns)


def widens(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Return whether every value of one type of integers or floats is one of the other; equal types do not widen."""
    same = (narrow.kind in "iu" and wide.kind in "iu") or narrow.kind == wide.kind == "f"
    return same and narrow != wide and np.can_cast(narrow, wide, "safe")


def widens_key(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a key column of one type of integers may become another with the same canonical bytes."""
    if not (pa.types.is_integer(narrow) and pa.types.is_integer(wide)) or wide == pa.uint64():
        return False
    return widens(np.dtype(narrow.to_pandas_dtype()), np.dtype(wide.to_pandas_dtype()))


def column_widens(narrow: ColumnSpec, wide: ColumnSpec) -> bool:
    """Return whether every value of one column is one of the other, whose type or nullability differs."""
    if narrow.nullable and not wide.nullable:
        return False
    if narrow.varying or wide.varying:
        return bool(narrow.dtype == wide.dtype)
    return narrow.dtype == wide.dtype or widens(np.dtype(narrow.dtype), np.dtype(wide.dtype))


def _fits(values: Values, column: ColumnSpec) -> bool:
    """Return whether values conform to the declaration."""
    if isinstance(values, np.ndarray):
        return column.plain and values.dtype == column.dtype
    return not column.plain and values.type == column.arrow and (column.nullable or not values.null_count)


def columns_by_name(columns: Mapping[str, Values], rows: int, spec: TableSpec) -> Columns:
    """Return a segment's columns as the present declaration names and types them.

    Raises:
        ConfigError: the declaration does not explain a difference.
    """
    if not columns.keys() <= {column.id for column in spec.columns} | set(spec.past):
        raise unreadable(spec)
    return {column.name: _values(columns, rows, spec, column) for column in spec.columns}


def _values(columns: Mapping[str, Values], rows: int, spec: TableSpec, column: ColumnSpec) -> Values:
    stored_values = columns.get(column.id)
    if stored_values is None:
        if not column.late:
            raise unreadable(spec)
        return default_of(column, rows)
    if _fits(stored_values, column):
        return stored_values
    if not column.plain:
        return _nullable(stored_values, spec, column)
    dtype = np.dtype(column.dtype)
    if not isinstance(stored_values, np.ndarray) or not widens(stored_values.dtype, dtype):
        raise unreadable(spec)
    values = stored_values.astype(dtype)
    if column.counter:
        counter = next(each for each in spec.columns if each.name == column.counter)
        values[_values(columns, rows, spec, counter) == 0] = column.default
    return values


def _nullable(kept: Values, spec: TableSpec, column: ColumnSpec) -> pa.Array:
    """Return values of a column that is not plain. Stored values without a null may be a NumPy array."""
    array = arrow(kept)
    if column.varying or pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        raise unreadable(spec)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if array.type != column.arrow and not widens(dtype, np.dtype(column.dtype)):
        raise unreadable(spec)
    return array.cast(column.arrow)


def present_key(written: KeyType, spec: TableSpec) -> KeyType:
    """Return the key type in which keys of a segment are decoded: the present one if it is wider."""
    return spec.key if written.types != spec.key.types and _reads_keys(written, spec.key) else written


def _keys(keys: Keys, spec: TableSpec) -> Keys:
    if keys.type == spec.key:
        return keys
    if not _reads_keys(keys.type, spec.key):
        raise unreadable(spec)
    return spec.key.from_ints(keys.ints) if keys.ints is not None else spec.key.from_canonical(keys.canonical())


def _reads_keys(old: KeyType, new: KeyType) -> bool:
    same = (old.names, old.nullable, old.unrouted, old.suffix) == (new.names, new.nullable, new.unrouted, new.suffix)
    return same and all(a == b or widens_key(a, b) for a, b in zip(old.types, new.types, strict=True))


def unreadable(spec: TableSpec) -> ConfigError:
    """Return the refusal of state that the present declaration does not explain."""
    return ConfigError(
        f"the state of operator {spec.name!r} was written with different columns, keys or key groups",
        not_done="nothing was restored",
        next_step="restore the previous declaration, give the operator a new name, or drop its state",
    )
