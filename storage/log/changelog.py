"""A changelog: a log whose records put and delete rows by key; the first column holds the operation.

A delete record holds its key and the mark alone. So every column but the key may be null, whatever the rows allow, and
a put of nothing but nulls is still a put.

Invariants
    - The mark is the first column of every segment and is never null; key columns are never null.
    - A delete record has no value.

Pure.
Source: docs/decisions/0052-changelogs-in-logs.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DELETED = pa.field("holdfast_deleted", pa.bool_(), nullable=False)
"""The mark: whether the record deletes the row of its key. It is first, so that columns can be added after."""


def record_schema(rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the columns of the records that put and delete rows with these columns."""
    return pa.schema([DELETED, *(pa.field(f.name, f.type, f.name not in key) for f in rows)])


def row_schema(records: pa.Schema) -> pa.Schema:
    """Return the columns of the rows: those of the records without the mark."""
    return pa.schema(list(records)[1:])


def problem_of(records: pa.Schema, key: Sequence[str]) -> str | None:
    """Return why no changelog can have these columns and this key; None if one can."""
    if not key:
        return "a changelog needs a key, by which its records put and delete rows"
    if odd := [field for field in records if field.name in key and not _can_be_key(field.type)]:
        return f"the column {odd[0].name!r} of type {odd[0].type} cannot be a key"
    if records.names.count(DELETED.name) > 1:
        return f"a row has the column {DELETED.name!r}, which marks the records of a changelog"
    if records.names[:1] != [DELETED.name] or records != record_schema(row_schema(records), key):
        return "the columns are not those of a changelog: the mark, a key without nulls, and values that may be null"
    return None


def _can_be_key(kind: pa.DataType) -> bool:
    """Return whether a value chooses a partition; see partitioning.py."""
    return any(
        of_kind(kind)
        for of_kind in (
            *(pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp),
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        )
    )


def deletes(records: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which records are deletes."""
    return np.asarray(records.column(0).to_numpy(zero_copy_only=False), np.bool_)


def puts_and_deletes(rows: pa.Table, deleted: pa.ChunkedArray, key: Sequence[str]) -> pa.Table:
    """Return rows as records; a record that deletes gets no value.

    Args:
        rows: Key and values; the values of deleted rows do not matter.
        deleted: Whether a row is deleted; without nulls.
    """
    schema = record_schema(rows.schema, key)
    columns = rows.columns
    if pc.any(deleted, min_count=0).as_py():
        # A null as the index gives a null of any type.
        places = pa.array(np.arange(rows.num_rows), mask=deleted.to_numpy())
        columns = [
            column if name in key else column.take(places)
            for name, column in zip(rows.schema.names, columns, strict=True)
        ]
    return pa.Table.from_arrays([deleted, *columns], schema=schema)


def misplaced_value(records: pa.Table, key: Sequence[str]) -> str | None:
    """Return which delete record has a value; None if none has."""
    delete_flags = records.column(0)
    if not pc.any(delete_flags, min_count=0).as_py():
        return None
    for name in records.schema.names[1:]:
        if name in key:
            continue
        wrong = pc.and_(delete_flags, records.column(name).is_valid())
        if (row := pc.index(wrong, True).as_py()) >= 0:
            return f"row {row + 1} deletes its key, but column {name!r} has a value"
    return None
