"""Rows for `holdfast log append`: CSV, JSON lines and Parquet, with exactly the columns of the log.

Nothing is guessed: an unknown column, a value of another type, a time without a zone or a null in a column that allows
none is an error. It names file, line (or row) and column. A nullable column may be absent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from holdfast.errors import ConfigError
from holdfast.runtime.rows.rows import WrongRow, batch_of_columns, batch_of_rows
from holdfast.storage.log.changelog import DELETED
from holdfast.storage.log.format import LogMeta

ROWS_PER_BATCH = 50_000
_NOTHING = "no row was appended"
_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def read_file(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of a .csv, .jsonl (.ndjson, .json) or .parquet file. Raises ConfigError."""
    readers: dict[str, Callable[[Path, pa.Schema], pa.Table]] = {
        ".csv": _csv,
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".json": _json_lines,
        ".parquet": _parquet,
    }
    if (reader := readers.get(path.suffix.lower())) is None:
        raise _refused(f"{path} is not a .csv, .jsonl or .parquet file", "name the file by its format")
    try:
        return reader(path, schema)
    except OSError as error:
        raise _refused(f"{path} cannot be read: {error.strerror or error}", "check the path and try again") from error


def json_line_batches(
    lines: IO[bytes], schema: pa.Schema, rows: int, source: str, not_done: Callable[[], str] = lambda: _NOTHING
) -> Iterator[pa.RecordBatch]:
    """Return batches of at most `rows` JSON lines; blank lines are skipped. Raises ConfigError."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    convert = {column.name: _from_json(column.type) for column in schema}
    while chunk := list(islice(numbered, rows)):
        json_rows: list[dict[str, Any]] = []
        at = chunk[0][0]
        try:
            for number, line in chunk:
                at = number
                json_rows.append(_object(line, convert))
            yield batch_of_rows(schema, json_rows)
        except (msgspec.DecodeError, ValueError) as error:
            raise _refused(f"line {at} of {source}: {error}", _CORRECT, not_done()) from error
        except WrongRow as wrong:
            place = f"line {chunk[wrong.row][0]} of {source}" if wrong.row is not None else source
            raise _refused(f"{place}: {wrong.what}", _CORRECT, not_done()) from wrong


def columns_given(meta: LogMeta) -> pa.Schema:
    """Return the columns that rows for a log have; in those for a changelog, the mark may be absent."""
    return pa.schema([DELETED.with_nullable(True), *meta.rows]) if meta.changelog else meta.schema


def as_given(rows: pa.Table, meta: LogMeta) -> pa.Table:
    """Return rows with these columns as the log takes them: without a mark, a record is a put."""
    if not meta.changelog:
        return rows
    return pa.Table.from_arrays([pc.fill_null(rows.column(0), False), *rows.columns[1:]], schema=meta.schema)


_CORRECT = "correct it, then append the rows that were not appended"


def _json_lines(path: Path, schema: pa.Schema) -> pa.Table:
    with path.open("rb") as lines:
        return pa.Table.from_batches(json_line_batches(lines, schema, ROWS_PER_BATCH, str(path)), schema)


def _csv(path: Path, schema: pa.Schema) -> pa.Table:
    options = pa.csv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    try:
        table = pa.csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _refused(f"{path}: {error}", _CORRECT) from error
    for column in schema:
        name = column.name
        if not column.nullable and pa.types.is_string(column.type) and name in table.schema.names:
            at = table.schema.get_field_index(name)  # CSV writes an empty string and a null alike
            table = table.set_column(at, name, table.column(name).fill_null(""))
    return _fitted(path, table, schema)


def _parquet(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return _fitted(path, pa.parquet.read_table(path), schema)
    except pa.ArrowInvalid as error:
        raise _refused(f"{path} is not a Parquet file: {error}", "check the file") from error


def _fitted(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = {name: table.column(name) for name in table.schema.names}
    for column in schema:
        if column.nullable and column.name not in columns:
            columns[column.name] = pa.nulls(table.num_rows, column.type)
    try:
        return pa.Table.from_batches([batch_of_columns(schema, columns, table.num_rows)])
    except WrongRow as wrong:
        place = f"row {wrong.row + 1} of {path}" if wrong.row is not None else str(path)
        raise _refused(f"{place}: {wrong.what}", _CORRECT) from wrong


_OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def _object(line: bytes, convert: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    row = _OBJECT.decode(line)
    for name, value in row.items():
        if value is not None and name in convert:
            try:
                row[name] = convert[name](value)
            except (ValueError, InvalidOperation, binascii.Error) as error:
                raise ValueError(f"column {name!r}: {error}") from error
    return row


def _from_json(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the conversion of a column's JSON values; it passes unknown values on to the type check."""
    if pa.types.is_timestamp(kind):
        return lambda value: datetime.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_time(kind):
        return lambda value: time.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_list(kind):
        item = _within(_from_json(kind.value_type))
        return lambda value: list(map(item, value)) if isinstance(value, list) else value
    if pa.types.is_map(kind):
        entry = _within(_from_json(kind.item_type))
        return lambda value: {k: entry(v) for k, v in value.items()} if isinstance(value, dict) else value
    if pa.types.is_struct(kind):
        parts = {field.name: _within(_from_json(field.type)) for field in kind}
        return lambda value: {k: parts.get(k, _same)(v) for k, v in value.items()} if isinstance(value, dict) else value
    if pa.types.is_binary(kind):
        return lambda value: base64.b64decode(value, validate=True) if isinstance(value, str) else value
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(value) if isinstance(value, str) else value
    if pa.types.is_floating(kind):
        return lambda value: float(value) if value in _NUMBERS else value
    return _same


def _same(value: Any) -> Any:
    return value


def _within(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _refused(what: str, advice: str, not_done: str = _NOTHING) -> ConfigError:
    return ConfigError(what, not_done=not_done, next_step=advice)
