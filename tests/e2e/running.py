"""Runs jobs as users do, as processes, and breaks them; shared by the end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from patience import CPU_S, WALL_S, Patience, wait, wait_for_end

import holdfast as hf
from holdfast.chaos.live.job import EXECUTOR
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.wire.processes import signal_all

JOB = Path(__file__).with_name("counting_job.py")
IN_BOTH_MODES_SLOWLY = pytest.mark.parametrize(
    "mode", [CONTINUOUS, pytest.param(MICROBATCH, marks=pytest.mark.slow)], indirect=True
)
"""Marks a test that takes minutes in microbatch mode: there it is run by `make soak` alone."""
LOOK_EVERY_S = 1.0


class Run:
    """One `holdfast run` of a job, in its own process group: as local processes, unless a flag or the mode needs Spark.

    Args:
        folder: Holds the input log, the job's root and the database.
        flags: Further command line flags.
        job: The file of the job.
        on: The command that runs another one where the driver is to be; empty: here.
        environment: Further environment variables.
    """

    def __init__(self, folder: Path, *flags: str, job: Path = JOB, on: Sequence[str] = (), **environment: str) -> None:
        self.folder = folder
        self._errors = open(folder / f"stderr-{time.monotonic_ns()}.txt", "w+", encoding="utf-8")  # noqa: SIM115
        cli = [sys.executable, "-m", "holdfast.runtime.cli.main"]
        command = [*on, *cli, "run", str(job), "--progress", "json", *flags]
        environment = {**os.environ, "COUNTING_FOLDER": str(folder), "TMPDIR": str(folder), **environment}
        if "--master" not in flags and MICROBATCH not in (*flags, environment.get("HOLDFAST_MODE")):
            environment["HOLDFAST_LOCAL"] = "1"
        self.local = environment.get("HOLDFAST_LOCAL") == "1"
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, env=environment, text=True, start_new_session=True
        )
        self.lines: list[dict[str, Any]] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):
                with self._arrived:
                    self.lines.append(json.loads(text))
                    self._arrived.notify_all()
        self.process.wait()
        with self._arrived:
            self._arrived.notify_all()

    def wait_for(self, true: Callable[[dict[str, Any]], Any], what: str, cpu_s: float = CPU_S) -> dict[str, Any]:
        """Wait until this holds for the newest progress, while the run uses no more than this, and return it."""
        patience = Patience(self.process.pid, cpu_s)
        while not patience.over:
            with self._arrived:
                held = self._arrived.wait_for(
                    lambda: (self.lines and true(self.lines[-1])) or self.process.poll() is not None, LOOK_EVERY_S
                )
                if held and self.lines and true(self.lines[-1]):
                    return self.lines[-1]
                if held:
                    break
        raise AssertionError(f"waited for {what}; the last progress was {self.lines[-1:]}\n{self.errors()}")

    def wait_until_running(self, records: int = 1) -> dict[str, Any]:
        """Return the progress once every subtask runs and this many records were read."""
        return self.wait_for(
            lambda p: p["state"] == "running" and (p["records_in"] or 0) >= records and p["epoch"],
            f"a running job with {records} records",
        )

    def finish(self, cpu_s: float = CPU_S) -> int:
        """Wait for the end, while the run uses no more than this; return the exit status."""
        return wait_for_end(self.process, "the end of a run", Patience(self.process.pid, cpu_s, max(WALL_S, cpu_s)))

    def kill_group(self, number: int) -> None:
        """Send a signal to the driver and everything it started on this machine."""
        signal_all(self.process, number)

    def errors(self) -> str:
        """Return the text written to stderr."""
        self._errors.seek(0)
        return self._errors.read()[-6_000:]

    def close(self) -> None:
        """End whatever is left of the run."""
        self.kill_group(signal.SIGKILL)
        self.process.wait(WALL_S)
        self._errors.close()


@contextlib.contextmanager
def running(folder: Path, *flags: str, job: Path = JOB, on: Sequence[str] = (), **environment: str) -> Iterator[Run]:
    """Start a run; whatever is left of it ends with the block."""
    run = Run(folder, *flags, job=job, on=on, **environment)
    try:
        yield run
    finally:
        run.close()


def lasts(seconds: float) -> None:
    """Let a fault last."""
    ends_at = time.monotonic() + seconds
    wait(lambda: time.monotonic() > ends_at, "the end of a fault")


def visited(rows: int) -> pl.DataFrame:
    """Return the rows of the counting job's input."""
    index = pl.int_range(0, rows, eager=True)
    return pl.DataFrame(
        {
            "user": "user-" + ((index * 7919) % 5_003).cast(pl.String),
            "page": (index * 104_729) % 997,
            "amount": (index * 31) % 1_000 - 300,
            "part": index // (rows // 4),
        }
    )


