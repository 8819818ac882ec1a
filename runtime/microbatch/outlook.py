"""Records that the sources have left to read in one generation, as of the last look at them.

Every source is asked on a separate lane, since one may answer slowly or not at all.

Invariants
    - Nothing counts as ended, or as read by this run, before a look has shown it.
    - A look that was begun in an older generation changes nothing.
    - Records that a rate still holds back do not exist yet, but a run that reads to the end of its input waits for
      them.
    - A request to look again is answered by looks that were begun after it, or when ANSWER_S are over.

Source: PROTOCOL P11, P12, P13; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import NEVER_US, SourcePosition
from holdfast.ports import Clock, Lane
from holdfast.runtime.microbatch.machine import Positions
from holdfast.runtime.microbatch.task import Stop
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.time.time_alignment import Place
from holdfast.runtime.wire.messages import PartitionTime

LOOK_EVERY_S = 0.5
"""Time between two looks at the ends of a source."""
ANSWER_S = 0.5
"""The longest wait of an epoch for a new look at its sources before its offsets are fixed."""


class SourceView(NamedTuple):
    """The state of one source as of the last look."""

    ends: Mapping[Place, int]
    """The offset after the last record that exists."""
    whole: Mapping[Place, int]
    """Where a run that reads to the end of its input ends: after `ends` if records still appear at a rate."""
    sealed: frozenset[Place]
    """Partitions that have no record after these ends, and get none."""
    times: Mapping[Place, int]
    """Watermarks at these ends, if the source reports event time itself."""


class SourceOutlook:
    """The partitions of one generation.

    Args:
        lane: Returns the lane of a name.
        until: Where this run stops reading; partitions without an entry have no such end.
        begun: Where this run, in its first generation, began to read each partition; new ones are added.
        changed: Called when a look has shown something.
        failed: Called if a source can no longer be read.
    """

    def __init__(
        self,
        opened: Mapping[str, OpenSource],
        specs: Mapping[str, SourceSpec],
        clock: Clock,
        lane: Callable[[str], Lane],
        until: Mapping[Place, int],
        begun: MutableMapping[Place, int],
        changed: Callable[[], object],
        failed: Callable[[HoldfastError], object],
    ) -> None:
        self._opened, self._specs, self._clock, self._lane = opened, specs, clock, lane
        self._until, self._begun, self._changed, self._failed = dict(until), begun, changed, failed
        self._seen: dict[str, SourceView] = {}
        """By source, once it has answered."""
        self._input_ends: dict[str, Mapping[Place, int]] = {}
        """Where the input of a source ends, because the user asked for that."""
        self._finish_asked = self._over = False
        self._looking: set[str] = set()
        self._look_at: dict[str, float] = {}
        self._read_at: dict[Place, float] = {}
        """When each partition was last seen to have something to read."""
        self._then: Callable[[], object] | None = None
        """Waits until every source was looked at again."""
        self._asked, self._awaited, self._answer_by = 0, set[str](), 0.0
        """The number of such requests, the sources that have not answered the last one, and how long it waits."""
        self.rested: Mapping[Place, bool] = {}
        """Partitions that the last epoch took for quiet, or idle (True)."""

    def turn(self, positions: Positions) -> None:
        """Look at the sources that it is time to look at."""
        now = self._clock.monotonic()
        for name in self._opened:
            if not self._over and name not in self._looking and now >= self._look_at.get(name, 0.0):
                self._begin_look(name, positions)
        self._give_answer()

    def renewed(self, positions: Positions, then: Callable[[], object]) -> None:
        """Look at every source again, and call `then` when all have answered, or did not for so long.

        It takes the place of an earlier request that still waits.
        """
        self._then, self._asked, self._awaited = then, self._asked + 1, set(self._opened)
        self._answer_by, self._look_at = self._clock.monotonic() + ANSWER_S, {}
        self.turn(positions)

    def _give_answer(self) -> None:
        if self._then is None or self._over:
            return
        if not self._awaited or self._clock.monotonic() >= self._answer_by:
            then, self._then = self._then, None
            then()

    def _begin_look(self, name: str, positions: Positions) -> None:
        finish, question_number = self._finish_asked, self._asked
        places = tuple(place for place in positions if place[0] == name)
        self._begun.update((place, positions[place].offset) for place in places if place not in self._begun)
        start_offsets = {place[1]: self._begun[place] for place in places}

        def done(result: object) -> None:
            self._looking.discard(name)
            fresh = question_number == self._asked
            self._look_at[name] = self._clock.monotonic() + (LOOK_EVERY_S if fresh else 0.0)
            if self._over:
                return
            if isinstance(result, Unavailable):  # it is asked again; who cannot be asked is not silent
                now = self._clock.monotonic()
                self._read_at.update((place, now) for place in self._read_at if place[0] == name)
            elif isinstance(result, HoldfastError):
                self._failed(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                assert isinstance(result, SourceView)
                self._saw(name, result, positions, finish=finish)
            if fresh:
                self._awaited.discard(name)
                self._give_answer()

        self._looking.add(name)
        self._lane(f"ends-{name}").submit(lambda: self._look(name, start_offsets), done)

    def end_input(self, positions: Positions, *, drop_unread: bool) -> None:
        """The input ends: at the present positions, or where the next look at each source finds its ends."""
        if drop_unread:
            at = {place: max(position.offset, 0) for place, position in positions.items()}
            self._input_ends = dict.fromkeys(self._opened, at)
        elif not self._finish_asked:
            self._finish_asked, self._look_at = True, {}

    def readable(self) -> dict[Place, int]:
        """Return how far this run may read now; sources that have not answered yet are left out."""
        ends = ((place, end) for seen in self._seen.values() for place, end in seen.ends.items())
        return {place: self._limit(place, end) for place, end in ends}

    def ended(self, place: Place, offset: int) -> bool:
        """Return whether a partition read up to this offset is at its permanent end."""
        if self._input_is_over(place, offset):
            return True
        seen = self._seen.get(place[0])
        return seen is not None and place in seen.sealed and offset >= seen.ends[place]

    def caught_up(self, place: Place, offset: int) -> bool:
        """Return whether this run reads the partition no further than this offset; not known before the first look."""
        if place[0] not in self._seen:
            return False
        return self.ended(place, offset) or (place in self._until and offset >= self._until[place])

    def stop_at(self, place: Place, offset: int) -> Stop | None:
        """Return why nothing is read after this offset, None if a later epoch reads on."""
        if self._input_is_over(place, offset):
            return "input"
        return "run" if self.caught_up(place, offset) else None

    @property
    def whole(self) -> bool:
        """Whether every source has answered."""
        return self._seen.keys() == self._opened.keys()

    def left(self, positions: Positions) -> int | None:
        """Return how many records this run has left to read now; None if no source has answered yet."""
        if not self._seen:
            return None
        readable = self.readable()
        return sum(max(0, readable.get(place, 0) - max(at.offset, 0)) for place, at in positions.items())

    def silent(self, positions: Positions) -> dict[Place, bool]:
        """Return the partitions with event time that have long had no records: quiet ones, and idle ones."""
        idle_by_place, readable = dict[Place, bool](), self.readable()
        for place, at in positions.items():
            if readable.get(place, 0) > max(at.offset, 0):
                continue  # it had records when its source was last asked, however long ago that is
            if (since := self._silent_s(place)) is not None and since >= (
                after := self._specs[place[0]].idle_after_s
            ) / 2:
                idle_by_place[place] = since >= after
        return idle_by_place

    def time_moved(self, positions: Positions) -> bool:
        """Return whether an epoch without records would advance event time."""
        told = (item for seen in self._seen.values() for item in seen.times.items())
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
        known = {place: end for seen in self._seen.values() for place, end in seen.ends.items()}
        return tuple(SourcePosition(*place, known[place]) for place in positions if place in known)

    def close(self) -> None:
        """Take no more answers."""
        self._over = True

    def _look(self, name: str, begun: Mapping[int, int]) -> SourceView:
        source, open_source = self._specs[name].source, self._opened[name]
        traits = source.traits
        first = {p: open_source.retention_start(p) if traits.paced and at < 0 else at for p, at in begun.items()}
        there = open_source.appeared(first)
        whole = open_source.end_offsets() if traits.paced and traits.endless is None else there
        sealed = ((name, p) for p in begun if p in there and open_source.ended(p, there[p]))
        known = (((name, p), open_source.watermark(p, end)) for p, end in there.items())
        times = {place: at for place, at in known if at is not None}
        return SourceView(_placed(name, there), _placed(name, whole), frozenset(sealed), times)

    def _saw(self, name: str, seen: SourceView, positions: Positions, *, finish: bool) -> None:
        now, before = self._clock.monotonic(), self._seen.get(name)
        for place, at in positions.items():
            if place[0] == name:
                end = seen.ends.get(place, 0)
                grown = before is None or end > before.ends.get(place, 0)
                if grown or end > max(at.offset, 0) or place not in self._read_at:
                    self._read_at[place] = now
        self._seen[name] = seen
        # Records before a fixed end may have been taken back since it was set.
        self._until.update(
            (place, min(end, self._until[place])) for place, end in seen.whole.items() if place in self._until
        )
        if finish:
            self._input_ends.setdefault(name, seen.whole)
        self._changed()

    def _input_is_over(self, place: Place, offset: int) -> bool:
        ends = self._input_ends.get(place[0])
        return ends is not None and offset >= ends.get(place, 0)

    def _limit(self, place: Place, end: int) -> int:
        if (ends := self._input_ends.get(place[0])) is not None:  # then the run continues to the end of the input
            return min(end, ends.get(place, 0))
        return min(end, self._until.get(place, end))


def _placed(name: str, offsets: Mapping[int, int]) -> dict[Place, int]:
    return {(name, partition): offset for partition, offset in offsets.items()}
