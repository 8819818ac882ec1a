"""Avro values to columns: those of one schema, which their writer used.

Columns are fields of the schema's record with the same names. Which types become which is in `_BUILDERS`: only where no
value changes. A misfit of the schema is found once, here; a misfit of a value refuses the record.

| column | field |
|---|---|
| integer | int, long |
| float, double | float, int, long; double only of double |
| bool | boolean |
| string | string, enum, uuid |
| binary, fixed_size_binary | bytes, fixed |
| timestamp[., UTC] | timestamp-millis, timestamp-micros |
| date32 | date |
| time64[us] | time-millis, time-micros |
| decimal | decimal, of the same scale or a lower one |
| list, map, struct | array, map, record |

Invariants
    - Which rows are refused, and why, depends on each row alone.
    - A value is used only if the codec stopped exactly at its end: one more byte is appended, so that a length which
      leads beyond the end is noticed.

Pure. Source: Avro 1.12 specification; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from io import BytesIO
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.runtime.formats.halving import UndecodableLines, by_halves, without_nulls
from holdfast.storage.kafka.avro import WIDTHS, Type, codec_schema

Values = list[Any]
Build = Callable[[Values], pa.Array]
"""Makes a column of values as the codec gives them, None for null. Raises ArrowInvalid or ValueError."""
_EXACT = Context(prec=100)
_DECIMAL_BYTES_MAX = 40
"""More bytes than any decimal column holds, and fewer than `_EXACT` rounds."""
_TOO_SHORT = "it does not follow its schema: it ends too early, or a length or a branch in it is wrong"
_MILLIS_MICROS = {"timestamp-millis": "ms", "timestamp-micros": "us"}
_DAY_US = 86_400_000_000
FAULTS = (EOFError, IndexError, StopIteration, OverflowError)
"""The errors of the codec for bytes that do not follow the schema."""


class AvroMisfit(Exception):
    """A schema does not fit the columns; the message names the field and the types."""


class AvroColumns:
    """Decodes values of one schema.

    Args:
        written: The schema of the values.
        schema: The columns.
        defaults: Values for columns that the schema does not have. Others become null.

    Raises:
        AvroMisfit: a column cannot be read from this schema.
        ConfigError: a column has no form in Avro.
    """

    def __init__(self, written: Type, schema: pa.Schema, defaults: Mapping[str, Any]) -> None:
        self._schema = schema
        if written.kind != "record":
            raise AvroMisfit(f"it is {written}, but columns are the fields of a record")
        fields = dict(written.fields)
        self._columns = [_column(each, fields.get(each.name), defaults) for each in schema]
        self._codec = codec_schema(written, schema.names)
        self._parsed: Any = None

    def decode(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> list[pa.RecordBatch]:
        """Return the rows of values, in order.

        Args:
            places: The index of each value, for `why`.
            why: Gets the values that are refused.
        """
        return list(by_halves(lines, places, why, self._together))

    def _together(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> pa.RecordBatch:
        rows, row_places = self._read(lines, places, why)
        columns = []
        for field, (name, build) in zip(self._schema, self._columns, strict=True):
            found = rows if name is None else [row[name] for row in rows]
            try:
                columns.append(build(found))
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise UndecodableLines(f"column {field.name!r}: {str(error).splitlines()[0]}") from None
        return without_nulls(columns, self._schema, row_places, why)

    def _read(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> tuple[Values, list[int]]:
        """Return the records of values, and their places; refuse what does not follow the schema."""
        import fastavro

        if self._parsed is None:
            self._parsed = fastavro.parse_schema(self._codec)
        decode, schema = fastavro.schemaless_reader, self._parsed
        rows, row_places = [], []
        for line, place in zip(lines, places, strict=True):
            file = BytesIO(line + b"\0")
            try:
                row = decode(file, schema, None)
            except UnicodeDecodeError:
                why[place] = "a text in it is not UTF-8"
                continue
            except FAULTS:
                why[place] = _TOO_SHORT
                continue
            if (left := len(line) - file.tell()) != 0:
                why[place] = _TOO_SHORT if left < 0 else f"it has {left:,} more bytes than its schema describes"
                continue
            rows.append(row)
            row_places.append(place)
        return rows, row_places


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that no field of Avro becomes. Raises ConfigError."""
    for field in schema:
        if not _has_form(field.type):
            hint = "; a time needs the zone UTC" if pa.types.is_timestamp(field.type) else ""
            raise ConfigError(
                f"column {field.name!r} is {field.type}, which hf.Avro cannot read{hint}",
                not_done="the job was not planned",
                next_step="use int, float, str, bool, bytes, datetime, date, time, a decimal, or lists, structs and "
                "maps of them; or read the bytes with hf.Raw() and decode them with .map_batches",
            )


