"""Protobuf messages to columns: those of one message type.

| column | field |
|---|---|
| integer | int32, int64, uint32, uint64, fixed and signed ones; 32 bits only of int32, sint32, sfixed32 |
| double, float | double, float; float only of float |
| bool, string, binary | bool; string, enum; bytes |
| timestamp[us, UTC] | google.protobuf.Timestamp |
| the value's | google.protobuf.Int64Value and the other wrappers |
| struct, list, map | message, repeated, map |

Invariants
    - Which rows are refused, and why, depends on each row alone.
    - A field that was written with another wire type than the message's is found, in every message that becomes a
      column: the library keeps it among the unknown fields, and would give the default.

Pure. Source: protobuf.dev, encoding; docs/decisions/0094-protobuf-values.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.runtime.formats.halving import UndecodableLines, by_halves, without_nulls

Values = list[Any]
Build = Callable[[Values], pa.Array]
"""Makes a column of values as the library gives them, None for null. Raises ArrowInvalid or ValueError."""
TIME = pa.timestamp("us", "UTC")
_DOUBLE, _FLOAT, _BOOL, _STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 1, 2, 8, 9, 10, 11, 12, 14
"""Types of fields, as descriptors number them."""
_TYPES = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "a group"),
    *("a message", "bytes", "uint32", "an enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_INTEGERS, _NARROW = (3, 4, 5, 6, 7, 13, 15, 16, 17, 18), (5, 15, 17)
_NATURAL = {
    **dict.fromkeys(_INTEGERS, pa.int64()),
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float64(),
    _BOOL: pa.bool_(),
    _STRING: pa.utf8(),
    _BYTES: pa.binary(),
    _ENUM: pa.utf8(),
}
_ALSO = {**dict.fromkeys(_NARROW, pa.int32()), _FLOAT: pa.float32()}
"""Narrower columns that take every value of the type."""
_WELL_KNOWN = "google.protobuf."
TIMESTAMP = f"{_WELL_KNOWN}Timestamp"
_WRAPPERS = frozenset(
    f"{_WELL_KNOWN}{each}Value"
    for each in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which a Timestamp may have."""
_BILLION = 1_000_000_000


class Misfit(Exception):
    """A message does not fit the columns; the text names the field and the types."""


