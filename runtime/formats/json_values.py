"""Lists, objects and maps in JSON to columns, as strictly as flat values.

msgspec reads the parts of an object, and distinguishes text from numbers; a part within them becomes a column as a flat
value does (json_lines.py). Objects without fixed names are maps.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.runtime.formats.halving import UndecodableLines

Form = tuple[pa.DataType, Callable[[pa.Array], pa.Array]]
"""The type that a flat value is read as, and the function that makes a column of it."""
FormOf = Callable[[pa.Field], Form]
_DEPTH_MAX = 64
"""Parts within parts of a schema; no data has more."""


class NestedJson:
    """Reads one column out of its JSON values.

    Args:
        field: A list, struct or map.
        form_of: Returns how flat values are read. Raises ConfigError: they have no form in JSON.
    """

    def __init__(self, field: pa.Field, form_of: FormOf) -> None:
        self._name = field.name
        self._decode = msgspec.json.Decoder(_type_of(field, form_of)).decode
        self._build = _builder(field, form_of)

    def column(self, values: Sequence[msgspec.Raw | None]) -> pa.Array:
        """Return the values as a column; None is null. Raises UndecodableLines."""
        decode = self._decode
        try:
            return self._build([None if value is None else decode(value) for value in values])
        except (msgspec.DecodeError, pa.ArrowInvalid, ValueError, OverflowError) as error:
            raise UndecodableLines(f"column {self._name!r}: {str(error).splitlines()[0]}") from None
        except RecursionError:
            raise UndecodableLines("it is nested too deeply") from None


def is_nested(kind: pa.DataType) -> bool:
    """Return whether a column can be read here: lists, structs, and maps from text."""
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type))
    return bool(_is_list(kind) or (pa.types.is_struct(kind) and kind.num_fields))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _type_of(field: pa.Field, form_of: FormOf, depth: int = 0) -> Any:
    """Return the type that msgspec checks; nulls are allowed everywhere, and checked later."""
    kind = field.type
    assert depth <= _DEPTH_MAX, "a schema without an end"
    if _is_list(kind):
        return list[_type_of(_part(field, kind.value_field), form_of, depth + 1)] | None  # type: ignore[misc]
    if pa.types.is_map(kind) and is_nested(kind):
        return dict[str, _type_of(_part(field, kind.item_field), form_of, depth + 1)] | None  # type: ignore[misc]
    if pa.types.is_struct(kind) and kind.num_fields:
        inner = {each.name: NotRequired[_type_of(_part(field, each), form_of, depth + 1)] for each in kind}
        return TypedDict("Object", inner) | None  # type: ignore[operator]
    read_as, _ = form_of(field)
    return _plain(read_as)


def _plain(read_as: pa.DataType) -> Any:
    if pa.types.is_integer(read_as):
        return int | None
    if pa.types.is_floating(read_as):
        return float | None
    if pa.types.is_boolean(read_as):
        return bool | None
    if pa.types.is_decimal(read_as):
        return Decimal | None
    return str | None


def _part(of: pa.Field, inner: pa.Field) -> pa.Field:
    """Return the field within a column, under the column's name, which messages use."""
    return pa.field(of.name, inner.type)


def _builder(field: pa.Field, form_of: FormOf) -> Callable[[list[Any]], pa.Array]:
    """Return the function that makes a column of values that msgspec has checked."""
    kind = field.type
    if _is_list(kind):
        return _lists(kind, _builder(_part(field, kind.value_field), form_of))
    if pa.types.is_map(kind) and is_nested(kind):
        return _maps(kind, _builder(_part(field, kind.item_field), form_of))
    if pa.types.is_struct(kind) and kind.num_fields:
        return _structs(kind, [(each.name, _builder(_part(field, each), form_of)) for each in kind])
    read_as, convert = form_of(field)
    return lambda values: convert(pa.array(values, read_as))


def _lists(kind: pa.DataType, items: Callable[[list[Any]], pa.Array]) -> Callable[[list[Any]], pa.Array]:
    array_type = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray

    def build(values: list[Any]) -> pa.Array:
        inner = items(list(chain.from_iterable(filter(None, values))))
        return array_type.from_arrays(_offsets(values, kind), inner, type=kind, mask=_missing(values))

    return build


def _maps(kind: pa.DataType, items: Callable[[list[Any]], pa.Array]) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        filled = [each for each in values if each]
        keys = pa.array(list(chain.from_iterable(filled)), kind.key_type)
        inner = items(list(chain.from_iterable(each.values() for each in filled)))
        return pa.MapArray.from_arrays(_offsets(values, kind), keys, inner, type=kind, mask=_missing(values))

    return build


def _structs(
    kind: pa.DataType, parts: Sequence[tuple[str, Callable[[list[Any]], pa.Array]]]
) -> Callable[[list[Any]], pa.Array]:
    def build(values: list[Any]) -> pa.Array:
        children = [make([None if row is None else row.get(name) for row in values]) for name, make in parts]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_missing(values))

    return build


def _offsets(values: list[Any], kind: pa.DataType) -> pa.Array:
    sizes = np.cumsum([0, *(len(each) if each else 0 for each in values)])
    return pa.array(sizes.astype(np.int64 if pa.types.is_large_list(kind) else np.int32))


def _missing(values: list[Any]) -> pa.Array | None:
    missing = [each is None for each in values]
    return pa.array(missing, pa.bool_()) if any(missing) else None
