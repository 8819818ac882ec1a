"""`hf.Files` as a sink: crashes at every request, suspended processes, folders that others change, rewinds."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import AlreadyExists, ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.owners import NEVER, Claim
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Outcome
from holdfast.sinks.files.commits import FOLLOWED_MAX, FolderCommits, Stores, create_folder
from holdfast.sinks.files.format import META_PATH, OWN_FOLDER, STAGING
from holdfast.sinks.files.hive import Partitioning, values_in
from holdfast.sinks.files.repair import plan_repair, repair
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.target import ATTEMPTS_MAX, FilesTarget
from holdfast.storage.folders import Folder as OpenFolder
from holdfast.storage.folders import open_folder
from holdfast.storage.log.format import commit_path
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.storage.paths import TEMPORARY

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("c", pa.string())])
BY_C = Partitioning(("c",))
Hook = Callable[[str, str], None]


class Crash(BaseException):
    """The process ends here."""


class Watched:
    """Objects that call `before` and `after` around each request, with its name and path."""

    def __init__(self, store: ObjectStore, before: Hook, after: Hook) -> None:
        self._store, self._before, self._after = store, before, after

    def __getattr__(self, name: str) -> Any:
        request = getattr(self._store, name)

        def call(path: str, *data: bytes) -> Any:
            self._before(name, path)
            result = request(path, *data)
            self._after(name, path)
            return result

        return call


def nothing(request: str, path: str) -> None:
    """Let a request pass."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    """Rows in two folders, the even and the odd ones."""
    return [pa.record_batch([pa.array(numbers, pa.int64()), [str(n % 2) for n in numbers]], schema=SCHEMA)]


@dataclass
class Folder:
    """A folder in memory, and what readers see of it."""

    data: MemoryObjects = field(default_factory=MemoryObjects)
    own: MemoryObjects = field(default_factory=MemoryObjects)

    def __post_init__(self) -> None:
        create_folder(self.own, SCHEMA, BY_C)

    def stores(self, before: Hook = nothing, after: Hook = nothing) -> Stores:
        return Stores(Watched(self.data, before, after), Watched(self.own, before, after))

    def target(
        self, before: Hook = nothing, after: Hook = nothing, writer: Writer = LEFT, claim: Claim | None = None
    ) -> FilesTarget:
        return FilesTarget("files", lambda: self.stores(before, after), JOB, writer, 1 << 20, claim)

    def deliver(self, epoch: int, *numbers: int, timeline: int = 1, writer: Writer = LEFT) -> Outcome:
        return self.target(writer=writer).deliver(tag(epoch, timeline), rows(*numbers))

    def size_of(self, path: str) -> int | None:
        return len(self.data.get(path)) if path in self.data.list("") else None

    def back(self, epoch: int, timeline: int = 2, before: Hook = nothing, after: Hook = nothing) -> Repair:
        commits = FolderCommits("files", lambda: self.stores(before, after))
        return repair("files", commits, self.size_of, Rewinding(JOB, "out", tag(epoch, timeline), (LEFT, RIGHT)))

    def plan(self, epoch: int, timeline: int = 2) -> Repair:
        commits = FolderCommits("files", self.stores)
        return plan_repair("files", commits, self.size_of, Rewinding(JOB, "out", tag(epoch, timeline), (LEFT, RIGHT)))

    def shown(self) -> list[int]:
        found = list[int]()
        for path in self.data.list(""):
            assert path.endswith(".parquet") and set(values_in(path)) == {"c"}
            table = pq.read_table(io.BytesIO(self.data.get(path)))
            assert table.column_names == ["n"]
            numbers = table.column("n").to_pylist()
            assert {str(n % 2) for n in numbers} <= {values_in(path)["c"]}
            found += numbers
        return sorted(found)

    def staged(self) -> list[str]:
        return self.own.list(STAGING)

    def commits(self) -> int:
        return len(self.own.list("commits"))


@pytest.fixture
def folder() -> Folder:
    return Folder()


class Until:
    """Counts requests, and raises at one of them, before or after it is carried out."""

    def __init__(self, at: int, error: BaseException, *, after: bool) -> None:
        self._left, self._error = at, error
        self.before = nothing if after else self._count
        self.after = self._count if after else nothing
        self.raised = False

    def _count(self, request: str, path: str) -> None:
        self._left -= 1
        if self._left < 0 and not self.raised:
            self.raised = True
            raise self._error


def every_request(error: Callable[[], BaseException]) -> Iterator[tuple[Folder, Until]]:
    """Yield a folder with an epoch, and a failure, until the failure comes after all requests."""
    for after in (False, True):
        for at in range(200):
            folder = Folder()
            folder.deliver(1, 1, 2)
            failure = Until(at, error(), after=after)
            yield folder, failure
            if not failure.raised:
                assert at > 5, "too few requests were seen"
                break


class TestCrash:
    def test_at_any_request_of_a_delivery_shows_nothing_uncommitted_and_loses_nothing(self) -> None:
        for folder, failure in every_request(Crash):
            try:
                folder.target(failure.before, failure.after).deliver(tag(2), rows(3, 4, 5))
            except Crash:
                assert failure.raised
            committed = folder.commits() == 2
            assert set(folder.shown()) <= ({1, 2, 3, 4, 5} if committed else {1, 2})
            again = folder.target()
            assert again.delivered() == tag(2 if committed else 1)
            assert folder.shown() == ([1, 2, 3, 4, 5] if committed else [1, 2])
            assert again.deliver(tag(2), rows(3, 4, 5)) == (AlreadyDelivered(tag(2)) if committed else Delivered(3))
            assert folder.shown() == [1, 2, 3, 4, 5]
            assert folder.deliver(3, 6) == Delivered(1)
            assert (folder.shown(), folder.staged()) == ([1, 2, 3, 4, 5, 6], [])

    def test_at_any_request_of_a_repair_takes_back_all_or_nothing(self) -> None:
        for folder, failure in every_request(Crash):
            folder.deliver(2, 3, 4)
            try:
                folder.back(1, before=failure.before, after=failure.after)
            except Crash:
                assert failure.raised
            committed = folder.commits() == 3
            assert committed or folder.shown() == [1, 2, 3, 4]
            assert folder.back(1).delete == (0 if committed else 2)
            assert folder.shown() == [1, 2]
            assert folder.deliver(3, 3, 4, timeline=2) == Delivered(2)
            assert folder.shown() == [1, 2, 3, 4]

    def test_between_commit_and_publication_is_completed_by_another_writer(self, folder: Folder) -> None:
        self._crash_after_the_commit(folder)
        assert folder.shown() == []
        assert folder.deliver(1, 3, writer=RIGHT) == Delivered(1)
        assert folder.shown() == [1, 2, 3]

    def test_between_commit_and_publication_is_completed_before_a_rewind_counts(self, folder: Folder) -> None:
        self._crash_after_the_commit(folder)
        assert (folder.plan(0).verdict, folder.plan(0).delete) == ("truncate", 2)
        assert folder.shown() == []
        assert folder.back(0).delete == 2 and folder.shown() == []
        assert folder.deliver(1, 9, timeline=2) == Delivered(1) and folder.shown() == [9]

    def test_after_the_commit_of_a_rewind_is_completed_by_the_next_delivery(self, folder: Folder) -> None:
        folder.deliver(1, 1)
        folder.deliver(2, 2)

        def crash(request: str, path: str) -> None:
            if (request, path) == ("create", commit_path(3)):
                raise Crash

        with pytest.raises(Crash):
            folder.back(1, after=crash)
        assert folder.shown() == [1, 2]
        assert folder.deliver(3, 3, timeline=2) == Delivered(1)
        assert folder.shown() == [1, 3]

    def test_in_the_middle_of_a_rewind_does_not_touch_files_that_are_empty_already(self, folder: Folder) -> None:
        """A job that has listed one of them compares the time of its last change."""
        folder.deliver(1, 1)
        folder.deliver(2, 2, 3)
        puts = list[str]()

        def crash_at_the_second(request: str, path: str) -> None:
            if request == "put":
                puts.append(path)
                if len(puts) == 2:
                    raise Crash

        with pytest.raises(Crash):
            folder.back(1, before=crash_at_the_second)
        assert len(set(puts)) == 2 and len(folder.shown()) == 2
        assert folder.back(1, before=crash_at_the_second).delete == 0
        assert puts[2:] == puts[1:2] and folder.shown() == [1]

    def _crash_after_the_commit(self, folder: Folder) -> None:
        def crash(request: str, path: str) -> None:
            if (request, path) == ("create", commit_path(1)):
                raise Crash

        with pytest.raises(Crash):
            folder.target(after=crash).deliver(tag(1), rows(1, 2))


class TestUnavailable:
    def test_at_any_request_is_repaired_by_the_same_target(self) -> None:
        for folder, failure in every_request(lambda: Unavailable("the store is gone", next_step="wait")):
            target = folder.target(failure.before, failure.after)
            try:
                target.deliver(tag(2), rows(3, 4), tag(1))
            except Unavailable:
                known = target.delivered()
                assert known is not None
                if known < tag(2):
                    target.deliver(tag(2), rows(3, 4), known)
            assert folder.shown() == [1, 2, 3, 4] and folder.target().delivered() == tag(2)
            if failure.raised:
                assert target.deliver(tag(3), rows(5), tag(2)) == Delivered(1)
                assert (folder.shown(), folder.staged()) == ([1, 2, 3, 4, 5], [])


class TestSuspended:
    """A process that stands still anywhere, while others go on."""

    def test_a_publisher_cannot_bring_back_what_a_rewind_took_back(self, folder: Folder) -> None:
        folder.deliver(1, 1)
        others = [lambda: folder.back(1)]

        def meanwhile(request: str, path: str) -> None:
            if request == "get" and path.startswith(STAGING) and others:
                others.pop()()

        folder.target(after=meanwhile).deliver(tag(2), rows(2))
        assert not others and folder.shown() == [1]
        assert folder.deliver(3, 3, timeline=2) == Delivered(1) and folder.shown() == [1, 3]

    def test_a_publisher_finds_that_another_process_published_its_files(self, folder: Folder) -> None:
        others = [lambda: folder.target().delivered()]

        def meanwhile(request: str, path: str) -> None:
            if request == "get" and path.startswith(STAGING) and others:
                others.pop()()

        assert folder.target(before=meanwhile).deliver(tag(1), rows(1, 2)) == Delivered(2)
        assert not others and (folder.shown(), folder.staged()) == ([1, 2], [])

    def test_a_writer_before_its_commit_is_fenced_by_a_rewind(self, folder: Folder) -> None:
        folder.deliver(1, 1)
        others = [lambda: folder.back(0)]
        zombie = folder.target(before=self._at_commit(2, others))
        with pytest.raises(Fenced, match="timeline 2"):
            zombie.deliver(tag(2), rows(2))
        assert folder.shown() == [] and folder.deliver(3, 3, timeline=2) == Delivered(1)
        assert (folder.shown(), folder.staged()) == ([3], [])

    def test_a_writer_before_its_commit_finds_its_epoch_delivered(self, folder: Folder) -> None:
        others = [lambda: folder.deliver(1, 1, 2)]
        target = folder.target(before=self._at_commit(1, others))
        assert target.deliver(tag(1), rows(1, 2)) == AlreadyDelivered(tag(1))
        assert (folder.shown(), folder.staged()) == ([1, 2], [])

    def test_an_overtaken_driver_before_its_commit_writes_nothing(self, folder: Folder) -> None:
        first = Claim("first", Generation(1))
        second = Claim("second", Generation(2), {"first": tag(1)})
        others = [lambda: folder.target(writer=RIGHT, claim=second).deliver(tag(2), rows(5))]
        zombie = folder.target(before=self._at_commit(1, others), claim=first)
        with pytest.raises(Fenced, match="not in the log of this job"):
            zombie.deliver(tag(1), rows(1))
        assert folder.shown() == [5]

    def test_other_sinks_that_are_faster_only_delay_a_delivery(self, folder: Folder) -> None:
        others: list[Callable[[], object]] = [lambda: folder.deliver(1, 7, writer=RIGHT)]
        target = folder.target(before=self._at_commit(1, others))
        assert target.deliver(tag(1), rows(1, 2)) == Delivered(2)
        assert (folder.shown(), folder.commits(), folder.staged()) == ([1, 2, 7], 2, [])

    def test_many_commits_of_other_sinks_are_not_read_one_by_one(self, folder: Folder) -> None:
        read = list[str]()
        target = folder.target(after=lambda request, path: read.append(path) if request == "get" else None)
        target.deliver(tag(1), rows(1))
        for epoch in range(1, 101):
            folder.deliver(epoch, writer=RIGHT)
        read.clear()
        assert target.deliver(tag(2), rows(2), tag(1)) == Delivered(1)
        assert len(read) < 2 * FOLLOWED_MAX and folder.commits() == 102

    def test_others_that_are_always_faster_make_it_wait(self, folder: Folder) -> None:
        epochs = iter(range(1, 100))

        def meanwhile(request: str, path: str) -> None:
            if request == "create" and path.startswith("commits/"):
                folder.deliver(next(epochs), writer=RIGHT)

        with pytest.raises(Unavailable, match=f"committed to the folder {ATTEMPTS_MAX} times"):
            folder.target(before=meanwhile).deliver(tag(1), rows(1))
        assert folder.shown() == []
        assert folder.deliver(1, 1) == Delivered(1) and folder.target().delivered() == tag(1)
        assert (folder.shown(), folder.staged()) == ([1], [])

    def test_a_commit_that_was_lost_and_arrives_late_changes_nothing(self, folder: Folder) -> None:
        late: list[tuple[str, bytes]] = []
        stores = folder.stores()

        class Slow(MemoryObjects):
            """Takes a commit, and answers nothing."""

            get, put, list, delete = folder.own.get, folder.own.put, folder.own.list, folder.own.delete

            def create(self, path: str, data: bytes) -> None:
                late.append((path, data))
                raise Unavailable("no answer came", next_step="wait")

        slow = FilesTarget("files", lambda: Stores(stores.data, Slow()), JOB, LEFT, 1 << 20)
        with pytest.raises(Unavailable):
            slow.deliver(tag(1), rows(1, 2))
        assert folder.deliver(1, 1, 2) == Delivered(2)
        ((path, data),) = late
        with pytest.raises(AlreadyExists):
            folder.own.create(path, data)
        assert folder.deliver(2, 3) == Delivered(1)
        assert (folder.shown(), folder.staged()) == ([1, 2, 3], [])

    def test_staged_files_of_a_live_writer_are_left_alone(self, folder: Folder) -> None:
        others = [lambda: folder.target(writer=RIGHT).delivered()]
        target = folder.target(before=self._at_commit(1, others))
        assert target.deliver(tag(1), rows(1)) == Delivered(1)
        assert not others and folder.shown() == [1]

    def _at_commit(self, sequence: int, others: list[Any]) -> Hook:
        def meanwhile(request: str, path: str) -> None:
            if (request, path) == ("create", commit_path(sequence)) and others:
                others.pop()()

        return meanwhile


class TestFolderThatOthersChange:
    def test_a_folder_that_is_deleted_while_it_is_open_is_waited_for(self, folder: Folder) -> None:
        target = folder.target()
        target.deliver(tag(1), rows(1))
        kept = {path: folder.own.get(path) for path in folder.own.list("")}
        for path in kept:
            folder.own.delete(path)
        with pytest.raises(Unavailable, match=r"files\.json is missing: the folder was deleted or replaced") as caught:
            target.deliver(tag(2), rows(2))
        assert "job's folder too" in caught.value.next_step, "a start alone is refused: rows were delivered"
        other = Folder()
        other.deliver(1, 9)
        for path in other.own.list(""):
            folder.own.put(path, other.own.get(path))
        with pytest.raises(Unavailable, match="is another one than before"):
            target.delivered()
        for path, data in kept.items():
            folder.own.put(path, data)
        assert target.deliver(tag(2), rows(2), tag(1)) == Delivered(1) and folder.shown() == [1, 2]

    def test_a_folder_that_lost_its_newest_commits_is_noticed(self, folder: Folder) -> None:
        target = folder.target()
        target.deliver(tag(1), rows(1), NEVER)
        target.deliver(tag(2), rows(2), tag(1))
        folder.own.delete(commit_path(2))
        with pytest.raises(Damaged, match="timeline 1, epoch 2 was delivered to it"):
            target.deliver(tag(3), rows(3), tag(2))

    def test_a_folder_that_was_never_prepared_is_no_target(self) -> None:
        empty = Folder()
        empty.own.delete(META_PATH)
        with pytest.raises(ConfigError, match=r"_holdfast/files\.json is missing"):
            empty.target().delivered()

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda data: data.replace(b'"rows"', b'"rowz"').replace(b"part-", b"pert-"), "has no hash, or one that"),
            (lambda data: data[:20], "has no hash, or one that"),
        ],
    )
    def test_a_damaged_commit_is_reported_with_its_name(
        self, folder: Folder, change: Callable[[bytes], bytes], why: str
    ) -> None:
        folder.deliver(1, 1)
        folder.own.put(commit_path(1), change(folder.own.get(commit_path(1))))
        with pytest.raises(Damaged, match=rf"_holdfast/{commit_path(1)} {why}"):
            folder.target().delivered()

    def test_a_commit_of_another_folder_is_reported(self, folder: Folder) -> None:
        other = Folder()
        other.deliver(1, 9)
        folder.own.put(commit_path(1), other.own.get(commit_path(1)))
        with pytest.raises(Damaged, match="belongs to folder"):
            folder.target().delivered()

    def test_a_commit_that_is_missing_between_others_is_reported(self, folder: Folder) -> None:
        for epoch in (1, 2, 3):
            folder.deliver(epoch, epoch)
        folder.own.delete(commit_path(2))
        with pytest.raises(Damaged, match="is missing, though later commits exist"):
            folder.plan(0)

    def test_a_file_that_vanishes_before_it_is_published_is_reported(self, folder: Folder) -> None:
        def lose(request: str, path: str) -> None:
            if (request, path) == ("create", commit_path(1)):
                for staged in folder.staged():
                    folder.own.delete(staged)

        with pytest.raises(Damaged, match=r"part-0000000001-.*, with 1 rows, is neither there nor in"):
            folder.target(after=lose).deliver(tag(1), rows(1))


class TestRewind:
    def test_empties_the_files_of_later_epochs_of_all_writers(self, folder: Folder) -> None:
        folder.deliver(1, 1, 2)
        folder.deliver(2, 3, 4)
        folder.deliver(2, 5, writer=RIGHT)
        planned = folder.plan(1)
        assert (planned.verdict, planned.delete, planned.changed_by_others) == ("truncate", 3, 0)
        assert len(planned.sample) == 3 and {each["rows"] for each in planned.sample} == {1}
        assert folder.shown() == [1, 2, 3, 4, 5] and folder.back(1).delete == 3
        assert folder.shown() == [1, 2]

    def test_a_second_one_leaves_files_that_are_empty_as_they_are(self, folder: Folder) -> None:
        for epoch in (1, 2, 3):
            folder.deliver(epoch, epoch)
        folder.back(2)
        folder.deliver(4, 4, timeline=2)
        emptied = {path: folder.data.get(path) for path in folder.data.list("") if "-0000000003-" in path}
        puts = list[str]()
        found = folder.back(1, timeline=3, before=lambda request, path: puts.append(path) if request == "put" else None)
        assert (found.delete, folder.shown()) == (2, [1])
        assert emptied and not set(emptied) & set(puts)

    def test_done_again_it_writes_nothing(self, folder: Folder) -> None:
        folder.deliver(1, 1)
        folder.deliver(2, 2)
        folder.back(1)
        writes = list[str]()
        watch = lambda request, path: writes.append(path) if request in ("put", "create", "delete") else None
        assert folder.back(1, before=watch).delete == 0 and writes == []

    @pytest.mark.parametrize("change", ["removed", "rewritten"])
    def test_files_that_a_compaction_reached_cannot_be_taken_back(self, folder: Folder, change: str) -> None:
        folder.deliver(1, 1)
        folder.deliver(2, 2)
        (path,) = [path for path in folder.data.list("") if "-0000000002-" in path]
        folder.data.delete(path)
        if change == "rewritten":
            folder.data.put(path, b"of somebody else")
        planned = folder.plan(1)
        assert (planned.verdict, planned.takes_more, planned.changed_by_others) == ("impossible", True, None)
        assert f"1 of 1 files that hold its rows were removed or rewritten since, such as {path}" in planned.reason
        with pytest.raises(ConfigError, match="the rewind cannot undo its output"):
            folder.back(1)
        assert folder.target().delivered() == tag(2)

    def test_files_of_the_base_may_be_removed_by_others(self, folder: Folder) -> None:
        folder.deliver(1, 1)
        folder.deliver(2, 2)
        (path,) = [path for path in folder.data.list("") if "-0000000001-" in path]
        folder.data.delete(path)
        assert folder.back(1).delete == 1 and folder.shown() == []

    def test_opens_the_folder_once_for_all_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In S3 each time is a client with connections of its own."""
        sink = FilesSink(str(tmp_path / "out"))
        sink.prepare(SCHEMA, None)
        for epoch in (1, 2, 3, 4):
            sink.open(JOB, LEFT).deliver(tag(epoch), rows(epoch))
        opened = list[str]()

        def counted(path: str) -> OpenFolder:
            opened.append(path)
            return open_folder(path)

        monkeypatch.setattr("holdfast.sinks.files.sink.open_folder", counted)
        back = Rewinding(JOB, "out", tag(1, 2), (LEFT,))
        for act in (sink.plan_repair, sink.repair):
            opened.clear()
            assert act(back, SCHEMA, None).delete == 3 and len(opened) == 1

    def test_stops_a_job_that_reads_the_files(self, tmp_path: Path) -> None:
        sink = FilesSink(str(tmp_path / "out"))
        sink.prepare(SCHEMA, None)
        sink.open(JOB, LEFT).deliver(tag(1), rows(1))
        sink.open(JOB, LEFT).deliver(tag(2), rows(2))
        source = hf.Files(tmp_path / "out", SCHEMA).source().in_folder(str(tmp_path / "job")).copied(again=True)
        opened = source.open()
        assert opened.list_files() == 2
        sink.repair(Rewinding(JOB, "out", tag(1, 2), (LEFT,)), SCHEMA, None)
        with pytest.raises(Damaged, match="part-0000000002-"):
            opened.list_files()
        opened.close()


