"""An aggregate as a user names it, and bound to the columns of a stream.

Nulls follow SQL: `count("x")` counts values that are not null; every other aggregate skips nulls, and is null for a key
without any value; counts of different values are 0. A row that a `filter=` does not let through counts as null.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.functions.conditions import Condition, condition_of
from holdfast.runtime.functions.contract import AggregateFunction, Kind
from holdfast.runtime.functions.types import is_time
from holdfast.runtime.rows.expressions import check_column_name, unknown_column
from holdfast.state.keys.canonical import is_textual
from holdfast.state.tables.spec import ColumnSpec

WHERE = " where"
"""Behind the function of an aggregate with a filter, so that versions without filters treat it as another aggregate."""
EVENT_TIME: Any = None
"""Stands for the column with the event time."""
_ROLES = ("", "by")
"""How the inputs of an aggregate are named in calls; the first is not."""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One aggregate, not yet bound to a stream.

    Args:
        columns: The columns that it reads; none for a count of rows, None for all columns of the stream.
        filter: The expression that the user gave.
        former: The name whose state it continues if there is none under its own.
    """

    kind: Kind
    columns: Sequence[str] | None = ()
    filter: Any = None
    former: str | None = None

    def was(self, name: str) -> Aggregation:
        """Return the aggregate that continues the state kept under this name: `orders=hf.count().was("n")`.

        It counts only while the job's last checkpoint has no aggregate of the new name, so it may stay in the code.
        """
        return replace(self, former=name)

    def __str__(self) -> str:
        condition = None if self.filter is None else str(self.filter)
        return call_text(
            self.kind.name, () if self.kind.calls else self.columns or (), self.kind.parameters(), condition
        )


