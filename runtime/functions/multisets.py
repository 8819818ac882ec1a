"""distinct and collect: state that keeps the values themselves, in ascending order.

A batch rewrites the values of every key that it changes, so these functions are for keys with up to some ten thousand
values. NaN is one value, larger than every number; 0.0 and -0.0 are one value.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.functions.contract import AggregateFunction, CannotFold, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.packed import Packed
from holdfast.runtime.functions.picking import ordered
from holdfast.runtime.functions.types import canonical, is_kept

COLLECT_MAX = 1_000
_COLLECT_LIMIT = 1_000_000


@dataclass(frozen=True)
class Distinct(Kind):
    """How many different values there are, exactly."""

    name: ClassVar[str] = "distinct"

    def nullable(self, given: bool) -> bool:
        return False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        return DistinctValues(kind) if is_kept(kind) else None


@dataclass(frozen=True)
class CollectKind(Kind):
    """All values, as a list in ascending order."""

    max: int = COLLECT_MAX

    name: ClassVar[str] = "collect"

    def __post_init__(self) -> None:
        if not (isinstance(self.max, int) and 0 < self.max <= _COLLECT_LIMIT):
            raise ConfigError(
                f"collect(..., max={self.max!r}): max is not between 1 and {_COLLECT_LIMIT:,}",
                not_done="the job was not planned",
                next_step="give the number of values that a list may have at most, for example max=1_000",
            )

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        return CollectedValues(kind, self.max) if is_kept(kind) else None


@dataclass(frozen=True)
class DistinctValues(AggregateFunction):
    """Every value once."""

    kind: pa.DataType
    result: pa.DataType = pa.int64()

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return Packed(self.kind).columns

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        table = pa.table({"group": groups, "value": canonical(inputs[0])})
        found = table.group_by(["group", "value"], use_threads=False).aggregate([]).combine_chunks()
        values = found.column("value").combine_chunks()
        distinct_groups = found.column("group").to_numpy()
        order = ordered(distinct_groups, values)
        return Packed(self.kind).pack(values.take(pa.array(order)), distinct_groups[order], count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        values, of = Packed(self.kind).unpack(states)
        return self.partial([values], groups[of], count)

    def results(self, states: State) -> pa.Array:
        return pa.array(Packed(self.kind).lengths(states))


@dataclass(frozen=True)
class CollectedValues(AggregateFunction):
    """Every value as often as it occurs."""

    kind: pa.DataType
    max: int

    @property
    def result(self) -> pa.DataType:
        return pa.list_(self.kind)

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return Packed(self.kind).columns

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        counts = np.bincount(groups, minlength=count)
        if counts.max(initial=0) > self.max:
            raise CannotFold(
                f"has more than max={self.max:,} values",
                "raise max=, under a new operator name; or keep fewer values, with a filter=, a window or top(...)",
                int(counts.argmax()),
            )
        values = canonical(inputs[0])
        order = ordered(groups, values)
        return Packed(self.kind).pack(values.take(pa.array(order)), groups[order], count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        values, of = Packed(self.kind).unpack(states)
        return self.partial([values], groups[of], count)

    def results(self, states: State) -> pa.Array:
        packed = Packed(self.kind)
        values, _ = packed.unpack(states)
        return lists(values, packed.lengths(states))


def lists(values: pa.Array, lengths: Groups) -> pa.Array:
    """Return consecutive values as lists of these lengths; null instead of an empty one."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(lengths == 0))
