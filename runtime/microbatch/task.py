"""One attempt of a task: it runs the fragments of one layer for one subtask, from the start of an epoch to its barrier.

It is the subtask's data plane of continuous mode (runtime/worker/subtask.py) with channels that lead into blocks, and
the worker's protocol, which aligns barriers. Its objects have the name of the attempt, so an attempt that loses, or was
presumed dead, changes nothing (P26).

Invariants
    - A task reads its sources no further than the offsets that were fixed for the epoch.
    - Its result is the last thing that it sends, after every object that the result names is durable.
    - Values for later layers are passed on unchanged.

Source: PROTOCOL P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Literal

from msgspec.structs import replace as replace_fields

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, JobFailed, LocalDamaged, Unavailable, Where
from holdfast.model import NEVER_US, Barrier, ChannelId, Epoch, SourcePosition, Watermark, WorkerId
from holdfast.ports import Clock, Lane, ObjectStore
from holdfast.runtime.microbatch.blocks import Attempt, BlockInbox, Outbox, Parcel, Result, parcel_of
from holdfast.runtime.microbatch.layers import Layers
from holdfast.runtime.operators.time_slice import unmarked
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.sources.reading import Throttle, open_readings
from holdfast.runtime.time.time_alignment import Place
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Frame, Network
from holdfast.runtime.wire.vitals import Mark
from holdfast.runtime.worker import protocol
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.local.opened import LocalState
from holdfast.runtime.worker.seal import segment_job
from holdfast.runtime.worker.subtask import SubtaskRun, inputs_of, ordering_of
from holdfast.runtime.worker.uploads import Uploads
from holdfast.state.store import StateStore

_log = logging.getLogger("holdfast.worker")
COPIED_AT_ONCE = 1 << 20
PERMANENT = (ConfigError, JobFailed, Damaged, Fenced)
SOURCE_GRACE_S = 30.0
"""How long a source may give neither records nor an answer before the attempt fails."""


Stop = Literal["run", "input"]
"""Why an epoch's range has a permanent end: the run reads no further, or the input ends there."""


@dataclass(frozen=True)
class Batch:
    """Common input of the tasks of one epoch; fixed before the first attempt."""

    plan: Plan
    layers: Layers
    barrier: Barrier
    finishing: bool
    """As in Trigger."""
    deploys: tuple[m.Deploy, ...]
    """One per subtask. Its base is the last completed epoch, and `until` where the epoch stops reading."""
    stops: Mapping[Place, Stop]
    """Partitions of which this run, or any run, reads no more than this epoch does."""
    silent: Mapping[Place, bool]
    """Partitions without a record for a long time: quiet ones, and idle ones (True), for which event time does not
    wait."""
    now_us: int
    """The driver's clock. Timers and windows up to this time are due, even if the clock of a task's host is behind."""


class TaskPorts:
    """Services that a task needs from the process that runs it.

    Args:
        pause: Waits for this many seconds.
        mark: Records which Python function is called.
        budget: Memory that the state may use; None: there is no limit.
        paused: Uploads that the process leaves out after one was refused; kept over its tasks.
    """

    network: Network  # tasks have no channels

    def __init__(
        self,
        clock: Clock,
        store: ObjectStore,
        local: LocalState,
        pause: Callable[[float], None],
        mark: Mark = unmarked,
        budget: Budget | None = None,
        paused: Counter[str] | None = None,
    ) -> None:
        self.clock, self.store, self.local, self.pause, self.mark = clock, store, local, pause, mark
        self.budget, self.paused = budget, paused

    def send(self, message: m.FromWorker) -> None:
        """A task sends only its result to the driver."""

    def lane(self, name: str) -> Lane:
        """A task does everything itself."""
        raise AssertionError(f"a task has no lane {name!r}")


def run_task(
    batch: Batch, ports: TaskPorts, attempt: Attempt, incoming: Iterable[bytes | memoryview]
) -> Iterator[Parcel]:
    """Run one attempt; yield its messages, the result last.

    An error becomes a result too, so that the driver learns of it with its advice; broken invariants are raised.
    """
    try:
        with ExitStack() as held:
            task = _TaskAttempt(batch, ports, attempt, held)
            yield from task.run(incoming)
            result = task.result()
            task.discard()
    except HoldfastError as error:
        permanent = isinstance(error, PERMANENT) and not isinstance(error, LocalDamaged)
        result = Result(attempt, error=error.report(), permanent=permanent)
    except MemoryError as error:
        result = Result(attempt, error=_no_memory(batch.plan.app, attempt, error).report(), permanent=True)
    yield parcel_of(result)


