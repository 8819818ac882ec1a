"""Arrow columns as values of SQLite, and rows of SQLite as canonical JSON.

Integers and booleans become INTEGER, floats REAL, text TEXT, binary BLOB. Times become text that
sorts as the times do and that SQLite's date functions read: `2026-01-31T09:30:00.000000Z`, always
UTC and always six digits of a second; dates are `2026-01-31`. NaN becomes NULL, as SQLite has no
NaN; so only key columns are declared NOT NULL.

Canonical JSON holds a before-image. Keys are sorted, there is no white space, integers and reals
stay apart (`1`, `1.0`), reals keep every bit, and what JSON cannot say is an object with one
member: `{"hex":"00ff"}` for a blob, `{"real":"inf"}` for an infinity. `sqlite_file.json_object`
writes it, with reals from here: SQLite's own text of one real in some thousands reads back as another.

Invariants
    - A row read back from canonical JSON has the same values and types.
    - Text order of times is time order; years outside 1 to 9999, where it would not be, are refused.

Pure: values in, values out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract import OP

Value = int | float | str | bytes | None

TIMESTAMP = pa.timestamp("us", tz="UTC")
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of the years 1 to 9999."""
_YEARS_DAYS = (-719_162, 2_932_896)

_TESTS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_uint64, ""),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_boolean, "INTEGER"),
    (pa.types.is_floating, "REAL"),
    (pa.types.is_string, "TEXT"),
    (pa.types.is_large_string, "TEXT"),
    (pa.types.is_string_view, "TEXT"),
    (pa.types.is_date32, "TEXT"),
    (lambda kind: bool(kind == TIMESTAMP), "TEXT"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_large_binary, "BLOB"),
    (pa.types.is_binary_view, "BLOB"),
)


def declared_type(where: str, field: pa.Field) -> str:
    """Return the SQLite type that holds the column.

    Raises:
        ConfigError: no type of SQLite holds every value of the column.
    """
    declared = next((name for fits, name in _TESTS if fits(field.type)), "")
    if not declared:
        raise ConfigError(
            f"{where}: the column {field.name!r} has the type {field.type}, which this sink cannot store",
            next_step="cast it before the sink to an integer up to 64 bits (not uint64), a float, bool, text, "
            f"binary, date or {TIMESTAMP}",
        )
    return declared


def affinity(declared: str) -> str:
    """Return how SQLite treats a column declared so. Source: sqlite.org/datatype3.html, section 3.1."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return "BLOB"
    if any(word in upper for word in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"


def check_values(where: str, batch: pa.RecordBatch) -> None:
    """Refuse times whose text would not sort.

    Raises:
        ConfigError: names the column.
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
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
                next_step="look at how the time is decoded (seconds taken for microseconds?), or filter the rows out",
            )


def rows_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterable[tuple[Value, ...]]:
    """Return the batch's rows as SQLite takes them, with the named columns in that order."""
    return zip(*(_plain(batch.column(name)) for name in columns), strict=True)


def real_as_json(value: float) -> str:
    """Return the shortest text that reads back as the same bits; SQLite's own rounds some."""
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
    values: list[Value] = column.to_pylist()
    return values


def _series(column: pa.Array) -> pl.Series:
    series = pl.from_arrow(column)  # Polars formats times eight times faster than Arrow.
    assert isinstance(series, pl.Series)
    return series


def _spoken(value: dict[str, str]) -> Value:
    return bytes.fromhex(value["hex"]) if "hex" in value else float(value["real"])


def columns_of(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that the table holds: the stream's, without `_op`."""
    return tuple(name for name in schema.names if name != OP)
