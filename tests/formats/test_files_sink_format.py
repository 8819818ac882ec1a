"""What `hf.Files` writes below `_holdfast/` in format 1 can be read, and is written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.files.commits import FolderCommits, Stores
from holdfast.sinks.files.format import (
    META_PATH,
    Claimed,
    FolderCommit,
    FolderTag,
    StagedFile,
    before_the_first,
    decode_meta,
    delivery,
    encode,
    new_meta,
    staged_by,
    staged_path,
    taking_back,
    writer_name,
)
from holdfast.sinks.files.hive import Partitioning
from holdfast.storage.hashed import with_hash
from holdfast.storage.log.format import commit_path
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "files_sink_v1"
JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("ä", pa.string()), ("at", pa.timestamp("us"))])
META = new_meta("f0000000-0000-4000-8000-000000000001", SCHEMA, Partitioning(("ä",), "at"))
BY = Claimed(JOB, "out", Claim("token", Generation(3)))
NAME = writer_name(JOB, WRITER)
FIRST_ID, SECOND_ID = "0123456789abcdef" * 2, "fedcba9876543210" * 2


def commits() -> list[FolderCommit]:
    """A delivery of two files, and the rewind that takes them back."""
    staged = [
        StagedFile(folder, 2, 700, staged_path(JOB, WRITER, Tag(Timeline(1), Epoch(7)), FIRST_ID, number))
        for number, folder in enumerate(("ä=x%2Fy/date=2026-11-26", "ä=z/date=2026-11-26"))
    ]
    first = delivery(before_the_first(META), FIRST_ID, FolderTag(NAME, 1, 7), staged, BY)
    emptied = [file.path for file in first.files]
    return [first, taking_back(first, SECOND_ID, [FolderTag(NAME, 2, 6)], emptied, BY)]


class TestFormatOne:
    def test_is_read(self) -> None:
        meta = decode_meta(LocalObjects(GOLDEN).get(META_PATH))
        assert meta == META and meta.columns.equals(SCHEMA) and meta.partitioning == Partitioning(("ä",), "at")
        found = FolderCommits("files", lambda: Stores(MemoryObjects(), LocalObjects(GOLDEN)))
        assert found.refresh() == commits()[1] and found.at(1) == commits()[0]
        assert found.tail.held(JOB, "out") == Held("token", Generation(3))
        assert found.tail.newest_of(JOB, "out") == Tag(Timeline(2), Epoch(6))
        assert [staged_by(file.staged) for file in found.at(1).files] == [FolderTag(NAME, 1, 7)] * 2

    def test_is_written_byte_for_byte(self) -> None:
        written = {META_PATH: encode(META), **{commit_path(n): encode(each) for n, each in enumerate(commits(), 1)}}
        assert {path: (GOLDEN / path).read_bytes() for path in written} == written

    def test_a_newer_one_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"_holdfast/files\.json has version 2, this version of Holdfast reads 1"):
            decode_meta(with_hash(encode(META).replace(b'"v":1', b'"v":2').partition(b',"xxh3"')[0] + b"}"))

    @pytest.mark.parametrize(
        "path", ["staging/x", "staging/job=a/sink=b/x/1-2-id-0.staged", "staging/a/b/0/1-2.staged"]
    )
    def test_a_foreign_name_was_staged_by_no_writer(self, path: str) -> None:
        assert staged_by(path) is None
