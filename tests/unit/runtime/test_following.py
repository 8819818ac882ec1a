"""The copies of a standby: what advances one, and what makes it start again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from test_state_store import ALL, GROUPS, JOB, SPEC, Worker

from holdfast.errors import Damaged, Unavailable
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
    WorkerId,
)
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.testing.lanes import InlineLanes, VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.compaction import Advanced, reading, restore
from holdfast.runtime.worker.following import RETRY_S, StandbyCopies
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.target import StateTarget
from holdfast.state.changelog import SegmentHeader
from holdfast.state.compact import compact
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.storage.objects import MemoryObjects

ZERO, ONE = Subtask(0), Subtask(1)
STANDBY = WorkerId("standby")


class Root(MemoryObjects):
    """It counts reads, and can be unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.away = False

    def get(self, path: str) -> bytes:
        if self.away:
            raise Unavailable("the root is away", not_done="", next_step="")
        self.read.append(path)
        return super().get(path)


@dataclass
class Locals:
    """The local state of the standby; it counts what is open."""

    opened: int = 0
    open_now: int = 0

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        self.opened += 1
        self.open_now += 1
        identity = Identity(target.job_uuid, target.generation, target.timeline, worker)
        store = StateStore(identity, [SPEC], GROUPS, target.handle.key_groups)
        try:
            restore(store, plan, target, reading(root), advanced)
        except BaseException:
            self._closed()
            raise
        return OpenStore(store, self._closed)

    def _closed(self) -> None:
        self.open_now -= 1


class Job:
    """An active worker whose epochs a standby follows."""

    def __init__(self) -> None:
        self.worker, self.root, self.local, self.clock = Worker(), Root(), Locals(), VirtualClock()
        self.pieces: list[SegmentRef] = []
        self.base: ObjectRef | None = None
        self.base_epoch = NO_EPOCH
        self.lineage: dict[Epoch, str] = {}
        self.lanes = InlineLanes()
        ports = SimpleNamespace(clock=self.clock, store=self.root, local=self.local, lane=self.lanes.lane)
        self.following = StandbyCopies(cast(Plan, None), cast(SubtaskPorts, ports), STANDBY, lambda *_: None)

    def epoch(self, number: int, *numbers: int, deleted: tuple[int, ...] = ()) -> None:
        """Complete an epoch that adds 1 to these keys, after it has deleted others."""
        follows = self.worker.completed
        if deleted:
            self.worker.delete(*deleted)
        if numbers:
            self.worker.add(1, *numbers)
        self.worker.close_epoch(number)
        self._put(SegmentRef(Epoch(number), follows, self._stored(f"segments/{number}", self.worker.segments[number])))
        self.lineage[Epoch(number)] = f"manifest {number}"

    def merge(self, through: int) -> None:
        """Replace the pieces up to this epoch by a base."""
        header = SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(through), NO_EPOCH, WorkerId("w"))
        merged = [Piece(self.root.get(p.object.path), ALL) for p in self.pieces if p.epoch <= through]
        out = Collected()
        compact(header, merged, (SPEC,), out)
        self.base, self.base_epoch = self._stored(f"base/{through}", bytes(out.data)), Epoch(through)
        self.pieces = [piece for piece in self.pieces if piece.epoch > through]
        self.lineage = {epoch: found for epoch, found in self.lineage.items() if epoch >= through}

    def target(self, epoch: int, generation: int = 1, follows: tuple[Subtask, ...] = (ZERO,), **more: Any) -> m.Follow:
        pieces = tuple(piece for piece in self.pieces if piece.epoch <= epoch)
        base = () if self.base is None else (self.base,)
        handle = SnapshotHandle(more.get("subtask", ZERO), ALL, base, self.base_epoch, pieces)
        lineage = more.get("lineage", self.lineage)
        place = JOB, Generation(generation), Timeline(1), Epoch(epoch)
        return m.Follow(*place, m.Standby(follows), handle, dict(lineage))

    def follow(self, epoch: int, **more: Any) -> None:
        self.following.ask(self.target(epoch, **more))
        self.settle()

    def settle(self) -> None:
        while self.following.turn():
            pass

    def counts(self, *numbers: int, subtask: Subtask = ZERO) -> list[int | None]:
        store = self.following._copies[subtask].store
        rows = [store.get_committed(1, (number,)) for number in numbers]
        return [None if row is None else row["count"] for row in rows]

    def _put(self, piece: SegmentRef) -> None:
        self.pieces.append(piece)

    def _stored(self, path: str, data: bytes) -> ObjectRef:
        self.root.put(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())


class Collected:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    job.epoch(1, 1, 2)
    job.epoch(3, 2, 3)
    yield job
    job.following.close()
    assert job.local.open_now == 0


