"""The KeyValue port in memory, for the test driver and the simulator.

It keeps a list of the writes since the last flush, so that a test can simulate a kill: after one,
the store holds a prefix of the writes, as RocksDB does (PROTOCOL P15).

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

Write = tuple[list[tuple[bytes, bytes]], list[bytes]]


class MemoryKeyValue:
    """Ordered bytes in a dictionary."""

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self._flushed = dict(pairs or {})
        self._pairs = dict(self._flushed)
        self._writes: list[Write] = []
        self._sorted: list[bytes] | None = None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key."""
        return [self._pairs.get(key) for key in keys]

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        """Apply one batch."""
        self._writes.append((puts, deletes))
        _apply(self._pairs, puts, deletes)
        self._sorted = None

    def erase(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Remove ranges as one batch. The earlier writes determine their contents, so replaying a prefix is exact."""
        self.write([], [key for key in self._pairs if any(first <= key < end for first, end in ranges)])

    def scan(self, first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return the pairs with first <= key < end in order, all or the first `pairs_max`."""
        if self._sorted is None:
            self._sorted = sorted(self._pairs)
        keys = self._sorted[bisect_left(self._sorted, first) : bisect_left(self._sorted, end)]
        return [(key, self._pairs[key]) for key in keys[:pairs_max]]

    def flush(self, wait: bool = True) -> None:
        """Make everything written so far survive a kill."""
        self._flushed, self._writes = dict(self._pairs), []

    def close(self) -> None:
        """Do nothing; there is no directory."""

    @property
    def unflushed(self) -> int:
        """Return how many batches were written since the last flush."""
        return len(self._writes)

    def after_kill(self, survived: int) -> MemoryKeyValue:
        """Return the store after a kill that only the first `survived` unflushed batches survived."""
        assert 0 <= survived <= len(self._writes)
        return self.after_power_loss(range(survived))

    def after_power_loss(self, survived: Iterable[int]) -> MemoryKeyValue:
        """Return the store after a power loss that only these unflushed batches survived, given by number."""
        store = MemoryKeyValue(self._flushed)
        for number in survived:
            store.write(*self._writes[number])
        store.flush()
        return store


def _apply(pairs: dict[bytes, bytes], puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
    pairs.update(puts)
    for key in deletes:
        pairs.pop(key, None)
