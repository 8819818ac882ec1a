"""JSON values to columns, strictly and in batches: one JSON object per row, and no value is guessed.

The values of a batch are joined to lines, and pyarrow's JSON reader turns these into columns: it refuses a string where
a number is expected, a fraction in an integer column and a number that does not fit. Times, dates and bytes have no
strict form in it, so they are read as text or integers, and converted here.

A compiled parser reads flat objects with plain strings and numbers of usual size; it takes a fifth of the time and
returns the same rows; see flat/. pyarrow reads the rest.

pyarrow refuses a batch as a whole. A batch that is refused is halved until the rows at fault are alone. So a row is
refused for itself, whatever is read together with it.

| column | JSON |
|---|---|
| integer, float, bool, string | the same; an integer is also a float |
| timestamp[., UTC] | RFC 3339 with a zone; or an integer: seconds, milliseconds or microseconds since 1970 |
| date32 | "2026-11-26" |
| binary | base64 |
| decimal | a number or a string |
| time64 | "09:30:00", with up to six digits after the seconds; further ones are dropped |
| list, struct, map<string, .> | an array, an object, an object |

Fields that are not columns are ignored, but must be JSON too: UTF-8, and no NaN or Infinity.

Invariants
    - A value is a line only if it begins with {, ends with } and has no line break. In the joined text, `}` and `{` on
      two lines never belong to one object, and no string runs over a line break. So if there are as many rows as lines,
      each line is one row.
    - Which rows are refused, and why, depends on each row alone.

Pure. Source: API.md (JSON); docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.runtime.formats.halving import UndecodableLines, by_halves, without_nulls
from holdfast.runtime.formats.json_values import NestedJson, is_nested
from holdfast.runtime.rows.dead_letters import Refused

if TYPE_CHECKING:
    from holdfast.runtime.formats.flat.reading import FlatObjects, FlatRows

Times = Literal["rfc3339", "s", "ms", "us"]
TIMES: tuple[Times, ...] = ("rfc3339", "s", "ms", "us")
_BLANKS = b" \t\r\n"
_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")
"""Line breaks to tabs. Both are blanks between tokens, and both are forbidden in strings, so valid text stays valid."""
_ROW = re.compile(r",? ?in row \d+$")
TIME_OF_DAY = pa.time64("us")
_TIME_OF_DAY = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?$"
_FINER_THAN_MICROSECONDS = r"(\.\d{6})\d+"
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
Convert = Callable[[pa.Array], pa.Array]


class JsonLines:
    """Decodes JSON objects to rows.

    Args:
        schema: The columns; other fields of an object are ignored.
        times: How times are written.
        defaults: Values for fields that an object does not have, by column. Others become null.

    Raises:
        ConfigError: a column has no form in JSON.
    """

    def __init__(self, schema: pa.Schema, times: Times = "rfc3339", defaults: Mapping[str, Any] | None = None) -> None:
        self._schema = schema
        self._defaults = {name: value for name, value in (defaults or {}).items() if value is not None}
        self._strict = [field.name for field in schema if not field.nullable]
        self._nested = {f.name: NestedJson(f, lambda part: _form_of(part, times)) for f in schema if is_nested(f.type)}
        forms = {field.name: _form_of(field, times) for field in schema if field.name not in self._nested}
        self._convert = {name: convert for name, (_, convert) in forms.items()}
        self._read_as = {name: kind for name, (kind, _) in forms.items()}
        self._quick: FlatObjects | Literal[False] | None = None
        """None: not made yet; False: it cannot read these columns."""
        self._parse = pa.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(name, kind) for name, (kind, _) in forms.items()]),
            newlines_in_values=False,
            unexpected_field_behavior="ignore",
        )

    def decode(self, values: Sequence[bytes | None] | pa.BinaryArray) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these values, and those that are refused, by their index."""
        array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
        flat_rows = self._flat(array) if _is_utf8(array) else None
        if flat_rows is None or not len(flat_rows.rows):
            return self._any(array.to_pylist())
        columns = [
            _with_default(column, field, self._defaults[field.name], missing)
            if field.name in self._defaults
            else column
            for field, column, missing in zip(self._schema, flat_rows.columns, flat_rows.missing, strict=True)
        ]
        valid_mask = np.ones(len(flat_rows.rows), bool)
        for name in self._strict:  # refused below, with the reason
            if (column := columns[self._schema.get_field_index(name)]).null_count:
                valid_mask &= column.is_valid().to_numpy(zero_copy_only=False)
        if valid_mask.all() and len(flat_rows.rows) == len(array):
            return pa.RecordBatch.from_arrays(columns, schema=self._schema), {}
        quick, rows = [column.filter(pa.array(valid_mask)) for column in columns], flat_rows.rows[valid_mask]
        rest = np.setdiff1d(np.arange(len(array)), rows, assume_unique=True)
        others, refusals = self._any(array.take(pa.array(rest)).to_pylist())
        read = np.delete(rest, list(refusals))
        both = [pa.concat_arrays([one, other]) for one, other in zip(quick, others.columns, strict=True)]
        order = pa.array(np.argsort(np.concatenate([rows, read])))
        batch = pa.RecordBatch.from_arrays([column.take(order) for column in both], schema=self._schema)
        return batch, {int(rest[place]): each for place, each in refusals.items()}

    def _flat(self, values: pa.BinaryArray) -> FlatRows | None:
        """Return the objects that the compiled parser can read; None if it cannot be used."""
        if self._nested:
            return None
        if self._quick is None:
            from holdfast.runtime.formats.flat.reading import (
                FlatObjects,
                flat,
            )  # compiled, so it is loaded when it is used

            self._quick = FlatObjects(self._read_as) if flat(self._read_as) else False
        if self._quick is False:
            return None
        try:
            flat_rows = self._quick.read(values)
            columns = [
                self._convert[field.name](each) for field, each in zip(self._schema, flat_rows.columns, strict=True)
            ]
        except (pa.ArrowInvalid, binascii.Error, ValueError):  # a value is refused; which one is found below
            return None
        return replace(flat_rows, columns=columns)

    def _any(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of any values; see `decode`."""
        why: dict[int, str] = {}
        lines: Sequence[Any] = values
        places: Sequence[int] = range(len(values))
        if not _are_lines(values):
            lines, places = _as_lines(values, why)
        batches = list(by_halves(lines, places, why, self._together))
        rows = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        refused = {place: Refused(why[place], "bytes", values[place] or b"") for place in sorted(why)}
        return (rows[0] if rows else _empty(self._schema)), refused

    def _together(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> pa.RecordBatch:
        text = b"\n".join(lines)
        _refuse_what_is_ignored(text, lines)
        try:
            options = pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
            table = pa.json.read_json(pa.BufferReader(text), options, self._parse).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UndecodableLines(_reason(error)) from None
        if table.num_rows != len(lines):
            raise UndecodableLines("it is more than one JSON value")
        nested = self._nested_columns(lines)
        columns = [
            nested[field.name] if field.name in nested else self._column(field, table.column(field.name), lines)
            for field in self._schema
        ]
        return without_nulls(columns, self._schema, places, why, lambda row, name: _state(lines[row], name))

    def _nested_columns(self, lines: Sequence[bytes]) -> dict[str, pa.Array]:
        if not self._nested:
            return {}
        try:
            rows = [_OBJECT.decode(line) for line in lines]
        except msgspec.DecodeError as error:
            raise UndecodableLines(str(error)) from None
        except RecursionError:
            raise UndecodableLines("it is nested too deeply") from None
        columns = {name: nested.column([row.get(name) for row in rows]) for name, nested in self._nested.items()}
        return {name: self._defaulted(self._schema.field(name), column, lines) for name, column in columns.items()}

    def _column(self, field: pa.Field, found: pa.ChunkedArray, lines: Sequence[bytes]) -> pa.Array:
        column = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
        try:
            column = self._convert[field.name](column)
        except (pa.ArrowInvalid, binascii.Error, ValueError) as error:
            raise UndecodableLines(f"column {field.name!r}: {_reason(error)}") from None
        return self._defaulted(field, column, lines)

    def _defaulted(self, field: pa.Field, column: pa.Array, lines: Sequence[bytes]) -> pa.Array:
        if field.name in self._defaults and column.null_count:
            nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            missing = np.zeros(len(column), bool)
            missing[[row for row in nulls.tolist() if not _has(lines[row], field.name)]] = True
            column = _with_default(column, field, self._defaults[field.name], missing)
        return column


def _is_utf8(values: pa.BinaryArray) -> bool:
    _, bounds, data = values.buffers()
    if data is None or not len(values):
        return True
    first, end = np.frombuffer(bounds, np.int32)[[values.offset, values.offset + len(values)]].tolist()
    if data.slice(first, end - first).to_pybytes().isascii():  # a cast of a few values takes ten times as long
        return True
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _refuse_what_is_ignored(text: bytes, lines: Sequence[bytes]) -> None:
    """Refuse invalid JSON that the reader accepts in fields that are not columns. Raises UndecodableLines."""
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            raise UndecodableLines("it is not UTF-8") from None
    if b"NaN" in text or b"Inf" in text:  # also in strings, where they are allowed
        for line in lines:
            try:
                _OBJECT.decode(line)
            except msgspec.DecodeError as error:
                raise UndecodableLines(str(error)) from None
            except RecursionError:
                raise UndecodableLines("it is nested too deeply") from None


def _are_lines(values: Sequence[bytes | None]) -> bool:
    """Return whether each value is one line that begins and ends as an object does."""
    try:
        text = b"\n".join(values)  # type: ignore[arg-type]
    except TypeError:  # a value is null
        return False
    sizes = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    if not len(values) or sizes.min() < 2 or text.count(b"\n") != len(values) - 1 or b"\r" in text:
        return False
    last = np.cumsum(sizes + 1) - 2
    found = np.frombuffer(text, np.uint8)
    return bool((found[last] == ord("}")).all() and (found[last - sizes + 1] == ord("{")).all())


def _as_lines(values: Sequence[bytes | None], why: dict[int, str]) -> tuple[list[bytes], list[int]]:
    """Return the values that are objects as lines, and their places; refuse the others."""
    lines, places = list[bytes](), list[int]()
    for place, value in enumerate(values):
        line = None if value is None else value.strip(_BLANKS).translate(_BREAKS)
        if line is not None and line.startswith(b"{") and line.endswith(b"}"):
            lines.append(line)
            places.append(place)
        else:
            tombstone = "the value is null: a tombstone, which is not a row"
            why[place] = tombstone if value is None else "it is not a JSON object"
    return lines, places


def _with_default(column: pa.Array, field: pa.Field, default: Any, missing: NDArray[np.bool_]) -> pa.Array:
    """Put the default where the field is missing; a null that is written stays one."""
    both = pa.concat_arrays([column, pa.array([default], field.type)])
    return both.take(pa.array(np.where(missing, len(column), np.arange(len(column)))))


def _state(line: bytes, name: str) -> str:
    return "null" if _has(line, name) else "missing"


def _has(line: bytes, name: str) -> bool:
    """Return whether an object has a field. Raises UndecodableLines."""
    try:
        return name in _OBJECT.decode(line)
    except msgspec.DecodeError:  # pyarrow accepts it
        return False
    except RecursionError:  # pyarrow accepts it, in a field that is ignored
        raise UndecodableLines("it is nested too deeply") from None


def _form_of(field: pa.Field, times: Times) -> tuple[pa.DataType, Convert]:
    """Return the type that pyarrow reads a column as, and the function that makes the column of it."""
    kind = field.type
    same = (
        *(pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string),
        *(pa.types.is_decimal128, pa.types.is_decimal256),
    )
    if any(fits(kind) for fits in same):
        return kind, lambda column: column
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return kind, _finite
    if pa.types.is_timestamp(kind) and kind.tz == "UTC":
        if times == "rfc3339":
            return pa.utf8(), lambda column: as_times(column, kind)
        return pa.int64(), lambda column: column.view(pa.timestamp(times, "UTC")).cast(kind)
    if pa.types.is_date32(kind):
        return pa.utf8(), lambda column: column.cast(kind)
    if kind == TIME_OF_DAY:
        return pa.utf8(), as_times_of_day
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.utf8(), lambda column: _bytes(column, kind)
    hint = "; a time needs the zone UTC" if pa.types.is_timestamp(kind) else ""
    raise ConfigError(
        f"column {field.name!r} is {kind}, which hf.JSON cannot read{hint}",
        not_done="the job was not planned",
        next_step="use int, float, str, bool, bytes, datetime, date, time, a decimal, or lists, dicts and dataclasses "
        "of them; or read the bytes with hf.Raw() and decode them with .map_batches",
    )


def _finite(column: pa.Array) -> pa.Array:
    """Refuse NaN and infinities, which the reader takes and JSON does not have."""
    if pc.all(pc.is_finite(column)).as_py() is False:  # None: there are only nulls
        raise ValueError("it is not a finite number")
    return column


def as_times(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse times; digits after the microseconds are dropped."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(column, _FINER_THAN_MICROSECONDS, r"\1").cast(kind)


def as_times_of_day(column: pa.Array) -> pa.Array:
    """Parse times of day; digits after the microseconds are dropped. Raises ValueError."""
    if pc.all(pc.match_substring_regex(column, _TIME_OF_DAY)).as_py() is False:  # None: there are only nulls
        wrong = column.filter(pc.invert(pc.match_substring_regex(column, _TIME_OF_DAY)))[0]
        raise ValueError(f"{wrong.as_py()!r:.80} is not a time of day such as 09:30:00")
    since = as_times(pc.binary_join_element_wise("1970-01-01T", column, ""), pa.timestamp("us"))
    return since.view(pa.int64()).view(TIME_OF_DAY)


def _bytes(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(
        [None if each is None else base64.b64decode(each, validate=True) for each in column.to_pylist()], kind
    )


def _reason(error: Exception) -> str:
    """Return why one row is refused, without the place in the buffer that it happened to have."""
    return _ROW.sub("", str(error).splitlines()[0].removeprefix("JSON parse error: "))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
