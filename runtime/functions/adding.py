"""count, sum and mean: state that is added up, by compiled operations.

Sums of integers are int64 and never wrap. They are checked before any state changes: a bound on the largest sum of all
keys is kept and raised by every batch; while it stays inside int64, no sum can overflow. If it is unknown or reached,
the sums of the batch's keys are checked, and only if these do not settle it is every key's new sum computed exactly.

Sums and means of decimals are exact: decimals.py.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import (
    AggregateFunction,
    CannotFold,
    Groups,
    Kind,
    Known,
    Slots,
    SlotValues,
    State,
    StateColumn,
    defaults_of,
)
from holdfast.runtime.functions.decimals import DecimalMean, DecimalSum
from holdfast.runtime.functions.types import is_decimal, is_number
from holdfast.state.tables.kernels.layout import Do

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
SEEN = "seen"
"""The role of the number of values that were not null."""
STOCK_ROWS_MAX = 16
"""Slots per row of a batch up to which all sums are scanned to bound them."""
_CERTAINLY_FITS = float(1 << 62)
"""Sums whose float approximation stays below this cannot be beyond int64."""
TOO_LARGE = "does not fit into 64 bits"
USE_FLOATS = "sum floats instead, cast with pl.Float64, under a new operator name; or use a larger unit"


def seen_column(kept: bool) -> dict[str, StateColumn]:
    """Return the column that counts values, if it is kept."""
    return {SEEN: StateColumn(np.dtype(np.int64))} if kept else {}


def seen_too(columns: Mapping[str, StateColumn], operations: dict[str, Do]) -> Mapping[str, Do]:
    """Return operations, and the one that counts values if they are counted."""
    return operations | ({SEEN: Do.COUNT} if SEEN in columns else {})


def unseen(states: State) -> NDArray[np.bool_] | None:
    """Return which states have no value; None if values are not counted."""
    return states[SEEN] == 0 if SEEN in states else None


@dataclass(frozen=True)
class CountKind(Kind):
    """Rows, or values that are not null."""

    name: ClassVar[str] = "count"

    def nullable(self, given: bool) -> bool:
        return False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction:
        return Adding("count", pa.int64(), Do.COUNT, counted=False)


@dataclass(frozen=True)
class SumKind(Kind):
    """The sum of a column."""

    name: ClassVar[str] = "sum"
    null_free_state: ClassVar[bool] = False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        if is_decimal(kind):
            return DecimalSum(kind)
        if not is_number(kind) or kind == pa.uint64():
            return None
        if pa.types.is_integer(kind):
            return Adding("sum", pa.int64(), Do.ADD_INT, counted=nullable)
        return Adding("sum", pa.float64(), Do.ADD_FLOAT, counted=nullable)


@dataclass(frozen=True)
class Mean(Kind):
    """The average of a column."""

    name: ClassVar[str] = "mean"
    null_free_state: ClassVar[bool] = False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        if is_decimal(kind):
            return DecimalMean(kind)
        return Adding("mean", pa.float64(), Do.ADD_FLOAT, counted=True) if is_number(kind) else None


@dataclass(frozen=True)
class Adding(AggregateFunction):
    """A sum in one plain column, with the number of values beside it where a result may be null."""

    role: str
    result: pa.DataType
    do: Do
    counted: bool

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {self.role: StateColumn(np.dtype(self.result.to_pandas_dtype()))} | seen_column(self.counted)

    @property
    def counter(self) -> str | None:
        return SEEN if self.counted else None

    @property
    def operations(self) -> Mapping[str, Do]:
        return seen_too(self.columns, {self.role: self.do})

    def check(self, state: State, given: SlotValues, known: Known) -> bool:
        return self.do != Do.ADD_INT or _fit(state, self.role, given, known)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        values = states[self.role]
        if self.do == Do.ADD_INT and values.size and values.size * largest(values) > INT64_MAX:
            beyond = _beyond(groups, np.zeros(groups.size, np.int64), values)
            if beyond is not None:
                raise CannotFold(TOO_LARGE, USE_FLOATS, beyond)
        totals = defaults_of(self.columns, count)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN are results, not mistakes
            for role, values in totals.items():
                np.add.at(values, groups, states[role])
        return totals

    def results(self, states: State) -> pa.Array:
        values = states[self.role]
        if self.role == "mean":
            values = values / np.maximum(states[SEEN], 1)
        return pa.array(values, mask=unseen(states))


def _fit(state: State, role: str, given: SlotValues, known: Known) -> bool:
    """Return whether the new sums fit int64."""
    values = given.values(np.dtype(np.int64))
    if values.size == 0:
        return True
    growth = values.size * largest(values)
    if known.bound is not None and known.bound + growth <= INT64_MAX:
        known.bound += growth
        return True
    known.bound = None
    slots = given.slots
    sums = state[role]
    before = sums[slots]
    if largest(before) + growth > INT64_MAX:
        known.beyond = _beyond(slots, before, values)
        return known.beyond is None
    if sums.size <= STOCK_ROWS_MAX * slots.size:  # else checking each batch's own sums is cheaper
        known.bound = largest(sums) + growth
    return True


def largest(values: NDArray[np.int64]) -> int:
    """Return the largest absolute value, exactly."""
    return max(-int(values.min()), int(values.max()))


def _beyond(slots: Slots, sums: NDArray[np.int64], values: NDArray[np.int64]) -> int | None:
    """Return a slot whose new sum does not fit int64, exactly: the halves, summed separately, cannot overflow."""
    own, first, group = np.unique(slots, return_index=True, return_inverse=True)
    high, low = np.zeros(first.size, np.int64), np.zeros(first.size, np.int64)
    np.add.at(high, group, values >> 32)
    np.add.at(low, group, values & 0xFFFF_FFFF)
    before = sums[first]
    about = before.astype(np.float64) + high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
    for at in np.flatnonzero(np.abs(about) >= _CERTAINLY_FITS):
        if not INT64_MIN <= int(before[at]) + (int(high[at]) << 32) + int(low[at]) <= INT64_MAX:
            return int(own[at])
    return None
