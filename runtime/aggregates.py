"""Aggregates that users name in `.agg(...)`: count, sum, min, max, mean.

Each is a value: its kind and the column it reads. This module settles which columns an aggregate takes, the field
that comes out, and the fixed-width columns of state behind it; `runtime/operators/aggregate.py` computes.

Nulls are SQL's: `count("x")` counts values that are not null, every other aggregate skips nulls, and is null for a key
that has seen none. NaN is Polars': `min` and `max` skip it unless a key has seen nothing else, `sum` and `mean` become
NaN. Sums of integers are int64 and never wrap: a sum that does not fit fails the job.

Refused, with what to do instead: strings and booleans as values (state is fixed-width), Decimal, uint64 sums (half of
their range does not fit int64).

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.expressions import check_column_name, unknown_column
from holdfast.state.spec import ColumnSpec

Kind = Literal["count", "sum", "min", "max", "mean"]
_NOT_GIVEN: Any = None
"""An aggregate that lacks its column is refused in one sentence."""


@dataclass(frozen=True)
class Aggregation:
    """One aggregate, not yet bound to a stream. `column` is None only for a count of rows."""

    kind: Kind
    column: str | None

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
    """State column with the running value, in the type of the result (int64 for times)."""
    seen: str | None
    """State column with the number of values that were not null; None where nothing needs it."""


def count(column: str | None = None, *, filter: None = None) -> Aggregation:
    """Count rows, or the values of `column` that are not null. int64, never null."""
    return _aggregation("count", column, filter)


def sum(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Add up a column: integers to int64, floats to double. An overflow fails the job."""
    return _aggregation("sum", column, filter)


def min(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Smallest value of a column of integers, floats, dates, times or durations."""
    return _aggregation("min", column, filter)


def max(column: str = _NOT_GIVEN, *, filter: None = None) -> Aggregation:
    """Largest value of a column of integers, floats, dates, times or durations."""
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
            next_step=f'give an aggregate such as {name}=hf.sum("price"); compute columns before, with with_columns',
        )
    kind, column = aggregation.kind, aggregation.column
    if column is None:
        return BoundAggregation("count", None, False, pa.field(name, pa.int64(), nullable=False), f"{name}.count", None)
    if column not in schema.names:
        raise unknown_column(column, schema.names, where)
    field = schema.field(column)
    result = _result_type(aggregation, field.type, where)
    nullable = field.nullable and kind != "count"
    seen = f"{name}.seen" if nullable or kind == "mean" else None
    return BoundAggregation(
        kind, column, field.nullable, pa.field(name, result, nullable=nullable), f"{name}.{kind}", seen
    )


def refuse_unnamed(given: tuple[object, ...], where: str) -> None:
    """Refuse aggregates that are given without the name of their result column.

    Raises:
        ConfigError: there is one.
    """
    if given:
        raise ConfigError(
            f"{where}: {given[0]} has no name",
            not_done="the job was not planned",
            next_step=f"name its result column: .agg(..., name={given[0]})",
        )


def state_columns(bound: BoundAggregation) -> tuple[ColumnSpec, ...]:
    """Return the columns of state behind an aggregate. Defaults are what an update may start from.

    Times and dates are kept as the integers behind them. A float min or max starts from NaN, which loses against
    every number.
    """
    dtype = state_dtype(bound)
    default: int | float = 0
    if bound.kind in ("min", "max"):
        if dtype.kind == "f":
            default = float("nan")
        else:
            limits = np.iinfo(dtype.name)
            default = int(limits.max if bound.kind == "min" else limits.min)
    columns = [ColumnSpec(bound.value, dtype, default)]
    if bound.seen is not None:
        columns.append(ColumnSpec(bound.seen, np.dtype(np.int64)))
    return tuple(columns)


def state_dtype(bound: BoundAggregation) -> np.dtype[Any]:
    """Return the NumPy type of the state column `value`."""
    kind = bound.result.type
    if _is_time(kind):
        return np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def _aggregation(kind: Kind, column: str | None, filter: object) -> Aggregation:
    if filter is not None:
        raise ConfigError(
            f"{kind}(..., filter=) is not in this version",
            not_done="the job was not planned",
            next_step="give the aggregate a column that is null where the row does not count, made before with "
            ".with_columns(x=pl.when(condition).then(value))",
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
    numeric = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind.bit_width >= 32)
    match aggregation.kind:
        case "count":
            return pa.int64()
        case "sum" if numeric and kind != pa.uint64():
            return pa.int64() if pa.types.is_integer(kind) else pa.float64()
        case "mean" if numeric:
            return pa.float64()
        case "min" | "max" if numeric or _is_time(kind):
            return kind
    raise ConfigError(
        f"{where}: {aggregation} is over a column of type {kind}, which {aggregation.kind} does not take",
        not_done="the job was not planned",
        next_step=_instead(aggregation, kind),
    )


def _is_time(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def _instead(aggregation: Aggregation, kind: pa.DataType) -> str:
    column = aggregation.column
    if pa.types.is_boolean(kind) or kind == pa.uint64():
        return f'cast it first: .with_columns({column}=pl.col("{column}").cast(pl.Int64))'
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return f'cast it first: pl.col("{column}").cast(pl.Float64), or to Int64 in the smallest unit to stay exact'
    if _is_time(kind):
        return f'use min or max, or take a number out of it first: pl.col("{column}").dt.epoch("us")'
    return "aggregate a column of numbers; of other columns only count is kept"
