"""quantile: about the value at a rank, with a histogram of logarithmic buckets.

A bucket holds the numbers that share sign, exponent and the first 6 bits of the mantissa. So its middle differs from
any of them by less than 0.8 %. State is the buckets in use, in ascending order, with their counts. Only bits and
additions of integers are involved: a state follows from the values alone, whatever their order, on any machine.

The result is the middle of the bucket of the value with rank floor(q * (n - 1)). NaN is larger than every number.

Pure.
Source: docs/decisions/0061-aggregate-functions.md; Masson, Rim, Lee, DDSketch, 2019 (relative error, merges).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.packed import Packed
from holdfast.runtime.functions.types import is_number

MANTISSA_BITS = 6
_SHIFT = np.int64(52 - MANTISSA_BITS)
_INFINITE = 0x7FF << MANTISSA_BITS
_BUCKETS, _COUNTS = Packed(pa.int32(), "buckets"), Packed(pa.int64(), "counts")


@dataclass(frozen=True)
class Quantile(Kind):
    """About the value at a rank."""

    q: float

    name: ClassVar[str] = "quantile"

    def __post_init__(self) -> None:
        if not (isinstance(self.q, int | float) and 0 <= self.q <= 1):
            raise ConfigError(
                f"quantile(..., q={self.q!r}): q is not between 0 and 1",
                not_done="the job was not planned",
                next_step="give for example q=0.5 for the median, or q=0.99",
            )
        object.__setattr__(self, "q", float(self.q))

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        return Histogram(self.q) if is_number(kind) else None


@dataclass(frozen=True)
class Histogram(AggregateFunction):
    """Buckets with counts."""

    q: float
    result: pa.DataType = pa.float64()

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {**_BUCKETS.columns, **_COUNTS.columns}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        numbers = inputs[0].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return _summed(buckets_of(numbers), np.ones(numbers.size, np.int64), groups, count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        (buckets, of), (counts, _) = _BUCKETS.unpack(states), _COUNTS.unpack(states)
        return _summed(buckets.to_numpy().astype(np.int64), counts.to_numpy(), groups[of], count)

    def results(self, states: State) -> pa.Array:
        (buckets, of), (counts, _) = _BUCKETS.unpack(states), _COUNTS.unpack(states)
        rows, through = len(states["buckets"]), np.cumsum(counts.to_numpy())
        totals = np.zeros(rows, np.int64)
        np.add.at(totals, of, counts.to_numpy())
        ranks = np.floor(self.q * (np.maximum(totals, 1) - 1)).astype(np.int64)
        before = np.cumsum(totals) - totals
        found = np.searchsorted(through, before + ranks, side="right")
        numbers = (
            buckets.to_numpy().astype(np.int64)[np.minimum(found, max(len(buckets) - 1, 0))] if len(buckets) else ranks
        )
        return pa.array(middles_of(numbers), mask=totals == 0, from_pandas=False)


def buckets_of(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bucket of every number; buckets are in the order of the numbers."""
    bits = np.abs(numbers).view(np.int64)
    buckets = bits >> _SHIFT
    return np.where(np.isnan(numbers), _INFINITE + 1, np.where(numbers < 0, -1 - buckets, buckets))


def middles_of(buckets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middle of every bucket; of the one of zero, zero."""
    sizes = np.where(buckets < 0, -1 - buckets, buckets)
    low = (sizes << _SHIFT).view(np.float64)
    next_bits = np.minimum((sizes + 1) << _SHIFT, np.int64(_INFINITE << int(_SHIFT)) - 1)
    high = np.asarray(next_bits, np.int64).view(np.float64)
    with np.errstate(invalid="ignore"):
        middles = np.where(sizes >= _INFINITE, np.inf, low + (high - low) / 2)
    middles = np.where(sizes == 0, 0.0, middles)
    return np.where(buckets > _INFINITE, np.nan, np.where(buckets < 0, -middles, middles))


def _summed(buckets: NDArray[np.int64], counts: NDArray[np.int64], groups: Groups, count: int) -> State:
    order = np.lexsort((buckets, groups))
    groups, buckets, counts = groups[order], buckets[order], counts[order]
    first = np.ones(groups.size, np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (buckets[1:] != buckets[:-1])
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(counts, starts) if starts.size else counts
    of = groups[starts]
    return {
        **_BUCKETS.pack(pa.array(buckets[starts].astype(np.int32)), of, count),
        **_COUNTS.pack(pa.array(sums), of, count),
    }
