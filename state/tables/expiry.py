"""Removes closed windows from the state with one range per key group instead of one tombstone per key.

The key of a window's row begins with the window's end, so the rows of closed windows are the first in every key group.
`Through` holds one bound per key group; windows that ended at or before it are erased.

Invariants
    - A bound only covers rows of its own key group.
    - In a delta the ranges come first: rows of the same delta are newer and survive.
    - Two ranges of a key group have the effect of the range with the later end.

Pure: no clock, thread or I/O. Carries out PROTOCOL P8 (a range tombstone erases what it covers).
Source: DESIGN sections 5 and 13; docs/decisions/0015-window-expiry.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.slab import Rows

Through = NDArray[np.int64]
"""Per key group of the job, the last erased window end, NOTHING if there is none; shape (key groups,)."""
NOTHING = -(1 << 63)
RANGE_FIRST = b"\x01"
"""Sorts before every key whose first column is not null."""
_BEYOND = b"\x02"
_LAST = (1 << 63) - 1
_NO_ROWS: Rows = np.empty(0, np.int64)


def can_expire(kind: KeyType) -> bool:
    """Return whether keys of this type begin with a time, as ranges need."""
    first = kind.types[0]
    return kind.unrouted > 0 and not kind.nullable[0] and codec.is_integral(first) and not pa.types.is_uint64(first)


def groups_in(through: Through | None) -> NDArray[np.int64]:
    """Return the key groups that have a range."""
    return np.empty(0, np.int64) if through is None else np.flatnonzero(through != NOTHING)


def covered(keys: Keys, through: Through) -> NDArray[np.bool_]:
    """Return whether each key is in the range of its key group."""
    ends = keys.leading()
    inside: NDArray[np.bool_] = ends <= through.max()
    candidates = np.flatnonzero(inside)
    if candidates.size:
        # A bound of NOTHING covers nothing, not even a window that ends at this value.
        bounds = through[keys.take(candidates).key_groups(through.size)]
        inside[candidates] = (ends[candidates] <= bounds) & (bounds != NOTHING)
    return inside


def joined(ranges: Iterable[Through | None]) -> Through | None:
    """Return the combined effect of several ranges, in any order; None if there is none."""
    known = [through for through in ranges if through is not None]
    if not known:
        return None
    furthest: Through = np.maximum.reduce(known)
    return furthest


def range_end(last: int) -> bytes:
    """Return the canonical key before which a range ends."""
    return _BEYOND if last == _LAST else codec.encode_ints(np.array([last + 1]), pa.int64()).tobytes()


def last_of(end: bytes) -> int:
    """Return the last window end of a range that ends before this key."""
    return _LAST if end == _BEYOND else int(codec.leading_ints(pa.array([end], pa.large_binary()))[0]) - 1


class Expiries:
    """The slots that expired in a table since the last commit that it knows, by barrier interval."""

    def __init__(self) -> None:
        self._open: list[Rows] = []
        self._open_through: Through | None = None
        self._closed: list[tuple[Epoch, Rows, Through | None]] = []

    def note(self, slots: Rows, through: Through) -> None:
        """Note expired slots; they must be all present slots in the ranges."""
        self._open.append(slots)
        self._open_through = joined((self._open_through, through))

    def close(self, epoch: Epoch) -> None:
        """Close the epoch at its barrier: the slots noted since the previous one belong to it."""
        if self._open:
            self._closed.append((epoch, np.concatenate(self._open), self._open_through))
            self._open, self._open_through = [], None

    def commit(self, through: Epoch) -> None:
        """Forget the epochs up to this one, which are committed."""
        self._closed = [each for each in self._closed if each[0] > through]

    def slots(self) -> Rows:
        """Return all expired slots, also of unfinished epochs; some may appear twice, or be present again."""
        return np.concatenate([_NO_ROWS, *self._open, *(slots for _, slots, _ in self._closed)])

    def through(self) -> Through | None:
        """Return the ranges of all closed epochs together."""
        return joined(through for _, _, through in self._closed)
