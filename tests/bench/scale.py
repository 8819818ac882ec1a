"""What a driver with W workers and a job of many epochs costs, from the real step functions and records.

`Epochs` plays epochs against a master: its timer, the acks of all workers as bytes, the manifest, the record. `aged`
makes the log of a job that has closed very many epochs, with the default retention. No Spark and no network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from control_plane import GENERATION, UUID, LongLog, blob, completed, manifest_of, master_of, segment_of
from counted import BulkObjects

from holdfast.checkpoint import coordinator, folds, joblog
from holdfast.checkpoint.catalogue import Retention, expirable, log_is_long
from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.checkpoint.repository import Repository
from holdfast.model import NO_EPOCH, Epoch, Generation, SourcePosition, Staged, Subtask, Tag, Timeline, WorkerId, Writer
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import (
    CreateRecord,
    Dismiss,
    Effect,
    LoadManifest,
    ManifestLoaded,
    ManifestStored,
    Moment,
    RecordFound,
    Send,
    Step,
    StoreManifest,
    Tick,
    WorkerStreamClosed,
)
from holdfast.runtime.driver.state import Deployed, Master, Running
from holdfast.runtime.wire import messages as m

WORKERS = 10, 50, 200, 1_000
OWNER = "a" * 32
AT_US = 1_000_000
FIRST = 100
"""The epoch of the checkpoint from which the master runs."""


@dataclass(frozen=True)
class Cost:
    """Figures for one number of workers; times are those of the processor, in seconds."""

    workers: int
    ack_s: float
    """Per ack, decoded and taken."""
    epoch_s: float
    """Per epoch without the acks: triggers, the manifest, its record, announcements."""
    heartbeat_s: float
    recovery_s: float
    """From the loss of a worker until every worker is told what to run."""
    manifest_bytes: int
    """Average per epoch, as stored."""
    requests: float
    """Of the driver per epoch."""


class Epochs:
    """A running master whose workers are all ready, and the store of its job."""

    def __init__(self, workers: int) -> None:
        self.workers, self.now, self.store = workers, 0.0, BulkObjects()
        base = manifest_of(FIRST, workers)
        state = master_of(workers, base)
        assert isinstance(state.phase, Running)
        hosted = {worker: replace(each, ready=True) for worker, each in state.workers.items()}
        self.state = replace(state, workers=hosted)
        self.repository = Repository(self.store)
        for number in (1, self.state.job.next_seq - 1):  # what a driver looks for before it creates a record
            self.store.put(joblog.record_path(number), b"not read")
        self.store.requests.clear()
        self.spent = Counter[str]()
        self.sizes = list[int]()

    def _timed(self, what: str, step: Callable[[], tuple[Master, list[Effect]]]) -> list[Effect]:
        start = time.process_time()
        self.state, effects = step()
        self.spent[what] += time.process_time() - start  # type: ignore[assignment]
        return effects

    def _heard(self, data: bytes) -> Step:
        return master.step(self.state, m.FROM_WORKER.decode(data), Moment(self.now))

    def epoch(self) -> None:
        """Close one epoch."""
        self.now += 1.0
        sent = self._timed("epoch", lambda: master.step(self.state, Tick(), Moment(self.now, AT_US)))
        epochs = self.state.phase.epochs if isinstance(self.state.phase, Deployed) else None
        assert isinstance(epochs, coordinator.Collecting) and len(sent) == self.workers
        effects = list[Effect]()
        for data in self._acks(epochs.barrier.epoch):
            effects = self._timed("ack", lambda d=data: self._heard(d))  # type: ignore[misc]
        (stores,) = effects
        assert isinstance(stores, StoreManifest)
        start = time.process_time()
        ref = self.repository.store_manifest(stores.manifest, OWNER)
        self.spent["epoch"] += time.process_time() - start  # type: ignore[assignment]
        self.sizes.append(ref.size)
        manifest = stores.manifest
        self._append(
            self._timed(
                "epoch", lambda: master.step(self.state, ManifestStored(manifest, ref), Moment(self.now, AT_US))
            )
        )
        assert self.state.job.base_epoch == epochs.barrier.epoch

    def _append(self, effects: list[Effect]) -> list[Effect]:
        (create,) = effects
        assert isinstance(create, CreateRecord)
        record = self.repository.create_record(create.record)
        return self._timed("epoch", lambda: master.step(self.state, RecordFound(record), Moment(self.now, AT_US)))

    def _acks(self, epoch: Epoch) -> list[bytes]:
        """Return what the workers send: a segment, output, a position and a confirmation each."""
        made = []
        for n in range(self.workers):
            subtask, tag = Subtask(n), Tag(Timeline(1), Epoch(epoch - 1))
            position = SourcePosition("s", n, epoch * 1_000, subtask=subtask)
            output = Staged((blob(f"staged/{GENERATION:08d}/{epoch:012d}/{n:012x}-out.arrow"),), 100)
            delivered = (Confirmed(Writer("out", subtask), tag),)
            part = SubtaskPart(subtask, (position,), segment_of(epoch, n), {"out": output}, delivered)
            made.append(msgspec.msgpack.encode(m.Ack(WorkerId(f"w{n}"), self.state.job.generation, epoch, part)))
        return made

    def heartbeats(self) -> None:
        """Take a heartbeat of every worker."""
        for n in range(self.workers):
            beat = m.Heartbeat(
                WorkerId(f"w{n}"), self.state.job.generation, False, False, (), m.WorkerProgress(), partitions=1
            )
            data = msgspec.msgpack.encode(beat)
            self._timed("heartbeat", lambda d=data: self._heard(d))  # type: ignore[misc]

    def recovery(self) -> None:
        """Lose a worker, replace it, and deploy the next generation."""
        lost, before = WorkerId("w0"), self.spent["epoch"]
        hosted = self.state.workers[lost]
        effects = self._timed(
            "epoch", lambda: master.step(self.state, WorkerStreamClosed(lost, "its stream closed"), Moment(self.now))
        )
        assert any(isinstance(each, Dismiss) for each in effects)
        effects = self._timed("epoch", lambda: master.step(self.state, Tick(), Moment(self.now, AT_US)))
        (load,) = self._append([each for each in effects if isinstance(each, CreateRecord)])
        assert isinstance(load, LoadManifest)
        base = self.repository.load_manifest(load.ref)
        new = m.Register(WorkerId("new"), self.state.launches, hosted.host, 1, "boot", hosted.address)
        self._timed("epoch", lambda: master.step(self.state, new, Moment(self.now)))
        deployed = self._timed("epoch", lambda: master.step(self.state, ManifestLoaded(base), Moment(self.now)))
        assert sum(isinstance(each, Send) and isinstance(each.message, m.Deploy) for each in deployed) == self.workers
        self.spent["recovery"] = self.spent["epoch"] - before


def cost(workers: int, epochs: int) -> Cost:
    """Play so many epochs, heartbeats, and a recovery."""
    plane = Epochs(workers)
    for _ in range(epochs):
        plane.epoch()
    spent, requests = Counter(plane.spent), plane.store.requests.total()
    plane.heartbeats()
    plane.recovery()
    return Cost(
        workers,
        spent["ack"] / epochs / workers,
        spent["epoch"] / epochs,
        plane.spent["heartbeat"] / workers,
        plane.spent["recovery"],
        sum(plane.sizes) // epochs,
        requests / epochs,
    )


def aged(epochs: int, rule: Retention) -> tuple[BulkObjects, joblog.Job]:
    """Return the log of a job that has closed an epoch a second, so many, with what retention has left of it."""
    store = BulkObjects()
    log, repository, kept, stored = LongLog(store), Repository(store), set[int](), 0
    for epoch in range(1, epochs + 1):
        job = log.append(completed(epoch).body, at_us=epoch * 1_000_000)
        if epoch % 60 == 0 and (through := expirable(job, rule, epoch * 1_000_000)) != NO_EPOCH:
            job = log.append(joblog.Expired(through))
        if epoch % 60 == 0 and log_is_long(job, rule):
            job = log.append(joblog.LogStart(job))
            repository.prune(job.log_start, kept)
        if folds.due(job, stored):
            repository.store_fold(job)
            stored = folds.last_of(job)
    assert log.job is not None and log.job.generation == Generation(1) and log.job.uuid == UUID
    return store, log.job