class _Links:
    """The channels of one task: those of its own layer are queues here, the others lead into blocks."""

    def __init__(self, batch: Batch, attempt: Attempt) -> None:
        self._layer, self._out = attempt.layer, Outbox(attempt)
        layer_of = {index: number for number, layer in enumerate(batch.layers) for index in layer}
        self._leads_to = {edge.index: layer_of[edge.to_fragment] for edge in batch.plan.edges}
        self._queues: dict[ChannelId, deque[Frame]] = {}
        self.out = self._out

    def take(self, channel: ChannelId) -> Frame | None:
        queue = self._queues.get(channel)
        return queue.popleft() if queue else None

    def room(self, channel: ChannelId) -> bool:
        return True

    def put(self, channel: ChannelId, frame: Frame) -> None:
        layer = self._leads_to[channel.edge]
        if layer == self._layer:
            self._queues.setdefault(channel, deque()).append(frame)
        else:
            self._out.put(layer, channel, frame)

    def close(self) -> None:
        self._queues = {}


class _TaskAttempt:
    """One attempt at work.

    Args:
        held: Releases state and sources, those opened before a failure included.
    """

    def __init__(self, batch: Batch, ports: TaskPorts, attempt: Attempt, held: ExitStack) -> None:
        self._batch, self._ports, self._attempt, self._held = batch, ports, attempt, held
        self._layer = batch.layers[attempt.layer]
        plan, subtask, count = batch.plan, attempt.subtask, len(batch.deploys)
        self._deploy = deploy = batch.deploys[subtask]
        self._worker = WorkerId(f"{attempt.layer}-{subtask}-{attempt.id}")
        self._uploads = Uploads(batch.plan, paused=ports.paused)
        self._inbox = BlockInbox(attempt.layer, subtask, {edge.index: edge.schema for edge in plan.edges})
        self._links = _Links(batch, attempt)
        self._times: dict[ChannelId, Watermark] = {}
        """The last watermark of each channel from another layer."""
        self._barriers: dict[ChannelId, Barrier] = {}
        self._state = self._open_state()
        reads = attempt.layer == 0
        open_sources: dict[str, OpenSource] = {}
        for spec in plan.sources if reads else ():
            ends = {at.partition: at.offset for at in deploy.until if at.source == spec.name}
            open_sources[spec.name] = spec.source.unpaced(
                ends
            ).open()  # the driver has fixed how far: no record is to come
            held.callback(open_sources[spec.name].close)
        readings = open_readings(plan, deploy.positions if reads else (), open_sources, deploy.until)
        for reading in readings:
            stop = batch.stops.get((reading.source, reading.partition))
            reading.goes_on = stop is None
            if stop == "input" and reading.until is not None:
                reading.end_at(reading.until)
        immediate = ImmediateWrites(plan, ports, _never_later, _raised)
        throttle = Throttle(None, ports.clock)
        all_positions = [at for each in batch.deploys for at in each.positions]
        services = self._state, self._links, open_sources, readings, throttle, immediate
        self._run = SubtaskRun(
            plan,
            subtask,
            count,
            *services,
            audit=deploy.audit,
            mark=ports.mark,
            only=self._layer,
            suspects=deploy.suspects,
            begins_us=max((at.watermark for at in all_positions if at.watermark is not None), default=NEVER_US),
            order=ordering_of(plan, deploy, at_end=True),
        )
        held.callback(self._run.close)
        inputs = {index: frozenset(inputs_of(plan, index, subtask, count)) for index in self._layer}
        self._machine = protocol.start(
            deploy.generation,
            deploy.timeline,
            subtask,
            deploy.base_epoch,
            batch.barrier.epoch,
            {index: channels for index, channels in inputs.items() if channels},
            frozenset(index for index in self._layer if plan.fragments[index].source is not None),
        )
        self._ack: protocol.SendAck | None = None
        self._filled = 0.0

    def run(self, incoming: Iterable[bytes | memoryview]) -> Iterator[Parcel]:
        """Process everything that comes, then store state and output."""
        yield from self._begin_what_is_due()
        for data in incoming:
            frames = self._inbox.take(data)
            if frames is None:
                yield Parcel(self._attempt.subtask, bytes(data))
                continue
            for channel, frame in frames:
                if isinstance(frame, Watermark):
                    self._times[channel] = frame
                elif isinstance(frame, Barrier):
                    self._barriers[channel] = frame
                else:
                    self._links.put(channel, frame)
            self._work_through()
            yield from self._links.out.full()
        self._pass_time()
        if self._machine.sources:
            yield from self._read_sources()
            self._perform(*protocol.triggered(self._machine, self._batch.barrier))
        self._work_through()
        if self._ack is None:
            raise Unavailable(
                f"task {self._attempt.subtask} of layer {self._attempt.layer} did not receive all of its input",
                not_done="the epoch was not completed",
                next_step="its job runs again from the same offsets",
            )
        yield from self._links.out.rest()

    def result(self) -> Result:
        """Return the result of this attempt; all of it is durable."""
        assert self._ack is not None
        ack = self._ack
        return Result(
            self._attempt,
            self._inbox.read_from,
            ack.positions,
            ack.segment,
            dict(ack.staged),
            ack.audit,
            replace_fields(self._run.progress(), state_bytes=self._state.nbytes, due_us=self._run.due_us()),
            filled=self._filled,
            orders=ack.orders,
        )

    def discard(self) -> None:
        """Release the state permanently, if this is the job's last epoch."""
        if self._batch.finishing:
            with suppress(OSError):
                self._opened.discard()

    def _open_state(self) -> StateStore:
        plan = self._batch.plan
        mine = tuple(operator for operator in plan.operators if operator.fragment in self._layer)
        root = self._ports.store
        self._opened = self._ports.local.open(replace(plan, operators=mine), self._deploy, self._worker, root)
        self._held.callback(self._opened.close)
        return self._opened.store

    def _begin_what_is_due(self) -> Iterator[Parcel]:
        """Handle timers and windows that are due by the clock, before any row; later ones wait for the next epoch."""
        now_us = max(self._ports.clock.wall_us(), self._batch.now_us)
        while self._run.on_clock(now_us):
            self._work_through()
            yield from self._links.out.full()

    def _pass_time(self) -> None:
        """Let time advance to where the epoch ends, then close the epoch.

        All rows were processed at the time of the last epoch, whichever sender's came first. Senders are quiet before
        one of them is idle, as in continuous mode. So the result does not depend on which of them is taken first.
        """
        quiet = {c: Watermark(at.at_us, quiet=True) for c, at in self._times.items() if at.idle and not at.over}
        for frames in (quiet, self._times, self._barriers):
            for channel, frame in frames.items():
                self._links.put(channel, frame)
            self._work_through()

    def _work_through(self) -> None:
        """Process all frames that are here."""
        while self._run.advance(self._arrived, may_read=False) or self._run.midway():
            pass

    def _read_sources(self) -> Iterator[Parcel]:
        """Read every source as far as this epoch goes."""
        self._run.rest(self._batch.silent)
        silent_since: float | None = None
        while self._run.midway() or not self._run.caught_up():
            if self._run.advance(self._arrived, may_read=True):
                silent_since = None
                yield from self._links.out.full()
                continue
            now = self._ports.clock.monotonic()
            silent_since = now if silent_since is None else silent_since
            if now - silent_since > SOURCE_GRACE_S:
                raise _silent(self._run.positions(), self._run.refusals())
            self._ports.pause(0.02)
        self._run.look_at_time()
        if self._batch.finishing:
            self._run.finish_time()

    def _arrived(self, fragment: int, channel: ChannelId, barrier: Barrier) -> None:
        self._perform(*protocol.barrier_arrived(self._machine, fragment, channel, barrier))

    def _perform(self, machine: protocol.Worker, effects: list[protocol.Effect]) -> None:
        self._machine = machine
        for effect in effects:
            match effect:
                case protocol.PauseChannel(channel):
                    self._run.pause(channel)
                case protocol.ResumeChannels(channels):
                    self._run.resume(channels)
                case protocol.CloseFragment(fragment, barrier):
                    noted = self._run.close_fragment(fragment, barrier)
                    self._machine = protocol.positions_noted(self._machine, barrier.epoch, *noted)
                case protocol.Seal(epoch):
                    self._seal(epoch)
                case protocol.SendAck():
                    self._ack = effect
                case _:
                    raise AssertionError(f"{effect} in a task, which knows of no other epoch")

    def _seal(self, epoch: Epoch) -> None:
        while self._state.uncopied:
            self._state.advance(COPIED_AT_ONCE)
        if (budget := self._ports.budget) is not None:
            self._filled = self._state.unfinished_bytes / budget.unfinished
        if self._state.refused:
            _log.warning(
                "the state of a task cannot leave memory, and may exceed state_memory: %s", self._state.refused
            )
        given = self._run.take_stages(epoch), self._uploads, self._run.take_order(epoch)
        job = segment_job(self._state, epoch, self._deploy, self._worker, *given)
        self._perform(*protocol.output_sealed(self._machine, epoch, job.run(self._ports.store)))


def _no_memory(job: str, attempt: Attempt, error: MemoryError) -> ConfigError:
    return ConfigError(
        f"a task of job {job!r}, of subtask {attempt.subtask}, has no memory left: {str(error) or 'none was given'}",
        not_done="the epoch was not completed; state and output stay as of the last checkpoint",
        next_step="raise spark.executor.pyspark.memory or leave it out (it limits address space, in which files of "
        "state count), or run with a higher --parallelism",
        where=Where(job=job),
    )


def _silent(positions: Iterable[SourcePosition], refusals: Mapping[str, Unavailable]) -> Unavailable:
    where = ", ".join(f"{at.source} partition {at.partition} at {at.offset:,}" for at in positions)
    why = "".join(f". Source {name}: {error.what}" for name, error in sorted(refusals.items()))
    return Unavailable(
        f"sources gave no records for {SOURCE_GRACE_S:g} s, although this epoch reads further: {where}{why}",
        not_done="the epoch was not completed",
        next_step="check the sources; the epoch runs again from the same offsets",
    )


def _never_later(delay_s: float, action: Callable[[], object]) -> None:
    raise AssertionError("a task does nothing later")


def _raised(error: BaseException) -> None:
    raise error
