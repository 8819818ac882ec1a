"""min and max of the rows that a table has: the values of each group in order, each with the number of its rows.

A value is kept as words that sort as it does: integers and times as themselves, floats by their bits, decimals as two
words, text and bytes as they are. So the smallest and the largest are the first and the last row below a group.

0.0 and -0.0 are one value. NaN is the last of all, and counts only if a group has nothing else.

Pure.
Source: docs/decisions/0096-values-below-groups.md; Flink, MIN and MAX with retractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import Kind
from holdfast.runtime.functions.types import DECIMAL_BYTES, as_bytes, as_decimals, is_decimal, plain_dtype
from holdfast.runtime.operators.joins.rows import Slots
from holdfast.runtime.operators.tables.below import Counts, Entries, Part
from holdfast.state.collections.rows import OrderedRows
from holdfast.state.keys.batch import Keys
from holdfast.state.keys.canonical import is_textual
from holdfast.state.tables.ordered import RangeSlots

NAN_WORD = (1 << 63) - 1
"""The word of NaN. Its bits are a NaN, too."""


@dataclass(frozen=True)
class CountedValues(Part):
    """Every value of a group, and how many rows have it."""

    columns: ClassVar[tuple[str, ...]] = ("rows",)

    @property
    def suffix(self) -> tuple[pa.DataType, ...]:
        if is_decimal(self.type):
            return pa.int64(), pa.uint64()
        return (self.type if is_textual(self.type) or self.type == pa.uint64() else pa.int64(),)

    def entries(self, values: pa.Array) -> Entries:
        return Entries(np.arange(len(values)), words_of(values), [np.ones(len(values), np.int64)])

    def results(self, kind: Kind, rows: OrderedRows, groups: Keys, seen: Counts) -> pa.Array:
        largest = kind.name == "max"
        below_nan = largest and pa.types.is_floating(self.type)
        bounds = [pa.array(np.full(len(groups), NAN_WORD))] if below_nan else []
        slots = _one_each(rows.find(groups, (), bounds, limit=1, descending=largest))
        if bounds and (bare := np.flatnonzero(slots < 0)).size:
            slots[bare] = _one_each(rows.find(groups.take(bare), limit=1))
        found = slots >= 0
        words = rows.table.key_columns(slots[found])[-len(self.suffix) :]
        places = np.cumsum(found) - 1
        return values_of(words, self.type).take(pa.array(places, mask=~found))


def words_of(values: pa.Array) -> list[pa.Array]:
    """Return values as columns of a key, whose order is that of the values."""
    kind = values.type
    if is_textual(kind):
        return [values]
    if is_decimal(kind):
        words = np.frombuffer(as_bytes(values).buffers()[1], np.uint64, 2 * len(values), DECIMAL_BYTES * values.offset)
        return [pa.array(words[1::2].view(np.int64)), pa.array(words[0::2])]
    if pa.types.is_floating(kind):
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # makes -0.0 a 0.0
        return [pa.array(np.where(np.isnan(numbers), NAN_WORD, _flipped(numbers.view(np.int64))))]
    numbers = values.view(pa.from_numpy_dtype(plain_dtype(kind)))
    return [numbers if kind == pa.uint64() else numbers.cast(pa.int64())]


def values_of(words: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return the values of a type whose words these are."""
    if is_textual(kind):
        return words[0]
    if is_decimal(kind):
        high, low = (each.to_numpy(zero_copy_only=False) for each in words)
        pairs = np.ascontiguousarray(np.stack([low, high.view(np.uint64)], axis=1))
        size = pa.binary(DECIMAL_BYTES)
        return as_decimals(pa.Array.from_buffers(size, len(low), [None, pa.py_buffer(pairs)]), kind)
    if pa.types.is_floating(kind):
        numbers = _flipped(words[0].to_numpy(zero_copy_only=False)).view(np.float64)
        return pa.array(numbers, from_pandas=False).cast(kind)
    return words[0].cast(pa.from_numpy_dtype(plain_dtype(kind))).view(kind)


def _flipped(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bits of floats as numbers in their order, and such numbers as bits."""
    return np.where(bits < 0, bits ^ NAN_WORD, bits)


def _one_each(found: RangeSlots) -> Slots:
    """Return the slot that was found for every group, -1 for none."""
    slots: Slots = np.full(found.counts.size, -1)
    slots[found.counts == 1] = found.slots
    return slots
