"""Drivers and workers of one job against a log, a sink and a network that the test controls.

The machines are those of production: runtime/driver/master.py and runtime/worker/protocol.py. The interpreters around
them are a few lines here, and the data is numbers: partition p holds 0, 1, 2, ... and every epoch of a
subtask passes a range of them to the sink. The sink must end up with every number once, in order. Partitions are
added meanwhile, until the source is sealed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, SubtaskPart
from holdfast.errors import Unavailable
from holdfast.model import (
    Barrier,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SourcePosition,
    Staged,
    Tag,
    WorkerId,
    Writer,
)
from holdfast.runtime.driver import master
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import (
    AppendUnknown,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    Launch,
    LaunchEnded,
    ListPartitions,
    LoadManifest,
    ManifestLoaded,
    ManifestStored,
    Moment,
    RecordFound,
    Send,
    SourcesListed,
    SourcesUnlisted,
    StoreManifest,
    Tick,
    WorkerStreamClosed,
)
from holdfast.runtime.driver.invariants import validate
from holdfast.runtime.driver.state import Master, Rules
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import protocol as worker

PARTITIONS, PARTITIONS_MAX = 3, 6
"""How many there are at first, and at most."""
LENGTH = 40
"""Numbers per partition."""
KEY_GROUPS = 12


def rules(owner: str, parallelism: int, partitions: int) -> Rules:
    ranges = tuple((KEY_GROUPS * i // parallelism, KEY_GROUPS * (i + 1) // parallelism) for i in range(parallelism))
    return Rules(
        name="numbers",
        job_uuid=JobUuid(owner),
        host="here",
        key_groups=KEY_GROUPS,
        key_ranges=ranges,
        partitions={"s": tuple(range(partitions))},
        operators=(),
        checkpoint_every=1.0,
        silent_after=5.0,
        epoch_deadline=2.0,
        redeploy_every=3.0,
        restart_failures_max=10_000,
        restart_window=60.0,
        restart_backoff_first=0.1,
        restart_backoff_max=1.0,
        discover_every=1.0,
    )


@dataclass
class Host:
    """A worker process; as a zombie it stays alive unheard by the driver and delivers its output."""

    id: WorkerId
    launch: int
    inbox: list[m.FromDriver] = field(default_factory=list)
    outbox: list[m.FromWorker] = field(default_factory=list)
    connected: bool = True
    broken: int = 0
    """Generation in which a data channel of this worker broke."""
    deploy: m.Deploy | None = None
    machine: worker.Worker | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    staged_from: dict[int, int] = field(default_factory=dict)
    sealing: list[tuple[int, Epoch, worker.Sealed]] = field(default_factory=list)
    queue: list[Pending] = field(default_factory=list)
    confirmed: dict[Writer, Tag] = field(default_factory=dict)


@dataclass
class Driver:
    """One driver process with its workers; unread results of its background are in `results`."""

    state: Master
    hosts: dict[WorkerId, Host] = field(default_factory=dict)
    results: list[Callable[[], None]] = field(default_factory=list)
    events: list[Callable[[], None]] = field(default_factory=list)
    outcome: str | None = None


class World:
    """Everything outside the machines; the seed decides what happens next."""

    def __init__(self, seed: int, widths: tuple[int, ...]) -> None:
        self.random, self.widths = random.Random(seed), widths
        self.now, self.calm, self.sink_up = 1_000.0, False, True
        self.log: list[joblog.Record] = []
        self.manifests: dict[str, Manifest] = {}
        self.blobs: dict[str, tuple[tuple[int, int], ...]] = {}
        """Staged parts: (partition, number) in order."""
        self.rows: list[tuple[int, int]] = []
        self.tags: dict[Writer, Tag] = {}
        self.readable, self.partitions, self.sealed = 5, PARTITIONS, False
        self.ids = 0
        self.drivers: list[Driver] = []
        self.take_over()

    # Drivers

    def take_over(self) -> None:
        """Another driver comes up, whether the one before is dead or not."""
        job = reduce(joblog.fold, self.log, None)
        if job is not None and job.finished:
            return
        owner = f"driver-{len(self.drivers)}"
        width = self.widths[len(self.drivers) % len(self.widths)]
        state, effects = master.begin(rules(owner, width, self.partitions), owner, job, "started", 0)
        driver = Driver(state)
        self.drivers.append(driver)
        self.perform(driver, state, effects)

    def perform(self, driver: Driver, state: Master, effects: list[Effect]) -> None:
        driver.state = state
        validate(state)
        for effect in effects:
            match effect:
                case CreateRecord(record):
                    driver.results.append(lambda r=record: self.create(driver, r))  # type: ignore[misc]
                case LoadManifest(ref):
                    driver.results.append(lambda r=ref: self.load(driver, r))  # type: ignore[misc]
                case StoreManifest(manifest, _):
                    driver.results.append(lambda x=manifest: self.store(driver, x))  # type: ignore[misc]
                case Send(to, message):
                    if to in driver.hosts and driver.hosts[to].connected:
                        driver.hosts[to].inbox.append(message)
                case Launch(number):
                    driver.events.append(lambda n=number: self.come_up(driver, n))  # type: ignore[misc]
                case Dismiss(gone, _):
                    self.cut(driver.hosts[gone])
                case ListPartitions(number, known, _):
                    driver.results.append(lambda n=number, k=known: self.list_source(driver, n, k["s"]))  # type: ignore[misc]
                case End(outcome, _):
                    driver.outcome = outcome

    def create(self, driver: Driver, record: joblog.Record) -> None:
        """A conditional create; the answer may be lost, then it is asked again."""
        assert record.seq <= len(self.log) + 1
        if record.seq == len(self.log) + 1:
            self.log.append(record)
            reduce(joblog.fold, self.log, None)
        if self.lucky():
            found = self.log[record.seq - 1]
            self.perform(driver, *master.step(driver.state, RecordFound(found), Moment(self.now)))
        else:
            driver.results.append(
                lambda: self.perform(driver, *master.step(driver.state, AppendUnknown(), Moment(0.0)))
            )

    def list_source(self, driver: Driver, number: int, known: tuple[int, ...]) -> None:
        """The source is listed; it may be out of reach."""
        if self.lucky():
            found = [SourcePosition("s", p, -1 if p in known else 0) for p in range(self.partitions)]
            self.perform(driver, *master.step(driver.state, SourcesListed(number, found), Moment(self.now)))
        else:
            away = Unavailable("the source is away", next_step="wait")
            self.perform(driver, *master.step(driver.state, SourcesUnlisted(number, away), Moment(self.now)))

    def load(self, driver: Driver, ref: ObjectRef) -> None:
        self.perform(driver, *master.step(driver.state, ManifestLoaded(self.manifests[ref.path]), Moment(self.now)))

    def store(self, driver: Driver, manifest: Manifest) -> None:
        ref = ObjectRef(f"manifests/{manifest.generation}/{manifest.epoch}-{driver.state.log.owner}", 1, "0" * 64)
        self.manifests[ref.path] = manifest
        self.perform(driver, *master.step(driver.state, ManifestStored(manifest, ref), Moment(self.now)))

    def come_up(self, driver: Driver, number: int) -> None:
        """A launch mostly gives a worker; it may fail, or the worker may die immediately."""
        if not self.lucky():
            self.perform(driver, *master.step(driver.state, LaunchEnded(number, "no room"), Moment(self.now)))
            return
        self.ids += 1
        host = Host(WorkerId(f"w{self.ids}"), number)
        driver.hosts[host.id] = host
        host.outbox.append(m.Register(host.id, number, "here", self.ids, "boot", ("here", self.ids)))

    def disconnect(self, driver: Driver, host: Host) -> None:
        """The worker died, or only seems to: stream and Spark job end, in any order, maybe unnoticed for long."""
        unheard = host.id not in driver.state.workers
        self.cut(host)
        notices: list[Callable[[], None]] = [
            lambda: self.perform(
                driver, *master.step(driver.state, WorkerStreamClosed(host.id, "stream closed"), Moment(self.now))
            ),
            lambda: self.perform(
                driver, *master.step(driver.state, LaunchEnded(host.launch, "killed"), Moment(self.now))
            ),
        ]
        for notice in notices:
            if unheard or self.random.random() < 0.7:
                driver.events.append(notice)

    def cut(self, host: Host) -> None:
        """The stream carries nothing any more; the worker keeps its sealed and queued output."""
        host.connected = False
        host.inbox.clear()
        host.outbox.clear()

    # Workers

    def read_inbox(self, host: Host) -> None:
        message = host.inbox.pop(0)
        match message:
            case m.Deploy():
                if host.deploy is None or message.generation > host.deploy.generation:
                    self.deploy(host, message)
                host.outbox.append(m.Ready(host.id, message.generation, "ready", 0))
            case m.Trigger(generation, barrier, _, given) if host.deploy and host.deploy.generation == generation:
                assert host.machine is not None
                self.take(host, *worker.triggered(host.machine, barrier, given))
            case m.Committed(generation, epoch) if host.deploy and host.deploy.generation == generation:
                assert host.machine is not None
                self.take(host, *worker.committed(host.machine, epoch))
            case m.Exit():
                self.cut(host)
            case _:
                pass

    def deploy(self, host: Host, deploy: m.Deploy) -> None:
        host.deploy = deploy
        host.offsets = {at.partition: max(at.offset, 0) for at in deploy.positions}
        host.staged_from = dict(host.offsets)
        host.machine = worker.start(
            deploy.generation,
            deploy.timeline,
            deploy.subtask,
            deploy.base_epoch,
            deploy.first_epoch,
            {},
            frozenset({0}),
        )
        for item in sorted(deploy.pending, key=lambda item: item.tag):
            self.queue(host, item)

    def queue(self, host: Host, item: Pending) -> None:
        same = [known for known in host.queue if (known.writer, known.tag) == (item.writer, item.tag)]
        assert not same or same == [item], "one epoch was staged in two ways"
        if not same:
            host.queue.append(item)

    def take(self, host: Host, machine: worker.Worker, effects: list[worker.Effect]) -> None:
        host.machine = machine
        for effect in effects:
            match effect:
                case worker.CloseFragment(_, barrier):
                    self.read_source(host)
                    self.close_epoch(host, barrier)
                case worker.AddPartitions(positions):
                    assert not host.offsets.keys() & {at.partition for at in positions}, "a partition is read twice"
                    host.offsets |= {at.partition: at.offset for at in positions}
                    host.staged_from |= {at.partition: at.offset for at in positions}
                case worker.SendAck():
                    part = worker.part_of(host.machine, effect, ())
                    part = SubtaskPart(part.subtask, part.positions, part.segment, part.staged, self.known(host))
                    host.outbox.append(m.Ack(host.id, machine.generation, effect.epoch, part))
                case worker.QueueOutput(pending):
                    self.queue(host, pending)

    def close_epoch(self, host: Host, barrier: Barrier) -> None:
        """Everything read since the last barrier becomes one staged part."""
        assert host.machine is not None and host.deploy is not None
        numbers = tuple((p, n) for p, end in host.offsets.items() for n in range(host.staged_from[p], end))
        host.staged_from = dict(host.offsets)
        at = tuple(SourcePosition("s", p, offset) for p, offset in host.offsets.items())
        host.machine = worker.positions_noted(host.machine, barrier.epoch, at)
        staged: dict[str, Staged] = {}
        if numbers:
            path = f"staged/{host.machine.generation}/{barrier.epoch}/{host.id}"
            self.blobs[path] = numbers
            staged["out"] = Staged((ObjectRef(path, 1, "0" * 64),), len(numbers))
        host.sealing.append((host.machine.generation, barrier.epoch, worker.Sealed(None, staged)))

    def seal(self, host: Host) -> None:
        generation, epoch, sealed = host.sealing.pop(self.random.randrange(len(host.sealing)))
        if host.machine is not None and host.machine.generation == generation:
            self.take(host, *worker.output_sealed(host.machine, epoch, sealed))

    def read_source(self, host: Host) -> None:
        if host.machine is not None and not host.machine.halted:
            for partition, offset in host.offsets.items():
                host.offsets[partition] = max(offset, min(self.readable, offset + self.random.randint(0, 3)))

    def deliver(self, host: Host) -> None:
        """P17: the tag moves first, or nothing does; zombies take part."""
        item = host.queue[0]
        at = self.tags.get(item.writer)
        if at is None or at < item.tag:
            self.tags[item.writer] = item.tag
            for part in item.staged.parts:
                self.rows += self.blobs[part.path]
        host.confirmed[item.writer] = max(item.tag, self.tags[item.writer])
        host.queue = [q for q in host.queue if q.writer != item.writer or q.tag > host.confirmed[item.writer]]

    def known(self, host: Host) -> tuple[Confirmed, ...]:
        return tuple(Confirmed(writer, tag) for writer, tag in host.confirmed.items())

    def beat(self, host: Host) -> None:
        if host.connected:
            generation = Generation(0) if host.deploy is None else host.deploy.generation
            read = host.deploy is not None and all(offset >= LENGTH for offset in host.offsets.values())
            broken, known, count = host.broken == generation > 0, self.known(host), len(host.offsets)
            beat = m.Heartbeat(
                host.id, generation, read and self.sealed, broken, known, m.WorkerProgress(), partitions=count
            )
            host.outbox.append(beat)

    # Order

    def lucky(self) -> bool:
        return self.calm or self.random.random() < 0.7

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for driver in self.drivers:
            for host in driver.hosts.values():
                if host.sealing:
                    found.append(lambda h=host: self.seal(h))  # type: ignore[misc]
                if host.queue and self.sink_up:
                    found.append(lambda h=host: self.deliver(h))  # type: ignore[misc]
                if host.inbox:
                    found.append(lambda h=host: self.read_inbox(h))  # type: ignore[misc]
                if host.outbox and driver.outcome is None:
                    found.append(lambda d=driver, h=host: self.hear(d, h))  # type: ignore[misc]
            if driver.outcome is None:
                found += [lambda d=driver: d.results.pop(0)()] if driver.results else []  # type: ignore[misc]
                found += [lambda d=driver: self.happen(d)] if driver.events else []  # type: ignore[misc]
        return found

    def happen(self, driver: Driver) -> None:
        driver.events.pop(self.random.randrange(len(driver.events)))()

    def hear(self, driver: Driver, host: Host) -> None:
        message = host.outbox.pop(0)
        if host.connected:
            self.perform(driver, *master.step(driver.state, message, Moment(self.now)))

    def pass_time(self) -> None:
        self.now += self.random.choice([0.25, 1.0, 2.0])
        for driver in self.drivers:
            if driver.outcome is None:
                for host in driver.hosts.values():
                    self.read_source(host)
                    if self.calm or self.random.random() < 0.9:
                        self.beat(host)
                self.perform(driver, *master.step(driver.state, Tick(), Moment(self.now)))
                self.perform(driver, driver.state, repeated(driver.state))

    def trouble(self) -> None:
        """Something goes wrong, or input arrives."""
        driver = self.drivers[-1]
        live = [host for host in driver.hosts.values() if host.connected]
        match self.random.randrange(10):
            case 0 | 1 if live:
                self.disconnect(driver, self.random.choice(live))
            case 2:
                self.sink_up = self.random.random() < 0.3
            case 3 if len(self.drivers) < 4:
                self.take_over()
            case 4 if live:
                host = self.random.choice(live)
                host.broken = 0 if host.deploy is None else host.deploy.generation
            case 5 if live:
                host = self.random.choice(live)
                if host.deploy is not None:
                    error = Unavailable("the store is away", next_step="wait").report()
                    host.outbox.append(m.Failed(host.id, host.deploy.generation, error, False))
            case 6 if not self.sealed and self.partitions < PARTITIONS_MAX:
                self.partitions += 1
            case 7:
                self.sealed = self.sealed or self.random.random() < 0.1
            case _:
                self.readable = min(LENGTH, self.readable + self.random.randint(0, 4))

    def step(self) -> None:
        chance, choices = self.random.random(), self.choices()
        if chance < 0.06:
            self.trouble()
        elif chance < 0.2 or not choices:
            self.pass_time()
        else:
            self.random.choice(choices)()

    def settle(self) -> None:
        """All trouble ends and so does the input: the job must finish."""
        self.calm, self.sink_up, self.readable, self.sealed = True, True, LENGTH, True
        job = reduce(joblog.fold, self.log, None)
        if all(driver.outcome is not None for driver in self.drivers) and (job is None or not job.finished):
            self.take_over()
        for _ in range(30_000):
            if choices := self.choices():
                self.random.choice(choices)()
            else:
                self.pass_time()
            if all(driver.outcome is not None for driver in self.drivers):
                return
        raise AssertionError(f"the job does not finish although nothing is wrong: {self.drivers[-1].state.phase}")


def play(seed: int, steps: int, widths: tuple[int, ...]) -> World:
    world = World(seed, widths)
    for _ in range(steps):
        world.step()
    world.settle()
    return world


def check(world: World) -> None:
    job = reduce(joblog.fold, world.log, None)
    assert job is not None and job.finished
    for partition in range(world.partitions):
        assert [n for p, n in world.rows if p == partition] == list(range(LENGTH))
    outcomes: list[Any] = [driver.outcome for driver in world.drivers]
    assert "failed" not in outcomes


class TestDriversAndWorkers:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.integers(0, 600), st.integers(1, 3))
    def test_every_number_is_delivered_once_and_in_order(self, seed: int, steps: int, parallelism: int) -> None:
        """P4, P5, P6, P8, P9, P12, P13, P18 under lost workers, drivers, replies, and a sink that comes and goes."""
        check(play(seed, steps, (parallelism,)))

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.integers(0, 600), st.lists(st.integers(1, 4), min_size=2, max_size=4))
    def test_every_number_is_delivered_once_over_changes_of_parallelism(
        self, seed: int, steps: int, widths: list[int]
    ) -> None:
        """P20: nothing of the new writers before all older writers' output is in."""
        check(play(seed, steps, tuple(widths)))
