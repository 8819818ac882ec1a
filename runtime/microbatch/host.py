"""Answers the master in place of workers: one for each subtask, all of them here, beside the driver.

It carries out `machine.py`. Jobs run in Spark; lanes look at the sources, merge segments and deliver committed output.
The driver's loop takes every result as an event.

Invariants
    - Events are handled one at a time, on the thread of the driver's loop.
    - Events of an older generation, or of a Spark job that no longer counts, change nothing (P2, P26).

Source: docs/decisions/0047-microbatch.md; PROTOCOL P2, P8, P12, P13, P18, P26.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.errors import ErrorReport, HoldfastError, Unavailable
from holdfast.model import CHANGELOG, NO_EPOCH, Cut, Epoch, Generation, SegmentRef, SourcePosition, Subtask, WorkerId
from holdfast.runtime.microbatch import machine as batches
from holdfast.runtime.microbatch.blocks import result_in
from holdfast.runtime.microbatch.counted import Counted
from holdfast.runtime.microbatch.deaths import ProcessEnded, TaskDeath
from holdfast.runtime.microbatch.layers import layers_of
from holdfast.runtime.microbatch.machine import Batches
from holdfast.runtime.microbatch.outlook import SourceOutlook
from holdfast.runtime.microbatch.ranges import Pace, ends_of_epoch, in_step
from holdfast.runtime.microbatch.task import PERMANENT, Batch
from holdfast.runtime.operators.suspicion import lifted
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.time.time_alignment import Aligned, Look, PartitionProgress, Place, looked
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.compaction import CompactJob
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.protocol import QueueOutput

BEAT_EVERY_S = 0.5
COMPACT_RETRY_S = 1.0
LINEAGE_MAX = 64
"""Epochs of this generation whose state a machine may still have; it restores an older one from the root."""
STANDSTILL_EPOCHS = 10
"""For this many epochs, partitions that are ahead in event time wait for one whose event time does not advance."""


class Jobs(Protocol):
    """Runs the tasks of an epoch; the end of each job comes back through `Host.ended`."""

    def run(self, job: int, batch: Batch) -> None:
        """Start a job."""

    def cancel(self, job: int) -> None:
        """End a job whose results no longer count."""

    def stalled(self) -> str:
        """Return why the job that runs gets nowhere; empty if that is unknown."""


class Host:
    """All subtasks of a job in microbatch mode.

    Args:
        post: Queues an event for the driver's loop.
        answer: Receives the messages that workers would send to the driver.
        register: Makes the registration of a worker.
        every_s: How long the job of an epoch should take at most when there is more to read.
        rate: Limit on all sources together, in records per second.
    """

    def __init__(
        self,
        plan: Plan,
        ports: SubtaskPorts,
        jobs: Jobs,
        post: Callable[[Callable[[], None]], None],
        answer: Callable[[m.FromWorker], None],
        register: Callable[[WorkerId, int], m.Register],
        every_s: float,
        rate: float | None,
        staged_bytes_max: int,
    ) -> None:
        self._plan, self._ports, self._jobs, self._post, self._answer = plan, ports, jobs, post, answer
        self._register, self._layers = register, layers_of(plan)
        self._workers: dict[WorkerId, Subtask | None] = {}
        self._deploys: dict[Subtask, m.Deploy] = {}
        self._lineage: dict[Epoch, str] = {}
        """The manifests of the last epochs of this generation."""
        self._batches: Batches | None = None
        self._generation, self._jobs_run = Generation(0), 0
        self._outlook: SourceOutlook | None = None
        self._begun: dict[Place, int] = {}
        """Where this run, in its first generation, began to read each partition."""
        self._opened = {spec.name: spec.source.open() for spec in plan.sources}
        self._pace, self._began, self._beat_at = Pace(every_s, rate), ports.clock.monotonic(), 0.0
        self._merge_refused, self._counted = "", Counted()
        self._aligned = Aligned(window=1)
        self._prompt = True
        """The next generation need not wait before its first epoch: the run begins, or an epoch was completed since."""
        self._some_wait = False
        """Some partitions are not read in this epoch, as they are ahead in event time."""
        self._triggered = NO_EPOCH
        """The last epoch of this generation that the driver has triggered."""
        self._groups = [group._replace(patience=STANDSTILL_EPOCHS) for group in plan.aligned()]
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_ids = itertools.count()
        self._deliveries = Deliveries(
            plan, ports, self._after, lambda _writer, _tag: self._beat_soon(), self._fail, staged_bytes_max
        )

    # Requests of the driver's loop to workers

    def launch(self, number: int) -> None:
        """Answer as a worker that has started."""
        worker = WorkerId(f"batch-{number}")
        self._workers[worker] = None
        self._say(self._register(worker, number))

    def dismiss(self, worker: WorkerId) -> None:
        """Answer for this worker no more."""
        self._workers.pop(worker, None)

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Accept a message to a worker; it is handled after the driver's turn."""
        self._post(lambda: self._received(worker, message))

    def turn(self) -> None:
        """Carry out the actions that are due."""
        now = self._now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if self._outlook is not None and self._batches is not None:
            self._outlook.turn(self._batches.positions)
        if now >= self._beat_at:
            self.beat()

    def ended(self, job: int, sent: Sequence[bytes] | HoldfastError) -> None:
        """A job has ended: with the output of the tasks of its last layer, or with an error."""
        state = self._batches
        if state is None or job != state.job:
            return
        if isinstance(sent, PERMANENT):
            self._fail(sent)
            return
        if isinstance(sent, ProcessEnded) and sent.death is not None:
            self._killed(state, job, sent.report(), sent.death)
            return
        if isinstance(sent, HoldfastError):
            self._perform(*batches.failed_job(state, job, sent.report()))
            return
        results = [result for data in sent if (result := result_in(data)) is not None]
        if isinstance(state.phase, batches.BatchRunning):
            read = sum(end - max(state.positions[place].offset, 0) for place, end in state.phase.until.items())
            filled = max((result.filled for result in results), default=0.0)
            self._pace = self._pace.took(read, self._now() - self._began, filled)
        self._perform(*batches.finished(state, job, results, len(self._layers)))

    def deploys(self) -> tuple[m.Deploy, ...]:
        """Return the deployments of all subtasks as of the last completed epoch; none before the start."""
        state = self._batches
        return () if state is None else tuple(self._deploy_of(state, each.subtask) for each in state.handles)

    def close(self) -> None:
        """End the job that runs, and release targets and sources."""
        self._cancel()
        self._deliveries.close()
        if self._outlook is not None:
            self._outlook.close()
        for opened in self._opened.values():
            opened.close()

    def beat(self) -> None:
        """Send the heartbeats of all subtasks."""
        self._beat_at = self._now() + BEAT_EVERY_S
        for worker, subtask in self._workers.items():
            if subtask is not None and self._batches is not None:
                self._say(self._heartbeat(worker, subtask, self._batches))
            else:
                self._say(m.Heartbeat(worker, Generation(0), False, False, (), m.WorkerProgress()))

    def _beat_soon(self) -> None:
        """Have the next turn send heartbeats: one for all messages until then, as every subtask gets its own."""
        self._beat_at = 0.0

    # Messages

    def _received(self, worker: WorkerId, message: m.FromDriver) -> None:
        state = self._batches
        if worker not in self._workers:
            return
        if isinstance(message, m.Deploy):
            self._deploy(worker, message)
        elif isinstance(message, m.BeforeImagesExpired):
            self._deliveries.forget(message.through)
        elif isinstance(message, m.Pulse):
            self._deliveries.behind = message.behind
        elif isinstance(message, m.Deliver) and message.generation == self._generation:
            for item in message.pending:
                self._deliveries.queue(item)
        elif (
            state is not None
            and isinstance(message, m.Trigger | m.Committed | m.EndInput)
            and message.generation == state.generation
        ):
            self._current(state, message)

    def _current(self, state: Batches, message: m.Trigger | m.Committed | m.EndInput) -> None:
        assert self._outlook is not None
        match message:
            case m.Trigger(barrier=barrier) if barrier.epoch > max(state.newest, self._triggered):
                state, effects = batches.committed(state, Cut(barrier.committed_through, ""), self._delivered())
                self._perform(state, effects)
                self._triggered = barrier.epoch
                self._outlook.renewed(state.positions, partial(self._begin_epoch, message))
            case m.Committed(_, epoch, manifest):
                self._perform(*batches.committed(state, Cut(epoch, manifest), self._delivered()))
                self._completed(Cut(epoch, manifest))
                self._beat_soon()
            case m.EndInput(_, drop_unread):
                self._outlook.end_input(state.positions, drop_unread=drop_unread)
                self._beat_soon()

    def _begin_epoch(self, trigger: m.Trigger) -> None:
        """Fix the offsets that an epoch reads, and start its job: the sources were looked at since it was triggered."""
        state = self._batches
        if state is None or trigger.generation != state.generation:
            return
        rows_max = self._pace.rows_max(self._now() - self._began)
        offsets, ends = self._in_step(state, rows_max)
        self._prompt = False
        self._perform(*batches.triggered(state, trigger, ends_of_epoch(offsets, ends, rows_max)))

    def _completed(self, cut: Cut) -> None:
        """Note an epoch of which a machine may have the state."""
        self._prompt, self._lineage[cut.epoch] = True, cut.manifest
        if len(self._lineage) > LINEAGE_MAX:
            del self._lineage[min(self._lineage)]

    def _in_step(self, state: Batches, rows_max: int) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return where the partitions are, and how far the next epoch may read them.

        Partitions that are ahead in event time wait for the others, unless an epoch can read all that there is.
        """
        assert self._outlook is not None
        offsets = {place: max(at.offset, 0) for place, at in state.positions.items()}
        ends = {} if self._deliveries.full() else self._outlook.readable()
        left = {place: max(0, ends.get(place, 0) - offset) for place, offset in offsets.items()}
        partitions = {p: PartitionProgress(offsets[p], at.watermark, left[p]) for p, at in state.positions.items()}
        self._aligned = looked(self._aligned, Look(state.cut.epoch, partitions), self._groups)
        may = ends if sum(left.values()) <= rows_max else in_step(ends, partitions, self._aligned.limits)
        self._some_wait = any(left[place] for place in offsets.keys() - may.keys())
        return offsets, may

    def _deploy(self, worker: WorkerId, deploy: m.Deploy) -> None:
        if deploy.generation < self._generation:
            return
        if deploy.generation > self._generation:
            self._cancel()
            self._generation, self._batches, self._deploys, self._lineage = deploy.generation, None, {}, {}
            self._triggered = NO_EPOCH
        self._workers[worker] = deploy.subtask
        self._deploys[deploy.subtask] = deploy
        self._deliveries.deploy(deploy)
        self._say(m.Ready(worker, deploy.generation, "as batches", 0))
        if self._batches is None and len(self._deploys) == len(deploy.peers):
            self._batches, self._counted = self._start(), Counted()
            self._look_out()
        self._beat_soon()

    def _start(self) -> Batches:
        return batches.start(self._deploys.values(), self._jobs_run, committed_once=self._plan.committed_once())

    def _look_out(self) -> None:
        if self._outlook is not None:
            self._outlook.close()
        until = {(at.source, at.partition): at.offset for each in self._deploys.values() for at in each.until}
        specs = {spec.name: spec for spec in self._plan.sources}
        given = self._opened, specs, self._ports.clock, self._ports.lane, until, self._begun
        self._outlook = SourceOutlook(*given, changed=self.beat, failed=self._fail)

    # Effects

    def _perform(self, state: Batches, effects: list[batches.Effect]) -> None:
        self._batches, self._jobs_run = state, state.job
        if isinstance(state.phase, batches.Acked) and any(isinstance(each, batches.AckPart) for each in effects):
            self._counted.add(state.phase.progress)
            self.beat()  # before the acks: the driver decides by it whether there is another epoch to close
        for effect in effects:
            match effect:
                case batches.StartJob(after_s=after_s) as run if after_s:
                    self._after(after_s, partial(self._run_later, run))
                case batches.StartJob():
                    self._run(state, effect)
                case batches.CancelJob(job):
                    self._jobs.cancel(job)
                case batches.AckPart(epoch, part):
                    self._ack(epoch, part)
                case QueueOutput(pending):
                    self._deliveries.queue(pending)
                case batches.CompactSubtask(subtask, merge):
                    specs = tuple(operator.table for operator in self._plan.operators)
                    merger = WorkerId(f"merge-{subtask}")
                    self._compact(subtask, CompactJob(self._deploy_of(state, subtask), merger, merge, specs))
                case batches.FailGeneration(error, permanent):
                    self._report(error, permanent=permanent)

    def _run_later(self, run: batches.StartJob) -> None:
        state = self._batches
        if state is not None and run.job == state.job and isinstance(state.phase, batches.BatchRunning):
            self._run(state, run)

    def _run(self, state: Batches, run: batches.StartJob) -> None:
        assert self._outlook is not None
        trigger, until = run.trigger, run.until
        self._began = self._now()
        known = self._outlook.rested = self._outlook.silent(state.positions)
        silent = {place: idle for place, idle in known.items() if until[place] <= max(state.positions[place].offset, 0)}
        ends = [(place, self._outlook.stop_at(place, end)) for place, end in until.items()]
        stops = {place: stop for place, stop in ends if stop is not None}
        deploys = tuple(self._deploy_of(state, Subtask(number), until) for number in range(len(state.handles)))
        now_us = self._ports.clock.wall_us()
        batch = Batch(self._plan, self._layers, trigger.barrier, trigger.finishing, deploys, stops, silent, now_us)
        self._jobs.run(run.job, batch)

    def _deploy_of(self, state: Batches, subtask: Subtask, until: Mapping[Place, int] | None = None) -> m.Deploy:
        """Return the deployment of a subtask as of the last completed epoch."""
        first = self._deploys[subtask]
        return msgspec.structs.replace(
            first,
            base_epoch=state.cut.epoch,
            handle=state.handles[subtask],
            positions=tuple(at for at in state.positions.values() if at.subtask == subtask),
            until=tuple(SourcePosition(*place, end) for place, end in (until or {}).items()),
            lineage={**first.lineage, **self._lineage},
            suspects=lifted(first.suspects) if first.suspects and self._has_moved(state) else first.suspects,
            topic=None if first.topic is None else replace(first.topic, delivered=self._delivered()),
        )

    def _has_moved(self, state: Batches) -> bool:
        """Return whether a completed epoch of this generation has read anything."""
        begun = {(at.source, at.partition): at.offset for each in self._deploys.values() for at in each.positions}
        return any(at.offset > max(begun.get(place, 0), 0) for place, at in state.positions.items())

    def _delivered(self) -> dict[Subtask, Epoch]:
        """Return, by writer, the epoch through which the changelog's topic is known to have everything."""
        topic_state = self._deploys[Subtask(0)].topic
        confirmed_epochs = {
            each.writer.subtask: each.tag.epoch
            for each in self._deliveries.confirmed()
            if each.writer.sink == CHANGELOG
        }
        return {**({} if topic_state is None else topic_state.delivered), **confirmed_epochs}

    def _ack(self, epoch: Epoch, part: SubtaskPart) -> None:
        worker = next((worker for worker, subtask in self._workers.items() if subtask == part.subtask), None)
        if worker is not None:
            whole = msgspec.structs.replace(part, delivered=self._deliveries.confirmed())
            self._say(m.Ack(worker, self._generation, epoch, whole))

    def _compact(self, subtask: Subtask, job: CompactJob) -> None:
        generation = job.deploy.generation

        def done(result: object) -> None:
            if self._batches is None or generation != self._batches.generation:
                return
            self._merge_refused = result.what if isinstance(result, Unavailable) else ""
            if isinstance(result, Unavailable):
                self._after(COMPACT_RETRY_S, lambda: self._compact(subtask, job))
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                assert isinstance(result, SegmentRef)
                self._batches = batches.compacted(self._batches, subtask, result)
                self.beat()

        if self._batches is not None and generation == self._batches.generation:
            self._ports.lane("merge").submit(lambda: job.run(self._ports.store), done)

    # Reports

    def _killed(self, state: Batches, job: int, error: ErrorReport, death: TaskDeath) -> None:
        """Report as a worker and its companion do: the function that the process was running, then its end."""
        workers = {subtask: worker for worker, subtask in self._workers.items() if subtask is not None}
        worker = workers.get(Subtask(death.subtask))
        self._batches, effects = batches.killed_job(state, job, error)
        if worker is not None and effects:
            self._say(m.Vitals(worker, "ended", death.mark, 0, at=death.at, how=death.how))
            self._say(m.Failed(worker, self._generation, error, permanent=False))

    def _heartbeat(self, worker: WorkerId, subtask: Subtask, state: Batches) -> m.Heartbeat:
        outlook = self._outlook
        assert outlook is not None
        mine = {place: at for place, at in state.reached.items() if at.subtask == subtask}
        offsets = {place: max(at.offset, 0) for place, at in mine.items()}
        over = [SourcePosition(*place, at) for place, at in offsets.items() if outlook.ended(place, at)]
        errors = self._deliveries.errors()
        progress = m.WorkerProgress(
            state_bytes=self._counted.state_bytes[subtask],
            records_in=self._counted.records if subtask == 0 else 0,
            positions=tuple(mine.values()),
            ends=outlook.ends(mine),
            operators=tuple(self._counted.operators.values()) if subtask == 0 else (),
            sink_errors={sink: error.what for sink, error in errors.items()},
            sink_advice={sink: error.next_step for sink, error in errors.items()},
            ended=tuple(over),
            times=outlook.times(mine),
            merge_refused=self._merge_refused,
            refused=(state.phase.refused or self._jobs.stalled())
            if isinstance(state.phase, batches.BatchRunning)
            else "",
            held_by=self._held_by(state),
        )
        return m.Heartbeat(
            worker,
            state.generation,
            len(over) == len(mine),
            False,
            self._deliveries.confirmed(),
            progress,
            all(outlook.caught_up(place, at) for place, at in offsets.items()),
            self._quiet(state, outlook),
            len(mine),
            self._wants_epoch(state, outlook),
        )

    def _held_by(self, state: Batches) -> tuple[str, ...]:
        """Return the reasons why partitions are not read."""
        if state.halted:
            return ("last barrier",)
        waits = (("delivery", self._deliveries.full()), ("event time", self._some_wait))
        return tuple(name for name, holds in waits if holds)

    def _quiet(self, state: Batches, outlook: SourceOutlook) -> Epoch:
        """Return the last epoch if another one would read, close, fire and record nothing; else 0."""
        due_us = self._counted.due_us
        due = due_us is not None and due_us <= self._ports.clock.wall_us()
        waiting = (outlook.left(state.reached) != 0 or due) and not self._deliveries.full()
        new = waiting or state.merged or outlook.time_moved(state.reached)
        return NO_EPOCH if new else state.closed

    def _wants_epoch(self, state: Batches, outlook: SourceOutlook) -> bool:
        """Return whether the next epoch should not wait until it is due, because there is much to read.

        For the first one of a generation any record will do, unless its predecessor could complete no epoch: a job
        that fails immediately would soon have failed too often.
        """
        left = outlook.left(state.positions)
        if self._deliveries.full() or left is None or not isinstance(state.phase, batches.BatchIdle):
            return False
        if state.newest < self._deploys[Subtask(0)].first_epoch:
            return self._prompt and outlook.whole and left > 0
        return self._pace.rate is None and left >= self._pace.rows

    def _report(self, error: ErrorReport, *, permanent: bool) -> None:
        for worker, subtask in list(self._workers.items()):
            if subtask is not None:
                self._say(m.Failed(worker, self._generation, error, permanent))
                return

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, HoldfastError):
            raise error
        self._report(error.report(), permanent=isinstance(error, PERMANENT))

    def _say(self, message: m.FromWorker) -> None:
        self._post(lambda: self._answer(message))

    def _cancel(self) -> None:
        if self._batches is not None and isinstance(self._batches.phase, batches.BatchRunning):
            self._jobs.cancel(self._batches.job)

    def _after(self, delay_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (self._now() + delay_s, next(self._timer_ids), action))

    def _now(self) -> float:
        return self._ports.clock.monotonic()
