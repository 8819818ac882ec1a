"""One subtask's data plane in one generation: sources, fragments, state, stages, channels.

This module carries out what runtime/worker/protocol.py decides about epochs, in the operator thread, which owns
all state. Later fragments are served before sources, so an acyclic graph always drains; a fragment is
served only while its output channels have room. If a turn ends before a fragment's Python functions
complete, they resume in the next turn before the fragment takes anything else; its source is midway then.

Invariants
    - A barrier goes into an output channel after every row that its fragment emitted before it.
    - Output of a fragment belongs to the epoch that the fragment is in; other fragments may be in other epochs.
    - Tables are frozen after operators have emitted for the epoch, and before any later row.
    - A fragment behind channels emits for the epoch before it reports the last barrier, over several turns if need be.
    - Source positions are noted at the barrier, by the thread that reads; never while a source is midway.
    - A watermark goes into an output channel after the rows that it covers or that it made operators emit.

Source: DESIGN sections 3 to 5; PROTOCOL P8, P9, P11, P13; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import pyarrow as pa

from holdfast.checkpoint.audit import PartAudit
from holdfast.errors import Unavailable
from holdfast.model import NEVER_US, NO_EPOCH, Barrier, ChannelId, Epoch, SourcePosition, Subtask, Watermark
from holdfast.runtime.operators.contract import KeyGroups, operator_of, part_name
from holdfast.runtime.operators.event_clock import CLOCK_TABLE
from holdfast.runtime.operators.time_slice import TimeSlice, unmarked
from holdfast.runtime.plan.ahead import Ahead, JoinedReads, Read
from holdfast.runtime.plan.compiler import Plan, SourceSpec
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.rows.dead_letters import DLQ, Letters
from holdfast.runtime.sources.event_time import EventTime
from holdfast.runtime.sources.reading import HeldBack, Reading, Throttle, Untaken, arrived, lost_range
from holdfast.runtime.time import watermark
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Links
from holdfast.runtime.wire.vitals import SOURCE, At, Mark
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.digests import ROWS, Auditing
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.intake import Intake
from holdfast.runtime.worker.joining import ANY_TIME, Inlets, judged, passings, together
from holdfast.runtime.worker.order import Ordering, Recorder, SubtaskOrder
from holdfast.runtime.worker.routing import Router
from holdfast.sinks.contract.accepting import accept
from holdfast.sinks.protocol.staging import Stage
from holdfast.state.store import StateStore

READ_BYTES_MAX = 2 << 20
UNAVAILABLE_PAUSE_S = 0.5
"""How long to wait before an unreachable source is retried."""
REFUSED_AFTER_S = 3.0
"""A source that could not be read for so long is reported; a shorter pause is often that of a server that restarts."""
CLOCK_EVERY_S = 0.02
"""How often operators that use the clock are told processing time; to see that nothing is due takes some 20 us."""
log = logging.getLogger("holdfast.worker")


class SubtaskRun:
    """The subtask's running fragments, from deployment to rollback.

    Args:
        only: The fragments to run; None: all. The tables of others need not exist.
        suspects: Functions that have ended their process.
        begins_us: No event time of the job is later now; for fragments whose own state does not show it.
        order: Is told each step.
    """

    def __init__(
        self,
        plan: Plan,
        subtask: Subtask,
        parallelism: int,
        state: StateStore,
        links: Links,
        opened: Mapping[str, OpenSource],
        readings: list[Reading],
        throttle: Throttle,
        immediate: ImmediateWrites,
        audit: str = ROWS,
        mark: Mark = unmarked,
        only: Collection[int] | None = None,
        suspects: Collection[m.Suspect] = (),
        begins_us: int = NEVER_US,
        order: Ordering | None = None,
    ) -> None:
        self._plan, self._subtask, self._parallelism = plan, subtask, parallelism
        mine = [fragment for fragment in plan.fragments if only is None or fragment.index in only]
        self._state, self.links, self._readings, self._throttle = state, links, readings, throttle
        self._immediate, self._audit = immediate, Auditing(plan, subtask, audit)
        self.held_back = HeldBack(throttle.clock)
        self._paused: set[ChannelId] = set()
        self._routers = {e.index: Router(e, parallelism, plan.key_groups) for e in plan.edges if e.key}
        self._inputs = {f.index: inputs_of(plan, f.index, subtask, parallelism) for f in mine}
        self._outputs = {f.index: outputs_of(plan, f.index, subtask, parallelism) for f in mine}
        self._stages = {s.name: self._new_stage(s.name) for s in plan.sinks}
        self._closed: dict[Epoch, dict[str, Stage]] = {}
        self._letters = {f.index: Letters() for f in mine}
        self._suspects = tuple(suspects)
        self._order = Ordering() if order is None else order
        self._limit = TimeSlice(throttle.clock, mark, self._order.portions)
        self._paces = {f.index: self._limit.pace() for f in mine if f.calls()}
        self._intakes = {s.fragment: self._intake(s) for s in plan.sources if s.fragment in self._inputs}
        self._fragments = {f.index: self._fragment(f.index) for f in mine}
        self._passings = passings(plan)
        """By fragment and port, what decides whether its rows are joined across watermarks."""
        self._inlets = self._new_inlets()
        self._clocks_us = self._clocks()
        """By fragment, the latest clock of its operators in the restored state."""
        self._begins_us = max(self._clocks_us.values(), default=begins_us)
        self._later_first = sorted((i for i, channels in self._inputs.items() if channels), reverse=True)
        self._watermarks = {i: watermark.begin(self._timed(i, c)) for i, c in self._inputs.items() if c}
        self._times = self._event_times(opened)
        self._together, self._turn = plan.read_together(), 0
        self._waiting: list[Reading] = []
        """The rest of a round over the partitions; the first has not answered yet."""
        self._behind: dict[int, Callable[[], None]] = {}
        """Per fragment whose functions are still running: what to do once they complete."""
        self._clocked = deque(f.index for f in mine if any(placed.step.uses_clock for placed in f.steps))
        """Fragments with operators that use the clock; the next one to be told the time is the first."""
        self._clock_at, self._fired = self._limit.now(), False
        self.records_in = 0
        self.quiet = NO_EPOCH
        """The last epoch that the sources closed; 0 once a source has moved, or something was due by the clock."""
        self._away_until = 0.0

    def advance(
        self,
        arrived: Callable[[int, ChannelId, Barrier], None],
        may_read: bool,
        may_take: bool = True,
        may_fire: bool = False,
    ) -> bool:
        """Take one frame, read one batch, resume one, or begin what is due; return whether there was anything to do.

        Args:
            may_read: Whether sources may be read.
            may_take: Whether frames may be taken from channels; what was taken before is completed in any case.
            may_fire: Whether to begin what is due by the clock, in turns with everything else.
        """
        self._limit.begin()
        fired, self._fired = self._fired, False
        if may_fire and not fired and self._look_at_clock():
            return True
        return self._advance(arrived, may_read, may_take) or (may_fire and fired and self._look_at_clock())

    def on_clock(self, now_us: int) -> bool:
        """Begin with some of what is due at this processing time; return whether anything was."""
        self._limit.begin()
        for index in tuple(self._clocked):
            if index not in self._behind and self._has_room(index) and self._fragments[index].on_clock(now_us):
                self._order.clock(index, now_us)
                self._clocked.remove(index)
                self._clocked.append(index)
                self.quiet = NO_EPOCH
                self._once_through(index, lambda: None)
                return True
        return False

    def due_us(self) -> int | None:
        """Return the earliest processing time at which something is due; None if nothing ever is."""
        return min((at for i in self._clocked if (at := self._fragments[i].due_us()) is not None), default=None)

    def _look_at_clock(self) -> bool:
        if not self._clocked or (now := self._limit.now()) < self._clock_at:
            return False
        self._fired = self.on_clock(self._limit.wall_us())
        if not self._fired and self._behind.keys().isdisjoint(self._clocked):  # a busy fragment is told when it is free
            self._clock_at = now + CLOCK_EVERY_S
        return self._fired

    def _advance(self, arrived: Callable[[int, ChannelId, Barrier], None], may_read: bool, may_take: bool) -> bool:
        for index in self._later_first:
            if (may_take or index in self._behind) and self._has_room(index) and self._take_one(index, arrived):
                return True
        for index in self._intakes:
            if index in self._behind:  # read nothing else: a sink collects the rows of one arrival
                return self._has_room(index) and self._go_on(index)
        return may_read and self._read_one()

    def midway(self) -> bool:
        """Return whether records of a source are still being processed: no epoch can be closed here."""
        return any(index in self._behind for index in self._intakes)

    def at_work(self) -> str | None:
        """Return which Python function is running, if any. Safe to call from any thread."""
        if (outside := self._limit.at_work) is not None:
            return outside
        return next((name for run in self._fragments.values() if (name := run.backlog.at_work) is not None), None)

    def close_fragment(self, index: int, barrier: Barrier) -> tuple[tuple[SourcePosition, ...], PartAudit | None]:
        """Close the fragment's epoch; return its source's positions, if it reads one, and what it took and emitted.

        A fragment behind channels has emitted the results of the epoch before it reported the last barrier.
        """
        if index in self._intakes:
            self.quiet = barrier.epoch
            run = self._fragments[index]
            run.on_barrier()
            while run.busy:
                run.go_on()
        assert not self._fragments[index].busy, "results of the epoch are left"
        self._fragments[index].backlog.epoch_closed()
        self._order.closed(index, barrier.epoch)
        for ahead in {id(each.ahead): each.ahead for each in self._readings if each.fragment == index}.values():
            ahead.epoch_closed()
        for operator in self._plan.operators:
            if operator.fragment == index:
                self._state.freeze(operator.id, barrier.epoch, barrier.committed_through)
        self._close_stages(index, barrier.epoch)
        positions = tuple(self._position(r, r.identify()) for r in self._readings if r.fragment == index)
        self._immediate.noted(barrier.epoch, positions)
        for channel in self._outputs[index]:
            self.links.put(channel, barrier)
        return positions, self._audit.close(index, positions, self._counts(index))

    def begin(self, readings: list[Reading]) -> None:
        """Read these partitions too, from the epoch that has just begun on (P12)."""
        for reading in readings:
            self._readings.append(reading)
            if (time := self._times.get(reading.fragment)) is not None:
                time.begin(reading.partition)

    def rest(self, silent: Mapping[tuple[str, int], bool]) -> None:
        """Record which partitions have had no record for long: quiet ones, and idle ones (True)."""
        for idle in (False, True):  # all are quiet before the first is idle: see runtime/time/watermark.py
            for reading in self._readings:
                known = silent.get((reading.source, reading.partition))
                if known is not None and (known or not idle) and reading.fragment in self._times:
                    self._times[reading.fragment].rests(reading.partition, idle=idle)

    def look_at_time(self) -> None:
        """Ask the sources that report their time, for partitions that are read no further now."""
        for reading in self._readings:
            if not reading.is_over() and (time := self._times.get(reading.fragment)) is not None:
                time.look(reading.partition, reading.offset)

    def finish_time(self) -> None:
        """Every source is read to its sealed end: send the last watermark, before the last barrier (P13)."""
        for time in self._times.values():
            time.finish()

    def take_stages(self, epoch: Epoch) -> dict[str, Stage]:
        """Return what the sinks collected for an epoch that every fragment has closed."""
        return self._closed.pop(epoch, {})

    def take_order(self, epoch: Epoch) -> SubtaskOrder | None:
        """Return the order in which input was taken for an epoch that every fragment has closed, if it is recorded."""
        return self._order.take(epoch)

    def pause(self, channel: ChannelId) -> None:
        """Take nothing from the channel until it is resumed."""
        self._paused.add(channel)

    def resume(self, channels: frozenset[ChannelId]) -> None:
        """Take from the channels again."""
        self._paused -= channels

    def ended(self) -> bool:
        """Return whether every source partition was read to its end."""
        return all(reading.ended for reading in self._readings)

    def caught_up(self) -> bool:
        """Return whether every source partition was read as far as this run reads."""
        return all(reading.caught_up() for reading in self._readings)

    def end_input(self, drop_unread: bool) -> None:
        """End the input of every source partition after the last record that exists now.

        A repeated call affects only sources that were unreachable.

        Args:
            drop_unread: End the input at the current positions.

        Raises:
            HoldfastError: a source can no longer be read.
        """
        if drop_unread:
            for reading in self._readings:
                reading.ended = True
            return
        open_ended = [r for r in self._readings if not r.ended and not r.ends_there]
        ends: dict[str, Mapping[int, int]] = {}
        for name, opened in {r.source: r.opened for r in open_ended}.items():
            with suppress(Unavailable):  # the driver repeats the message
                ends[name] = opened.end_offsets()
        for reading in open_ended:
            if reading.source in ends:
                reading.end_at(ends[reading.source].get(reading.partition, reading.offset))

    def partitions(self) -> int:
        """Return how many source partitions are read."""
        return len(self._readings)

    def held_by(self) -> tuple[str, ...]:
        """Return what keeps this subtask from reading its sources now."""
        waits = (
            ("throttle", self._throttle.wait_s() > 0),
            ("channel", any(not self._has_room(r.fragment) for r in self._readings)),
            ("event time", any(not r.caught_up() and self._is_held_back(r) for r in self._readings)),
        )
        return tuple(name for name, holds in waits if holds)

    def positions(self) -> tuple[SourcePosition, ...]:
        """Return the next offset of every source partition."""
        return tuple(self._position(reading) for reading in self._readings)

    def ends(self, sources: Container[str]) -> Callable[[], tuple[SourcePosition, ...]]:
        """Return what asks these sources for the offset after the last record that exists now, for every partition.

        It may be called in a lane, and waits for the sources.

        Raises:
            HoldfastError: a source can no longer be read.
        """
        readings = [reading for reading in self._readings if reading.source in sources]
        open_sources, places = {r.source: r.opened for r in readings}, [(r.source, r.partition) for r in readings]

        def asked() -> tuple[SourcePosition, ...]:
            try:
                ends = {name: source.end_offsets() for name, source in open_sources.items()}
            except Unavailable:
                return ()  # unknown for now
            known = [(source, partition, ends[source].get(partition)) for source, partition in places]
            return tuple(SourcePosition(source, partition, end) for source, partition, end in known if end is not None)

        return asked

    def throttle_s(self) -> float:
        """Return for how long the throttle forbids reading."""
        return self._throttle.wait_s()

    def close(self) -> None:
        """Close channels and sources."""
        self.links.close()
        for reading in self._readings:
            reading.close()
        for opened in {id(r.opened): r.opened for r in self._readings}.values():
            opened.close()

    def refusals(self) -> dict[str, Unavailable]:
        """Return why sources cannot be read, by their names, for those that have not been readable for some time."""
        before = self._throttle.clock.monotonic() - REFUSED_AFTER_S
        found = {r.source: r.refused for r in reversed(self._readings) if r.refused is not None and not r.is_over()}
        return {name: refused.error for name, refused in found.items() if refused.since <= before}

    def progress(self) -> m.WorkerProgress:
        """Return the progress of fragments and sources; an operator runs in one fragment only."""
        refusals = self.refusals()
        return m.WorkerProgress(
            records_in=self.records_in,
            positions=self.positions(),
            operators=(
                *(intake.progress() for intake in self._intakes.values()),
                *(each for run in self._fragments.values() for each in run.progress()),
            ),
            ended=tuple(SourcePosition(r.source, r.partition, r.offset) for r in self._readings if r.ended),
            times=tuple(each for time in self._times.values() for each in time.times()),
            source_errors={name: error.what for name, error in refusals.items()},
            source_advice={name: error.next_step for name, error in refusals.items()},
        )

    def _counts(self, index: int) -> list[m.OperatorProgress]:
        intake = self._intakes.get(index)
        return [*([] if intake is None else [intake.progress()]), *self._fragments[index].progress()]

    def _fragment(self, index: int) -> FragmentRuntime:
        fragment = self._plan.fragments[index]
        tables = {o.name: self._state.table(o.id) for o in self._plan.operators if o.fragment == index}
        groups = KeyGroups(self._plan.key_groups, *self._state.owned)
        letters, turn = self._letters[index], self._limit
        given = None, groups, letters, turn, self._suspects
        return FragmentRuntime(fragment, tables, self._send, self._write, *given)

    def _new_inlets(self) -> Inlets:
        into = {channel: index for index, channels in self._inputs.items() for channel in channels}
        through = {c: self._passings[index, self._plan.edges[c.edge].port] for c, index in into.items()}
        return Inlets(self.links.take, through, lambda channel: self._now_us(into[channel]))

    def _intake(self, spec: SourceSpec) -> Intake:
        held = self._plan.event_times_held()
        return Intake(spec, self._plan.fragments[spec.fragment].schema, self._letters[spec.fragment], held)

    def _event_times(self, opened: Mapping[str, OpenSource]) -> dict[int, EventTime]:
        """Begin the event time of every source that has one, even if this subtask reads none of its partitions."""
        times: dict[int, EventTime] = {}
        for spec in self._plan.sources:
            if spec.event_time is not None and spec.fragment in self._intakes:
                mine = [r for r in self._readings if r.source == spec.name]
                at = [SourcePosition(r.source, r.partition, r.offset, r.watermark) for r in mine]
                send = self._sends_to(spec.fragment)
                time = times[spec.fragment] = EventTime(spec, opened[spec.name], at, self._throttle.clock, send)
                for reading in mine:
                    if reading.is_over():
                        time.at_end(reading.partition, reading.ended)
        return times

    def _sends_to(self, index: int) -> Callable[[Watermark], None]:
        def send(at: Watermark) -> None:
            self.quiet = NO_EPOCH
            self._order.sent(index, at)
            self._forward(index, at)

        return send

    def _forward(self, index: int, at: Watermark) -> None:
        for channel in self._outputs[index]:
            self.links.put(channel, at)

    def _timed(self, index: int, channels: list[ChannelId]) -> list[ChannelId]:
        """Return the channels whose watermarks hold back event time in a fragment."""
        fragment, edges = self._plan.fragments[index], self._plan.edges
        return [channel for channel in channels if fragment.timed(edges[channel.edge].port)]

    def _clocks(self) -> dict[int, int]:
        clock_by_fragment: dict[int, int] = {}
        for operator in self._plan.operators:
            clock = part_name(operator_of(operator.name), CLOCK_TABLE.part)
            if operator.fragment in self._inputs and operator.name == clock:
                table = self._state.table(operator.id)
                at_us = int(table.values("at", table.present()).max(initial=NEVER_US))
                clock_by_fragment[operator.fragment] = max(clock_by_fragment.get(operator.fragment, NEVER_US), at_us)
        return clock_by_fragment

    def _now_us(self, index: int) -> int:
        """Return the event time of a fragment behind channels, or a later one."""
        return max(self._watermarks[index].now.at_us, self._clocks_us.get(index, self._begins_us))

    def _time_arrived(self, index: int, channel: ChannelId, at: Watermark) -> None:
        if channel not in self._watermarks[index].parts:
            return
        state, changed = watermark.reported(self._watermarks[index], channel, at)
        if changed:
            self._order.time(index, state.now.at_us)
            self._fragments[index].on_watermark(state.now.at_us)
            leaving = self._fragments[index].leaving(state.now)
            self._once_through(index, lambda: self._forward(index, leaving))
        self._watermarks[index] = state

    def _position(self, reading: Reading, identity: str | None = None) -> SourcePosition:
        time = self._times.get(reading.fragment)
        known = None if time is None else time.known(reading.partition)
        return SourcePosition(reading.source, reading.partition, reading.offset, known, identity, lost=reading.lost)

    def _close_stages(self, index: int, epoch: Epoch) -> None:
        """Set aside the output of the fragment's sinks: what it emits from now on belongs to the next epoch."""
        for sink in self._plan.sinks:
            if sink.fragment == index:
                self._closed.setdefault(epoch, {})[sink.name] = self._stages[sink.name]
                self._stages[sink.name] = self._new_stage(sink.name)
        if DLQ in self._stages:  # it collects the letters of all fragments, each with its own epoch
            closed = self._closed.setdefault(epoch, {})
            closed.setdefault(DLQ, self._new_stage(DLQ))
            for letters in self._letters[index].take():
                closed[DLQ].add(letters)

    def _new_stage(self, sink: str) -> Stage:
        spec = next(s for s in self._plan.sinks if s.name == sink)
        return Stage(spec.schema, spec.upsert_key, partial(accept, spec.sink))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        self._audit.sent(edge, batch.num_rows)
        router = self._routers.get(edge)
        for receiver, rows in [(self._subtask, batch)] if router is None else router.split(batch):
            self.links.put(ChannelId(edge, self._subtask, receiver), rows)

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        if self._immediate.takes(sink):
            self._immediate.collect(sink, batch)
            self._audit.written(sink, batch)
        else:
            self._stages[sink].add(batch)

    def _has_room(self, index: int) -> bool:
        return all(self.links.room(channel) for channel in self._outputs[index])

    def _once_through(self, index: int, then: Callable[[], None]) -> None:
        """Call `then` when the fragment's functions have completed: now, or some turns later."""
        if self._fragments[index].busy:
            self._behind[index] = then
        else:
            then()

    def _go_on(self, index: int) -> bool:
        self._fragments[index].go_on()
        self._once_through(index, self._behind.pop(index))
        return True

    def _take_one(self, index: int, arrived: Callable[[int, ChannelId, Barrier], None]) -> bool:
        if index in self._behind:
            return self._go_on(index)
        channels = self._inputs[index]
        self._turn += 1
        for i in range(len(channels)):
            channel = channels[(i + self._turn) % len(channels)]
            if channel in self._paused or (frame := self._inlets.take(channel)) is None:
                continue
            if isinstance(frame, Barrier):
                self._barrier_taken(index, channel, partial(arrived, index, channel, frame))
            elif isinstance(frame, Watermark):
                self._time_arrived(index, channel, frame)
            else:
                self._audit.received(channel.edge, frame.num_rows)
                self._order.took(index, channel, frame.num_rows)
                self._fragments[index].on_batch(frame, port=self._plan.edges[channel.edge].port)
                self._once_through(index, lambda: None)
            return True
        return False

    def _barrier_taken(self, index: int, channel: ChannelId, arrived: Callable[[], None]) -> None:
        """Report a barrier; the last one of an epoch once the operators have emitted the results of the epoch.

        Then no other channel of the fragment delivers anything: those that have delivered the barrier are paused.
        """
        if self._paused.issuperset(other for other in self._inputs[index] if other != channel):
            self._fragments[index].on_barrier()
            self._once_through(index, arrived)
        else:
            arrived()

    def _read_one(self) -> bool:
        if self._throttle.wait_s() > 0 or self._throttle.clock.monotonic() < self._away_until:
            return False
        time_moved = False
        order, self._waiting = self._waiting or self._in_turn(), []
        for place, reading in enumerate(order):
            if reading.caught_up() or not self._has_room(reading.fragment) or self._is_held_back(reading):
                continue
            time = self._times.get(reading.fragment)
            try:
                chunk = self._next(reading)
                if chunk is not None and chunk.batch is None:
                    reading.found_nothing()
            except Unavailable as error:
                now = self._throttle.clock.monotonic()
                reading.failed(error, now)
                self._away_until = now + UNAVAILABLE_PAUSE_S
                return False
            if chunk is None:  # read no other partition first: event time and order are as without reading ahead
                self._waiting = order[place:]
                return time_moved
            reading.refused = None
            if chunk.batch is None:
                before = self._position(reading)
                self._pass(reading, chunk)
                reading.look_for_end()
                if time is not None:
                    time_moved |= time.found_nothing(reading.partition, chunk.following, reading.ended)
                    if reading.is_over():  # this partition is no longer polled
                        time.at_end(reading.partition, reading.ended)
                if self._position(reading) != before:
                    self.quiet = NO_EPOCH
                continue
            self._emit(reading, time, *self._joined(reading, chunk))
            return True
        return time_moved

    def _next(self, reading: Reading) -> Read | None:
        """Return the next piece of a partition, as PartitionReader.poll does; further ones wait in `rest`."""
        if not reading.rest:
            try:
                self._limit.mark(SOURCE + reading.source, _read_at(reading, reading.offset))
                first = reading.poll(READ_BYTES_MAX)
                if first is None:
                    return None
                reads = [first, *first.further]
                if reading.ahead.alone and reading.ahead.joins:
                    self._read_on(reading, reads)
            finally:
                self._limit.mark(None)
            reading.rest.extend(self._judged(reading, reads))
        return reading.rest.popleft().read

    def _read_on(self, reading: Reading, reads: list[Read]) -> None:
        """Read the pieces behind the first in this thread, and mark each read: no lane has joined them."""
        joined_reads, rows_max = JoinedReads(READ_BYTES_MAX), self._rows_max(reading)
        joined_reads.add(reads[0])
        while joined_reads.has_room() and (rows_max is None or joined_reads.rows < rows_max):
            at = reads[-1].following
            if reading.until is not None and at >= reading.until:
                return
            self._limit.mark(SOURCE + reading.source, _read_at(reading, at))
            try:
                chunk = reading.poll(READ_BYTES_MAX)
            except Unavailable:
                return  # it is asked for again
            if chunk is None or (chunk.batch is None and chunk.following == at):
                return
            reads.append(chunk)
            joined_reads.add(chunk)

    def _judged(self, reading: Reading, reads: list[Read]) -> list[Untaken]:
        """Decide which of the pieces make up one batch."""
        time, passing = self._times.get(reading.fragment), self._passings[reading.fragment, 0]
        spec = self._intakes[reading.fragment].spec
        if len(reads) == 1 or time is None or passing == ANY_TIME:
            return judged(reads, reading.offset, None, reading.told, NEVER_US, 0)
        batches, times = [chunk.batch for chunk in reads if chunk.batch is not None], None
        if spec.watermark is None and passing is not None and passing <= {spec.event_time}:
            times = self._intakes[reading.fragment].times(batches)
        if times is None:
            return [Untaken(chunk) for chunk in reads]
        at_us = max(time.now_us(reading.partition), *self._clocks_us.values(), NEVER_US)
        return judged(reads, reading.offset, times, reading.told, at_us, spec.out_of_orderness_us)

    def _joined(self, reading: Reading, read: Read) -> tuple[pa.RecordBatch, int]:
        """Return a piece with those behind it that join it, and the offset after them."""
        assert read.batch is not None
        if not reading.rest or reading.rest[0].apart:
            return read.batch, read.following
        most_us = self.held_back.most_us(reading.source)
        count = together(chain((Untaken(read),), reading.rest), self._rows_max(reading), most_us)
        batches, following = [read.batch], read.following
        for _ in range(count - 1):
            piece = reading.rest.popleft().read
            batches.append(piece.batch)
            following = piece.following
        return batches[0] if count == 1 else pa.concat_batches(batches), following

    def _rows_max(self, reading: Reading) -> int | None:
        """Return how many rows of a partition to take at most."""
        pace = self._paces.get(reading.fragment)
        limits = (self._throttle.rows_max(), None if pace is None else pace.rows)
        return min((rows for rows in limits if rows is not None), default=None)

    def _pass(self, reading: Reading, read: Read) -> None:
        """Move a position where there are no records: over a gap, or over records that were lost."""
        self._audit.passed(reading, read.following, lost=read.lost)
        if read.lost:
            reading.lost += read.following - reading.offset
            log.warning("source %r: %s", reading.source, lost_range(reading.partition, reading.offset, read.following))
        reading.offset = read.following

    def _is_held_back(self, reading: Reading) -> bool:
        time = self._times.get(reading.fragment)
        if time is None or time.is_silent(reading.partition):  # event time does not wait for it, and would pass it
            return False
        return self.held_back.holds(reading.source, time.known(reading.partition))

    def _in_turn(self) -> list[Reading]:
        """Return the partitions in the order to try: sources take turns, and so do partitions without event time.

        United sources share one turn: the partition with the lowest watermark among them is read first.
        """
        self._turn += 1
        turn = self._turn % max(1, len(self._readings))
        rotation = [*self._readings[turn:], *self._readings[:turn]]
        if not self._times:
            return rotation
        place = {group: i for i, group in enumerate(dict.fromkeys(self._together[r.fragment] for r in rotation))}

        def before(reading: Reading) -> tuple[int, bool, int]:
            time = self._times.get(reading.fragment)
            rank = (False, 0) if time is None else time.turn(reading.partition)
            return place[self._together[reading.fragment]], *rank

        return sorted(rotation, key=before)

    def _emit(self, reading: Reading, time: EventTime | None, batch: pa.RecordBatch, following: int) -> None:
        self.quiet = NO_EPOCH
        pace, began = self._paces.get(reading.fragment), self._limit.now()
        batch, arrival = arrived(reading, batch, following, self._rows_max(reading))
        assert arrival.following is not None
        self._audit.took(reading, batch)
        self._order.read(reading.fragment, reading.source, reading.partition, reading.offset, arrival.following)
        reading.offset = following = arrival.following
        if reading.caught_up():
            reading.look_for_end()
        row_count = batch.num_rows
        self._throttle.took(row_count)
        self.records_in += row_count
        if time is not None:
            time.woke(reading.partition)
        rows, arrival = self._intakes[reading.fragment].take(batch, arrival)

        def through() -> None:
            self._immediate.arrived(reading.source, reading.partition, following)
            if time is not None:
                time.emitted(reading.partition, rows, following)
                if reading.is_over():
                    time.at_end(reading.partition, reading.ended)
            if pace is not None:
                pace.took(row_count, self._limit.now() - began)

        self._fragments[reading.fragment].on_batch(rows, arrival)
        self._once_through(reading.fragment, through)


