"""Exact sums and means of decimals.

A decimal is an integer of 128 bits times a power of ten. Sums are computed in four limbs of 32 bits, each in an int64,
so a batch cannot overflow; the carries are moved once, and a sum of more than 38 digits is refused.

A mean has four more digits after the point than its input, as many as fit 38 digits, and is rounded half to even.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import AggregateFunction, CannotFold, Groups, State, StateColumn
from holdfast.runtime.functions.types import as_bytes, as_decimals, loaded, stored, value_column

DIGITS = 38
MEAN_DIGITS = 4
"""Digits after the point that a mean has beyond those of its input."""
_LIMBS, _BITS = 4, 32
_LOW = (1 << _BITS) - 1
_CONTEXT = Context(prec=2 * DIGITS, rounding=ROUND_HALF_EVEN)
_LIMIT = [(10**DIGITS >> (_BITS * at)) & _LOW for at in range(_LIMBS)]
TOO_LARGE = f"does not fit into {DIGITS} digits"
USE_LESS = "cast the column to a decimal with fewer digits after the point, or to pl.Float64, under a new operator name"


@dataclass(frozen=True)
class DecimalSum(AggregateFunction):
    """The sum of decimals: the value itself, null without any."""

    given: pa.DataType

    @property
    def result(self) -> pa.DataType:
        return pa.decimal128(DIGITS, self.given.scale)

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {"sum": value_column(self.result)}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        return {"sum": stored(self._summed(inputs[0], groups, count))}

    def combine(self, states: State, groups: Groups, count: int) -> State:
        sums = states["sum"]
        some = np.flatnonzero(sums.is_valid().to_numpy(zero_copy_only=False))
        return {"sum": stored(self._summed(loaded(sums.take(pa.array(some)), self.result), groups[some], count))}

    def results(self, states: State) -> pa.Array:
        return loaded(states["sum"], self.result)

    def _summed(self, values: pa.Array, groups: Groups, count: int) -> pa.Array:
        limbs = np.zeros((_LIMBS, count), np.int64)
        for at, limb in enumerate(_limbs(values)):
            np.add.at(limbs[at], groups, limb)
        sums = _carried(limbs)
        seen = np.zeros(count, np.bool_)
        seen[groups] = True
        return as_decimals(pa.array(list(map(bytes, sums)), pa.binary(16), mask=~seen), self.result)


@dataclass(frozen=True)
class DecimalMean(AggregateFunction):
    """The mean of decimals: their sum and their number."""

    given: pa.DataType

    @property
    def result(self) -> pa.DataType:
        whole = self.given.precision - self.given.scale
        return pa.decimal128(DIGITS, min(self.given.scale + MEAN_DIGITS, DIGITS - max(whole, 0)))

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {**DecimalSum(self.given).columns, "seen": StateColumn(np.dtype(np.int64))}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        return {**DecimalSum(self.given).partial(inputs, groups, count), "seen": np.bincount(groups, minlength=count)}

    def combine(self, states: State, groups: Groups, count: int) -> State:
        seen = np.zeros(count, np.int64)
        np.add.at(seen, groups, states["seen"])
        return {**DecimalSum(self.given).combine({"sum": states["sum"]}, groups, count), "seen": seen}

    def results(self, states: State) -> pa.Array:
        sums, unit = DecimalSum(self.given).results(states).to_pylist(), Decimal(1).scaleb(-self.result.scale)
        means = [
            None if total is None else _CONTEXT.quantize(_CONTEXT.divide(total, Decimal(int(seen))), unit)
            for total, seen in zip(sums, states["seen"], strict=True)
        ]
        return pa.array(means, self.result)


def _limbs(values: pa.Array) -> list[NDArray[np.int64]]:
    """Return the 32-bit limbs of decimals, the lowest first; the last one has the sign."""
    words = np.frombuffer(as_bytes(values).buffers()[1], np.uint32, _LIMBS * len(values), 16 * values.offset)
    rows = words.reshape(-1, _LIMBS)
    *low, high = (rows[:, at] for at in range(_LIMBS))
    return [*(limb.astype(np.int64) for limb in low), high.astype(np.int32).astype(np.int64)]


def _carried(limbs: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return sums of limbs as integers of 128 bits, shape (n, limbs).

    Raises:
        CannotFold: a sum has more than 38 digits.
    """
    for at in range(_LIMBS - 1):
        limbs[at + 1] += limbs[at] >> _BITS
        limbs[at] &= _LOW
    high = limbs[-1]
    beyond = (high < -(1 << 31)) | (high >= 1 << 31)
    beyond |= _at_least_limit(limbs) | _at_least_limit(_negated(limbs))
    if beyond.any():
        raise CannotFold(TOO_LARGE, USE_LESS, int(beyond.argmax()))
    return np.ascontiguousarray((limbs & _LOW).astype(np.uint32).T)


def _negated(limbs: NDArray[np.int64]) -> NDArray[np.int64]:
    negative: NDArray[Any] = -limbs
    for at in range(_LIMBS - 1):
        negative[at + 1] += negative[at] >> _BITS
        negative[at] &= _LOW
    return negative


def _at_least_limit(limbs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which integers are 10**38 or more."""
    reached = np.ones(limbs.shape[1], np.bool_)
    for limb, limit in zip(limbs, _LIMIT, strict=True):
        reached = (limb > limit) | ((limb == limit) & reached)
    return reached
