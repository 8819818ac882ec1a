"""Canonical values: the form in which rows travel between Arrow and any SQL database, and their canonical JSON.

Integers and booleans are int, floats float, text str, binary bytes. Times are text that sorts as the times do and that
date functions read: `2026-01-31T09:30:00.000000Z`, always UTC and always six digits of a second; dates are
`2026-01-31`, times of day `09:30:00.000000`. Lists, structs and maps are JSON, as text. How a database stores them is
its dialect's decision; SQLite stores them as they are.

Canonical JSON holds a before-image. Keys are sorted, there is no white space, integers and reals stay distinct (`1`,
`1.0`), and reals keep every bit. A value that JSON cannot express is an object with one member: `{"hex":"00ff"}` for
binary, `{"real":"inf"}` for an infinity. `Dialect.row_json` writes it.

Invariants
    - A row read back from canonical JSON has the same values and types.
    - Text order of times is time order; years outside 1 to 9999, where it would not be, are refused.

Pure: values in, values out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract.target import OP
from holdfast.sinks.json_values.nested import all_finite, is_nested, text_of_time, texts
from holdfast.sinks.json_values.rows import has_form

Value = int | float | str | bytes | None

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIME_OF_DAY = pa.time64("us")
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of the years 1 to 9999."""
_YEARS_DAYS = (-719_162, 2_932_896)


def check_values(where: str, batch: pa.RecordBatch) -> None:
    """Refuse times whose text would not sort.

    Raises:
        ConfigError: names the column.
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if is_nested(field.type) and not all_finite(column):
            raise ConfigError(
                f"{where}: the column {field.name!r} holds NaN or an infinity, for which JSON has no form",
                not_done="the rows were not written",
                next_step="before the sink, drop such rows with .filter(...), or replace the values",
            )
        if field.type == TIMESTAMP:
            first, last, plain = *_YEARS_US, column.cast(pa.int64())
        elif pa.types.is_date32(field.type):
            first, last, plain = *_YEARS_DAYS, column.cast(pa.int32())
        else:
            continue
        ends = pc.min_max(plain).as_py()
        if ends["min"] is not None and not first <= ends["min"] <= ends["max"] <= last:
            raise ConfigError(
                f"{where}: the column {field.name!r} holds a time outside the years 1 to 9999",
                not_done="the rows were not written",
                next_step="check how the time is decoded (seconds taken for microseconds?), or filter the rows out",
            )


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are stored as text that has no type of its own: times of day, and nested ones as JSON."""
    return bool(kind == TIME_OF_DAY) or (is_nested(kind) and has_form(kind))


def columns_of(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that the table holds: the stream's, without `_op`."""
    return tuple(name for name in schema.names if name != OP)


def rows_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterable[tuple[Value, ...]]:
    """Return the batch's rows as canonical values, with the named columns in that order."""
    return zip(*(_plain(batch.column(name)) for name in columns), strict=True)


def real_as_json(value: float) -> str:
    """Return the shortest text that reads back as the same bits."""
    return repr(value) if math.isfinite(value) else f'{{"real":"{value!r}"}}'


def from_json(text: str) -> dict[str, Value]:
    """Return the row that a canonical JSON text holds."""
    row = json.loads(text)
    return {name: _spoken(value) if isinstance(value, dict) else value for name, value in row.items()}


def _plain(column: pa.Array) -> list[Value]:
    if column.type == TIMESTAMP:
        return _series(column).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_list()
    if pa.types.is_date32(column.type):
        return _series(column).dt.strftime("%Y-%m-%d").to_list()
    if column.type == TIME_OF_DAY:
        return [None if value is None else text_of_time(value) for value in column.to_pylist()]
    if is_nested(column.type):
        found = zip(texts(column), column.is_valid().to_pylist(), strict=True)
        return [text.decode() if valid else None for text, valid in found]
    values: list[Value] = column.to_pylist()
    return values


def _series(column: pa.Array) -> pl.Series:
    series = pl.from_arrow(column)  # Polars formats times eight times faster than Arrow.
    assert isinstance(series, pl.Series)
    return series


def _spoken(value: dict[str, str]) -> Value:
    return bytes.fromhex(value["hex"]) if "hex" in value else float(value["real"])
