"""The data source `holdfast-log` as a stream, driven as Spark drives it, without Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import Logged
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.runtime.spark.tables.log_ranges import LogRange
from holdfast.runtime.spark.tables.log_source import LogDataSource
from holdfast.runtime.spark.tables.log_stream import LogStreamReader
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import LogWriter
from holdfast.storage.log.reader import existing_meta


class Query:
    """A streaming query with its checkpoint: positions as JSON, and the rows of the batches that were written."""

    def __init__(self, log: Logged, **options: str) -> None:
        self.source = LogDataSource(
            {"path": str(log.folder)} | {name.lower(): value for name, value in options.items()}
        )
        self.schema = self.source.schema()
        self.start: str | None = None
        self.planned: str | None = None
        """The end of a batch that was planned but not written."""
        self.written: list[int] = []
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        self.reader = self.made()
        if available_now:
            assert isinstance(self.reader, SupportsTriggerAvailableNow)
            self.reader.prepareForTriggerAvailableNow()

    def made(self) -> LogStreamReader:
        made = self.source.streamReader(self.schema)
        assert isinstance(made, LogStreamReader)
        return made

    def plan(self) -> bool:
        """Plan the next batch, and return whether there is one."""
        if self.start is None:
            self.start = json.dumps(self.reader.initialOffset())
        end = json.dumps(self.reader.latestOffset(json.loads(self.start), self.reader.getDefaultReadLimit()))
        self.planned = None if end == self.start else end
        return self.planned is not None

    def read(self) -> list[dict[str, Any]]:
        """Return the rows of the batch that was planned, as its tasks read them."""
        pairs = [(self.made(), part) for part in self.ranges()]
        sent: list[Any] = pickle.loads(pickle.dumps(pairs))  # noqa: S301 - made here
        return [row for reader, part in sent for batch in reader.read(part) for row in batch.to_pylist()]

    def ranges(self) -> list[LogRange]:
        """Return what the tasks of the planned batch read."""
        assert self.start is not None and self.planned is not None
        return self.reader.partitions(json.loads(self.start), json.loads(self.planned))

    def batch(self) -> list[int]:
        """Plan, read and write a batch; return its numbers, none if there was none."""
        if not self.plan():
            return []
        found = [row["n"] for row in self.read()]
        self.written += found
        self.start, self.planned = self.planned, None
        self.reader.commit(json.loads(self.start or ""))
        return found

    def refused(self) -> Damaged:
        with pytest.raises(Damaged) as refused:
            self.batch()
        return refused.value


@pytest.fixture
def log(tmp_path: Path) -> Logged:
    made = Logged(tmp_path / "log")
    made.append(0, 1, 2)
    return made


@pytest.fixture
def keyed(tmp_path: Path) -> Logged:
    made = Logged(tmp_path / "log", keyed=True)
    made.append(0, 1, 2)
    return made


class TestBatches:
    def test_each_follows_the_one_before(self, log: Logged) -> None:
        query = Query(log)
        assert query.batch() == [0, 1, 2]
        log.append(3)
        log.append(10, partition=1)
        assert query.batch() == [3, 10]

    def test_a_log_without_new_rows_has_no_batch(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        assert not query.plan()
        LogWriter(log.store).grow(pa.schema([pa.field("size", pa.float64())]))
        LogWriter(log.store).widen(3)
        LogWriter(log.store).seal()
        assert not query.plan()

    def test_an_empty_log_has_no_batch_until_it_gets_rows(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        query = Query(log)
        assert not query.plan()
        log.append(1)
        assert query.batch() == [1]

    def test_a_restarted_query_continues(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        log.append(3)
        query.restart()
        assert query.batch() == [3]

    def test_a_batch_is_repeated_with_the_same_rows(self, log: Logged) -> None:
        query = Query(log)
        assert query.plan()
        first = query.read()
        log.append(3)
        query.restart()
        assert query.read() == first

    def test_its_position_is_stored_with_the_identity_of_the_log(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        log.append(3)
        commit = Commits(log.store, existing_meta(log.store))
        seen = {"log": commit.meta.uuid, "commit": 1, "xxh3": commit.hash_of(1), "compact": 0}
        assert json.loads(query.start or "") == {"v": 1, "seen": seen, "offsets": {"0": 3, "1": 0}}

    def test_a_query_can_start_at_the_end(self, log: Logged) -> None:
        query = Query(log, startingOffsets="latest")
        assert not query.plan()
        log.append(3)
        assert query.batch() == [3]

    def test_a_query_can_start_at_chosen_offsets(self, log: Logged) -> None:
        assert Query(log, startingOffsets='{"0": 2}').batch() == [2]

    def test_an_end_is_refused(self, log: Logged) -> None:
        with pytest.raises(hf.ConfigError, match="there is no option 'endingoffsets'"):
            Query(log, endingOffsets="latest")

    def test_the_place_of_each_row_can_be_asked_for(self, log: Logged) -> None:
        query = Query(log, offsets="true")
        assert query.plan()
        assert [(row["_partition"], row["_offset"]) for row in query.read()] == [(0, 0), (0, 1), (0, 2)]

    def test_an_added_partition_is_read_from_its_first_row(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        LogWriter(log.store).widen(4)
        log.append(30, 31, partition=3)
        assert query.batch() == [30, 31]
        query.restart()
        log.append(32, partition=3)
        assert query.batch() == [32]

    def test_an_added_column_is_left_out_until_the_query_starts_again(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        grown = LogWriter(log.store).grow(pa.schema([pa.field("size", pa.float64())]))
        LogWriter(log.store).append({0: pa.table([[3], ["w3"], [0.5]], schema=grown)})
        assert query.plan()
        assert query.read() == [{"n": 3, "word": "w3"}]


class TestLimits:
    def test_a_batch_has_at_most_as_many_rows(self, log: Logged) -> None:
        log.append(3, 4, 5, 6)
        query = Query(log, maxRecordsPerTrigger="3")
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(3)
        assert [query.batch() for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]

    def test_partitions_share_a_batch_and_leave_what_they_do_not_need(self, log: Logged) -> None:
        log.append(10, partition=1)
        log.append(3, 4, 5)
        assert sorted(Query(log, maxRecordsPerTrigger="4").batch()) == [0, 1, 2, 10]

    def test_one_row_for_many_partitions_is_still_progress(self, log: Logged) -> None:
        log.append(10, 11, partition=1)
        query = Query(log, maxRecordsPerTrigger="1")
        assert all(len(query.batch()) == 1 for _ in range(5))
        assert sorted(query.written) == [0, 1, 2, 10, 11]

    def test_without_a_limit_there_is_none(self, log: Logged) -> None:
        assert Query(log).reader.getDefaultReadLimit() == ReadAllAvailable()

    def test_a_range_that_was_taken_back_is_longer_than_a_batch(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 0)
        log.deliver(2, *range(90, 99))
        log.rewind(1)
        log.append(1, 2, 3)
        query = Query(log, maxRecordsPerTrigger="2")
        assert [query.batch() for _ in range(3)] == [[0, 1], [2, 3], []]

    def test_a_query_that_ends_by_itself_stops_where_the_log_ended_at_its_start(self, log: Logged) -> None:
        query = Query(log, maxRecordsPerTrigger="2")
        query.restart(available_now=True)
        assert query.batch() == [0, 1]
        log.append(3)
        LogWriter(log.store).widen(3)
        log.append(20, partition=2)
        assert query.batch() == [2]
        assert not query.plan()
        query.restart(available_now=True)
        assert query.batch() + query.batch() == [3, 20]

    def test_the_end_of_such_a_query_may_be_taken_back(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 0)
        log.deliver(2, 90)
        query = Query(log, maxRecordsPerTrigger="1")
        query.restart(available_now=True)
        assert query.batch() == [0]
        log.rewind(1)
        log.deliver(3, 1, timeline=2)
        assert not query.plan()
        query.restart(available_now=True)
        assert query.batch() == [1]


class TestAnotherLog:
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_recreated_log_is_refused(self, log: Logged, restarted: bool) -> None:
        query = Query(log)
        query.batch()
        log.recreate()
        log.append(*range(100, 110))
        if restarted:
            query.restart()
        assert "holds another log" in query.refused().what

    def test_a_log_that_was_recreated_before_its_first_row_is_refused(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        query = Query(log)
        assert not query.plan()
        log.recreate()
        log.append(1)
        assert "holds another log" in query.refused().what

    def test_a_deleted_log_is_reported(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        log.folder.rename(log.folder.with_suffix(".gone"))
        assert "no longer exists" in query.refused().what

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_log_restored_from_an_older_copy_is_refused(self, log: Logged, restarted: bool) -> None:
        query = Query(log)
        log.copy()
        log.append(3)
        query.batch()
        log.restore()
        if restarted:
            query.restart()
        refused = query.refused()
        assert "ends at commit 1, but was read up to commit 2" in refused.what
        assert "new checkpointLocation" in refused.next_step

    @pytest.mark.parametrize("restarted", [False, True])
    def test_so_is_one_that_has_got_other_rows_since(self, log: Logged, restarted: bool) -> None:
        query = Query(log)
        log.copy()
        log.append(3)
        query.batch()
        log.restore()
        log.append(99)
        log.append(98)
        if restarted:
            query.restart()
        assert "has changed since" in query.refused().what

    def test_a_copy_with_all_that_was_read_is_as_good(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        log.copy()
        log.append(3)
        log.restore()
        query.restart()
        log.append(4)
        assert query.batch() == [4]

    def test_a_batch_that_was_planned_from_another_history_is_not_repeated(self, log: Logged) -> None:
        query = Query(log)
        log.copy()
        log.append(3)
        assert query.plan()
        log.restore()
        log.append(99)
        query.restart()
        with pytest.raises(Damaged, match="has changed since"):
            query.ranges()

    def test_an_offset_beyond_the_end_is_refused(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        assert query.start is not None
        query.start = query.start.replace('"offsets": {"0": 3', '"offsets": {"0": 30')
        assert "ends at offset 3, but was read up to offset 30" in query.refused().what

    @pytest.mark.parametrize("stored", ['{"position": 3}', '{"v": 2, "seen": {}, "offsets": {}}'])
    def test_a_checkpoint_of_another_source_is_refused(self, log: Logged, stored: str) -> None:
        query = Query(log)
        query.start = stored
        with pytest.raises(hf.ConfigError, match="checkpoint of this query"):
            query.plan()

    def test_a_position_of_a_newer_version_is_refused(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        assert query.start is not None
        query.start = query.start.replace('"v": 1', '"v": 2')
        with pytest.raises(hf.ConfigError, match="has format 2; this version reads format 1"):
            query.plan()


class TestRewinds:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Logged:
        """A log with rows of epochs 1 and 2 of a job, and a row of another writer behind them."""
        made = Logged(tmp_path / "log")
        made.deliver(1, 0)
        made.deliver(2, 1, 2)
        made.append(3)
        return made

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_rewind_of_rows_that_were_read_is_refused(self, log: Logged, restarted: bool) -> None:
        query = Query(log)
        assert query.batch() == [0, 1, 2, 3]
        log.rewind(1)
        log.deliver(3, 4, timeline=2)
        if restarted:
            query.restart()
        refused = query.refused()
        assert "offset 1 to before 3 of partition 0" in refused.what and "read up to offset 4" in refused.what
        assert 'startingOffsets {"0":1,"1":0}' in refused.next_step
        assert (refused.where.partition, refused.where.offset) == (0, 1)
        query.restart()
        assert query.refused().what == refused.what

    def test_the_query_that_the_message_proposes_continues_without_them(self, log: Logged) -> None:
        query = Query(log)
        query.batch()
        log.rewind(1)
        log.deliver(3, 4, timeline=2)
        _, _, offsets = query.refused().next_step.partition("startingOffsets ")
        assert Query(log, startingOffsets=offsets).batch() == [3, 4]

    def test_a_rewind_of_rows_that_were_not_read_is_not_noticed(self, log: Logged) -> None:
        query = Query(log, maxRecordsPerTrigger="1")
        assert query.batch() == [0]
        log.rewind(1)
        assert [query.batch(), query.batch()] == [[3], []]

    def test_a_rewind_before_the_query_began_changes_nothing(self, log: Logged) -> None:
        log.rewind(1)
        query = Query(log, maxRecordsPerTrigger="1")
        assert [query.batch(), query.batch(), query.batch()] == [[0], [3], []]
        query.restart()
        assert query.batch() == []

    def test_a_second_rewind_of_rows_that_the_first_kept_is_refused(self, log: Logged) -> None:
        log.rewind(1)
        query = Query(log)
        assert query.batch() == [0, 3]
        log.rewind(0, timeline=3)
        assert "offset 0 to before 1" in query.refused().what

    def test_a_rewind_of_a_planned_batch_is_refused(self, log: Logged) -> None:
        query = Query(log)
        assert query.plan()
        log.rewind(1)
        with pytest.raises(Damaged, match="offset 1 to before 3"):
            query.ranges()

    def test_a_rewind_between_plan_and_task_is_refused_by_the_task(self, log: Logged) -> None:
        query = Query(log)
        assert query.plan()
        parts = query.ranges()
        log.rewind(1)
        with pytest.raises(Damaged, match="after this query was planned"):
            list(query.reader.read(parts[0]))


class TestCompactions:
    def test_rows_removed_before_they_were_read_are_not_passed_over(self, keyed: Logged) -> None:
        query = Query(keyed, maxRecordsPerTrigger="1")
        query.batch()
        keyed.append(1)
        keyed.compact()
        refused = query.refused()
        assert "rows of partition 0 from offset 1 on were removed unread" in refused.what
        query.restart()
        assert query.refused().what == refused.what

    def test_a_batch_that_was_planned_is_not_repeated_without_its_rows(self, keyed: Logged) -> None:
        query = Query(keyed)
        assert query.plan()
        keyed.append(1)
        keyed.compact()
        query.restart()
        with pytest.raises(Damaged, match="the log was compacted"):
            query.ranges()

    def test_rows_that_were_read_may_be_removed(self, keyed: Logged) -> None:
        query = Query(keyed)
        query.batch()
        keyed.append(1)
        assert query.batch() == [1]
        keyed.compact()
        assert not query.plan()
        keyed.append(2)
        query.restart()
        assert query.batch() == [2]

    def test_a_query_begins_with_the_rows_that_a_compaction_has_left(self, keyed: Logged) -> None:
        keyed.append(1, 0)
        keyed.compact()
        query = Query(keyed, maxRecordsPerTrigger="1")
        while query.plan():
            query.batch()
        assert query.written == [2, 1, 0]

    def test_so_does_one_that_has_chosen_its_start_before_the_compaction(self, keyed: Logged) -> None:
        query = Query(keyed)
        query.start = json.dumps(query.reader.initialOffset())
        keyed.append(1)
        keyed.compact()
        assert query.batch() == [0, 2, 1]

    def test_a_compaction_that_removed_no_row_changes_nothing(self, keyed: Logged) -> None:
        query = Query(keyed, maxRecordsPerTrigger="1")
        query.batch()
        keyed.compact()
        assert query.batch() == [1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("deliver"), st.integers(1, 3)),
        st.tuples(st.just("rewind"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("batch"), st.just(0)),
    ),
    max_size=14,
)


class TestAnyHistory:
    @given(steps=STEPS, limit=st.sampled_from(["1", "2", "5", "1000"]))
    @settings(max_examples=60, deadline=None)
    def test_a_stream_has_every_row_that_counts_once_or_is_refused(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], limit: str
    ) -> None:
        log = Logged(tmp_path_factory.mktemp("any") / "log")
        query = Query(log, maxRecordsPerTrigger=limit)
        kept: list[tuple[int, int]] = []  # number, epoch; 0 for rows of no job
        number, epoch, timeline = 0, 0, 1
        for kind, count in [*steps, *[("batch", 0)] * 50]:
            new = list(range(number, number + count)) if kind in ("append", "deliver") else []
            number += len(new)
            if kind == "append":
                log.append(*new)
                kept += [(each, 0) for each in new]
            elif kind == "deliver":
                epoch += 1
                log.deliver(epoch, *new, timeline=timeline)
                kept += [(each, epoch) for each in new]
            elif kind == "rewind":
                timeline += 1
                base = max(0, epoch - count)
                log.rewind(base, timeline)
                kept = [(each, of) for each, of in kept if of <= base]
            elif kind == "restart":
                query.restart()
            elif set(query.written) <= {each for each, _ in kept}:
                query.batch()
            else:
                query.refused()
                return
        assert query.written == [each for each, _ in kept]

    @given(
        before=st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=6),
        steps=st.lists(st.one_of(st.integers(0, 4), st.sampled_from(["compact", "batch", "restart"])), max_size=14),
        limit=st.sampled_from(["1", "2", "1000"]),
    )
    @settings(max_examples=60, deadline=None)
    def test_a_stream_of_a_compacted_log_misses_no_row_that_was_there_when_it_began(
        self, tmp_path_factory: pytest.TempPathFactory, before: list[int | None], steps: list[int | str], limit: str
    ) -> None:
        log = Logged(tmp_path_factory.mktemp("any") / "log", keyed=True)
        wanted, began = list[int](), len(before)
        query, compacted = Query(log, maxRecordsPerTrigger=limit), False
        for number, action in enumerate([*before, "restart", "batch", *steps, *["batch"] * 20]):
            if action is None or action == "compact":
                log.compact()
                if not query.written:  # the query begins with its first row
                    wanted = [key for at, key in enumerate(wanted) if key not in wanted[at + 1 :]]
                compacted |= number > began
            elif action == "restart":
                query.restart()
            elif action == "batch":
                try:
                    query.batch()
                except Damaged as refused:
                    assert compacted and "removed unread" in refused.what
                    assert query.written == wanted[: len(query.written)] != wanted
                    return
            else:
                assert isinstance(action, int)
                log.append(action)
                wanted.append(action)
        assert query.written == wanted