@dataclass
class Active:
    """The subtask in its generation."""

    deploy: m.Deploy
    machine: worker.Worker
    run: SubtaskRun
    ahead: Mapping[str, Ahead] = field(default_factory=dict)
    """How the readers of each source read in the background."""
    ready: m.Ready | None = None
    """The message to the driver after the deployment."""
    ends: tuple[SourcePosition, ...] = ()
    """Where the sources ended when they were last asked, as far as they are known."""
    asks_for_ends: bool = False
    broken: bool = False
    broken_to: dict[Subtask, m.BrokenLink] = field(default_factory=dict)
    """The peers to or from which a channel broke."""
    triggers: deque[m.Trigger] = field(default_factory=deque)
    """Not begun yet, because a source is in the middle of a batch."""
    unsealed: deque[tuple[Epoch, dict[str, Stage], SubtaskOrder | None]] = field(default_factory=deque)
    """Closed epochs, what their sinks collected, and the order of their input, that wait for the copies of their
    records."""
    first_record_at: int | None = None


def ordering_of(plan: Plan, deploy: m.Deploy, at_end: bool = False) -> Ordering:
    """Return what is told the steps of a subtask, as it is deployed.

    Args:
        at_end: As for Recorder.
    """
    if not deploy.records_order:
        return Ordering()
    return Recorder(deploy.subtask, {operator.name: operator.fragment for operator in plan.operators}, at_end)


def inputs_of(plan: Plan, fragment: int, subtask: Subtask, parallelism: int) -> list[ChannelId]:
    """Return the input channels of one fragment of one subtask."""
    edges = [plan.edges[index] for index in plan.fragments[fragment].input_edges]
    return [c for edge in edges for c in edge.channels(subtasks(parallelism)) if c.receiver == subtask]


def outputs_of(plan: Plan, fragment: int, subtask: Subtask, parallelism: int) -> list[ChannelId]:
    """Return the output channels of one fragment of one subtask."""
    edges = [edge for edge in plan.edges if edge.from_fragment == fragment]
    return [c for edge in edges for c in edge.channels(subtasks(parallelism)) if c.sender == subtask]


def subtasks(parallelism: int) -> list[Subtask]:
    """Return the subtasks of a fragment."""
    return [Subtask(number) for number in range(parallelism)]


def _read_at(reading: Reading, offset: int) -> At | None:
    """Return which record a poll reads first; None if a lane reads, which may be under way with any."""
    return At(1, reading.partition, offset, offset + 1) if reading.ahead.alone else None