class ProtobufColumns:
    """Decodes values of one message type.

    Args:
        message: Its class, as the library makes it.
        schema: The columns.

    Raises:
        Misfit: a column cannot be read from this message.
    """

    def __init__(self, message: Any, schema: pa.Schema) -> None:
        self._message, self.schema = message, schema
        self._rows = _fields(message.DESCRIPTOR, list(schema), "")

    def decode(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> list[pa.RecordBatch]:
        """Return the rows of values, in order.

        Args:
            places: The index of each value, for `why`.
            why: Gets the values that are refused.
        """
        return list(by_halves(lines, places, why, self._together))

    def _together(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> pa.RecordBatch:
        rows, row_places = self._read(lines, places, why)
        try:
            columns = self._rows(rows)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise UndecodableLines(str(error).splitlines()[0]) from None
        return without_nulls(columns, self.schema, row_places, why)

    def _read(self, lines: Sequence[bytes], places: Sequence[int], why: dict[int, str]) -> tuple[Values, list[int]]:
        """Return the messages of values, and their places; refuse what is none."""
        from google.protobuf.message import DecodeError

        decode, name = self._message.FromString, self._message.DESCRIPTOR.full_name
        rows, row_places = [], []
        for line, place in zip(lines, places, strict=True):
            try:
                row = decode(line)
            except DecodeError:
                why[place] = f"it is not a message {name}"
                continue
            if not row.IsInitialized():
                lacking = ", ".join(row.FindInitializationErrors())
                why[place] = f"it lacks {lacking}, which a message {name} must have"
                continue
            rows.append(row)
            row_places.append(place)
        return rows, row_places


def columns_of(message: Any) -> pa.Schema:
    """Return the columns that a message's descriptor implies. Raises Misfit."""
    return pa.schema(_natural_fields(message, (message.full_name,), ""))


def _natural_fields(message: Any, within: tuple[str, ...], path: str) -> list[pa.Field]:
    if not message.fields:
        raise Misfit(f"{path or 'it'} is a message {message.full_name} without fields, which no column can hold")
    return [_natural(field, within, f"{path}.{field.name}".lstrip(".")) for field in message.fields]


def _natural(field: Any, within: tuple[str, ...], path: str) -> pa.Field:
    if _is_map(field):
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        inner = _natural_item(item, within, f"{path}{{}}")
        return pa.field(field.name, pa.map_(_natural_item(key, within, path), pa.field("value", inner, False)), False)
    if field.is_repeated:
        inner = _natural_item(field, within, f"{path}[]")
        return pa.field(field.name, pa.list_(pa.field("item", inner, False)), False)
    return pa.field(field.name, _natural_item(field, within, path), bool(field.has_presence))


def _natural_item(field: Any, within: tuple[str, ...], path: str) -> pa.DataType:
    if field.type in _NATURAL:
        return _NATURAL[field.type]
    name = "" if field.message_type is None else field.message_type.full_name
    if field.type == _GROUP:
        raise Misfit(f"{path} is a group")
    if name == TIMESTAMP:
        return TIME
    if name in _WRAPPERS:
        return _NATURAL[field.message_type.fields_by_name["value"].type]
    if name.startswith(_WELL_KNOWN):
        raise Misfit(f"{path} is a {name}, which no column can hold")
    if name in within:
        raise Misfit(f"{path} is a {name} within a {name}: columns of recursive messages have no end")
    return pa.struct(_natural_fields(field.message_type, (*within, name), path))


def _fields(message: Any, columns: Sequence[pa.Field], path: str) -> Callable[[Values], list[pa.Array]]:
    """Return how messages become these columns. Raises Misfit."""
    builders: list[tuple[str, bool, bool, Build]] = []
    paths_by_number: dict[int, str] = {}
    for column in columns:
        field, place = message.fields_by_name.get(column.name), f"{path}.{column.name}".lstrip(".")
        if field is None:
            raise Misfit(f"a message {message.full_name} has no field {place!r}")
        paths_by_number[field.number] = place
        plural = bool(field.is_repeated)
        builders.append(
            (field.name, bool(field.has_presence) and not plural, plural, _build(column.type, field, place))
        )

    def build(rows: Values) -> list[pa.Array]:
        _refuse_unknown(rows, paths_by_number)
        return [one(_read(rows, name, presence, plural)) for name, presence, plural, one in builders]

    return build


def _read(rows: Values, name: str, presence: bool, plural: bool) -> Values:
    if presence:
        return [getattr(row, name) if row.HasField(name) else None for row in rows]
    if plural:
        return [getattr(row, name) or None for row in rows]
    return [getattr(row, name) for row in rows]


def _refuse_unknown(rows: Values, known: dict[int, str]) -> None:
    """Refuse messages that hold a column's field among those that the library could not read."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for row in rows:
        for each in UnknownFieldSet(row):
            if each.field_number in known:
                raise ValueError(
                    f"field {known[each.field_number]!r} (number {each.field_number}) is not written as its type: it "
                    "has another wire type, or a number that its enum does not name"
                )


def _build(kind: pa.DataType, field: Any, path: str) -> Build:
    """Return how the values of a field become a column. Raises Misfit."""
    if _is_map(field):
        if not pa.types.is_map(kind):
            raise _unlike(kind, path, "a map")
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        return _map(kind, _item(kind.key_type, key, path), _item(kind.item_type, item, f"{path}{{}}"))
    if field.is_repeated:
        if not pa.types.is_list(kind):
            raise _unlike(kind, path, "repeated")
        return _list(kind, _item(kind.value_type, field, f"{path}[]"))
    return _item(kind, field, path)


def _item(kind: pa.DataType, field: Any, path: str) -> Build:
    """Return how single values become a column. Raises Misfit."""
    name = "" if field.message_type is None else field.message_type.full_name
    if name == TIMESTAMP and kind == TIME:
        return _times(path)
    if name in _WRAPPERS:
        inner = _item(kind, field.message_type.fields_by_name["value"], path)
        known = {1: path}
        return lambda values: inner(_unwrapped(values, known))
    if field.type == _MESSAGE and pa.types.is_struct(kind) and kind.num_fields and not name.startswith(_WELL_KNOWN):
        return _struct(kind, field.message_type, path)
    if field.type not in _NATURAL or kind not in (_NATURAL[field.type], _ALSO.get(field.type)):
        raise _unlike(kind, path, name or _TYPES[field.type])
    if field.type == _ENUM:
        return _names(field.enum_type, path)
    return lambda values: _of(values, kind, path)


def _of(values: Values, kind: pa.DataType, path: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ValueError(f"field {path!r}: {str(error).splitlines()[0]}") from None


def _unwrapped(values: Values, known: dict[int, str]) -> Values:
    _refuse_unknown([each for each in values if each is not None], known)
    return [None if each is None else each.value for each in values]


def _names(enum: Any, path: str) -> Build:
    by_number = {number: each.name for number, each in enum.values_by_number.items()}

    def build(values: Values) -> pa.Array:
        for each in values:
            if each is not None and each not in by_number:
                raise ValueError(f"field {path!r} is {each}, a number that enum {enum.full_name} does not name")
        return pa.array([None if each is None else by_number[each] for each in values], pa.utf8())

    return build


def _times(path: str) -> Build:
    known = {1: f"{path}.seconds", 2: f"{path}.nanos"}

    def build(values: Values) -> pa.Array:
        _refuse_unknown([each for each in values if each is not None], known)
        return pa.array([None if each is None else _micros(each, path) for each in values], pa.int64()).cast(TIME)

    return build


def _micros(time: Any, path: str) -> int:
    seconds, nanos = int(time.seconds), int(time.nanos)
    if not (_FIRST_S <= seconds <= _LAST_S and 0 <= nanos < _BILLION):
        raise ValueError(f"field {path!r} is no time: {seconds} seconds and {nanos} nanoseconds")
    return seconds * 1_000_000 + nanos // 1_000


def _struct(kind: pa.DataType, message: Any, path: str) -> Build:
    fields = list(kind)
    build_fields = _fields(message, fields, path)

    def build(values: Values) -> pa.Array:
        present_values = [each for each in values if each is not None]
        inner = build_fields(present_values)
        for field, column in zip(fields, inner, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"field {path}.{field.name} is null, which the job's schema does not allow")
        whole = pa.StructArray.from_arrays(inner, fields=fields)
        if len(present_values) == len(values):
            return whole
        places = np.cumsum([each is not None for each in values]) - 1
        mask = np.array([each is None for each in values], bool)
        return whole.take(pa.array(places, pa.int64(), mask=mask))

    return build


def _list(kind: pa.DataType, items: Build) -> Build:
    def build(values: Values) -> pa.Array:
        flat = items(list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(_offsets(values), flat, type=kind)

    return build


def _map(kind: pa.DataType, keys: Build, items: Build) -> Build:
    def build(values: Values) -> pa.Array:
        pairs = [pair for each in values if each is not None for pair in each.items()]
        inner = keys([key for key, _ in pairs]), items([item for _, item in pairs])
        return pa.MapArray.from_arrays(_offsets(values), *inner, type=kind)

    return build


def _offsets(values: Values) -> pa.Array:
    sizes = [0 if each is None else len(each) for each in values]
    return pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))


def _is_map(field: Any) -> bool:
    return bool(field.type == _MESSAGE and field.message_type.GetOptions().map_entry)


def _unlike(kind: pa.DataType, path: str, found: str) -> Misfit:
    return Misfit(f"field {path!r} is {found}, from which a column of type {kind} cannot be read exactly")
