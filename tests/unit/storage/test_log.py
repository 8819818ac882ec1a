"""The embedded log: appended rows are read back, once, in order, or an error names the damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.storage.log import log
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import Commit, Draft, LogSegment, before_the_first, commit_path, encode_commit, placed
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.segment import READ_ROWS_MAX, encode_segment, segment_hash
from holdfast.storage.objects import LocalObjects, MemoryObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
ANY_BYTES = 1 << 30


def rows(*numbers: int) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64()), pa.array([f"w{n}" for n in numbers], pa.utf8())], SCHEMA.names)


def writer_of(store: ObjectStore) -> LogWriter:
    return LogWriter(store, pause=lambda _: None, wall_us=lambda: 7)


def numbers_in(store: ObjectStore, partition: int = 0) -> list[int]:
    reader, offset = LogReader(store), 0
    found: list[int] = []
    while True:
        batch, offset = reader.read(partition, offset, ANY_BYTES)
        if batch is None:
            return found
        found += batch.column("n").to_pylist()


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = MemoryObjects() if request.param == "memory" else LocalObjects(tmp_path)
    create_log(made, SCHEMA, partitions=2)
    return made


class FaultyObjects(MemoryObjects):
    """A store whose creates of commits fail on request, before or after they took effect; also reads after a create."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.reads_failing = self._failing = 0

    def get(self, path: str) -> bytes:
        if self._failing and path.startswith("commits/"):
            self._failing -= 1
            raise Unavailable("the store does not answer", next_step="try again")
        return super().get(path)

    def create(self, path: str, data: bytes) -> None:
        fault = self.faults.pop(0) if self.faults and path.startswith("commits/") else "none"
        self._failing, self.reads_failing = self._failing + self.reads_failing, 0
        if fault != "before":
            super().create(path, data)
        if fault != "none":
            raise Unavailable("the store does not answer", next_step="try again")


class TestCreatingALog:
    def test_a_new_log_is_empty_and_keeps_its_schema_partitions_and_key(self) -> None:
        store = MemoryObjects()
        created = create_log(store, SCHEMA, partitions=3, key=["word"])
        assert read_meta(store) == created
        assert (created.schema, created.partitions, created.key) == (SCHEMA, 3, ("word",))
        assert LogReader(store).end_offsets() == {0: 0, 1: 0, 2: 0}

    def test_schema_metadata_is_not_part_of_the_log(self) -> None:
        assert create_log(MemoryObjects(), SCHEMA.with_metadata({"x": "y"})).schema.metadata is None

    def test_a_second_create_is_refused_and_changes_nothing(self, store: ObjectStore) -> None:
        before = read_meta(store)
        with pytest.raises(ConfigError, match="already holds a log"):
            create_log(store, SCHEMA, partitions=9)
        assert read_meta(store) == before

    def test_no_log_is_created_over_commits_without_meta(self, store: ObjectStore) -> None:
        LogWriter(store).seal()
        store.delete("meta.json")
        with pytest.raises(Damaged, match=r"has commits of a log, such as commits/0+1\.json, but no meta\.json"):
            create_log(store, SCHEMA, 1)
        assert store.list("") == ["commits/00000000000000000001.json"]

    def test_a_create_whose_reply_was_lost_succeeds(self) -> None:
        class LostReply(MemoryObjects):
            def create(self, path: str, data: bytes) -> None:
                super().create(path, data)
                raise Unavailable("the reply was lost", next_step="try again")

        store = LostReply()
        assert create_log(store, SCHEMA, pause=lambda _: None) == read_meta(store)

    @pytest.mark.parametrize(
        ("schema", "partitions", "key", "message"),
        [
            (SCHEMA, 0, None, "partitions"),
            (SCHEMA, 5_000, None, "partitions"),
            (pa.schema([]), 1, None, "no column"),
            (pa.schema([("a", pa.int64()), ("a", pa.int64())]), 1, None, "twice"),
            (pa.schema([("a", pa.dictionary(pa.int32(), pa.utf8()))]), 1, None, "dictionary"),
            (SCHEMA, 1, ["absent"], "key column 'absent'"),
        ],
    )
    def test_an_invalid_log_is_refused(
        self, schema: pa.Schema, partitions: int, key: list[str] | None, message: str
    ) -> None:
        store = MemoryObjects()
        with pytest.raises(ConfigError, match=message):
            create_log(store, schema, partitions, key)
        assert store.list("") == []

    def test_readers_and_writers_without_a_log_name_the_command_that_creates_one(self) -> None:
        for open_it in (LogReader, LogWriter):
            with pytest.raises(ConfigError) as caught:
                open_it(MemoryObjects())
            assert "holdfast log create" in caught.value.next_step


