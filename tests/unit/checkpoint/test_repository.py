from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.joblog import (
    Body,
    CheckpointCompleted,
    Expired,
    Finished,
    GenerationStarted,
    JobCreated,
    LogStart,
    Record,
    SavepointNamed,
    encode,
    fold,
)
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import (
    WHOLE_BYTES_MAX,
    Repository,
    RootLost,
    open_verified,
    read_verified,
    record_path,
)
from holdfast.errors import Damaged, Fenced
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.storage.hashing import HASHED_BYTES
from holdfast.storage.objects import LocalObjects, MemoryObjects

UUID = JobUuid("1" * 32)


def record(seq: int, body: JobCreated | GenerationStarted | Finished, owner: str = "a") -> Record:
    return Record(seq, UUID, Generation(seq - 1), Timeline(1), owner, 0, body)


CREATED = record(1, JobCreated("hot", 128))
STARTED = record(2, GenerationStarted(Epoch(1), Epoch(0), "here", "started"))
AGAIN = record(3, GenerationStarted(Epoch(101), Epoch(0), "here", "again"))
MANIFEST = Manifest(UUID, Generation(1), Timeline(1), Epoch(7), Epoch(0), 1, 128, (), (), (), (), ())


class LateListing(MemoryObjects):
    """A listing of a folder while another process creates files: it shows some and misses others."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    def list(self, prefix: str) -> list[str]:
        shown = super().list(prefix)
        self.hidden, gone = 0, self.hidden
        return [path for path in shown if path != record_path(gone)]


class LogGrowsWhileRead(MemoryObjects):
    """Another driver appends just before the log is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.coming = [AGAIN]

    def list(self, prefix: str) -> list[str]:
        while self.coming:
            each = self.coming.pop()
            self.create(record_path(each.seq), encode(each))
        return super().list(prefix)


def filled(store: MemoryObjects, *records: Record) -> Repository:
    for each in records:
        store.create(record_path(each.seq), encode(each))
    return Repository(store)


class TestReadingTheLog:
    def test_an_empty_log_has_no_job(self) -> None:
        assert Repository(MemoryObjects()).read_log() is None

    def test_all_records_are_read_in_order(self) -> None:
        assert filled(MemoryObjects(), CREATED, STARTED, AGAIN).records() == [CREATED, STARTED, AGAIN]

    def test_a_record_that_the_listing_misses_is_read(self) -> None:
        """P7"""
        assert filled(LateListing(hidden=2), CREATED, STARTED, AGAIN).records() == [CREATED, STARTED, AGAIN]

    def test_a_record_appended_during_the_read_is_read(self) -> None:
        assert filled(LogGrowsWhileRead(), CREATED, STARTED).records() == [CREATED, STARTED, AGAIN]

    def test_a_missing_record_is_damage_and_not_the_end(self) -> None:
        """Otherwise the next driver would append at that number and history would branch."""
        with pytest.raises(Damaged, match=r"has log/0+3\.json, but not log/0+2\.json"):
            filled(MemoryObjects(), CREATED, AGAIN).read_log()

    def test_other_files_beside_the_records_are_ignored(self) -> None:
        store = MemoryObjects()
        store.put("log/readme.txt", b"hands off")
        assert filled(store, CREATED).records() == [CREATED]

    def test_records_that_were_swapped_are_named_by_their_files(self) -> None:
        store = MemoryObjects()
        store.create(record_path(1), encode(CREATED))
        store.create(record_path(2), encode(AGAIN))
        store.create(record_path(3), encode(STARTED))
        with pytest.raises(Damaged, match=r"log/0+3\.json holds the record of log/0+2\.json: the two were swapped"):
            Repository(store).read_log()


class TestCreatingARecord:
    """P4: the reply is always the record now stored at the number."""

    def test_a_record_is_created_at_a_free_number(self) -> None:
        repository = filled(MemoryObjects(), CREATED)
        assert repository.create_record(STARTED) == STARTED
        assert repository.read_record(2) == STARTED

    def test_a_repeated_create_returns_the_same_record(self) -> None:
        repository = filled(MemoryObjects(), CREATED, STARTED)
        assert repository.create_record(STARTED) == STARTED

    def test_a_taken_number_keeps_its_record(self) -> None:
        repository = filled(MemoryObjects(), CREATED, STARTED)
        assert repository.create_record(record(2, Finished(Epoch(0)), owner="b")) == STARTED
        assert repository.read_record(2) == STARTED


