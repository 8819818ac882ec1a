"""Job log records and manifests of format 1 are read and written byte for byte as by its first release.

They are the only truth about a job and live as long as it does. A difference here needs a new
format number, a page in docs/decisions/, and a reader for the old one.
"""

from __future__ import annotations

import dataclasses
from functools import reduce
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint import folds, joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, OperatorState, decode, encode
from holdfast.checkpoint.repository import record_path
from holdfast.errors import ConfigError, Damaged
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)

GOLDEN = Path(__file__).parent / "job_v1"
UUID = JobUuid("6f1d2c9e000040008000000000000001")
OWNER = "a" * 32


def blob(path: str, size: int) -> ObjectRef:
    return ObjectRef(path, size, "5" * 64)


MANIFEST = Manifest(
    job_uuid=UUID,
    generation=Generation(1),
    timeline=Timeline(1),
    epoch=Epoch(7),
    follows=Epoch(5),
    parallelism=2,
    key_groups=128,
    positions=(SourcePosition("bids", 0, 1_000), SourcePosition("bids", 1, -1)),
    state=(
        SnapshotHandle(Subtask(0), (0, 64), (blob("snapshots/1/5/0/1.sst", 300),), Epoch(5), ()),
        SnapshotHandle(
            Subtask(1),
            (64, 128),
            (),
            Epoch(0),
            (SegmentRef(Epoch(7), Epoch(5), blob("segments/00000001/000000000007/w1.segment", 200)),),
        ),
    ),
    pending=(
        Pending(
            Writer("out", Subtask(1)),
            Tag(Timeline(1), Epoch(7)),
            Staged((blob("staged/00000001/000000000007/w1-out.arrow", 100),), 12),
        ),
    ),
    confirmed=(Confirmed(Writer("out", Subtask(0)), Tag(Timeline(1), Epoch(5))),),
    operators=(OperatorState("hot", 1, {"auction": "int64", "bids": "int64"}),),
)
MANIFEST_REF = ObjectRef(
    f"manifests/00000001/000000000007-{OWNER}.json",
    1120,
    "0" * 64,
)


def record(seq: int, generation: int, body: joblog.Body, v: int = 1) -> joblog.Record:
    return joblog.Record(seq, UUID, Generation(generation), Timeline(1), OWNER, 1_767_312_000_000_000 + seq, body, v)


RECORDS = [
    record(1, 0, joblog.JobCreated("hot-auctions", 128)),
    record(2, 1, joblog.GenerationStarted(Epoch(1), Epoch(0), "host-1", "started")),
    record(3, 1, joblog.CheckpointCompleted(Epoch(7), Epoch(0), MANIFEST_REF, 42, 300, 300)),
    record(4, 1, joblog.Stopped(Epoch(7))),
    record(5, 2, joblog.GenerationStarted(Epoch(108), Epoch(7), "host-2", "worker é was killed")),
    record(6, 2, joblog.Finished(Epoch(7))),
    record(7, 2, joblog.SavepointNamed(Epoch(7), "before-upgrade")),
]
NAMED = record(8, 2, joblog.CheckpointCompleted(Epoch(9), Epoch(7), MANIFEST_REF, 42, 300, 600, "nightly"))
"""A checkpoint with a savepoint's name; not a part of the job above."""


class TestFormatOneOfTheJobLog:
    @pytest.mark.parametrize("each", [*RECORDS, NAMED], ids=lambda each: f"{each.seq}-{each.kind}")
    def test_a_record_is_read_and_rewritten_byte_for_byte(self, each: joblog.Record) -> None:
        data = (GOLDEN / record_path(each.seq)).read_bytes()
        assert joblog.decode(data, record_path(each.seq)) == each
        assert joblog.encode(each) == data

    def test_the_records_fold_into_a_job(self) -> None:
        job = reduce(joblog.fold, RECORDS, None)
        assert job is not None
        assert (job.generation, job.base_epoch, job.finished) == (2, 7, True)
        assert job.savepoints == (joblog.Savepoint("before-upgrade", Epoch(7)),)


class TestFormatTwoOfTheJobLog:
    def test_a_record_ends_with_its_hash(self) -> None:
        data = (GOLDEN.with_name("job_v2") / record_path(3)).read_bytes()
        completed = joblog.CheckpointCompleted(Epoch(7), Epoch(0), MANIFEST_REF, 42, 300, 300)
        assert joblog.decode(data, record_path(3)) == record(3, 1, completed, v=2)
        assert joblog.encode(record(3, 1, completed, v=2)) == data

    def test_a_record_with_any_byte_changed_is_refused(self) -> None:
        data = (GOLDEN.with_name("job_v2") / record_path(3)).read_bytes()
        for at in range(len(data)):
            for bit in range(8):
                with pytest.raises((Damaged, ConfigError)):
                    joblog.decode(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], record_path(3))


