"""Fixes how far an epoch reads each partition, and how many records that may be.

Pure.
Source: docs/design/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

ROWS_FIRST, ROWS_MIN = 100_000, 1_000
Place = tuple[str, int]
"""Source and partition."""


@dataclass(frozen=True)
class Pace:
    """How many records an epoch reads at most, from how long the last ones took.

    Args:
        target_s: How long the job of an epoch should take when there is more to read.
        rate: Limit on all sources together, in records per second.
    """

    target_s: float
    rate: float | None = None
    rows: int = ROWS_FIRST

    def rows_max(self, since_last_s: float) -> int:
        """Return how many records the next epoch reads at most; the last one began so long ago."""
        if self.rate is None:
            return self.rows
        return min(self.rows, max(1, int(self.rate * max(since_last_s, 0.05))))

    def took(self, rows: int, seconds: float) -> Pace:
        """Return the pace after a job that read so many records."""
        if rows >= self.rows // 2 and seconds < self.target_s / 2:
            return replace(self, rows=self.rows * 2)
        if seconds > self.target_s:
            return replace(self, rows=max(ROWS_MIN, min(self.rows, int(rows * self.target_s / seconds))))
        return self


def ends_of_epoch(offsets: Mapping[Place, int], ends: Mapping[Place, int], rows_max: int) -> dict[Place, int]:
    """Return where an epoch stops reading: at the ends, or in proportion to what each partition has left to read.

    Args:
        offsets: Where it begins to read each partition.
        ends: How far there is something to read; partitions without an entry have nothing.
    """
    left = {place: max(0, ends.get(place, at) - at) for place, at in offsets.items()}
    total = sum(left.values())
    if total <= rows_max:
        return {place: at + left[place] for place, at in offsets.items()}
    return {place: at + -(-left[place] * rows_max // total) for place, at in offsets.items()}