def make_input(folder: Path | str, rows: int) -> pl.DataFrame:
    """Write the sealed input log of the counting job into this folder or URL; return its rows."""
    import pyarrow as pa

    from holdfast.storage.log.log import LogWriter, create_log
    from holdfast.storage.objects import open_objects

    frame = visited(rows)
    schema = pa.schema(
        [
            pa.field("user", pa.string(), nullable=False),
            pa.field("page", pa.int64(), nullable=False),
            pa.field("amount", pa.int64(), nullable=False),
            pa.field("part", pa.int64(), nullable=False),
        ]
    )
    store = open_objects(f"{folder}/input")
    create_log(store, schema, 4)
    writer = LogWriter(store)
    table = frame.to_arrow().cast(schema)
    quarter = rows // 4
    for start in range(0, quarter, 2_000):
        size = min(2_000, quarter - start)
        writer.append({p: table.slice(p * quarter + start, size) for p in range(4)})
    writer.seal()
    return frame.head(4 * quarter)


TABLES = ("users", "changes", "pages", "last")


def differences(
    folder: Path, frame: pl.DataFrame, tables: Collection[str] = TABLES, store: str | None = None
) -> list[str]:
    """Compare the tables with Polars run directly on the input; return the differences.

    Args:
        store: Where the job's logs are; None: in the folder.
    """
    users = frame.group_by("user").agg(
        n=pl.len().cast(pl.Int64), total=pl.col("amount").sum(), worst=pl.col("amount").max()
    )
    wanted = {
        "users": users,
        "changes": users,
        "pages": frame.filter(pl.col("amount") > 0)
        .group_by("page")
        .agg(n=pl.len().cast(pl.Int64), least=pl.col("amount").min()),
        "last": frame.filter(pl.col("page") < 100)
        .group_by("part", "page")
        .agg(pl.col("user").last(), pl.col("amount").last()),
    }
    problems = []
    for table in tables:
        rows = wanted[table]
        found = (
            set(hf.log(f"{store or folder}/{table}", as_table=True).collect().rows()) if table == "changes" else set()
        )
        if table != "changes":
            with contextlib.closing(sqlite3.connect(folder / ("last.db" if table == "last" else "out.db"))) as database:
                found = set(database.execute(f"SELECT {', '.join(rows.columns)} FROM {table}"))
        expected = set(rows.rows())
        if found != expected:
            problems.append(
                f"{table}: {len(expected - found)} missing or wrong, {len(found - expected)} unexpected, "
                f"for example {sorted(expected - found)[:2]} and {sorted(found - expected)[:2]}"
            )
    return problems


def pid_gone(pid: int) -> bool:
    """Return whether the process is dead or waits only to be reaped."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def tasks(run: Run) -> list[psutil.Process]:
    """Return the Python processes in which Spark runs tasks now, or those of local workers."""
    if run.local:
        pids = [worker["pid"] for worker in run.lines[-1]["workers"]] if run.lines else []
        return [psutil.Process(pid) for pid in pids if not pid_gone(pid)]
    daemons = [each for each in psutil.Process(run.process.pid).children(recursive=True) if is_daemon(each)]
    parents = {each.ppid() for each in daemons}
    return [each for each in daemons if each.pid not in parents]


def is_daemon(process: psutil.Process) -> bool:
    """Return whether this is Spark's Python daemon or a process that it forked, and alive."""
    try:
        return "holdfast.runtime.spark.daemon" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_task(run: Run, processes: Callable[[], list[psutil.Process]] | None = None) -> dict[str, Any]:
    """SIGKILL a process in which Spark runs tasks, and wait until epochs are completed again; return the progress.

    Args:
        processes: Returns them, if they are not below the driver's.
    """
    found = processes or (lambda: tasks(run))
    before = run.wait_for(lambda p: p["state"] == "running" and found(), "a process that runs tasks")
    killed = found()[0].pid
    os.kill(killed, signal.SIGKILL)
    after = run.wait_for(lambda p: (p["epoch"] or 0) >= (before["epoch"] or 0) + 2, "epochs after the kill")
    assert pid_gone(killed)
    return after


def executors_of(run: Run) -> list[psutil.Process]:
    """Return the JVMs of the executors on this machine, but not that of a driver that runs tasks itself."""
    below = psutil.Process(run.process.pid).children(recursive=True)
    return [each for each in below if is_executor(each)]


def is_executor(process: psutil.Process) -> bool:
    """Return whether this is the JVM of an executor, and alive."""
    try:
        return process.name() == "java" and EXECUTOR in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie too
        return False


def spark_log(run: Run) -> str:
    """Return what Spark has logged so far; the log goes with the run."""
    return "".join(log.read_text(errors="replace") for log in run.folder.glob("holdfast-spark-*/spark.log"))
