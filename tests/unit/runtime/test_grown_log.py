"""A job reads the columns that it declares, from a log that has more and gets more while the job runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logged import rows_in

import holdfast as hf
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = pa.schema(
    [pa.field("n", pa.int64(), nullable=False), pa.field("k", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))]
)
SIZE = pa.field("size", pa.float64())


@dataclass
class Read:
    at: datetime
    n: int


@dataclass
class ReadMore:
    n: int
    size: float | None
    at: datetime


class Job:
    """Copies the declared columns, and counts rows in windows."""

    def __init__(self, folder: Path, declared: type | None) -> None:
        self.folder, self.out = folder, folder / "out"
        app = hf.App("copy", root=str(folder / "root"))
        rows = app.source("rows", hf.Log(folder / "rows", declared), event_time="at" if declared else None)
        rows.filter(lambda row: row.n >= 0).sink("out", hf.Log(self.out))
        started = prepare(app.plan(), resolve(app))
        self.cluster = Cluster(started.plan, 2, 0, started.folder.store, 1.0, started.inputs.partitions)
        self.cluster.begin()
        self.cluster.pass_time(3)

    def rows(self) -> list[dict[str, Any]]:
        self.cluster.pass_time(3)
        assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
        return sorted(rows_in(self.out), key=lambda row: row["n"])


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    create_log(LocalObjects(tmp_path / "rows"), FIRST, partitions=2)
    return LogWriter(LocalObjects(tmp_path / "rows"))


def append(log: LogWriter, n: int, **more: Any) -> None:
    row = {"n": n, "k": "x", "at": START + timedelta(seconds=n), **more}
    schema = log.meta.schema if more else FIRST
    log.append({n % 2: pa.Table.from_pylist([row], schema=schema)})


class TestJobOnALogWithAddedColumns:
    def test_reads_its_declared_columns_and_continues_when_a_column_is_added(
        self, log: LogWriter, tmp_path: Path
    ) -> None:
        append(log, 1)
        job = Job(tmp_path, Read)
        log.grow(pa.schema([SIZE]))
        append(log, 2, size=0.5)
        append(log, 3)
        assert job.rows() == [{"at": START + timedelta(seconds=n), "n": n} for n in (1, 2, 3)]

    def test_a_job_that_declares_the_new_column_reads_null_in_older_rows(self, log: LogWriter, tmp_path: Path) -> None:
        append(log, 1)
        log.grow(pa.schema([SIZE]))
        append(log, 2, size=0.5)
        job = Job(tmp_path, ReadMore)
        assert [(row["n"], row["size"]) for row in job.rows()] == [(1, None), (2, 0.5)]

    def test_a_job_that_declares_no_columns_keeps_those_it_was_planned_with(
        self, log: LogWriter, tmp_path: Path
    ) -> None:
        append(log, 1)
        job = Job(tmp_path, None)
        log.grow(pa.schema([SIZE]))
        append(log, 2, size=0.5)
        assert [set(row) for row in job.rows()] == [{"n", "k", "at"}] * 2
