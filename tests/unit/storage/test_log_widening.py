"""Partitions are added to a log: its rows are kept, and readers and writers without them continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import (
    PARTITIONS_MAX,
    WIDEN_VERSION,
    Draft,
    before_the_first,
    check_follows,
    commit_path,
    decode_commit,
    encode_commit,
    placed,
)
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects, MemoryObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
ANY_BYTES = 1 << 30


def rows(*numbers: int) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64())], schema=SCHEMA)


def writer_of(store: ObjectStore) -> LogWriter:
    return LogWriter(store, pause=lambda _: None, wall_us=lambda: 7)


def read(reader: LogReader) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition in range(reader.meta.partitions):
        found[partition] = []
        batch, offset = reader.read(partition, 0, ANY_BYTES)
        while batch is not None:
            found[partition] += batch.column(0).to_pylist()
            batch, offset = reader.read(partition, offset, ANY_BYTES)
    return found


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = MemoryObjects() if request.param == "memory" else LocalObjects(tmp_path / "log")
    create_log(made, SCHEMA, partitions=2)
    return made


class TestAddedPartitions:
    def test_are_empty_and_the_rows_of_the_others_are_kept(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(1), 1: rows(2)})
        assert writer.widen(4) == 2
        assert read(LogReader(store)) == {0: [1], 1: [2], 2: [], 3: []}
        assert writer.append({0: rows(3), 3: rows(4, 5)}) == {0: 1, 3: 0}
        assert read(LogReader(store)) == {0: [1, 3], 1: [2], 2: [], 3: [4, 5]}

    def test_are_part_of_the_meta_and_the_identity_is_unchanged(self, store: ObjectStore) -> None:
        before = read_meta(store)
        assert before is not None
        writer_of(store).widen(3)
        assert read_meta(store) == LogReader(store).meta == replace(before, partitions=3)

    def test_are_visible_to_readers_and_writers_that_were_already_open(self, store: ObjectStore) -> None:
        reader, other = LogReader(store), writer_of(store)
        writer_of(store).widen(4)
        assert (reader.meta.partitions, reader.end_offset(3), reader.read(3, 0, 1)) == (2, 0, (None, 0))
        other.append({3: rows(1)})
        other.append({0: rows(2)})
        reader.refresh()
        assert reader.meta.partitions == 4 and read(reader) == {0: [2], 1: [], 2: [], 3: [1]}

    def test_may_be_added_between_a_draft_and_its_commit(self, store: ObjectStore) -> None:
        behind = writer_of(store)
        draft = behind._draft({1: rows(1)}, None)
        writer_of(store).widen(3)
        behind._commit(draft)
        assert read(LogReader(store)) == {0: [], 1: [1], 2: []}

    def test_are_found_by_offset_among_commits_without_them(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        for n in range(40):
            writer.append({0: rows(n)})
        writer.widen(3)
        for n in range(40):
            writer.append({2: rows(n), 1: rows(-n)})
        reader = LogReader(store)
        for offset in (0, 1, 17, 39):
            batch, _ = reader.read(2, offset, 1)
            assert batch is not None and batch.column(0).to_pylist() == [offset]
            origin = reader.origin(2, offset + 1)
            assert origin.sequence == 42 + offset
            assert Commits(store, existing_meta(store)).is_still(*origin)

    def test_are_added_once_and_can_be_followed_by_more(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.widen(3)
        commits = len(store.list("commits"))
        assert writer_of(store).widen(3) == 3
        assert len(store.list("commits")) == commits
        assert writer.widen(5) == 3
        assert LogReader(store).meta.partitions == 5

    @pytest.mark.parametrize(("mine", "theirs", "then"), [(4, 3, 4), (4, 4, 4)])
    def test_are_added_by_both_of_two_concurrent_writers(
        self, store: ObjectStore, mine: int, theirs: int, then: int
    ) -> None:
        writer, refresh = writer_of(store), Commits.refresh
        writer._commits.refresh = lambda: True  # type: ignore[method-assign]  # it has not seen the other one yet
        writer_of(store).widen(theirs)
        create = writer._is_ours

        def look(draft: Draft, commit: object) -> bool:
            writer._commits.refresh = lambda: refresh(writer._commits)  # type: ignore[method-assign]
            return create(draft, commit)  # type: ignore[arg-type]

        writer._is_ours = look  # type: ignore[method-assign]
        writer.widen(mine)
        assert LogReader(store).meta.partitions == then

    def test_take_part_in_a_rewind_like_others(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append_tagged({0: rows(1)}, "job/out/0", Tag(Timeline(1), Epoch(1)))
        writer.widen(3)
        writer.append_tagged({0: rows(2), 2: rows(3)}, "job/out/0", Tag(Timeline(1), Epoch(2)))
        writer.take_back(TakeBack(Tag(Timeline(2), Epoch(1)), ("job/out/0",), lambda name: name.startswith("job/")))
        assert read(LogReader(store)) == {0: [1], 1: [], 2: []}

    def test_are_kept_when_the_log_is_sealed(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.widen(3)
        writer.append({2: rows(1)})
        writer.seal()
        assert LogReader(store).sealed and read(LogReader(store)) == {0: [], 1: [], 2: [1]}


class TestRefusals:
    def test_a_log_with_a_key(self) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=2, key=["n"])
        with pytest.raises(ConfigError, match="equal keys would be in two"):
            writer_of(store).widen(4)

    @pytest.mark.parametrize(("to", "why"), [(1, "never removed"), (PARTITIONS_MAX + 1, "at most")])
    def test_fewer_or_too_many(self, store: ObjectStore, to: int, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            writer_of(store).widen(to)
        assert store.list("commits") == []

    def test_a_sealed_log(self, store: ObjectStore) -> None:
        writer_of(store).seal()
        with pytest.raises(ConfigError, match="sealed"):
            writer_of(store).widen(3)

    def test_rows_for_a_partition_that_the_log_does_not_have(self, store: ObjectStore) -> None:
        with pytest.raises(ConfigError, match="there is no partition 2"):
            writer_of(store).append({2: rows(1)})


class TestTheRecord:
    def test_is_of_a_format_that_older_releases_refuse(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(1)})
        writer.widen(3)
        writer.append({0: rows(2)})
        commits = Commits(store, existing_meta(store))
        assert [(commits.at(n).v, commits.at(n).kind, commits.at(n).ends) for n in (1, 2, 3)] == [
            (1, "append", (1, 0)),
            (WIDEN_VERSION, "widen", (1, 0, 0)),
            (WIDEN_VERSION, "append", (2, 0, 0)),
        ]

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda commit: replace(commit, v=5),
            lambda commit: replace(commit, ends=(0,)),
            lambda commit: replace(commit, ends=(0,) * (PARTITIONS_MAX + 1)),
        ],
    )
    def test_a_record_that_contradicts_itself_is_damage(self, wrong: Callable[[object], object]) -> None:
        store = MemoryObjects()
        meta = create_log(store, SCHEMA, partitions=2)
        commit = placed(Draft("widen", "me", 7, partitions=3), before_the_first(meta))
        data = encode_commit(wrong(commit))  # type: ignore[arg-type]
        with pytest.raises(Damaged, match="partitions"):
            decode_commit(meta, 1, data)

    def test_a_widening_record_in_a_log_with_a_key_is_damage(self) -> None:
        store = MemoryObjects()
        meta = create_log(store, SCHEMA, partitions=2, key=["n"])
        commit = placed(Draft("widen", "me", 7, partitions=3), before_the_first(meta))
        with pytest.raises(Damaged, match="partitions"):
            decode_commit(meta, 1, encode_commit(commit))

    def test_a_record_that_removes_partitions_or_adds_some_silently_is_damage(self) -> None:
        meta = create_log(MemoryObjects(), SCHEMA, partitions=2)
        wide = placed(Draft("widen", "me", 7, partitions=3), before_the_first(meta))
        after = placed(Draft("append", "me", 7), wide)
        check_follows(after, wide)
        for wrong in (replace(after, ends=(0, 0)), replace(after, ends=(0, 0, 0, 0)), replace(after, kind="widen")):
            with pytest.raises(Damaged, match="partitions"):
                check_follows(wrong, wide)

    def test_is_stored_under_the_next_number(self, store: ObjectStore) -> None:
        writer_of(store).widen(3)
        assert store.list("commits") == [commit_path(1)]
