from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.state.tables.table import ColumnSpec, TableSpec

JOB = JobUuid("job")
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
KEY = KeyType(("k",), (pa.int64(),))
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.int64)),))
OTHER = TableSpec(2, "others", KeyType(("k",), (pa.utf8(),)), (ColumnSpec("count", np.dtype(np.int64)),))
GROUPS = 8
ALL = (0, GROUPS)


class Worker:
    """A store whose epochs are sealed as they close."""

    def __init__(self, owned: tuple[int, int] = ALL) -> None:
        self.store = StateStore(IDENTITY, [SPEC], GROUPS, owned)
        self.segments: dict[int, bytes] = {}
        self.completed = Epoch(0)

    def add(self, amount: int, *numbers: int) -> None:
        table = self.store.table(1)
        slots = table.slots(KEY.encode([pa.array(numbers, pa.int64())]))
        np.add.at(table.changing(slots)("count"), slots, amount)

    def delete(self, *numbers: int) -> None:
        table = self.store.table(1)
        table.delete(table.slots(KEY.encode([pa.array(numbers, pa.int64())])))

    def close_epoch(self, number: int, completes: bool = True) -> None:
        epoch = Epoch(number)
        self.store.freeze(1, epoch, self.completed)
        header = SegmentHeader(JOB, Generation(1), Timeline(1), epoch, self.completed, WorkerId("w"))
        self.store.supersede(epoch)
        self.segments[number] = seal(header, self.store.deltas(epoch))
        if completes:
            self.store.commit(epoch)
            self.completed = epoch

    def counts(self, *numbers: int) -> list[int]:
        table = self.store.table(1)
        slots = table.slots(KEY.encode([pa.array(numbers, pa.int64())]))
        values: list[int] = table.column("count")[slots].tolist()
        return values


def owned_numbers(owned: tuple[int, int], among: int = 100) -> list[int]:
    groups = KEY.encode([pa.array(range(among), pa.int64())]).key_groups(GROUPS)
    return np.flatnonzero((groups >= owned[0]) & (groups < owned[1])).tolist()


class TestEpochsThatAreGivenUp:
    def test_keep_no_more_memory_than_one(self) -> None:
        worker = Worker()
        worker.add(1, *range(500))
        worker.close_epoch(1, completes=False)
        one = worker.store.unfinished_bytes
        for epoch in range(2, 40):
            worker.add(1, *range(500))
            worker.close_epoch(epoch, completes=False)
        assert worker.store.unfinished_bytes < 1.1 * one

    def test_leave_their_changes_to_the_next_one(self) -> None:
        worker = Worker()
        for epoch in (1, 2, 3):
            worker.add(epoch, 7, epoch)
            worker.close_epoch(epoch, completes=epoch == 3)
        worker.add(1, 7, 1, 2, 3)
        assert worker.store.roll_back(Epoch(3))
        rows = {number: worker.store.get_committed(1, (number,)) for number in (1, 2, 3, 7)}
        assert rows == {1: {"count": 1}, 2: {"count": 2}, 3: {"count": 3}, 7: {"count": 6}}
        restored = StateStore(IDENTITY, [SPEC], GROUPS, ALL)
        restored.restore(Epoch(3), [worker.segments[3]])
        assert {number: restored.get_committed(1, (number,)) for number in rows} == rows


class TestWhoseStateItIs:
    def test_a_rollback_takes_the_identity_of_the_recovery(self) -> None:
        worker, later = Worker(), Identity(JOB, Generation(2), Timeline(2), WorkerId("w"))
        worker.add(1, 1)
        worker.close_epoch(1)
        assert worker.store.roll_back(Epoch(1), later) and worker.store.identity == later
        assert worker.store.roll_back(Epoch(1)) and worker.store.identity == later

    def test_older_news_of_a_manifest_do_not_hide_which_one_it_stands_at(self) -> None:
        worker, newest = Worker(), Cut(Epoch(2), "manifest of 2")
        for epoch in (1, 2):
            worker.add(1, 1)
            worker.close_epoch(epoch)
        worker.store.completed(newest)
        worker.store.completed(Cut(Epoch(1), "manifest of 1"))
        assert worker.store.cut == newest


