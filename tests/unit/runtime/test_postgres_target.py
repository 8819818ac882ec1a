"""The log of a captured table: snapshots are whole, and of several processes only one appends from a position."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.target import CaptureTarget, Overtaken
from holdfast.runtime.sources.log import OpenLog
from holdfast.runtime.sources.postgres.columns import PgColumn
from holdfast.runtime.sources.postgres.table import WRITER, SourceTable
from holdfast.runtime.worker.subtask import READ_BYTES_MAX
from holdfast.storage.log.log import SENDS_MAX, LogReader, LogWriter, create_log
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import MemoryObjects

TABLE = SourceTable("public", "t", 1, (PgColumn("id", 20, -1), PgColumn("name", 25, -1)), ("id",), full=False)
RECORDS = pa.schema(
    [pa.field("holdfast_deleted", pa.bool_(), False), pa.field("id", pa.int64(), False), pa.field("name", pa.utf8())]
)


class LostReplies(MemoryObjects):
    """Objects of which the replies to the next commits are lost, whether they were stored or not."""

    def __init__(self) -> None:
        super().__init__()
        self.lost, self.stored = 0, True

    def create(self, path: str, data: bytes) -> None:
        if self.lost and path.startswith("commits/"):
            self.lost -= 1
            if self.stored:
                super().create(path, data)
            raise Unavailable("the reply was lost", next_step="wait")
        super().create(path, data)


def opened(store: ObjectStore, table: SourceTable = TABLE) -> CaptureTarget:
    return CaptureTarget(store, "data/log", table, 2, WRITER, pause=lambda _: None)


def puts(*keys: int) -> pa.Table:
    columns = [[False] * len(keys), list(keys), [f"row {key}" for key in keys]]
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(columns, RECORDS, strict=True)], schema=RECORDS)


def stored(store: ObjectStore) -> list[int]:
    return sorted(key for part in read_table(store) for key in part.rows.column("id").to_pylist())


def with_snapshot(store: ObjectStore, lsn: int = 100) -> CaptureTarget:
    target = opened(store)
    target.claim()
    target.append(target.stage(puts(1, 2)), lsn)
    return target


class TestSnapshot:
    def test_is_invisible_until_it_is_appended_and_then_whole(self) -> None:
        store = MemoryObjects()
        target = opened(store)
        target.claim()
        staged = [*target.stage(puts(1, 2, 3)), *target.stage(puts(4, 5))]
        assert stored(store) == [] and opened(store).position is None
        before = LogReader(store).newest().sequence
        target.append(staged, 100)
        assert (stored(store), target.position) == ([1, 2, 3, 4, 5], 100)
        assert LogReader(store).newest().sequence == before + 1
        assert target.tag == Tag(Timeline(1), Epoch(100))

    def test_a_snapshot_overtaken_by_another_attempt_is_never_appended(self) -> None:
        store = MemoryObjects()
        first = opened(store)
        first.claim()
        staged = first.stage(puts(1))
        second = opened(store)
        second.claim()
        with pytest.raises(Overtaken):
            first.append(staged, 100)
        second.append(second.stage(puts(2)), 200)
        assert (stored(store), opened(store).tag) == ([2], Tag(Timeline(2), Epoch(200)))

    def test_is_claimed_by_one_of_two_processes(self) -> None:
        store = MemoryObjects()
        first, second = opened(store), opened(store)
        first.claim()
        with pytest.raises(Overtaken):
            second.claim()
        assert opened(store).tag == first.tag

    def test_the_snapshot_of_an_empty_table_has_no_rows_and_a_position(self) -> None:
        store = MemoryObjects()
        target = opened(store)
        target.claim()
        target.append(target.stage(puts()), 100)
        assert (stored(store), opened(store).position) == ([], 100)


class TestAppend:
    def test_is_refused_from_a_position_that_another_process_has_left(self) -> None:
        store = MemoryObjects()
        with_snapshot(store)
        zombie, successor = opened(store), opened(store)
        successor.append(successor.stage(puts(3)), 150)
        for lsn in (140, 150, 160):
            with pytest.raises(Overtaken):
                zombie.append(zombie.stage(puts(4)), lsn)
        assert (stored(store), opened(store).position) == ([1, 2, 3], 150)

    @pytest.mark.parametrize("was_stored", [True, False])
    def test_whose_reply_was_lost_takes_effect_once(self, was_stored: bool) -> None:
        store = LostReplies()
        target = with_snapshot(store)
        store.lost, store.stored = 1, was_stored
        target.append(target.stage(puts(3)), 150)
        ends = LogReader(store).end_offsets()
        assert (stored(store), sum(ends.values()), target.position) == ([1, 2, 3], 3, 150)

    def test_an_append_of_unknown_outcome_is_found_by_the_next_process(self) -> None:
        store = LostReplies()
        target = with_snapshot(store)
        store.lost, store.stored = 10 * SENDS_MAX, False
        with pytest.raises(Unavailable):
            target.append(target.stage(puts(3)), 150)
        store.lost = 0
        after = opened(store)
        assert after.position == 100
        after.append(after.stage(puts(3)), 150)
        assert sum(LogReader(store).end_offsets().values()) == 3

    def test_to_a_log_that_was_restored_from_a_copy_is_refused(self) -> None:
        store = MemoryObjects()
        target = with_snapshot(store)
        newest = max(store.list("commits"))
        store.delete(newest)
        with pytest.raises(Damaged, match="restored from a copy"):
            target.append((), 150)


class TestLogs:
    def test_with_other_columns_are_refused(self) -> None:
        store = MemoryObjects()
        opened(store)
        more = SourceTable("public", "t", 1, (*TABLE.columns, PgColumn("more", 25, -1)), ("id",), full=False)
        with pytest.raises(ConfigError, match="has the columns"):
            opened(store, more)

    def test_a_log_that_is_not_a_changelog_is_refused(self) -> None:
        store = MemoryObjects()
        create_log(store, TABLE.rows(), 2, ["id"])
        with pytest.raises(ConfigError, match="is not a changelog with the key id"):
            opened(store)

    def test_a_sealed_log_is_refused(self) -> None:
        store = MemoryObjects()
        with_snapshot(store)
        LogWriter(store).seal()
        with pytest.raises(ConfigError, match="is sealed"):
            opened(store)


class TestReading:
    def test_a_job_reads_a_commit_in_one_piece_if_it_is_as_large_as_the_guide_says(self) -> None:
        store, most = MemoryObjects(), 65_536
        target = CaptureTarget(store, "data/log", TABLE, 1, WRITER, pause=lambda _: None)
        target.claim()
        target.append(target.stage(puts(-1)), 100)
        target.append(target.stage(puts(*range(most))), 200)
        target.append(target.stage(puts(-2)), 300)
        batch, following = OpenLog(LogReader(store)).read(0, 1, READ_BYTES_MAX)
        assert batch is not None and batch.nbytes > 1 << 20
        assert (batch.num_rows, following) == (most, 1 + most)
