"""A job on a real Spark cluster of several JVMs, killed in every way: the output equals that of an oracle.

As in test_kills.py every kill must be seen to have fired. One cluster serves all tests of this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from running import JOB, TIMEOUT_S, Run, differences, make_input, pid_gone, running
from standalone import EXECUTOR, SPARK_SUBMIT, Standalone, python_without_holdfast, standalone

import holdfast

pytestmark = pytest.mark.e2e

ROWS = 120_000
RATE = ("--max-records-per-second", "20000")
PACKAGE = str(Path(holdfast.__file__).resolve().parent.parent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose daemons do not know where Holdfast is, as on machines of somebody else."""
    with standalone(tmp_path_factory.mktemp("cluster"), PYTHONPATH="") as cluster:
        yield cluster


def flags(cluster: Standalone) -> tuple[str, ...]:
    return ("--master", cluster.url, *RATE)


def pids(progress: dict[str, Any]) -> dict[int, int]:
    """Return process ids of the workers by subtask."""
    return {worker["subtasks"][0]: worker["pid"] for worker in progress["workers"] if worker["subtasks"]}


def executor_of(pid: int) -> psutil.Process:
    """Return the executor JVM above a worker process."""
    return next(each for each in psutil.Process(pid).parents() if EXECUTOR in " ".join(each.cmdline()))


def recovery(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    return run.wait_for(
        lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation"
    )


class TestStandaloneCluster:
    def test_runs_the_job_on_two_executors_and_survives_the_loss_of_a_worker_and_of_an_executor(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *flags(cluster)) as run:
            before = run.wait_until_running(ROWS // 8)
            assert len(cluster.executors()) == 2
            first = pids(before)
            os.kill(first[0], signal.SIGKILL)
            after = recovery(run, before)
            assert pid_gone(first[0]) and pids(after)[0] != first[0]
            assert pids(after)[1] == first[1]
            assert {w["subtasks"][0]: w["how"] for w in after["workers"]} == {0: "restored", 1: "rolled back"}

            second = pids(after)
            executor = executor_of(second[0])
            elsewhere = executor_of(second[1]).pid != executor.pid
            executor.kill()
            last = recovery(run, after)
            assert pid_gone(executor.pid) and pid_gone(second[0]) and pids(last)[0] != second[0]
            assert executor_of(pids(last)[0]).pid != executor.pid
            if elsewhere:
                assert pids(last)[1] == second[1]
                assert [w["how"] for w in last["workers"] if w["subtasks"] == [1]] == ["rolled back"]
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []

    def test_the_same_command_again_goes_on_after_the_driver_was_killed(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *flags(cluster)) as run:
            before = run.wait_until_running(ROWS // 4)
            old = pids(before)
            os.kill(run.process.pid, signal.SIGKILL)
            assert run.process.wait(10) == -signal.SIGKILL
            with running(tmp_path, *flags(cluster)) as again:
                after = again.wait_until_running()
                assert after["generation"] > before["generation"] and after["epoch"] >= before["epoch"]
                assert not set(old.values()) & set(pids(after).values())
                assert again.finish() == 0, again.errors()
        assert differences(tmp_path, frame) == []
