"""Avro schemas: what their JSON text says, as values, and the schema that the codec is given in their place.

The codec sees integers, bytes and text only. Logical types, enums, booleans and floats have the encoding of an integer
or of some bytes; what these mean is decided where columns are made, strictly and a column at a time.

Invariants
    - A parsed schema is finite: a type that contains itself is refused, as its values could exhaust the stack.
    - Every item of an array takes at least one byte, so no count makes a decoder run longer than its input.
    - A logical type that is unknown, or not valid where it stands, is ignored, as the specification asks.

Pure: values in, values out. Source: Avro 1.12 specification; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL: Mapping[str, tuple[str, ...]] = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
}
_SIZES: Mapping[str, int] = {"uuid": 16, "duration": 12}
"""The size of a fixed that a logical type needs."""
WIDTHS: Mapping[str, int] = {"boolean": 1, "float": 4, "double": 8}
"""Bytes of the primitives that the codec takes as a fixed."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEPTH_MAX = 64
"""Types within types."""


class BadSchema(Exception):
    """A text is not a schema that Holdfast can work with; the message says why."""


@dataclass(frozen=True)
class Type:
    """One type of a schema.

    Args:
        kind: A primitive, or "record", "enum", "array", "map", "union", "fixed".
        logical: The logical type, if it is a valid one.
        name: The full name of a record, enum or fixed.
        fields: Names and types of a record's fields, in order.
        items: The items of an array, or the values of a map.
        branches: Branches of a union, in order.
        size: Bytes of a fixed.
    """

    kind: str
    logical: str | None = None
    name: str = ""
    fields: tuple[tuple[str, Type], ...] = ()
    items: Type | None = None
    branches: tuple[Type, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        if self.kind in ("array", "map"):
            return f"{self.kind} of {self.items}"
        if self.logical == "decimal":
            return f"{self.kind} (decimal {self.precision}, {self.scale})"
        return f"{self.kind} ({self.logical})" if self.logical else f"{self.kind} {self.name}".rstrip()

    @property
    def without_null(self) -> tuple[Type, bool]:
        """The type without null, and whether it may be null. A union of several other types stays one."""
        if self.kind != "union":
            return self, self.kind == "null"
        others = tuple(each for each in self.branches if each.kind != "null")
        nullable = len(others) < len(self.branches)
        if not others:
            return self.branches[0], True
        return (others[0] if len(others) == 1 else replace(self, branches=others)), nullable


def parsed(text: str, references: Sequence[str] = ()) -> Type:
    """Return the schema that a text describes.

    Args:
        references: Texts of the schemas that define names which the text uses, each after those that it uses itself.

    Raises:
        BadSchema: it is no schema, is recursive, or has arrays whose items take no bytes.
    """
    parser = _Parser()
    for each in (*references, text):
        try:
            given = json.loads(each)
        except ValueError:
            raise BadSchema("it is not JSON") from None
        found = parser.type(given, "", 0)
    return found


class _Parser:
    """Knows the names that were defined so far; those that are being defined are None."""

    def __init__(self) -> None:
        self._named: dict[str, Type | None] = {}

    def type(self, given: Any, space: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise BadSchema(f"it is nested more than {DEPTH_MAX} types deep")
        if isinstance(given, str):
            return Type(given) if given in PRIMITIVES else self._of_name(given, space)
        if isinstance(given, list):
            return self._union(given, space, depth)
        if not isinstance(given, dict) or "type" not in given:
            raise BadSchema(f"{_shown(given)} is not a type")
        match given["type"]:
            case "array" | "map" as kind:
                return self._items(kind, given, space, depth)
            case "record" | "error" | "enum" | "fixed" as kind:
                return self._defined(kind, given, space, depth)
            case kind:
                return _logical(self.type(kind, space, depth + 1), given)

    def _of_name(self, name: str, space: str) -> Type:
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named and name in self._named:
            full = name
        if full not in self._named:
            raise BadSchema(f"it uses the type {name!r}, which it does not define")
        found = self._named[full]
        if found is None:
            raise BadSchema(f"the type {name!r} contains itself, and recursive types are not supported")
        return found

    def _union(self, given: list[Any], space: str, depth: int) -> Type:
        branches = tuple(self.type(each, space, depth + 1) for each in given)
        if not branches or any(each.kind == "union" for each in branches):
            raise BadSchema("a union is empty, or contains a union")
        return Type("union", branches=branches)

    def _items(self, kind: str, given: dict[str, Any], space: str, depth: int) -> Type:
        of = "items" if kind == "array" else "values"
        if of not in given:
            raise BadSchema(f"a type {kind!r} lacks {of!r}")
        items = self.type(given[of], space, depth + 1)
        if kind == "array" and not _takes_bytes(items):
            raise BadSchema(f"the items of an array are {items}, which takes no bytes")
        return Type(kind, items=items)

    def _defined(self, kind: str, given: dict[str, Any], space: str, depth: int) -> Type:
        """Return a record, enum or fixed, and remember its name."""
        name = given.get("name")
        if not isinstance(name, str) or not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise BadSchema(f"a type {kind!r} has no valid name: {_shown(name)}")
        space = name.rpartition(".")[0] if "." in name else str(given.get("namespace") or space)
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self._named:
            raise BadSchema(f"it defines the type {full!r} twice")
        self._named[full] = None
        if kind == "enum":
            named_type = Type("enum", name=full, symbols=_symbols(full, given.get("symbols")))
        elif kind == "fixed":
            named_type = _logical(Type("fixed", name=full, size=_size(full, given.get("size"))), given)
        else:
            named_type = Type("record", name=full, fields=self._fields(full, given.get("fields"), space, depth))
        self._named[full] = named_type
        return named_type

    def _fields(self, of: str, given: Any, space: str, depth: int) -> tuple[tuple[str, Type], ...]:
        if not isinstance(given, list) or not all(isinstance(each, dict) and "type" in each for each in given):
            raise BadSchema(f"the fields of {of!r} are not a list of objects with names and types")
        names = [each.get("name") for each in given]
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or names.count(name) > 1:
                raise BadSchema(f"{of!r} has no valid name for a field, or has it twice: {_shown(name)}")
        return tuple((str(each["name"]), self.type(each["type"], space, depth + 1)) for each in given)


def codec_schema(whole: Type, wanted: Sequence[str] | None = None) -> dict[str, Any] | str | list[Any]:
    """Return the schema with the same encoding that has only integers, bytes, text and what contains them.

    Args:
        wanted: The fields of the outer record whose text is read as text; that of others is taken as bytes, which need
            not be UTF-8. None: all.
    """
    numbers = count()

    def fixed(size: int) -> dict[str, Any]:
        return {"type": "fixed", "name": f"f{next(numbers)}", "size": size}

    def of(kind: Type, text: bool, outer: bool = False) -> dict[str, Any] | str | list[Any]:
        if kind.kind in WIDTHS:
            return fixed(WIDTHS[kind.kind])
        if kind.kind == "fixed":
            return fixed(kind.size)
        if kind.kind in ("int", "long", "enum"):
            return "long"
        if kind.kind == "string":
            return "string" if text else "bytes"
        if kind.kind == "union":
            return [of(each, text) for each in kind.branches]
        if kind.kind in ("array", "map"):
            assert kind.items is not None
            return {"type": kind.kind, "items" if kind.kind == "array" else "values": of(kind.items, text)}
        if kind.kind == "record":
            name = f"r{next(numbers)}"
            keep = [text and (not outer or wanted is None or name in wanted) for name, _ in kind.fields]
            fields = [{"name": each, "type": of(its, k)} for (each, its), k in zip(kind.fields, keep, strict=True)]
            return {"type": "record", "name": name, "fields": fields}
        return kind.kind

    return of(whole, True, True)


def _logical(found: Type, given: dict[str, Any]) -> Type:
    """Return a type with the logical type that its JSON gives it, if that is valid."""
    logical = given.get("logicalType")
    if not isinstance(logical, str) or found.kind not in _LOGICAL.get(logical, ()):
        return found
    if found.kind == "fixed" and logical in _SIZES and found.size != _SIZES[logical]:
        return found
    if logical != "decimal":
        return replace(found, logical=logical)
    precision: Any = given.get("precision")
    scale: Any = given.get("scale", 0)
    if not (_is_number(precision) and _is_number(scale) and 0 <= scale <= precision and precision > 0):
        return found
    return replace(found, logical=logical, precision=precision, scale=scale)


def _symbols(of: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise BadSchema(f"the symbols of {of!r} are not a list of texts")
    return tuple(given)


def _size(of: str, given: Any) -> int:
    if not _is_number(given) or given < 0:
        raise BadSchema(f"the size of {of!r} is {_shown(given)}")
    return int(given)


def _takes_bytes(kind: Type) -> bool:
    if kind.kind == "record":
        return any(_takes_bytes(each) for _, each in kind.fields)
    return kind.kind != "null" and (kind.kind != "fixed" or kind.size > 0)


def _is_number(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _shown(given: Any) -> str:
    return repr(given)[:80]
