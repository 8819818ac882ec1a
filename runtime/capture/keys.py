"""The idempotency keys that were stored lately.

Times are those of a clock of this process that runs evenly. A wall clock that is once far ahead would have all keys
forgotten; and those that are stored at such a time would be known until it has come.

Keys are kept as digests of 16 bytes, in slices of time that are forgotten whole: about 100 bytes per key, and no work
per key that is forgotten. Two keys with one digest would be taken for one; with 10^9 keys the odds are 10^-21.

Invariants
    - A key is known for at least the horizon after its request was stored, and for at most a slice longer.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16
SLICES = 16
"""Per horizon."""


def digest_of(key: str) -> bytes:
    """Return the digest that is kept of a key."""
    return blake2b(key.encode(), digest_size=DIGEST_BYTES).digest()


class RecentKeys:
    """Keys with the times at which they were stored.

    Args:
        horizon_us: How long a key is known, at least 1.
    """

    def __init__(self, horizon_us: int) -> None:
        assert horizon_us >= 1
        self._horizon_us, self._slice_us = horizon_us, -(-horizon_us // SLICES)
        self._slices: dict[int, set[bytes]] = {}

    def __contains__(self, key: bytes) -> bool:
        return any(key in slice_ for slice_ in self._slices.values())

    def __len__(self) -> int:
        return sum(map(len, self._slices.values()))

    def add(self, key: bytes, at_us: int) -> None:
        """Note a key whose request was stored at this time, in microseconds; it may be negative."""
        self._slices.setdefault(at_us // self._slice_us, set()).add(key)

    def forget(self, now_us: int) -> None:
        """Forget the slices that lie before the horizon."""
        oldest = (now_us - self._horizon_us) // self._slice_us
        for number in [each for each in self._slices if each < oldest]:
            del self._slices[number]