class TestRollBackOfAStore:
    def test_is_refused_whole_if_one_table_does_not_hold_the_base(self) -> None:
        store = StateStore(IDENTITY, [SPEC, OTHER], GROUPS, ALL)
        store.freeze(1, Epoch(1), Epoch(0))
        assert not store.roll_back(Epoch(1))
        assert store.roll_back(Epoch(0))


class TestRestore:
    def test_takes_segments_from_oldest_to_newest(self) -> None:
        worker = Worker()
        for epoch in range(1, 4):
            worker.add(1, *range(epoch))
            worker.close_epoch(epoch)
        restored = Worker()
        restored.store.restore(Epoch(3), worker.segments.values())
        assert restored.counts(0, 1, 2, 3) == [3, 2, 1, 0]
        assert restored.store.get_committed(1, (0,)) == {"count": 3}
        assert restored.store.committed_through == 3
        with pytest.raises(AssertionError, match="comes before an older one"):
            Worker().store.restore(Epoch(3), reversed(worker.segments.values()))

    def test_forgets_what_the_store_held(self) -> None:
        worker = Worker()
        worker.add(1, 1, 2)
        worker.close_epoch(1)
        other = Worker()
        other.add(7, 1)
        other.close_epoch(1)
        other.add(7, 3)
        other.store.restore(Epoch(1), worker.segments.values())
        assert other.counts(1, 2, 3) == [1, 1, 0]
        assert other.store.cut == Cut(Epoch(1), "")

    def test_reports_after_every_part(self) -> None:
        worker, parts = Worker(), list[int]()
        for epoch in (1, 2):
            worker.add(1, *range(20))
            worker.close_epoch(epoch)
        restored = Worker()
        restored.store.restore(Epoch(2), worker.segments.values(), lambda: parts.append(restored.counts(3)[0]))
        assert parts == [1, 2]

    def test_keeps_the_owned_key_groups_only(self) -> None:
        worker = Worker()
        worker.add(1, *range(100))
        worker.close_epoch(1)
        restored = Worker(owned=(2, 5))
        restored.store.restore(Epoch(1), worker.segments.values())
        table = restored.store.table(1)
        assert sorted(table.key_columns(table.present())[0].to_pylist()) == owned_numbers((2, 5))

    def test_takes_of_a_piece_its_key_groups_only(self) -> None:
        worker = Worker()
        worker.add(1, *range(100))
        worker.close_epoch(1)
        restored = Worker(owned=(2, 6))
        restored.store.restore(Epoch(1), [Piece(worker.segments[1], groups) for groups in ((0, 3), (5, 8))])
        table = restored.store.table(1)
        expected = sorted(owned_numbers((2, 3)) + owned_numbers((5, 6)))
        assert sorted(table.key_columns(table.present())[0].to_pylist()) == expected

    def test_a_restore_of_another_jobs_segment_is_damage(self) -> None:
        header = SegmentHeader(JobUuid("another"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
        with pytest.raises(Damaged, match="belongs to job another"):
            Worker().store.restore(Epoch(1), [seal(header, [])])

    def test_a_restore_of_state_with_other_columns_is_refused(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        changed = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.float64)),))
        store = StateStore(IDENTITY, [changed], GROUPS, ALL)
        with pytest.raises(ConfigError, match="different columns"):
            store.restore(Epoch(1), worker.segments.values())

    def test_leaves_out_operators_that_are_gone(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        store = StateStore(IDENTITY, [OTHER], GROUPS, ALL)
        store.restore(Epoch(1), worker.segments.values())
        assert len(store.table(2)) == 0


class TestFollowing:
    def test_a_standby_moves_on_with_the_segments(self) -> None:
        worker, standby = Worker(), Worker()
        for epoch in range(1, 4):
            worker.add(1, 1, epoch)
            worker.close_epoch(epoch)
            standby.store.follow(Epoch(epoch), [worker.segments[epoch]])
        assert standby.counts(1, 2, 3) == [4, 1, 1]
        assert standby.store.committed_through == 3

    def test_takes_no_segment_twice(self) -> None:
        worker, standby = Worker(), Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        standby.store.follow(Epoch(1), [worker.segments[1]])
        with pytest.raises(AssertionError):
            standby.store.follow(Epoch(2), [worker.segments[1]])
