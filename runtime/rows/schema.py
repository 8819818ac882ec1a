"""Column types from a user's dataclass or Arrow schema.

| annotation | column | | annotation | column |
|---|---|---|---|---|
| int | int64 | | bytes | binary |
| float | double | | datetime | timestamp[us, UTC] |
| str | string | | date | date32 |
| bool | bool | | Annotated[Decimal, pa.decimal128(p, s)] | decimal128(p, s) |
| time | time64[us] | | Enum, UUID, Literal, list[T], dict[str, T], a dataclass | see nested/fields.py |

`T | None` is nullable, every other annotation is not. A plain Decimal is refused: the annotation does not give the
scale that keeps every value exact, and a guessed one would round silently.

A field may have another name in the data than in the dataclass, `field(alias="_id")`. A source reads, and a sink
writes, the name in the data; all between them see the name in the dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.rows.nested.fields import Chosen, FieldType, Uuid
from holdfast.runtime.rows.nested.types import ListOf, MapOf, Nested, NestedPart
from holdfast.runtime.wire.uuids import UUID

COLUMN_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.utf8(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
    time: pa.time64("us"),
}
_SUPPORTED = (
    "int, float, str, bool, bytes, datetime, date, time, UUID, Annotated[Decimal, pa.decimal128(p, s)], an Enum or "
    "Literal of text or integers, list[T], dict[str, T] or a dataclass, each also | None"
)
ALIAS = "holdfast.alias"
"""Where a dataclass's field keeps its name in the data."""
RESERVED = frozenset({"_error", "_form", "_raw", "_op", "_row"})
"""Names in the data that batches have for themselves."""
_CHOSEN: dict[type, pa.DataType] = {str: pa.utf8(), int: pa.int64(), bool: pa.bool_(), bytes: pa.binary()}
"""Types that the values of an Enum or a Literal may have."""
_INT64_MAX = 2**63


def field(
    *, alias: str | None = None, default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING
) -> Any:
    """Describe a field of a dataclass of rows.

    Args:
        alias: Its name in the data, if that is not a valid name in Python or begins with an underscore: sources read
            it, and sinks write it. For type checkers, `id: Annotated[int, hf.field(alias="_id")]` has no default.
        default: As of `dataclasses.field`, like the next one.
        default_factory: Returns the default.

    Raises:
        ConfigError: the alias cannot be the name of a column.
    """
    if alias is not None and (not isinstance(alias, str) or not alias or "\0" in alias or _is_reserved(alias)):
        raise _refused(f"hf.field: {alias!r} cannot be the name of a field in the data", "give its name as text")
    metadata = {} if alias is None else {ALIAS: alias}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _is_reserved(name: str) -> bool:
    return name in RESERVED or name.startswith("_holdfast")


def schema_of(described: type | pa.Schema) -> pa.Schema:
    """Return the columns that a dataclass or an Arrow schema describes, without metadata.

    Raises:
        ConfigError: not a dataclass, no field, an annotation that cannot be resolved or has no column type.
    """
    if isinstance(described, pa.Schema):
        _check_names(described.names, "the schema")
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in described])
    if not isinstance(described, type) or not dataclasses.is_dataclass(described):
        hint = " (give the class, not an instance)" if dataclasses.is_dataclass(described) else ""
        given = described.__qualname__ if isinstance(described, type) else repr(described)
        raise _refused(f"{given} is neither a dataclass nor a pyarrow.Schema{hint}", "decorate it with @dataclass")
    _check_names([part.name for part in parts_of(described)], described.__qualname__)
    return pa.schema([pa.field(part.attribute, part.type.arrow, part.nullable) for part in parts_of(described)])


def data_schema_of(described: type | pa.Schema) -> pa.Schema:
    """Return the columns as `schema_of` does, with the names that they have in the data."""
    return renamed(schema_of(described), aliases_of(described))


def aliases_of(described: object) -> Mapping[str, str]:
    """Return the names in the data of those fields of a dataclass that have another one there."""
    if not isinstance(described, type) or not dataclasses.is_dataclass(described):
        return {}
    return {part.attribute: part.name for part in parts_of(described) if part.name != part.attribute}


def in_stream(described: object) -> Mapping[str, str]:
    """Return the names in a stream of those fields of a dataclass that have another name in the data, by that name."""
    return {alias: name for name, alias in aliases_of(described).items()}


