"""A changelog as a source: its records, with the mark; deletes never pass for rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.job.redrive import Redrive
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.partitioning import partition_rows
from holdfast.storage.objects import LocalObjects, MemoryObjects

ROWS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("word", pa.utf8(), nullable=False)])


@dataclass
class Record:
    holdfast_deleted: bool
    k: int
    word: str | None


@dataclass
class Row:
    k: int
    word: str


@dataclass
class Strict:
    holdfast_deleted: bool
    k: int
    word: str


@pytest.fixture
def log(tmp_path: Path) -> Path:
    create_log(LocalObjects(tmp_path / "log"), ROWS, 2, ["k"], changelog=True)
    writer = LogWriter(LocalObjects(tmp_path / "log"))
    records = [(False, 1, "a"), (False, 2, "b"), (True, 1, None), (False, 3, "c"), (True, 2, None)]
    rows = [dict(zip(writer.meta.schema.names, each, strict=True)) for each in records]
    writer.append(partition_rows(pa.Table.from_pylist(rows, schema=writer.meta.schema), ["k"], 2))
    return tmp_path / "log"


class TestSchema:
    def test_without_one_the_stream_has_the_mark(self, log: Path) -> None:
        assert hf.Log(log).source().schema.names == ["holdfast_deleted", "k", "word"]

    def test_one_without_the_mark_is_refused(self, log: Path) -> None:
        with pytest.raises(
            hf.ConfigError, match="without its column 'holdfast_deleted', records that delete would be read"
        ) as refused:
            hf.Log(log, Row).source().check()
        assert refused.value.next_step == "declare it in the job's schema: holdfast_deleted: bool"

    def test_one_that_forbids_the_nulls_of_deletes_is_refused(self, log: Path) -> None:
        with pytest.raises(hf.ConfigError, match=r"the job's schema allows no null in \['word'\]") as refused:
            hf.Log(log, Strict).source().check()
        assert refused.value.next_step == "let word be null in the job's schema (| None)"

    def test_one_with_both_is_accepted(self, log: Path) -> None:
        hf.Log(log, Record, key=["k"]).source().check()


class TestStream:
    def test_records_are_filtered_by_the_mark_and_take_effect_once(self, tmp_path: Path, log: Path) -> None:
        app = hf.App("copy", checkpoint_every="1s")
        records = app.source("records", hf.Log(log, Record))
        deletes = records.filter(pl.col("holdfast_deleted")).select("k")
        deletes.sink("deletes", hf.Log(tmp_path / "deletes"))
        words = records.filter(lambda row: not row.holdfast_deleted).key_by("k").agg("counts", puts=hf.count())
        words.sink("puts", hf.Log(tmp_path / "puts", key=["k"]))
        plan = app.plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        cluster = Cluster(plan, 2, 0, MemoryObjects(), 1.0, {"records": (0, 1)})
        cluster.begin()
        cluster.pass_time(5.0)
        assert sorted(hf.log(tmp_path / "deletes").collect().rows()) == [(1,), (2,)]
        assert sorted(hf.log(tmp_path / "puts", as_table=True).collect().rows()) == [(1, 1), (2, 1), (3, 1)]

    def test_its_records_cannot_be_upserted_with_the_mark_as_a_value(self, log: Path) -> None:
        app = hf.App("copy")
        marks = app.source("records", hf.Log(log)).key_by("k").agg("marks", holdfast_deleted=hf.count())
        with pytest.raises(hf.ConfigError, match="a row has the column 'holdfast_deleted'"):
            marks.sink("out", hf.Log(log.parent / "out", key=["k"]))


class TestRedrive:
    def test_a_redrive_into_a_changelog_is_refused(self, log: Path) -> None:
        dead = MemoryObjects()
        create_log(dead, DEAD_LETTERS, partitions=1)
        with pytest.raises(hf.ConfigError, match="a redriven record would be the newest of its key") as refused:
            Redrive("records", dead, LocalObjects(log), LocalObjects(log))
        assert refused.value.next_step == "name another log with --to"
