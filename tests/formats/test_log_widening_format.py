"""A log of format 6, with added partitions, can be read, and its commits are written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.format import commit_path, decode_commit, encode_commit
from holdfast.storage.log.log import LogReader, LogWriter, read_meta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import LocalObjects

GOLDEN = Path(__file__).parent / "log_v6"


class TestFormatSixOfTheLog:
    def test_meta_has_the_partitions_added_later(self) -> None:
        store = LocalObjects(GOLDEN)
        meta = read_meta(store)
        assert meta is not None and (meta.partitions, existing_meta(store).partitions) == (4, 2)

    def test_commits_are_written_byte_for_byte(self) -> None:
        created = existing_meta(LocalObjects(GOLDEN))
        found = []
        for sequence in range(1, 5):
            data = (GOLDEN / commit_path(sequence)).read_bytes()
            commit = decode_commit(created, sequence, data)
            assert encode_commit(commit) == data
            found.append((commit.v, commit.kind, commit.ends))
        assert found == [
            (1, "append", (1, 1)),
            (6, "widen", (1, 1, 0, 0)),
            (6, "append", (2, 1, 0, 1)),
            (6, "seal", (2, 1, 0, 1)),
        ]

    def test_rows_of_all_partitions_are_read(self) -> None:
        reader, found = LogReader(LocalObjects(GOLDEN)), []
        for partition, end in reader.end_offsets().items():
            offset = 0
            while offset < end:
                batch, offset = reader.read(partition, offset, 1 << 20)
                assert batch is not None
                found += [(partition, *row.values()) for row in batch.to_pylist()]
        assert found == [(0, 1), (0, 3), (1, 2), (3, 4)]
        assert LogWriter(LocalObjects(GOLDEN)).tag_of("job/out/0") == Tag(Timeline(1), Epoch(7))
