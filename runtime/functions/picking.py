"""first and last: the value of the row with the smallest or largest value in another column.

Among rows with equal values in that column, `first` takes the smallest value and `last` the largest. So the result does
not depend on the order in which rows arrive. NaN is larger than every number. A row with a null in either column does
not count.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.types import canonical, is_kept, loaded, stored, value_column

BY = "by"


@dataclass(frozen=True)
class _Pick(Kind):
    last: ClassVar[bool]

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        value, by = (field.type for field in given)
        return Picked(self.name, value, by, self.last) if is_kept(value) and is_kept(by) else None


@dataclass(frozen=True)
class First(_Pick):
    """The value of the row with the smallest `by`."""

    name: ClassVar[str] = "first"
    last: ClassVar[bool] = False


@dataclass(frozen=True)
class Last(_Pick):
    """The value of the row with the largest `by`."""

    name: ClassVar[str] = "last"
    last: ClassVar[bool] = True


@dataclass(frozen=True)
class Picked(AggregateFunction):
    """The value and the `by` of one row, null without any."""

    role: str
    result: pa.DataType
    by: pa.DataType
    last: bool

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {self.role: value_column(self.result), BY: value_column(self.by)}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        value, by = map(canonical, inputs)
        order = ordered(groups, by, value)
        sorted_groups = groups[order]
        pick_mask = np.ones(sorted_groups.size, np.bool_)
        if self.last:
            pick_mask[:-1] = sorted_groups[1:] != sorted_groups[:-1]
        else:
            pick_mask[1:] = sorted_groups[1:] != sorted_groups[:-1]
        rows = np.full(count, -1, np.int64)
        rows[sorted_groups[pick_mask]] = order[pick_mask]
        at = pa.array(rows, mask=rows < 0)
        return {self.role: stored(value.take(at)), BY: stored(by.take(at))}

    def combine(self, states: State, groups: Groups, count: int) -> State:
        some = np.flatnonzero(pa.array(states[BY]).is_valid().to_numpy(zero_copy_only=False))
        inputs = [
            loaded(states[role].take(pa.array(some)), kind) for role, kind in ((self.role, self.result), (BY, self.by))
        ]
        return self.partial(inputs, groups[some], count)

    def results(self, states: State) -> pa.Array:
        return loaded(states[self.role], self.result)


def ordered(groups: Groups, *columns: pa.Array) -> Groups:
    """Return the order of rows by group, then by columns without nulls: ascending, NaN last."""
    names = [str(at) for at in range(len(columns))]
    table = pa.Table.from_arrays([pa.array(groups), *columns], ["group", *names])
    by = [(name, "ascending") for name in table.column_names]
    return np.asarray(pc.sort_indices(table, by).to_numpy(), np.int64)
