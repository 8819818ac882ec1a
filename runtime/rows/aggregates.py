"""Aggregates that users name in `.agg(...)`: count, sum, min, max, mean.

Each is a value: its kind and the column it reads. This module defines which columns an aggregate takes, its result
field, and the columns of state behind it; `runtime/rows/aggregate_functions.py` computes.

Nulls follow SQL: `count("x")` counts values that are not null; every other aggregate skips nulls, and is null for a key
without any value. NaN follows Polars: `min` and `max` skip it unless a key has only NaN, `sum` and `mean` become NaN.
Sums of integers are int64 and never wrap: a sum that does not fit fails the job.

Refused, with an alternative: sums and means of text, booleans as values, Decimal, uint64 sums (half of their range does
not fit int64).

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.rows.aggregate_functions import (
    FUNCTIONS,
    SEEN,
    AggregateFunction,
    Slots,
    State,
    is_time,
)
from holdfast.runtime.rows.expressions import check_column_name, unknown_column
from holdfast.state.keys.canonical import is_textual
from holdfast.state.tables.spec import ColumnSpec

Kind = Literal["count", "sum", "min", "max", "mean"]
_NOT_GIVEN: Any = None
"""Lets `_aggregation` refuse a missing column with a message, in place of Python's TypeError."""


@dataclass(frozen=True)
class Aggregation:
    """One aggregate, not yet bound to a stream. `column` is None only for a count of rows."""

    kind: Kind
    column: str | None
    former: str | None = None

    def was(self, name: str) -> Aggregation:
        """Return the aggregate that continues the state kept under this name: `orders=hf.count().was("n")`.

        It counts only while the job's last checkpoint has no aggregate of the new name, so it may stay in the code.
        """
        return replace(self, former=name)

    def __str__(self) -> str:
        return f"{self.kind}({'' if self.column is None else repr(self.column)})"


@dataclass(frozen=True)
class BoundAggregation:
    """An aggregate over one column of known type, with its result and the state columns behind it."""

    kind: Kind
    column: str | None
    nullable: bool
    """The input column may hold nulls; if not, neither the update nor the result needs a mask."""
    result: pa.Field
    value: str
    """State column with the running value, in the type of the result (int64 for times; null if text has no value)."""
    seen: str | None
    """State column with the number of values that were not null; None where nothing needs it."""
    former: str | None = None
    """The name whose state it continues if there is none under its own."""

    @property
    def function(self) -> AggregateFunction:
        """What computes it."""
        return FUNCTIONS[self.kind]

    @property
    def state(self) -> dict[str, str]:
        """The state column of every role."""
        return {self.kind: self.value} | ({} if self.seen is None else {SEEN: self.seen})


def count(column: str | None = None, *, filter: None = None) -> Aggregation:
    """Count rows, or the values of `column` that are not null. int64, never null."""
    return _aggregation("count", column, filter)


