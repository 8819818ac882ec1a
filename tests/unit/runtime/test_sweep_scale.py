"""A sweep deletes in bulk where the store can, costs little per object, and never deletes what a checkpoint needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from counted import BulkObjects, CountingObjects, instructions

from holdfast.checkpoint import joblog
from holdfast.checkpoint.catalogue import FOLDERS, ObjectCatalogue
from holdfast.checkpoint.joblog import CheckpointCompleted, Completed, Job, LogStart, Record, record_path
from holdfast.checkpoint.manifest import Manifest, encode, named_in
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Unavailable
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SegmentRef,
    SnapshotHandle,
    Subtask,
    Timeline,
)
from holdfast.runtime.driver.background.sweep import Sweep
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.storage.bulk import DELETED_MAX
from holdfast.storage.objects import MemoryObjects

UUID, GENERATION = JobUuid("1" * 32), Generation(3)


@dataclass
class History:
    """A store with the objects of a job, and its fold. Every manifest names the newest segments of each worker."""

    store: MemoryObjects
    job: Job
    named: frozenset[str]
    """What the retained checkpoints need."""


def history(store: MemoryObjects, workers: int, epochs: int, retained: int, reach: int = 4) -> History:
    repository, kept, named = Repository(store), list[Completed](), set[str]()
    for epoch in range(1, epochs + 1):
        for worker in range(workers):
            store.put(segment_path(epoch, worker), b"rows")
        store.put(f"staged/{GENERATION:08d}/{epoch:012d}/orphan.arrow", b"given up")
        manifest = manifest_of(epoch, workers, reach)
        ref = repository.store_manifest(manifest, "a")
        if epoch > epochs - retained:
            body = CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), ref, 1, 1, 1)
            kept.append(Completed(body, GENERATION, Timeline(1), 0))
            named |= set(named_in(encode(manifest), ref).paths)
    job = Job(UUID, "hot", 1_024, 0, next_seq=epochs + 3, generation=GENERATION, completed=tuple(kept))
    return History(store, replace(job, expired_through=Epoch(epochs - retained)), frozenset(named))


def segment_path(epoch: int, worker: int) -> str:
    return f"segments/{GENERATION:08d}/{epoch:012d}/w{worker}.segment"


def manifest_of(epoch: int, workers: int, reach: int) -> Manifest:
    state = tuple(
        SnapshotHandle(
            Subtask(w),
            (w, w + 1),
            (),
            NO_EPOCH,
            tuple(
                SegmentRef(Epoch(e), Epoch(e - 1), ObjectRef(segment_path(e, w), 4, "0" * 64))
                for e in range(max(1, epoch - reach + 1), epoch + 1)
            ),
        )
        for w in range(workers)
    )
    return Manifest(
        UUID, GENERATION, Timeline(1), Epoch(epoch), Epoch(epoch - 1), workers, 1_024, (), state, (), (), ()
    )


def swept(store: Any, job: Job) -> Sweep:
    lane = InlineLane()
    sweep = Sweep(Repository(store), lambda: lane)
    sweep.request(job)
    lane.step()
    return sweep


def left(store: MemoryObjects) -> set[str]:
    return {path for folder in FOLDERS for path in store.list(folder)}


class TestRequests:
    def test_a_sweep_deletes_a_thousand_objects_per_request(self) -> None:
        told = history(BulkObjects(), workers=40, epochs=100, retained=10)
        store = told.store
        assert isinstance(store, BulkObjects)
        doomed = len(left(store)) - len(told.named)
        store.requests.clear()
        assert swept(store, told.job).problem is None
        assert left(store) == told.named
        assert doomed > 3_000 and store.requests["delete"] == 0
        assert store.requests["delete together"] <= doomed / DELETED_MAX + len(FOLDERS)

    def test_a_store_without_bulk_deletions_gets_one_after_the_other(self) -> None:
        told = history(CountingObjects(), workers=4, epochs=10, retained=2)
        assert isinstance(told.store, CountingObjects)
        doomed = len(left(told.store)) - len(told.named)
        told.store.requests.clear()
        swept(told.store, told.job)
        assert left(told.store) == told.named and told.store.requests["delete"] == doomed

    def test_records_before_the_log_start_are_pruned_in_bulk(self) -> None:
        store = BulkObjects()
        job = history(store, 1, 2, 1).job
        for seq in range(1, 1_000):
            body = CheckpointCompleted(Epoch(seq), Epoch(seq - 1), ObjectRef("m", 1, ""), 1, 1, 1)
            store.create(record_path(seq), joblog.encode(Record(seq, UUID, GENERATION, Timeline(1), "a", 0, body)))
        start = Record(1_000, UUID, GENERATION, Timeline(1), "a", 0, LogStart(job))
        store.create(record_path(1_000), joblog.encode(start))
        store.requests.clear()
        swept(store, replace(job, log_start=1_000))
        assert store.list("log") == [record_path(1_000)]
        assert store.requests["delete together"] < 15 and store.requests["get together"] < 15


class TestSteps:
    @staticmethod
    def cost(retained: int) -> int:
        """Return the instructions of finding what expires among so many checkpoints, each with an object of its own."""
        catalogue = ObjectCatalogue()
        told = history(MemoryObjects(), workers=1, epochs=retained, retained=retained, reach=1)
        for each in told.job.completed:
            catalogue.add(named_in(encode(manifest_of(each.body.epoch, 1, 1)), each.body.manifest))
        return instructions(lambda: catalogue.expire(told.job))

    def test_expiry_takes_twice_the_steps_for_twice_the_checkpoints(self) -> None:
        """Four times the steps if every object is compared with every checkpoint."""
        assert self.cost(400) < 2.5 * self.cost(200)


class DyingInBulk(BulkObjects):
    """A bulk store whose client dies at the k-th operation: before it, after it, or in the middle of a deletion."""

    def __init__(self, store: MemoryObjects, operations: int, when: str) -> None:
        super().__init__()
        self._objects, self._lock = store._objects, store._lock
        self.left, self.when = operations, when

    def dies(self, operation: Callable[[], Any], part: Callable[[], Any] = lambda: None) -> Any:
        self.left -= 1
        if self.left > 0:
            return operation()
        if self.left == 0:
            {"before": lambda: None, "after": operation, "in the middle": part}[self.when]()
        raise Unavailable("the process died", next_step="start it again")

    def get(self, path: str) -> bytes:
        return bytes(self.dies(lambda: super(DyingInBulk, self).get(path)))

    def list(self, prefix: str) -> list[str]:
        return list(self.dies(lambda: super(DyingInBulk, self).list(prefix)))

    def get_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        return dict(self.dies(lambda: super(DyingInBulk, self).get_many(paths)))

    def delete_many(self, paths: Sequence[str]) -> None:
        delete = super().delete_many
        self.dies(lambda: delete(paths), lambda: delete(paths[: max(1, len(paths) // 2)]))


class TestCrashes:
    @pytest.mark.parametrize("when", ["before", "after", "in the middle"])
    def test_a_crash_at_any_operation_of_a_sweep_loses_nothing_that_is_needed(self, when: str) -> None:
        for operations in range(1, 60):
            told = history(BulkObjects(), workers=3, epochs=12, retained=3)
            sweep = swept(DyingInBulk(told.store, operations, when), told.job)
            assert told.named <= left(told.store)
            if sweep.problem is None:
                assert left(told.store) == told.named and operations > 8
                return
            assert isinstance(sweep.problem, Unavailable)
            swept(told.store, told.job)
            assert left(told.store) == told.named, "the next sweep deletes what the crash left"
        raise AssertionError("it never came to its end")