class TestProvingTheRoot:
    """docs/decisions/0116: nothing is created in a root without the first record and the one before."""

    NEXT = msgspec.structs.replace(AGAIN, prev=STARTED.hash)

    def test_a_record_follows_the_one_that_it_names(self) -> None:
        repository = filled(MemoryObjects(), CREATED, STARTED)
        assert repository.create_record(self.NEXT) == self.NEXT

    @pytest.mark.parametrize("left", [[], [CREATED], [STARTED]])
    def test_without_one_of_the_two_nothing_is_created(self, left: list[Record]) -> None:
        store = MemoryObjects()
        with pytest.raises(RootLost, match=r"no longer has log/0+2\.json"):
            filled(store, *left).create_record(self.NEXT)
        assert store.list("") == [each.path for each in left]

    def test_nothing_is_created_behind_the_record_of_another_history(self) -> None:
        store = MemoryObjects()
        other = record(2, GenerationStarted(Epoch(1), Epoch(0), "elsewhere", "started"))
        with pytest.raises(RootLost, match=r"its log ends at log/0+2\.json"):
            filled(store, CREATED, other).create_record(self.NEXT)
        assert len(store.list("")) == 2

    def test_a_record_before_that_is_damaged_where_it_lies_is_there(self) -> None:
        store = MemoryObjects()
        repository = filled(store, CREATED, STARTED)
        store.put(STARTED.path, encode(STARTED)[:-30])
        assert repository.create_record(self.NEXT) == self.NEXT


class TestManifests:
    def test_a_manifest_is_loaded_by_its_reference_in_the_log(self) -> None:
        repository = Repository(MemoryObjects())
        ref = repository.store_manifest(MANIFEST, "owner")
        assert ref.path == "manifests/00000001/000000000007-owner.json"
        assert repository.load_manifest(ref) == MANIFEST

    def test_two_drivers_never_write_a_manifest_under_the_same_name(self) -> None:
        """P16: a zombie's late write changes nothing that is named."""
        repository = Repository(MemoryObjects())
        assert repository.store_manifest(MANIFEST, "a").path != repository.store_manifest(MANIFEST, "b").path

    def test_bytes_that_differ_from_the_reference_are_damage(self) -> None:
        store = MemoryObjects()
        ref = Repository(store).store_manifest(MANIFEST, "owner")
        store.put(ref.path, store.get(ref.path).replace(b'"epoch":7', b'"epoch":8'))
        with pytest.raises(Damaged, match="differs from what was written"):
            Repository(store).load_manifest(ref)

    def test_a_missing_object_is_damage(self) -> None:
        gone = ObjectRef("segments/1", 2, hashlib.sha256(b"ab").hexdigest())
        with pytest.raises(Damaged, match="segments/1 is missing"):
            read_verified(MemoryObjects(), gone)

    def test_a_truncated_object_is_damage(self) -> None:
        store = MemoryObjects()
        store.put("segments/1", b"a")
        with pytest.raises(Damaged, match="1 bytes, 2 expected"):
            read_verified(store, ObjectRef("segments/1", 2, hashlib.sha256(b"ab").hexdigest()))

    @pytest.mark.parametrize("size", [9, WHOLE_BYTES_MAX + 1, 3 * HASHED_BYTES])
    def test_no_byte_of_a_damaged_object_is_given_out(self, tmp_path: Path, size: int) -> None:
        store, data = LocalObjects(tmp_path), bytes(size)
        ref = ObjectRef("segments/1", size, hashlib.sha256(data).hexdigest())
        with pytest.raises(Damaged, match="missing"):
            open_verified(store, ref)
        store.put(ref.path, data)
        with open_verified(store, ref) as file:
            assert (file.size(), file.read_at(9, size - 9)) == (size, data[-9:])
        for damaged in (data[:-1] + b"!", b"!" + data[1:], data[:-1], data + b"!"):
            store.put(ref.path, damaged)
            with pytest.raises(Damaged, match="differs"):
                open_verified(store, ref)


