"""Runs of the job master under a test: one driver with its log and its manifests, whose events the test gives."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, SubtaskPart
from holdfast.errors import ErrorReport
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import (
    CreateRecord,
    Effect,
    LaunchEnded,
    ListPartitions,
    ManifestLoaded,
    ManifestStored,
    Moment,
    RecordFound,
    Send,
    SourcesListed,
    Step,
    StoreManifest,
    Tick,
    WorkerStreamClosed,
)
from holdfast.runtime.driver.invariants import validate
from holdfast.runtime.driver.partitions import counts_of
from holdfast.runtime.driver.requests import stop
from holdfast.runtime.driver.state import Master, Rules
from holdfast.runtime.wire import messages as m

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
DRIVER = "driver"
UUID = JobUuid("u" * 32)
OUT0 = Writer("out", Subtask(0))

RULES = Rules(
    name="job",
    job_uuid=UUID,
    host="here",
    key_groups=128,
    key_ranges=((0, 64), (64, 128)),
    partitions={"s": (0, 1, 2)},
    operators=(),
    checkpoint_every=10.0,
    silent_after=5.0,
    epoch_deadline=30.0,
    redeploy_every=10.0,
    restart_failures_max=3,
    restart_window=60.0,
    restart_backoff_first=0.5,
    restart_backoff_max=4.0,
)
"""Two subtasks. Three failures are forgiven within a minute."""


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 10, "0" * 64)


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def staged(name: str) -> Staged:
    return Staged((blob(name),), 1)


def report(what: str, kind: str = "unavailable") -> ErrorReport:
    return ErrorReport(kind=kind, what=what, not_done="nothing was done", next="see the cause")


class Run:
    """One driver: takes events, keeps the state, the log and the stored objects; returns the effects."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules, self.now = rules, 100.0
        self.lists = True
        """Listings of the sources are answered as they are asked for: nothing is new."""
        self.state: Master
        self.log: list[joblog.Record] = []
        self.manifests: list[Manifest] = []
        self.effects: list[Effect] = []

    def take(self, step: Step) -> list[Effect]:
        self.state, effects = step
        validate(self.state)
        if self.lists and (asked := [effect for effect in effects if isinstance(effect, ListPartitions)]):
            effects = [effect for effect in effects if effect not in asked]
            self.effects += effects
            return effects + self.answer(asked[0])
        self.effects += effects
        return effects

    def answer(self, asked: ListPartitions, *new: SourcePosition) -> list[Effect]:
        """The sources are listed: they have the known partitions and these."""
        known = (SourcePosition(source, p, 0) for source, partitions in asked.known.items() for p in partitions)
        return self.take(master.step(self.state, SourcesListed(asked.number, (*known, *new)), Moment(self.now)))

    def begin(self, owner: str = DRIVER) -> list[Effect]:
        job = reduce(joblog.fold, self.log, None)
        return self.take(master.begin(self.rules, owner, job, "started", 0))

    def append(self) -> list[Effect]:
        """The record in flight reaches the log, and its number is read."""
        record = next(e.record for e in reversed(self.effects) if isinstance(e, CreateRecord))
        if record.seq == len(self.log) + 1:
            self.log.append(record)
        return self.take(master.step(self.state, RecordFound(self.log[record.seq - 1]), Moment(self.now)))

    def load(self) -> list[Effect]:
        return self.take(master.step(self.state, ManifestLoaded(self.manifests[-1]), Moment(self.now)))

    def store(self) -> list[Effect]:
        manifest = next(e.manifest for e in reversed(self.effects) if isinstance(e, StoreManifest))
        self.manifests.append(manifest)
        return self.take(
            master.step(self.state, ManifestStored(manifest, blob(f"manifests/{manifest.epoch}")), Moment(self.now))
        )

    def register(self, *workers: WorkerId) -> list[Effect]:
        effects = []
        for worker in workers:
            launch = min(self.state.launching, default=99)
            register = m.Register(worker, launch, "here", 1, "boot", ("here", ord(worker)))
            effects += self.take(master.step(self.state, register, Moment(self.now)))
        return effects

    def hear(self, message: m.FromWorker) -> list[Effect]:
        return self.take(master.step(self.state, message, Moment(self.now)))

    def ready(self, *workers: WorkerId) -> None:
        for worker in workers:
            self.hear(m.Ready(worker, self.generation, "empty", 1))

    def beat(self, worker: WorkerId, *, ended: bool = False, broken: bool = False, delivered: int = 0) -> None:
        done = (Confirmed(OUT0, tag(delivered)),) if delivered else ()
        self.hear(self.heartbeat(worker, ended, broken, done))

    def heartbeat(
        self, worker: WorkerId, ended: bool = False, broken: bool = False, done: tuple[Confirmed, ...] = (), **more: Any
    ) -> m.Heartbeat:
        """A heartbeat about every partition that the subtask has by now."""
        subtask = self.state.workers[worker].subtask
        reads = 0 if subtask is None else counts_of(self.state)[subtask]
        said = {"partitions": reads} | more
        return m.Heartbeat(worker, self.generation, ended, broken, done, m.WorkerProgress(), **said)

    def ack(self, worker: WorkerId, epoch: int, **fields: Any) -> list[Effect]:
        subtask = self.state.workers[worker].subtask
        assert subtask is not None
        known = {"positions": (), "segment": None, "staged": {}, "delivered": ()} | fields
        return self.hear(m.Ack(worker, self.generation, Epoch(epoch), SubtaskPart(subtask, **known)))

    def fail(self, worker: WorkerId, what: str, *, permanent: bool = False) -> list[Effect]:
        error = report(what)
        return self.hear(m.Failed(worker, self.generation, error, permanent))

    def lose(self, worker: WorkerId, why: str = "stream closed") -> list[Effect]:
        return self.take(master.step(self.state, WorkerStreamClosed(worker, why), Moment(self.now)))

    def end_launch(self, number: int, error: str | None = "no room") -> list[Effect]:
        return self.take(master.step(self.state, LaunchEnded(number, error), Moment(self.now)))

    def pass_time(self, seconds: float, *, alive: tuple[WorkerId, ...] = (A, B, C)) -> list[Effect]:
        """Time passes; the named workers send a heartbeat just before it is checked."""
        effects: list[Effect] = []
        end = self.now + seconds
        while True:
            self.now = min(end, self.now + 1.0)
            workers = {w: replace(h, seen=self.now) if w in alive else h for w, h in self.state.workers.items()}
            self.state = replace(self.state, workers=workers)
            before = self.state.listings
            effects += self.take(master.step(self.state, Tick(), Moment(self.now)))
            if self.lists and self.state.listings > before:
                effects += self.take(master.step(self.state, Tick(), Moment(self.now)))
            if self.now >= end:
                return effects

    @property
    def generation(self) -> Generation:
        return self.state.job.generation


def opened(rules: Rules = RULES) -> Run:
    """The first generation is in the log; no worker has come yet."""
    run = Run(rules)
    run.begin()
    run.append()
    run.append()
    return run


def running(rules: Rules = RULES) -> Run:
    """Both subtasks are ready."""
    run = opened(rules)
    run.pass_time(0.0)
    run.register(A, B)
    run.ready(A, B)
    return run


def acked(run: Run, epoch: int = 1, last: bool = False, **of_a: Any) -> list[Effect]:
    """The next epoch is triggered and both workers ack it."""
    if last:
        run.take(stop(run.state))
    run.pass_time(10.0)
    run.ack(A, epoch, **of_a)
    return run.ack(B, epoch)


def completed(run: Run, epoch: int = 1, **fields: Any) -> list[Effect]:
    acked(run, epoch, **fields)
    run.store()
    return run.append()


def replaced(run: Run, worker: WorkerId = C) -> None:
    """The recovery that is due runs to its end, with a worker that comes up."""
    run.pass_time(0.0)
    run.append()
    if run.manifests:
        run.load()
    run.register(worker)
    run.ready(*run.state.workers)


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect.message) if isinstance(effect, Send) else type(effect) for effect in effects]
