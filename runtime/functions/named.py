"""The aggregates that users name in `.agg(...)`: `hf.count()`, `hf.sum("price", filter=pl.col("paid"))`.

Pure.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from holdfast.errors import ConfigError
from holdfast.runtime.functions import (
    adding,
    cardinality,
    extremes,
    membership,
    moments,
    multisets,
    picking,
    quantiles,
)
from holdfast.runtime.functions import top as tops
from holdfast.runtime.functions.aggregation import EVENT_TIME, Aggregation
from holdfast.runtime.functions.contract import Kind

_NOT_GIVEN: Any = None
"""Lets `_of` refuse a missing column with a message, in place of Python's TypeError."""


def count(column: str | None = None, *, filter: pl.Expr | None = None) -> Aggregation:
    """Count rows, or the values of `column` that are not null. int64, never null."""
    return Aggregation(adding.CountKind(), (), filter) if column is None else _of(adding.CountKind(), column, filter)


def sum(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Add up a column: integers to int64, floats to double, decimals to 38 digits. An overflow fails the job."""
    return _of(adding.SumKind(), column, filter)


def min(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Smallest value of a column of numbers, decimals, dates, times, durations, text or bytes."""
    return _of(extremes.Min(), column, filter)


def max(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Largest value of a column of numbers, decimals, dates, times, durations, text or bytes."""
    return _of(extremes.Max(), column, filter)


def mean(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Average of a column: double for integers and floats, exact to four more digits for decimals."""
    return _of(adding.Mean(), column, filter)


def var(column: str = _NOT_GIVEN, *, ddof: int = 1, filter: pl.Expr | None = None) -> Aggregation:
    """Variance of a column of integers or floats, double.

    Args:
        ddof: 1 for the variance of a sample (null for a single value), 0 for that of all values.
    """
    return _of(moments.Var(ddof), column, filter)


def first(column: str = _NOT_GIVEN, by: str | None = None, *, filter: pl.Expr | None = None) -> Aggregation:
    """Value of the row with the smallest `by`, by default the event time. Equal ones: the smallest value."""
    return _of(picking.First(), column, filter, by)


def last(column: str = _NOT_GIVEN, by: str | None = None, *, filter: pl.Expr | None = None) -> Aggregation:
    """Value of the row with the largest `by`, by default the event time. Equal ones: the largest value."""
    return _of(picking.Last(), column, filter, by)


def top(column: str = _NOT_GIVEN, k: int = 1, by: str | None = None, *, filter: pl.Expr | None = None) -> Aggregation:
    """List of the values of the `k` rows with the largest `by`, by default the column itself, the largest first."""
    return _of(tops.Top(k), column, filter, column if by is None else by)


def collect(
    column: str = _NOT_GIVEN, *, max: int = multisets.COLLECT_MAX, filter: pl.Expr | None = None
) -> Aggregation:
    """List of all values in ascending order. More than `max` of them fail the job."""
    return _of(multisets.CollectKind(max), column, filter)


def distinct(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Count the different values of a column, exactly. int64, never null; the state keeps every value."""
    return _of(multisets.Distinct(), column, filter)


def approx_distinct(column: str = _NOT_GIVEN, *, filter: pl.Expr | None = None) -> Aggregation:
    """Count the different values of a column with a standard error of 1.6 %, in 4 KiB of state at most."""
    return _of(cardinality.ApproxDistinct(), column, filter)


def quantile(column: str = _NOT_GIVEN, q: float = 0.5, *, filter: pl.Expr | None = None) -> Aggregation:
    """Value below which a share `q` of the values lies, within 0.8 % of the value. double; q=0.5 is the median."""
    return _of(quantiles.Quantile(q), column, filter)


def member(
    column: str = _NOT_GIVEN,
    *,
    expected: int = membership.EXPECTED,
    error: float = membership.ERROR,
    filter: pl.Expr | None = None,
) -> Aggregation:
    """Filter that `hf.may_contain(members, value)` asks whether a value may have occurred. bytes, null without a value.

    Args:
        expected: About how many different values a key has, 1 to 1,000,000. It sets the size: 1.2 KB for 1,000 values.
        error: The share of other values that the filter takes for members once it has seen this many, 1e-6 to below 1.
    """
    return _of(membership.Member(expected, error), column, filter)


def _of(kind: Kind, column: Any, condition: Any, *more: Any) -> Aggregation:
    for name in (column, *(each for each in more if each is not EVENT_TIME)):
        if not isinstance(name, str):
            raise ConfigError(
                f"{kind.name}({'' if name is None else repr(name)}): an aggregate takes the name of a column",
                not_done="the job was not planned",
                next_step=f'compute the column first, with .with_columns(x=...), then {kind.name}("x")',
            )
    return Aggregation(kind, (column, *more), condition)
