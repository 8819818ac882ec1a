"""Finds the rows of a partition that are the newest of their key, in bounded memory and whole arrays at a time.

The caller shows the rows from the newest to the oldest, as hashes, so the first row of a key is the newest. A sorted
array holds the keys seen so far. If there are more keys than fit, the pass continues with a part of the range of
hashes, and further passes over the same rows take the rest: KEYS_MAX bounds memory, and time grows with the keys.

Invariants
    - Exactly the newest row of each key is marked, among the rows that count.
    - At most `keys_max` keys, one chunk of rows and one bit per row are in memory.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KEYS_MAX = 1 << 22
CHUNK_ROWS = 1 << 20
_LAST = (1 << 64) - 1


@dataclass(frozen=True)
class Shown:
    """Some rows, newest first."""

    hashes: NDArray[np.uint64]
    """Shape (2, n)."""
    counts: NDArray[np.bool_]
    """Whether a row counts; void ones do not."""


def newest_of_each_key(
    show: Callable[[], Iterable[Shown]], keys_max: int = KEYS_MAX, chunk_rows: int = CHUNK_ROWS
) -> list[NDArray[np.uint8]]:
    """Return, for each `Shown`, which rows are the newest of their key, as packed bits.

    Args:
        show: Returns all rows, newest first; called once per pass, always with the same result.
        keys_max: How many keys to hold in memory.
        chunk_rows: How many rows to process together, at least.
    """
    assert keys_max > 0
    marks: list[NDArray[np.uint8]] = []
    first = 0
    while first <= _LAST:
        one = _RangePass(first, keys_max, marks)
        for place, chunk in _chunks(show(), chunk_rows):
            one.take(place, chunk)
        first = one.last + 1
    return marks


def _chunks(shown: Iterable[Shown], rows: int) -> Iterator[tuple[int, list[Shown]]]:
    """Yield lists of `Shown`, each with the index of its first element."""
    place, chunk, row_count = 0, list[Shown](), 0
    for each in shown:
        chunk.append(each)
        row_count += len(each.counts)
        if row_count >= rows:
            yield place, chunk
            place, chunk, row_count = place + len(chunk), [], 0
    if chunk:
        yield place, chunk


@dataclass
class _RangePass:
    """One pass over the rows, for keys whose first hash is in the range from `first` to `last`."""

    first: int
    keys_max: int
    marks: list[NDArray[np.uint8]]
    last: int = _LAST
    _seen: NDArray[np.uint64] = field(default_factory=lambda: np.empty((2, 0), np.uint64))
    """Sorted by the first hash."""

    def take(self, place: int, chunk: list[Shown]) -> None:
        hashes = np.concatenate([each.hashes for each in chunk], axis=1)
        inside = (hashes[0] >= np.uint64(self.first)) & (hashes[0] <= np.uint64(self.last))
        rows = np.flatnonzero(inside & np.concatenate([each.counts for each in chunk]))
        rows = rows[np.lexsort(hashes[:, rows][::-1])]  # stable: the newest row of a key stays its first
        keys = hashes[:, rows]
        begins = np.ones(len(rows), bool)
        begins[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        rows, keys = rows[begins], keys[:, begins]
        unseen = ~_among(self._seen, keys)
        newest = np.zeros(hashes.shape[1], bool)
        newest[rows[unseen]] = True
        self._mark(place, chunk, inside, newest)
        keys = keys[:, unseen]
        self._seen = np.insert(self._seen, np.searchsorted(self._seen[0], keys[0]), keys, axis=1)
        if self._seen.shape[1] > self.keys_max:
            self._narrow()

    def _mark(self, place: int, chunk: list[Shown], inside: NDArray[np.bool_], newest: NDArray[np.bool_]) -> None:
        """Store the marks of rows inside the range; the marks that other passes made for other rows stay."""
        at = 0
        for number, each in enumerate(chunk, place):
            end = at + len(each.counts)
            if number == len(self.marks):
                self.marks.append(np.packbits(newest[at:end]))
            else:
                known = unpacked(self.marks[number], end - at) & ~inside[at:end]
                self.marks[number] = np.packbits(known | newest[at:end])
            at = end

    def _narrow(self) -> None:
        """Leave the upper half of the keys seen to a later pass, which marks their rows again."""
        middle = int(self._seen[0, self._seen.shape[1] // 2])
        if middle > self.first:  # else all have the same hash, and stay
            self.last = middle - 1
            self._seen = self._seen[:, : int(np.searchsorted(self._seen[0], np.uint64(middle)))]


def unpacked(bits: NDArray[np.uint8], rows: int) -> NDArray[np.bool_]:
    """Return packed bits as one truth value per row."""
    return np.unpackbits(bits, count=rows).view(np.bool_)


def _among(seen: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return, for every key, whether it is among those seen, which are sorted by their first hash."""
    membership = np.zeros(keys.shape[1], bool)
    at = np.searchsorted(seen[0], keys[0])
    looking = np.flatnonzero(at < seen.shape[1])
    while len(looking):
        looking = looking[seen[0, at[looking]] == keys[0, looking]]
        membership[looking] = seen[1, at[looking]] == keys[1, looking]
        looking = looking[~membership[looking]]
        at[looking] += 1  # another key with the same first hash
        looking = looking[at[looking] < seen.shape[1]]
    return membership
