"""A log of format 7, with packed commits, can be read, and its commits are written byte for byte as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log import format as log_format
from holdfast.storage.log.format import commit_path, decode_commit, encode_commit
from holdfast.storage.log.log import LogReader, LogWriter
from holdfast.storage.log.packs import Packing, decode_pack, encode_pack, pack_path
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import LocalObjects

GOLDEN = Path(__file__).parent / "log_v7"


class TestFormatSevenOfTheLog:
    def test_commits_are_written_byte_for_byte(self) -> None:
        created, found = existing_meta(LocalObjects(GOLDEN)), []
        for sequence in (1, 2, 3, 7, 8, 9, 10):
            data = (GOLDEN / commit_path(sequence)).read_bytes()
            commit = decode_commit(created, sequence, data)
            assert encode_commit(commit) == data
            found.append((commit.v, commit.packs))
        assert found == [(1, None)] * 2 + [(7, Packing(since=3, block=3))] * 5

    def test_a_pack_holds_commits_byte_for_byte(self) -> None:
        path = pack_path(6)
        lines = decode_pack(path, (GOLDEN / path).read_bytes(), 3)
        created = existing_meta(LocalObjects(GOLDEN))
        assert [encode_commit(decode_commit(created, 4 + n, line)) for n, line in enumerate(lines)] == lines
        assert decode_pack(path, encode_pack(lines), 3) == lines
        assert [path.name for path in (GOLDEN / "packs").iterdir()] == [Path(path).name]

    def test_rows_and_tags_are_read(self) -> None:
        batch, following = LogReader(LocalObjects(GOLDEN)).read(0, 4, 1 << 20)
        assert batch is not None and batch.to_pylist() == [{"n": 4}] and following == 5
        assert LogReader(LocalObjects(GOLDEN)).end_offsets() == {0: 10}
        assert LogWriter(LocalObjects(GOLDEN)).tag_of("job/out/0") == Tag(Timeline(1), Epoch(10))

    def test_an_older_release_refuses_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would create packed commits again. It has the same check, up to format 6."""
        shutil.copytree(GOLDEN, tmp_path / "log")
        monkeypatch.setattr(log_format, "PACK_VERSION", 6)
        with pytest.raises(ConfigError, match="has format 7, but this release reads formats up to 6"):
            LogWriter(LocalObjects(tmp_path / "log"))
