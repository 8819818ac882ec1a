"""A job on real Spark whose log gets partitions while it runs; workers and driver are killed around that moment.

The result equals the appended rows: each once, in all partitions, without a manual restart for the new ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from exact_targets import differences
from patience import WALL_S
from running import IN_BOTH_MODES_SLOWLY, Run, pid_gone, running, tasks

from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("discovering_job.py")
EVERY = {"HOLDFAST_PARTITION_DISCOVERY_MS": "200"}
SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])


class Input:
    """The log of the job, and the rows appended to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, list[tuple[str, int]]()
        create_log(LocalObjects(folder / "rows"), SCHEMA, partitions=2)
        self.log = LogWriter(LocalObjects(folder / "rows"))

    def append(self, count: int) -> int:
        """Append so many rows to every partition; return how many there are by now."""
        for partition in range(self.log.meta.partitions):
            more = [(f"key-{n % 17}", len(self.rows) + n) for n in range(count)]
            self.rows += more
            keys, numbers = zip(*more, strict=True)
            self.log.append({partition: pa.table([pa.array(keys), pa.array(numbers, pa.int64())], schema=SCHEMA)})
        return len(self.rows)


def read_all(run: Run, records: int) -> dict[str, Any]:
    return run.wait_for(lambda p: p["state"] == "running" and p["records_in"] == records, f"{records} records")


def kill_worker(run: Run, mode: str, subtask: int) -> None:
    """SIGKILL one worker and wait until its successor runs, or a process for tasks."""
    if mode != CONTINUOUS:  # it may have read everything: then no epoch follows
        run.wait_for(lambda _: tasks(run), "a process that runs tasks")
        victim = tasks(run)[0]
        victim.kill()
        victim.wait(WALL_S)
        return
    before = run.lines[-1]
    pid = next(each["pid"] for each in before["workers"] if each["subtasks"] == [subtask])
    os.kill(pid, signal.SIGKILL)
    run.wait_for(lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation")
    assert pid_gone(pid)


def holdfast(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", *arguments, "--json"]
    environment = {**os.environ, "COUNTING_FOLDER": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestLogWithAddedPartitions:
    @IN_BOTH_MODES_SLOWLY
    def test_is_read_completely_and_once_although_workers_and_driver_are_killed(
        self, tmp_path: Path, mode: str
    ) -> None:
        given = Input(tmp_path)
        given.append(500)
        with running(tmp_path, job=JOB, **EVERY) as run:
            generation = read_all(run, len(given.rows))["generation"]
            run.wait_until_running()  # a checkpoint that lacks the new partitions: only then are they events
            given.log.widen(4)
            assert read_all(run, given.append(500))["generation"] == generation, "nothing was restarted"
            given.log.widen(5)
            given.append(500)
            kill_worker(run, mode, 1)
            given.log.widen(7)
            kill_worker(run, mode, 0)
            read_all(run, given.append(500))
            given.log.widen(8)
            given.append(500)
            run.kill_group(signal.SIGKILL)
        with running(tmp_path, job=JOB, **EVERY) as run:
            read_all(run, len(given.rows))
            given.log.widen(10)
            given.append(500)
            given.log.seal()
            assert run.finish() == 0, run.errors()
            assert run.lines[-1]["state"] == "finished"
        assert differences(tmp_path, given.rows) == []
        root = ("--root", str(tmp_path / "root"))
        events = [
            each["cause"] for each in holdfast(tmp_path, "events", "growing", *root) if each["event"] == "partitions"
        ]
        assert events[0] == "new partitions: rows 2, 3" and "9" in events[-1]
        lines = holdfast(tmp_path, "audit", str(JOB), *root)
        assert lines["verdict"] == "proven"
