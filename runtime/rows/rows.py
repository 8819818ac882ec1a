"""Convert Python rows and columns to record batches strictly: a value of the wrong type is an error, never a guess.

pyarrow alone would accept 1.0 as an integer, a string as bytes, a datetime as a date, and a naive datetime as UTC.

Invariants
    - A returned batch has exactly the requested schema, and no null in a column that is not nullable.
    - An error names the column and, if one value is at fault, its row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.rows.nested.fields import FieldType, Unfit, refuse_zone, takes
from holdfast.runtime.rows.nested.types import NestedPart
from holdfast.runtime.rows.schema import parts_of
from holdfast.runtime.wire.uuids import UUID
from holdfast.storage.held_values import unheld, why


class WrongRow(Exception):
    """Rows or columns that do not fit a schema; the caller, which knows their origin, turns it into its own error."""

    def __init__(self, what: str, *, column: str | None = None, row: int | None = None) -> None:
        self.what, self.column, self.row = what, column, row
        super().__init__(what)


def batch_of_rows(schema: pa.Schema, rows: Sequence[object], row_type: type | None = None) -> pa.RecordBatch:
    """Return a batch of dataclass instances, mappings or tuples.

    A mapping may leave out nullable columns; a tuple has the columns in order. Raises WrongRow.

    Args:
        schema: The columns, with the names of the dataclass's fields or those that they have in the data.
        row_type: The dataclass that the rows are to fit; None: that of the rows, if all are of one.
    """
    fields = _fields_of(row_type or _common(rows))
    row_schema, new_names = (
        schema,
        {field.name: field.attribute for field in fields.values() if field.name != field.attribute},
    )
    if new_names and any(name in schema.names for name in new_names):
        row_schema = pa.schema([each.with_name(new_names.get(each.name, each.name)) for each in schema])
        rows = [_as_named(row, new_names) for row in rows]
    values = _uniform(row_schema, rows)
    if values is None:
        values = [[] for _ in row_schema]
        for index, row in enumerate(rows):
            for column, value in zip(values, _values(row_schema, row, index), strict=True):
                column.append(value)
    types = {name: field.type for name, field in fields.items()}
    arrays = [_array(column, found, types.get(column.name)) for column, found in zip(row_schema, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _common(rows: Sequence[object]) -> type | None:
    kinds = set(map(type, rows))
    return kinds.pop() if len(kinds) == 1 else None


def _fields_of(row_type: type | None) -> Mapping[str, NestedPart]:
    """Return the fields of a dataclass by name; none if it is none, or describes no columns."""
    if row_type is None or not dataclasses.is_dataclass(row_type):
        return {}
    try:
        return {part.attribute: part for part in parts_of(row_type)}
    except ConfigError:  # rows of a dataclass of the user's own, for columns of a schema
        return {}


def _as_named(row: object, renamed: Mapping[str, str]) -> object:
    """Return a mapping with the names of the dataclass; others as they are."""
    if not isinstance(row, Mapping):
        return row
    return {renamed.get(name, name): value for name, value in row.items()}


def batch_of_columns(
    schema: pa.Schema, columns: Mapping[str, Any] | pa.RecordBatch, rows: int, *, held: bool = True
) -> pa.RecordBatch:
    """Return a batch of whole columns: Arrow or NumPy arrays, Polars series, or sequences. Raises WrongRow.

    Args:
        held: Refuse values that their column may not hold.
    """
    columns_by_name = dict(columns) if isinstance(columns, Mapping) else _columns_of(columns)
    if unknown := [name for name in columns_by_name if name not in schema.names]:
        raise WrongRow(f"column {unknown[0]!r} is not in the schema", column=str(unknown[0]))
    arrays = []
    for column in schema:
        if column.name not in columns_by_name:
            raise WrongRow(f"column {column.name!r} is missing", column=column.name)
        array = _whole_array(column, columns_by_name[column.name], held)
        if len(array) != rows:
            raise WrongRow(f"column {column.name!r} has {len(array)} values instead of {rows}", column=column.name)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _uniform(schema: pa.Schema, rows: Sequence[object]) -> list[list[Any]] | None:
    """Return the values by column, the fast way; None if rows have to be converted one by one."""
    kinds = set(map(type, rows))
    if len(kinds) != 1:
        return None
    kind, names = kinds.pop(), schema.names
    try:
        if dataclasses.is_dataclass(kind):
            return [list(map(attrgetter(name), rows)) for name in names]
        if kind is dict:
            mappings = cast(Sequence[dict[str, Any]], rows)
            if all(len(row) == len(names) for row in mappings):
                return [list(map(itemgetter(name), mappings)) for name in names]
    except (AttributeError, KeyError):
        pass  # row by row, the error names the row
    return None


def _values(schema: pa.Schema, row: object, index: int) -> Sequence[object]:
    if isinstance(row, tuple) and hasattr(row, "_asdict"):
        row = row._asdict()  # match named values by name, in any order
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        if missing := [name for name in schema.names if not hasattr(row, name)]:
            raise WrongRow(f"{type(row).__name__} has no field {missing[0]!r}", column=missing[0], row=index)
        return [getattr(row, name) for name in schema.names]
    if isinstance(row, Mapping):
        if unknown := [name for name in row if name not in schema.names]:
            raise WrongRow(f"column {unknown[0]!r} is not in the schema", row=index)
        for column in schema:
            if column.name not in row and not column.nullable:
                raise WrongRow(f"column {column.name!r} is missing", column=column.name, row=index)
        return [row.get(name) for name in schema.names]
    if isinstance(row, tuple):
        if len(row) != len(schema):
            raise WrongRow(f"a tuple has {len(row)} values for {len(schema)} columns", row=index)
        return row
    raise WrongRow(f"{type(row).__name__} is not a row; give a dataclass instance, a dict or a tuple", row=index)


def _array(column: pa.Field, values: list[Any], field: FieldType | None = None) -> pa.Array:
    if field is not None and field.limited and field.arrow == column.type:
        values = _plain(column, values, field.plain)
    elif _is_loose(column.type, values):
        values = _plain(column, values, lambda value: plain_of(column.type, value))
    for kind in set(map(type, values)):
        if kind is type(None):
            if not column.nullable:
                raise WrongRow(f"column {column.name!r} is null", column=column.name, row=values.index(None))
        elif not takes(column.type, kind):
            row = next(index for index, value in enumerate(values) if type(value) is kind)
            raise WrongRow(
                f"column {column.name!r} takes {column.type}, not {kind.__name__} {values[row]!r:.80}",
                column=column.name,
                row=row,
            )
    if pa.types.is_timestamp(column.type) or pa.types.is_time(column.type):
        for row, value in enumerate(values):
            try:
                refuse_zone(column.type, value)
            except Unfit as unfit:
                raise WrongRow(unfit.of(column.name), column=column.name, row=row) from None
    try:
        return _held(column, pa.array(values, column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
        raise _unfit(column, values, error) from error


def _plain(column: pa.Field, values: list[Any], plain: Callable[[Any], Any]) -> list[Any]:
    """Return the values as Arrow takes them. Raises WrongRow."""
    plain_values = []
    for row, value in enumerate(values):
        try:
            plain_values.append(None if value is None else plain(value))
        except Unfit as unfit:
            raise WrongRow(unfit.of(column.name), column=column.name, row=row) from None
    return plain_values


def _is_loose(kind: pa.DataType, values: list[Any]) -> bool:
    """Return whether a column without a dataclass may have values that pyarrow does not take as they are."""
    return bool(pa.types.is_nested(kind)) or any(isinstance(value, Enum | UUID) for value in values)


def _attribute(row: object, name: str) -> Any:
    return getattr(row, name, None)


def plain_of(kind: pa.DataType, value: Any) -> Any:
    """Return a value for a column of any type as Arrow takes it. Raises Unfit: it is of another type."""
    if value is None:
        return None
    if isinstance(value, UUID) and pa.types.is_string(kind):
        return str(value)
    if isinstance(value, Enum):
        value = value.value
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, Mapping) else value
        return [(key, plain_of(kind.item_type, each)) for key, each in entries]
    if pa.types.is_struct(kind) and (dataclasses.is_dataclass(value) or isinstance(value, Mapping)):
        get: Callable[[str], Any] = value.get if isinstance(value, Mapping) else partial(_attribute, value)
        return {field.name: plain_of(field.type, get(field.name)) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise Unfit(f"takes {kind}, not {type(value).__name__} {value!r:.80}")
        return [plain_of(kind.value_type, each) for each in value]
    if not takes(kind, type(value)):
        raise Unfit(f"takes {kind}, not {type(value).__name__} {value!r:.80}")
    refuse_zone(kind, value)
    return value


def _held(column: pa.Field, array: pa.Array) -> pa.Array:
    """Return the values if their column may hold them. Raises WrongRow."""
    if (found := unheld(array)) is not None:
        row = int(found.argmax())
        raise WrongRow(why(column.name, array[row]), column=column.name, row=row)
    return array


def _unfit(column: pa.Field, values: list[object], error: Exception) -> WrongRow:
    """Find the value that cannot be converted, for the message."""
    for row, value in enumerate(values):
        try:
            pa.array([value], column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
            return WrongRow(
                f"column {column.name!r} takes {column.type}, which cannot hold {value!r:.80}",
                column=column.name,
                row=row,
            )
    return WrongRow(f"column {column.name!r}: {error}", column=column.name)


def _whole_array(column: pa.Field, values: Any, held: bool) -> pa.Array:
    try:
        if hasattr(values, "to_arrow"):
            values = values.to_arrow()
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            array = values if values.type == column.type else values.cast(column.type)
        elif isinstance(values, np.ndarray):
            array = pa.array(values) if column.type == pa.null() else pa.array(values, column.type)
        else:
            array = _array(column, list(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        raise WrongRow(f"column {column.name!r} takes {column.type}: {error}", column=column.name) from error
    if array.null_count and not column.nullable:
        row = array.is_null().index(True).as_py()
        raise WrongRow(f"column {column.name!r} is null", column=column.name, row=row)
    return _held(column, array) if held else array


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
