"""Values of nested columns as bytes, in MessagePack, for state: lists are arrays, structs and maps are maps.

Points in time are MessagePack's timestamps; dates, times of day, durations and decimals are texts; all others are
themselves. A struct is read by the names of its fields.

Pure.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa

_DEPTH_MAX = 64
_ENCODE = msgspec.msgpack.Encoder().encode


def is_packed(kind: pa.DataType) -> bool:
    """Return whether a type is nested, and made of types whose values have a form here."""
    return bool(pa.types.is_nested(kind)) and _type_of(kind) is not None


def packed(column: pa.Array) -> pa.Array:
    """Return the values of a nested column as bytes; null for null."""
    values = column.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if value is None else _ENCODE(value) for value in values], pa.large_binary())


def unpacked(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column of this type whose values these bytes are."""
    decode = _decoder(kind).decode
    return pa.array([None if value is None else decode(value) for value in values.to_pylist()], kind)


@lru_cache(maxsize=256)
def _decoder(kind: pa.DataType) -> Any:
    return msgspec.msgpack.Decoder(_type_of(kind))


def _type_of(kind: pa.DataType, depth: int = 0) -> Any:
    """Return the type of Python as which values are read; None: values have no form here."""
    assert depth <= _DEPTH_MAX, "a type without an end"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _type_of(kind.value_type, depth + 1)
        return None if item is None else list[item | None]  # type: ignore[valid-type]
    if pa.types.is_map(kind):
        item = _type_of(kind.item_type, depth + 1) if pa.types.is_string(kind.key_type) else None
        return None if item is None else dict[str, item | None]  # type: ignore[valid-type]
    if pa.types.is_struct(kind):
        inner = {field.name: _type_of(field.type, depth + 1) for field in kind}
        if None in inner.values() or not inner:
            return None
        return TypedDict("Struct", {name: NotRequired[each | None] for name, each in inner.items()})  # type: ignore[operator]
    return next((python for fits, python in _FLAT if fits(kind)), None)


def _has_no_nanoseconds(kind: pa.DataType) -> bool:
    return bool(
        (pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind)) and kind.unit != "ns"
    )


_FLAT: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind), float),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), str),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), bytes),
    (pa.types.is_date32, date),
    (pa.types.is_decimal128, Decimal),
    (lambda kind: _has_no_nanoseconds(kind) and pa.types.is_timestamp(kind), datetime),
    (lambda kind: _has_no_nanoseconds(kind) and pa.types.is_time(kind), time),
    (lambda kind: _has_no_nanoseconds(kind) and pa.types.is_duration(kind), timedelta),
)