class TestACopy:
    def test_is_restored_once_and_then_reads_only_what_is_new(self, job: Job) -> None:
        job.follow(3)
        assert job.counts(1, 2, 3, 4) == [1, 2, 1, None]
        job.root.read.clear()
        job.epoch(4, 4, deleted=(1,))
        job.follow(4)
        assert job.counts(1, 2, 3, 4) == [None, 2, 1, 1]
        assert job.root.read == ["segments/4"] and job.local.opened == 1

    def test_is_reported_with_what_it_lacks(self, job: Job) -> None:
        job.following.ask(job.target(3))
        size = sum(piece.object.size for piece in job.pieces)
        assert job.following.stock() == (m.StandbyCopy(ZERO, NO_EPOCH, size),)
        job.settle()
        assert job.following.stock() == (m.StandbyCopy(ZERO, Epoch(3), 0),)

    def test_goes_on_in_the_next_generation(self, job: Job) -> None:
        job.follow(3)
        job.epoch(5, 1)
        job.follow(5, generation=2)
        assert job.counts(1) == [2] and job.local.opened == 1

    def test_ignores_requests_of_an_older_generation_or_epoch(self, job: Job) -> None:
        job.epoch(4, 1)
        job.follow(4, generation=2)
        job.follow(3, generation=2)
        job.follow(3, generation=1)
        assert job.following.stock() == (m.StandbyCopy(ZERO, Epoch(4), 0),)

    def test_off_the_lineage_is_restored_again(self, job: Job) -> None:
        """A rewind to epoch 1 leaves epoch 3 behind, although its number and its segment are still there."""
        job.follow(3)
        job.follow(1, generation=2, lineage={Epoch(1): "manifest 1"})
        assert job.counts(1, 2, 3) == [1, 1, None] and job.local.opened == 2

    def test_a_copy_with_another_history_of_the_same_epoch_is_restored_again(self, job: Job) -> None:
        job.follow(3)
        job.epoch(4, 1)
        job.follow(4, lineage={Epoch(3): "another manifest 3", Epoch(4): "manifest 4"})
        assert job.local.opened == 2

    def test_goes_on_from_an_epoch_that_the_driver_does_not_know_it_has_reached(self, job: Job) -> None:
        """The driver names the epoch of the last heartbeat; a request that came before it has brought the copy on."""
        for number in range(4, 8):
            job.epoch(number, 1)
        reported = Epoch(3)
        job.follow(3)
        for number in (5, 6, 7):
            job.follow(number, lineage={each: f"manifest {each}" for each in (reported, Epoch(number))})
        assert job.counts(1) == [5] and job.local.opened == 1
        assert job.following._wanted[ZERO].lineage == {6: "manifest 6", 7: "manifest 7", 3: "manifest 3"}

    def test_does_not_go_on_from_an_epoch_of_another_timeline(self, job: Job) -> None:
        job.follow(1)
        job.follow(3)
        job.epoch(4, 1)
        rewound = job.target(4, lineage={Epoch(1): "manifest 1", Epoch(4): "manifest 4"})
        job.following.ask(msgspec.structs.replace(rewound, generation=Generation(2), timeline=Timeline(2)))
        job.settle()
        assert job.local.opened == 2

    def test_takes_no_base_that_is_newer_than_it(self, job: Job) -> None:
        """A base does not record what was deleted between the copy and the base."""
        job.follow(1)
        job.epoch(4, deleted=(1,))
        job.merge(4)
        job.lineage[Epoch(1)] = "manifest 1"
        job.follow(4)
        assert job.counts(1, 2, 3) == [None, 2, 1] and job.local.opened == 2

    def test_goes_on_over_a_base_that_is_not_newer(self, job: Job) -> None:
        job.follow(3)
        job.merge(3)
        job.epoch(4, 1)
        job.follow(4)
        assert job.counts(1, 2, 3) == [2, 2, 1] and job.local.opened == 1

    def test_is_given_up_once_it_is_not_followed(self, job: Job) -> None:
        job.follow(3, follows=(ZERO, ONE))
        job.follow(3, follows=(ZERO, ONE), subtask=ONE)
        assert job.local.open_now == 2
        job.follow(3, follows=(ONE,), subtask=ONE)
        assert job.local.open_now == 1 and [each.subtask for each in job.following.stock()] == [ONE]

    def test_drops_the_slots_of_deleted_keys(self, job: Job) -> None:
        """Operators do so at barriers, which a copy never sees."""
        for number in range(10, 30):
            new, old = range(number * 2_000, (number + 1) * 2_000), range((number - 1) * 2_000, number * 2_000)
            job.epoch(number, *new, deleted=tuple(old) if number > 10 else ())
            job.follow(number)
        table = job.following._copies[ZERO].store.table(1)
        assert len(table) < 20_000 and job.counts(29 * 2_000, 28 * 2_000) == [1, None]

    def test_the_copy_furthest_behind_advances_first(self, job: Job) -> None:
        job.follow(3, follows=(ZERO, ONE))
        job.epoch(4, 1)
        for subtask in (ZERO, ONE):
            job.following.ask(job.target(4, follows=(ZERO, ONE), subtask=subtask))
        assert job.following.turn()
        assert [copy.epoch for copy in job.following.stock()] == [3, 4]

    def test_is_restored_where_the_pieces_are_too_large_to_be_open_together(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job.follow(3)
        monkeypatch.setattr("holdfast.runtime.worker.following.OPENED_BYTES_MAX", 10)
        job.epoch(4, 1)
        job.follow(4)
        assert job.counts(1) == [2] and job.local.opened == 2


class TestFailures:
    def test_failures_of_one_copy_do_not_delay_another(self, job: Job) -> None:
        job.follow(3, follows=(ZERO, ONE))
        missing = job.target(3, follows=(ZERO, ONE), subtask=ONE)
        job.root.away = True
        job.following.ask(missing)
        job.settle()
        job.root.away = False
        job.epoch(4, 1)
        job.follow(4, follows=(ZERO, ONE))
        assert [copy.epoch for copy in job.following.stock()] == [4, 0]

    def test_a_full_disk_stops_the_copies(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        job.follow(3)
        job.epoch(4, 1)
        job.following.ask(job.target(4))
        monkeypatch.setattr(StateStore, "refused", "the disk is full")
        assert not job.following.turn() and job.following.refused == "the disk is full"
        monkeypatch.setattr(StateStore, "refused", "")
        job.settle()
        assert job.counts(1) == [2]

    def test_a_root_that_is_away_leaves_the_copy_as_it_is(self, job: Job) -> None:
        job.follow(3)
        job.epoch(4, 1)
        job.root.away = True
        job.follow(4)
        assert job.following.refused == "the root is away" and job.counts(1) == [1]
        job.root.away = False
        assert not job.following.turn(), "it waits before it tries again"
        job.clock.now += RETRY_S
        job.settle()
        assert job.following.refused == "" and job.counts(1) == [2] and job.local.opened == 1

    def test_a_copy_that_is_not_absorbed_to_the_end_is_discarded(self, job: Job) -> None:
        job.follow(3)
        job.epoch(4, 1)
        job.epoch(5, 1)
        other = Worker()
        other.add(1, 9)
        other.close_epoch(5)
        stranger = other.segments[5].replace(JOB.encode(), JobUuid("joc").encode())
        broken = job.pieces[-1]
        job.pieces[-1] = SegmentRef(broken.epoch, broken.follows, job._stored("segments/5", stranger))
        with pytest.raises(Damaged):
            job.follow(5)
        assert job.local.open_now == 0


class TestATakeover:
    def deploy(self, job: Job, epoch: int, **more: Any) -> m.Deploy:
        target = job.target(epoch, **more)
        return m.Deploy(
            JOB, Generation(2), Timeline(1), Epoch(200), target.base_epoch, m.ActiveRole(ZERO), (), target.handle, (),
            (), (), (), target.lineage,
        )  # fmt: skip

    def test_brings_the_copy_to_the_base(self, job: Job) -> None:
        job.follow(1)
        opened = job.following.take(self.deploy(job, 3))
        assert opened is not None and opened.store.cut == (Epoch(3), "manifest 3")
        assert opened.store.get_committed(1, (2,)) == {"count": 2}
        assert job.following.stock() == () and job.local.open_now == 1
        opened.close()

    def test_ends_the_restore_of_another_copy(self, job: Job) -> None:
        job.follow(3, follows=(ZERO, ONE))
        job.following.ask(job.target(3, follows=(ZERO, ONE), subtask=ONE))
        job.following.hurry(ZERO)
        assert job.following.turn()
        assert [copy.epoch for copy in job.following.stock()] == [3, 0] and job.local.open_now == 1
        opened = job.following.take(self.deploy(job, 3))
        assert opened is not None
        opened.close()

    def test_does_not_end_the_restore_of_its_own_copy(self, job: Job) -> None:
        job.following.ask(job.target(3))
        job.following.hurry(ZERO)
        job.settle()
        assert job.counts(1) == [1]

    def test_gives_all_other_copies_up_without_waiting_for_their_folders(self, job: Job) -> None:
        """To close a folder takes the longer the more state it has, and the records of the subtask wait meanwhile."""
        job.follow(3, follows=(ZERO, ONE))
        job.follow(3, follows=(ZERO, ONE), subtask=ONE)
        opened = job.following.take(self.deploy(job, 3))
        assert opened is not None and job.following.stock() == () and job.local.open_now == 2
        [lane] = job.lanes.waiting()
        lane.step()
        assert job.local.open_now == 1 and job.lanes.waiting() == []
        opened.close()

    def test_has_no_copy_of_another_lineage(self, job: Job) -> None:
        job.follow(3)
        assert job.following.take(self.deploy(job, 1, lineage={Epoch(1): "manifest 1"})) is None
        assert job.local.open_now == 0

    def test_a_takeover_with_an_unreachable_root_is_reported(self, job: Job) -> None:
        job.follow(1)
        job.root.away = True
        with pytest.raises(Unavailable):
            job.following.take(self.deploy(job, 3))
        assert job.local.open_now == 0
