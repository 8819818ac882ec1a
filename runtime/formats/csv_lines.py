"""CSV rows to columns, strictly and in batches: a row is a line, and no value is guessed.

pyarrow's CSV reader converts the values. Its refusals concern a batch as a whole, so lines are decoded by halves.

| column | CSV |
|---|---|
| integer, float, string | the same; white space around a number does not matter |
| bool | true, false, 1, 0 |
| timestamp[., UTC] | ISO 8601 with a zone; digits after the microseconds are dropped |
| date32 | 2026-11-26 |
| time64 | 09:30:00; digits after the microseconds are dropped |
| decimal | a number |
| binary | the bytes of the text |

An empty value is null; in a text column it is an empty text if it has quotes, or if the column allows no null.

Invariants
    - Every line has an even number of quotes and no carriage return within it, so none continues in the next one.
    - Which lines are refused, and why, depends on each line alone.

Pure. Source: docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from holdfast.errors import ConfigError
from holdfast.runtime.formats.halving import UndecodableLines, by_halves
from holdfast.runtime.formats.json_lines import TIME_OF_DAY, as_times, as_times_of_day
from holdfast.runtime.rows.dead_letters import Refused

_ROW = re.compile(r"(?:In CSV column #\d+: )?(?:Row #\d+: )?(?:CSV parse error: )?(?:Row #\d+: )?")
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before UTF-8."""


def header_of(line: bytes) -> list[str]:
    """Return the names in the first line of a file. Raises ValueError."""
    try:
        names = next(csv.reader([line.removeprefix(_MARK).decode("utf-8")], strict=True), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the column {min(twice)!r} is there twice")
    return names


def refuse_columns(schema: pa.Schema) -> None:
    """Refuse columns without a form in CSV. Raises ConfigError."""
    for field in schema:
        kind = field.type
        fits = (
            *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_date32),
        )
        fits_time = kind == TIME_OF_DAY or (pa.types.is_timestamp(kind) and kind.tz == "UTC")
        if not any(each(kind) for each in fits) and not fits_time:
            hint = "; a time needs the zone UTC" if pa.types.is_timestamp(kind) else ""
            raise ConfigError(
                f"column {field.name!r} is {kind}, which CSV does not have{hint}",
                not_done="the job was not planned",
                next_step="use int, float, str, bool, bytes, datetime, date, time, a decimal, an Enum, UUID or "
                "Literal; or use JSON lines or Parquet, which have lists, dicts and dataclasses",
            )


class CsvLines:
    """Decodes lines of one file.

    Args:
        schema: The columns, all of which the header has.
        header: The names of the columns in the file.
    """

    def __init__(self, schema: pa.Schema, header: Sequence[str]) -> None:
        self._schema = schema
        self._header = list(header)
        self._convert = pa.csv.ConvertOptions(
            column_types={f.name: pa.string() if _is_of_time(f.type) else f.type for f in schema},
            include_columns=schema.names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        self._parse = pa.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False)

    def decode(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these lines, which have no line ends, and those that are refused, by their index."""
        why: dict[int, str] = {}
        text = b"".join(values)
        if b'"' in text or b"\r" in text:
            why = {place: wrong for place, line in enumerate(values) if (wrong := _goes_on(line)) is not None}
        places: Sequence[int] = [place for place in range(len(values)) if place not in why]
        lines = [values[place] for place in places] if why else values
        batches = list(by_halves(lines, places, why, self._together))
        rows = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        empty = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in self._schema], schema=self._schema)
        refused = {place: Refused(why[place], "bytes", values[place]) for place in sorted(why)}
        return (rows[0] if rows else empty), refused

    def _together(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> pa.RecordBatch:
        text = b"\n".join(lines) + b"\n"
        if text.startswith(_MARK):  # the reader takes the first one for a mark of the file
            text = _MARK + text
        options = pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._header)
        try:
            table = pa.csv.read_csv(pa.BufferReader(text), options, self._parse, self._convert).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UndecodableLines(_reason(error)) from None
        if table.num_rows != len(lines):
            raise UndecodableLines("it is more than one row")
        columns = [_column(field, table.column(field.name)) for field in self._schema]
        return _without_nulls(self._schema, columns, places, why)


def _is_of_time(kind: pa.DataType) -> bool:
    return bool(kind == TIME_OF_DAY or pa.types.is_timestamp(kind))


def _goes_on(line: bytes) -> str | None:
    """Return why a line is not a row of its own; None if it may be."""
    if line.count(b'"') % 2:
        return "a value has no closing quote in its line"
    return "it has a carriage return within it" if b"\r" in line else None


def _column(field: pa.Field, found: pa.ChunkedArray) -> pa.Array:
    column = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
    if _is_of_time(field.type):
        try:
            return as_times_of_day(column) if field.type == TIME_OF_DAY else as_times(column, field.type)
        except (pa.ArrowInvalid, ValueError) as error:
            raise UndecodableLines(f"column {field.name!r}: {_reason(error)}") from None
    is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    return pc.fill_null(column, "") if is_text and not field.nullable else column


def _without_nulls(
    schema: pa.Schema, columns: list[pa.Array], places: Sequence[int], why: dict[int, str]
) -> pa.RecordBatch:
    """Refuse the rows that have a null where the schema allows none."""
    rows = len(columns[0])
    keep = np.ones(rows, bool)
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False) & keep).tolist():
                keep[row] = False
                why[places[row]] = f"column {field.name!r} is empty, and the job's schema allows no null there"
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return batch if keep.all() else batch.filter(pa.array(keep))


def _reason(error: Exception) -> str:
    """Return why one line is refused, without its place in the buffer."""
    return _ROW.sub("", str(error).splitlines()[0], count=1)