@dataclass(frozen=True)
class BoundAggregation:
    """An aggregate over columns of known types, with its result."""

    kind: Kind
    columns: tuple[str, ...]
    function: AggregateFunction
    result: pa.Field
    condition: Condition | None = None
    former: str | None = None
    """The name whose state it continues if there is none under its own."""

    @property
    def name(self) -> str:
        """The name of its result."""
        return str(self.result.name)

    @property
    def state(self) -> dict[str, str]:
        """The state column of every role."""
        return {role: f"{self.name}.{role}" for role in self.function.columns}

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column that it reads."""
        return self.columns if self.condition is None else (*self.columns, *self.condition.columns)

    def __str__(self) -> str:
        condition = None if self.condition is None else str(self.condition)
        columns = () if self.kind.calls else self.columns
        return call_text(self.kind.name, columns, self.kind.parameters(), condition)


def call_text(name: str, columns: Sequence[str], parameters: Mapping[str, Any], condition: str | None) -> str:
    """Return an aggregate as it is written in code."""
    inputs = zip(_ROLES, columns, strict=False)
    given = [f"{role}={column!r}" if role else repr(column) for role, column in inputs if column is not EVENT_TIME]
    given += [f"{key}={value!r}" for key, value in parameters.items()]
    return f"{name}({', '.join(given if condition is None else [*given, f'filter={condition}'])})"


def function_of(identity: Mapping[str, Any]) -> str:
    """Return the name of the function in the identity of an aggregate."""
    return str(identity["function"]).removesuffix(WHERE)


def bound(
    name: str, aggregation: object, schema: pa.Schema, where: str, event_time: str | None = None
) -> BoundAggregation:
    """Bind the aggregate called `name` to the columns it reads.

    Args:
        event_time: The column with the event time, if the stream has one.

    Raises:
        ConfigError: not an aggregate, unknown column, or a type that the aggregate does not take.
    """
    check_column_name(name, where)
    if not isinstance(aggregation, Aggregation):
        raise ConfigError(
            f"{where}: {name} is {aggregation!r}, which is not an aggregate",
            not_done="the job was not planned",
            next_step=f'give an aggregate such as {name}=hf.sum("price"); compute columns first, with with_columns',
        )
    named = schema.names if aggregation.columns is None else aggregation.columns
    columns = tuple(_known(column, aggregation, schema, where, event_time) for column in named)
    condition = condition_of(aggregation.filter, schema, f"{where}: filter= of {name}")
    return _over(name, aggregation, columns, [schema.field(column) for column in columns], condition, where)


def rebound(name: str, kind: Kind, given: Sequence[pa.Field], filtered: bool) -> BoundAggregation:
    """Return an aggregate as it was bound to these columns; its condition, if it was filtered, is unknown.

    Raises:
        ConfigError: the kind does not take these columns.
    """
    columns = tuple(field.name for field in given)
    held = [field.with_nullable(field.nullable or filtered) for field in given]
    return _over(name, Aggregation(kind, columns), columns, held, None, "stored state", filtered)


def _over(
    name: str,
    aggregation: Aggregation,
    columns: tuple[str, ...],
    given: Sequence[pa.Field],
    condition: Condition | None,
    where: str,
    filtered: bool = False,
) -> BoundAggregation:
    kind = aggregation.kind
    nullable = filtered or condition is not None or any(field.nullable for field in given)
    function = kind.over(given, nullable)
    if function is None:
        types = " and ".join(f"{field.name}: {field.type}" for field in given)
        what = f"is over a column of type {given[0].type}" if len(given) == 1 else f"is over columns {types}"
        raise ConfigError(
            f"{where}: {aggregation} {what}, which {kind.name} does not take",
            not_done="the job was not planned",
            next_step=_instead(given[0].name, given[0].type),
        )
    result = pa.field(name, function.result, nullable=kind.nullable(nullable))
    return BoundAggregation(kind, columns, function, result, condition, aggregation.former)


def _instead(column: str, kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or kind == pa.uint64():
        return f'cast it first: .with_columns({column}=pl.col("{column}").cast(pl.Int64))'
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return f'cast it first: .with_columns({column}=pl.col("{column}").cast(pl.Float64))'
    if is_time(kind):
        return f'use min or max, or extract a number first: pl.col("{column}").dt.epoch("us")'
    if is_textual(kind):
        return "aggregate a numeric column; for text and bytes there are count, min, max, first, last and distinct"
    return "aggregate a column of numbers, times or text; for other columns only count is available"


def _known(column: str, aggregation: Aggregation, schema: pa.Schema, where: str, event_time: str | None) -> str:
    """Return the name of a column of the stream."""
    if column is EVENT_TIME:
        if event_time is None:
            raise ConfigError(
                f"{where}: {aggregation} has no by=, and the stream has no event time",
                not_done="the job was not planned",
                next_step="name the column that orders the rows: "
                + call_text(aggregation.kind.name, ((aggregation.columns or ["x"])[0], "version"), {}, None),
            )
        return event_time
    if column not in schema.names:
        raise unknown_column(column, schema.names, where)
    return column


def check_former(aggregations: Mapping[str, object], where: str) -> None:
    """Refuse aggregates that claim the state of a name in use, or of one name twice.

    Raises:
        ConfigError: with the name.
    """
    former_names: set[str] = set()
    for name, aggregation in aggregations.items():
        former = aggregation.former if isinstance(aggregation, Aggregation) else None
        if former is None or former == name:
            continue
        if former in aggregations or former in former_names:
            owner = "is an aggregate here too" if former in aggregations else "is claimed twice"
            raise ConfigError(
                f"{where}: {name}={aggregation}.was({former!r}) continues the state of {former!r}, which {owner}",
                not_done="the job was not planned",
                next_step=f"remove .was({former!r}) where it does not belong; deploy two changes of names one by one",
            )
        former_names.add(former)


def refuse_unnamed(given: Collection[object], where: str) -> None:
    """Refuse aggregates without a name for their result column.

    Raises:
        ConfigError: an aggregate has no name.
    """
    for first in given:
        raise ConfigError(
            f"{where}: {first} has no name",
            not_done="the job was not planned",
            next_step=f"name its result column: .agg(..., name={first})",
        )


def state_columns(bound: BoundAggregation) -> tuple[ColumnSpec, ...]:
    """Return the columns of state behind an aggregate. Updates may start from the defaults."""
    function, names = bound.function, bound.state
    return tuple(
        ColumnSpec(
            names[role],
            column.dtype,
            column.default,
            counter=names[function.counter] if function.counter not in (None, role) else "",
            nullable=column.nullable,
        )
        for role, column in function.columns.items()
    )
