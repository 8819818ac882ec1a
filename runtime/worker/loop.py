"""The interpreter of a worker: takes events, steps the pure protocol, performs its effects.

The same loop runs in production, in the test driver and in the simulator; only its ports differ. One
thread calls `turn` and owns all state. Slow work goes to a lane, and its result comes back as an event.

Invariants
    - Events are handled one at a time, to completion.
    - A lane's result for an older generation changes nothing (P2).
    - An ack leaves only through `SendAck`, after the store has confirmed every object (DESIGN 4.4).

Source: DESIGN sections 2 and 4; PROTOCOL P2, P9, P10, P16.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from holdfast.checkpoint.bases import Thresholds, pieces
from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, JobFailed, LocalDamaged, Unavailable
from holdfast.model import (
    NO_EPOCH,
    Barrier,
    ChannelId,
    Cut,
    Epoch,
    Generation,
    SegmentRef,
    SourcePosition,
    Subtask,
    WorkerId,
)
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime.operators.time_slice import unmarked
from holdfast.runtime.plan.ahead import Ahead, SynchronousLane, inline
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.sources.reading import Throttle, open_readings
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import OpenLinks
from holdfast.runtime.wire.vitals import At, Mark
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.compaction import CompactJob
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.following import StandbyCopies
from holdfast.runtime.worker.heartbeat import MemoryUse, heartbeat_of, quiet_of, standby_heartbeat
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.local.upkeep import IMAGE_FROM_BYTES, Upkeep
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.seal import SealJob, segment_job
from holdfast.runtime.worker.subtask import Active, SubtaskRun, inputs_of, ordering_of, outputs_of
from holdfast.runtime.worker.target import cut_of, identity_of
from holdfast.runtime.worker.uploads import UPLOAD_FROM_BYTES, Uploads
from holdfast.sinks.protocol.delivery import BACKLOG_BYTES_MAX
from holdfast.state.paging.swap import resident_bytes
from holdfast.state.store import StateStore
from holdfast.state.tables.epochs import COPIED_AT_ONCE

PERMANENT = (ConfigError, JobFailed, Damaged, Fenced)
"""Errors that would recur after a restart; a damaged local folder would not: a restart does not use it again."""
RETRY_FIRST_S, RETRY_MAX_S = 0.2, {"upload": 0.2, "merge": 10.0}
"""How soon a refused lane tries again. An epoch waits for an upload; nothing waits for a merge, which reads a lot."""
COPIES_SHOWN_S = 0.1
"""Time between two heartbeats of a standby whose copies advance."""


@dataclass(frozen=True)
class Limits:
    """Settings of one worker."""

    max_records_per_second: float | None = None
    merging: Thresholds = Thresholds()
    staged_bytes_max: int = BACKLOG_BYTES_MAX
    """Committed output of one writer that may wait for delivery before sources stop (P18)."""
    budget: Budget | None = None
    """The parts of state_memory; None: no limit."""
    upload_from: int = UPLOAD_FROM_BYTES
    """Bytes of a staged part from which it is uploaded to a target that has one committer."""
    image_from: int = IMAGE_FROM_BYTES
    """Bytes of a base from which the local disk has an image of it, and not a copy."""
    copied_per_turn: int = COPIED_AT_ONCE
    """Records that a turn copies after a barrier, or commits after a checkpoint, at most."""


class WorkerLoop:
    """One worker, from registration to exit."""

    def __init__(
        self,
        worker_id: WorkerId,
        plan: Plan,
        ports: SubtaskPorts,
        limits: Limits,
        mark: Mark = unmarked,
        reads_ahead: bool = False,
        runs: Callable[..., SubtaskRun] = SubtaskRun,
    ) -> None:
        self._reads_ahead, self._runs = reads_ahead, runs
        self._ends_lane: Lane = ports.lane("ends") if reads_ahead else SynchronousLane()
        self.worker_id, self._plan, self._ports, self._limits, self._mark = worker_id, plan, ports, limits, mark
        self._active: Active | None = None
        self._state: StateStore | None = None
        self._held: tuple[Subtask, tuple[int, int]] | None = None
        self._upkeep: Upkeep | None = None
        self._opened: dict[str, OpenSource] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = itertools.count()
        self._deliveries = Deliveries(
            plan, ports, self._after, lambda _writer, _tag: self.beat(), self._fail, limits.staged_bytes_max
        )
        self._uploads = Uploads(plan, limits.upload_from)
        self._copies_changed, self._copies_shown_at = False, 0.0
        self._following = StandbyCopies(plan, ports, worker_id, self._copying)
        self._shown = m.Heartbeat(worker_id, Generation(0), False, False, (), m.WorkerProgress())
        self._refused = dict[str, str]()
        self.exited: str | None = None
        self.advanced_at = ports.clock.monotonic()
        """When a turn last showed that it advances. A turn that takes long without that counts as hung."""

    # Events

    def received(self, message: m.FromDriver) -> None:
        """Handle a message from the driver."""
        active = self._active
        match message:
            case m.Deploy():
                self._following.hurry(None)
                if active is None or message.generation > active.deploy.generation:
                    self._deploy(message)
                elif message.generation == active.deploy.generation and not active.broken and active.ready is not None:
                    self._ports.send(active.ready)  # the first one may be lost
            case m.Follow():
                if active is None:
                    self._following.ask(message)
            case m.Trigger(generation) if self._is_current(generation):
                assert active is not None
                active.triggers.append(message)
                self._close_epochs(active)
            case m.Committed(generation, epoch, manifest) if active and active.deploy.generation == generation:
                self._committed(active, Cut(epoch, manifest))
            case m.Deliver(generation, pending) if active and active.deploy.generation == generation:
                for item in pending:
                    self._deliveries.queue(item)
            case m.Pulse(behind):
                self._deliveries.behind = behind
            case m.EndInput(generation, drop_unread) if self._is_current(generation):
                assert active is not None
                self._end_input(active, drop_unread)
            case m.HoldBack(generation, later_than, lasts_s) if self._is_current(generation):
                assert active is not None
                active.run.held_back.limit(later_than, lasts_s)
            case m.BeforeImagesExpired(_, through):
                self._deliveries.forget(through)
            case m.Exit(reason):
                self.exited = reason

    def _committed(self, active: Active, cut: Cut) -> None:
        before = active.machine.committed
        self._perform(*worker.committed(active.machine, cut.epoch))
        if self._state is not None and self._upkeep is not None:
            self._state.completed(cut)
            if active.deploy.topic is not None and self._state.cut == cut:
                self._upkeep.committed(partial(self._at, active, cut))
        if active.machine.committed != before and quiet_of(active):
            self.beat()  # else the driver closes another epoch before it learns that nothing is new

    def _at(self, active: Active, cut: Cut) -> m.Deploy:
        """Return the state of this subtask as of an epoch that was just completed."""
        handle = active.machine.handle or active.deploy.handle
        lineage = active.deploy.lineage | {cut.epoch: cut.manifest}
        return msgspec.structs.replace(active.deploy, base_epoch=cut.epoch, handle=handle, lineage=lineage)

    def _end_input(self, active: Active, drop_unread: bool) -> None:
        try:
            active.run.end_input(drop_unread)
        except HoldfastError as error:  # a source can no longer be read
            self._fail(error)
        self.beat()

    def notice(self, message: m.FromDriver) -> None:
        """Learn of a message that is still to be received; safe to call from any thread."""
        if isinstance(message, m.Deploy):
            self._following.hurry(message.subtask)

    def channel_broken(self, generation: Generation, channel: ChannelId, why: str, silent: bool) -> None:
        """After a data channel broke, wait for the driver to start another generation."""
        if self._active is not None and self._active.deploy.generation == generation:
            self._active.broken = True
            own = self._active.deploy.subtask
            peer = channel.sender if channel.receiver == own else channel.receiver
            before = self._active.broken_to.get(peer)
            if before is None or (silent and not before.silent):
                self._active.broken_to[peer] = m.BrokenLink(peer, why, silent)
            self.beat()

    def turn(self) -> bool:
        """Do one piece of work; return whether there was any."""
        if self._timers and self._timers[0][0] <= self._ports.clock.monotonic():
            heapq.heappop(self._timers)[2]()
            return True
        active = self._active
        if active is None:
            return self._follow()
        if active.broken:
            return False
        try:
            records_before = active.run.records_in
            full = self._memory_is_full()
            may_read, may_take = self._may_read(active, full), self._may_take(active, full)
            did_work = active.run.advance(self._barrier_arrived, may_read, may_take, may_fire=may_read)
        except HoldfastError as error:
            self._fail(error)
            return True
        self._close_epochs(active)
        if records_before == 0 and active.run.records_in and active.first_record_at is None:
            active.first_record_at = self._ports.clock.wall_us()
            self.beat()
        if not did_work and not active.machine.halted and active.run.caught_up() and not self._shown.caught_up:
            self.beat()
        did_work |= self._seal_copied(active)
        self._show_news(active)
        return did_work

    def _follow(self) -> bool:
        """Advance the copies of a standby."""
        before = self._following.stock()
        try:
            did_work = self._following.turn()
        except HoldfastError as error:  # the run goes on: the driver replaces a standby
            self._ports.send(m.Failed(self.worker_id, self._following.generation, error.report(), permanent=False))
            self._following.close()
            return True
        now = self._ports.clock.monotonic()
        restoring = self._shown.progress.restored is not None  # a standby that restores is sent nothing
        self._copies_changed |= restoring or self._following.stock() != before
        if self._copies_changed and (not did_work or now - self._copies_shown_at >= COPIES_SHOWN_S):
            self._copies_changed, self._copies_shown_at = False, now
            self.beat()
        return did_work

    def _close_epochs(self, active: Active) -> None:
        while active.triggers and not active.broken and not active.run.midway():
            trigger = active.triggers.popleft()
            if trigger.finishing:
                active.run.finish_time()
            self._perform(*worker.triggered(active.machine, trigger.barrier, trigger.assignment))

    def _show_news(self, active: Active) -> None:
        """Report immediately what decides when the driver closes an epoch: new records, and memory full of changes."""
        if (self._shown.quiet and not quiet_of(active)) or self._shown.wants_barrier != self._wants_barrier():
            self.beat()

    def idle_s(self, at_most_s: float = 0.05) -> float:
        """Return how long the loop may sleep unless it is woken, in seconds."""
        waits = [at_most_s]
        if self._timers:
            waits.append(self._timers[0][0] - self._ports.clock.monotonic())
        if self._active is not None and (throttle := self._active.run.throttle_s()) > 0:
            waits.append(throttle)
        return max(0.0, min(waits))

    def at_work(self) -> str | None:
        """Return the Python function that is running, if any; safe to call from any thread."""
        return None if (active := self._active) is None else active.run.at_work()

    def heartbeat(self) -> m.Heartbeat:
        """Return the last heartbeat; safe to call from any thread."""
        return self._shown

    def beat(self) -> None:
        """Renew the heartbeat and send it to the driver."""
        self.take_stock()
        self._ports.send(self._shown)

    def take_stock(self) -> None:
        """Renew the next heartbeat, and once more when the sources have said where they end."""
        active = self._active
        asks = active is not None and not active.broken and not active.asks_for_ends
        if active is None or not asks or not self._ends_of_sources(active):
            self._renew()

    def _ends_of_sources(self, active: Active) -> bool:
        """Ask the sources where they end; return whether the heartbeat has their answers already.

        A lane asks those that read ahead: brokers take milliseconds to answer, in which no record would pass. Only the
        operator thread uses the others.
        """
        active.asks_for_ends = True
        ahead = {name for name, each in active.ahead.items() if each.used}
        try:
            here = active.run.ends(active.ahead.keys() - ahead)()
        except HoldfastError as error:
            self._ends_known(active, (), error)
        else:
            lane = self._ends_lane if ahead else SynchronousLane()
            lane.submit(active.run.ends(ahead), partial(self._ends_known, active, here))
        return not active.asks_for_ends

    def _ends_known(self, active: Active, here: tuple[SourcePosition, ...], result: object) -> None:
        active.asks_for_ends = False
        if active is not self._active:
            return
        if isinstance(result, BaseException):  # for example, a source learnt that records it returned were taken back
            self._fail(result)  # from now on the sources are not read
        else:
            assert isinstance(result, tuple)
            active.ends = here + result
        self._renew()

    def _renew(self) -> None:
        try:
            self._shown = self._stock()
        except HoldfastError as error:  # for example, the local state is damaged
            self._fail(error)
            self._shown = self._stock()

    def leave(self, reason: str) -> None:
        """End the loop after this turn."""
        self.exited = self.exited or reason

    def close(self) -> None:
        """Release channels, sources, targets and state."""
        if self._active is not None:
            self._active.run.close()
        self._deliveries.close()
        self._following.close()
        self._close_state()

    def state(self) -> StateStore | None:
        """Return the state of this worker, for reads of committed values."""
        return self._state

    # Deployment

    def _deploy(self, deploy: m.Deploy) -> None:
        clock = self._ports.clock
        began = clock.monotonic()
        machine = None if self._active is None else self._active.machine
        if self._active is not None:
            self._active.run.close()
        self._active, self._refused = None, {}
        try:
            how = self._bring_state(deploy, machine)
            self._active = self._start(deploy)
        except HoldfastError as error:
            self._report(deploy.generation, error)
            return
        self._deliveries.deploy(deploy)
        took_ms = round((clock.monotonic() - began) * 1000)
        self._active.ready = m.Ready(self.worker_id, deploy.generation, how, took_ms)
        self._ports.send(self._active.ready)
        self.beat()

    def _bring_state(self, deploy: m.Deploy, machine: worker.Worker | None) -> str:
        """Roll back in place if the worker holds the state of the base (P10), else take a copy of it, or restore it."""
        key_groups = deploy.handle.key_groups
        identity = identity_of(deploy, self.worker_id)
        same = self._held == (deploy.subtask, key_groups) and self._holds(deploy, machine)
        if self._state is not None and same and self._state.roll_back(deploy.base_epoch, identity):
            self._state.completed(cut_of(deploy))
            return "rolled back"
        self._close_state()
        how, base = "promoted", self._following.take(deploy)
        if base is None:
            stored = pieces(deploy.handle) or (deploy.topic is not None and deploy.base_epoch > NO_EPOCH)
            how, base = "restored" if stored else "empty", self._open_restored(deploy)
        base.store.identity = identity
        self._state, self._held = base.store, (deploy.subtask, key_groups)
        self._upkeep = Upkeep(self._ports.lane("local"), self._ports.clock, base, self._limits.image_from)
        if base.kept is not None:
            self._ports.lane("upload").submit(base.kept.verify, self._verified)  # before it, nothing is sealed
        return how

    def _verified(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._fail(result)

    def _open_restored(self, deploy: m.Deploy) -> OpenStore:
        ports, advanced = self._ports, partial(self._restored, deploy.generation)
        return ports.local.open(self._plan, deploy, self.worker_id, ports.store, advanced)

    def _copying(self, done_bytes: int, all_bytes: int) -> None:
        """Show that the restore of a copy advances, as _restored does."""
        self._restored(self._following.generation, done_bytes, all_bytes)

    def _marked(self, mark: str | None, at: At | None = None, /) -> None:
        """Record what is about to be called: each call is one operation, however many a turn makes."""
        self.advanced_at = self._ports.clock.monotonic()
        self._mark(mark, at)

    def _restored(self, generation: Generation, done_bytes: int, all_bytes: int) -> None:
        """Show that the restore advances: it runs within one turn, and heartbeats continue meanwhile."""
        self.advanced_at = self._ports.clock.monotonic()
        progress = m.WorkerProgress(rss_bytes=resident_bytes(), restored=(done_bytes, all_bytes))
        delivered, copies = self._deliveries.confirmed(), self._following.stock()
        self._shown = m.Heartbeat(self.worker_id, generation, False, False, delivered, progress, copies=copies)

    def _holds(self, deploy: m.Deploy, machine: worker.Worker | None) -> bool:
        """Return whether the held state at the base's epoch is the base: the manifest names what this worker sealed."""
        known = None if self._state is None else self._state.cut
        if known is not None and known.epoch == deploy.base_epoch and known.manifest:
            return known == cut_of(deploy)
        return machine is not None and worker.holds(machine, deploy.base_epoch, deploy.handle)

    def _close_state(self) -> None:
        if self._state is not None:
            self._state, self._held = None, None
        if self._upkeep is not None:
            self._upkeep.close()
            self._upkeep = None

    def _start(self, deploy: m.Deploy) -> Active:
        plan, subtask, parallelism = self._plan, deploy.subtask, len(deploy.peers)
        assert self._state is not None
        for spec in plan.sources:
            if spec.name not in self._opened:
                self._opened[spec.name] = spec.source.open()
        inputs = {f.index: frozenset(inputs_of(plan, f.index, subtask, parallelism)) for f in plan.fragments}
        outputs = [c for f in plan.fragments for c in outputs_of(plan, f.index, subtask, parallelism)]
        links = self._ports.network.open(
            OpenLinks(
                deploy.job_uuid,
                deploy.generation,
                subtask,
                [c for channels in inputs.values() for c in channels],
                outputs,
                {peer.subtask: peer.address for peer in deploy.peers},
                {edge.index: edge.schema for edge in plan.edges},
                self.channel_broken,
            )
        )
        rate = self._limits.max_records_per_second
        throttle = Throttle(None if rate is None else rate / parallelism, self._ports.clock)
        ahead = {name: self._ahead(name, deploy.reads_alone) for name in self._opened}
        readings = open_readings(plan, deploy.positions, self._opened, deploy.until, ahead.__getitem__)
        given = self._state, links, self._opened, readings, throttle, self._deliveries.immediate
        how = {"audit": deploy.audit, "mark": self._marked, "suspects": deploy.suspects}
        run = self._runs(plan, subtask, parallelism, *given, **how, order=ordering_of(plan, deploy))
        sources = frozenset(f.index for f in plan.fragments if f.source is not None)
        machine = worker.start(
            deploy.generation,
            deploy.timeline,
            subtask,
            deploy.base_epoch,
            deploy.first_epoch,
            {index: channels for index, channels in inputs.items() if channels},
            sources,
            deploy.handle,
            self._limits.merging,
            plan.committed_once(),
        )
        return Active(deploy, machine, run, ahead)

    def _ahead(self, source: str, alone: bool) -> Ahead:
        if not self._reads_ahead:
            return inline()
        alone_for = m.LIMITED_EPOCHS if alone else 0
        watch = partial(self._ports.lane, f"watch-{source}")
        now = self._ports.clock.monotonic
        return Ahead(self._ports.lane(f"read-{source}"), watch=watch, alone_for=alone_for, now=now)

    # Effects

    def _perform(self, machine: worker.Worker, effects: list[worker.Effect]) -> None:
        active = self._active
        assert active is not None and self._state is not None
        active.machine = machine
        try:
            for effect in effects:
                self._perform_one(active, effect)
        except HoldfastError as error:
            self._fail(error)

    def _perform_one(self, active: Active, effect: worker.Effect) -> None:
        assert self._state is not None
        match effect:
            case worker.PauseChannel(channel):
                active.run.pause(channel)
            case worker.ResumeChannels(channels):
                active.run.resume(channels)
            case worker.AddPartitions(positions):
                active.run.begin(open_readings(self._plan, positions, self._opened, ahead=active.ahead.__getitem__))
            case worker.CloseFragment(fragment, barrier):
                noted = active.run.close_fragment(fragment, barrier)
                active.machine = worker.positions_noted(active.machine, barrier.epoch, *noted)
            case worker.CommitThrough(through):
                self._state.commit(through)
                self._deliveries.immediate.committed(through)
            case worker.QueueOutput(pending):
                self._deliveries.queue(pending)
            case worker.Seal(epoch):
                active.unsealed.append((epoch, active.run.take_stages(epoch), active.run.take_order(epoch)))
                self._seal_copied(active)
            case worker.Compact(merge):
                specs = tuple(operator.table for operator in self._plan.operators)
                copied = 0 if self._upkeep is None or not self._upkeep.copied_max else self._limits.image_from
                job = CompactJob(active.deploy, self.worker_id, merge, specs, copied)
                self._compact(active.deploy.generation, job)
            case worker.SendAck():
                part = worker.part_of(active.machine, effect, self._deliveries.confirmed())
                self._ports.send(m.Ack(self.worker_id, active.deploy.generation, effect.epoch, part))

    def _seal_copied(self, active: Active) -> bool:
        """Copy and commit some records, then seal the epochs whose records are copied; return whether there was any."""
        state = self._state
        if state is None or not (active.unsealed or state.unsettled):
            return False
        state.advance(self._limits.copied_per_turn)
        while active.unsealed and not state.uncopied:
            epoch, stages, order = active.unsealed.popleft()
            job = segment_job(state, epoch, active.deploy, self.worker_id, stages, self._uploads, order)
            job.copied_max = 0 if self._upkeep is None else self._upkeep.copied_max
            self._seal(active.deploy.generation, epoch, job)
        return True

    def _seal(self, generation: Generation, epoch: Epoch, job: SealJob) -> None:
        def written(result: object) -> None:
            if self._is_current(generation):
                assert isinstance(result, worker.Sealed) and self._active is not None
                if self._upkeep is not None and result.segment is not None:
                    self._upkeep.sealed(result.segment, job.data)
                self._perform(*worker.output_sealed(self._active.machine, epoch, result))

        self._store(generation, "upload", job.run, lambda sealed: self._deliveries.when_in(lambda: written(sealed)))

    def _compact(self, generation: Generation, job: CompactJob) -> None:
        def done(result: object) -> None:
            assert isinstance(result, SegmentRef) and self._active is not None
            self._active.machine = worker.compacted(self._active.machine, result)
            if self._upkeep is not None:
                self._upkeep.merged(job.deploy, job.merge, result.object, job.data)
            self._show_news(self._active)

        self._store(generation, "merge", job.run, done)

    def _store(
        self,
        generation: Generation,
        lane: str,
        run: Callable[[ObjectStore], object],
        done: Callable[[object], None],
        refusals: int = 0,
    ) -> None:
        """Store objects in the background. Their names are this worker's own, so a repeated put is harmless."""

        def ended(result: object) -> None:
            if not self._is_current(generation):
                return
            self._refused.pop(lane, None)
            if isinstance(result, Unavailable):
                self._refused[lane] = result.what
                delay_s = min(RETRY_FIRST_S * 2 ** min(refusals, 16), RETRY_MAX_S[lane])
                self._after(delay_s, lambda: self._store(generation, lane, run, done, refusals + 1))
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                done(result)

        if self._is_current(generation):
            store = self._ports.store
            self._ports.lane(lane).submit(lambda: run(store), ended)

    def _barrier_arrived(self, fragment: int, channel: ChannelId, barrier: Barrier) -> None:
        assert self._active is not None
        self._perform(*worker.barrier_arrived(self._active.machine, fragment, channel, barrier))

    def _after(self, delay_s: float, action: Callable[[], object]) -> None:
        due = self._ports.clock.monotonic() + delay_s
        heapq.heappush(self._timers, (due, next(self._timer_ids), lambda: (action(), None)[1]))

    def _may_read(self, active: Active, memory_is_full: bool) -> bool:
        return not active.machine.halted and not self._deliveries.full() and not memory_is_full

    def _may_take(self, active: Active, memory_is_full: bool) -> bool:
        """Return whether channels are served. Without room they wait for an epoch, but never keep one waiting."""
        return not memory_is_full or bool(active.triggers) or not worker.awaits_outcome(active.machine)

    def _memory_is_full(self) -> bool:
        """Return whether sources must wait: for a commit, which releases changes, or for room on the local disk."""
        budget, state = self._limits.budget, self._state
        if budget is None or state is None:
            return False
        if state.refused:
            state.settle()  # nothing else touches the tables while sources are not read
        return state.unfinished_bytes > budget.unfinished or bool(state.refused)

    def _wants_barrier(self) -> bool:
        """Return whether the next barrier should not wait until it is due.

        Sources may also wait for the changes of an epoch that was given up: only a later epoch releases those.
        """
        budget, state = self._limits.budget, self._state
        if budget is None or state is None:
            return False
        return state.dirty_bytes > budget.early_from or state.unfinished_bytes > budget.unfinished

    def _is_current(self, generation: Generation) -> bool:
        active = self._active
        return active is not None and active.deploy.generation == generation and not active.broken

    # Reports

    def _fail(self, error: BaseException) -> None:
        """Report to the driver why this generation cannot continue; the driver decides what happens next."""
        if not isinstance(error, HoldfastError):
            raise error
        if self._active is not None:
            self._active.broken = True
            self._report(self._active.deploy.generation, error)

    def _report(self, generation: Generation, error: HoldfastError) -> None:
        permanent = isinstance(error, PERMANENT) and not isinstance(error, LocalDamaged)
        self._ports.send(m.Failed(self.worker_id, generation, error.report(), permanent))

    def _stock(self) -> m.Heartbeat:
        if self._active is None and (copies := self._following.stock()):
            following, budget = self._following, self._limits.budget
            memory = MemoryUse(following.state_bytes, None if budget is None else budget.total, False, False)
            delivered = self._deliveries.confirmed()
            refused = following.refused
            return standby_heartbeat(self.worker_id, following.generation, copies, delivered, memory, refused)
        local = None if self._upkeep is None else self._upkeep.refusal()
        memory = MemoryUse(
            0 if self._state is None else self._state.nbytes,
            None if self._limits.budget is None else self._limits.budget.total,
            self._memory_is_full(),
            self._wants_barrier(),
        )
        return heartbeat_of(self.worker_id, self._active, self._deliveries, self._refused, local, memory)