class TestPlanning:
    def sink(self, path: Path, **how: Any) -> FilesSink:
        return hf.Files(path / "out", **how).sink()

    @pytest.mark.parametrize("name", [f"{0:020}.json", "_last_checkpoint"])
    def test_the_folder_of_a_delta_table_is_refused(self, tmp_path: Path, name: str) -> None:
        LocalObjects(tmp_path / "out").put(f"_delta_log/{name}", b"{}")
        for act in (self.sink(tmp_path).prepare, self.sink(tmp_path).probe):
            with pytest.raises(ConfigError, match="VACUUM would delete the files of this sink"):
                act(SCHEMA, None)
        assert not (tmp_path / "out" / OWN_FOLDER).exists()

    def test_columns_and_folders_that_differ_are_refused(self, tmp_path: Path) -> None:
        self.sink(tmp_path).prepare(SCHEMA, None)
        for schema in (SCHEMA.append(pa.field("more", pa.int64())), SCHEMA.set(0, pa.field("n", pa.int32()))):
            with pytest.raises(ConfigError, match="its files hold n:int64, c:string"):
                self.sink(tmp_path).prepare(schema, None)
        with pytest.raises(ConfigError, match=r"partition_by=\[\], date_of=None; the sink has \['c'\]"):
            self.sink(tmp_path, partition_by="c").prepare(SCHEMA, None)
        self.sink(tmp_path, schema=SCHEMA).prepare(SCHEMA, None)

    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ({"partition_by": ["gone"]}, "there is no column 'gone'"),
            ({"date_of": "n"}, "no column 'n' of timestamps"),
            ({"schema": pa.schema([pa.field("n", pa.int64())])}, "the schema given to hf.Files has n:int64"),
        ],
    )
    def test_what_does_not_fit_the_stream_is_refused(self, tmp_path: Path, how: dict[str, Any], why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            self.sink(tmp_path, **how).check(SCHEMA, None)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("kind", "why"),
        [
            (pa.month_day_nano_interval(), "month_interval|Unhandled type|not implemented"),
            (pa.struct([]), "no child field"),
            (pa.decimal128(5, -2), "Scale must be a non-negative integer"),
        ],
        ids=str,
    )
    def test_a_column_that_parquet_cannot_hold_is_refused(self, tmp_path: Path, kind: pa.DataType, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            self.sink(tmp_path).check(pa.schema([pa.field("i", kind)]), None)

    def test_a_stream_that_replaces_rows_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"the stream replaces rows by \['n'\], but rows are only ever added"):
            self.sink(tmp_path).check(SCHEMA, ("n",))

    def test_rows_without_a_folder_are_refused_before_their_commit(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path, partition_by="c")
        sink.accept(rows(1, 2)[0])
        with pytest.raises(ConfigError, match="would have a name of more than 255 bytes"):
            sink.accept(pa.record_batch({"n": [1], "c": ["x" * 300]}))

    def test_a_probe_tells_what_a_start_would_find(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        assert "the first start creates the folder" in sink.probe(SCHEMA, None) and not (tmp_path / "out").exists()
        sink.prepare(SCHEMA, None)
        assert sink.probe(SCHEMA, None) == "the folder exists and fits the stream"

    def test_output_of_another_job_under_the_same_name_is_refused(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        sink.prepare(SCHEMA, None)
        sink.open(JOB, LEFT).deliver(tag(1), rows(1))
        sink.check_owner(JOB, "out")
        sink.check_owner("another", "other")
        for job in ("another", None):
            with pytest.raises(ConfigError, match="holds output of a sink 'out' of another job"):
                sink.check_owner(job, "out")

    def test_files_on_a_disk_are_readable_by_those_who_may_read_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir(mode=0o755)
        sink = self.sink(tmp_path, partition_by="c")
        sink.prepare(SCHEMA, None)
        sink.open(JOB, LEFT).deliver(tag(1), rows(1))
        (path,) = (tmp_path / "out").rglob("*.parquet")
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)
        assert LocalObjects(tmp_path / "out" / OWN_FOLDER).list("commits") == [commit_path(1)]


class TestKilledWriters:
    def test_leave_files_that_a_start_removes_once_they_are_old(self, tmp_path: Path) -> None:
        """A file that is still written changes; folders of the user stay, with files and without."""
        sink = FilesSink(str(tmp_path / "out"))
        sink.prepare(SCHEMA, None)
        folder = tmp_path / "out"
        (folder / "c=1").mkdir()
        (folder / "mine" / "empty").mkdir(parents=True)
        old = [folder / "c=1" / f"{TEMPORARY}1", folder / OWN_FOLDER / f"{TEMPORARY}2"]
        new, other = folder / "c=1" / f"{TEMPORARY}3", folder / "c=1" / "tmp.parquet"
        for each in (*old, new, other):
            each.write_bytes(b"half a file")
        for each in (*old, other):
            os.utime(each, (0, 0))
        sink.probe(SCHEMA, None)
        assert all(each.exists() for each in old), "doctor changes nothing"
        sink.prepare(SCHEMA, None)
        assert [each.exists() for each in (*old, new, other)] == [False, False, True, True]
        assert (folder / "mine" / "empty").is_dir()
