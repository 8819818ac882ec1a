"""A subtask that takes the steps of a script: the data plane of production, but nothing comes first by chance.

Each fragment takes the same batches, frames, watermarks and times of the clock as when the record was made, in the same
order. Nothing that the network or the clock of the replay offers instead is looked at: watermarks in channels are
dropped, since the script says where event time advances.

Invariants
    - A fragment takes nothing that its script does not have, and closes an epoch only at the end of its section.
    - A batch has the rows that it had, however they arrive here.
    - Code that gives other rows than it did then is found out: the replay ends, and says so.

Source: docs/decisions/0131-recorded-order.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.audit import PartAudit
from holdfast.model import Barrier, ChannelId, SourcePosition, Subtask, Watermark
from holdfast.runtime.operators.portions import FollowedPortions, Portions
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.replay.script import Script
from holdfast.runtime.replay.sources import divided
from holdfast.runtime.sources.reading import Reading, Untaken
from holdfast.runtime.worker.order import CLOCK, SENT, TIME, FromChannel, FromPartition, Ordering
from holdfast.runtime.worker.subtask import READ_BYTES_MAX, SubtaskRun

IDLE_TURNS = 8
"""After so many turns without a step, sources are read although a channel is full: microbatches have no full ones."""


class _Position:
    """How far one fragment has come in its script."""

    def __init__(self, script: Script, subtask: Subtask, fragment: int) -> None:
        self._sections = deque(script.of(subtask, fragment))
        self.closed = 0
        """How many sections it has closed."""
        self._begin()

    def _begin(self) -> None:
        section = self._sections.popleft() if self._sections else None
        self.places = () if section is None else section.places
        steps = () if section is None else section.taken()
        self._left = deque(step for step in steps if step[0] > SENT)  # where time advances, the receivers know
        self._read_to = {n: p.first for n, p in enumerate(self.places) if isinstance(p, FromPartition)}

    @property
    def step(self) -> tuple[int, int] | None:
        """The next step; None at the end of the section. The amount of a source is the offset to read up to."""
        if not self._left:
            return None
        place, amount = self._left[0]
        return place, amount + self._read_to.get(place, 0)

    def advance(self) -> None:
        """The next step was taken."""
        place, amount = self._left.popleft()
        if place in self._read_to:
            self._read_to[place] += amount

    def close(self) -> None:
        """The section is closed."""
        self.closed += 1
        self._begin()


class FollowedOrder(Ordering):
    """Gives the operators of a subtask their recorded portions, a section after the other."""

    def __init__(self, script: Script, subtask: Subtask, operators: Mapping[str, int]) -> None:
        self._runs: dict[str, Portions] = {}
        for name, fragment in operators.items():
            self._runs[name] = FollowedPortions([each.portions.get(name, ()) for each in script.of(subtask, fragment)])

    def portions(self, operator: str) -> Portions:
        return self._runs[operator]


class FollowedRun(SubtaskRun):
    """The data plane of one subtask that follows a script.

    Args:
        readings: As deployed; those of the script take their place.
    """

    def __init__(
        self,
        script: Script,
        plan: Plan,
        subtask: Subtask,
        parallelism: int,
        state: Any,
        links: Any,
        opened: Mapping[str, OpenSource],
        readings: list[Reading],
        *rest: Any,
        **more: Any,
    ) -> None:
        self._script = script
        fragments = {o.name: o.fragment for o in plan.operators}
        more["order"] = FollowedOrder(script, subtask, fragments)
        mine = [_reading(fragment, place, opened, readings) for fragment, place in script.read_by(subtask)]
        super().__init__(plan, subtask, parallelism, state, links, opened, mine, *rest, **more)
        self._at = {index: _Position(script, subtask, index) for index in self._inputs}
        self._by_place = {(r.source, r.partition): r for r in self._readings}
        self._frames: dict[ChannelId, deque[pa.RecordBatch]] = {}
        self._barriers: dict[ChannelId, Barrier] = {}
        """The frame behind the rows that wait."""
        self._idle = 0

    def waits(self, section: int) -> bool:
        """Return whether its sources have taken all steps of a section, the number of which counts from 0."""
        return all(at.closed == section and at.step is None for i, at in self._at.items() if i in self._intakes)

    def midway(self) -> bool:
        return super().midway() or any(self._at[index].step is not None for index in self._intakes)

    def advance(
        self,
        arrived: Callable[[int, ChannelId, Barrier], None],
        may_read: bool,
        may_take: bool = True,
        may_fire: bool = False,
    ) -> bool:
        self._limit.begin()
        for index in (*self._later_first, *self._intakes):
            if index in self._behind:
                return self._go_on(index)
            if self._follow(index, arrived):
                self._idle = 0
                return True
        self._idle += 1
        return False

    def on_clock(self, now_us: int) -> bool:
        return False

    def close_fragment(self, index: int, barrier: Barrier) -> tuple[tuple[SourcePosition, ...], PartAudit | None]:
        noted = super().close_fragment(index, barrier)
        self._at[index].close()
        return noted

    def _follow(self, index: int, arrived: Callable[[int, ChannelId, Barrier], None]) -> bool:
        """Take the next step of a fragment; return whether it could be taken."""
        at = self._at[index]
        if (step := at.step) is None:
            return index not in self._intakes and self._take_barrier(index, arrived)
        place, amount = step
        if place >= 0:
            where = at.places[place]
            done = self._read(where, amount) if isinstance(where, FromPartition) else self._take(index, where, amount)
            if not done:
                return False
        elif place == TIME:
            self._fragments[index].on_watermark(amount)
            self._once_through(index, _nothing)
        else:
            assert place == CLOCK
            if not self._fragments[index].on_clock(amount):
                raise self._script.does_not_fit("nothing is due at a time at which something was")
            self._once_through(index, _nothing)
        at.advance()
        return True

    def _read(self, where: FromPartition, end: int) -> bool:
        """Take the records of a partition up to an offset; return whether they are all here."""
        reading = self._by_place[where.source, where.partition]
        if not self._has_room(reading.fragment) and self._idle < IDLE_TURNS:
            return False
        if (batch := self._records(reading, end)) is None:
            return False
        self._emit(reading, self._times.get(reading.fragment), batch, end)
        return True

    def _records(self, reading: Reading, end: int) -> pa.RecordBatch | None:
        """Return the records up to an offset; None if some are still to come."""
        waiting = reading.rest
        while not waiting or waiting[-1].read.following < end:
            chunk = reading.poll(READ_BYTES_MAX)
            before = waiting[-1].read.following if waiting else reading.offset
            if chunk is None or (chunk.batch is None and chunk.following == before):
                return None
            waiting.append(Untaken(chunk))
        batches = []
        while waiting and waiting[0].read.following <= end:
            batches.append(waiting.popleft().read.batch)
        if waiting:
            first, rest = divided(waiting.popleft().read, end)
            batches.append(first.batch)
            if rest is not None:
                waiting.appendleft(Untaken(rest))
        found = [batch for batch in batches if batch is not None]
        if not found:
            raise self._script.does_not_fit(f"source {reading.source!r} has no records where it had some")
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def _rows_max(self, reading: Reading) -> int | None:
        return None

    def _take(self, index: int, where: FromChannel, rows: int) -> bool:
        """Take this many rows of a channel as one batch; return whether they are all here."""
        channel = ChannelId(where.edge, where.sender, self._subtask)
        waiting = self._frames.setdefault(channel, deque())
        count = sum(frame.num_rows for frame in waiting)
        while count < rows:
            if (frame := self._next_rows(channel)) is None:
                if channel in self._barriers:
                    raise self._script.does_not_fit(
                        f"{count:,} rows arrived over edge {where.edge} instead of {rows:,}"
                    )
                return False
            waiting.append(frame)
            count += frame.num_rows
        batches = []
        while rows:
            frame = waiting.popleft()
            batches.append(frame.slice(0, rows))
            if frame.num_rows > rows:
                waiting.appendleft(frame.slice(rows))
            rows -= batches[-1].num_rows
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._audit.received(channel.edge, batch.num_rows)
        self._fragments[index].on_batch(batch, port=self._plan.edges[channel.edge].port)
        self._once_through(index, _nothing)
        return True

    def _take_barrier(self, index: int, arrived: Callable[[int, ChannelId, Barrier], None]) -> bool:
        """Take a barrier: no step is left before it."""
        for channel in self._inputs[index]:
            if channel in self._paused:
                continue
            rows = self._next_rows(channel)
            if rows is not None or self._frames.get(channel):
                raise self._script.does_not_fit(f"more rows arrived over edge {channel.edge} than then")
            if (barrier := self._barriers.pop(channel, None)) is not None:
                self._barrier_taken(index, channel, partial(arrived, index, channel, barrier))
                return True
        return False

    def _next_rows(self, channel: ChannelId) -> pa.RecordBatch | None:
        """Return the next rows in a channel; None if there are none before the barrier."""
        while channel not in self._barriers and (frame := self.links.take(channel)) is not None:
            if isinstance(frame, Barrier):
                self._barriers[channel] = frame
            elif not isinstance(frame, Watermark):
                return frame
        return None


def _reading(fragment: int, place: FromPartition, opened: Mapping[str, OpenSource], before: list[Reading]) -> Reading:
    """Return a partition at the offset from which the script reads it."""
    known = next((r for r in before if (r.source, r.partition) == (place.source, place.partition)), None)
    at_us = None if known is None else known.watermark
    return Reading(place.source, fragment, place.partition, opened[place.source], place.first, watermark=at_us)


def _nothing() -> None:
    """Follows a step that is complete."""
