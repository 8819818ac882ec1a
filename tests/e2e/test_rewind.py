"""The demo's job is rewound to an epoch in its middle while a driver of the older timeline is only asleep.

The rewind command is killed at one step after another; the next one completes what an interrupted one began.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from patience import Patience, wait
from running import IN_BOTH_MODES_SLOWLY, running

from holdfast.examples import flights_hours_oracle, flights_oracle
from holdfast.sinks.sqlite.queue import queue_of

JOB = Path(__file__).parents[2] / "examples" / "flights.py"
KILLED_AT = Path(__file__).with_name("killed_at.py")
KILLS_AT = (2, 25, 150, 1_500)
"""Steps after those that show the plan: record, tags, rows of one target, rows of several."""


def places(folder: Path) -> dict[str, str]:
    """Return the places in which the job stores its data."""
    names = {"LOG": "events", "DB": "flights.db", "OUT": "out"}
    return {f"FLIGHTS_{name}": str(folder / path) for name, path in names.items()}


def holdfast(folder: Path, *arguments: str, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, killed at its k-th step if k > 0."""
    command = [sys.executable, str(KILLED_AT), str(kill_at), str(folder), *arguments, "--root", str(folder / "root")]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places(folder)}, check=False)


def wait_until_nobody_runs_it(folder: Path) -> None:
    """Wait until a stopped or killed driver counts as dead; before that, the command sends it a request instead."""

    def is_unreachable() -> bool:
        shown = json.loads(holdfast(folder, "status", "flights", "--json").stdout)
        return bool(shown["state"] == "unreachable")

    wait(is_unreachable, "an unreachable job")


def steps_of(ended: subprocess.CompletedProcess[str]) -> int:
    """Return how many steps a command took."""
    return int(ended.stderr.split()[-2])


def driver_of(pid: int) -> list[psutil.Process]:
    """Return the driver and its JVM, without the workers."""
    driver = psutil.Process(pid)
    return [driver, *(child for child in driver.children() if child.name() == "java")]


def put_to_sleep(processes: list[psutil.Process], target: Path) -> None:
    """Stop a driver while it does not write into a target, which it does in microbatch mode: it would keep its lock."""
    patience = Patience(processes[0].pid)
    while True:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        if is_free(target):
            return
        assert not patience.over, "it writes all the time"
        for process in processes:
            process.send_signal(signal.SIGCONT)
        threading.Event().wait(0.1)


def is_free(target: Path) -> bool:
    """Return whether no process has a database locked, nor its turn in the queue before it."""
    with open(queue_of(str(target)), "w") as turn, closing(sqlite3.connect(target, isolation_level=None)) as db:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            db.execute("PRAGMA busy_timeout = 0")
            db.execute("BEGIN IMMEDIATE")
        except (BlockingIOError, sqlite3.OperationalError):
            return False
    return True


@pytest.mark.e2e
@IN_BOTH_MODES_SLOWLY
@pytest.mark.usefixtures("mode")
def test_a_job_is_rewound_under_kills_and_beside_a_stopped_driver(tmp_path: Path) -> None:
    flags = ("--root", str(tmp_path / "root"))
    with running(tmp_path, *flags, "--max-records-per-second", "40000", job=JOB, **places(tmp_path)) as asleep:
        asleep.wait_for(lambda p: (p["records_in"] or 0) > 250_000 and p["epoch"], "the middle of the input")
        sleeping = driver_of(asleep.process.pid)
        put_to_sleep(sleeping, tmp_path / "flights.db")
        listed = holdfast(tmp_path, "checkpoints", "list", "flights", "--json")
        epochs = sorted(each["epoch"] for each in json.loads(listed.stdout))
        back = ("rewind", str(JOB), "--to-epoch", str(epochs[len(epochs) // 2]))
        for steps in KILLS_AT:
            wait_until_nobody_runs_it(tmp_path)
            plan = holdfast(tmp_path, *back)
            assert plan.returncode == 3, plan.stderr
            killed = holdfast(tmp_path, *back, "--apply", kill_at=steps_of(plan) + steps)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        wait_until_nobody_runs_it(tmp_path)
        done = holdfast(tmp_path, *back, "--apply")
        assert done.returncode == 0, done.stderr
        with running(tmp_path, *flags, job=JOB, **places(tmp_path)) as rest:
            rest.wait_until_running()
            for process in sleeping:
                process.send_signal(signal.SIGCONT)
            assert asleep.finish() == 6, asleep.errors()
            assert rest.finish() == 0, rest.errors()
    listed = holdfast(tmp_path, "checkpoints", "list", "flights", "--json")
    assert max(each["timeline"] for each in json.loads(listed.stdout)) > 2
    wrong = [*flights_oracle.verify(tmp_path / "flights.db").differences]
    wrong += flights_hours_oracle.verify(tmp_path / "flights.db", tmp_path / "out").differences
    assert wrong == []
