"""Python functions in streams: the checks before the job runs.

A function is called with one row (`map`, `flat_map`, `filter`) or one batch (`map_batches`), and its results are
checked against the columns it declares. The user defines its result. The function must return the same result whenever
the same row is read again. In `map_batches`, the result for a row must depend on that row alone, because batch
boundaries differ after a failure.

Functions are refused on upsert streams: a delete there is a row without values, and functions do not expect that.

Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, cast, get_args

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.operators.call import Call, How
from holdfast.runtime.operators.check import SchemaCheck
from holdfast.runtime.rows.dead_letters import OnError
from holdfast.runtime.rows.expressions import Use, check_column_name
from holdfast.runtime.rows.forms import name_of
from holdfast.runtime.rows.row_types import misfit, unreadable
from holdfast.runtime.rows.schema import describe_difference, schema_of


def call_of(
    how: How,
    function: Any,
    schema: pa.Schema,
    row_type: type | None,
    on_error: object,
    use: Use,
    taken: Collection[str],
    has_dlq: bool = False,
    to: type | None = None,
) -> Call:
    """Check a function and return the step that calls it with rows of this schema.

    Args:
        row_type: The dataclass of the rows; None is `hf.Row`.
        taken: Names of existing steps; this one gets another.
        to: The dataclass of the function's results.
        has_dlq: The app has a dead letter queue.

    Raises:
        ConfigError: not a function of one argument, or the rows cannot be built.
    """
    on_error = checked_policy(on_error, str(use), has_dlq)
    if not callable(function) or isinstance(function, type):
        raise refused(use, f"{function!r} is not a function", f"give a function: .{how}(lambda r: ...)")
    function_name = name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise refused(use, f"{function_name} is asynchronous and would not be awaited", "write a plain function")
    if how != "flat_map" and inspect.isgeneratorfunction(function):
        raise refused(
            use, f"{function_name} yields rows", "use .flat_map(...) for a function that returns any number of rows"
        )
    _check_signature(function, function_name, how, use)
    if how != "map_batches":
        if row_type is not None and (why := misfit(row_type, schema.names)) is not None:
            raise refused(use, why, "put .select(...) before the function, which then receives hf.Row")
        if (why := unreadable(schema)) is not None:
            raise refused(use, why, "cast it to microseconds first, or use .map_batches(...)")
    operator = name = f"{how} {function_name}"
    number = 1
    while operator in taken:
        number += 1
        operator = f"{name} ({number})"
    return Call(how, function, row_type, on_error, operator, use, None if how == "filter" else to)


def checked_policy(on_error: object, where: str, has_dlq: bool) -> OnError:
    """Return the policy for records that cannot be decoded, or rows on which a function fails.

    Raises:
        ConfigError: there is no such policy, or the app has no dead letter queue.
    """
    what, next_step = None, 'use on_error="fail", on_error="dlq" or on_error="drop"'
    if on_error not in get_args(OnError):
        what = f"on_error is {on_error!r}"
    elif on_error == "dlq" and not has_dlq:
        what = 'on_error="dlq", but the app has no dead letter queue'
        next_step = 'give the app a log for them: hf.App(..., dlq=hf.Log("data/dead")); or use another on_error'
    if what is not None:
        raise ConfigError(f"{where}: {what}", not_done="the job was not planned", next_step=next_step)
    return cast(OnError, on_error)


def row_schema(to: Any, use: Use) -> tuple[pa.Schema, type | None]:
    """Return the columns and the dataclass (None for a schema) that `to` describes.

    Raises:
        ConfigError: it does not describe columns, or a column's name is not allowed.
    """
    if to is None:
        raise refused(
            use,
            "to= is missing: it describes the rows that the function returns",
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
    given: pa.Schema, wanted: pa.Schema, upsert_key: tuple[str, ...] | None, use: Use, row_type: type | None = None
) -> tuple[SchemaCheck, pa.Schema]:
    """Return the step that gives a stream the columns of `wanted`, and the resulting schema.

    Names and types must agree; the order becomes that of `wanted`. A nullable column that must become non-null is
    checked row by row. In an upsert stream the schema keeps the nullability that deletes need.

    Raises:
        ConfigError: the columns or types differ.
    """
    if (difference := describe_difference(_loose(wanted, wanted), _loose(given, wanted))) is not None:
        names = ", ".join(repr(field.name) for field in wanted)
        next_step = f"give it exactly these columns first: .select({names}), where missing ones are computed"
        raise refused(use, f"the columns differ: {difference}", next_step)
    not_null = tuple(field.name for field in wanted if not field.nullable and given.field(field.name).nullable)
    fields = [field if upsert_key is None else given.field(field.name) for field in wanted]
    return SchemaCheck(not_null, use, row_type), pa.schema(fields)


def united(schemas: list[pa.Schema], use: Use) -> pa.Schema:
    """Return the columns of a union: nullable where any input is.

    Raises:
        ConfigError: the inputs differ in columns, types or order.
    """
    first = schemas[0]
    for number, schema in enumerate(schemas[1:], 2):
        difference = describe_difference(_loose(first), _loose(schema))
        if difference is not None:
            raise refused(
                use,
                f"the columns of stream {number} differ from those of the first: {difference}",
                "give all streams the same columns with .select(...)",
            )
    return pa.schema([f.with_nullable(any(s.field(f.name).nullable for s in schemas)) for f in first])


def refused(use: Use, what: str, next_step: str) -> ConfigError:
    """Return the error for a step that cannot be planned."""
    return ConfigError(f"{use}: {what}", not_done="the job was not planned", next_step=next_step)


def _check_signature(function: Any, called: str, how: How, use: Use) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions written in C have none
    try:
        signature.bind(None)
    except TypeError as error:
        argument = "batch" if how == "map_batches" else "row"
        raise refused(
            use,
            f"{called}{signature} cannot be called with one argument, the {argument}: {error}",
            f"let it take the {argument} alone",
        ) from error


def _loose(schema: pa.Schema, order: pa.Schema | None = None) -> pa.Schema:
    """Return the schema without nullability, which messages then leave out; columns of `order` first, in its order."""
    names = [] if order is None else [name for name in order.names if name in schema.names]
    names += [name for name in schema.names if name not in names]
    return pa.schema([schema.field(name).with_nullable(False) for name in names])
