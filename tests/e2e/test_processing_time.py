"""Timers of the worker's clock on Spark: each record is counted by one firing, whatever is killed or stopped before."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from patience import wait
from running import IN_BOTH_MODES_SLOWLY, kill_task, running

import holdfast as hf
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_200)]
JOB = Path(__file__).with_name("reminding_job.py")
RECORDS, PARTITIONS = 60_000, 2
EACH = 40
"""Records of a key, one after the other: most keys are read within a fraction of a second."""
RATE = 600
"""So slowly that input is left when the job is stopped; the second run reads the rest without a limit."""


def make_input(folder: Path) -> pl.DataFrame:
    """Write the log, which stays open: at the end of an input, timers that are not due would not fire."""
    schema = pa.schema([pa.field("key", pa.string(), nullable=False)])
    store = open_objects(str(folder / "input"))
    create_log(store, schema, PARTITIONS)
    keys = pl.select(key="key-" + (pl.int_range(0, RECORDS) // EACH).cast(pl.String))
    table = keys.to_arrow().cast(schema)
    writer, share = LogWriter(store), RECORDS // PARTITIONS
    writer.append({number: table.slice(number * share, share) for number in range(PARTITIONS)})
    return keys


@IN_BOTH_MODES_SLOWLY
def test_timers_count_each_record_once_after_a_kill_and_those_overdue_fire_at_the_next_start(
    tmp_path: Path, mode: str
) -> None:
    keys = make_input(tmp_path)
    flags = ("--parallelism", "2")
    slow = "--max-records-per-second", str(RATE)
    with running(tmp_path, *flags, *slow, job=JOB, REMINDING_FOLDER=str(tmp_path)) as run:
        run.wait_until_running(RATE)
        kill_task(run)
        wait(lambda: counted(tmp_path), "a timer that fires")
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
        assert run.lines[-1]["records_in"] < RECORDS
    with running(tmp_path, *flags, job=JOB, REMINDING_FOLDER=str(tmp_path)) as run:
        run.wait_for(lambda progress: progress, "a driver")
        restarted = datetime.now(UTC)
        wait(lambda: counted(tmp_path) >= RECORDS, "a firing after each record")
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
    fired = hf.log(str(tmp_path / "quiet")).collect()
    wanted = keys.group_by("key").agg(records=pl.len().cast(pl.Int64)).sort("key")
    assert fired.group_by("key").agg(pl.col("records").sum()).sort("key").equals(wanted)
    assert fired.filter(pl.col("noticed") < pl.col("due")).is_empty(), "a timer fired before its time"
    overdue = fired.filter((pl.col("due") < restarted) & (pl.col("noticed") >= restarted))
    assert not overdue.is_empty(), "no timer was pending when the job was stopped"


def counted(folder: Path) -> int:
    """Return how many records the firings have counted."""
    found = hf.log(str(folder / "quiet")).select(pl.col("records").sum()).collect().item()
    return int(found or 0)
