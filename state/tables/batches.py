"""The keys of a batch as kernels read them, and the order in which its rows are taken.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.state.compiled.sources import Words, addresses_of
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.kernels.layout import KeyPart
from holdfast.state.tables.slab import Rows

SLACK = 8
"""Bytes after a batch's keys, and after those of a table, that kernels may read."""
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_BYTES = np.zeros(SLACK, np.uint8)


class OrderedBatch(NamedTuple):
    """Rows in the order in which they are taken."""

    keys: Keys
    slots: Rows
    """The likely slots if there are tags; become the slots."""
    parts: list[slice]
    order: Rows | None = None
    """The row of the batch that each of these is; None: the same."""
    tags: Words | None = None
    known: int = 0
    """How many have a likely slot; they come first."""
    keys_at: Rows | None = None
    """Where the bytes of the keys of those records are in the arena."""


def hashed_words(keys: Keys) -> tuple[Words, ...]:
    """Return the words that are hashed: of all columns, or the xxh3 of text keys."""
    if keys.type.fixed:
        return tuple(keys.word_columns())
    return (np.ascontiguousarray(keys.hashes).view(np.int64),)


class GivenKeys:
    """The keys of a batch as kernels read them, kept alive."""

    def __init__(self, keys: Keys) -> None:
        self._kept = hashed_words(keys)
        if keys.type.fixed:
            starts = lengths = _NO_ROWS
            data = _NO_BYTES
        else:
            data, starts, lengths = codec.bytes_of(keys.canonical())
            starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
        self._bytes = starts, lengths, data
        at = addresses_of(self._kept), addresses_of((starts, lengths)), [data.ctypes.data]
        self.places = np.concatenate([[len(self._kept)], at[1], at[2], at[0]]).astype(np.int64, copy=False)
        """Where they are, in the order of KeyPart."""
        self.byte_count = int(lengths.sum())

    def from_row(self, first: int) -> Words:
        """Return where the keys from this row on are."""
        places = self.places.copy()
        places[[KeyPart.STARTS, KeyPart.LENGTHS]] += 8 * first
        places[KeyPart.FIRST :] += 8 * first
        return places
