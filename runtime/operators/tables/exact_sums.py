"""var of the rows that a table has: exact sums of the values and of their squares, in digits of 32 bits.

A double is an integer times a power of two. Its value and its square are added to the digits of two numbers of any
size, each digit a row below the group. So taking a value back restores the earlier sum exactly, however large the value
was, and a variance is that of the values that the table has, rounded once.

A digit is a sum of integers that are smaller than the base: it may be negative, and need not be smaller itself. A value
has at most 12 entries, most of which are 0 and left out. Values that are not finite are counted, and make it NaN.

Pure.
Source: docs/decisions/0096-values-below-groups.md; Kulisch, Computer Arithmetic and Validity, 2008 (exact
accumulation).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import Kind
from holdfast.runtime.functions.moments import Var
from holdfast.runtime.operators.tables.below import Counts, Entries, Part
from holdfast.state.collections.rows import OrderedRows
from holdfast.state.keys.batch import Keys

BITS = 32
"""Bits of a digit."""
NOT_FINITE = (1 << 15) - 1
"""The row that counts values which are infinite or NaN; digits have places between -72 and 65."""
VALUES, SQUARES = "values", "squares"
_MANTISSA_BITS = 53
_LOW = np.uint64((1 << BITS) - 1)
_HALF = np.uint64(BITS)
Words = NDArray[np.uint64]
_Terms = tuple[Words, Counts]
"""Integers, and the powers of two that they are multiplied with."""


@dataclass(frozen=True)
class ExactSums(Part):
    """The digits of two sums, by their place."""

    columns: ClassVar[tuple[str, ...]] = (VALUES, SQUARES)

    @property
    def suffix(self) -> tuple[pa.DataType, ...]:
        return (pa.int16(),)

    def entries(self, values: pa.Array) -> Entries:
        numbers = values.to_numpy(zero_copy_only=False)
        finite = np.isfinite(numbers)
        negative, whole, power = _taken_apart(np.where(finite, numbers, 0))
        found = list(_digits((whole, power)))
        own = [(place, np.where(negative, -digit, digit)) for place, digit in found]
        squares = [each for term in _squared(whole, power) for each in _digits(term)]
        zeros = np.zeros(numbers.size, np.int64)
        columns = [
            *((place, digit, zeros) for place, digit in own),
            *((place, zeros, digit) for place, digit in squares),
            (np.full(numbers.size, NOT_FINITE), (~finite).astype(np.int64), zeros),
        ]
        places, sums, of_squares = (np.concatenate(each) for each in zip(*columns, strict=True))
        kept = np.flatnonzero((sums != 0) | (of_squares != 0))
        suffix = [pa.array(places[kept].astype(np.int16))]
        return Entries(kept % max(numbers.size, 1), suffix, [sums[kept], of_squares[kept]])

    def results(self, kind: Kind, rows: OrderedRows, groups: Keys, seen: Counts) -> pa.Array:
        assert isinstance(kind, Var)
        group_rows = rows.find(groups)
        places = rows.table.key_columns(group_rows.slots)[-1].to_pylist()
        sums, squares = (rows.table.values(self.column(name), group_rows.slots).tolist() for name in self.columns)
        ends, results = np.cumsum(group_rows.counts).tolist(), list[float | None]()
        for count, size, end in zip(seen.tolist(), group_rows.counts.tolist(), ends, strict=True):
            own = slice(end - size, end)
            results.append(_variance(count, kind.ddof, places[own], sums[own], squares[own]))
        return pa.array(results, pa.float64(), from_pandas=False)


def _taken_apart(numbers: NDArray[np.generic]) -> tuple[NDArray[np.bool_], Words, Counts]:
    """Return which numbers are negative, and their sizes as integers times powers of two."""
    if numbers.dtype.kind == "u":
        return np.zeros(numbers.size, np.bool_), numbers.astype(np.uint64), np.zeros(numbers.size, np.int64)
    negative = np.asarray(numbers < 0, np.bool_)  # type: ignore[operator]
    if numbers.dtype.kind == "i":
        words = numbers.astype(np.int64).view(np.uint64)
        return negative, np.where(negative, ~words + np.uint64(1), words), np.zeros(numbers.size, np.int64)
    parts, powers = np.frexp(np.abs(numbers.astype(np.float64)))
    return negative, np.ldexp(parts, _MANTISSA_BITS).astype(np.uint64), powers.astype(np.int64) - _MANTISSA_BITS


def _squared(whole: Words, power: Counts) -> list[_Terms]:
    """Return terms that add up to the squares: a square of 128 bits is made of products of halves."""
    high, low = whole >> _HALF, whole & _LOW
    return [(high * high, 2 * power + 2 * BITS), (high * low, 2 * power + BITS + 1), (low * low, 2 * power)]


def _digits(terms: _Terms) -> Iterator[tuple[Counts, Counts]]:
    """Yield the digits of terms, three for each, with their places."""
    whole, power = terms
    place, shift = power >> 5, (power & (BITS - 1)).astype(np.uint64)
    back = _HALF - shift
    yield place, ((whole << shift) & _LOW).astype(np.int64)
    yield place + 1, ((whole >> back) & _LOW).astype(np.int64)
    yield place + 2, ((whole >> _HALF) >> back).astype(np.int64)


def _variance(
    count: int, ddof: int, places: Sequence[int], sums: Sequence[int], squares: Sequence[int]
) -> float | None:
    """Return the variance of this many values, given the digits of their sum and of the sum of their squares."""
    if count <= ddof or not count:
        return None
    if places and places[-1] == NOT_FINITE:
        return float("nan")
    # Not above 0, so that both sums are integers times a power of two that divides.
    base = min(0, *places) if places else 0
    total = sum(digit << BITS * (place - base) for place, digit in zip(places, sums, strict=True))
    square = sum(digit << BITS * (place - base) for place, digit in zip(places, squares, strict=True))
    apart = count * (square << -BITS * base) - total * total
    try:
        return apart / ((count * (count - ddof)) << -2 * BITS * base)
    except OverflowError:
        return float("inf")
