"""A log compacted by the first release of format 3 can be read, and its commits are written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged
from holdfast.examples.flights_hours_oracle import read_log
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.compacted import CompactedSegment, Compaction, Covered
from holdfast.storage.log.format import (
    Commit,
    Draft,
    LogMeta,
    LogSegment,
    WriterTag,
    before_the_first,
    commit_path,
    decode_commit,
    encode_commit,
    placed,
)
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "log_v3"
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
META = LogMeta("6f1d2c9e-0000-4000-8000-000000000003", SCHEMA, 2, ("n",))
FOLDER = "compacted/00000000000000000000/" + "d" * 32
DRAFTS = [
    Draft(
        "append",
        "a" * 32,
        1_767_312_000_000_000,
        (
            LogSegment(0, 0, 3, "data/0/00000000000000000000000000000001.arrow", 0, "0" * 16),
            LogSegment(1, 0, 1, "data/1/00000000000000000000000000000002.arrow", 0, "0" * 16),
        ),
    ),
    Draft(
        "append",
        "b" * 32,
        1_767_312_001_000_000,
        (LogSegment(0, 0, 2, "data/0/00000000000000000000000000000003.arrow", 0, "0" * 16),),
        WriterTag("job/out/0", Tag(Timeline(1), Epoch(7))),
    ),
    Draft(
        "compact",
        "d" * 32,
        1_767_312_002_000_000,
        compaction=Compaction(
            2,
            0,
            (Covered(2, 1_767_312_002_000_000),),
            (
                CompactedSegment(0, 1, 4, 3, 1, 4, f"{FOLDER}/0-0.arrow", 0, "0" * 16),
                CompactedSegment(1, 0, 0, 1, 0, None, f"{FOLDER}/1-0.arrow", 0, "0" * 16),
            ),
        ),
    ),
    Draft(
        "append",
        "e" * 32,
        1_767_312_003_000_000,
        (LogSegment(0, 0, 1, "data/0/00000000000000000000000000000004.arrow", 0, "0" * 16),),
    ),
    Draft("seal", "f" * 32, 1_767_312_004_000_000),
]


def golden() -> list[Commit]:
    return [decode_commit(META, n, (GOLDEN / commit_path(n)).read_bytes()) for n in range(1, len(DRAFTS) + 1)]


class TestFormatThreeOfTheLog:
    def test_meta_json_stays_at_format_one(self) -> None:
        assert read_meta(LocalObjects(GOLDEN)) == META

    def test_commits_are_written_byte_for_byte(self) -> None:
        for commit in golden():
            assert encode_commit(commit) == (GOLDEN / commit_path(commit.sequence)).read_bytes()

    def test_commits_have_the_expected_succession(self) -> None:
        tail = before_the_first(META)
        for draft, found in zip(DRAFTS, golden(), strict=True):
            tail = placed(draft, tail)
            assert (tail.v, tail.compact, tail.ends, tail.tags) == (found.v, found.compact, found.ends, found.tags)
            assert (found.kind, found.owner, found.seal) == (draft.kind, draft.owner, 0)
        assert [commit.v for commit in golden()] == [1, 1, 3, 3, 3]

    def test_rows_keep_their_offsets(self) -> None:
        reader = LogReader(LocalObjects(GOLDEN))
        batch, offsets, following = reader.read_placed(0, 0, 1 << 30)
        assert batch is not None and offsets is not None
        assert (offsets.tolist(), following) == ([1, 3, 4], 5)
        assert batch.to_pylist() == [{"n": 2, "word": "w2"}, {"n": 1, "word": "w9"}, {"n": 4, "word": None}]
        assert reader.read(0, 5, 1 << 30)[1] == 6
        assert (reader.end_offsets(), reader.sealed) == ({0: 6, 1: 1}, True)
        assert LogWriter(LocalObjects(GOLDEN)).tag_of("job/out/0") == Tag(Timeline(1), Epoch(7))

    def test_the_oracle_reads_the_same_rows(self) -> None:
        assert sorted(read_log(GOLDEN)["n"].to_list()) == [1, 2, 3, 4, 5]

    def test_a_log_that_was_never_compacted_stays_at_format_one(self) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, partitions=1, key=["n"])
        LogWriter(store).append({0: pa.table({"n": [1], "word": ["x"]}, schema=SCHEMA)})
        record = store.get(commit_path(1))
        assert record.startswith(b'{"v":1,') and b"compact" not in record and b'"seal"' not in record

    def test_older_releases_refuse_a_compacted_log_as_newer(self) -> None:
        for commit in golden()[2:]:
            assert (GOLDEN / commit_path(commit.sequence)).read_bytes().startswith(b'{"v":3,')

    def test_an_unknown_format_is_refused_as_newer_or_damaged(self) -> None:
        data = encode_commit(golden()[2]).replace(b'{"v":3,', b'{"v":4,')
        with pytest.raises((ConfigError, Damaged)):
            decode_commit(META, 3, data)
