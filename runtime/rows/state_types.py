"""Types of values in the state of keyed functions: which are taken, how they are stored, which may follow which.

Numbers, text, bytes and booleans have their own columns. Any other value is bytes in MessagePack, which names the
fields of dataclasses: a field may be added with a default, or removed, and the kept values are still read. Values that
are not set again keep a removed field, so its type is remembered: a later field of that name must have it.

Invariants
    - A value that is read is of the declared type; a value of another type is refused when it is set, never guessed.
    - Stored values do not change when an object that was got or set changes.

Pure.
Source: docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec
import msgspec.inspect as inspected
import numpy as np
import pyarrow as pa

from holdfast.state.tables.spec import VALUE_BYTES_MAX, ColumnSpec

MSGSPEC_CACHE = "__msgspec_cache__"
"""The attribute in which msgspec caches its analysis of a class, on the class."""
_PLAIN: Mapping[type, tuple[Any, pa.DataType]] = {
    bool: (np.dtype(np.bool_), pa.bool_()),
    int: (np.dtype(np.int64), pa.int64()),
    float: (np.dtype(np.float64), pa.float64()),
    str: (pa.large_utf8(), pa.large_utf8()),
    bytes: (pa.large_binary(), pa.large_binary()),
}
MAP_KEYS: Mapping[type, pa.DataType] = {int: pa.int64(), str: pa.utf8(), bytes: pa.binary(), bool: pa.bool_()}
"""Types that keys of a Map may have."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

Shape = dict[str, Any]
"""A type as JSON-able values: {"type": ...}, and its parts; `removed` are fields that only kept values have."""


class WrongValue(TypeError):
    """A value that state of a declared type does not take."""


@dataclass(frozen=True)
class StateType:
    """How values of one declared type are stored."""

    column: ColumnSpec
    arrow: pa.DataType
    encode: Callable[[Any], Any]
    """Returns the stored form of a value. Raises WrongValue."""
    decode: Callable[[Any], Any] | None
    """Returns a new value from its stored form; None: stored values are immutable and are the values themselves."""


def state_type(name: str, declared: Any) -> StateType:
    """Return how the values of a declared type are stored in a column of this name."""
    if _is_plain(declared):
        dtype, arrow = _PLAIN[declared]
        return StateType(ColumnSpec(name, dtype, nullable=True), arrow, _taker(declared), None)
    decode = msgspec.msgpack.Decoder(declared).decode
    _inspected(declared)
    return StateType(
        ColumnSpec(name, pa.large_binary(), nullable=True), pa.large_binary(), _packer(declared, decode), decode
    )


def misfit(declared: Any) -> str | None:
    """Return why values of a type cannot be kept; None if they can."""
    if _is_plain(declared):
        return None
    if declared is None or type(None) in get_args(declared):
        return "None means that there is no value, so the type cannot include it"
    try:
        msgspec.msgpack.Decoder(declared)
        found = _inspected(declared)
    except (TypeError, NameError) as error:
        return str(error)
    return _unknown(found, ())


def shape_of(declared: Any) -> Shape:
    """Return a type that `misfit` accepts in the form that checkpoints keep."""
    return _shape(_inspected(declared), ())


def change(before: Shape, now: Shape) -> str | None:
    """Return why values stored as one type cannot be read as another; None if they can."""
    if before == now:
        return None
    if before["type"] != now["type"] or before["type"] != "object":
        return f"{shown(before)} became {shown(now)}"
    former_fields = _fields_ever(before)
    for name, field in now["fields"].items():
        if name not in before["fields"] and field["required"]:
            return f"field {name!r} was added without a default"
        if name in former_fields and (why := change(former_fields[name]["is"], field["is"])) is not None:
            removed = "" if name in before["fields"] else ", removed earlier but still in kept values"
            return f"field {name!r}{removed}: {why}"
    return None


def with_removed(before: Any, now: Any) -> Any:
    """Return a shape that remembers the fields that the kept values of an earlier shape may still have.

    Args:
        before: The earlier shape, which `change` allows, or JSON-able values with shapes inside.
        now: The present shape, or values of the same form; earlier values that it lacks are left out, except fields.
    """
    match before, now:
        case {"type": "object", "fields": _}, {"type": "object", "fields": fields}:
            known = _fields_ever(before)
            removed = {name: field for name, field in known.items() if name not in fields}
            kept = {name: with_removed(known.get(name), field) for name, field in fields.items()}
            return now | {"fields": kept} | ({"removed": removed} if removed else {})
        case dict(), dict():
            return {name: with_removed(before.get(name), value) for name, value in now.items()}
        case list(), list() if len(before) == len(now):
            return list(map(with_removed, before, now))
    return now


