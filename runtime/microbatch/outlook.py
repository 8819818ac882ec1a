"""What the sources have left to read in one generation, as the last look at them showed.

A look asks every source on a lane of its own, since a source may answer slowly or not at all.

Invariants
    - Nothing counts as ended, or as read by this run, before a look has shown it.
    - A look that was begun in an older generation changes nothing.

Source: PROTOCOL P11, P12, P13; docs/design/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import NEVER_US, SourcePosition
from holdfast.ports import Clock, Lane
from holdfast.runtime.microbatch.machine import Positions
from holdfast.runtime.microbatch.ranges import Place
from holdfast.runtime.microbatch.task import Stop
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import OpenSource, telling
from holdfast.runtime.wire.messages import PartitionTime

LOOK_EVERY_S = 0.5
"""Time between two looks at the ends of the sources."""


class Seen(NamedTuple):
    """What one look showed."""

    ends: Mapping[Place, int]
    """The offset behind the last record that exists."""
    sealed: frozenset[Place]
    """Partitions that have no record after these ends, and get none."""
    times: Mapping[Place, int]
    """Watermarks at these ends, of sources that tell time themselves."""


class Outlook:
    """The partitions of one generation.

    Args:
        until: Where this run stops reading; partitions without an entry have no such end.
        changed: Called when a look has shown something.
        failed: Called if a source can no longer be read.
    """

    def __init__(
        self,
        opened: Mapping[str, OpenSource],
        specs: Mapping[str, SourceSpec],
        clock: Clock,
        lane: Lane,
        until: Mapping[Place, int],
        changed: Callable[[], object],
        failed: Callable[[HoldfastError], object],
    ) -> None:
        self._opened, self._specs, self._clock, self._lane = opened, specs, clock, lane
        self._until, self._changed, self._failed = until, changed, failed
        self._told = {name: telling(specs[name].source, each) for name, each in opened.items()}
        self._seen: Seen | None = None
        self._input_ends: Mapping[Place, int] | None = None
        """Where the input ends, because the user asked for that."""
        self._finish_asked = self._looking = self._over = False
        self._look_at = 0.0
        self._read_at: dict[Place, float] = {}
        """When each partition was last seen to have something to read."""
        self.rested: Mapping[Place, bool] = {}
        """Partitions that the last epoch took for quiet, or idle (True)."""

    def turn(self, positions: Positions) -> None:
        """Look at the sources if it is time to."""
        if self._looking or self._over or self._clock.monotonic() < self._look_at:
            return
        self._looking, finish = True, self._finish_asked
        places = tuple(positions)

        def done(result: object) -> None:
            self._looking, self._look_at = False, self._clock.monotonic() + LOOK_EVERY_S
            if self._over:
                return
            if isinstance(result, Unavailable):  # it is asked again; who cannot be asked is not silent
                self._read_at = dict.fromkeys(self._read_at, self._clock.monotonic())
                return
            if isinstance(result, HoldfastError):
                self._failed(result)
                return
            if isinstance(result, BaseException):
                raise result
            assert isinstance(result, Seen)
            self._saw(result, positions, finish=finish)

        self._lane.submit(lambda: self._look(places), done)

    def end_input(self, positions: Positions, *, drop_unread: bool) -> None:
        """The input ends: at the present positions, or where the next look finds the ends."""
        if drop_unread:
            self._input_ends = {place: max(at.offset, 0) for place, at in positions.items()}
        elif self._input_ends is None:
            self._finish_asked, self._look_at = True, 0.0

    def readable(self) -> dict[Place, int]:
        """Return how far this run may read now; empty before the first look."""
        if self._seen is None:
            return {}
        return {place: self._limit(place, end) for place, end in self._seen.ends.items()}

    def ended(self, place: Place, offset: int) -> bool:
        """Return whether a partition read up to this offset is at its end for good."""
        if self._input_ends is not None and offset >= self._input_ends.get(place, 0):
            return True
        return self._seen is not None and place in self._seen.sealed and offset >= self._seen.ends[place]

    def caught_up(self, place: Place, offset: int) -> bool:
        """Return whether this run reads the partition no further than this offset; not known before the first look."""
        if self._seen is None:
            return False
        return self.ended(place, offset) or (place in self._until and offset >= self._until[place])

    def stop_at(self, place: Place, offset: int) -> Stop | None:
        """Return why nothing is read after this offset, None if a later epoch reads on."""
        if self._input_ends is not None and offset >= self._input_ends.get(place, 0):
            return "input"
        return "run" if self.caught_up(place, offset) else None

    def left(self, positions: Positions) -> int | None:
        """Return how many records this run has left to read now; None if that is not known yet."""
        if self._seen is None:
            return None
        readable = self.readable()
        return sum(max(0, readable.get(place, 0) - max(at.offset, 0)) for place, at in positions.items())

    def silent(self, positions: Positions) -> dict[Place, bool]:
        """Return the partitions with event time that have had nothing to read for long: quiet ones, and idle ones."""
        found: dict[Place, bool] = {}
        for place in positions:
            if (since := self._silent_s(place)) is not None and since >= (
                after := self._specs[place[0]].idle_after_s
            ) / 2:
                found[place] = since >= after
        return found

    def time_moved(self, positions: Positions) -> bool:
        """Return whether an epoch without records would advance event time."""
        told = () if self._seen is None else self._seen.times.items()
        if any(place in positions and (positions[place].watermark or NEVER_US) < at for place, at in told):
            return True
        return any(idle and not self.rested.get(place) for place, idle in self.silent(positions).items())

    def times(self, positions: Positions) -> tuple[PartitionTime, ...]:
        """Return how long each partition with event time has been silent, and whether it may hold time back."""
        silent = self.silent(positions)
        known = ((place, self._silent_s(place)) for place in positions)
        return tuple(
            PartitionTime(*place, None if since < LOOK_EVERY_S else round(1000 * since), not silent.get(place))
            for place, since in known
            if since is not None
        )

    def _silent_s(self, place: Place) -> float | None:
        if self._specs[place[0]].event_time is None:
            return None
        now = self._clock.monotonic()
        return now - self._read_at.get(place, now)

    def ends(self, positions: Positions) -> tuple[SourcePosition, ...]:
        """Return the ends of all partitions, for display."""
        known = {} if self._seen is None else self._seen.ends
        return tuple(SourcePosition(*place, known[place]) for place in positions if place in known)

    def close(self) -> None:
        """Take no more answers."""
        self._over = True

    def _look(self, places: tuple[Place, ...]) -> Seen:
        ends: dict[Place, int] = {}
        for name, opened in self._opened.items():
            ends.update({(name, partition): end for partition, end in opened.end_offsets().items()})
        sealed = (place for place in places if place in ends and self._opened[place[0]].ended(place[1], ends[place]))
        times = {
            place: at
            for place, end in ends.items()
            if (told := self._told.get(place[0])) is not None and (at := told.watermark(place[1], end)) is not None
        }
        return Seen(ends, frozenset(sealed), times)

    def _saw(self, seen: Seen, positions: Positions, *, finish: bool) -> None:
        now, before = self._clock.monotonic(), self._seen
        for place, at in positions.items():
            end = seen.ends.get(place, 0)
            grown = before is None or end > before.ends.get(place, 0)
            if grown or end > max(at.offset, 0) or place not in self._read_at:
                self._read_at[place] = now
        self._seen = seen
        # Records before a fixed end may have been taken back since it was set.
        self._until = {place: min(end, seen.ends.get(place, end)) for place, end in self._until.items()}
        if finish and self._input_ends is None:
            self._input_ends = dict(seen.ends)
        self._changed()

    def _limit(self, place: Place, end: int) -> int:
        if self._input_ends is not None:  # then the run goes on to the end of the input
            return min(end, self._input_ends.get(place, 0))
        return min(end, self._until.get(place, end))