class TestAppendingAndReading:
    def test_rows_are_read_in_order_with_dense_offsets(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        assert writer.append({0: rows(1, 2), 1: rows(10)}) == {0: 0, 1: 0}
        assert writer.append({0: rows(3)}) == {0: 2}
        assert numbers_in(store, 0) == [1, 2, 3]
        assert numbers_in(store, 1) == [10]
        assert LogReader(store).end_offsets() == {0: 3, 1: 1}

    def test_staged_rows_are_appended_in_one_commit(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(1)})
        staged = [writer_of(store).stage(given) for given in ({0: rows(2, 3)}, {1: rows(10)}, {0: rows(4)}, {})]
        assert LogReader(store).end_offsets() == {0: 1, 1: 0}, "nothing is appended yet"
        assert writer.append_staged(segment for each in staged for segment in each) == {0: 1, 1: 0}
        assert (numbers_in(store, 0), numbers_in(store, 1)) == ([1, 2, 3, 4], [10])
        assert LogReader(store).newest().sequence == 2
        assert writer.append_staged([]) == {}

    def test_a_read_gives_the_next_offset(self, store: ObjectStore) -> None:
        writer_of(store).append({0: rows(1, 2, 3)})
        batch, after = LogReader(store).read(0, 1, ANY_BYTES)
        assert batch is not None and batch.to_pydict() == {"n": [2, 3], "word": ["w2", "w3"]}
        assert after == 3

    def test_a_read_at_the_end_gives_nothing(self, store: ObjectStore) -> None:
        writer_of(store).append({0: rows(1)})
        assert LogReader(store).read(0, 1, ANY_BYTES) == (None, 1)

    def test_a_read_beyond_the_end_is_an_error_that_names_the_offset(self, store: ObjectStore) -> None:
        with pytest.raises(Damaged) as caught:
            LogReader(store).read(1, 5, ANY_BYTES)
        assert (caught.value.where.partition, caught.value.where.offset) == (1, 5)

    def test_max_bytes_limits_a_read_but_to_no_less_than_one_row(self, store: ObjectStore) -> None:
        writer_of(store).append({0: rows(*range(100))})
        reader = LogReader(store)
        half, after = reader.read(0, 0, LogReader(store).read(0, 0, ANY_BYTES)[0].nbytes // 2)  # type: ignore[union-attr]
        assert half is not None and half.num_rows == after == 50
        one, after = reader.read(0, 50, 1)
        assert one is not None and one.num_rows == 1 and after == 51

    def test_a_long_segment_is_read_in_pieces(self, store: ObjectStore) -> None:
        count = 2 * READ_ROWS_MAX + 5
        writer_of(store).append({0: rows(*range(count))})
        reader, offset, sizes = LogReader(store), 0, []
        while (got := reader.read(0, offset, ANY_BYTES))[0] is not None:
            sizes.append(got[0].num_rows)
            offset = got[1]
        assert sizes == [READ_ROWS_MAX, READ_ROWS_MAX, 5]
        assert numbers_in(store) == list(range(count))

    def test_rows_can_be_given_as_a_record_batch(self, store: ObjectStore) -> None:
        writer_of(store).append({0: rows(1, 2).to_batches()[0]})
        assert numbers_in(store) == [1, 2]

    def test_an_append_without_rows_makes_no_commit(self, store: ObjectStore) -> None:
        assert writer_of(store).append({0: rows()}) == {}
        assert store.list("commits") == []
        assert store.list("data") == []

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            ({2: rows(1)}, "no partition 2"),
            ({0: pa.table({"n": [1]})}, "the rows have n:int64"),
            ({0: pa.table({"n": ["x"], "word": ["x"]})}, "the rows have n:string"),
            ({0: pa.table({"n": pa.array([None], pa.int64()), "word": ["x"]})}, "'n' holds a null"),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(
        self, store: ObjectStore, part: dict[int, pa.Table], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            writer_of(store).append({1: rows(5)} | part)
        assert store.list("data") == []

    def test_a_reader_sees_new_rows_only_after_a_refresh(self, store: ObjectStore) -> None:
        reader = LogReader(store)
        writer_of(store).append({0: rows(1)})
        assert reader.read(0, 0, ANY_BYTES) == (None, 0)
        assert reader.refresh()
        assert not reader.refresh()
        assert reader.read(0, 0, ANY_BYTES)[1] == 1

    def test_any_offset_is_found_in_a_log_of_many_commits(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        for n in range(60):
            writer.append({n % 3 // 2: rows(n, n)})
        kept = numbers_in(store, 0)
        reader = LogReader(store)
        for offset in [*range(len(kept) - 1, -1, -7), *range(0, len(kept), 5)]:
            batch, _ = reader.read(0, offset, 1)
            assert batch is not None and batch.column("n").to_pylist() == [kept[offset]]

    def test_local_reads_are_memory_mapped_and_not_copied(self, tmp_path: Path) -> None:
        store = LocalObjects(tmp_path)
        create_log(store, SCHEMA, partitions=1)
        writer_of(store).append({0: rows(*range(10_000))})
        reader = LogReader(store)
        allocated = pa.total_allocated_bytes()
        batch, _ = reader.read(0, 100, ANY_BYTES)
        assert batch is not None and batch.nbytes > 100_000
        assert pa.total_allocated_bytes() - allocated < 10_000

    def test_an_append_of_several_segments_returns_the_first_offset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=1)
        writer = writer_of(store)
        writer.append({0: rows(0)})
        monkeypatch.setattr(log, "SEGMENT_BYTES_MAX", 1)
        assert writer.append({0: rows(1, 2, 3)}) == {0: 1}
        assert len(writer.newest().segments) == 3 and numbers_in(store) == [0, 1, 2, 3]


class TestSealing:
    def test_a_sealed_log_refuses_rows_and_keeps_its_rows(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(1)})
        writer.seal()
        with pytest.raises(ConfigError, match="sealed"):
            writer.append({0: rows(2)})
        assert numbers_in(store) == [1]
        assert LogReader(store).sealed

    def test_another_writer_finds_the_seal_when_it_appends(self, store: ObjectStore) -> None:
        late = writer_of(store)
        writer_of(store).seal()
        with pytest.raises(ConfigError, match="sealed"):
            late.append({0: rows(2)})

    def test_sealing_twice_is_no_error(self, store: ObjectStore) -> None:
        writer_of(store).seal()
        writer_of(store).seal()
        assert len(store.list("commits")) == 1


class TestTaggedAppends:
    TAG = Tag(Timeline(1), Epoch(5))

    def test_the_tag_moves_with_the_rows(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        assert writer.append_tagged({0: rows(1)}, "job/sink/0", self.TAG) == {0: 0}
        assert writer_of(store).tag_of("job/sink/0") == self.TAG
        assert writer_of(store).tag_of("job/sink/1") is None

    @pytest.mark.parametrize("tag", [TAG, Tag(Timeline(1), Epoch(4)), Tag(Timeline(0), Epoch(9))])
    def test_a_tag_that_does_not_grow_appends_nothing(self, store: ObjectStore, tag: Tag) -> None:
        writer_of(store).append_tagged({0: rows(1)}, "w", self.TAG)
        assert writer_of(store).append_tagged({0: rows(2)}, "w", tag) is None
        assert numbers_in(store) == [1]

    def test_a_stale_writer_detects_the_tag_through_its_conflict(self, store: ObjectStore) -> None:
        stale = writer_of(store)
        writer_of(store).append_tagged({0: rows(1)}, "w", self.TAG)
        assert stale.append_tagged({0: rows(1)}, "w", self.TAG) is None
        assert numbers_in(store) == [1]

    def test_an_epoch_without_rows_still_moves_the_tag(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        assert writer.append_tagged({}, "w", self.TAG) == {}
        assert writer.tag_of("w") == self.TAG

    def test_tags_survive_appends_of_others(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append_tagged({}, "b", self.TAG)
        writer.append_tagged({0: rows(1)}, "a", Tag(Timeline(2), Epoch(1)))
        writer.append({0: rows(2)})
        assert writer.tag_of("b") == self.TAG
        assert writer.tag_of("a") == Tag(Timeline(2), Epoch(1))


class OvertakenOnce(MemoryObjects):
    """A store in which another writer comes first, right before the next commit is created."""

    first: Callable[[], object] | None = None

    def create(self, path: str, data: bytes) -> None:
        if (first := self.first) is not None and path.startswith("commits/"):
            self.first = None
            first()
        super().create(path, data)


class TestSeveralWriters:
    def test_interleaved_writers_lose_nothing(self, store: ObjectStore) -> None:
        left, right = writer_of(store), writer_of(store)
        for n in range(5):
            assert left.append({0: rows(n)}) == {0: 2 * n}
            assert right.append({0: rows(100 + n), 1: rows(n)}) == {0: 2 * n + 1, 1: n}
        assert numbers_in(store, 0) == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
        assert numbers_in(store, 1) == [0, 1, 2, 3, 4]

    def test_a_draft_is_checked_again_after_a_conflict(self) -> None:
        """The other commit may have taken the log over, moved tags or added columns."""
        store = OvertakenOnce()
        create_log(store, SCHEMA, partitions=1)
        slow, rival = writer_of(store), writer_of(store)
        store.first = lambda: rival.append({0: rows(1)})
        seen: list[int] = []
        tag = Tag(Timeline(1), Epoch(5))
        assert slow.append_tagged({0: rows(2)}, "w", tag, admit=lambda tail: seen.append(tail.sequence)) == {0: 1}
        assert sorted(set(seen)) == [0, 1]

        def refuse(tail: Commit) -> None:
            if tail.sequence == 3:
                raise Fenced("another owner", next_step="leave it")

        store.first = lambda: rival.append({0: rows(3)})
        with pytest.raises(Fenced):
            slow.append_tagged({0: rows(4)}, "w", Tag(Timeline(1), Epoch(6)), admit=refuse)
        assert numbers_in(store) == [1, 2, 3]

    def test_columns_that_another_writer_adds_during_an_append_are_kept(self) -> None:
        store = OvertakenOnce()
        create_log(store, SCHEMA, partitions=1)
        slow, rival = writer_of(store), writer_of(store)
        size, at = pa.field("size", pa.float64()), pa.field("at", pa.date32())
        store.first = lambda: rival.grow(pa.schema([size]))
        grown, found = slow.grow(pa.schema([at])), read_meta(store)
        assert found is not None and grown == found.schema == pa.schema([*SCHEMA, size, at])

    def test_a_writer_that_always_loses_stops_with_an_error(self) -> None:
        class Contested(MemoryObjects):
            rival: LogWriter | None = None

            def create(self, path: str, data: bytes) -> None:
                if (rival := self.rival) is not None:
                    self.rival = None
                    rival.append({0: rows(0)})
                    self.rival = rival
                super().create(path, data)

        store = Contested()
        create_log(store, SCHEMA, partitions=1)
        slow, store.rival = writer_of(store), writer_of(store)
        with pytest.raises(Unavailable, match="other writers committed first"):
            slow.append({0: rows(1)})
        assert 1 not in numbers_in(store)


class TestAnUnknownOutcome:
    @pytest.fixture
    def faulty(self) -> FaultyObjects:
        store = FaultyObjects()
        create_log(store, SCHEMA, partitions=1)
        return store

    @pytest.mark.parametrize("fault", ["before", "after"])
    def test_a_lost_reply_neither_loses_nor_duplicates_rows(self, faulty: FaultyObjects, fault: str) -> None:
        writer = writer_of(faulty)
        faulty.faults = [fault]
        assert writer.append({0: rows(1, 2)}) == {0: 0}
        assert writer.append({0: rows(3)}) == {0: 2}
        assert numbers_in(faulty) == [1, 2, 3]

    def test_a_lost_reply_is_settled_even_after_other_appends(self, faulty: FaultyObjects) -> None:
        writer, other = writer_of(faulty), writer_of(faulty)
        faulty.faults = ["after", "before", "before", "before"]
        with pytest.raises(Unavailable):
            writer.append({0: rows(1)})
        other.append({0: rows(2)})
        assert writer.settle() == {0: 0}
        assert numbers_in(faulty) == [1, 2]

    def test_an_append_that_never_arrived_is_finished_by_settle(self, faulty: FaultyObjects) -> None:
        writer, other = writer_of(faulty), writer_of(faulty)
        faulty.faults = ["before"] * 4
        with pytest.raises(Unavailable):
            writer.append({0: rows(1)})
        other.append({0: rows(2)})
        assert writer.settle() == {0: 1}
        assert writer.settle() is None
        assert numbers_in(faulty) == [2, 1]

    def test_the_next_append_first_completes_the_one_in_doubt(self, faulty: FaultyObjects) -> None:
        writer = writer_of(faulty)
        faulty.faults = ["before"] * 4
        with pytest.raises(Unavailable):
            writer.append({0: rows(1)})
        assert writer.append({0: rows(2)}) == {0: 1}
        assert numbers_in(faulty) == [1, 2]

    def test_an_append_whose_create_succeeded_reads_nothing(self, faulty: FaultyObjects) -> None:
        writer = writer_of(faulty)
        faulty.reads_failing = 1
        assert writer.append({0: rows(1, 2, 3)}) == {0: 0}

    def test_an_append_that_took_effect_before_a_read_failed_is_settled(self, faulty: FaultyObjects) -> None:
        writer = writer_of(faulty)
        faulty.faults, faulty.reads_failing = ["after"], 1
        with pytest.raises(Unavailable):
            writer.append({0: rows(1, 2, 3)})
        assert writer.settle() == {0: 0}
        assert numbers_in(faulty) == [1, 2, 3]

    def test_a_tagged_append_whose_outcome_could_not_be_read_is_not_appended_again(self, faulty: FaultyObjects) -> None:
        writer = writer_of(faulty)
        faulty.faults, faulty.reads_failing = ["after"], 1
        tag = Tag(Timeline(1), Epoch(1))
        with pytest.raises(Unavailable):
            writer.append_tagged({0: rows(1, 2, 3)}, "w", tag)
        assert writer.append_tagged({0: rows(1, 2, 3)}, "w", tag) is None
        assert (numbers_in(faulty), writer.tag_of("w")) == ([1, 2, 3], tag)

    def test_a_lost_reply_is_settled_even_if_the_winning_commit_is_unreadable(self, faulty: FaultyObjects) -> None:
        writer, other = writer_of(faulty), writer_of(faulty)
        other.append({0: rows(7)})
        faulty.reads_failing = 1
        with pytest.raises(Unavailable):
            writer.append({0: rows(1)})
        assert writer.settle() == {0: 1}
        assert numbers_in(faulty) == [7, 1]

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 2), st.lists(st.sampled_from(["none", "before", "after"]), max_size=6), st.integers(0, 2)
            ),
            max_size=12,
        )
    )
    def test_every_append_is_stored_exactly_once_under_any_failure(
        self, steps: list[tuple[int, list[str], int]]
    ) -> None:
        store = FaultyObjects()
        create_log(store, SCHEMA, partitions=1)
        writers = [writer_of(store) for _ in range(3)]
        for n, (who, faults, reads_failing) in enumerate(steps):
            store.faults, store.reads_failing = list(faults), reads_failing
            try:
                writers[who].append({0: rows(n)})
            except Unavailable:
                store.faults, store._failing = [], 0
                if writers[who].settle() is None:
                    writers[who].append({0: rows(n)})
        store.faults, store._failing = [], 0
        assert sorted(numbers_in(store)) == list(range(len(steps)))


Damage = Callable[[Path], None]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = pytest.mark.parametrize("damage", [flip_a_bit, tear, Path.unlink], ids=["flipped", "torn", "missing"])


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        store = LocalObjects(tmp_path)
        create_log(store, SCHEMA, partitions=2)
        writer = writer_of(store)
        for first in (0, 10, 20):
            writer.append({1: rows(*range(first, first + 10))})
        return tmp_path

    def test_a_commit_of_another_history_is_damage(self) -> None:
        """As after a restore from a copy to which rows were appended."""
        here, there = MemoryObjects(), MemoryObjects()
        create_log(here, SCHEMA, partitions=1)
        writer_of(here).append({0: rows(1)})
        for path in here.list(""):
            there.create(path, here.get(path))
        follower = Commits(here, existing_meta(here))
        writer_of(there).append({0: rows(2, 3)})
        writer_of(there).append({0: rows(4)})
        writer_of(here).append({0: rows(5)})
        assert follower.refresh() and follower.tail.ends == (2,)
        here.create(commit_path(3), there.get(commit_path(3)))
        with pytest.raises(Damaged, match=commit_path(3)):
            follower.refresh()

    @DAMAGES
    def test_a_damaged_segment_is_found_and_named(self, folder: Path, damage: Damage) -> None:
        commits = sorted((folder / "commits").iterdir())
        (segment,) = (path for path in (folder / "data" / "1").iterdir() if path.name in commits[1].read_text())
        damage(segment)
        reader = LogReader(LocalObjects(folder))
        assert reader.read(1, 0, ANY_BYTES)[1] == 10
        with pytest.raises(Damaged, match=segment.name) as caught:
            reader.read(1, 15, ANY_BYTES)
        assert (caught.value.where.partition, caught.value.where.offset) == (1, 10)
        assert reader.read(1, 20, ANY_BYTES)[1] == 30

    @DAMAGES
    def test_a_damaged_commit_in_the_middle_is_found(self, folder: Path, damage: Damage) -> None:
        victim = sorted((folder / "commits").iterdir())[1]
        damage(victim)
        with pytest.raises(Damaged, match=victim.name):
            numbers_in(LocalObjects(folder), 1)

    @pytest.mark.parametrize("damage", [flip_a_bit, tear], ids=["flipped", "torn"])
    @pytest.mark.parametrize("name", ["meta.json", "commits/00000000000000000003.json"])
    def test_a_damaged_record_stops_readers_and_writers(self, folder: Path, damage: Damage, name: str) -> None:
        damage(folder / name)
        for open_it in (LogReader, LogWriter):
            with pytest.raises(Damaged, match=Path(name).name):
                open_it(LocalObjects(folder))

    def test_a_commit_of_another_log_is_found(self, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        other = LocalObjects(tmp_path_factory.mktemp("other"))
        create_log(other, SCHEMA, partitions=2)
        name = "commits/00000000000000000001.json"
        other.create(name, (folder / name).read_bytes())
        with pytest.raises(Damaged, match="belongs to log"):
            LogReader(other)

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_any_flipped_bit_is_an_error_and_never_gives_other_rows(self, data: st.DataObject) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=1)
        writer_of(store).append({0: rows(1, 2, 3)})
        path = data.draw(st.sampled_from(store.list("")))
        whole = bytearray(store.get(path))
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        store.put(path, bytes(whole))
        with pytest.raises(HoldfastError):
            numbers_in(store)


class TestInvalidBytesWithAValidHash:
    """Size and hash prove who wrote the bytes, not that the bytes are sound."""

    def append_raw(self, store: ObjectStore, data: bytes, rows: int = 2, **changed: Any) -> None:
        segment = LogSegment(0, 0, rows, "data/0/foreign.arrow", len(data), segment_hash(data))
        meta = read_meta(store)
        assert meta is not None
        commit = placed(Draft("append", "foreign", 1, (replace(segment, rows=rows),)), before_the_first(meta))
        commit = replace(commit, segments=tuple(replace(each, **changed) for each in commit.segments))
        store.put("data/0/foreign.arrow", data)
        store.create(commit_path(1), encode_commit(commit))

    def patched(self, before: bytes, after: bytes) -> bytes:
        data = encode_segment(rows(1, 2).cast(SCHEMA))
        assert data.count(before) == 1
        return data.replace(before, after)

    def test_string_offsets_beyond_the_data_are_damage(self, store: ObjectStore) -> None:
        offsets = np.array([0, 2, 4], np.int32), np.array([0, 2, 1 << 30], np.int32)
        self.append_raw(store, self.patched(*(each.tobytes() for each in offsets)))
        with pytest.raises(Damaged, match="foreign.arrow holds values that cannot be read"):
            LogReader(store).read(0, 0, ANY_BYTES)

    def test_bytes_that_are_not_utf8_are_damage(self, store: ObjectStore) -> None:
        self.append_raw(store, self.patched(b"w1w2", b"w1\xff2"))
        with pytest.raises(Damaged, match="UTF8"):
            LogReader(store).read(0, 0, ANY_BYTES)

    @pytest.mark.parametrize(
        ("changed", "what"),
        [
            ({"rows": 0}, "rows or offsets"),
            ({"rows": -2}, "rows or offsets"),
            ({"base": -2}, "rows or offsets"),
            ({"base": 7}, "rows or offsets"),
            ({"path": "data/0/../../../other"}, "path"),
            ({"path": "/etc/passwd"}, "path"),
            ({"path": "meta.json"}, "path"),
        ],
    )
    def test_a_commit_with_impossible_segments_is_damage(
        self, store: ObjectStore, changed: dict[str, Any], what: str
    ) -> None:
        self.append_raw(store, encode_segment(rows(1, 2).cast(SCHEMA)), **changed)
        with pytest.raises(Damaged, match=what):
            LogReader(store).read(0, 0, ANY_BYTES)

    @pytest.mark.parametrize("ends", [(-1, 0), (1 << 63, 0)])
    def test_a_commit_with_impossible_ends_is_damage(self, store: ObjectStore, ends: tuple[int, int]) -> None:
        meta = read_meta(store)
        assert meta is not None
        commit = replace(placed(Draft("append", "foreign", 1), before_the_first(meta)), ends=ends)
        store.create(commit_path(1), encode_commit(commit))
        with pytest.raises(Damaged, match="rows or offsets"):
            LogReader(store)
