"""Records that name owners are read and written byte for byte as by the first release that had them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.checkpoint import joblog
from holdfast.model import Epoch, Generation, JobUuid, Tag, Timeline
from holdfast.storage.hashed import own_hash
from holdfast.storage.log.format import (
    Commit,
    Draft,
    LogMeta,
    LogOwner,
    WriterTag,
    before_the_first,
    decode_commit,
    encode_commit,
    placed,
)

FOLDER = Path(__file__).parent
META = LogMeta("0" * 32, pa.schema([("n", pa.int64())]), 2, ())
COMMIT, LOG_START = FOLDER / "log_v5" / "owned_commit.json", FOLDER / "job_v4" / "log_start.json"
OLDER_LOG_START = FOLDER / "job_v3" / "log_start.json"


def commit() -> Commit:
    written = WriterTag("job/out/0", Tag(Timeline(1), Epoch(7)))
    first = placed(Draft("append", "a" * 32, 1, tag=written), before_the_first(META))
    owned = Draft("append", "b" * 32, 2, tag=written, owned=LogOwner("job/out", "c" * 32, 3))
    return placed(owned, first)


def log_start() -> joblog.Record:
    job = joblog.Job(
        JobUuid("0" * 32),
        "hot",
        128,
        1_767_312_000_000_000,
        9,
        Generation(2),
        owner="b" * 32,
        first_epoch=Epoch(102),
        owners=("a" * 32, "b" * 32),
        reached=(Tag(Timeline(1), Epoch(1)),),
    )
    at = 1_767_312_000_000_009
    return joblog.Record(9, job.uuid, job.generation, job.timeline, job.owner, at, joblog.LogStart(job), prev="f" * 16)


class TestCommitThatNamesAnOwner:
    def test_it_is_written_byte_for_byte(self) -> None:
        assert encode_commit(commit()) == COMMIT.read_bytes()

    def test_it_is_decoded_with_its_owner(self) -> None:
        found = decode_commit(META, 2, COMMIT.read_bytes())
        assert found == commit() and found.owner_of("job/out") == LogOwner("job/out", "c" * 32, 3)
        assert COMMIT.read_bytes().startswith(b'{"v":5,'), "an earlier release would drop the owner"

    def test_the_following_commit_carries_the_owner_on(self) -> None:
        following = placed(Draft("seal", "d" * 32, 3), commit())
        assert (following.v, following.owners) == (5, commit().owners)


class TestLogStartThatNamesOwners:
    def test_it_is_written_byte_for_byte(self) -> None:
        assert joblog.encode(log_start()) == LOG_START.read_bytes()

    def test_it_is_decoded_with_its_owners(self) -> None:
        found = joblog.decode(LOG_START.read_bytes(), "log/9.json")
        assert found == log_start() and joblog.fold(None, found).owners == ("a" * 32, "b" * 32)
        assert joblog.fold(None, found).reached == (Tag(Timeline(1), Epoch(1)),)
        assert LOG_START.read_bytes().startswith(b'{"seq":9,') and b'"v":4,' in LOG_START.read_bytes()

    def test_a_format_three_log_start_decodes_with_its_owners_and_keeps_its_hash(self) -> None:
        data = OLDER_LOG_START.read_bytes()
        found = joblog.decode(data, "log/9.json")
        job = joblog.fold(None, found)
        assert (found.v, job.owners, job.reached) == (3, ("a" * 32, "b" * 32), ())
        assert job.head == own_hash(data)
