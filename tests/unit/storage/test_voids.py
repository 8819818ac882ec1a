"""Rows of a log that a rewind took back: unseen by who comes later, an error for who has read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.sources.log import Log
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.log.sink import plan_repair, repair, writer_name
from holdfast.storage.log.format import VoidRange, commit_path
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
JOB, OTHER = "6f9b0f6e-0000-4000-8000-000000000001", "6f9b0f6e-0000-4000-8000-000000000002"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
ANY_BYTES = 1 << 30


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64())], schema=SCHEMA)


def append(
    store: MemoryObjects,
    epoch: int,
    numbers: dict[int, list[int]],
    writer: Writer = LEFT,
    timeline: int = 1,
    job: str = JOB,
) -> bool:
    log = LogWriter(store, pause=lambda _: None)
    placed = {partition: rows(*some) for partition, some in numbers.items()}
    return log.append_tagged(placed, writer_name(job, writer), tag(epoch, timeline)) is not None


def to(epoch: int, timeline: int = 2, writers: tuple[Writer, ...] = (LEFT, RIGHT)) -> Rewinding:
    return Rewinding(JOB, "out", tag(epoch, timeline), writers)


def rewind(store: MemoryObjects, epoch: int, timeline: int = 2) -> int:
    return repair("the log", store, to(epoch, timeline), pause=lambda _: None).delete


def read_on(reader: LogReader, partition: int, offset: int) -> tuple[list[tuple[int, int]], int]:
    """Return offsets and numbers to the end, and the reader's offset then."""
    found: list[tuple[int, int]] = []
    while True:
        batch, following = reader.read(partition, offset, ANY_BYTES)
        if batch is None:
            return found, following
        found += zip(range(following - batch.num_rows, following), batch.column("n").to_pylist(), strict=True)
        offset = following


