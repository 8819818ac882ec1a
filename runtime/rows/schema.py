"""Column types from a user's dataclass or Arrow schema.

| annotation | column | | annotation | column |
|---|---|---|---|---|
| int | int64 | | bytes | binary |
| float | double | | datetime | timestamp[us, UTC] |
| str | string | | date | date32 |
| bool | bool | | Annotated[Decimal, pa.decimal128(p, s)] | decimal128(p, s) |

`T | None` is nullable, every other annotation is not. A plain Decimal is refused: the annotation does not give the
scale that keeps every value exact, and a guessed one would round silently.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from holdfast.errors import ConfigError

COLUMN_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.utf8(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
}
_SUPPORTED = "int, float, str, bool, bytes, datetime, date, Annotated[Decimal, pa.decimal128(p, s)], each also | None"


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
    annotations = _annotations(described)
    names = [column.name for column in dataclasses.fields(described)]
    _check_names(names, described.__qualname__)
    return pa.schema([_column(described, name, annotations[name]) for name in names])


def field_of(name: str, annotation: Any) -> pa.Field | None:
    """Return the column for values of an annotation such as `float | None`, or of an Arrow type, which may be null."""
    if isinstance(annotation, pa.DataType):
        return pa.field(name, annotation)
    inner, nullable = _without_none(annotation)
    kind = _column_type(inner)
    return None if kind is None else pa.field(name, kind, nullable)


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
    """Resolve annotations, even postponed ones, and even if the module has left sys.modules (runpy)."""
    module = sys.modules.get(described.__module__)
    names = dict(getattr(vars(described).get("__init__"), "__globals__", {}))
    names.update(vars(module) if module is not None else {})
    try:
        return get_type_hints(described, globalns=names, localns=dict(vars(described)), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _refused(
            f"an annotation of {described.__qualname__} cannot be resolved: {error}",
            "import the type at the top of the module that defines the dataclass",
        ) from error


def _column(described: type, name: str, annotation: Any) -> pa.Field:
    inner, nullable = _without_none(annotation)
    if (kind := _column_type(inner)) is None:
        if inner is Decimal:
            advice = "give the scale: Annotated[Decimal, pa.decimal128(18, 2)]"
            raise _refused(f"{described.__qualname__}.{name} is a Decimal of unknown scale", advice)
        shown = inner.__qualname__ if isinstance(inner, type) else str(inner)
        raise _refused(f"{described.__qualname__}.{name}: {shown} has no column type", f"use one of {_SUPPORTED}")
    return pa.field(name, kind, nullable)


def _without_none(annotation: Any) -> tuple[Any, bool]:
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
