"""Stored folds: a start reads what follows the newest one, and finds the same job with and without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from counted import BulkObjects, CountingObjects
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import folds
from holdfast.checkpoint.joblog import (
    Body,
    CheckpointCompleted,
    Expired,
    GenerationStarted,
    Job,
    JobCreated,
    LogStart,
    Record,
    Rewound,
    SavepointNamed,
    encode,
    fold,
    next_first_epoch,
    record_path,
)
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.driver.background.folds import Folds
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.storage.hashed import with_hash
from holdfast.storage.objects import MemoryObjects

UUID = JobUuid("1" * 32)


def rehashed(data: bytes) -> bytes:
    return with_hash(data[: data.rindex(b',"xxh3"')] + b"}")


class Life:
    """A job log that grows; its fold is kept beside it."""

    def __init__(self, store: ObjectStore, owner: str = "a") -> None:
        self.store, self.owner = store, owner
        self.job: Job | None = None
        self.append(JobCreated("hot", 128))
        self.start()

    def append(self, body: Body, owner: str | None = None) -> None:
        job = self.job
        seq, head = (1, "") if job is None else (job.next_seq, job.head)
        generation = Generation(0 if job is None else job.generation + isinstance(body, GenerationStarted | Rewound))
        timeline = Timeline(1 if job is None else job.timeline + isinstance(body, Rewound))
        record = Record(seq, UUID, generation, timeline, owner or self.owner, 0, body, prev=head)
        self.store.create(record_path(seq), encode(record))
        self.job = fold(job, record)

    def start(self) -> None:
        assert self.job is not None
        self.append(GenerationStarted(next_first_epoch(self.job), self.job.base_epoch, "here", "started"))

    def complete(self, count: int = 1) -> None:
        for _ in range(count):
            job = self.job
            assert job is not None
            epoch = Epoch(max(job.first_epoch, job.base_epoch + 1))
            ref = ObjectRef(f"m/{epoch}", 1, f"{self.owner} {epoch}")
            self.append(CheckpointCompleted(epoch, job.base_epoch, ref, 1, 1, 1))

    def expire(self) -> None:
        assert self.job is not None
        if self.job.expired_through < (through := Epoch(self.job.base_epoch - 1)):
            self.append(Expired(through))

    def name(self) -> None:
        assert self.job is not None
        if self.job.completed and self.job.savepoint(name := f"v{self.job.base_epoch}") is None:
            self.append(SavepointNamed(self.job.base_epoch, name), "somebody")

    def rewind(self) -> None:
        assert self.job is not None
        if self.job.completed:
            base = self.job.completed[len(self.job.completed) // 2].body.epoch
            self.append(Rewound(base, next_first_epoch(self.job), "here", "back"))

    def log_start(self) -> None:
        assert self.job is not None
        self.append(LogStart(self.job))

    def prune(self) -> None:
        assert self.job is not None
        Repository(self.store).prune(self.job.log_start, set())

    def store_fold(self) -> None:
        assert self.job is not None
        Repository(self.store).store_fold(self.job)


def read(store: ObjectStore) -> Job | None:
    return Repository(store).read_log()


def copy_of(store: MemoryObjects, into: MemoryObjects) -> Any:
    for path in store.list(""):
        into.put(path, store.get(path))
    return into


@pytest.fixture
def long() -> Life:
    """1,302 records; folds are stored of the first 502 and the first 1,102."""
    life = Life(BulkObjects())
    life.complete(500)
    life.store_fold()
    life.complete(600)
    life.store_fold()
    life.complete(200)
    return life


class TestReadingFromAFold:
    def test_only_the_records_behind_it_are_read(self, long: Life) -> None:
        store = long.store
        assert isinstance(store, BulkObjects)
        store.requests.clear()
        assert read(store) == long.job
        assert store.requests["get"] < 300, "the records behind the fold, with those read beside them"
        assert store.requests["list"] + store.requests["list after"] == 2 + 1 + 1

    def test_the_requests_of_a_start_grow_with_a_thousandth_of_the_log(self) -> None:
        costs = []
        for records in (5_000, 20_000):
            life = Life(BulkObjects())
            lane = InlineLane()
            stored = Folds(Repository(life.store), lambda lane=lane: lane)  # type: ignore[misc]
            for _ in range(records):
                life.complete()
                assert life.job is not None
                stored.seen(life.job)
                while lane.jobs:
                    lane.step()
                if life.job.next_seq % 100 == 0:
                    life.expire()  # keeps the fold small, as retention does
            assert isinstance(life.store, BulkObjects)
            life.store.requests.clear()
            assert read(life.store) == life.job
            requests = life.store.requests
            costs.append(requests["get"] + requests["list"] + requests["list after"])
        assert costs[1] - costs[0] <= 15_300 / 1_000 + folds.EVERY
        assert max(costs) < 2 * folds.EVERY + 50

    def test_a_short_log_is_read_without_looking_for_a_fold(self) -> None:
        life = Life(CountingObjects())
        life.complete(100)
        assert isinstance(life.store, CountingObjects)
        life.store.requests.clear()
        assert read(life.store) == life.job
        assert life.store.requests == {"list": 2, "get": 103}

    def test_a_log_start_behind_the_fold_counts(self, long: Life) -> None:
        long.expire()
        long.log_start()
        long.prune()
        long.complete(3)
        assert read(long.store) == long.job

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: data[: len(data) // 2],
            lambda data: data.replace(b'"name":"hot"', b'"name":"hat"'),
            lambda data: b"?",
            lambda data: rehashed(data.replace(b'{"v":2', b'{"v":1')),
        ],
        ids=["torn", "a flipped byte", "no JSON", "another version"],
    )
    def test_a_fold_that_cannot_be_used_is_ignored(self, long: Life, spoil: Callable[[bytes], bytes]) -> None:
        for path in long.store.list(folds.FOLDER):
            long.store.put(path, spoil(long.store.get(path)))
        assert isinstance(long.store, BulkObjects)
        long.store.requests.clear()
        assert read(long.store) == long.job
        assert long.store.requests["get"] > 1_302, "all records were read"

    def test_without_folds_all_records_are_read(self, long: Life) -> None:
        for path in long.store.list(folds.FOLDER):
            long.store.delete(path)
        assert read(long.store) == long.job

    def test_a_damaged_fold_leaves_the_older_one(self, long: Life) -> None:
        (_, newest) = long.store.list(folds.FOLDER)
        long.store.put(newest, b"?")
        assert isinstance(long.store, BulkObjects)
        long.store.requests.clear()
        assert read(long.store) == long.job
        assert long.store.requests["get"] < 1_100

    def test_a_fold_of_another_history_is_ignored(self, long: Life) -> None:
        """A root was restored from a copy, and the job went another way from there: same UUID, other records."""
        other = Life(BulkObjects(), owner="b")
        other.complete(1_300)
        for path in long.store.list(folds.FOLDER):
            other.store.put(path, long.store.get(path))
        assert read(other.store) == other.job != long.job

    def test_a_fold_beyond_the_end_of_the_log_is_ignored(self, long: Life) -> None:
        shorter = copy_of(long.store, BulkObjects())  # type: ignore[arg-type]
        for number in range(900, 1_400):
            shorter.delete(record_path(number))
        shorter.put(folds.path_of(1_300), shorter.get(folds.path_of(1_102)))
        shorter.requests.clear()
        job = read(shorter)
        assert job is not None and job.next_seq == 900
        assert shorter.requests["get"] < 600, "the fold of 502 records was used"

    def test_a_missing_record_behind_the_fold_is_damage(self, long: Life) -> None:
        long.store.delete(record_path(1_200))
        with pytest.raises(Damaged, match="1200"):
            read(long.store)

    def test_a_damaged_record_behind_the_fold_is_damage(self, long: Life) -> None:
        long.store.put(record_path(1_200), long.store.get(record_path(1_200)).replace(b"hot", b"hat") + b" ")
        with pytest.raises(Damaged):
            read(long.store)

    def test_records_that_a_long_read_gets_beside_it_do_not_matter(self, long: Life) -> None:
        """They are below the fold, and no reader needs them."""
        for number in range(1_050, 1_102):
            long.store.put(record_path(number), b"?")
        assert read(long.store) == long.job

    def test_damage_below_the_fold_is_found_where_every_record_is_asked_for(self, long: Life) -> None:
        assert Repository(long.store).read_log(every_record=True) == long.job
        long.store.delete(record_path(700))
        assert read(long.store) == long.job
        with pytest.raises(Damaged, match=r"not log/0+700\.json"):
            Repository(long.store).read_log(every_record=True)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(["complete", "expire", "name", "rewind", "start", "log_start", "prune", "fold"])))
    def test_the_fold_of_any_history_is_that_of_its_records(self, steps: list[str]) -> None:
        """The steps are repeated until the log is long enough for folds to be looked for."""
        life = Life(BulkObjects())
        life.complete(folds.EVERY + 20)
        for step in steps:
            {"fold": life.store_fold}.get(step, getattr(life, step, life.complete))()
        assert read(life.store) == life.job
        bare = copy_of(life.store, MemoryObjects())  # type: ignore[arg-type]
        for path in bare.list(folds.FOLDER):
            bare.delete(path)
        assert read(bare) == life.job


class TestStoringAFold:
    def test_the_newest_two_stay(self, long: Life) -> None:
        assert long.store.list(folds.FOLDER) == [folds.path_of(502), folds.path_of(1_102)]
        long.store_fold()
        assert long.store.list(folds.FOLDER) == [folds.path_of(1_102), folds.path_of(1_302)]

    def test_a_driver_leaves_the_folds_beyond_its_own_and_keeps_its_own(self, long: Life) -> None:
        """They are those of its successor, or of a history that a restored root no longer has."""
        early = Life(MemoryObjects())
        early.complete(10)
        assert early.job is not None
        Repository(long.store).store_fold(early.job)
        assert long.store.list(folds.FOLDER) == [folds.path_of(number) for number in (12, 502, 1_102)]
        assert read(long.store) == long.job

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_operation_leaves_a_log_that_reads_the_same(self, after: bool) -> None:
        outcomes = set()
        for operations in range(1, 20):
            life = Life(BulkObjects())
            for _ in range(3):
                life.complete(510)
                life.store_fold()
            life.complete(30)
            before = life.store.list(folds.FOLDER)
            assert life.job is not None
            try:
                Repository(Dying(life.store, operations, after=after)).store_fold(life.job)
            except Unavailable:
                assert read(life.store) == life.job
                outcomes.add(life.store.list(folds.FOLDER) == before)
                life.store_fold()
                assert len(life.store.list(folds.FOLDER)) == folds.KEPT
                continue
            assert outcomes == {False} if after else {False, True}
            return
        raise AssertionError("it never came to its end")

    def test_one_is_due_when_enough_records_follow_the_last_one_and_the_log_start(self) -> None:
        life = Life(MemoryObjects())
        life.complete(folds.EVERY - 3)
        assert life.job is not None and not folds.due(life.job, 0)
        life.complete()
        assert folds.due(life.job, 0) and not folds.due(life.job, 1)
        life.expire()
        life.log_start()
        assert not folds.due(life.job, 0)

    def test_one_that_could_not_be_stored_is_stored_with_the_next_record(self) -> None:
        life, lane = Life(MemoryObjects()), InlineLane()
        life.complete(folds.EVERY)
        assert life.job is not None
        dying = Dying(life.store, 1, after=False)
        stored = Folds(Repository(dying), lambda: lane)
        stored.seen(life.job)
        stored.seen(life.job)
        lane.step()
        assert not lane.jobs and life.store.list(folds.FOLDER) == []
        life.complete()
        dying.left = 100
        stored.seen(life.job)
        lane.step()
        stored.seen(life.job)
        assert not lane.jobs and life.store.list(folds.FOLDER) == [folds.path_of(folds.EVERY + 3)]


class Dying:
    """A store whose process dies at the k-th operation: before it takes effect, or after."""

    def __init__(self, store: ObjectStore, operations: int, *, after: bool) -> None:
        self.store, self.left, self.after = store, operations, after

    def _dies(self, operation: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left > 0:
            return operation()
        if self.left == 0 and self.after:
            operation()
        raise Unavailable("the process died", next_step="start it again")

    def create(self, path: str, data: bytes) -> None:
        self._dies(lambda: self.store.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._dies(lambda: self.store.put(path, data))

    def get(self, path: str) -> bytes:
        return bytes(self._dies(lambda: self.store.get(path)))

    def list(self, prefix: str) -> list[str]:
        return list(self._dies(lambda: self.store.list(prefix)))

    def delete(self, path: str) -> None:
        self._dies(lambda: self.store.delete(path))


def test_errors_of_a_lane_that_are_no_failures_of_the_store_end_the_run() -> None:
    life, lane = Life(MemoryObjects()), InlineLane()
    life.complete(folds.EVERY)
    assert life.job is not None

    class Broken(MemoryObjects):
        def create(self, path: str, data: bytes) -> None:
            raise ValueError("a fault of the program")

    Folds(Repository(Broken()), lambda: lane).seen(life.job)
    with pytest.raises(ValueError, match="a fault of the program"):
        lane.step()
    assert not issubclass(ValueError, HoldfastError)
