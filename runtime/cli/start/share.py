"""How much of a run with a known end is done, and how long the rest takes at the present rate.

Sources may count records or bytes, which do not add up: the share is that of the unit that is furthest behind.

Invariants
    - Nothing is said before every partition with something to read has a known beginning.
    - The share is at most 1, and does not decrease while a recovery reads records again.

It performs no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

BAR_WIDTH = 20
Place = tuple[str, int]
"""Source and partition."""
_Amounts = tuple[float | None, float | None]
"""In records and in bytes."""


class Share:
    """How far a run has come on the way to an end.

    Args:
        ends: The offset at which each partition ends; empty: the run has no end.
        start: Where the run begins to read, as far as known; other partitions begin where they are seen first.
        in_bytes: The sources whose offsets count bytes.
    """

    def __init__(self, ends: Mapping[Place, int], start: Mapping[Place, int], in_bytes: Collection[str]) -> None:
        self._ends = {place: end for place, end in ends.items() if end > 0}
        self._start = {place: at for place, at in start.items() if place in self._ends}
        self._in_bytes = frozenset(in_bytes)

    def seen(self, offsets: Mapping[Place, int]) -> None:
        """Note the positions of partitions; if the beginning of one is unknown, its first position is its beginning."""
        for place in self._ends.keys() - self._start.keys():
            if (at := offsets.get(place)) is not None:
                self._start[place] = at

    def done(self, offsets: Mapping[Place, int]) -> float | None:
        """Return the part that is read, from 0 to 1; None if the run has no end, or its length is unknown."""
        shares = [1 - left / total for left, total in self._left(offsets) if total]
        known = self._ends and self._start.keys() == self._ends.keys()
        return min(shares, default=1.0) if known else None

    def left_s(self, offsets: Mapping[Place, int], rates: _Amounts) -> float | None:
        """Return how many seconds the rest takes at these rates; None if that is unknown."""
        if self.done(offsets) is None:
            return None
        waits = [(left, rate) for (left, _), rate in zip(self._left(offsets), rates, strict=True) if left]
        if any(not rate for _, rate in waits):
            return None
        return max((left / rate for left, rate in waits if rate), default=0.0)

    def _left(self, offsets: Mapping[Place, int]) -> list[tuple[int, int]]:
        """Return the amounts left and at the beginning, in records and in bytes."""
        sums = {True: (0, 0), False: (0, 0)}
        for place, start in self._start.items():
            total = max(0, self._ends[place] - start)
            left = min(total, max(0, self._ends[place] - offsets.get(place, start)))
            before = sums[place[0] in self._in_bytes]
            sums[place[0] in self._in_bytes] = (before[0] + left, before[1] + total)
        return [sums[False], sums[True]]


def bar(done: float) -> str:
    """Return a share as text: "[#####---------------] 25%"; 100% only if all is read."""
    filled = int(done * BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {int(done * 100)}%"
