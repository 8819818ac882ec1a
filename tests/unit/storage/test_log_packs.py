"""A log whose old commits are packed: everything as before, and no row of a suspended writer is lost (PROTOCOL P7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from counted import BulkObjects
from dying_objects import Dying
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Damaged, Unavailable
from holdfast.examples.flights_hours_oracle import read_log
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log import packer
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.format import META_PATH, commit_path, decode_commit, encode_commit
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.packs import Packing, decode_pack, encode_pack, pack_path
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.table import read_table
from holdfast.storage.log.voids import TakeBack, void_ranges
from holdfast.storage.objects import LocalObjects, MemoryObjects

pytestmark = pytest.mark.thorough

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
BLOCK = 3
ANY_BYTES = 1 << 30
MINE = "6f9b0f6e-0000-4000-8000-000000000001/out/0"


def create(store: MemoryObjects) -> MemoryObjects:
    create_log(store, SCHEMA, partitions=2, key=["k"])
    return store


def writer(store: MemoryObjects | LocalObjects, block: int = BLOCK) -> LogWriter:
    return LogWriter(store, block=block, pause=lambda _: None, wall_us=lambda: 1)


def one(value: int, key: int = 0) -> dict[int, pa.Table]:
    return {0: pa.table({"k": pa.array([key], pa.int64()), "v": pa.array([value], pa.int64())})}


def append(log: LogWriter, values: range) -> None:
    for value in values:
        log.append(one(value))


def values(reader: LogReader) -> list[int]:
    found, offset = list[int](), 0
    while True:
        batch, offset = reader.read(0, offset, ANY_BYTES)
        if batch is None:
            return found
        found += batch.column("v").to_pylist()


def read(store: MemoryObjects) -> list[int]:
    return values(LogReader(store))


def commits_of(store: MemoryObjects) -> Commits:
    return Commits(store, existing_meta(store))


@pytest.fixture(params=[MemoryObjects, BulkObjects])
def store(request: pytest.FixtureRequest) -> MemoryObjects:
    """An empty log, in a folder or on a store that lists from any name on."""
    made: MemoryObjects = request.param()
    return create(made)


class TestPacks:
    def test_old_commits_are_replaced_by_packs(self, store: MemoryObjects) -> None:
        append(writer(store), range(12))
        assert store.list("packs") == [pack_path(6), pack_path(9)]
        assert store.list("commits") == [commit_path(n) for n in (1, 2, 3, 10, 11, 12)]
        assert read(store) == list(range(12))

    def test_the_number_of_objects_does_not_follow_that_of_commits(self, store: MemoryObjects) -> None:
        append(writer(store, 20), range(200))
        assert len(store.list("commits")) <= 3 * 20 and len(store.list("packs")) == 8

    def test_are_read_by_a_program_that_follows_the_description_of_the_format(self, tmp_path: Path) -> None:
        log = LocalObjects(tmp_path)
        create_log(log, SCHEMA, partitions=2, key=["k"])
        append(writer(log), range(12))
        assert log.list("packs") == [pack_path(6), pack_path(9)]
        assert read_log(tmp_path).get_column("v").to_list() == list(range(12))

    def test_hold_the_commits_byte_for_byte(self, store: MemoryObjects) -> None:
        log, plain = writer(store), dict[int, bytes]()
        for value in range(12):
            log.append(one(value))
            plain[value + 1] = store.get(commit_path(value + 1))
        lines = decode_pack(pack_path(6), store.get(pack_path(6)), BLOCK)
        assert lines == [plain[n] for n in (4, 5, 6)]

    def test_begin_behind_the_first_commit_that_older_releases_refuse(self, store: MemoryObjects) -> None:
        append(writer(store, 10**9), range(7))  # as an older release
        append(writer(store), range(7, 30))
        found = [decode_commit(existing_meta(store), n, store.get(commit_path(n))) for n in range(1, 9)]
        assert [each.v for each in found] == [1] * 7 + [7] and found[-1].packs == Packing(8, BLOCK)
        assert store.list("packs")[0] == pack_path(12) and store.get(commit_path(9))
        assert read(store) == list(range(30))

    def test_a_pack_that_differs_from_what_was_read_deletes_nothing(
        self, store: MemoryObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pack that drops a tag would let a zombie append again."""
        meta, log = existing_meta(store), writer(store)
        for epoch in range(1, 9):
            log.append_tagged(one(epoch), MINE, Tag(Timeline(1), Epoch(epoch)))

        def stripped(lines: list[bytes]) -> list[bytes]:
            found = [decode_commit(meta, sequence, line) for sequence, line in enumerate(lines, 4)]
            return [encode_commit(replace(commit, tags=())) for commit in found]

        monkeypatch.setattr(packer, "encode_pack", lambda lines: encode_pack(stripped(lines)))
        log.append_tagged(one(9), MINE, Tag(Timeline(1), Epoch(9)))
        assert store.list("packs") == [pack_path(6)], "not vacuous"
        assert len(store.list("commits")) == 9 and log.tag_of(MINE) == Tag(Timeline(1), Epoch(9))

    def test_a_damaged_pack_is_reported(self, store: MemoryObjects) -> None:
        append(writer(store), range(12))
        whole = store.get(pack_path(6))
        for place in range(0, len(whole), 7):
            store.put(pack_path(6), whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(Damaged, match="pack"):
                read(store)
        store.delete(pack_path(6))
        with pytest.raises(Damaged, match="is missing, but a later commit exists"):
            read(store)

    def test_a_commit_that_is_missing_below_the_newest_stops_packing(self, store: MemoryObjects) -> None:
        append(writer(store), range(8))
        store.delete(commit_path(5))
        writer(store).append(one(8))
        assert store.list("packs") == [] and len(store.list("commits")) == 8


class TestSuspendedWriter:
    """It knows a commit as the newest behind which all were packed and deleted."""

    def test_its_rows_are_appended_behind_all_others(self, store: MemoryObjects) -> None:
        late = writer(store)
        append(late, range(5))
        append(writer(store), range(5, 30))
        assert store.list("packs")[-1] == pack_path(27), "its next commit is packed"
        assert late.append(one(30)) == {0: 30}
        assert read(store) == list(range(31))

    def test_without_the_look_for_the_pack_its_rows_are_lost(
        self, store: MemoryObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The wrong version, so that the test above is known to see it: a pruned sequence is created again."""
        monkeypatch.setattr(Commits, "packed", lambda *_: None)
        late = writer(store)
        append(late, range(5))
        append(writer(store), range(5, 30))
        assert late.append(one(30)) == {0: 5}
        assert 30 not in read(store)

    def test_a_tag_that_has_moved_refuses_it(self, store: MemoryObjects) -> None:
        late, tag = writer(store), Tag(Timeline(1), Epoch(7))
        append(late, range(5))
        admitted = list[int]()

        def others_deliver(_tail: object) -> None:
            if not admitted:
                admitted.append(1)
                successor = writer(store)
                successor.append_tagged(one(5), MINE, tag)
                append(successor, range(6, 30))

        assert late.append_tagged(one(5), MINE, tag, admit=others_deliver) is None
        assert read(store) == list(range(30))

    def test_knows_the_newest_tag(self, store: MemoryObjects) -> None:
        late = writer(store)
        append(late, range(5))
        successor = writer(store)
        successor.append_tagged(one(5), MINE, Tag(Timeline(1), Epoch(7)))
        append(successor, range(6, 30))
        assert late.tag_of(MINE) == Tag(Timeline(1), Epoch(7)) and late.holds_tail()

    def test_two_of_them_lose_nothing(self, store: MemoryObjects) -> None:
        """The object of the first one is where the second one looks for its predecessor."""
        first, second = writer(store), writer(store)
        append(first, range(5))
        assert second.tag_of(MINE) is None
        append(writer(store), range(5, 30))
        assert first.append(one(30)) == {0: 30} and second.append(one(31)) == {0: 31}
        assert read(store) == list(range(32))

    def test_what_it_created_is_deleted_later(self, store: MemoryObjects) -> None:
        late = writer(store)
        append(late, range(5))
        append(writer(store), range(5, 30))
        late.append(one(30))
        assert commit_path(6) in store.list("commits"), "not vacuous"
        append(writer(store), range(31, 40))
        assert commit_path(6) not in store.list("commits") and read(store) == list(range(40))

    @pytest.mark.parametrize("took_effect", [False, True])
    def test_an_append_in_doubt_is_settled_by_the_pack(self, took_effect: bool) -> None:
        class Lossy(MemoryObjects):
            lossy = False

            def create(self, path: str, data: bytes) -> None:
                if self.lossy and path == commit_path(6):
                    if took_effect and path not in self.list("commits"):
                        super().create(path, data)
                    raise Unavailable("no reply", next_step="none")
                super().create(path, data)

        store = Lossy()
        late = writer(create(store))
        append(late, range(5))
        store.lossy = True
        with pytest.raises(Unavailable):
            late.append(one(100))
        store.lossy = False
        append(writer(store), range(6, 30))
        if not took_effect:
            writer(store).append(one(30))
        assert commit_path(6) not in store.list("commits"), "its name is free again"
        before = read(store)
        assert (100 in before) == took_effect
        assert late.settle() == ({0: 5} if took_effect else {0: 30})
        assert read(store) == (before if took_effect else [*before, 100])


class TestReader:
    def test_a_reader_that_was_suspended_reads_commits_packed_meanwhile(self, store: MemoryObjects) -> None:
        append(writer(store), range(5))
        reader = LogReader(store)
        append(writer(store), range(5, 30))
        assert reader.refresh() and values(reader) == list(range(30))

    def test_ignores_what_a_suspended_writer_created(self, store: MemoryObjects) -> None:
        """A ghost fits its predecessor, has a right hash, and belongs to the log."""
        append(writer(store), range(5))
        reader, tail = LogReader(store), commits_of(store).tail
        append(writer(store), range(5, 30))
        draft = commits_of(store).at(7)
        ghost = replace(draft, sequence=6, owner="ghost", ends=(6, 0), segments=(replace(draft.segments[0], base=5),))
        assert ghost.packs == tail.packs
        store.create(commit_path(6), encode_commit(ghost))
        assert reader.refresh() and values(reader) == list(range(30))
        assert commits_of(store).at(6).owner != "ghost" and read(store) == list(range(30))
        ahead = commits_of(store)
        assert [ahead.ahead(sequence).owner == "ghost" for sequence in (4, 5, 6, 7)] == [False] * 4

    def test_recognizes_its_log_by_a_packed_commit(self, store: MemoryObjects) -> None:
        append(writer(store), range(5))
        reader = LogReader(store)
        values(reader)
        origin, uuid = reader.origin(0, 5), existing_meta(store).uuid
        append(writer(store), range(5, 30))
        assert reader.changed(uuid, origin) is None and LogReader(store).origin(0, 5) == origin
        other = create(type(store)())
        other.put(META_PATH, store.get(META_PATH))
        append(writer(other), range(30))
        assert "has changed since" in str(LogReader(other).changed(uuid, origin))

    def test_packed_commits_take_few_requests(self) -> None:
        store = BulkObjects()
        append(writer(create(store), 20), range(200))
        store.requests.clear()
        commits = commits_of(store)
        opened = store.requests.total()
        assert opened <= 8
        for sequence in range(1, 201):
            commits.at(sequence)
        assert store.requests.total() - opened <= 2 * 80 + 8


class TestBadPacks:
    @pytest.mark.parametrize("reply", ["arrives", "is lost"])
    def test_no_commit_is_deleted_whose_pack_was_not_verified(
        self, reply: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Damaging(MemoryObjects):
            damaged = False

            def create(self, path: str, data: bytes) -> None:
                if self.damaged or not path.startswith("packs/"):
                    return super().create(path, data)
                self.damaged = True
                super().create(path, data[:-5] + b"-----")
                if reply == "is lost":
                    raise Unavailable("the reply was lost", next_step="none")

        store = Damaging()
        create(store)
        append(writer(store), range(12))
        assert store.damaged and pack_path(6) in store.list("packs")
        assert {commit_path(sequence) for sequence in range(4, 7)} <= set(store.list("commits"))
        assert "none was deleted" in caplog.text


class TestRaces:
    def test_two_that_pack_the_same_commits(self) -> None:
        class Hooked(MemoryObjects):
            before: Callable[[], object] | None = None

            def create(self, path: str, data: bytes) -> None:
                if path == pack_path(6) and self.before is not None:
                    before, self.before = self.before, None
                    before()
                super().create(path, data)

        store = Hooked()
        log = writer(create(store))
        append(log, range(8))
        other = writer(store)
        store.before = lambda: append(other, range(9, 30))
        log.append(one(8))
        assert read(store) == list(range(30)) and commit_path(5) not in store.list("commits")


class TestCrashes:
    @pytest.mark.parametrize("after", [False, True])
    def test_at_any_operation_lose_nothing_and_are_made_up_for(self, after: bool) -> None:
        for operations in range(1, 400):
            store = create(MemoryObjects())
            append(writer(store), range(11))
            dying = Dying(store, operations, after=after)
            try:
                append(writer(dying), range(11, 15))
            except Unavailable:
                pass
            written = read(store)
            assert written == list(range(len(written))) and len(written) >= 11
            append(writer(store), range(len(written), 21))
            assert read(store) == list(range(21))
            assert store.list("packs") == [pack_path(n) for n in (6, 9, 12, 15, 18)]
            assert store.list("commits") == [commit_path(n) for n in (1, 2, 3, 19, 20, 21)]
            if not dying.dead:
                assert operations > 30
                return
        raise AssertionError("it never came to its end")


class Both:
    """The same operations on a log that is packed and on one that is not."""

    def __init__(self) -> None:
        self.stores = create(MemoryObjects()), create(MemoryObjects())
        self.stores[1].put(META_PATH, self.stores[0].get(META_PATH))
        self.late = [
            (writer(self.stores[0]), LogReader(self.stores[0])),
            (writer(self.stores[1], 10**9), LogReader(self.stores[1])),
        ]
        self.epoch, self.timeline, self.value = 0, 1, 0

    def play(self, what: str, size: int) -> None:
        self.value += 1
        if what == "deliver":
            self.epoch += 1
        if what == "rewind":
            self.timeline += 1
        for number, store in enumerate(self.stores):
            self._play(number, store, what, size)
        if what == "rewind":
            self.epoch = max(0, self.epoch - size)

    def _play(self, number: int, store: MemoryObjects, what: str, size: int) -> None:
        log = writer(store, (BLOCK, 10**9)[number])
        if what == "append":
            for step in range(size):
                log.append(one(self.value * 100 + step, key=step % 3))
        elif what == "deliver":
            log.append_tagged(one(self.value * 100), MINE, Tag(Timeline(self.timeline), Epoch(self.epoch)))
        elif what == "rewind":
            to = Tag(Timeline(self.timeline), Epoch(max(0, self.epoch - size)))
            if not commits_of(store).tail.compact:
                log.take_back(TakeBack(to, (MINE,), lambda _: False))
        elif what == "compact":
            Compactor(store, pause=lambda _: None, wall_us=lambda: 1).compact(Wishes(0, 10**15))
        elif what == "late":
            self.late[number][0].append(one(self.value * 100, key=7))
        elif what == "look" and not commits_of(store).tail.void:
            self.late[number][1].refresh()

    def seen(self, store: MemoryObjects) -> object:
        reader, commits = LogReader(store), commits_of(store)
        at = [
            replace(commits.at(n), v=0, packs=None, owner="", segments=(), compaction=None)
            for n in range(1, commits.tail.sequence + 1)
        ]
        origins = [reader.origin(0, offset).sequence for offset in range(reader.end_offset(0))]
        table = [(part.rows.to_pylist(), part.offsets.tolist()) for part in read_table(store)]
        return values(reader), at, void_ranges(commits), origins, reader.tags(), table


OPERATIONS = st.tuples(st.sampled_from(["append", "deliver", "rewind", "compact", "late", "look"]), st.integers(1, 5))


class TestAPackedLog:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(OPERATIONS, min_size=4, max_size=25))
    def test_is_the_same_log(self, operations: list[tuple[str, int]]) -> None:
        """Appends, deliveries, rewinds, compactions, suspended writers and readers, in any order."""
        both = Both()
        for what, size in operations:
            both.play(what, size)
        packed, plain = (both.seen(store) for store in both.stores)
        assert packed == plain

    def test_a_packed_log_is_rewound_to_before_its_packs(self, store: MemoryObjects) -> None:
        log = writer(store)
        for epoch in range(1, 31):
            log.append_tagged(one(epoch), MINE, Tag(Timeline(1), Epoch(epoch)))
        assert commit_path(6) not in store.list("commits")
        ranges = writer(store).take_back(TakeBack(Tag(Timeline(2), Epoch(5)), (MINE,), lambda _: False))
        assert sum(map(len, ranges)) == 25 and read(store) == [1, 2, 3, 4, 5]
