"""Merges the values of records into rows of a matrix: the slices of a window, by user key.

A block of records passes through one loop per operation, so the cache misses of records and rows overlap. A value is
merged by the operation that folded it; counts are added.

Source: docs/decisions/0062-slices.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get, get_f32, prefetch, put, put_f64
from holdfast.state.tables.kernels.layout import (
    BLOCK_ROWS,
    INPUT,
    OPERATION,
    PROGRAM_FIELDS,
    SCRATCH_GAP,
    SHIFT,
    WORD,
    Control,
    Do,
)
from holdfast.state.tables.kernels.probing import in_one_line
from holdfast.state.tables.kernels.rows import apply_all

_WORDS, _ADD_INT, _MIN_F32 = int(Control.WORDS), int(Do.ADD_INT), int(Do.MIN_FLOAT32)
_PART = (BLOCK_ROWS + SCRATCH_GAP) * 8


@inner
def _add(size: int, at: int, word: int, to: int, target: int) -> Any:
    """Add integers; return a negative number if a sum left 64 bits."""
    beyond = 0
    for row in range(size):
        held, value = get(get(to, row), target), get(get(at, row), word)
        added = held + value
        beyond |= (held ^ added) & (value ^ added)
        put(get(to, row), target, added)
    return beyond


@inner
def _read(size: int, at: int, word: int, narrow: bool, shift: int, values: int) -> None:
    """Write one value of each record as operations read them: doubles, or integers of 64 bits."""
    if narrow:
        for row in range(size):
            put_f64(values, row, np.float64(get_f32(get(at, row), 2 * word)))
    else:
        for row in range(size):
            put(values, row, (get(get(at, row), word) << shift) >> shift)


@kernel("number", "words", "words", "words", "words", "matrix", "matrix", "words")
def merge_rows(
    records_: Any, control_: Any, slots_: Any, groups_: Any, program_: Any, merged_: Any, scratch_: Any
) -> int:
    """Merge the record of every slot into the row of its group.

    Args:
        program_: Operations; INPUT is the column of the matrix.
        merged_: Holds the values of groups without any record before, shape (groups, columns).
        scratch_: 3 * (BLOCK_ROWS + SCRATCH_GAP) words.

    Returns:
        1 if a sum of integers left 64 bits, even if it came back; else 0.
    """
    slots, groups, program, merged_rows = (
        address_of(slots_),
        address_of(groups_),
        address_of(program_),
        address_of(merged_),
    )
    at, to, values, beyond = address_of(scratch_), address_of(scratch_) + _PART, address_of(scratch_) + 2 * _PART, 0
    records, stride, row_bytes = address_of(records_), get(address_of(control_), _WORDS) * 8, merged_.shape[1] * 8
    wide = not in_one_line(stride)
    for first in range(0, slots_.size, BLOCK_ROWS):
        size = min(BLOCK_ROWS, slots_.size - first)
        for row in range(size):
            record, target = (
                records + get(slots, first + row) * stride,
                merged_rows + get(groups, first + row) * row_bytes,
            )
            put(at, row, record)
            put(to, row, target)
            prefetch(record, 0)
            prefetch(target, 0)
            if wide:
                prefetch(record + stride, -1)
        for step in range(program_.shape[0]):
            line = program + step * PROGRAM_FIELDS * 8
            do, word, target = get(line, OPERATION), get(line, WORD), get(line, INPUT)
            if do == _ADD_INT:
                beyond |= _add(size, at, word, to, target)
            else:
                _read(size, at, word, do >= _MIN_F32, get(line, SHIFT), values)
                apply_all(do, target, get(line, SHIFT), to, size, values)
    return 1 if beyond < 0 else 0


__all__ = ["merge_rows"]
