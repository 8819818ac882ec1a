"""Subtasks keep together in event time, and nothing waits for other reasons (docs/decisions/0048).

The limits that a driver sends are compared with the reports of its workers. The reads of a worker are compared with the
limits that it has received and with its sources.

    0048  a partition is held back only by a limit of its generation, and only until that lapses
          of the partitions with unread records, the one that is furthest behind has no limit below its watermark
          once every partition is read to its end, a driver sends no limits
          an epoch in microbatch mode reads of the partition that is furthest behind
    P11   while it is held back, a partition that has records counts neither as quiet nor as idle, in both modes

Source: docs/decisions/0048-event-time-alignment.md; PROTOCOL P11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from holdfast.model import NEVER_US, SourcePosition, Watermark
from holdfast.runtime.wire import messages as m

Place = tuple[str, int]
"""Source and partition."""


class AlignmentLimits(NamedTuple):
    """The last limits that a worker received."""

    generation: int
    later_than: Mapping[str, int]
    lapse_at: float
    """By the worker's clock."""


class HeldPartition(NamedTuple):
    """A partition that a worker holds back."""

    place: Place
    counts: Watermark
    """The watermark that it last contributed to the minimum of its subtask."""
    unread: bool
    """Whether it has unread records."""


class AlignmentCheck:
    """Alignment in event time in one run of a seed. The sources of a simulated job are read together."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._limits: dict[str, AlignmentLimits] = {}
        self.waited = 0
        """How often a worker took stock while it waited for others."""

    def took_stock(self, stock: m.Heartbeat) -> None:
        """A worker took stock of itself."""
        self.waited += "event time" in stock.progress.held_by

    def sent(
        self, message: m.HoldBack, reports: Iterable[m.WorkerProgress], until: Mapping[str, Mapping[int, int]] | None
    ) -> None:
        """A driver sends limits.

        Args:
            reports: The last of each of its workers.
            until: Where the run stops reading; None: nowhere.
        """
        if not message.later_than:
            return
        slowest = _furthest_behind(_unread_of(reports, until))
        if slowest is None:
            self._fail("0048 limits", "sources are held back, although every partition is read to its end")
        elif message.later_than.get(slowest[1][0], slowest[0]) < slowest[0]:
            self._fail("0048 slowest", f"no partition is behind {slowest[1]}, which is held back at {slowest[0]}")

    def received(self, worker: str, message: m.HoldBack, now: float) -> None:
        """A worker receives limits."""
        known = self._limits.get(worker)
        if known is None or message.generation >= known.generation:
            self._limits[worker] = AlignmentLimits(message.generation, message.later_than, now + message.lasts_s)

    def turned(self, worker: str, generation: int, now: float, held: Iterable[HeldPartition]) -> None:
        """A worker of this generation had its turn, and holds these partitions back."""
        limits = self._limits.get(worker)
        for place, counts, unread in held:
            if limits is None or limits.generation != generation or place[0] not in limits.later_than:
                self._fail("0048 limits", f"{worker} holds {place} back without a limit")
            elif now >= limits.lapse_at:
                self._fail("0048 lapse", f"{worker} holds {place} back although its last limit has lapsed")
            if unread and (counts.quiet or counts.idle):
                how = "idle" if counts.idle else "quiet"
                self._fail("P11 held", f"{worker} holds {place} back, which has records and counts as {how}")

    def epoch(
        self,
        positions: Mapping[Place, SourcePosition],
        readable: Mapping[Place, int],
        until: Mapping[Place, int],
        silent: Iterable[Place] = (),
    ) -> None:
        """An epoch begins in microbatch mode.

        Args:
            readable: How far each partition could be read when the epoch was fixed.
            until: How far the epoch reads it.
            silent: Partitions that count as quiet or idle in the epoch.
        """
        unread = {place: _time(at) for place, at in positions.items() if readable.get(place, 0) > max(at.offset, 0)}
        slowest = _furthest_behind(unread)
        if slowest is not None and until[slowest[1]] <= max(positions[slowest[1]].offset, 0):
            self._fail("0048 slowest", f"an epoch reads nothing of {slowest[1]}, which is the furthest behind")
        for place in sorted(set(silent) & unread.keys()):
            self._fail("P11 held", f"an epoch holds {place} back, which has records and counts as silent")


def _unread_of(reports: Iterable[m.WorkerProgress], until: Mapping[str, Mapping[int, int]] | None) -> dict[Place, int]:
    """Return the partitions that have unread records, and their watermarks."""
    unread: dict[Place, int] = {}
    for report in reports:
        ended_places = {(at.source, at.partition) for at in report.ended}
        ends = {(at.source, at.partition): at.offset for at in report.ends}
        for at in report.positions:
            place = at.source, at.partition
            end = ends.get(place, 0)
            if until is not None:
                end = min(end, until[at.source].get(at.partition, 0))
            if place not in ended_places and end > max(at.offset, 0):
                unread[place] = _time(at)
    return unread


def _furthest_behind(unread: Mapping[Place, int]) -> tuple[int, Place] | None:
    return min(((at_us, place) for place, at_us in unread.items()), default=None)


def _time(at: SourcePosition) -> int:
    return NEVER_US if at.watermark is None else at.watermark