def shown(shape: Shape) -> str:
    """Return a type as text for messages."""
    inner = [shown(part) for part in shape.get("of", ())]
    return str(shape.get("name", shape["type"])) + (f"[{', '.join(inner)}]" if inner else "")


def _fields_ever(shape: Shape) -> dict[str, Any]:
    """Return the fields that kept values of an object may have."""
    return {**shape.get("removed", {}), **shape["fields"]}


def _is_plain(declared: Any) -> bool:
    return any(declared is kind for kind in _PLAIN)


def _taker(kind: Any) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if type(value) is kind or (kind is float and type(value) is int):
            if kind is int and not INT_MIN <= value <= INT_MAX:
                raise WrongValue(f"{value} does not fit into 64 bits")
            return kind(value)
        raise WrongValue(f"the state takes {kind.__name__}, not {type(value).__name__} {value!r:.80}")

    return take


def _packer(declared: Any, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    encode = msgspec.msgpack.Encoder().encode

    def pack(value: Any) -> bytes:
        try:
            data = encode(value)
            decode(data)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongValue(
                f"the state takes {declared!r}, not {type(value).__name__} {value!r:.80}: {error}"
            ) from error
        if len(data) > VALUE_BYTES_MAX:
            raise WrongValue(f"the value has {len(data):,} bytes; a value has at most {VALUE_BYTES_MAX:,}")
        return data

    return pack


def _inspected(declared: Any) -> Any:
    """Return msgspec's analysis of a type, and make the user's classes fit to be sent to workers as values.

    A class with the cache of msgspec on it cannot be pickled, and existing decoders do not need that cache. Annotations
    that are texts, as all are after `from __future__ import annotations`, mean nothing to a worker: it has no module of
    that name to look them up in. So classes get what they stand for.
    """
    found = inspected.type_info(declared)
    _make_sendable(found, ())
    return found


def _make_sendable(info: Any, seen: tuple[Any, ...]) -> None:
    kind: Any = getattr(info, "cls", None)
    if kind is not None and kind in seen:
        return
    if kind is not None and MSGSPEC_CACHE in vars(kind):
        delattr(kind, MSGSPEC_CACHE)
    if hasattr(info, "fields"):
        _resolve_annotations(kind)
    for each in _inner(info):
        _make_sendable(each, (*seen, kind))


def _resolve_annotations(kind: type) -> None:
    for base in kind.__mro__:
        own = vars(base).get("__annotations__", {})
        if any(isinstance(each, str) for each in own.values()):
            hints = get_type_hints(base, include_extras=True)
            base.__annotations__ = {name: hints[name] for name in own}


def _inner(info: Any) -> list[Any]:
    """Return the types inside a type, with those of fields."""
    return [*_parts(info), *(field.type for field in getattr(info, "fields", ()))]


def _parts(info: Any) -> list[Any]:
    """Return the types inside a type, without those of fields."""
    inner_types: list[Any] = []
    for name in ("item_type", "key_type", "value_type"):
        inner_types += [getattr(info, name)] if hasattr(info, name) else []
    for name in ("item_types", "types"):
        inner_types += getattr(info, name, ())
    return inner_types


def _unknown(info: Any, seen: tuple[Any, ...]) -> str | None:
    if info.__class__ in (inspected.CustomType, inspected.AnyType, inspected.RawType, inspected.ExtType):
        kind = getattr(info, "cls", None)
        return f"{'Any' if kind is None else kind.__qualname__} is not a type whose values can be stored and checked"
    kind = getattr(info, "cls", None)
    if kind is not None and kind in seen:
        return None
    return next((why for each in _inner(info) if (why := _unknown(each, (*seen, kind))) is not None), None)


def _shape(info: Any, seen: tuple[Any, ...]) -> Shape:
    kind: Any = getattr(info, "cls", None)
    if hasattr(info, "fields"):
        if kind in seen:
            return {"type": "object", "name": kind.__name__, "fields": {}, "again": True}
        fields = {
            field.name: {"is": _shape(field.type, (*seen, kind)), "required": field.required} for field in info.fields
        }
        return {"type": "object", "name": kind.__name__, "fields": fields}
    name = type(info).__name__.removesuffix("Type").lower()
    shape: Shape = {"type": name}
    if parts := _parts(info):
        shape["of"] = [_shape(part, seen) for part in parts]
    if name in ("enum", "literal"):
        shape["values"] = sorted(map(str, getattr(info, "values", None) or [member.value for member in kind]))
    return shape
