"""A whole job in one thread: the production loops with in-memory ports and a virtual clock.

The driver's loop, the workers' loops, their protocol, state and sinks are those of production. Only the ports differ:
messages wait in queues, background work waits in lanes, time advances only on request, and a seed decides the next
event.

Invariants
    - The same seed and the same calls give the same order of events.
    - Messages pass through their wire form; state and output through their stored form.

Source: DESIGN section 13 (`TestDriver`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.checkpoint.manifest import OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.model import Epoch, JobUuid, WorkerId
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.driver.state import Rules, Site
from holdfast.runtime.plan.compiler import Plan, describe_operators
from holdfast.runtime.plan.immediate import not_to_grow
from holdfast.runtime.plan.kept_state import lost_since, with_identities
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.plan.topic import outputs_of, topic_place
from holdfast.runtime.testing.batches import BatchMembers
from holdfast.runtime.testing.lanes import InlineLanes, VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork, Network
from holdfast.runtime.worker.local.opened import LocalState, MemoryState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.runtime.worker.subtask import SubtaskRun
from holdfast.state.keys.keygroups import range_of

HEARTBEAT_S = 0.5
DISCOVER_S = 10.0
"""Time between two listings of the sources."""


class MemberPorts:
    """The ports of one worker of the cluster."""

    def __init__(
        self,
        clock: VirtualClock,
        store: ObjectStore,
        network: Network,
        local: LocalState,
        send: Callable[[m.FromWorker], None],
    ) -> None:
        self.clock, self.store, self.network, self.local, self._send = clock, store, network, local, send
        self.lanes = InlineLanes()

    def send(self, message: m.FromWorker) -> None:
        """Queue the message for the driver, in its wire form."""
        self._send(m.FROM_WORKER.decode(msgspec.msgpack.encode(message)))

    def lane(self, name: str) -> Lane:
        """Return the lane of this name."""
        return self.lanes.lane(name)


class ClusterMember:
    """One worker of the cluster and the messages that wait for it."""

    def __init__(self, launch: int, loop: WorkerLoop, ports: MemberPorts) -> None:
        self.launch, self.loop, self.ports = launch, loop, ports
        self.inbox: deque[m.FromDriver] = deque()


def rules_of(
    plan: Plan,
    parallelism: int,
    partitions: Mapping[str, tuple[int, ...]],
    job_uuid: JobUuid,
    checkpoint_every: float,
) -> Rules:
    """Return the rules of a job in memory; its operators keep their numbers from the plan."""
    descriptions = describe_operators(plan)
    return Rules(
        name=plan.app,
        job_uuid=job_uuid,
        host="here",
        key_groups=plan.key_groups,
        key_ranges=tuple(range_of(i, parallelism, plan.key_groups) for i in range(parallelism)),
        partitions=partitions,
        operators=tuple(OperatorState(o.name, o.id, descriptions[o.name]) for o in plan.operators),
        checkpoint_every=checkpoint_every,
        silent_after=5.0,
        epoch_deadline=max(30.0, 10 * checkpoint_every),
        redeploy_every=10.0,
        restart_failures_max=1_000,
        restart_window=60.0,
        restart_backoff_first=0.1,
        restart_backoff_max=10.0,
        discover_every=DISCOVER_S,
        loses_partitions=any(spec.source.traits.loses_partitions for spec in plan.sources),
        fixed=not_to_grow(plan),
        aligned=plan.aligned(),
        changelog=topic_place(plan),
        committed_once=tuple(sorted(plan.committed_once())),
        shape=shape_of(plan),
    )


class Cluster:
    """Driver and workers of one job."""

    def __init__(
        self,
        plan: Plan,
        parallelism: int,
        seed: int,
        store: ObjectStore,
        checkpoint_every: float,
        partitions: Mapping[str, tuple[int, ...]],
        mode: str = CONTINUOUS,
    ) -> None:
        self.clock, self._store, self._random = VirtualClock(), store, random.Random(seed)
        self.batches: BatchMembers | None = None
        """Plays all subtasks in microbatch mode."""
        self._mode = mode
        self._plan, self.sinks, self.sources = plan, outputs_of(plan), plan.sources
        self.changelog = plan.changelog
        self.network = MemoryNetwork()
        self.members: dict[WorkerId, ClusterMember] = {}
        self.held_launches: list[int] | None = None
        """If a list, launches are held back and collected here."""
        self.hosts = ["here"]
        """Host names on which workers start, in turn."""
        self.local: Callable[[], LocalState] = MemoryState
        """Makes the local state of a new worker, or of a task."""
        self.runs: Callable[..., SubtaskRun] = SubtaskRun
        """Makes the data plane of a worker's subtask."""
        self._inbox: deque[Callable[[], None]] = deque()
        self._lanes = InlineLanes()
        self.repository = Repository(store)
        job_uuid = JobUuid(f"{self._random.getrandbits(128):032x}")
        self.limits = Limits()
        self.rules = rules_of(plan, parallelism, partitions, job_uuid, checkpoint_every)
        self._new_driver(self.rules)

    def _new_driver(self, rules: Rules) -> None:
        self.driver = DriverLoop(rules, f"{self._random.getrandbits(128):032x}", self)
        if self._mode == MICROBATCH:
            driver, every = self.driver, rules.checkpoint_every
            given = self.clock, self._store, self._random, self._inbox.append, driver.received, every, self._local
            self.batches = BatchMembers(self._plan, *given)

    def _local(self) -> LocalState:
        return self.local()

    def begin(self) -> None:
        """Take the job over, as its log describes it."""
        self.driver.begin(self.repository.read_log(), "started")

    # Ports of the driver's loop

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Queue the message for the worker, in its wire form."""
        if self.batches is not None:
            self.batches.host.send(worker, message)
        if worker in self.members:
            decoded = m.FROM_DRIVER.decode(msgspec.msgpack.encode(message))
            self.members[worker].inbox.append(decoded)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start a worker, now or when launches are no longer held."""
        if self.held_launches is not None:
            self.held_launches.append(number)
            return
        if self.batches is not None:
            self.batches.host.launch(number)
            return
        worker = WorkerId(f"{self._random.getrandbits(48):012x}")
        ports = MemberPorts(self.clock, self._store, self.network, self.local(), self._from(worker))
        loop = WorkerLoop(worker, self._plan, ports, self.limits, runs=self.runs)
        self.members[worker] = ClusterMember(number, loop, ports)
        host = self.hosts[number % len(self.hosts)]
        ports.send(m.Register(worker, number, host, number, "boot", ("here", number)))

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """Remove a worker that the driver no longer listens to."""
        self.members.pop(worker, None)
        if self.batches is not None:
            self.batches.host.dismiss(worker)

    def cancel(self, launch: int) -> None:
        """Nothing to cancel: workers start immediately, or their launch is held back."""

    def lane(self, name: str) -> Lane:
        """Return the driver's lane of this name."""
        return self._lanes.lane(name)

    # Time and order

    def step(self) -> bool:
        """Run one pending action, chosen by the seed; return whether anything happened."""
        choices: list[Callable[[], bool]] = [self._waiting_message] if self._inbox else []
        choices += [lambda lane=lane: _true(lane.step()) for lane in self._lanes.waiting()]  # type: ignore[misc]
        for member in self.members.values():
            choices += [lambda lane=lane: _true(lane.step()) for lane in member.ports.lanes.waiting()]  # type: ignore[misc]
            choices.append(lambda member=member: self._member_turn(member))  # type: ignore[misc]
        if self.batches is not None:
            choices += [lambda lane=lane: _true(lane.step()) for lane in self.batches.ports.lanes.waiting()]  # type: ignore[misc]
            choices += [self.batches.jobs.step] if self.batches.jobs.waiting else []
            self.batches.host.turn()
        self._random.shuffle(choices)
        worked = any(choice() for choice in choices)
        before = self.driver.state
        self.driver.turn()
        return worked or self.driver.state is not before

    def settle(self, steps_max: int = 1_000_000) -> None:
        """Run every action that can run without time passing."""
        for _ in range(steps_max):
            if self.driver.outcome is not None or not self.step():
                return
        raise AssertionError(f"the job was not quiet after {steps_max} steps")

    def pass_time(self, seconds: float) -> None:
        """Advance time in small steps; send heartbeats and run every action that becomes due."""
        end = self.clock.now + seconds
        while self.clock.now < end and self.driver.outcome is None:
            self.clock.now = min(end, self.clock.now + HEARTBEAT_S / 2)
            for member in list(self.members.values()):
                member.loop.beat()
            if self.batches is not None:
                self.batches.host.beat()
            self.settle()

    def hear_out(self) -> None:
        """Let workers take the last messages of an ended driver, such as the commit of the last epoch."""
        for member in list(self.members.values()):
            while member.inbox:
                member.loop.received(member.inbox.popleft())
        while self.batches is not None and self._inbox:
            self._inbox.popleft()()

    def crash(self, worker: WorkerId) -> None:
        """Kill a worker: its memory is lost and its stream closes."""
        self.members.pop(worker, None)
        self._inbox.append(lambda: self.driver.stream_closed(worker, f"worker {worker} was killed"))

    def release_launches(self) -> None:
        """Start the workers whose launches were held back."""
        held, self.held_launches = self.held_launches or [], None
        for number in held:
            self.launch(number, ())

    def change_rules(self, **changed: Any) -> None:
        """Change the rules of the next driver; before `begin`, of this one."""
        self.rules = replace(self.rules, **changed)
        if not self.members:
            self._new_driver(self.rules)

    def replace_driver(
        self,
        plan: Plan | None = None,
        drop_state: Sequence[str] = (),
        partitions: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Kill the driver with all workers, and start another one from the log.

        Args:
            plan: The plan of changed code; None: the code is the same.
            drop_state: As for `holdfast run --drop-state`, if there is a plan.
            partitions: Partitions of the sources of changed code; None: they are the same.

        Raises:
            ConfigError: the changed code cannot read the state; nothing was killed.
        """
        if plan is not None:
            self._plan, operators = with_identities(plan, self._known(), drop_state)
            once = tuple(sorted(plan.committed_once()))
            self.sinks, self.rules = outputs_of(plan), replace(self.rules, operators=operators, committed_once=once)
        if partitions is not None:
            self.rules = replace(self.rules, partitions=partitions)
        for worker in list(self.members):
            del self.members[worker]
        self._inbox.clear()
        self._lanes = InlineLanes()
        rules = replace(self.rules, job_uuid=JobUuid(f"{self._random.getrandbits(128):032x}"))
        self._new_driver(rules)
        self.driver.begin(self.repository.read_log(), "started again")

    def lost_since(self, epoch: int) -> str | None:
        """Return which state of this checkpoint the job has given up since; None if none, or there is no checkpoint."""
        completed = {each.body.epoch: each.body.manifest for each in self.driver.state.job.completed}
        if (manifest := completed.get(Epoch(epoch))) is None:
            return None
        return lost_since(self.repository.load_manifest(manifest).operators, self.rules.operators)

    def _known(self) -> tuple[OperatorState, ...]:
        """Return the operators of the last checkpoint."""
        job = self.repository.read_log()
        if job is None or not job.completed:
            return ()
        return self.repository.load_manifest(job.completed[-1].body.manifest).operators

    def _from(self, worker: WorkerId) -> Callable[[m.FromWorker], None]:
        def send(message: m.FromWorker) -> None:
            if worker in self.members:
                self._inbox.append(lambda: self.driver.received(message))

        return send

    def _waiting_message(self) -> bool:
        self._inbox.popleft()()
        return True

    def _member_turn(self, member: ClusterMember) -> bool:
        if member.inbox:
            member.loop.received(member.inbox.popleft())
            return True
        return member.loop.turn()


def _true(_: None) -> bool:
    return True
