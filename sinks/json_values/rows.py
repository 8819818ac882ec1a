"""Rows as JSON objects, and their keys as bytes: the forms in which rows leave for systems that take bytes.

A value is a JSON object with the columns of a row, in their order. A key is made of some columns. One column of text or
bytes is the key as it is; one column of another type is a JSON value, several columns are a JSON object.

In JSON, times are text in RFC 3339 (UTC, six digits of a second) or numbers since 1970, and dates are text. Decimals
are text, so that no reader rounds them. Bytes are base64, lists are arrays, structs and maps are objects: the forms
that hf.JSON reads. JSON has none for NaN and infinities, so rows with them are refused before they are staged.

Pure: values in, values out. Source: API.md (sources); docs/guide/kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.json_values.few import ROWS_MAX, objects_of_few
from holdfast.sinks.json_values.nested import all_finite, is_nested, parts, texts

TimeForm = Literal["rfc3339", "s", "ms", "us"]
_PER_US: Mapping[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
_ESCAPED_MAX = 6
"""Bytes that JSON takes for one byte of text at most."""
_PLAIN_MAX = 90
"""Bytes that JSON takes for a value of a fixed width at most."""
MEMBERS_MAX = 4_096
"""Names of columns whose form is kept: making one takes longer than encoding a small batch."""
SCHEMAS_MAX = 256
"""Kinds of rows whose encoding expression is kept."""


def check_forms(where: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
    """Refuse columns that have no form, and lists, structs and maps in a key. Raises ConfigError."""
    for field in schema:
        if field.name in key and is_nested(field.type):
            raise ConfigError(
                f"{where}: the key column {field.name!r} has type {field.type}, but keys are flat values",
                not_done="the job was not planned",
                next_step="before the sink, take a part of it as a column of its own, and name that in key=",
            )
        if not has_form(field.type):
            raise ConfigError(
                f"{where}: the column {field.name!r} has type {field.type}, which JSON values cannot hold here",
                not_done="the job was not planned",
                next_step=f"before the sink, cast it: .with_columns({field.name}=pl.col({field.name!r})"
                ".cast(pl.String)), or leave it out",
            )


def check_finite(where: str, batch: pa.RecordBatch) -> None:
    """Refuse rows that have no form. Raises ConfigError."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not all_finite(column):
            raise ConfigError(
                f"{where}: the column {field.name!r} holds NaN or an infinity, for which JSON has no form",
                not_done="the rows were not written",
                next_step="before the sink, drop such rows with "
                + (".filter(...)" if is_nested(field.type) else f".filter(pl.col({field.name!r}).is_finite())")
                + ", or replace the values",
            )


def objects(batch: pa.RecordBatch, names: Sequence[str], time: TimeForm = "rfc3339") -> list[bytes]:
    """Return a JSON object per row, with these columns."""
    found: list[bytes] = object_column(batch, names, time).to_pylist()
    return found


def object_column(batch: pa.RecordBatch, names: Sequence[str], time: TimeForm = "rfc3339") -> pa.LargeBinaryArray:
    """Return a JSON object per row, with these columns, as a column."""
    if not names or not batch.num_rows:
        return pa.array([b"{}"] * batch.num_rows, pa.large_binary())
    columns = {name: batch.column(name) for name in names}
    if any(is_nested(column.type) for column in columns.values()):
        return pa.array(_with_nested(columns, time), pa.large_binary())
    if batch.num_rows <= ROWS_MAX and (few := objects_of_few(columns, _PER_US.get(time))) is not None:
        return pa.array(few, pa.large_binary())
    frame = pl.DataFrame([pl.Series(name, column) for name, column in columns.items()])
    encoded = frame.select(_object(tuple((name, column.type) for name, column in columns.items()), time)).to_series()
    return encoded.to_arrow(compat_level=pl.CompatLevel.oldest()).view(pa.large_binary())