def _has_form(kind: pa.DataType) -> bool:
    if _is_list(kind):
        return _has_form(kind.value_type)
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and _has_form(kind.item_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_has_form(each.type) for each in kind)
    return any(fits(kind) for fits, _ in _BUILDERS)


def _column(field: pa.Field, written: Type | None, defaults: Mapping[str, Any]) -> tuple[str | None, Build]:
    """Return which field becomes a column, and how; None if the column is the same for all rows."""
    if written is not None:
        return field.name, _build(field.type, written, field.name)
    default = defaults.get(field.name)
    if default is None and not field.nullable:
        raise AvroMisfit(f"it has no field {field.name!r}, which may not be null and has no default")
    value = pa.scalar(default, field.type)
    return None, lambda rows: pa.repeat(value, len(rows))


def _build(kind: pa.DataType, given: Type, path: str) -> Build:
    """Return how values of a type become a column. Raises AvroMisfit."""
    writer_type, _ = given.without_null
    build: Build | None = None
    if writer_type.kind == "null":
        return lambda values: pa.nulls(len(values), kind)
    if _is_list(kind) and writer_type.kind == "array":
        build = _list(kind, writer_type, path)
    elif pa.types.is_map(kind) and writer_type.kind == "map":
        build = _map(kind, writer_type, path)
    elif pa.types.is_struct(kind) and writer_type.kind == "record":
        build = _struct(kind, writer_type, path)
    else:
        for fits, make in _BUILDERS:
            if fits(kind):
                build = make(kind, writer_type)
    if build is None:
        raise AvroMisfit(f"its field {path!r} is {given}, from which a column of type {kind} cannot be read exactly")
    return build


def _inner(field: pa.Field, written: Type, path: str) -> Build:
    """Return how values within lists, maps and structs become a column: a null that is not allowed is a misfit."""
    if written.without_null[1] and not field.nullable:
        raise AvroMisfit(f"its field {path!r} is {written}, but may not be null in the column")
    return _build(field.type, written, path)


def _list(kind: pa.DataType, written: Type, path: str) -> Build:
    assert written.items is not None
    items = _inner(kind.value_field, written.items, f"{path}[]")
    large = pa.types.is_large_list(kind)
    array_type, offset = (pa.LargeListArray, np.int64) if large else (pa.ListArray, np.int32)

    def build(values: Values) -> pa.Array:
        offsets, mask = _offsets(values, offset)
        return array_type.from_arrays(
            offsets, items(list(chain.from_iterable(filter(None, values)))), type=kind, mask=mask
        )

    return build


def _map(kind: pa.DataType, written: Type, path: str) -> Build:
    assert written.items is not None
    items = _inner(kind.item_field, written.items, f"{path}{{}}")

    def build(values: Values) -> pa.Array:
        offsets, mask = _offsets(values, np.int32)
        filled = [each for each in values if each]
        keys = pa.array(list(chain.from_iterable(filled)), kind.key_type)
        inner = items(list(chain.from_iterable(each.values() for each in filled)))
        return pa.MapArray.from_arrays(offsets, keys, inner, type=kind, mask=mask)

    return build


def _struct(kind: pa.DataType, written: Type, path: str) -> Build:
    fields = dict(written.fields)
    makers: list[tuple[str, Build]] = []
    for each in kind:
        if each.name in fields:
            makers.append((each.name, _inner(each, fields[each.name], f"{path}.{each.name}")))
        elif each.nullable:
            makers.append((each.name, _nulls(each.type)))
        else:
            raise AvroMisfit(f"it has no field '{path}.{each.name}', which may not be null")

    def build(values: Values) -> pa.Array:
        missing = pa.array([each is None for each in values], pa.bool_())
        children = [make([None if row is None else row.get(name) for row in values]) for name, make in makers]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)

    return build


def _nulls(kind: pa.DataType) -> Build:
    return lambda values: pa.nulls(len(values), kind)


