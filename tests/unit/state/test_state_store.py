from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.ports import KeyValue
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.cold import SCAN_AFTER_MISSES, SCANNED_MIN, SCANNED_PER_MISS, scope
from holdfast.state.coldcopy import FLUSH_AFTER_PASSES
from holdfast.state.keys.batch import KeyType
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.local.rocks import RocksKeyValue
from holdfast.state.marker import read_marker
from holdfast.state.store import Identity, Lag, StateStore
from holdfast.state.tables.table import ColumnSpec, TableSpec
from holdfast.state.tables.unapplied import RUN_MAX, Unapplied

JOB = JobUuid("job")
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
KEY = KeyType(("k",), (pa.int64(),))
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.int64)),))
OTHER = TableSpec(2, "others", KeyType(("k",), (pa.utf8(),)), (ColumnSpec("count", np.dtype(np.int64)),))
GROUPS = 8
ALL = (0, GROUPS)


class Listed(MemoryKeyValue):
    """Notes the keys of rows in the order in which they are put."""

    def __init__(self) -> None:
        super().__init__()
        self.put: list[bytes] = []

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        first, end = scope(1, 0)[0], scope(2, 0)[0]
        self.put += [key for key, _ in puts if first <= key < end]
        super().write(puts, deletes)


class Worker:
    """A store whose epochs are sealed as they close."""

    def __init__(self, cold: KeyValue | None = None, owned: tuple[int, int] = ALL) -> None:
        self.store = StateStore(IDENTITY, [SPEC], GROUPS, owned, cold)
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

    def apply(self) -> None:
        while self.store.apply():
            pass

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
        restored.restore(Epoch(3), [worker.segments[3]], None)
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