def _with_nested(columns: Mapping[str, pa.Array], time: TimeForm) -> list[bytes]:
    """Return a JSON object per row; the members of flat columns are made by Polars, as if there were no others."""
    flat = {name: column for name, column in columns.items() if not is_nested(column.type)}
    frame = pl.DataFrame([pl.Series(name, column) for name, column in flat.items()])
    single = [_object(((name, column.type),), time).alias(f"{at}") for at, (name, column) in enumerate(flat.items())]
    flat_members = dict(zip(flat, frame.select(single).get_columns(), strict=True)) if flat else {}
    members = []
    for name, column in columns.items():
        if name in flat_members:
            text = flat_members[name].to_arrow(compat_level=pl.CompatLevel.oldest()).view(pa.large_binary()).to_pylist()
            members.append([each[1:-1] for each in text])
        else:
            members.append([_member(name) + each for each in texts(column, time)])
    return [b"{" + b",".join(row) + b"}" for row in zip(*members, strict=True)]


def keys_of(batch: pa.RecordBatch, key: tuple[str, ...]) -> list[bytes | None]:
    """Return the key of each row; None for a single key column that is null."""
    found: list[bytes | None] = key_column(batch, key).to_pylist()
    return found


def key_column(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.LargeBinaryArray:
    """Return the key of each row as a column; null for a single key column that is null."""
    if len(key) > 1:
        return object_column(batch, key)
    column = batch.column(key[0])
    if is_raw(column.type):
        return raw_column(column)
    prefix = len(_member(key[0])) + 1
    found = pc.binary_slice(object_column(batch, key), prefix, -1)
    return pc.if_else(column.is_null(), pa.scalar(None, found.type), found) if column.null_count else found


def raw_column(column: pa.Array) -> pa.LargeBinaryArray:
    """Return text or bytes as bytes."""
    return column.cast(pa.large_binary())


def is_raw(kind: pa.DataType) -> bool:
    """Return whether a column holds text or bytes."""
    return bool(_is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def largest(batch: pa.RecordBatch) -> int:
    """Return a number of bytes that no row takes as key and value together."""
    size = 0
    for field, column in zip(batch.schema, batch.columns, strict=True):
        size += len(_member(field.name)) + 2
        if is_nested(field.type):
            size += max(map(len, texts(column)), default=0)
        elif is_raw(field.type):
            size += _ESCAPED_MAX * (pc.max(pc.binary_length(column)).as_py() or 0)
        else:
            size += _PLAIN_MAX
    return 2 * size  # The columns of the key occur twice.


@lru_cache(SCHEMAS_MAX)
def _object(columns: tuple[tuple[str, pa.DataType], ...], time: TimeForm) -> pl.Expr:
    """Return the expression that makes an object of a row: one query encodes a batch."""
    return pl.struct(_plain(name, kind, time) for name, kind in columns).struct.json_encode()


def _plain(name: str, kind: pa.DataType, time: TimeForm) -> pl.Expr:
    """Return a column whose values have the form that JSON gives them."""
    column = pl.col(name)
    if _is_time(kind):
        if time == "rfc3339":
            return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        return column.dt.timestamp("us") // _PER_US[time]
    if pa.types.is_date32(kind):
        return column.dt.strftime("%Y-%m-%d")
    if pa.types.is_time(kind):
        return column.dt.strftime("%H:%M:%S%.6f")
    if pa.types.is_decimal(kind):
        return column.cast(pl.String)
    return column.bin.encode("base64") if _is_binary(kind) else column


@lru_cache(MEMBERS_MAX)
def _member(name: str) -> bytes:
    """Return how an object begins the member of this name."""
    return pl.DataFrame({name: [0]}).write_ndjson().encode()[1:-3]


def has_form(kind: pa.DataType) -> bool:
    """Return whether values of a type have a form in JSON; of some, all but NaN and infinities."""
    if is_nested(kind):
        return all(map(has_form, parts(kind)))
    return is_raw(kind) or any(fits(kind) for fits in _FIXED_WIDTH)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz == "UTC")


_FIXED_WIDTH: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date32,
    pa.types.is_decimal128,
    lambda kind: bool(kind == pa.time64("us")),
    _is_time,
)
"""Types whose values have a bounded length as JSON."""