class TestFormatThreeOfTheJobLog:
    """Each record carries the hash of the previous one, whatever its format."""

    def read(self) -> list[joblog.Record]:
        paths = sorted((GOLDEN.with_name("job_v3") / "log").iterdir())
        return [joblog.decode(path.read_bytes(), f"log/{path.name}") for path in paths]

    def test_a_log_begun_by_older_versions_is_continued(self) -> None:
        records = self.read()
        assert [each.v for each in records] == [1, 2, 3, 3]
        assert records == records_of_three_formats()
        job = reduce(joblog.fold, records, None)
        assert job is not None and (job.base_epoch, job.head) == (7, "d22cc59221afebe1")

    def test_a_record_is_written_byte_for_byte(self) -> None:
        for each in records_of_three_formats():
            assert joblog.encode(each) == (GOLDEN.with_name("job_v3") / each.path).read_bytes()

    def test_a_record_with_any_byte_changed_is_refused(self) -> None:
        data = (GOLDEN.with_name("job_v3") / record_path(3)).read_bytes()
        for at in range(len(data)):
            with pytest.raises((Damaged, ConfigError)):
                joblog.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], record_path(3))


class TestFormatFourOfTheJobLog:
    """A LogStart says what the owners completed."""

    def test_a_record_is_read_and_rewritten_byte_for_byte(self) -> None:
        body = joblog.CheckpointCompleted(Epoch(7), Epoch(0), MANIFEST_REF, 42, 300, 300)
        each = msgspec.structs.replace(record(3, 1, body, v=4), prev="0123456789abcdef")
        data = (GOLDEN.with_name("job_v4") / each.path).read_bytes()
        assert joblog.decode(data, each.path) == each and joblog.encode(each) == data


class TestFormatFiveOfTheJobLog:
    """The first record of a fork; every other record is still written as format 4."""

    FIRST = joblog.Record(
        1,
        UUID,
        Generation(0),
        Timeline(1),
        OWNER,
        1_767_312_000_000_000,
        joblog.Forked(
            "trial",
            128,
            (
                joblog.ForkOrigin("bids", JobUuid("1" * 32), Timeline(1), Epoch(3), {}),
                joblog.ForkOrigin(
                    "hot-auctions",
                    JobUuid("2" * 32),
                    Timeline(2),
                    Epoch(7),
                    {"out": {"kind": "SQLite", "path": "/data/out.db", "table": "hot"}},
                ),
            ),
            Epoch(7),
            MANIFEST_REF,
            42,
            300,
        ),
        v=5,
        prev="",
    )

    def test_a_record_is_read_and_rewritten_byte_for_byte(self) -> None:
        data = (GOLDEN.with_name("job_v5") / self.FIRST.path).read_bytes()
        assert joblog.decode(data, self.FIRST.path) == self.FIRST and joblog.encode(self.FIRST) == data

    def test_a_record_with_any_byte_changed_is_refused(self) -> None:
        data = (GOLDEN.with_name("job_v5") / self.FIRST.path).read_bytes()
        for at in range(len(data)):
            with pytest.raises((Damaged, ConfigError)):
                joblog.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], self.FIRST.path)

    def test_other_records_are_still_read_by_earlier_versions(self) -> None:
        assert joblog.Record(1, UUID, Generation(0), Timeline(1), OWNER, 0, RECORDS[0].body).v == 4


class TestStoredFold:
    """A change of these bytes needs another `folds.VERSION`: a fold that is read differently is worse than none."""

    OLDER = GOLDEN.with_name("job_v3") / "fold.json"
    GOLDEN = GOLDEN.with_name("job_v4") / "fold.json"

    def job(self) -> joblog.Job:
        job = reduce(joblog.fold, records_of_three_formats(), None)
        assert job is not None
        return job

    def test_is_read_and_rewritten_byte_for_byte(self) -> None:
        assert folds.encode(self.job()) == self.GOLDEN.read_bytes()
        assert folds.decode(self.GOLDEN.read_bytes(), 4) == self.job()

    def test_holds_every_member_of_the_fold(self) -> None:
        """A new member would be missing in the folds that are stored already."""
        stored = msgspec.json.decode(self.GOLDEN.read_bytes())
        assert stored["v"] == folds.VERSION == 2
        assert set(stored["job"]) == {field.name for field in dataclasses.fields(joblog.Job)}

    def test_with_any_byte_changed_is_ignored(self) -> None:
        data = self.GOLDEN.read_bytes()
        for at in range(len(data)):
            assert folds.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 4) is None

    def test_a_stored_fold_of_an_earlier_version_is_ignored(self) -> None:
        assert folds.decode(self.OLDER.read_bytes(), 4) is None

    def test_a_stored_fold_of_another_record_is_ignored(self) -> None:
        assert folds.decode(self.GOLDEN.read_bytes(), 5) is None


def records_of_three_formats() -> list[joblog.Record]:
    found = [
        record(1, 0, joblog.JobCreated("hot-auctions", 128)),
        record(2, 1, joblog.GenerationStarted(Epoch(1), Epoch(0), "host-1", "started"), v=2),
    ]
    for body in (
        joblog.CheckpointCompleted(Epoch(7), Epoch(0), MANIFEST_REF, 42, 300, 300),
        joblog.SavepointNamed(Epoch(7), "before-upgrade"),
    ):
        next_one = record(len(found) + 1, 1, body, v=3)
        found.append(msgspec.structs.replace(next_one, prev=found[-1].hash))
    return found


class TestFormatOneOfTheManifest:
    def test_a_manifest_is_read_and_rewritten_byte_for_byte(self) -> None:
        data = (GOLDEN / "manifest.json").read_bytes()
        assert decode(data, MANIFEST_REF) == MANIFEST
        assert encode(MANIFEST) == data
