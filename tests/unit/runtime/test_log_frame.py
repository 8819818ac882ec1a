"""`hf.log`: the rows of a log, or its table, as a lazy frame."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.partitioning import partition_rows
from holdfast.storage.objects import LocalObjects

ROWS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("word", pa.utf8())])


def appended(folder: Path, *records: tuple[bool, int, str | None]) -> None:
    writer = LogWriter(LocalObjects(folder))
    given = [dict(zip(writer.meta.schema.names, each, strict=True)) for each in records]
    table = pa.Table.from_pylist(given, schema=writer.meta.schema)
    writer.append(partition_rows(table, writer.meta.key, writer.meta.partitions))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    create_log(LocalObjects(tmp_path / "log"), ROWS, 3, ["k"], changelog=True)
    appended(tmp_path / "log", *((False, k, f"w{k}") for k in range(8)))
    appended(tmp_path / "log", (True, 1, None), (False, 2, "new"), (True, 3, None), (False, 3, None))
    return tmp_path / "log"


TABLE = [(0, "w0"), (2, "new"), (3, None), (4, "w4"), (5, "w5"), (6, "w6"), (7, "w7")]


class TestRecords:
    def test_a_changelog_has_the_mark(self, log: Path) -> None:
        frame = hf.log(log)
        assert frame.collect_schema() == {"holdfast_deleted": pl.Boolean, "k": pl.Int64, "word": pl.String}
        found = frame.collect()
        assert found.height == 12 and found.filter("holdfast_deleted")["k"].sort().to_list() == [1, 3]

    def test_only_what_is_asked_for_is_given(self, log: Path) -> None:
        frame = hf.log(str(log))
        assert frame.select(pl.len()).collect().item() == 12
        assert frame.filter(pl.col("word") == "new").select("k").collect().rows() == [(2,)]
        assert frame.head(5).collect().equals(frame.collect().head(5))
        assert frame.head(0).collect().height == 0
        assert frame.filter(pl.col("k") > 6).head(1).select("word").collect().rows() == [("w7",)]

    def test_a_frame_shows_the_log_as_it_is_when_it_is_collected(self, log: Path) -> None:
        frame = hf.log(log, as_table=True)
        before = frame.collect().height
        appended(log, (False, 100, "later"))
        LogWriter(LocalObjects(log)).grow(pa.schema([pa.field("more", pa.int64())]))
        found = frame.collect()
        assert (found.height, found.columns) == (before + 1, ["k", "word"])
        assert hf.log(log).collect().columns == ["holdfast_deleted", "k", "word", "more"]

    def test_a_missing_log_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match="no log exists"):
            hf.log(tmp_path / "absent")

    def test_damage_is_reported_when_rows_are_read(self, log: Path) -> None:
        frame = hf.log(log)
        for path in log.rglob("*.arrow"):
            path.write_bytes(b"x" * path.stat().st_size)
        with pytest.raises(hf.Damaged, match="does not match its hash"):
            frame.collect()


class TestTable:
    def test_it_has_the_newest_row_of_each_key_without_the_mark(self, log: Path) -> None:
        frame = hf.log(log, as_table=True)
        assert frame.collect_schema() == {"k": pl.Int64, "word": pl.String}
        assert sorted(frame.collect().rows()) == TABLE
        assert frame.filter(pl.col("k") == 3).collect().rows() == [(3, None)]

    def test_a_compaction_changes_no_row_of_it(self, log: Path) -> None:
        Compactor(LocalObjects(log), pause=lambda _: None).compact(Wishes(0, 0))
        assert sorted(hf.log(log, as_table=True).collect().rows()) == TABLE
        assert hf.log(log).select(pl.len()).collect().item() == len(TABLE)

    def test_a_log_with_a_key_that_is_no_changelog_has_one(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), ROWS, 2, ["k"])
        writer = LogWriter(LocalObjects(tmp_path / "log"))
        for word in ("a", "b"):
            rows = pa.table({"k": [1, 2, 3], "word": [word, word, None]}, schema=ROWS)
            writer.append(partition_rows(rows, ["k"], 2))
        assert sorted(hf.log(tmp_path / "log", as_table=True).collect().rows()) == [(1, "b"), (2, "b")]

    def test_a_log_without_a_key_has_none(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), ROWS)
        with pytest.raises(hf.ConfigError, match="the log has no key"):
            hf.log(tmp_path / "log", as_table=True)
