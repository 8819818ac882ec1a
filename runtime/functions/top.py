"""top: the values of the k rows with the largest values in another column, the largest first.

Among rows with equal values in that column, larger values come first, so the result does not depend on the order in
which rows arrive. NaN is larger than every number. A row with a null in either column does not count.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.multisets import lists
from holdfast.runtime.functions.packed import Packed
from holdfast.runtime.functions.picking import ordered
from holdfast.runtime.functions.types import canonical, is_kept

K_MAX = 10_000


@dataclass(frozen=True)
class Top(Kind):
    """The values of the k rows with the largest `by`."""

    k: int

    name: ClassVar[str] = "top"

    def __post_init__(self) -> None:
        if not (isinstance(self.k, int) and 0 < self.k <= K_MAX):
            raise ConfigError(
                f"top(..., k={self.k!r}): k is not between 1 and {K_MAX:,}",
                not_done="the job was not planned",
                next_step='give the number of values to keep, for example top("name", 10, by="score")',
            )

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        value, by = (field.type for field in given)
        return TopValues(value, by, self.k) if is_kept(value) and is_kept(by) else None


@dataclass(frozen=True)
class TopValues(AggregateFunction):
    """Up to k pairs of value and `by`, in ascending order of `by`."""

    kind: pa.DataType
    by: pa.DataType
    k: int

    @property
    def result(self) -> pa.DataType:
        return pa.list_(self.kind)

    @property
    def _packed(self) -> tuple[Packed, Packed]:
        return Packed(self.kind), Packed(self.by, "by")

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        values, by = self._packed
        return {**values.columns, **by.columns}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        value, by = map(canonical, inputs)
        order = ordered(groups, by, value)
        grouped = groups[order]
        ends = np.cumsum(np.bincount(grouped, minlength=count))
        kept = ends[grouped] - np.arange(grouped.size) <= self.k
        rows, of = pa.array(order[kept]), grouped[kept]
        packed_values, packed_by = self._packed
        return packed_values.pack(value.take(rows), of, count) | packed_by.pack(by.take(rows), of, count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        (values, of), (by, _) = (packed.unpack(states) for packed in self._packed)
        return self.partial([values, by], groups[of], count)

    def results(self, states: State) -> pa.Array:
        packed, _ = self._packed
        (values, of), lengths = packed.unpack(states), packed.lengths(states)
        ends = np.cumsum(lengths)
        within = np.arange(of.size) - (ends - lengths)[of]
        return lists(values.take(pa.array(ends[of] - 1 - within)), lengths)