def sum(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Add up a column: integers to int64, floats to double. An overflow fails the job."""
    return _aggregation("sum", column, filter)


def min(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Smallest value of a column of integers, floats, dates, times, durations, text or bytes."""
    return _aggregation("min", column, filter)


def max(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Largest value of a column of integers, floats, dates, times, durations, text or bytes."""
    return _aggregation("max", column, filter)


def mean(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Average of a column of integers or floats, double."""
    return _aggregation("mean", column, filter)


def bound(name: str, aggregation: object, schema: pa.Schema, where: str) -> BoundAggregation:
    """Bind the aggregate called `name` to the columns it reads.

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
    kind, column = aggregation.kind, aggregation.column
    if column is None:
        result = pa.field(name, pa.int64(), nullable=False)
        return BoundAggregation("count", None, False, result, f"{name}.count", None, aggregation.former)
    if column not in schema.names:
        raise unknown_column(column, schema.names, where)
    field = schema.field(column)
    kept = _result_type(aggregation, field.type, where)
    nullable = field.nullable and kind != "count"
    seen = f"{name}.seen" if SEEN in FUNCTIONS[kind].columns(kept, nullable) else None
    result = pa.field(name, kept, nullable=nullable)
    return BoundAggregation(kind, column, field.nullable, result, f"{name}.{kind}", seen, aggregation.former)


def check_former(aggregations: Mapping[str, object], where: str) -> None:
    """Refuse aggregates that claim the state of a name in use, or of one name twice.

    Raises:
        ConfigError: with the name.
    """
    claimed: set[str] = set()
    for name, aggregation in aggregations.items():
        former = aggregation.former if isinstance(aggregation, Aggregation) else None
        if former is None or former == name:
            continue
        if former in aggregations or former in claimed:
            owner = "is an aggregate here too" if former in aggregations else "is claimed twice"
            raise ConfigError(
                f"{where}: {name}={aggregation}.was({former!r}) continues the state of {former!r}, which {owner}",
                not_done="the job was not planned",
                next_step=f"remove .was({former!r}) where it does not belong; deploy two changes of names one by one",
            )
        claimed.add(former)


def refuse_unnamed(given: tuple[object, ...], where: str) -> None:
    """Refuse aggregates without a name for their result column.

    Raises:
        ConfigError: an aggregate has no name.
    """
    if given:
        raise ConfigError(
            f"{where}: {given[0]} has no name",
            not_done="the job was not planned",
            next_step=f"name its result column: .agg(..., name={given[0]})",
        )


def state_columns(bound: BoundAggregation) -> tuple[ColumnSpec, ...]:
    """Return the columns of state behind an aggregate. Updates may start from the defaults."""
    columns = bound.function.columns(bound.result.type, bound.result.nullable)
    counter = bound.seen or ""
    return tuple(
        ColumnSpec(
            bound.state[role],
            dtype,
            default,
            counter="" if role == SEEN else counter,
            nullable=isinstance(dtype, pa.DataType),
        )
        for role, (dtype, default) in columns.items()
    )


def result_of(bound: BoundAggregation, state: State, slots: Slots) -> pa.Array:
    """Return the results of these slots, null where the key has seen no value."""
    kind = bound.result.type
    values = bound.function.result(state, slots)
    if is_textual(kind):
        return values if values.type == kind else values.cast(kind)
    null = state[SEEN][slots] == 0 if bound.result.nullable else None
    array = pa.array(values, mask=null)
    return array if array.type == kind else array.view(kind)


def _aggregation(kind: Kind, column: str | None, filter: object) -> Aggregation:
    if filter is not None:
        raise ConfigError(
            f"{kind}(..., filter=) is not in this version",
            not_done="the job was not planned",
            next_step="first compute a column that is null where the row does not count, with "
            ".with_columns(x=pl.when(condition).then(value)), and aggregate that column",
        )
    if column is None and kind == "count":
        return Aggregation(kind, None)
    if not isinstance(column, str):
        raise ConfigError(
            f"{kind}({'' if column is None else repr(column)}): an aggregate takes the name of a column",
            not_done="the job was not planned",
            next_step=f'compute the column first, with .with_columns(x=...), then {kind}("x")',
        )
    return Aggregation(kind, column)


def _result_type(aggregation: Aggregation, kind: pa.DataType, where: str) -> pa.DataType:
    result = FUNCTIONS[aggregation.kind].result_type(kind)
    if result is not None:
        return result
    raise ConfigError(
        f"{where}: {aggregation} is over a column of type {kind}, which {aggregation.kind} does not take",
        not_done="the job was not planned",
        next_step=_instead(aggregation, kind),
    )


def _instead(aggregation: Aggregation, kind: pa.DataType) -> str:
    column = aggregation.column
    if pa.types.is_boolean(kind) or kind == pa.uint64():
        return f'cast it first: .with_columns({column}=pl.col("{column}").cast(pl.Int64))'
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return f'cast it first: pl.col("{column}").cast(pl.Float64), or to Int64 in the smallest unit to stay exact'
    if is_time(kind):
        return f'use min or max, or extract a number first: pl.col("{column}").dt.epoch("us")'
    if is_textual(kind):
        return "aggregate a numeric column; for text and bytes there are count, min and max"
    return "aggregate a numeric column; for other columns only count is available"
