"""min and max: state that is the smallest or largest value.

Numbers and times are folded by compiled operations. A float starts from NaN, which loses against every number. Text and
bytes are ordered by their bytes: text so by code points. Decimals are compared by value. The result is 0.0 also if only
-0.0 came: the two are equal, and which one came first depends on the order of arrival.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.adding import SEEN, seen_column, seen_too, unseen
from holdfast.runtime.functions.contract import (
    AggregateFunction,
    Groups,
    Kind,
    State,
    StateColumn,
    defaults_of,
)
from holdfast.runtime.functions.types import (
    is_decimal,
    is_number,
    is_time,
    loaded,
    plain_dtype,
    stored,
    value_column,
)
from holdfast.state.keys.canonical import is_textual
from holdfast.state.tables.kernels.layout import Do


@dataclass(frozen=True)
class _Extreme(Kind):
    null_free_state: ClassVar[bool] = False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        if is_textual(kind) or is_decimal(kind):
            return ExtremeValue(self.name, kind)
        return Extreme(self.name, kind, nullable) if is_number(kind) or is_time(kind) else None


@dataclass(frozen=True)
class Min(_Extreme):
    """The smallest value."""

    name: ClassVar[str] = "min"


@dataclass(frozen=True)
class Max(_Extreme):
    """The largest value."""

    name: ClassVar[str] = "max"


@dataclass(frozen=True)
class Extreme(AggregateFunction):
    """The extreme of numbers or times in one plain column."""

    role: str
    result: pa.DataType
    counted: bool

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        dtype, default = plain_dtype(self.result), float("nan")
        if dtype.kind != "f":
            limits = np.iinfo(dtype.name)
            default = int(limits.max if self.role == "min" else limits.min)
        return {self.role: StateColumn(dtype, default)} | seen_column(self.counted)

    @property
    def counter(self) -> str | None:
        return SEEN if self.counted else None

    @property
    def operations(self) -> Mapping[str, Do]:
        dtype, least = plain_dtype(self.result), self.role == "min"
        if dtype.kind == "f":
            wide = dtype.itemsize == 8
            operation = (
                (Do.MIN_FLOAT if wide else Do.MIN_FLOAT32) if least else (Do.MAX_FLOAT if wide else Do.MAX_FLOAT32)
            )
        elif dtype == np.uint64:
            operation = Do.MIN_UINT if least else Do.MAX_UINT
        else:
            operation = Do.MIN_INT if least else Do.MAX_INT
        return seen_too(self.columns, {self.role: operation})

    def combine(self, states: State, groups: Groups, count: int) -> State:
        extremes = defaults_of(self.columns, count)
        floating = extremes[self.role].dtype.kind == "f"
        if self.role == "min":
            best: np.ufunc = np.fmin if floating else np.minimum
        else:
            best = np.fmax if floating else np.maximum
        best.at(extremes[self.role], groups, states[self.role])
        if self.counted:
            np.add.at(extremes[SEEN], groups, states[SEEN])
        return extremes

    def results(self, states: State) -> pa.Array:
        found = states[self.role]
        if found.dtype.kind == "f":
            found = found + found.dtype.type(0)  # -0.0 equals 0.0, so which of them came first may not matter
        values: pa.Array = pa.array(found, mask=unseen(states), from_pandas=False)
        return values if values.type == self.result else values.view(self.result)


@dataclass(frozen=True)
class ExtremeValue(AggregateFunction):
    """The extreme of text, bytes or decimals, null without any value."""

    role: str
    result: pa.DataType

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {self.role: value_column(self.result)}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        return {self.role: stored(self._best(inputs[0], groups, count))}

    def combine(self, states: State, groups: Groups, count: int) -> State:
        return {self.role: stored(self._best(loaded(states[self.role], self.result), groups, count))}

    def results(self, states: State) -> pa.Array:
        return loaded(states[self.role], self.result)

    def _best(self, values: pa.Array, groups: Groups, count: int) -> pa.Array:
        # Threads would only add to it: a batch takes less time than starting them, and other workers have the cores.
        table = pa.table({"group": groups, "value": values})
        grouped = table.group_by("group", use_threads=False).aggregate([("value", self.role)])
        return placed(grouped.column("group"), grouped.column(f"value_{self.role}"), count)


def placed(groups: Any, values: Any, count: int) -> pa.Array:
    """Return the value of every group, null for those that have none."""
    at = np.full(count, -1, np.int64)
    at[groups.to_numpy()] = np.arange(len(groups))
    return values.combine_chunks().take(pa.array(at, mask=at < 0))
