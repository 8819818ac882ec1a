"""A log of format 4, with an added column, can be read, and its commits are written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.format import commit_path, decode_commit, encode_commit
from holdfast.storage.log.log import LogReader, LogWriter, read_meta
from holdfast.storage.objects import LocalObjects

GOLDEN = Path(__file__).parent / "log_v4"


class TestFormatFourOfTheLog:
    def test_meta_has_the_columns_added_later(self) -> None:
        meta = read_meta(LocalObjects(GOLDEN))
        assert meta is not None and meta.created_with == 2
        wanted = [pa.field("n", pa.int64(), False), pa.field("word", pa.utf8()), pa.field("size", pa.float64())]
        assert list(meta.schema) == wanted

    def test_commits_are_written_byte_for_byte(self) -> None:
        meta = LogReader(LocalObjects(GOLDEN)).meta
        versions = []
        for sequence in range(1, 6):
            data = (GOLDEN / commit_path(sequence)).read_bytes()
            commit = decode_commit(meta, sequence, data)
            assert encode_commit(commit) == data
            versions.append((commit.v, commit.kind, commit.grown))
        assert versions == [(1, "append", 0), (4, "grow", 2), (4, "append", 2), (4, "append", 2), (4, "seal", 2)]

    def test_rows_of_all_writers_are_read(self) -> None:
        reader, found = LogReader(LocalObjects(GOLDEN)), []
        for partition, end in reader.end_offsets().items():
            offset = 0
            while offset < end:
                batch, offset = reader.read(partition, offset, 1 << 20)
                assert batch is not None
                found += [tuple(row.values()) for row in batch.to_pylist()]
        assert found == [(1, "w1", None), (2, None, None), (4, "w4", None), (3, "w3", 1.5)]
        assert LogWriter(LocalObjects(GOLDEN)).tag_of("job/out/0") == Tag(Timeline(1), Epoch(7))
