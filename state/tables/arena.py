"""The stored keys of a table whose hashes alone do not identify keys.

Keys are stored one after another as 8-byte words, the last padded with zeros, so that a batch is
compared with its stored keys one word of every key at a time.

Invariants
    - The key of a slot never changes: code that holds (arena, slots) may read the keys later,
      on another thread, without copying them first.
    - Equal length and equal words mean equal keys.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.keys import canonical as codec
from holdfast.state.tables.index import Rows, Same
from holdfast.state.tables.slab import Slab

_WORD = 8
_SIGN = np.uint64(1 << 63)
_TAIL_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)


class KeyArena:
    """Canonical keys by slot; append-only."""

    def __init__(self) -> None:
        self.count = 0
        self._used = 0
        self._words = Slab(np.uint64)
        self._starts = Slab(np.int64)
        self._lengths = Slab(np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes in use by the stored keys."""
        return self._used * _WORD + self.count * 12

    def append(self, batch: KeyBatch, rows: Rows) -> None:
        """Store the keys of these rows as the next slots, in order."""
        lengths = batch.lengths[rows]
        # At least one word, else an empty key would be compared with its neighbour's word.
        words = np.maximum((lengths + _WORD - 1) // _WORD, 1)
        ends = self._used + np.cumsum(words)
        if not rows.size:
            return
        end = self.count + rows.size
        for slab, size in ((self._words, int(ends[-1])), (self._starts, end), (self._lengths, end)):
            slab.hold(size)
        starts = ends - words
        self._starts.array[self.count : end] = starts
        self._lengths.array[self.count : end] = lengths
        at, to, left = batch.starts[rows], starts, lengths
        while at.size:
            self._words.array[to] = batch.words(at, left)
            more = left > _WORD
            at, to, left = at[more] + _WORD, to[more] + 1, left[more] - _WORD
        self._used, self.count = int(ends[-1]), end

    def same(self, batch: KeyBatch) -> Same:
        """Return a function that tests whether rows of a batch equal the keys at slots."""

        def same(rows: Rows, slots: Rows) -> NDArray[np.bool_]:
            lengths = batch.lengths[rows]
            equal: NDArray[np.bool_] = self._lengths.array.take(slots) == lengths
            asked = np.flatnonzero(equal)
            at, stored, left = batch.starts[rows[asked]], self._starts.array.take(slots[asked]), lengths[asked]
            while asked.size:
                agree = batch.words(at, left) == self._words.array.take(stored)
                if not agree.all():
                    equal[asked[~agree]] = False
                more = agree & (left > _WORD)
                if more.all():
                    at, stored, left = at + _WORD, stored + 1, left - _WORD
                else:
                    asked = asked[more]
                    at, stored, left = at[more] + _WORD, stored[more] + 1, left[more] - _WORD
            return equal

        return same

    def take(self, slots: Rows) -> pa.Array:
        """Return the canonical keys of these slots, large_binary."""
        lengths = self._lengths.array.take(slots).astype(np.int64)
        first = self._starts.array.take(slots)
        data = self._words.array[: self._used].view(np.uint8)
        return codec.from_bytes(data.take(codec.ragged(first * _WORD, lengths)), lengths)

    def leading_ints(self) -> NDArray[np.int64]:
        """Return the first column of every key; it must be a signed integer or time and never null."""
        first = self._starts.array[: self.count]
        # Byte 0 means not null; the value is bytes 1 to 8, the last of them in the second word.
        high = self._words.array.take(first).byteswap() << np.uint64(8)
        low = self._words.array.take(first + 1) & np.uint64(0xFF)
        values: NDArray[np.int64] = ((high | low) ^ _SIGN).view(np.int64)
        return values


class KeyBatch:
    """Canonical keys of one batch, readable one word at a time."""

    __slots__ = ("_at", "lengths", "starts")

    def __init__(self, canonical: pa.Array) -> None:
        data, self.starts, self.lengths = codec.bytes_of(canonical)
        # A word may begin at any byte; the array is a sliding window of 8 bytes.
        self._at = np.ndarray((data.size - _WORD + 1,), "<u8", data, strides=(1,))

    def words(self, at: Rows, left: Rows) -> NDArray[np.uint64]:
        """Return the words that begin at these bytes, with zeros beyond the `left` bytes of each key."""
        words: NDArray[np.uint64] = self._at[at]
        words &= _TAIL_MASKS.take(left, mode="clip")
        return words