def of(seq: int, body: Body) -> Record:
    return Record(seq, UUID, Generation(1), Timeline(1), "a", 0, body)


def long_log() -> list[Record]:
    """It contains two log starts: records 6 and 9."""
    done = [CheckpointCompleted(Epoch(n), Epoch(n - 1), ObjectRef(f"m/{n}", 1, ""), 1, 1, 1) for n in range(5)]
    records = [CREATED, STARTED, of(3, done[1]), of(4, done[2]), of(5, Expired(Epoch(1)))]
    for body in (None, done[3], done[4], None):
        if body is None:
            job = None
            for each in records:
                job = fold(job, each)
            assert job is not None
        records.append(of(len(records) + 1, body or LogStart(job)))  # type: ignore[arg-type]
    return records


class TestPruning:
    """P7"""

    def test_reading_begins_at_the_newest_log_start_and_folds_to_the_same_job(self) -> None:
        store = MemoryObjects()
        repository = filled(store, *long_log())
        before = repository.read_log()
        assert [each.seq for each in repository.records()] == [9]
        kept: set[int] = set()
        assert repository.prune(9, kept) == 6
        assert kept == {1, 2}
        assert store.list("log") == [record_path(1), record_path(2), record_path(9)]
        assert repository.read_log() == before

    def test_a_start_at_a_pruned_number_is_fenced(self) -> None:
        repository = filled(MemoryObjects(), *long_log())
        repository.prune(9, set())
        late = record(3, GenerationStarted(Epoch(101), Epoch(0), "there", "late"), owner="z")
        for _ in range(2):  # the reply to the first may be lost
            with pytest.raises(Fenced, match="advanced to generation 1"):
                repository.create_record(late)
        assert [each.seq for each in repository.records()] == [9]

    @pytest.mark.parametrize("number", [3, 7])
    def test_a_name_at_a_pruned_number_is_refused_and_ignored_by_readers(self, number: int) -> None:
        """P6, P7: the process that gives the name may have read the log long ago."""
        repository = filled(MemoryObjects(), *long_log())
        repository.prune(9, set())
        name = of(number, SavepointNamed(Epoch(1), "v1"))
        with pytest.raises(Fenced, match="while this SavepointNamed was in flight"):
            repository.create_record(msgspec.structs.replace(name, owner="somebody"))
        job = repository.read_log()
        assert job is not None and job.savepoints == ()
        again = CheckpointCompleted(Epoch(1), Epoch(0), ObjectRef("m/1", 1, ""), 1, 1, 1)
        with pytest.raises(Fenced):  # a driver of the past that sends its record again and finds the name there
            repository.create_record(of(number, again))

    def test_a_name_at_the_end_of_the_log_does_not_block_an_append(self) -> None:
        repository = filled(MemoryObjects(), *long_log())
        name = msgspec.structs.replace(of(10, SavepointNamed(Epoch(4), "v1")), owner="somebody")
        assert repository.create_record(name) == name
        assert repository.create_record(of(10, Expired(Epoch(3)))) == name

    def test_names_are_never_pruned(self) -> None:
        """P7: a stale driver's next record must find the stored name."""
        records = [*long_log()[:4], msgspec.structs.replace(of(5, SavepointNamed(Epoch(1), "v1")), owner="somebody")]
        job = None
        for each in records:
            job = fold(job, each)
        assert job is not None
        store = MemoryObjects()
        begin = of(6, LogStart(job))
        repository = filled(store, *records, begin)
        assert repository.prune(6, set()) == 2
        assert store.list("log") == [record_path(n) for n in (1, 2, 5, 6)]
        assert repository.read_log() == replace(job, next_seq=7, log_start=6, head=begin.hash)

    def test_a_log_that_is_pruned_while_it_is_read_is_read_again(self) -> None:
        records = long_log()

        class Pruned(MemoryObjects):
            def get(self, path: str) -> bytes:
                if path == record_path(7) and path in self.list("log"):
                    self.create(record_path(9), encode(records[8]))
                    self.delete(path)
                return super().get(path)

        assert filled(Pruned(), *records[:8]).records() == [records[8]]
