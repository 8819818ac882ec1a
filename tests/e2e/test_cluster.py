"""A job on a real Spark cluster of several JVMs, killed in every way: the output equals that of an oracle.

As in test_kills.py every kill must be seen to have fired. One cluster serves all tests of this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
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
PACKAGE = str(Path(holdfast.__file__).parent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose daemons do not know where Holdfast is, as on machines of somebody else."""
    with standalone(tmp_path_factory.mktemp("cluster"), PYTHONPATH="") as cluster:
        yield cluster


@contextlib.contextmanager
def running_on(cluster: Standalone, folder: Path) -> Iterator[Run]:
    """Start the job. A killed process is seen by its closed streams; nobody is lost for being slow."""
    slow = {"HOLDFAST_SILENT_AFTER_MS": "60000", "HOLDFAST_SESSION_TIMEOUT_MS": "60000"}
    with running(folder, "--master", cluster.url, *RATE, **cluster.environment, **slow) as run:
        yield run


def pids(progress: dict[str, Any]) -> dict[int, int]:
    """Return process ids of the workers by subtask."""
    return {worker["subtasks"][0]: worker["pid"] for worker in progress["workers"] if worker["subtasks"]}


def hows(progress: dict[str, Any]) -> dict[int, str]:
    """Return by subtask how its worker came by its state."""
    return {worker["subtasks"][0]: worker["how"] for worker in progress["workers"] if worker["subtasks"]}


def executor_of(pid: int) -> psutil.Process:
    """Return the executor JVM above a worker process."""
    return next(each for each in psutil.Process(pid).parents() if EXECUTOR in " ".join(each.cmdline()))


def recovered(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    return run.wait_for(
        lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation"
    )


def lose_worker(run: Run) -> None:
    """SIGKILL the Python process of subtask 0."""
    before = run.lines[-1]
    old = pids(before)
    os.kill(old[0], signal.SIGKILL)
    after = recovered(run, before)
    assert pid_gone(old[0]) and pids(after)[0] != old[0] and pids(after)[1] == old[1]
    assert hows(after) == {0: "restored", 1: "rolled back"}


def lose_executor(run: Run) -> None:
    """SIGKILL the executor JVM that hosts subtask 0, and perhaps subtask 1."""
    before = run.lines[-1]
    old = pids(before)
    executor = executor_of(old[0])
    survives = executor_of(old[1]).pid != executor.pid
    executor.kill()
    after = recovered(run, before)
    assert pid_gone(executor.pid) and pid_gone(old[0]) and pids(after)[0] != old[0]
    assert executor_of(pids(after)[0]).pid != executor.pid
    if survives:
        assert pids(after)[1] == old[1] and hows(after)[1] == "rolled back"


def lose_driver(run: Run) -> None:
    """SIGKILL the driver."""
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.process.wait(10) == -signal.SIGKILL


class TestStandaloneCluster:
    def test_a_job_on_two_executors_loses_a_worker_an_executor_and_its_driver_and_no_record(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS)
        with running_on(cluster, tmp_path) as run:
            run.wait_until_running(ROWS // 10)
            assert len(cluster.executors()) == 2
            lose_worker(run)
            run.wait_until_running(ROWS // 6)
            lose_executor(run)
            before = run.wait_until_running(ROWS // 4)
            lose_driver(run)
            with running_on(cluster, tmp_path) as again:
                after = again.wait_until_running()
                assert after["generation"] > before["generation"] and after["epoch"] >= before["epoch"]
                assert not set(pids(before).values()) & set(pids(after).values())
                assert again.finish() == 0, again.errors()
        assert differences(tmp_path, frame) == []


class TestWithoutAnInstallation:
    def test_a_zip_given_to_spark_submit_is_all_that_driver_and_executors_need_of_holdfast(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS // 4)
        python = python_without_holdfast(tmp_path)
        alone = [str(python), "-c", "import holdfast"]
        without = subprocess.run(alone, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert "No module named 'holdfast'" in without.stderr
        # As the README has it.
        subprocess.run([sys.executable, "-m", "zipfile", "-c", "holdfast.zip", PACKAGE], cwd=tmp_path, check=True)
        command = [str(SPARK_SUBMIT), "--master", cluster.url, "--py-files", "holdfast.zip"]
        command += [str(JOB), "--progress", "plain"]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {**cluster.environment, "PYSPARK_PYTHON": str(python)}
        environment |= {"COUNTING_FOLDER": str(tmp_path), "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
        assert differences(tmp_path, frame) == []
