"""A changelog, whose `meta.json` has format 2, can be read, and is written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from holdfast.errors import Damaged
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.format import META_PATH, commit_path, decode_commit, decode_meta, encode_commit, encode_meta
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "log_changelog_v2"
DATA = (GOLDEN / META_PATH).read_bytes()


def hashed(body: bytes) -> bytes:
    return body + b',"xxh3":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}'


class TestFormatTwoOfMeta:
    def test_it_is_written_byte_for_byte(self) -> None:
        meta = decode_meta(DATA)
        assert encode_meta(meta) == DATA
        assert (meta.changelog, meta.key, meta.partitions) == (True, ("shop",), 2)
        wanted = [("holdfast_deleted", pa.bool_(), False), ("shop", pa.utf8(), False)]
        assert list(meta.schema) == [
            *(pa.field(*each) for each in wanted),
            pa.field("n", pa.int64()),
            pa.field("word", pa.utf8()),
        ]

    def test_older_releases_refuse_it_as_newer(self) -> None:
        assert DATA.startswith(b'{"v":2,')

    def test_a_log_that_is_no_changelog_stays_at_format_one(self) -> None:
        store = MemoryObjects()
        create_log(store, pa.schema([("n", pa.int64())]), key=["n"])
        data = store.get(META_PATH)
        assert data.startswith(b'{"v":1,') and b"changelog" not in data

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (b'"changelog":true', b'"changelog":false'),
            (b'"key":["shop"]', b'"key":[]'),
            (b'"key":["shop"]', b'"key":["n"]'),
            (b'"v":2', b'"v":1'),
        ],
    )
    def test_a_changelog_that_cannot_exist_is_damage(self, one: bytes, other: bytes) -> None:
        body = DATA[: DATA.index(b',"xxh3"')]
        assert one in body
        with pytest.raises(Damaged, match="describes a changelog that cannot exist"):
            decode_meta(hashed(body.replace(one, other)))


class TestGoldenChangelog:
    def test_commits_are_written_byte_for_byte(self) -> None:
        meta = existing_meta(LocalObjects(GOLDEN))
        found = []
        for sequence in range(1, 5):
            data = (GOLDEN / commit_path(sequence)).read_bytes()
            commit = decode_commit(meta, sequence, data)
            assert encode_commit(commit) == data
            found.append((commit.v, commit.kind))
        assert found == [(1, "append"), (1, "append"), (3, "compact"), (3, "append")]

    def test_records_are_read(self) -> None:
        reader, found = LogReader(LocalObjects(GOLDEN)), []
        for partition in range(2):
            batch, offset = reader.read(partition, 0, 1 << 20)
            while batch is not None:
                found += [tuple(row.values()) for row in batch.to_pylist()]
                batch, offset = reader.read(partition, offset, 1 << 20)
        assert sorted(found, key=str) == [
            (False, "east", None, None),
            (False, "north", 3, "b"),
            (False, "west", 4, "w"),
            (True, "east", None, None),
            (True, "south", None, None),
        ]
        assert LogWriter(LocalObjects(GOLDEN)).tag_of("job/out/0") == Tag(Timeline(1), Epoch(2))

    def test_the_table_is_read(self) -> None:
        rows = [tuple(row.values()) for each in read_table(LocalObjects(GOLDEN)) for row in each.rows.to_pylist()]
        assert sorted(rows) == [("north", 3, "b"), ("west", 4, "w")]
