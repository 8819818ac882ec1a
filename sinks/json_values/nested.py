"""Lists, structs and maps as JSON: arrays and objects, whose parts have the forms of flat values in json_rows.py.

Members of an object are in the order of the struct or of the map; there is no white space. So equal values have equal
texts.

Pure: values in, values out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PER_US: Mapping[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_ENCODE = msgspec.json.Encoder().encode
Plain = Callable[[Any], Any]


def texts(column: pa.Array, form: str = "rfc3339") -> list[bytes]:
    """Return the values of a nested column as JSON; `null` for null.

    Args:
        form: How points in time are written: as text, or as a number of "s", "ms" or "us".
    """
    plain = _plain(column.type, form)
    values = column.to_pylist(maps_as_pydicts="lossy")
    return [_ENCODE(value if plain is None or value is None else plain(value)) for value in values]


def column_of(values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Return the nested column of this type that `texts` wrote."""
    plain = _read(kind)
    decoded = [None if value is None else msgspec.json.decode(value) for value in values]
    return pa.array([None if value is None else plain(value) for value in decoded], kind)


def is_nested(kind: pa.DataType) -> bool:
    """Return whether a type is a list, a struct, or a map from text."""
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type))
    return _is_list(kind) or bool(pa.types.is_struct(kind) and kind.num_fields)


def parts(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of a nested type's parts."""
    if pa.types.is_map(kind):
        return [kind.item_type]
    return [field.type for field in kind] if pa.types.is_struct(kind) else [kind.value_type]


def all_finite(column: pa.Array) -> bool:
    """Return whether a column of any type holds neither NaN nor infinities."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.all(pc.is_finite(column), min_count=0).as_py())
    if pa.types.is_struct(kind):
        return all(map(all_finite, column.flatten()))
    if pa.types.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        return all_finite(entries.flatten().field("value"))
    return all_finite(column.flatten()) if _is_list(kind) else True


def text_of_time(value: time) -> str:
    """Return a time of day with six digits after the seconds."""
    return value.isoformat(timespec="microseconds")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType, form: str) -> Plain | None:
    """Return the function that converts a value, which is not null, for msgspec; None: msgspec needs none."""
    if _is_list(kind):
        return _each(_plain(kind.value_type, form))
    if pa.types.is_map(kind):
        return _members(_plain(kind.item_type, form))
    if pa.types.is_struct(kind):
        named = {field.name: made for field in kind if (made := _plain(field.type, form)) is not None}
        return _fields(named) if named else None
    if pa.types.is_timestamp(kind):
        return _time_text if form == "rfc3339" else lambda value: (value - _EPOCH) // _MICROSECOND // _PER_US[form]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return _decimal_text
    if pa.types.is_date(kind):
        return date.isoformat
    if pa.types.is_float32(kind):
        return lambda value: float(str(np.float32(value)))
    return text_of_time if pa.types.is_time(kind) else None


def _read(kind: pa.DataType) -> Plain:
    """Return the function that converts a value of JSON, which is not null, for Arrow."""
    if _is_list(kind):
        item = _read(kind.value_type)
        return lambda values: [None if each is None else item(each) for each in values]
    if pa.types.is_map(kind):
        entry = _read(kind.item_type)
        return lambda values: [(name, None if each is None else entry(each)) for name, each in values.items()]
    if pa.types.is_struct(kind):
        named = {field.name: _read(field.type) for field in kind}
        return lambda value: {n: None if value[n] is None else read(value[n]) for n, read in named.items()}
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode
    for fits, made in ((pa.types.is_decimal, Decimal), (pa.types.is_date, date.fromisoformat)):
        if fits(kind):
            return made
    return time.fromisoformat if pa.types.is_time(kind) else lambda value: value


def _each(made: Plain | None) -> Plain | None:
    return None if made is None else lambda values: [None if each is None else made(each) for each in values]


def _members(made: Plain | None) -> Plain | None:
    if made is None:
        return None
    return lambda values: {name: None if each is None else made(each) for name, each in values.items()}


def _fields(named: Mapping[str, Plain]) -> Plain:
    def plain(value: dict[str, Any]) -> dict[str, Any]:
        return {n: named[n](each) if n in named and each is not None else each for n, each in value.items()}

    return plain


def _time_text(value: datetime) -> str:
    return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _decimal_text(value: Decimal) -> str:
    return f"{value:f}"
