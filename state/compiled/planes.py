"""Stores words as planes of bytes: first the lowest byte of every word, then the next one, and so on.

The high bytes of numbers hardly differ from one row to the next, and the low ones compress badly. Apart from each other
they compress to less, and in a third of the time. Sorted words, like keys, are stored as differences first.

Importing this module imports Numba. The kernels release the interpreter lock.

Invariants
    - words_of(planes_of(words)) are the words, whatever they mean.

Pure: no clock, thread or I/O.
Source: Warren, Hacker's Delight, 7-3 (transposing a matrix); docs/decisions/0045-byte-planes.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get, get_u8, put, put_u8
from holdfast.state.compiled.sources import Words

_ROWS = 8
"""Rows of a block: as many as a word has bytes."""


def planes_of(words: Words, *, differences: bool) -> NDArray[np.uint8]:
    """Return words as planes of bytes, shape (8 * n,).

    Args:
        words: Contiguous.
        differences: Store the difference between each word and the one before it.
    """
    planes = np.empty(words.nbytes, np.uint8)
    split(words.ctypes.data, words.size, int(differences), planes)
    return planes


def words_of(planes: NDArray[np.uint8], *, differences: bool) -> Words:
    """Return the words of which planes_of() made these planes."""
    words = np.empty(planes.size // _ROWS, np.int64)
    join(planes.ctypes.data, int(differences), words)
    return words


@inner
def _swapped(one: Any, other: Any, shift: int, mask: int) -> tuple[Any, Any]:
    """Exchange the high parts of the fields of one word for the low parts of those of another."""
    apart = ((one >> np.uint64(shift)) ^ other) & np.uint64(mask)
    return one ^ (apart << np.uint64(shift)), other ^ apart


@inner
def _transposed(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Exchange rows and columns of the bytes of eight words."""
    a, b = _swapped(a, b, 8, 0x00FF00FF00FF00FF)
    c, d = _swapped(c, d, 8, 0x00FF00FF00FF00FF)
    e, f = _swapped(e, f, 8, 0x00FF00FF00FF00FF)
    g, h = _swapped(g, h, 8, 0x00FF00FF00FF00FF)
    a, c = _swapped(a, c, 16, 0x0000FFFF0000FFFF)
    b, d = _swapped(b, d, 16, 0x0000FFFF0000FFFF)
    e, g = _swapped(e, g, 16, 0x0000FFFF0000FFFF)
    f, h = _swapped(f, h, 16, 0x0000FFFF0000FFFF)
    a, e = _swapped(a, e, 32, 0x00000000FFFFFFFF)
    b, f = _swapped(b, f, 32, 0x00000000FFFFFFFF)
    c, g = _swapped(c, g, 32, 0x00000000FFFFFFFF)
    d, h = _swapped(d, h, 32, 0x00000000FFFFFFFF)
    return a, b, c, d, e, f, g, h


@kernel("none", "number", "number", "number", "bytes")
def split(words: int, rows: int, differences: int, planes_: Any) -> None:
    """Write the planes of the words at this address, or of their differences."""
    planes = address_of(planes_)
    before, keep = np.uint64(0), np.uint64(-differences)
    whole = rows - rows % _ROWS
    for row in range(0, whole, _ROWS):
        at = words + 8 * row
        a, b, c, d = np.uint64(get(at, 0)), np.uint64(get(at, 1)), np.uint64(get(at, 2)), np.uint64(get(at, 3))
        e, f, g, h = np.uint64(get(at, 4)), np.uint64(get(at, 5)), np.uint64(get(at, 6)), np.uint64(get(at, 7))
        last = h & keep
        h, g, f, e = h - (g & keep), g - (f & keep), f - (e & keep), e - (d & keep)
        d, c, b, a = d - (c & keep), c - (b & keep), b - (a & keep), a - before
        before = last
        a, b, c, d, e, f, g, h = _transposed(a, b, c, d, e, f, g, h)
        to = planes + row
        put(to, 0, a)
        put(to + rows, 0, b)
        put(to + 2 * rows, 0, c)
        put(to + 3 * rows, 0, d)
        put(to + 4 * rows, 0, e)
        put(to + 5 * rows, 0, f)
        put(to + 6 * rows, 0, g)
        put(to + 7 * rows, 0, h)
    for row in range(whole, rows):
        word = np.uint64(get(words, row))
        left = word - before
        before = word & keep
        for plane in range(_ROWS):
            put_u8(planes + plane * rows, row, np.uint8(left >> np.uint64(8 * plane)))


@kernel("none", "number", "number", "words")
def join(planes: int, differences: int, words_: Any) -> None:
    """Write the words of the planes at this address; the reverse of split()."""
    rows, words = words_.size, address_of(words_)
    before, keep = np.uint64(0), np.uint64(-differences)
    whole = rows - rows % _ROWS
    for row in range(0, whole, _ROWS):
        at = planes + row
        a, b = np.uint64(get(at, 0)), np.uint64(get(at + rows, 0))
        c, d = np.uint64(get(at + 2 * rows, 0)), np.uint64(get(at + 3 * rows, 0))
        e, f = np.uint64(get(at + 4 * rows, 0)), np.uint64(get(at + 5 * rows, 0))
        g, h = np.uint64(get(at + 6 * rows, 0)), np.uint64(get(at + 7 * rows, 0))
        a, b, c, d, e, f, g, h = _transposed(a, b, c, d, e, f, g, h)
        a += before
        b += a & keep
        c += b & keep
        d += c & keep
        e += d & keep
        f += e & keep
        g += f & keep
        h += g & keep
        before = h & keep
        to = words + 8 * row
        put(to, 0, a)
        put(to, 1, b)
        put(to, 2, c)
        put(to, 3, d)
        put(to, 4, e)
        put(to, 5, f)
        put(to, 6, g)
        put(to, 7, h)
    for row in range(whole, rows):
        word = np.uint64(0)
        for plane in range(_ROWS):
            word |= np.uint64(get_u8(planes + plane * rows, row)) << np.uint64(8 * plane)
        word += before
        before = word & keep
        put(words, row, word)


__all__ = ["join", "planes_of", "split", "words_of"]
