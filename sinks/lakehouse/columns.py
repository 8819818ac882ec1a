"""Columns of a stream as columns of a table, and rows as a table that can be committed.

Table formats have no unsigned numbers and no durations. A type that widens without a loss is widened; any other type is
refused when the job is planned. All columns of a table that Holdfast creates may be null: a key is checked by the sink.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract.phrases import NOTHING
from holdfast.sinks.contract.sink import check_key, check_null_keys
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.protocol.staging import last_per_key

PARTITION_BYTES_MAX = 200
"""A partition value in the name of a folder, where 255 bytes are the limit of most file systems."""
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
"""The days that a partition value can name."""
_AS_THEY_ARE = (
    *(pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_date32),
    *(pa.types.is_string, pa.types.is_binary),
)


@dataclass(frozen=True)
class TableFormat:
    """Types and values that a table format can hold.

    Args:
        name: How messages name it.
        table: One table of it, with its article.
        wider: Types that it lacks, with the type that holds their values.
        not_in_names: Characters that the name of a column cannot have.
        read_as_null: Texts that come back as null from a column in `partition_by`.
        times_of_day: It has a type for them.
        empties_nulls: Its library writes an empty list or map for one that is null, if it holds structs.
    """

    name: str
    table: str
    wider: Mapping[pa.DataType, pa.DataType]
    not_in_names: str = ""
    read_as_null: frozenset[str] = frozenset()
    times_of_day: bool = False
    empties_nulls: bool = False

    def stored_type(self, kind: pa.DataType) -> pa.DataType | None:
        """Return the type that holds a column's values in a table, in one form for each; None: there is none."""
        if pa.types.is_dictionary(kind):
            return self.stored_type(kind.value_type)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_timestamp(kind):
            return None if kind.unit == "ns" else pa.timestamp("us", None if kind.tz is None else "UTC")
        if pa.types.is_decimal128(kind):
            return kind if kind.scale >= 0 else None
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            inner = self.stored_type(kind.value_type)
            return None if inner is None else pa.list_(pa.field("element", inner))
        if pa.types.is_struct(kind):
            inners = [(field.name, self.stored_type(field.type)) for field in kind]
            return None if not inners or any(inner is None for _, inner in inners) else pa.struct(inners)
        if pa.types.is_map(kind):
            key, item = self.stored_type(kind.key_type), self.stored_type(kind.item_type)
            return None if key is None or item is None else pa.map_(key, item)
        if kind == pa.time64("us"):
            return kind if self.times_of_day else None
        if kind in self.wider:
            return self.wider[kind]
        return kind if any(fits(kind) for fits in _AS_THEY_ARE) else None


