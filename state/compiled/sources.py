"""Describes columns in memory to kernels.

A kernel is compiled once, so it reads every column as 64-bit words: integers and times widened, floats as doubles. It
gets addresses instead of typed arrays. An input of a fold is a row of numbers: ADDRESS of the first word, VALIDITY
(address of a bitmap, 0: no value is null), OFFSET (bits before the first row's).

Invariants
    - The caller that passes a description keeps the arrays alive until the kernel has returned.

Pure: no clock, thread or I/O.
Source: Apache Arrow columnar format, fixed-size primitive layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ADDRESS, VALIDITY, OFFSET = range(3)
FIELDS = 3
Words = NDArray[np.int64]
Sources = NDArray[np.int64]
"""Descriptions of inputs, shape (inputs, FIELDS)."""
NO_SOURCES: Sources = np.empty((0, FIELDS), np.int64)


class KernelInput:
    """A column of a batch as kernels read it, described and kept alive.

    Args:
        values: One 64-bit value per row, C-contiguous; None if only nulls are read.
        column: The Arrow array whose nulls count; None: no value is null.
    """

    __slots__ = ("_kept", "source")

    def __init__(self, values: NDArray[Any] | None, column: pa.Array | None = None) -> None:
        assert values is None or (values.itemsize == 8 and values.flags.c_contiguous)
        self._kept: tuple[Any, ...] = (values, column)
        address = 0 if values is None else values.ctypes.data
        self.source = (address, 0, 0)
        if column is not None and column.null_count:
            bits = column.buffers()[0]
            if bits is None:  # of a type without a bitmap
                column = column.is_valid()
                bits = column.buffers()[1]
            self._kept = (values, bits)
            self.source = (address, bits.address, column.offset)


def sources_of(inputs: Sequence[KernelInput]) -> Sources:
    """Return the descriptions of inputs, which must be kept."""
    return np.array([each.source for each in inputs], np.int64).reshape(-1, FIELDS)


def from_row(sources: Sources, first: int) -> Sources:
    """Return the descriptions of the same inputs from this row on."""
    if first == 0 or not sources.size:
        return sources
    moved = sources.copy()
    moved[:, ADDRESS] += np.where(moved[:, ADDRESS] != 0, 8 * first, 0)
    moved[:, OFFSET] += first
    return moved


def addresses_of(arrays: Sequence[Words]) -> Words:
    """Return where contiguous arrays of words begin; they must be kept."""
    assert all(array.itemsize == 8 and array.flags.c_contiguous for array in arrays)
    return np.array([array.ctypes.data for array in arrays], np.int64)