class Watched(MemoryKeyValue):
    """Counts look-ups and scans, and refuses writes when told to."""

    looked = scanned = scanned_rows = 0
    refusing = False

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.looked += len(keys)
        return super().get_many(keys)

    def scan(self, first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
        self.scanned += 1
        found = super().scan(first, end, pairs_max)
        self.scanned_rows += len(found)
        return found

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        if self.refusing:
            raise Unavailable("refused", next_step="try again")
        super().write(puts, deletes)


class TestApply:
    def test_says_what_it_is_about_to_write_before_the_first_value(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(10))
        worker.close_epoch(5)
        assert worker.store.apply(4)
        marker = read_marker(cold)
        assert marker is not None and (marker.applied, marker.applying) == (0, 5)

    def test_ends_with_the_epoch_it_has_applied(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(10))
        worker.close_epoch(5)
        worker.apply()
        marker = read_marker(cold)
        assert marker is not None and (marker.applied, marker.applying, marker.key_groups) == (5, 5, ALL)
        assert worker.store.applied == 5

    def test_moves_the_marker_before_values_of_a_commit_that_arrives_in_the_middle(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(10))
        worker.close_epoch(5)
        assert worker.store.apply(4)
        worker.add(10, *range(10))
        worker.close_epoch(7)
        before = cold.unflushed
        assert worker.store.apply(4)
        marker = read_marker(cold.after_kill(before + 1))
        assert marker is not None and (marker.applied, marker.applying) == (0, 7)
        assert cold.after_kill(before + 1).scan(b"", b"\xff\xfe") == cold.after_kill(before).scan(b"", b"\xff\xfe")

    def test_names_epochs_by_their_manifests_as_soon_as_those_are_known(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(10))
        worker.close_epoch(5)
        worker.store.completed(Cut(Epoch(5), "five"))
        worker.apply()
        worker.add(1, *range(10))
        worker.close_epoch(7)
        assert worker.store.apply(4)
        marker = read_marker(cold)
        assert marker is not None and marker.cuts == (Cut(Epoch(5), "five"), Cut(Epoch(7), ""))
        worker.apply()
        marker = read_marker(cold)
        assert marker is not None and marker.cuts == (Cut(Epoch(7), ""), Cut(Epoch(7), ""))
        worker.store.completed(Cut(Epoch(7), "seven"))
        worker.apply()
        marker = read_marker(cold)
        assert marker is not None and marker.cuts == (Cut(Epoch(7), "seven"), Cut(Epoch(7), "seven"))

    def test_flushes_now_and_then_so_that_a_kill_leaves_no_old_epoch(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        for epoch in range(1, FLUSH_AFTER_PASSES + 3):
            worker.add(1, 1)
            worker.close_epoch(epoch)
            worker.apply()
        marker = read_marker(cold.after_kill(0))
        assert marker is not None and marker.applied == FLUSH_AFTER_PASSES

    def test_does_not_give_an_epoch_the_name_of_another(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, 1)
        worker.close_epoch(5)
        worker.store.completed(Cut(Epoch(4), "four"))
        worker.apply()
        marker = read_marker(cold)
        assert marker is not None and marker.cuts == (Cut(Epoch(5), ""), Cut(Epoch(5), ""))

    def test_writes_a_key_of_many_epochs_once(self) -> None:
        worker = Worker(MemoryKeyValue())
        for epoch in range(1, 6):
            worker.add(1, 1, 2)
            worker.close_epoch(epoch)
        assert worker.store.lag == Lag(5, 2 * (8 + 16))
        assert not worker.store.apply()
        assert worker.store.lag == Lag(0, 0)

    def test_that_is_refused_for_epochs_on_end_keeps_a_key_once(self) -> None:
        unapplied = Unapplied()
        unapplied.note(np.arange(100))
        before = repr(vars(unapplied))
        for _ in range(1_000):
            unapplied.note(np.empty(0, np.int64))  # the same keys are committed again
        assert repr(vars(unapplied)) == before

    def test_writes_keys_in_the_order_in_which_the_store_keeps_them(self) -> None:
        cold = Listed()
        worker = Worker(cold)
        worker.add(1, *np.random.default_rng(3).permutation(5_000).tolist())
        worker.close_epoch(1)
        worker.apply()
        assert len(cold.put) == 5_000 and cold.put == sorted(cold.put)

    def test_takes_a_slot_once_whatever_is_erased_within_a_run(self) -> None:
        unapplied, taken = Unapplied(), list[int]()
        for first in range(0, 3 * RUN_MAX, RUN_MAX // 2):
            unapplied.note(np.arange(first, first + RUN_MAX // 2))
        while unapplied.count:
            slots = unapplied.next(10_000, RUN_MAX, lambda run: run[::-1])
            taken += slots.tolist()
            unapplied.done(slots)
            erased = len(taken) % 7
            unapplied.keep(lambda slots, erased=erased: slots % 7 != erased)  # type: ignore[misc]
        kept = np.diff(np.sort(taken))
        assert (kept > 0).all() and RUN_MAX < len(taken) < 3 * RUN_MAX
        assert taken[:10_000] == list(range(RUN_MAX - 1, RUN_MAX - 10_001, -1))

    def test_repeats_a_batch_that_was_refused(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(3, 1, 2)
        worker.delete(1)
        worker.add(3, 1)
        worker.close_epoch(1)
        cold.refusing = True
        with pytest.raises(Unavailable):
            worker.store.apply()
        cold.refusing = False
        worker.apply()
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        assert restored.counts(1, 2) == [3, 3]

    def test_without_a_cold_store_has_nothing_to_do(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        assert not worker.store.apply()

    @pytest.mark.parametrize("survived", range(8))
    def test_that_was_killed_anywhere_is_completed_by_the_segments(self, survived: int) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(6))
        worker.close_epoch(1)
        worker.apply()
        cold.flush()
        worker.add(1, *range(4))
        worker.delete(5)
        worker.close_epoch(2)
        while worker.store.apply(1):
            pass
        left = cold.after_kill(survived)
        marker = read_marker(left)
        assert marker is not None
        restored = Worker(left)
        restored.store.restore(Epoch(2), [worker.segments[2]] if marker.applied < 2 else [], marker.applied)
        assert restored.counts(*range(6)) == [2, 2, 2, 2, 1, 0]


class TestRollBackOfAStore:
    def test_touches_the_cold_store_in_no_way(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(1, *range(50))
        worker.close_epoch(1)
        worker.apply()
        worker.add(1, *range(90))
        cold.looked = cold.scanned = 0
        cold.refusing = True
        assert worker.store.roll_back(Epoch(1))
        assert (cold.looked, cold.scanned) == (0, 0)
        assert worker.counts(0, 49, 50) == [1, 1, 0]

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
        restored.store.restore(Epoch(3), worker.segments.values(), None)
        assert restored.counts(0, 1, 2, 3) == [3, 2, 1, 0]
        assert restored.store.get_committed(1, (0,)) == {"count": 3}
        assert restored.store.committed_through == 3
        with pytest.raises(AssertionError, match="comes before an older one"):
            Worker().store.restore(Epoch(3), reversed(worker.segments.values()), None)

    def test_reads_the_cold_store_below_the_segments(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(1, 1, 2, 3)
        worker.close_epoch(1)
        worker.apply()
        worker.add(1, 2)
        worker.delete(3)
        worker.close_epoch(2)
        restored = Worker(cold)
        restored.store.restore(Epoch(2), [worker.segments[2]], Epoch(1))
        cold.looked = 0
        assert restored.counts(1, 2, 3, 4) == [1, 2, 0, 0]
        assert cold.looked == 2  # what the segment says is not looked up

    def test_asks_for_a_key_once_only(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(1, 1)
        worker.close_epoch(1)
        worker.apply()
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        restored.counts(1, 2)
        cold.looked = 0
        assert restored.counts(1, 2) == [1, 0]
        assert cold.looked == 0

    def test_of_a_fresh_job_asks_for_nothing(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        cold.looked = 0
        worker.add(1, *range(1_000))
        assert (cold.looked, cold.scanned) == (0, 0)

    def test_reads_a_key_group_only_after_the_one_before_is_in_the_table(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(1, *range(100))
        worker.close_epoch(1)
        worker.apply()
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        table, seen = restored.store.table(1), list[int]()
        scan = cold.scan

        def watched(first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
            seen.append(len(table))
            return scan(first, end, pairs_max)

        cold.scan = watched  # type: ignore[method-assign]
        assert len(table.present()) == 100
        assert len(seen) == GROUPS and seen == sorted(set(seen)) and seen[0] == 0

    def test_scans_key_groups_that_are_asked_for_often_in_proportion_to_their_misses(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        asked = 2 * SCAN_AFTER_MISSES * GROUPS
        numbers = range(20 * asked)
        worker.add(1, *numbers)
        worker.close_epoch(1)
        worker.apply()
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        restored.add(5, 3)
        assert cold.scanned_rows == 0, "there were few misses"
        cold.looked = 0
        restored.counts(*range(asked))
        assert SCANNED_MIN < cold.scanned_rows <= SCANNED_PER_MISS * asked < len(numbers)
        assert cold.looked < asked, "some were found by the scan"
        before = cold.looked, cold.scanned_rows
        restored.counts(*range(asked))
        assert (cold.looked, cold.scanned_rows) == before, "nothing is new"
        table = restored.store.table(1)
        absent = len(numbers)
        while not table.complete:
            restored.counts(*range(absent, absent + asked))
            absent += asked
        assert cold.scanned_rows == len(numbers), "no row is scanned twice"
        cold.looked = 0
        assert restored.counts(*numbers) == [6 if number == 3 else 1 for number in numbers]
        assert cold.looked == 0

    @pytest.fixture
    def cold(self) -> Watched:
        """A store of 40,000 rows, with which a new worker begins."""
        cold = Watched()
        worker = Worker(cold)
        worker.add(1, *range(40_000))
        worker.close_epoch(1)
        worker.apply()
        return cold

    def test_scans_for_small_batches_in_proportion_to_their_misses(self, cold: Watched) -> None:
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        restored.counts(*range(SCAN_AFTER_MISSES * GROUPS * 3 // 2))
        table, spent, misses, scans = restored.store.table(1), cold.scanned_rows, 0, 0
        for first in range(10_000, 40_000, 5):
            numbers, before = range(first, first + 5), cold.scanned_rows
            misses += int((table.find(KEY.encode([pa.array(numbers, pa.int64())])) < 0).sum())
            restored.counts(*numbers)
            assert cold.scanned_rows - spent <= SCANNED_PER_MISS * (misses + 5)
            if cold.scanned_rows > before:
                assert cold.scanned_rows - before >= SCANNED_MIN, "rows are scanned many at a time"
                scans += 1
            if scans == 3:
                return
        raise AssertionError(f"{scans} scans for {misses} misses")

    def test_scans_nothing_for_misses_of_key_groups_that_are_asked_for_seldom(self, cold: Watched) -> None:
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        groups = KEY.encode([pa.array(range(40_000), pa.int64())]).key_groups(GROUPS)
        restored.counts(*np.flatnonzero(groups == 0)[: SCAN_AFTER_MISSES + 1].tolist())
        assert cold.scanned_rows == 0, "there were few misses"
        for each in np.flatnonzero(groups == 1)[: SCAN_AFTER_MISSES - 1].tolist():
            restored.counts(each)
        assert cold.scanned_rows == 0

    def test_keeps_the_owned_key_groups_only(self) -> None:
        worker = Worker()
        worker.add(1, *range(100))
        worker.close_epoch(1)
        restored = Worker(owned=(2, 5))
        restored.store.restore(Epoch(1), worker.segments.values(), None)
        table = restored.store.table(1)
        assert sorted(table.key_columns(table.present())[0].to_pylist()) == owned_numbers((2, 5))

    def test_after_a_rescale_takes_new_key_groups_from_the_segments_and_removes_lost_ones(self) -> None:
        cold = MemoryKeyValue()
        everyone = Worker()
        mine = Worker(cold, owned=(0, 4))
        for worker, numbers in ((everyone, range(100)), (mine, owned_numbers((0, 4)))):
            worker.add(1, *numbers)
            worker.close_epoch(1)
        mine.apply()
        everyone.add(1, *range(50))
        everyone.close_epoch(2)
        marker = read_marker(cold)
        assert marker is not None and marker.key_groups == (0, 4)
        moved = Worker(cold, owned=(2, 6))
        moved.store.restore(Epoch(2), everyone.segments.values(), Epoch(1), (2, 4))
        for check in range(2):
            table = moved.store.table(1)
            assert sorted(table.key_columns(table.present())[0].to_pylist()) == owned_numbers((2, 6))
            assert all(moved.counts(number) == [2 if number < 50 else 1] for number in owned_numbers((2, 6)))
            if check == 0:
                moved.apply()
                marker = read_marker(cold)
                assert marker is not None and (marker.applied, marker.key_groups) == (2, (2, 6))
                assert len(cold.scan(b"", b"\xff\xfe")) == len(owned_numbers((2, 6)))
                moved = Worker(cold, owned=(2, 6))
                moved.store.restore(Epoch(2), [], Epoch(2))

    def test_gives_up_lost_key_groups_before_it_removes_them(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(100))
        worker.close_epoch(1)
        worker.apply()
        moved = Worker(cold, owned=(0, 2))
        moved.store.restore(Epoch(1), [], Epoch(1))
        written = cold.unflushed
        assert moved.store.apply(10)
        marker = read_marker(cold.after_kill(written + 1))
        assert marker is not None and (marker.applied, marker.key_groups) == (1, (0, 2))
        assert len(cold.after_kill(written + 1).scan(b"", b"\xff\xfe")) == 100

    def test_without_a_base_clears_what_the_cold_store_held(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, *range(20))
        worker.close_epoch(9)
        worker.apply()
        other = Worker()
        other.add(7, 1)
        other.close_epoch(1)
        restored = Worker(cold)
        restored.store.restore(Epoch(1), other.segments.values(), None)
        assert restored.counts(1, 2) == [7, 0]
        restored.apply()
        again = Worker(cold)
        again.store.restore(Epoch(1), [], Epoch(1))
        assert again.counts(1, 2) == [7, 0]

    def test_of_another_jobs_segment_is_damage(self) -> None:
        header = SegmentHeader(JobUuid("another"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
        with pytest.raises(Damaged, match="belongs to job another"):
            Worker().store.restore(Epoch(1), [seal(header, [])], None)

    def test_of_state_with_other_columns_is_refused(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        changed = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.float64)),))
        store = StateStore(IDENTITY, [changed], GROUPS, ALL)
        with pytest.raises(ConfigError, match="different columns"):
            store.restore(Epoch(1), worker.segments.values(), None)

    def test_leaves_out_operators_that_are_gone(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        worker.close_epoch(1)
        store = StateStore(IDENTITY, [OTHER], GROUPS, ALL)
        store.restore(Epoch(1), worker.segments.values(), None)
        assert len(store.table(2)) == 0

    def test_takes_no_rows_of_an_operator_that_was_gone_for_a_while(self) -> None:
        cold = MemoryKeyValue()
        worker = Worker(cold)
        worker.add(1, 1)
        worker.close_epoch(1)
        worker.apply()
        without = StateStore(IDENTITY, [OTHER], GROUPS, ALL, cold)
        without.restore(Epoch(1), [], Epoch(1))
        without.freeze(2, Epoch(2), Epoch(1))
        without.commit(Epoch(2))
        while without.apply():
            pass
        again = Worker(cold)
        again.store.restore(Epoch(2), [], Epoch(2))
        assert again.counts(1) == [0]


class TestFollowing:
    def test_a_standby_moves_on_with_the_segments(self) -> None:
        worker, standby = Worker(), Worker(MemoryKeyValue())
        for epoch in range(1, 4):
            worker.add(1, 1, epoch)
            worker.close_epoch(epoch)
            standby.store.follow(Epoch(epoch), [worker.segments[epoch]])
            standby.apply()
        assert standby.counts(1, 2, 3) == [4, 1, 1]
        assert standby.store.committed_through == standby.store.applied == 3


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_state_store import Worker
from holdfast.state.local.rocks import RocksKeyValue

cold = RocksKeyValue(Path(sys.argv[1]))
worker = Worker(cold)
worker.add(1, *range(20_000))
worker.close_epoch(1)
worker.apply()
cold.flush()
worker.add(1, *range(10_000))
worker.close_epoch(2)
worker.store.apply(500)
worker.store.apply(500)
cold.flush()
worker.store.apply(500)
print("in the middle", flush=True)
sys.stdin.read()
"""


class TestRealKill:
    def test_in_the_middle_of_a_pass_is_completed_by_the_segments(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "db"), str(Path(__file__).parent)]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found)
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "in the middle\n"
        with pytest.raises(Unavailable):
            RocksKeyValue(tmp_path / "db")
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

        second = Worker()
        second.add(1, *range(20_000))
        second.close_epoch(1)
        second.add(1, *range(10_000))
        second.close_epoch(2)
        cold = RocksKeyValue(tmp_path / "db")
        marker = read_marker(cold)
        assert marker is not None and (marker.applied, marker.applying) == (1, 2)
        restored = Worker(cold)
        restored.store.restore(Epoch(2), [second.segments[2]], marker.applied)
        assert restored.counts(*range(20_001)) == [2] * 10_000 + [1] * 10_000 + [0]
        cold.close()


class TestWarming:
    """A restored store looks rows up in the cold store; a standby reads them before they are needed."""

    def test_reads_every_row_once_in_small_parts(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(3, *range(100))
        worker.close_epoch(1)
        worker.apply()
        restored = Worker(cold)
        restored.store.restore(Epoch(1), [], Epoch(1))
        assert restored.store.cold_share == 1.0
        parts, read, looked = 0, cold.scanned_rows, cold.looked
        while restored.store.warm(16):
            assert cold.scanned_rows - read <= 16
            parts, read = parts + 1, cold.scanned_rows
        assert parts >= 100 // 16 and cold.scanned_rows == 100 and restored.store.cold_share == 0.0
        assert restored.counts(*range(101)) == [3] * 100 + [0] and cold.looked == looked

    def test_keeps_newer_values_and_deletions(self) -> None:
        cold = Watched()
        worker = Worker(cold)
        worker.add(3, *range(20))
        worker.close_epoch(1)
        worker.apply()
        worker.add(4, 1, 2)
        worker.delete(5)
        worker.close_epoch(2)
        restored = Worker(cold)
        restored.store.restore(Epoch(2), [worker.segments[2]], Epoch(1))
        while restored.store.warm(3):
            pass
        assert restored.counts(1, 2, 3, 5) == [7, 7, 3, 0]
        assert restored.store.get_committed(1, (5,)) is None

    def test_without_a_cold_store_reads_nothing(self) -> None:
        worker = Worker()
        worker.add(1, 1)
        assert not worker.store.warm(10) and worker.store.cold_share == 0.0
