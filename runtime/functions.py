"""Python functions in streams: what can be judged of them before the job runs.

A function is called with one row (`map`, `flat_map`, `filter`) or one batch (`map_batches`), and everything that it
gives is checked against the columns that it was announced to give. What it computes is the user's affair: it must give
the same for the same row whenever that row is read again, and `map_batches` must not look beyond single rows for what
it gives, because batches fall differently after a failure.

Functions are refused on upsert streams: a delete there is a row without values, and no function expects that.

Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from functools import partial
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.expressions import Use, check_column_name
from holdfast.runtime.rowtypes import misfit, unreadable
from holdfast.runtime.schema import describe_difference, schema_of
from holdfast.runtime.steps import Call, Check, OnError

How = Literal["map", "flat_map", "filter", "map_batches"]


def call_of(
    how: How,
    function: Any,
    schema: pa.Schema,
    row_type: type | None,
    on_error: object,
    use: Use,
    taken: Collection[str],
    has_dlq: bool = False,
) -> Call:
    """Return the step that calls a function with rows of this schema, checked.

    Args:
        row_type: The dataclass of the rows; None is `hf.Row`.
        taken: Names of the steps that there are already; this one gets another.
        has_dlq: The app says where dead letters go.

    Raises:
        ConfigError: not a function of one argument, or the rows cannot be made.
    """
    on_error = checked_policy(on_error, str(use), has_dlq)
    if not callable(function) or isinstance(function, type):
        raise refused(use, f"it is given {function!r}, not a function", f"give a function: .{how}(lambda r: ...)")
    called = name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise refused(use, f"{called} is asynchronous, and nobody would await it", "write a plain function")
    if how != "flat_map" and inspect.isgeneratorfunction(function):
        raise refused(use, f"{called} yields rows", "use .flat_map(...) for a function that gives any number of rows")
    _check_signature(function, called, how, use)
    if how != "map_batches":
        if row_type is not None and (why := misfit(row_type, schema.names)) is not None:
            raise refused(use, why, "put .select(...) before the function: it then gets hf.Row")
        if (why := unreadable(schema)) is not None:
            raise refused(use, why, "cast it to microseconds before, or use .map_batches(...)")
    operator = name = f"{how} {called}"
    number = 1
    while operator in taken:
        number += 1
        operator = f"{name} ({number})"
    return Call(how, function, row_type, on_error, operator, use)


def checked_policy(on_error: object, where: str, has_dlq: bool) -> OnError:
    """Return what is done with records that cannot be decoded, or rows that a function fails on.

    Raises:
        ConfigError: there is no such policy, or the app has no dead letter queue.
    """
    what, next_step = None, 'use on_error="fail", on_error="dlq" or on_error="drop"'
    if on_error not in get_args(OnError):
        what = f"on_error is {on_error!r}"
    elif on_error == "dlq" and not has_dlq:
        what = 'on_error="dlq", but the app does not say where dead letters go'
        next_step = 'give the app a log for them: hf.App(..., dlq=hf.Log("data/dead")); or use another on_error'
    if what is not None:
        raise ConfigError(f"{where}: {what}", not_done="the job was not planned", next_step=next_step)
    return cast(OnError, on_error)


def row_schema(to: Any, use: Use) -> tuple[pa.Schema, type | None]:
    """Return the columns and the dataclass (None for a schema) that `to` describes.

    Raises:
        ConfigError: it describes no columns, or a column has a name that is not allowed.
    """
    if to is None:
        raise refused(
            use,
            "no to= is given, which says what rows the function gives",
            "give a dataclass or a pyarrow.Schema: to=Out",
        )
    try:
        schema = schema_of(to)
    except ConfigError as error:
        raise refused(use, error.what, error.next_step) from error
    for name in schema.names:
        check_column_name(name, str(use))
    return schema, to if isinstance(to, type) else None


def checked_as(
    given: pa.Schema, wanted: pa.Schema, upsert_key: tuple[str, ...] | None, use: Use
) -> tuple[Check, pa.Schema]:
    """Return the step that makes a stream have the columns of `wanted`, and the schema that comes out.

    Names and types must agree; the order becomes that of `wanted`. A column that may be null, and is not to, is
    checked row by row. In an upsert stream the schema keeps the nullability that deletes need.

    Raises:
        ConfigError: other columns or other types.
    """
    if (difference := describe_difference(_loose(wanted, wanted), _loose(given, wanted))) is not None:
        raise refused(use, f"the columns differ: {difference}", "compute what is missing with .select(...) before it")
    not_null = tuple(field.name for field in wanted if not field.nullable and given.field(field.name).nullable)
    fields = [field if upsert_key is None else given.field(field.name) for field in wanted]
    return Check(not_null, use), pa.schema(fields)


def united(schemas: list[pa.Schema], use: Use) -> pa.Schema:
    """Return the columns of a union: nullable where any input is.

    Raises:
        ConfigError: the inputs have other columns, types or another order.
    """
    first = schemas[0]
    for number, schema in enumerate(schemas[1:], 2):
        difference = describe_difference(_loose(first), _loose(schema))
        if difference is not None:
            raise refused(use, f"stream {number} has other columns than the first: {difference}",
                          "bring all streams to the same columns with .select(...)")  # fmt: skip
    return pa.schema([f.with_nullable(any(s.field(f.name).nullable for s in schemas)) for f in first])


def name_of(function: Any) -> str:
    """Return what messages call a function."""
    inner = _inner(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "lambda" if name == "<lambda>" else str(name)


def file_of(function: Any) -> str | None:
    """Return the file of the function's code; None for what was not written in Python."""
    inner = _inner(function)
    inside = vars(type(inner)).get("__call__")  # of an object that can be called
    code = getattr(inner, "__code__", None) or getattr(inside, "__code__", None)
    return None if code is None else str(code.co_filename)


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def refused(use: Use, what: str, next_step: str) -> ConfigError:
    """Return the error for a step that cannot be planned."""
    return ConfigError(f"{use}: {what}", not_done="the job was not planned", next_step=next_step)


def _check_signature(function: Any, called: str, how: How, use: Use) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions written in C do not tell
    try:
        signature.bind(None)
    except TypeError as error:
        given = "batch" if how == "map_batches" else "row"
        raise refused(use, f"{called}{signature} cannot be called with one argument, the {given}: {error}",
                      f"let it take the {given} alone") from error  # fmt: skip


def _loose(schema: pa.Schema, order: pa.Schema | None = None) -> pa.Schema:
    """Return the schema without nullability, its columns in the order of another where they are in it."""
    names = [] if order is None else [name for name in order.names if name in schema.names]
    names += [name for name in schema.names if name not in names]
    return pa.schema([schema.field(name).with_nullable(True) for name in names])
