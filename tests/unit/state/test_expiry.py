"""Windows that are over: one range per key group in delta, segment and merges, never a row per key."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merged_pieces import compact

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import NOTHING, Through, covered, last_of, range_end
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 8
KEY = KeyType(("window_end", "user"), (pa.timestamp("us", "UTC"), pa.int64()), unrouted=1)
SPEC = TableSpec(1, "windows", KEY, (ColumnSpec("count", np.dtype(np.int64)),))
Row = tuple[int, int]
"""Window end, user."""


def keys(*rows: Row) -> Keys:
    ends, users = zip(*rows, strict=True) if rows else ((), ())
    return KEY.encode([pa.array(ends, pa.int64()).view(KEY.types[0]), pa.array(users, pa.int64())])


def through(last: int) -> Through:
    return np.full(GROUPS, last, np.int64)


def header(epoch: int, follows: int) -> SegmentHeader:
    return SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), WORKER)


class Worker:
    """A store with one window table, whose epochs are sealed as they close."""

    def __init__(self) -> None:
        identity = Identity(JOB, Generation(1), Timeline(1), WORKER)
        self.store = StateStore(identity, [SPEC], GROUPS, (0, GROUPS))
        self.table = self.store.table(1)
        self.completed, self.segments = 0, dict[int, bytes]()

    def put(self, count: int, *rows: Row) -> None:
        slots = self.table.slots(keys(*rows))
        self.table.changing(slots)("count")[slots] = count

    def expire(self, last: int) -> None:
        slots = self.table.present()
        self.table.expire(slots[covered(self.table.keys_at(slots), through(last))], through(last))

    def barrier(self, epoch: int, completes: bool = True) -> OperatorDelta:
        self.store.freeze(1, Epoch(epoch), Epoch(self.completed))
        (delta,) = self.store.deltas(Epoch(epoch))
        self.segments[epoch] = seal(header(epoch, self.completed), [delta])
        if completes:
            self.store.commit(Epoch(epoch))
            self.completed = epoch
        return delta.whole()

    def rows(self) -> dict[Row, int]:
        return rows_in(self.table)


def rows_in(table: StateTable) -> dict[Row, int]:
    slots = table.present()
    ends, users = table.key_columns(slots)
    found = zip(ends.view(pa.int64()).to_pylist(), users.to_pylist(), strict=True)
    return dict(zip(found, table.column("count")[slots].tolist(), strict=True))


def restored(epoch: int, *segments: bytes) -> dict[Row, int]:
    worker = Worker()
    worker.store.restore(Epoch(epoch), segments)
    return worker.rows()


@pytest.fixture
def worker() -> Worker:
    return Worker()


class TestExpiry:
    def test_takes_one_range_per_key_group_and_no_row_per_key(self, worker: Worker) -> None:
        worker.put(1, *((10, user) for user in range(5_000)))
        worker.put(2, (20, 1))
        worker.barrier(1)
        worker.expire(10)
        delta = worker.barrier(2)
        assert (len(delta.keys), len(delta)) == (0, GROUPS)
        assert worker.rows() == restored(2, *worker.segments.values()) == {(20, 1): 2}

    def test_leaves_what_was_put_after_it_in_the_same_epoch(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (10, 2))
        worker.barrier(1)
        worker.expire(10)
        worker.put(7, (10, 2), (5, 3))
        worker.barrier(2)
        assert worker.rows() == restored(2, *worker.segments.values()) == {(10, 2): 7, (5, 3): 7}

    def test_expiry_of_rows_put_in_the_same_epoch_writes_nothing(self, worker: Worker) -> None:
        worker.put(1, (10, 1))
        worker.expire(10)
        assert len(worker.barrier(1)) == 0

    def test_expiry_in_an_unfinished_epoch_is_in_the_next_delta(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.barrier(2, completes=False)
        worker.put(5, (20, 1))
        worker.barrier(3)
        assert worker.rows() == restored(3, worker.segments[1], worker.segments[3]) == {(20, 1): 5}

    def test_is_undone_by_a_rollback(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.barrier(2, completes=False)
        worker.expire(20)
        assert worker.rows() == {}
        assert worker.store.roll_back(Epoch(1))
        assert worker.rows() == {(10, 1): 1, (20, 1): 1}

    def test_is_not_undone_by_a_rollback_to_its_own_epoch(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.barrier(2, completes=False)
        worker.put(9, (20, 1))
        assert worker.store.roll_back(Epoch(2))
        assert worker.rows() == {(20, 1): 1}
        assert worker.store.get_committed(1, (10, 1)) is None

    def test_starts_a_window_that_comes_again_from_the_defaults(self, worker: Worker) -> None:
        worker.put(4, (10, 1))
        worker.barrier(1)
        worker.expire(10)
        slots = worker.table.slots(keys((10, 1)))
        assert worker.table.column("count")[slots].tolist() == [0]

    def test_frees_its_slots_once_it_is_committed(self, worker: Worker) -> None:
        worker.put(1, *((10, user) for user in range(1_000)))
        worker.put(2, (20, 1), (20, 2))
        worker.barrier(1)
        worker.expire(10)
        worker.table.drop_vacant()
        assert (len(worker.table), worker.table.vacant) == (1_002, 0)
        worker.barrier(2)
        assert worker.table.vacant == 1_000
        worker.table.drop_vacant()
        assert (len(worker.table), worker.rows()) == (2, {(20, 1): 2, (20, 2): 2})

    def test_expiry_of_some_key_groups_leaves_the_others(self, worker: Worker) -> None:
        rows: list[Row] = [(10, user) for user in range(100)]
        worker.put(1, *rows)
        worker.barrier(1)
        ranges = through(10)
        ranges[:3] = NOTHING
        slots = worker.table.present()
        worker.table.expire(slots[covered(worker.table.keys_at(slots), ranges)], ranges)
        assert len(worker.barrier(2)) == GROUPS - 3
        kept = {row: 1 for row, group in zip(rows, keys(*rows).key_groups(GROUPS).tolist(), strict=True) if group < 3}
        assert worker.rows() == restored(2, *worker.segments.values()) == kept


class TestRange:
    @given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
    def test_ends_just_behind_the_last_window_that_it_covers(self, last: int) -> None:
        inside, end = keys((last, 1 << 62)).canonical()[0].as_py(), range_end(last)
        assert inside < end and last_of(end) == last
        if last < (1 << 63) - 1:
            assert keys((last + 1, -(1 << 63))).canonical()[0].as_py() >= end

    def test_an_empty_range_covers_no_window(self) -> None:
        assert not covered(keys((NOTHING, 1), (0, 2)), through(NOTHING)).any()


class TestSegments:
    def delta(self, ranges: Through, *rows: Row) -> OperatorDelta:
        columns = {"count": np.ones(len(rows), np.int64)}
        return OperatorDelta(Epoch(2), Epoch(1), 1, GROUPS, keys(*rows), np.ones(len(rows), bool), columns, ranges)

    @given(st.lists(st.sampled_from([NOTHING, -5, 0, 7, (1 << 63) - 1]), min_size=GROUPS, max_size=GROUPS), st.data())
    def test_hold_the_ranges_of_the_key_groups_asked_for(self, bounds: list[int], data: st.DataObject) -> None:
        ranges = np.array(bounds, np.int64)
        first = data.draw(st.integers(0, GROUPS - 1))
        end = data.draw(st.integers(first + 1, GROUPS))
        given_ = self.delta(ranges, *((3, user) for user in range(40)))
        _, read = unseal(seal(header(2, 1), [given_]), (first, end))
        expected = ranges.copy()
        expected[:first] = expected[end:] = NOTHING
        found = read[0].through if read else None
        assert np.array_equal(through(NOTHING) if found is None else found, expected)
        groups = keys(*((3, user) for user in range(40))).key_groups(GROUPS)
        assert sum(len(each.keys) for each in read) == ((groups >= first) & (groups < end)).sum()

    def test_with_nothing_but_ranges_are_kept(self) -> None:
        _, (read,) = unseal(seal(header(2, 1), [self.delta(through(5))]))
        assert (len(read.keys), len(read)) == (0, GROUPS)

    def test_without_ranges_are_of_the_version_that_earlier_programs_read(self) -> None:
        def version(data: bytes) -> int:
            size = int.from_bytes(data[-20:-16], "little")
            footer: dict[str, Any] = msgspec.msgpack.decode(data[-20 - size : -20])
            return int(footer["version"])

        plain = OperatorDelta(
            Epoch(2), Epoch(1), 1, GROUPS, keys((1, 1)), np.ones(1, bool), {"count": np.ones(1, np.int64)}
        )
        assert version(seal(header(2, 1), [plain])) == 1
        assert version(seal(header(2, 1), [self.delta(through(5), (9, 1))])) == 2


class TestMerging:
    def test_erases_what_a_newer_range_covers_and_nothing_newer(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (10, 2), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.put(3, (10, 2))
        worker.barrier(2)
        merged = compact(header(2, 0), [(data, (0, GROUPS)) for data in worker.segments.values()], [SPEC])
        assert restored(2, merged) == {(20, 1): 1, (10, 2): 3}
        assert len(unseal(merged)[1][0].keys) == 2

    def test_keeps_the_range_for_what_lies_below(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.barrier(2)
        worker.put(2, (30, 1))
        worker.barrier(3)
        pieces = [(worker.segments[epoch], (0, GROUPS)) for epoch in (2, 3)]
        merged = compact(header(3, 1), pieces, [SPEC])
        assert restored(3, worker.segments[1], merged) == {(20, 1): 1, (30, 1): 2}

    def test_into_a_base_leaves_no_range(self, worker: Worker) -> None:
        worker.put(1, (10, 1), (20, 1))
        worker.barrier(1)
        worker.expire(10)
        worker.barrier(2)
        base = compact(header(2, 0), [(data, (0, GROUPS)) for data in worker.segments.values()], [SPEC])
        assert all(delta.through is None for delta in unseal(base)[1])
        assert restored(2, base) == {(20, 1): 1}
