"""A DataFrame as a source: computed once, read exactly once, through kills of the driver."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from frame_job import KEYS, PARTS, ROWS
from patience import wait
from running import IN_BOTH_MODES_SLOWLY, running

from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

JOB = Path(__file__).with_name("frame_job.py")
pytestmark = pytest.mark.e2e


def totals(folder: Path) -> dict[int, tuple[int, int]]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return {k: (n, total) for k, n, total in database.execute("SELECT k, n, total FROM totals")}


def expected() -> dict[int, tuple[int, int]]:
    return {k: (len(range(k, ROWS, KEYS)), sum(range(k, ROWS, KEYS))) for k in range(KEYS)}


def rows_of(log: Path) -> list[dict[str, Any]]:
    reader = LogReader(open_objects(str(log)))
    read = [reader.read(partition, 0, 1 << 20)[0] for partition in reader.end_offsets()]
    return [row for batch in read if batch is not None for row in batch.to_pylist()]


def computed(folder: Path) -> int:
    """Return how many partitions of the frame were computed."""
    noted = folder / "computed"
    return len(noted.read_text()) if noted.exists() else 0


@IN_BOTH_MODES_SLOWLY
@pytest.mark.usefixtures("mode")
def test_is_copied_once_and_read_exactly_once_through_a_kill(tmp_path: Path) -> None:
    with running(tmp_path, "--max-records-per-second", "40000", job=JOB) as run:
        progress = run.wait_until_running(20_000)
        assert progress["records_in"] < ROWS
        run.kill_group(signal.SIGKILL)
    with running(tmp_path, job=JOB) as again:
        assert again.finish() == 0, again.errors()
    assert totals(tmp_path) == expected()
    assert computed(tmp_path) == PARTS


@pytest.mark.slow
def test_a_copy_is_made_again_until_there_is_a_checkpoint(tmp_path: Path) -> None:
    """The first start is killed while it copies, the second is refused before it copies."""
    (tmp_path / "hold").touch()
    with running(tmp_path, job=JOB) as run:
        wait(lambda: computed(tmp_path), "a task that copies")
        run.kill_group(signal.SIGKILL)
    (tmp_path / "hold").unlink()
    before = computed(tmp_path)
    (tmp_path / "out.db").write_text("not a database")
    with running(tmp_path, job=JOB) as refused:
        assert refused.finish() == 2, refused.errors()
    (tmp_path / "out.db").unlink()
    assert computed(tmp_path) == before
    with running(tmp_path, job=JOB) as again:
        assert again.finish() == 0, again.errors()
    assert totals(tmp_path) == expected()
    assert computed(tmp_path) == before + PARTS


def test_frames_that_no_job_can_read_are_refused_and_any_names_are_read(tmp_path: Path) -> None:
    program = """
from pyspark.sql import SparkSession, functions as f
import holdfast as hf
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(3)
varying, stream = rows.withColumn("x", f.rand()), spark.readStream.format("rate").load()
for frame in (varying, stream, rows.select("id", "id"), spark.sql("SELECT interval '1' month AS m")):
    try:
        hf.SparkFrame(frame)
    except hf.ConfigError as error:
        print(error.what)
app = hf.App("named", root="root")
named = spark.sql("SELECT 1L AS `c.d`, 2L AS A, 3L AS a, timestamp_ntz'2026-01-01' AS at")
app.source("rows", hf.SparkFrame(named)).sink("out", hf.Log("out"))
app.run(parallelism=1, progress="none")
"""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    varying, streaming, twice, untyped = [line for line in ran.stdout.splitlines() if line.startswith("hf.")]
    assert "other rows each time it is computed" in varying
    assert "is a stream" in streaming
    assert "or one twice" in twice
    assert "YearMonthIntervalType" in untyped
    (row,) = rows_of(tmp_path / "out")
    assert row == {"c.d": 1, "A": 2, "a": 3, "at": datetime(2026, 1, 1)}