def renamed(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return the columns, those in `names` with their other name."""
    return pa.schema([each.with_name(names.get(each.name, each.name)) for each in schema]) if names else schema


def fits(described: type | None, schema: pa.Schema) -> bool:
    """Return whether a dataclass has exactly the columns of a stream as its fields, or is none."""
    if described is None or not dataclasses.is_dataclass(described):
        return True
    return {each.name for each in dataclasses.fields(described)} == set(schema.names)


@lru_cache(maxsize=512)
def parts_of(described: type) -> tuple[NestedPart, ...]:
    """Return the fields of a dataclass. Raises ConfigError: an annotation has no column type."""
    return _parts(described, ())


def defaults_of(described: type | None) -> dict[str, Any]:
    """Return the defaults of a dataclass as Arrow has them, by their name in the data; none without a dataclass."""
    if described is None or not dataclasses.is_dataclass(described):
        return {}
    return {part.name: part.default() for part in parts_of(described) if part.default is not None}


def field_of(name: str, annotation: Any) -> pa.Field | None:
    """Return the column for values of an annotation such as `float | None`, or of an Arrow type, which may be null."""
    if isinstance(annotation, pa.DataType):
        return pa.field(name, annotation)
    inner, nullable = _without_none(annotation)
    kind = _column_type(inner)
    return None if kind is None else pa.field(name, kind, nullable)


def limited(described: type | None, schema: pa.Schema) -> dict[str, FieldType]:
    """Return the columns that can hold values which their fields in the dataclass do not allow."""
    if described is None or not dataclasses.is_dataclass(described):
        return {}
    fields = {part.attribute: part.type for part in parts_of(described) if part.type.limited}
    return {each.name: fields[each.name] for each in schema if each.name in fields}


def describe_difference(expected: pa.Schema, found: pa.Schema) -> str | None:
    """Describe column by column how two schemas differ; None if names, order, types and nullability agree."""
    differences = []
    for name in expected.names:
        if name not in found.names:
            differences.append(f"{name}: expected {_described(expected.field(name))}, but it is missing")
        elif _described(expected.field(name)) != _described(found.field(name)):
            differences.append(
                f"{name}: expected {_described(expected.field(name))}, found {_described(found.field(name))}"
            )
    differences += [
        f"{name}: not expected, found {_described(found.field(name))}"
        for name in found.names
        if name not in expected.names
    ]
    if not differences and expected.names != found.names:
        differences.append(f"order: expected {', '.join(expected.names)}; found {', '.join(found.names)}")
    return "; ".join(differences) or None


def difference_to_read(expected: pa.Schema, has: pa.Schema) -> str | None:
    """Describe why columns cannot be read as these; None if they can. There may be more, in any order.

    Nulls may be where none are expected: such a record is undecodable (API.md).
    """
    strict = {field.name for field in expected if not field.nullable}
    there = [has.field(name) for name in expected.names if name in has.names]
    found = pa.schema([field.with_nullable(field.nullable and field.name not in strict) for field in there])
    return describe_difference(expected, found)


def columns_shown(schema: pa.Schema) -> list[list[Any]]:
    """Return name, type and nullability of every column, as checkpoints keep them."""
    return [[field.name, str(field.type), field.nullable] for field in schema]


def _annotations(described: type) -> dict[str, Any]:
    """Resolve annotations, even postponed ones, and even if the module has left sys.modules (runpy).

    Texts are replaced on the class by the types that they name: a worker gets the class, and has no module to look them
    up in.
    """
    module = sys.modules.get(described.__module__)
    names = dict(getattr(vars(described).get("__init__"), "__globals__", {}))
    names.update(vars(module) if module is not None else {})
    try:
        hints = get_type_hints(described, globalns=names, localns=dict(vars(described)), include_extras=True)
        for base in described.__mro__:
            own = vars(base).get("__annotations__", {})
            if any(isinstance(each, str) for each in own.values()):
                base.__annotations__ = {name: hints[name] for name in own}
        return hints
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _refused(
            f"an annotation of {described.__qualname__} cannot be resolved: {error}",
            "import the type at the top of the module that defines the dataclass",
        ) from error


def _parts(described: type, within: tuple[type, ...]) -> tuple[NestedPart, ...]:
    if described in within:
        raise _refused(
            f"{described.__qualname__} is a field of itself", "columns of such a type have no end: keep it as text"
        )
    annotations = _annotations(described)
    parts = []
    for each in dataclasses.fields(described):
        annotation, metadata = _without_description(annotations[each.name], each.metadata)
        inner, nullable = _without_none(annotation)
        kind = _field_type(f"{described.__qualname__}.{each.name}", inner, (*within, described))
        name = metadata.get(ALIAS, each.name)
        parts.append(NestedPart(kind, nullable, name, each.name, _default(described, each, kind)))
    names = [part.name for part in parts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _refused(f"{described.__qualname__} has the name {twice!r} in the data twice", "change one alias")
    return tuple(parts)


def _without_description(annotation: Any, metadata: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return an annotation without `Annotated[T, field(alias=...)]`, and the description of the field."""
    if get_origin(annotation) is not Annotated:
        return annotation, metadata
    inner, *extras = get_args(annotation)
    described = [extra.metadata for extra in extras if isinstance(extra, dataclasses.Field)]
    return (annotation if inner is Decimal else inner), (described[0] if described else metadata)


def _default(described: type, of: dataclasses.Field[Any], kind: FieldType) -> Callable[[], Any] | None:
    """Return the function that gives the default of a field as Arrow has it; None: it has none."""
    if not _is_missing(of.default_factory):
        return partial(_plain_default, cast(Callable[[], Any], of.default_factory), kind)
    if _is_missing(of.default):
        return None
    return partial(_plain_default, lambda: of.default, kind)


def _is_missing(default: object) -> bool:
    """Return whether a field has no default. A worker's copy of the class has a copy of the marker."""
    return isinstance(default, type(dataclasses.MISSING))


def _plain_default(make: Callable[[], Any], kind: FieldType) -> Any:
    value = make()
    return kind.plain(value) if value is not None and kind.special else value


def _field_type(of: str, inner: Any, within: tuple[type, ...]) -> FieldType:
    """Return the type of a field with an annotation. Raises ConfigError."""
    origin, arguments = get_origin(inner), get_args(inner)
    if origin is Annotated and arguments[0] is not Decimal:
        return _field_type(of, arguments[0], within)
    if (kind := _column_type(inner)) is not None:
        return FieldType(kind, getattr(inner, "__name__", "Decimal"))
    if inner is UUID:
        return Uuid()
    if origin is Literal:
        return _chosen(of, str(inner), {value: value for value in arguments}, None)
    if isinstance(inner, type) and issubclass(inner, Enum) and not issubclass(inner, Flag):
        return _chosen(of, inner.__qualname__, {each.value: each for each in inner}, inner)
    if origin is list and len(arguments) == 1:
        return ListOf(_item(of, arguments[0], within))
    if origin is dict and arguments[0] is str:
        return MapOf(_item(of, arguments[1], within))
    if isinstance(inner, type) and dataclasses.is_dataclass(inner):
        return _nested(inner, within)
    raise _no_column(of, inner)


def _item(of: str, annotation: Any, within: tuple[type, ...]) -> NestedPart:
    inner, nullable = _without_none(annotation)
    return NestedPart(_field_type(of, inner, within), nullable)


def _nested(inner: type, within: tuple[type, ...]) -> FieldType:
    parts = _parts(inner, within)
    if not parts:
        raise _refused(f"{inner.__qualname__} has no field", "give it at least one, or leave the field out")
    taken = inspect.signature(inner).parameters
    for name in (part.attribute for part in parts):
        if name not in taken:
            raise _refused(f"{inner.__qualname__} does not take {name!r} when it is created", "let it be an argument")
    return Nested(inner, parts)


def _chosen(of: str, shown: str, members: Mapping[Any, Any], kind: type[Enum] | None) -> FieldType:
    kinds = {type(value) for value in members}
    arrow = _CHOSEN.get(next(iter(kinds), object)) if len(kinds) == 1 else None
    if arrow is None or (kind is not None and kinds & {bool, bytes}):
        raise _refused(
            f"{of}: the values of {shown} have no common column type", "let all be text, or all of them integers"
        )
    if int in kinds and not all(-_INT64_MAX <= value < _INT64_MAX for value in members):
        raise _refused(f"{of}: a value of {shown} does not fit into 64 bits", "use text instead")
    return Chosen(arrow, shown, members, kind)


def _no_column(of: str, inner: Any) -> ConfigError:
    if inner is Decimal:
        advice = "give the scale: Annotated[Decimal, pa.decimal128(18, 2)]"
        return _refused(f"{of} is a Decimal of unknown scale", advice)
    type_name = inner.__qualname__ if isinstance(inner, type) and get_origin(inner) is None else str(inner)
    if inner in (list, dict):
        return _refused(
            f"{of}: {type_name} does not name its element type", f"write {type_name}[{'str, ' * (inner is dict)}str]"
        )
    if get_origin(inner) is dict:
        return _refused(f"{of}: {type_name} has keys that are not str", "use dict[str, T], or a list of a dataclass")
    return _refused(f"{of}: {type_name} has no column type", f"use one of {_SUPPORTED}")


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is Literal and None in get_args(annotation):
        values = tuple(value for value in get_args(annotation) if value is not None)
        return (Literal[values] if values else annotation), bool(values)
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    others = [part for part in get_args(annotation) if part is not type(None)]
    if len(others) == len(get_args(annotation)) or len(others) != 1:
        return annotation, False
    return others[0], True


def _column_type(inner: Any) -> pa.DataType | None:
    if get_origin(inner) is Annotated:
        python, *extras = get_args(inner)
        decimals = [extra for extra in extras if isinstance(extra, pa.Decimal128Type)]
        if python is Decimal:
            return decimals[0] if decimals else None
        return _column_type(python)
    return COLUMN_TYPES.get(inner) if isinstance(inner, type) else None


def _check_names(names: list[str], of: str) -> None:
    if not names:
        raise _refused(f"{of} has no column", "give it at least one")
    if twice := [name for name in names if names.count(name) > 1]:
        raise _refused(f"{of} has the column {twice[0]!r} twice", "rename one")


def _described(column: pa.Field) -> str:
    return f"{column.type}{' or null' if column.nullable else ''}"


def _refused(what: str, advice: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was read or created", next_step=advice)
