"""Fixes how far an epoch reads each partition, and how many records that may be.

Pure.
Source: docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.runtime.time.time_alignment import Group, Limit, PartitionProgress, Place

ROWS_FIRST, ROWS_MIN = 100_000, 1_000


@dataclass(frozen=True)
class Pace:
    """How many records an epoch reads at most, from how long the last ones took and how much they changed.

    Args:
        target_s: How long the job of an epoch should take when there is more to read.
        rate: Limit on all sources together, in records per second.
    """

    target_s: float
    rate: float | None = None
    rows: int = ROWS_FIRST
    overhead_s: float = float("inf")
    """The shortest job so far: the fixed cost of a job."""

    def rows_max(self, since_last_s: float) -> int:
        """Return how many records the next epoch reads at most; the last one began so long ago."""
        if self.rate is None:
            return self.rows
        return min(self.rows, max(1, int(self.rate * max(since_last_s, 0.05))))

    def took(self, rows: int, seconds: float, filled: float = 0.0) -> Pace:
        """Return the pace after a job that read this many records.

        Jobs that read few records show the fixed cost of a job; half of the time at least goes into records.

        Args:
            filled: The share of its memory for changes that a task has used, that of the fullest.
        """
        pace = replace(self, overhead_s=min(self.overhead_s, seconds))
        if filled > 1.0:  # not by more than half: windows that close change state too, however little is read
            fits = max(ROWS_MIN, min(self.rows, int(rows / filled)), self.rows // 2)
            return replace(pace, rows=min(fits, pace.took(rows, seconds).rows))
        if rows < self.rows // 2:
            return pace
        target_s = max(self.target_s, 2 * pace.overhead_s)
        if seconds < target_s / 2 or seconds <= pace.overhead_s:
            return pace if filled > 0.5 else replace(pace, rows=self.rows * 2)
        if seconds > target_s:
            return replace(pace, rows=max(ROWS_MIN, int(rows * target_s / seconds)))
        return pace


def in_step(
    ends: Mapping[Place, int], partitions: Mapping[Place, PartitionProgress], limits: Mapping[Group, Limit]
) -> dict[Place, int]:
    """Leave out the partitions that are too far ahead in event time (docs/decisions/0048).

    Args:
        ends: How far there is something to read.
    """

    def is_ahead(place: Place) -> bool:
        at = partitions[place].watermark if place in partitions else None
        mine = (limit for group, limit in limits.items() if place[0] in group.sources and place != limit.slowest)
        return at is not None and any(at > limit.at_us for limit in mine)

    return {place: end for place, end in ends.items() if not is_ahead(place)}


def ends_of_epoch(offsets: Mapping[Place, int], ends: Mapping[Place, int], rows_max: int) -> dict[Place, int]:
    """Return where an epoch stops reading: at the ends, or in proportion to the unread records of each partition.

    Args:
        offsets: Where it begins to read each partition.
        ends: How far there is something to read; partitions without an entry have nothing.
    """
    left = {place: max(0, ends.get(place, at) - at) for place, at in offsets.items()}
    total = sum(left.values())
    if total <= rows_max:
        return {place: at + left[place] for place, at in offsets.items()}
    return {place: at + -(-left[place] * rows_max // total) for place, at in offsets.items()}