class Interrupted(MemoryObjects):
    """Calls a function once, right before a commit is created."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] | None = None
        self.gets: list[str] = []

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("commits/") and self.before is not None:
            before, self.before = self.before, None
            before()
        super().create(path, data)

    def get(self, path: str) -> bytes:
        self.gets.append(path)
        return super().get(path)


@pytest.fixture
def store() -> Interrupted:
    made = Interrupted()
    create_log(made, SCHEMA, partitions=2)
    append(made, 1, {0: [10, 11], 1: [12]})
    append(made, 2, {0: [20]}, RIGHT)
    append(made, 3, {0: [30, 31], 1: [32]})
    return made


class TestLaterReaders:
    def test_later_readers_never_see_void_rows(self, store: Interrupted) -> None:
        assert rewind(store, 2) == 3
        reader = LogReader(store)
        assert read_on(reader, 0, 0) == ([(0, 10), (1, 11), (2, 20)], 3)
        assert read_on(reader, 1, 0) == ([(0, 12)], 1)

    def test_void_offsets_are_not_reused(self, store: Interrupted) -> None:
        rewind(store, 2)
        assert LogReader(store).end_offsets() == {0: 5, 1: 2}
        append(store, 9, {0: [90]}, timeline=2)
        assert read_on(LogReader(store), 0, 3) == ([(5, 90)], 6)

    def test_the_last_position_is_before_a_void_range_at_the_end(self, store: Interrupted) -> None:
        rewind(store, 1)
        reader = LogReader(store)
        assert (reader.read(0, 2, ANY_BYTES), reader.last_position(0), reader.rows(0)) == ((None, 2), 2, 2)

    def test_rows_of_other_writers_in_between_are_kept(self, store: Interrupted) -> None:
        append(store, 7, {0: [70]}, job=OTHER)
        LogWriter(store).append({0: rows(71)})
        append(store, 4, {0: [40]})
        assert rewind(store, 1) == 5
        assert read_on(LogReader(store), 0, 0) == ([(0, 10), (1, 11), (5, 70), (6, 71)], 7)

    def test_a_sealed_log_has_ended_before_its_last_void_range(self, tmp_path: Path) -> None:
        store = LocalObjects(tmp_path)
        create_log(store, SCHEMA, partitions=1)
        log = LogWriter(store)
        log.append_tagged({0: rows(1, 2)}, writer_name(JOB, LEFT), tag(1))
        log.append_tagged({0: rows(3)}, writer_name(JOB, LEFT), tag(2))
        repair("the log", store, to(1))
        log.seal()
        source = Log(tmp_path).source().open()
        assert source.end_offsets() == {0: 2}
        assert source.read(0, 2, ANY_BYTES) == (None, 2)
        assert source.ended(0, 2) and not source.ended(0, 1)


class TestReadersBeyondTheRange:
    def test_a_running_reader_stops_at_its_next_refresh(self, store: Interrupted) -> None:
        reader = LogReader(store)
        read_on(reader, 0, 0)
        rewind(store, 2)
        with pytest.raises(Damaged) as stopped:
            reader.refresh()
        assert "offset 3 to before 5 of partition 0" in stopped.value.what
        assert "read offset 3" in stopped.value.next_step
        assert (stopped.value.where.partition, stopped.value.where.offset) == (0, 3)
        with pytest.raises(Damaged):
            reader.refresh()

    def test_a_reader_that_began_after_the_range_is_given_the_offset_it_reached(self, store: Interrupted) -> None:
        append(store, 7, {0: [70]}, job=OTHER)
        reader = LogReader(store)
        assert read_on(reader, 0, 5)[1] == 6
        rewind(store, 2)
        with pytest.raises(Damaged, match="up to offset 6"):
            reader.refresh()

    def test_a_reader_before_the_range_continues(self, store: Interrupted) -> None:
        reader = LogReader(store)
        reader.read(0, 0, ANY_BYTES)
        rewind(store, 2)
        assert reader.refresh()
        assert read_on(reader, 0, 2) == ([(2, 20)], 3)

    @pytest.mark.parametrize("offset", [4, 5])
    def test_a_reader_restarted_inside_or_at_the_end_of_the_range_stops(self, store: Interrupted, offset: int) -> None:
        rewind(store, 2)
        append(store, 9, {0: [90]}, timeline=2)
        with pytest.raises(Damaged, match="removed by a rewind"):
            LogReader(store).read(0, offset, ANY_BYTES)

    def test_a_reader_restarted_at_the_beginning_or_after_the_range_continues(self, store: Interrupted) -> None:
        rewind(store, 2)
        append(store, 9, {0: [90, 91]}, timeline=2)
        reader = LogReader(store)
        assert read_on(reader, 0, 3)[0] == [(5, 90), (6, 91)]
        assert read_on(LogReader(store), 0, 6)[0] == [(6, 91)]

    def test_a_second_rewind_stops_a_reader_of_rows_that_the_first_kept(self, store: Interrupted) -> None:
        rewind(store, 2)
        reader = LogReader(store)
        assert read_on(reader, 0, 0)[1] == 3
        rewind(store, 1, timeline=3)
        with pytest.raises(Damaged, match="offset 2 to before 3"):
            reader.refresh()
        assert read_on(LogReader(store), 0, 0) == ([(0, 10), (1, 11)], 2)


class TestInspection:
    @pytest.fixture
    def log(self) -> LogReader:
        """Offsets 0 and 1 hold rows, 2 to 4 were made void by one rewind and 5 to 6 by another, 7 and 8 hold rows."""
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=1)
        append(store, 1, {0: [0, 1]})
        append(store, 2, {0: [2, 3, 4]})
        rewind(store, 1)
        append(store, 10, {0: [5, 6]}, timeline=2)
        rewind(store, 1, timeline=3)
        append(store, 20, {0: [7, 8]}, timeline=3)
        return LogReader(store)

    @pytest.mark.parametrize("offset", range(10))
    def test_an_offset_in_a_void_range_gives_the_next_row(self, log: LogReader, offset: int) -> None:
        found, _ = read_on(log, 0, log.begin(0, offset))
        assert found == [(n, n) for n in (0, 1, 7, 8) if n >= offset]

    @pytest.mark.parametrize("count", range(6))
    def test_the_last_rows_are_counted_without_void_rows(self, log: LogReader, count: int) -> None:
        found, _ = read_on(log, 0, log.begin(0, log.before_the_end(0, count)))
        assert [n for n, _ in found] == [0, 1, 7, 8][max(0, 4 - count) :]

    @pytest.mark.parametrize("count", range(1, 6))
    @pytest.mark.parametrize("offset", [0, 1, 2, 8, 9])
    def test_a_position_is_found_behind_some_rows(self, log: LogReader, offset: int, count: int) -> None:
        left = [n for n in (0, 1, 7, 8) if n >= offset]
        after = log.position_after(0, offset, count)
        assert log.begin(0, after) == after
        found, _ = read_on(log, 0, after)
        assert [n for n, _ in found] == left[count:]

    def test_what_was_taken_back_since_a_commit_is_known(self, log: LogReader) -> None:
        ranges = [VoidRange(0, 2, 5), VoidRange(0, 5, 7)]
        assert [list(log.taken_back_since(each)) for each in range(7)] == [ranges] * 3 + [ranges[1:]] * 2 + [[], []]

    def test_void_rows_can_be_read_as_stored(self, log: LogReader) -> None:
        found = list[int]()
        batch, _, at = log.read_stored(0, 0, 1)
        while batch is not None:
            found += batch.column("n").to_pylist()
            batch, _, at = log.read_stored(0, at, 1)
        assert found == list(range(9))


class TestRaces:
    def test_an_append_in_progress_fails(self, store: Interrupted) -> None:
        store.before = lambda: rewind(store, 2)
        assert not append(store, 4, {0: [40]})
        assert read_on(LogReader(store), 0, 0)[0] == [(0, 10), (1, 11), (2, 20)]

    def test_an_append_that_wins_against_the_rewind_is_undone_too(self, store: Interrupted) -> None:
        store.before = lambda: append(store, 4, {0: [40]}, RIGHT)
        assert rewind(store, 2) == 4
        assert read_on(LogReader(store), 0, 0)[0] == [(0, 10), (1, 11), (2, 20)]

    def test_a_rewind_does_nothing_after_an_equal_one_won(self, store: Interrupted) -> None:
        store.before = lambda: rewind(store, 2)
        assert rewind(store, 2) == 0
        assert store.list("commits")[-1] == commit_path(4)

    def test_a_lost_reply_is_settled_by_the_owner_token(self, store: Interrupted) -> None:
        class Lossy(MemoryObjects):
            def create(self, path: str, data: bytes) -> None:
                store.create(path, data)
                raise Unavailable("the reply was lost", next_step="try again")

            get, list, put = store.get, store.list, store.put

        assert repair("the log", Lossy(), to(2), pause=lambda _: None).delete == 3
        assert store.list("commits")[-1] == commit_path(4)

    def test_only_commits_since_the_base_are_read(self) -> None:
        store = Interrupted()
        create_log(store, SCHEMA, partitions=1)
        for epoch in range(1, 60):
            append(store, epoch, {0: [epoch]})
        store.gets.clear()
        plan_repair("the log", store, to(57))
        assert len(store.gets) <= 7


class TestFormat:
    def test_a_log_that_was_never_rewound_stays_at_format_one(self, store: Interrupted) -> None:
        assert b'"v":1' in store.get(commit_path(3)) and b"void" not in store.get(commit_path(3))

    def test_older_releases_refuse_a_rewound_log_as_newer(self, store: Interrupted) -> None:
        rewind(store, 2)
        append(store, 9, {0: [90]}, timeline=2)
        for sequence in (4, 5):
            assert store.get(commit_path(sequence)).startswith(b'{"v":2,')

    def test_the_record_lists_all_void_ranges_and_moves_the_tags(self, store: Interrupted) -> None:
        rewind(store, 2)
        rewind(store, 1, timeline=3)
        commit = LogReader(store)._commits.tail
        assert (commit.kind, commit.void, commit.segments, commit.tag) == ("void", 5, (), None)
        assert commit.voids == (VoidRange(0, 2, 3), VoidRange(0, 3, 5), VoidRange(1, 1, 2))
        assert [t.tag for t in commit.tags] == [tag(1, 3)] * 2

    def test_a_void_range_outside_the_log_is_damage(self, store: Interrupted) -> None:
        rewind(store, 2)
        data = store.get(commit_path(4)).replace(b'"end":5', b'"end":9')
        store.put(commit_path(4), data)
        with pytest.raises(Damaged):
            LogReader(store)

    def test_a_sealed_log_cannot_be_rewound(self, store: Interrupted) -> None:
        LogWriter(store).seal()
        assert plan_repair("the log", store, to(2)).verdict == "impossible"
        with pytest.raises(ConfigError, match="the log is sealed"):
            rewind(store, 2)
        assert read_on(LogReader(store), 0, 0)[1] == 5


Step = tuple[str, Any, Any]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([LEFT, RIGHT]), st.integers(0, 3)),
        st.tuples(st.just("plain"), st.just(None), st.integers(1, 2)),
        st.tuples(st.just("rewind"), st.integers(0, 4), st.just(None)),
        st.tuples(st.just("read"), st.just(None), st.just(None)),
    ),
    max_size=14,
)


class TestAnyHistory:
    @given(steps=STEPS)
    @settings(max_examples=40, deadline=None)
    def test_every_reader_sees_the_kept_rows_or_an_error(self, steps: list[Step]) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=1)
        kept: list[tuple[int, int]] = []  # offset, epoch; 0 for rows of no sink
        end, epoch, timeline = 0, 1, 1
        following, seen, offset = LogReader(store), list[int](), 0
        for kind, what, count in steps:
            if kind == "append":
                epoch += 1
                assert append(store, epoch, {0: list(range(end, end + count))}, what, timeline)
                kept += [(at, epoch) for at in range(end, end + count)]
                end += count
            elif kind == "plain":
                LogWriter(store).append({0: rows(*range(end, end + count))})
                kept += [(at, 0) for at in range(end, end + count)]
                end += count
            elif kind == "rewind":
                timeline += 1
                base = max(0, epoch - what)
                rewind(store, base, timeline)
                kept = [(at, of) for at, of in kept if of <= base]
            else:
                valid = set(seen) <= {at for at, _ in kept}
                try:
                    following.refresh()
                except Damaged:
                    assert not valid
                    return
                assert valid
                found, offset = read_on(following, 0, offset)
                seen += [number for _, number in found]
                assert seen == [at for at, _ in kept]
                assert read_on(LogReader(store), 0, offset) == ([], offset)
            assert read_on(LogReader(store), 0, 0)[0] == [(at, at) for at, _ in kept]
