"""A log of format 1 is read and written byte for byte as by its first release."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.format import (
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
from holdfast.storage.log.log import LogReader, LogWriter, read_meta
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "log_v1"
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
META = LogMeta("6f1d2c9e-0000-4000-8000-000000000001", SCHEMA, 2, ("n",))
DRAFTS = [
    Draft(
        "append",
        "a" * 32,
        1_767_312_000_000_000,
        (
            LogSegment(0, 0, 2, "data/0/00000000000000000000000000000001.arrow", 698, "2222c4b9ed35dc46"),
            LogSegment(1, 0, 1, "data/1/00000000000000000000000000000002.arrow", 674, "f32ee52737ec6d13"),
        ),
    ),
    Draft(
        "append",
        "b" * 32,
        1_767_312_001_000_000,
        (LogSegment(0, 0, 1, "data/0/00000000000000000000000000000003.arrow", 674, "040a0bd83358765d"),),
        WriterTag("job/out/0", Tag(Timeline(1), Epoch(7))),
    ),
    Draft("seal", "c" * 32, 1_767_312_002_000_000),
]


class TestFormatOneOfTheLog:
    def test_meta_is_read(self) -> None:
        assert read_meta(LocalObjects(GOLDEN)) == META

    def test_commits_are_written_byte_for_byte(self) -> None:
        tail = before_the_first(META)
        for draft in DRAFTS:
            tail = placed(draft, tail)
            assert encode_commit(tail) == (GOLDEN / commit_path(tail.sequence)).read_bytes()

    def test_commits_are_decoded_to_the_values_that_were_written(self) -> None:
        tail = before_the_first(META)
        for draft in DRAFTS:
            tail = placed(draft, tail)
            data = (GOLDEN / commit_path(tail.sequence)).read_bytes()
            assert decode_commit(META, tail.sequence, data) == tail

    def test_rows_ends_seal_and_tags_are_read(self) -> None:
        store = LocalObjects(GOLDEN)
        reader = LogReader(store)
        found, offset = [], 0
        while (got := reader.read(0, offset, 1 << 30))[0] is not None:
            found += got[0].to_pylist()
            offset = got[1]
        assert found == [{"n": 1, "word": "w1"}, {"n": 2, "word": None}, {"n": 4, "word": "w4"}]
        assert (reader.end_offsets(), reader.sealed) == ({0: 3, 1: 1}, True)
        assert LogWriter(store).tag_of("job/out/0") == Tag(Timeline(1), Epoch(7))

    def test_a_newer_format_is_refused_as_newer_and_not_as_damage(self) -> None:
        body = b'{"v":3,"something":"new"'
        store = MemoryObjects()
        store.put("meta.json", body + b',"xxh3":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}')
        with pytest.raises(ConfigError, match="has format 3, but this release reads formats up to 2"):
            read_meta(store)
