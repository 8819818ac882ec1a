"""Windows that are over leave the state by one range per key group, not by one tombstone per key.

The key of a window's row begins with the window's end, so in every key group the rows that are over lie together at
the front. `Through` says how far: one bound per key group, and whatever ended at or before it is erased.

Invariants
    - A bound only covers rows of its own key group.
    - In a delta the ranges come first: rows of the same delta are newer and survive.
    - Two ranges of a key group amount to the one that reaches further.

Pure: no clock, thread or I/O. Carries out PROTOCOL P8 (a range tombstone erases what it covers).
Source: DESIGN sections 5 and 13; docs/design/0015-window-expiry.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state import canonical as codec
from holdfast.state.index import Rows
from holdfast.state.keys import Keys, KeyType

Through = NDArray[np.int64]
"""Per key group of the job the last window end that is erased, NOTHING where none is; shape (key groups,)."""
NOTHING = -(1 << 63)
RANGE_FIRST = b"\x01"
"""Below every key whose first column is not null."""
_BEYOND = b"\x02"
_LAST = (1 << 63) - 1
_NO_ROWS: Rows = np.empty(0, np.int64)


def can_expire(kind: KeyType) -> bool:
    """Whether keys of this type begin with a time that ranges can speak of."""
    first = kind.types[0]
    return kind.unrouted > 0 and not kind.nullable[0] and codec.is_integral(first) and not pa.types.is_uint64(first)


def covered(keys: Keys, through: Through) -> NDArray[np.bool_]:
    """Whether each key lies in the range of its key group."""
    ends = codec.leading_ints(keys.canonical())
    inside: NDArray[np.bool_] = ends <= through.max()
    asked = np.flatnonzero(inside)
    if asked.size:
        # A bound of NOTHING covers nothing, also not a window that ends there.
        bounds = through[keys.take(asked).key_groups(through.size)]
        inside[asked] = (ends[asked] <= bounds) & (bounds != NOTHING)
    return inside


def joined(ranges: Iterable[Through | None]) -> Through | None:
    """Return what several ranges amount to, whatever their order; None if there is none."""
    known = [through for through in ranges if through is not None]
    if not known:
        return None
    furthest: Through = np.maximum.reduce(known)
    return furthest


def range_end(last: int) -> bytes:
    """Return the canonical key that a range ends before."""
    return _BEYOND if last == _LAST else codec.encode_ints(np.array([last + 1]), pa.int64()).tobytes()


def last_of(end: bytes) -> int:
    """Return the last window end of a range that ends before this key."""
    return _LAST if end == _BEYOND else int(codec.leading_ints(pa.array([end], pa.large_binary()))[0]) - 1


class Expiries:
    """What expired in a table between its barriers, since the last commit known there."""

    def __init__(self) -> None:
        self._open: list[Rows] = []
        self._open_through: Through | None = None
        self._closed: list[tuple[Epoch, Rows, Through | None]] = []

    def note(self, slots: Rows, through: Through) -> None:
        """These slots expired, and nothing else that is present lies in the ranges."""
        self._open.append(slots)
        self._open_through = joined((self._open_through, through))

    def close(self, epoch: Epoch) -> None:
        """A barrier: what expired belongs to this epoch."""
        if self._open:
            self._closed.append((epoch, np.concatenate(self._open), self._open_through))
            self._open, self._open_through = [], None

    def commit(self, through: Epoch) -> None:
        """The epochs up to this one are committed."""
        self._closed = [each for each in self._closed if each[0] > through]

    def slots(self) -> Rows:
        """Return all slots that expired, unfinished epochs included; some may be there twice, or present again."""
        return np.concatenate([_NO_ROWS, *self._open, *(slots for _, slots, _ in self._closed)])

    def through(self) -> Through | None:
        """Return the ranges of all closed epochs together."""
        return joined(through for _, _, through in self._closed)

    def renumber(self, place: Rows) -> None:
        """Slots have other numbers now."""
        self._open = [place[slots] for slots in self._open]
        self._closed = [(epoch, place[slots], through) for epoch, slots, through in self._closed]
