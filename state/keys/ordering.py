"""Sorts keys of fixed width by (key group, key), as segments hold them, by radix and in parts.

Rows are first distributed over their key groups, together with the words of their keys; then each key group is
sorted on its own, digit by digit, in memory that fits a cache. So a part of the order is known as soon as its key
groups are sorted, and no sort compares two keys. A word in which all keys of a group agree costs one pass.

Importing this module imports Numba. The kernels release the interpreter lock.

Source: Knuth, The Art of Computer Programming 3, 5.2.5 (algorithm R).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get, put, put_i32
from holdfast.state.compiled.sources import addresses_of

_DIGIT_BITS, _SMALL_DIGIT_BITS = 11, 8
_SMALL_ROWS = 4_096
"""Groups with fewer rows are sorted by smaller digits: clearing and adding up counters takes longer than a pass."""
_TINY_ROWS = 24
"""Groups with fewer rows are sorted by insertion."""


def sorted_parts(
    columns: Sequence[NDArray[np.int64]], flips: Sequence[int], groups: NDArray[np.uint16], rows_max: int
) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.int64]]]:
    """Yield the rows in the order of (key group, words), in parts.

    Args:
        columns: The words that are compared, the most significant first, shape (n,) each, contiguous.
        flips: Mask to XOR with each word so that words compare as unsigned numbers.
        groups: The key group of each row, shape (n,).
        rows_max: Rows of a part, at most.

    Returns:
        The key group of each row, and row numbers.
    """
    rows, width = groups.size, len(columns) + 1
    if not rows:
        return
    starts = np.zeros(int(groups.max()) + 2, np.int64)
    elements = np.empty(rows * width, np.int64)
    partition(addresses_of(columns), np.array(flips, np.int64), groups, starts, elements)
    counters = np.empty(1 << _DIGIT_BITS, np.int64)
    scratch = np.empty(int(np.diff(starts).max()) * width, np.int64)
    first = 0
    while starts[first] < rows:
        end = min(int(np.searchsorted(starts, starts[first] + rows_max)), starts.size - 1)
        order = np.empty(int(starts[end] - starts[first]), np.int64)
        sort_groups(elements, width, starts[first : end + 1], scratch, counters, order)
        sorted_groups = np.repeat(np.arange(first, end, dtype=np.uint16), np.diff(starts[first : end + 1]))
        for at in range(0, order.size, rows_max):
            yield sorted_groups[at : at + rows_max], order[at : at + rows_max]
        first = end


def parts_by_group(
    groups: NDArray[np.uint16], count: int, rows_max: int
) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.int64]]]:
    """Yield rows in the order of key groups, in parts of some whole key groups each, to be sorted on their own.

    Args:
        groups: The key group of each row, shape (n,).
        count: Key groups of the job.
        rows_max: Rows of a part; one key group may have more.

    Returns:
        The key group of each row, and row numbers.
    """
    assert groups.size < 1 << 31
    starts, row_numbers = np.zeros(count + 1, np.int64), np.empty(groups.size, np.int32)
    list_by_group(groups, starts, row_numbers.ctypes.data)
    first = 0
    while first < count:
        end = max(first + 1, int(np.searchsorted(starts, starts[first] + rows_max, side="right")) - 1)
        if starts[end] > starts[first]:
            numbers = np.repeat(np.arange(first, end, dtype=np.uint16), np.diff(starts[first : end + 1]))
            yield numbers, row_numbers[starts[first] : starts[end]].astype(np.int64)
        first = end


@inner
def _count_groups(groups_: Any, starts: int, last: int) -> None:
    """Set where every key group begins, and the number of rows after the last one."""
    for row in range(groups_.size):
        group: Any = np.int64(groups_[row])
        put(starts, group + 1, get(starts, group + 1) + 1)
    for group in range(last):
        put(starts, group + 1, get(starts, group) + get(starts, group + 1))


@inner
def _shift_back(starts: int, last: int) -> None:
    """Set where every key group begins, after rows have been distributed."""
    for group in range(last, 0, -1):
        put(starts, group, get(starts, group - 1))
    put(starts, 0, 0)


@kernel("none", "groups", "words", "number")
def list_by_group(groups_: Any, starts_: Any, listed: int) -> None:
    """List row numbers by key group, in their order.

    Args:
        starts_: Zeros, one more than key groups; becomes the first row of every key group, and the number of rows.
        listed: Where an int32 per row is.
    """
    last, starts = starts_.size - 1, address_of(starts_)
    _count_groups(groups_, starts, last)
    for row in range(groups_.size):
        group: Any = np.int64(groups_[row])
        to = get(starts, group)
        put(starts, group, to + 1)
        put_i32(listed, to, np.int32(row))
    _shift_back(starts, last)


@kernel("none", "words", "words", "groups", "words", "words")
def partition(columns_: Any, flips_: Any, groups_: Any, starts_: Any, packed_: Any) -> None:
    """Distribute rows over key groups, in their order.

    Args:
        columns_: Addresses of the columns of words.
        starts_: Zeros, one more than key groups; becomes the first row of every key group, and the number of rows.
        packed_: Becomes the flipped words and the number of each row.
    """
    rows, last, count = groups_.size, starts_.size - 1, columns_.size
    width, elements, starts = count + 1, address_of(packed_), address_of(starts_)
    _count_groups(groups_, starts, last)
    for row in range(rows):
        group: Any = np.int64(groups_[row])
        to = get(starts, group)
        put(starts, group, to + 1)
        element = elements + to * width * 8
        for column in range(count):
            put(element, column, get(get(address_of(columns_), column), row) ^ flips_[column])
        put(element, count, row)
    _shift_back(starts, last)


@inner
def _before(one: int, other: int, words: int) -> bool:
    """Return whether the words of one element come before those of another."""
    for word in range(words):
        left, right = np.uint64(get(one, word)), np.uint64(get(other, word))
        if left != right:
            return bool(left < right)
    return False


@inner
def _insert(first: int, size: int, width: int, spare: int) -> None:
    """Sort a few elements by insertion."""
    stride = width * 8
    for row in range(1, size):
        element = first + row * stride
        if not _before(element, element - stride, width - 1):
            continue
        for word in range(width):
            put(spare, word, get(element, word))
        at = element
        while at > first and _before(spare, at - stride, width - 1):
            for word in range(width):
                put(at, word, get(at - stride, word))
            at -= stride
        for word in range(width):
            put(at, word, get(spare, word))


@inner
def _pass(source: int, target: int, size: int, width: int, word: int, shift: int, digit: int, counters: int) -> None:
    """Distribute elements by one digit of one word, in their order."""
    mask, stride = (1 << digit) - 1, width * 8
    for value in range(mask + 1):
        put(counters, value, 0)
    for row in range(size):
        value = (get(source + row * stride, word) >> shift) & mask
        put(counters, value, get(counters, value) + 1)
    before = 0
    for value in range(mask + 1):
        count = get(counters, value)
        put(counters, value, before)
        before += count
    for row in range(size):
        element = source + row * stride
        value = (get(element, word) >> shift) & mask
        to = get(counters, value)
        put(counters, value, to + 1)
        for each in range(width):
            put(target + to * stride, each, get(element, each))


@inner
def _bits(varying: int) -> Any:
    """Return how many bits it takes to hold a word that is not 0, as an unsigned number."""
    left, bits = np.uint64(varying), 0
    while left != 0:
        left >>= np.uint64(1)
        bits += 1
    return bits


@inner
def _sorted(first: int, size: int, width: int, scratch: int, counters: int) -> Any:
    """Sort elements by their words; return where they are then, in place or in the scratch."""
    source, target = first, scratch
    for word in range(width - 2, -1, -1):
        varying = 0
        for row in range(size):
            varying |= get(source + row * width * 8, word) ^ get(source, word)
        if varying == 0:
            continue
        low = 0
        while (varying >> low) & 1 == 0:
            low += 1
        digit_max = _DIGIT_BITS if size >= _SMALL_ROWS else _SMALL_DIGIT_BITS
        bits = _bits(varying) - low
        passes = (bits + digit_max - 1) // digit_max
        digit = (bits + passes - 1) // passes
        for number in range(passes):
            shift = low + number * digit
            if (varying >> shift) & ((1 << digit) - 1) != 0:
                _pass(source, target, size, width, word, shift, digit, counters)
                source, target = target, source
    return source


@kernel("none", "words", "number", "words", "words", "words", "words")
def sort_groups(packed_: Any, width: int, starts_: Any, scratch_: Any, counters_: Any, order_: Any) -> None:
    """Sort the rows of each of some adjacent key groups.

    Args:
        starts_: Where each key group begins in packed_, and where the last one ends.
        scratch_: As large as the largest key group.
        order_: Becomes the row numbers.
    """
    elements, scratch, stride = address_of(packed_), address_of(scratch_), width * 8
    begin = starts_[0]
    for group in range(starts_.size - 1):
        start, size = starts_[group], starts_[group + 1] - starts_[group]
        group_elements = elements + start * stride
        if size < _TINY_ROWS:
            _insert(group_elements, size, width, address_of(counters_))
        else:
            group_elements = _sorted(group_elements, size, width, scratch, address_of(counters_))
        for row in range(size):
            order_[start - begin + row] = get(group_elements + row * stride, width - 1)


__all__ = ["list_by_group", "partition", "parts_by_group", "sort_groups", "sorted_parts"]
