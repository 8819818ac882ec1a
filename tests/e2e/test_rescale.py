"""A job on Spark changes its parallelism several times while it reads, and loses a worker and its driver each time.

At each change the last checkpoint names output that no target has; the next run, with other workers, delivers it. Every
row of every target then equals that of Polars over the whole input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pytest
from running import Run, pid_gone, running

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("rescaled_job.py")
PARALLELISMS = (2, 3, 1, 4)
PARTITIONS, ROWS = 4, 400_000
RATE, LAST_RATE = 4_000, 50_000
"""Records a second, so that the input lasts until the last kill, even on a slow machine."""
START_US, STEP_US = 1_700_000_000_000_000, 400_000


def make_input(folder: Path, rows: int = ROWS) -> pl.DataFrame:
    """Write the sealed log; every fifth record repeats the page and the time of the one before. Return its rows."""
    index = pl.int_range(0, rows, eager=True)
    repeated = index - (index % 5 == 4).cast(pl.Int64)
    frame = pl.DataFrame(
        {
            "user": "user-" + ((index * 7919) % 4_001).cast(pl.String),
            "page": (repeated * 104_729) % 97,
            "note": pl.select(pl.when(index % 3 == 0).then("note-" + ((index * 31) % 1_009).cast(pl.String))),
            "at": (START_US + repeated // PARTITIONS * STEP_US).cast(pl.Datetime("us", "UTC")),
        }
    )
    schema = pa.schema(
        [
            pa.field("user", pa.string(), nullable=False),
            pa.field("page", pa.int64(), nullable=False),
            pa.field("note", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    store = LocalObjects(folder / "input")
    create_log(store, schema, PARTITIONS)
    writer = LogWriter(store)
    parts = [frame.gather_every(PARTITIONS, n).to_arrow().cast(schema) for n in range(PARTITIONS)]
    for start in range(0, rows // PARTITIONS, 2_500):
        writer.append({n: part.slice(start, 2_500) for n, part in enumerate(parts)})
    writer.seal()
    return frame


def expected(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of every target; times as the database has them."""
    shown = "%Y-%m-%dT%H:%M:%S.%6fZ"
    timed = frame.with_columns(
        at=pl.col("at").dt.to_string(shown),
        window_end=pl.col("at").dt.offset_by("1h").dt.truncate("1h").dt.to_string(shown),
    )
    return {
        "users": timed.group_by("user").agg(
            n=pl.len().cast(pl.Int64), first_note=pl.col("note").min(), last_note=pl.col("note").max()
        ),
        "hours": timed.group_by("page", "window_end").agg(n=pl.len().cast(pl.Int64), last=pl.col("user").max()),
        "once": timed.select("page", "at").unique(),
        "late": frame.head(0),
    }


def differences(folder: Path, frame: pl.DataFrame) -> list[str]:
    """Compare the targets with the input, rows that are there twice included."""
    problems = []
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as db:
        for table, rows in expected(frame).items():
            columns = ", ".join(rows.columns)
            found, wanted = db.execute(f"SELECT {columns} FROM {table}").fetchall(), rows.rows()
            if len(found) != len(wanted) or set(found) != set(wanted):
                missing, more = set(wanted) - set(found), set(found) - set(wanted)
                problems.append(
                    f"{table}: {len(found)} rows for {len(wanted)}, {list(missing)[:2]} missing, {list(more)[:2]} wrong"
                )
    return problems


def newest(folder: Path) -> Manifest:
    """Return the manifest of the last completed checkpoint."""
    repository = Repository(LocalObjects(folder / "root" / "rescaled"))
    job = repository.read_log()
    assert job is not None
    return repository.load_manifest(job.completed[-1].body.manifest)


