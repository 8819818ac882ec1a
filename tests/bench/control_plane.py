"""A control plane without Spark: checkpoints, masters and logs of jobs with very many workers and epochs."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.bases import advanced
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.ports import ObjectStore
from holdfast.runtime.driver.state import Hosted, Master, Rules, Running
from holdfast.runtime.wire import messages as m
from holdfast.state.keys.keygroups import range_of

UUID, GENERATION = JobUuid("6f1d2c9e000040008000000000000001"), Generation(1)
KEY_GROUPS = 4_096
SEGMENTS = 32
"""Of each subtask: half as many as trigger a merge."""
BASE_EPOCH = Epoch(1)


def ranges(workers: int) -> tuple[tuple[int, int], ...]:
    """Return the key groups of each subtask."""
    return tuple(range_of(i, workers, KEY_GROUPS) for i in range(workers))


def blob(path: str) -> ObjectRef:
    """Return a reference as long as a real one."""
    return ObjectRef(path, 4_096, hashlib.sha256(path.encode()).hexdigest())


def segment_of(epoch: int, worker: int) -> SegmentRef:
    """Return the segment of one worker in one epoch."""
    path = f"segments/{GENERATION:08d}/{epoch:012d}/{worker:012x}.segment"
    return SegmentRef(Epoch(epoch), Epoch(epoch - 1), blob(path))


def manifest_of(epoch: int, workers: int, segments: int = SEGMENTS) -> Manifest:
    """Return a checkpoint in which every subtask has a base, segments, a partition and undelivered output."""
    state = []
    for worker, owned in enumerate(ranges(workers)):
        handle = SnapshotHandle(Subtask(worker), owned, (blob(f"base/{worker}"),), BASE_EPOCH, ())
        for each in range(max(2, epoch - segments + 1), epoch + 1):
            handle = advanced(handle, segment_of(each, worker), None)
        state.append(handle)
    tag = Tag(Timeline(1), Epoch(epoch))
    writers = [Writer("out", Subtask(worker)) for worker in range(workers)]
    staged = f"staged/{GENERATION:08d}/{epoch:012d}"
    return Manifest(
        UUID,
        GENERATION,
        Timeline(1),
        Epoch(epoch),
        Epoch(epoch - 1),
        workers,
        KEY_GROUPS,
        tuple(SourcePosition("s", p, epoch * 1_000, subtask=Subtask(p)) for p in range(workers)),
        tuple(state),
        tuple(Pending(w, tag, Staged((blob(f"{staged}/{n:012x}-out.arrow"),), 100)) for n, w in enumerate(writers)),
        tuple(Confirmed(w, replace(tag, epoch=Epoch(epoch - 1))) for w in writers),
        (),
    )


def master_of(workers: int, base: Manifest) -> Master:
    """Return a master whose workers have all registered."""
    rules = Rules(
        name="job",
        job_uuid=UUID,
        host="here",
        key_groups=KEY_GROUPS,
        key_ranges=ranges(workers),
        partitions={"s": tuple(range(base.parallelism))},
        operators=(),
        checkpoint_every=1.0,
        silent_after=5.0,
        epoch_deadline=30.0,
        redeploy_every=10.0,
        restart_failures_max=3,
        restart_window=60.0,
        restart_backoff_first=0.5,
        restart_backoff_max=4.0,
    )
    recent = joblog.RECENT_KEPT
    done = tuple(completed(epoch) for epoch in range(base.epoch - recent, base.epoch + 1))
    job = joblog.Job(UUID, "job", KEY_GROUPS, 0, 9, GENERATION, owner="d", first_epoch=Epoch(1), completed=done)
    workers_of = {
        WorkerId(f"w{i}"): Hosted(
            ("10.0.0.1", 9_000 + i), "here", i, i, 0.0, heard(f"w{i}"), role=m.ActiveRole(Subtask(i))
        )
        for i in range(workers)
    }
    epochs = coordinator.start(workers, base.epoch, Epoch(base.epoch + 1))
    confirmed = {each.writer: each.tag for each in base.confirmed}
    phase = Running(base, 0.0, epochs, 0.0, base)
    return Master(rules, append.Quiet("d", job), phase, workers_of, confirmed=confirmed)


def heard(worker: str) -> m.Heartbeat:
    return m.Heartbeat(WorkerId(worker), GENERATION, False, False, (), m.WorkerProgress())


def completed(epoch: int) -> joblog.Completed:
    """Return a completed checkpoint as the fold holds it."""
    path = f"manifests/{GENERATION:08d}/{epoch:012d}-{'a' * 32}.json"
    body = joblog.CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), ObjectRef(path, 1_000, "5" * 64), 90, 10, 20)
    return joblog.Completed(body, GENERATION, Timeline(1), epoch * 1_000_000)


class LongLog:
    """A job log that grows by checkpoints, as a driver appends them."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.job: joblog.Job | None = None
        self.append(joblog.JobCreated("job", KEY_GROUPS))
        self.append(joblog.GenerationStarted(Epoch(1), NO_EPOCH, "here", "started"))

    def append(self, body: joblog.Body, at_us: int = 0) -> joblog.Job:
        """Append a record; return the fold."""
        job = self.job
        seq, head = (1, "") if job is None else (job.next_seq, job.head)
        generation = Generation(0 if seq == 1 else 1)
        record = joblog.Record(seq, UUID, generation, Timeline(1), "a" * 32, at_us, body, prev=head)
        self.store.create(record.path, joblog.encode(record))
        self.job = joblog.fold(job, record)
        return self.job

    def complete(self) -> joblog.Job:
        """Append the next checkpoint."""
        assert self.job is not None
        return self.append(completed(self.job.base_epoch + 1).body)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that Python's objects took while this ran, above those before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