@dataclass(frozen=True)
class TableColumns:
    """How the rows of a sink become rows of a table.

    Args:
        where: How messages name the target.
        key: None: rows are only added.
    """

    format: TableFormat
    where: str
    key: tuple[str, ...] | None
    partition_by: tuple[str, ...]

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Refuse a stream that the table can never take. Raises ConfigError."""
        check_key(self.where, schema, upsert_key, self.key)
        stored_schema = self.stored(schema)
        self._check_names(schema)
        for name in self.key or ():
            if pa.types.is_floating(stored_schema.field(name).type) or _is_opaque(stored_schema.field(name).type):
                raise self._refused(
                    f"the key column {name!r} is {schema.field(name).type}, which a merge cannot compare reliably",
                    "choose key columns of text, whole numbers, dates, times or decimals",
                )
        unknown = [name for name in self.partition_by if name not in schema.names]
        if unknown or len(set(self.partition_by)) != len(self.partition_by):
            fault = f"names unknown columns {unknown}" if unknown else "names a column twice"
            raise self._refused(f"partition_by={list(self.partition_by)} {fault}", f"choose from {schema.names}")
        for name in self.partition_by:
            kind = stored_schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)):
                raise self._refused(
                    f"the partition column {name!r} is {schema.field(name).type}",
                    "partition by whole numbers, text or a date, such as a day that a .select(...) adds",
                )
        if schema.names and len(self.partition_by) == len(schema.names):
            raise self._refused("all columns are in partition_by", "leave out at least one")

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the table for rows of a stream, all of them nullable. Raises ConfigError."""
        fields = []
        for field in schema:
            kind = self.format.stored_type(field.type)
            if kind is None:
                raise self._refused(
                    f"the column {field.name!r} is {field.type}, which {self.format.table} cannot hold",
                    f"before the sink, cast it in a .select(...): {_instead(field.type)}",
                )
            fields.append(pa.field(field.name, kind))
        return pa.schema(fields)

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the table can never take. Raises ConfigError."""
        check_null_keys(self.where, self.key, batch)
        if OP in batch.schema.names:
            batch = batch.filter(pc.not_equal(batch.column(OP), DELETE)).drop_columns([OP])
        rows = self._cast(pa.Table.from_batches([batch]))
        if self.format.empties_nulls:
            self._check_nulls(batch)
        for name in self.partition_by:
            self._check_partition(name, rows.column(name))

    def table_of(self, batches: Iterable[pa.RecordBatch]) -> tuple[int, pa.Table | None]:
        """Read rows; return their number and the table of a commit: with a key, the last row of each, with `_op`.

        None: there are no rows. Raises ConfigError.
        """
        nonempty_batches = [batch for batch in batches if batch.num_rows]
        if not nonempty_batches:
            return 0, None
        table = pa.Table.from_batches(nonempty_batches)
        if self.key is None:
            return table.num_rows, self._cast(table)
        for batch in nonempty_batches:
            check_null_keys(self.where, self.key, batch)
        if OP not in table.column_names:
            table = table.append_column(OP, pa.repeat(pa.scalar(PUT, pa.int8()), table.num_rows))
        last = last_per_key(table, self.key)
        ops = last.column(OP)
        return table.num_rows, self._cast(last.drop_columns([OP])).append_column(OP, ops)

    def differences(self, found: pa.Schema, partition_by: tuple[str, ...], schema: pa.Schema) -> str | None:
        """Return how a table differs from the stream's columns; None: at most in the order of columns."""
        expected_schema = self.stored(schema)
        texts = [f"{name} is missing" for name in expected_schema.names if name not in found.names]
        texts += [f"{name} is not in the stream" for name in found.names if name not in expected_schema.names]
        for field in found:
            if field.name not in expected_schema.names:
                continue
            kind, needed = self.format.stored_type(field.type), expected_schema.field(field.name).type
            if kind != needed:
                texts.append(f"{field.name} is {field.type}, the stream needs {needed}")
            elif not field.nullable:
                texts.append(f"{field.name} must not be null, which the stream does not promise")
        if partition_by != self.partition_by:
            texts.append(f"it is partitioned by {list(partition_by)}, the sink has {list(self.partition_by)}")
        return "; ".join(texts) or None

    def _cast(self, rows: pa.Table) -> pa.Table:
        stored_schema = self.stored(rows.schema)
        if rows.schema.equals(stored_schema):
            return rows
        try:
            return rows.cast(stored_schema)
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"{self.where}: a value does not fit its column: {error}",
                not_done="the rows were not written",
                next_step="drop such rows with .filter(...) before the sink, or correct them",
            ) from error

    def _check_nulls(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_nested(column.type) and _has_null_of_structs(column):
                raise ConfigError(
                    f"{self.where}: the column {name!r} holds a null where its type has a list or map of structs, "
                    f"which {self.format.name}'s library would write as an empty one",
                    not_done="the rows were not written",
                    next_step="before the sink, drop such rows with .filter(...), or give empty lists instead of nulls",
                )

    def _check_partition(self, name: str, column: pa.ChunkedArray) -> None:
        """Refuse values whose text in the table's log would be read as another value, or as none."""
        values = column.unique()
        if pa.types.is_string(values.type):
            fault = next(filter(None, map(self._fault_of_text, values.to_pylist())), None)
        else:
            fault = _fault_of_days(values) if pa.types.is_date32(values.type) else None
        if fault is not None:
            raise ConfigError(
                f"{self.where}: a value of the partition column {name!r} {fault}",
                not_done="the rows were not written",
                next_step=f"before the sink, drop such rows with .filter(...), or give {name!r} another value",
            )

    def _check_names(self, schema: pa.Schema) -> None:
        for field in schema:
            self._check_inner_names(field.name, field.type)
        lower = [name.lower() for name in schema.names]
        for name in schema.names:
            if not name or any(each in name for each in self.format.not_in_names):
                fault = f"has a character out of {self.format.not_in_names!r}" if name else "is empty"
                raise self._refused(f"the name of the column {name!r} {fault}", "rename it in a .select(...)")
            if lower.count(name.lower()) > 1:
                raise self._refused(
                    f"two columns are named {name!r} if letter case is ignored, as Spark does",
                    "rename one of them in a .select(...)",
                )

    def _check_inner_names(self, column: str, kind: pa.DataType) -> None:
        """Refuse fields of a struct, at any depth, whose names Spark does not distinguish."""
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._check_inner_names(column, kind.value_type)
        if pa.types.is_map(kind):
            self._check_inner_names(column, kind.item_type)
        if not pa.types.is_struct(kind):
            return
        lower = [field.name.lower() for field in kind]
        for field in kind:
            if lower.count(field.name.lower()) > 1:
                raise self._refused(
                    f"two fields in the column {column!r} are named {field.name!r} if letter case is "
                    "ignored, as Spark does",
                    "rename one of them in a .select(...)",
                )
            self._check_inner_names(column, field.type)

    def _fault_of_text(self, value: str | None) -> str | None:
        if value is not None and value in self.format.read_as_null:
            return (
                f"is {value!r}, which {self.format.name} reads as null"
                if value
                else (f"is empty, which {self.format.name} reads as null")
            )
        if value is not None and len(quote(value)) > PARTITION_BYTES_MAX:
            return f"is longer than {PARTITION_BYTES_MAX} bytes"
        return None

    def _refused(self, what: str, next_step: str) -> ConfigError:
        return ConfigError(f"{self.where}: {what}", not_done="the job was not planned", next_step=next_step)


def changed_columns(where: str, needed: Mapping[str, object], found: Mapping[str, object]) -> ConfigError:
    """Return the error for a table whose columns were changed while the job ran.

    Args:
        needed: The types of the stream's columns.
        found: The types of the table's columns.
    """
    texts = [f"{name} is missing" for name in needed if name not in found]
    texts += [f"{name} is not in the stream" for name in found if name not in needed]
    texts += [
        f"{name} is {found[name]}, the stream needs {kind}"
        for name, kind in needed.items()
        if name in found and found[name] != kind
    ]
    return ConfigError(
        f"{where}: its columns were changed since the job started: {'; '.join(texts)}",
        not_done=NOTHING,
        next_step="undo that change, or change the stream and start the job again, or give the sink another table",
    )


def _fault_of_days(values: pa.Array) -> str | None:
    days = pc.min_max(values.cast(pa.int32())).as_py()
    if days["min"] is None or (days["min"] >= _FIRST_DAY and days["max"] <= _LAST_DAY):
        return None
    return "lies outside the years 1 to 9999"


def _has_null_of_structs(column: pa.Array) -> bool:
    """Return whether a list or map of structs is null, at any depth."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = column.filter(column.is_valid()).flatten()
        return any(pa.types.is_nested(part.type) and _has_null_of_structs(part) for part in parts)
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        inner = column.flatten().field("value")
    else:
        inner = column.flatten()
    lost = pa.types.is_struct(inner.type) and column.null_count > 0
    return bool(lost) or (pa.types.is_nested(inner.type) and _has_null_of_structs(inner))


def _is_opaque(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _instead(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return 'to pl.Datetime("us", "UTC")'
    if pa.types.is_unsigned_integer(kind):
        return "to pl.Int64 or pl.Decimal(20, 0)"
    if pa.types.is_time(kind):
        return "to pl.String, or to pl.Int64, a number of microseconds"
    if pa.types.is_duration(kind):
        return "to pl.Int64, a number of microseconds"
    return "to text, a number or a time"