@contextlib.contextmanager
def blocked(folder: Path) -> Iterator[None]:
    """Keep every delivery from the database meanwhile."""
    with contextlib.closing(sqlite3.connect(folder / "out.db", isolation_level=None, timeout=60)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield


def pids(progress: dict[str, Any]) -> dict[int, int]:
    """Return process ids by subtask."""
    return {worker["subtasks"][0]: worker["pid"] for worker in progress["workers"] if worker["subtasks"]}


def start(run: Run, parallelism: int) -> dict[str, Any]:
    """Wait until all workers run and have read, and this run has completed an epoch; return the progress."""
    first = run.wait_until_running()
    progress = run.wait_for(
        lambda p: p["state"] == "running" and p["epoch"] > first["epoch"] and p["records_in"] > first["records_in"],
        "records and an epoch of this run",
    )
    assert sorted(pids(progress)) == list(range(parallelism))
    return progress


def kill_worker(run: Run, subtask: int) -> dict[str, Any]:
    """SIGKILL one worker while it reads; return the progress of the generation that replaces it."""
    before = run.lines[-1]
    killed = pids(before)[subtask]
    assert psutil.Process(killed).status() != psutil.STATUS_ZOMBIE and before["records_in"] < ROWS
    os.kill(killed, signal.SIGKILL)
    after = run.wait_for(
        lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation"
    )
    assert pid_gone(killed) and killed not in pids(after).values()
    assert sorted(pids(after)) == sorted(pids(before))
    return after


def end_with_pending_output(run: Run, folder: Path, rows: int = ROWS) -> None:
    """Complete epochs that no target takes, then kill the driver and its workers."""
    with blocked(folder):
        before = run.lines[-1]["epoch"]
        run.wait_for(lambda p: p["state"] == "running" and p["epoch"] >= before + 3, "epochs that are not delivered")
        assert run.lines[-1]["records_in"] < rows
        run.kill_group(signal.SIGKILL)
        run.finish()
    assert {pending.writer.sink for pending in newest(folder).pending} >= {"users-out", "once-out"}


@pytest.mark.parametrize("changes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_output_is_exact_after_other_numbers_of_workers_with_kills_and_pending_output(
    tmp_path: Path, changes: int
) -> None:
    frame = make_input(tmp_path)
    generation, ended, parallelisms = 0, list[int](), PARALLELISMS[: changes + 1]
    for parallelism in parallelisms:
        last = len(ended) == changes
        rate = LAST_RATE if last else RATE
        flags = ("--parallelism", str(parallelism))
        with running(tmp_path, *flags, "--max-records-per-second", str(rate), job=JOB) as run:
            assert start(run, parallelism)["generation"] > generation
            generation = kill_worker(run, parallelism - 1)["generation"]
            if not last:
                end_with_pending_output(run, tmp_path)
            else:
                assert run.finish() == 0, run.errors()
                assert run.lines[-1]["state"] == "finished"
        ended.append(newest(tmp_path).parallelism)
    assert tuple(ended) == parallelisms
    assert differences(tmp_path, frame) == []


MOVES = (("--local",), ("--master", "local[3]"), ("--mode", "microbatch", "--every", "500ms"), ("--local",))
"""Where a job runs, and in which mode: from processes of this machine to Spark, through microbatches, and back."""


def test_output_is_exact_after_moves_between_local_processes_spark_and_microbatches_with_pending_output(
    tmp_path: Path,
) -> None:
    frame = make_input(tmp_path)
    for number, place in enumerate(MOVES, 1):
        last = number == len(MOVES)
        rate = LAST_RATE if last else RATE
        with running(tmp_path, *place, "--max-records-per-second", str(rate), job=JOB) as run:
            first = run.wait_until_running()
            run.wait_for(lambda p, first=first: (p["epoch"] or 0) > first["epoch"], "an epoch of this run")  # type: ignore[misc]
            if not last:
                end_with_pending_output(run, tmp_path)
            else:
                kill_worker(run, 0)
                assert run.finish() == 0, run.errors()
                assert run.lines[-1]["state"] == "finished"
    assert differences(tmp_path, frame) == []