def _offsets(values: Values, kind: type[np.signedinteger[Any]]) -> tuple[pa.Array, pa.Array | None]:
    """Return where each of these lists begins, and which are null."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if each is None else len(each) for each in values], out=offsets[1:])
    missing = [each is None for each in values]
    return pa.array(offsets.astype(kind)), pa.array(missing) if any(missing) else None


def _integers(kind: pa.DataType, written: Type) -> Build | None:
    if written.kind == "int":
        return lambda values: pa.array(values, pa.int32()).cast(kind)
    return (lambda values: pa.array(values, kind)) if written.kind == "long" else None


def _floats(kind: pa.DataType, written: Type) -> Build | None:
    if written.kind in ("int", "long"):
        whole = pa.int32() if written.kind == "int" else pa.int64()
        return lambda values: pa.array(values, whole).cast(kind)
    if written.kind == "float" or (written.kind == "double" and pa.types.is_float64(kind)):
        width = WIDTHS[written.kind]
        return lambda values: _packed(values, width).cast(kind)
    return None


def _packed(values: Values, width: int) -> pa.Array:
    """Return floats of so many bytes each as a column; NaN is a value, not null."""
    zero = bytes(width)
    missing = pa.array([each is None for each in values], pa.bool_())
    joined = b"".join([zero if each is None else each for each in values])
    floats = pa.Array.from_buffers(
        pa.float32() if width == 4 else pa.float64(), len(values), [None, pa.py_buffer(joined)]
    )
    if not missing.true_count:
        return floats
    return pc.if_else(missing, pa.scalar(None, floats.type), floats)


def _booleans(kind: pa.DataType, written: Type) -> Build | None:
    if written.kind != "boolean":
        return None
    values_by_byte = {None: None, b"\0": False, b"\1": True}

    def build(values: Values) -> pa.Array:
        try:
            return pa.array([values_by_byte[each] for each in values], kind)
        except KeyError as error:
            raise ValueError(f"the byte {error} is neither true nor false") from None

    return build


def _texts(kind: pa.DataType, written: Type) -> Build | None:
    if written.kind == "string":
        return lambda values: pa.array(values, kind)
    if written.kind == "enum":
        return lambda values: pa.array(_symbols(values, written.symbols), kind)
    if written.kind == "fixed" and written.logical == "uuid":
        return lambda values: pa.array([None if each is None else _uuid(each.hex()) for each in values], kind)
    return None


def _symbols(values: Values, symbols: tuple[str, ...]) -> Values:
    if not all(each is None or 0 <= each < len(symbols) for each in values):
        raise ValueError("the number of an enum's symbol is out of range")
    return [None if each is None else symbols[each] for each in values]


def _uuid(text: str) -> str:
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _binaries(kind: pa.DataType, written: Type) -> Build | None:
    if pa.types.is_fixed_size_binary(kind) and not (written.kind == "fixed" and written.size == kind.byte_width):
        return None
    return (lambda values: pa.array(values, kind)) if written.kind in ("bytes", "fixed") else None


def _times(kind: pa.DataType, written: Type) -> Build | None:
    unit = _MILLIS_MICROS.get(written.logical or "")
    if unit is None:
        return None
    return lambda values: pa.array(values, pa.int64()).cast(pa.timestamp(unit, "UTC")).cast(kind)


def _times_of_day(kind: pa.DataType, written: Type) -> Build | None:
    if written.logical not in ("time-millis", "time-micros"):
        return None
    factor = 1_000 if written.logical == "time-millis" else 1

    def build(values: Values) -> pa.Array:
        numbers = [None if each is None else each * factor for each in values]
        if any(each is not None and not 0 <= each < _DAY_US for each in numbers):
            raise ValueError("a time of day lies outside of the day")
        return pa.array(numbers, pa.int64()).view(kind)

    return build


def _dates(kind: pa.DataType, written: Type) -> Build | None:
    if written.logical != "date":
        return None
    return lambda values: pa.array(values, pa.int32()).cast(kind)


def _decimals(kind: pa.DataType, written: Type) -> Build | None:
    if written.logical != "decimal" or written.scale > kind.scale:
        return None
    scale = -written.scale

    def value(data: bytes | None) -> Decimal | None:
        if data is None:
            return None
        if len(data) > _DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {len(data):,} bytes")
        return _EXACT.scaleb(Decimal(int.from_bytes(data, "big", signed=True)), scale)

    return lambda values: pa.array([value(each) for each in values], kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz == "UTC")


_BUILDERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Type], Build | None]], ...] = (
    (pa.types.is_integer, _integers),
    (lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind), _floats),
    (pa.types.is_boolean, _booleans),
    (_is_text, _texts),
    (_is_bytes, _binaries),
    (_is_time, _times),
    (pa.types.is_date32, _dates),
    (lambda kind: bool(kind == pa.time64("us")), _times_of_day),
    (lambda kind: pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind), _decimals),
)
"""By the type of the column: whether it is this one, and how values of a type of Avro become it; None: they do not."""
