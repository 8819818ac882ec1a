"""The cluster of live chaos for tests of our own: jobs on it, packed as for others' machines, and kills that fired."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
from running import JOB, Run, pid_gone, running

import holdfast
from holdfast.chaos.live_cluster import LiveCluster
from holdfast.chaos.live_job import EXECUTOR

HOSTS = 2
CORES = 2
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PACKAGE = Path(holdfast.__file__).parent


class Standalone(LiveCluster):
    """Two hosts, with a look at all that runs below them. What they write goes to files in the folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(folder, HOSTS, CORES, {"TMPDIR": str(folder), **environment})
        self.folder = folder

    def processes(self) -> list[psutil.Process]:
        """Return master, hosts and everything below them."""
        roots = [psutil.Process(pid) for pid in sorted(self.daemons())]
        return [*roots, *(child for root in roots for child in _children(root.pid))]

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if EXECUTOR in " ".join(process.cmdline()):
                    found.append(process)
        return found


@contextlib.contextmanager
def standalone(folder: Path, **environment: str) -> Iterator[Standalone]:
    """Start a cluster; all of it ends with the block."""
    cluster = Standalone(folder, **environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def python_without_holdfast(folder: Path) -> Path:
    """Return an interpreter that has every package of this one but does not find Holdfast.

    An editable install works through `.pth` files, which `-S` leaves out.
    """
    program = folder / "python-without-holdfast"
    packages = os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    own_path = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}"'
    program.write_text(f'#!/bin/sh\n{own_path}\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program


def make_environment(folder: Path) -> None:
    """Make an environment that works wherever it is unpacked: an interpreter, and Holdfast beside it.

    The packages of others, a gigabyte, are those of this machine; a real one holds them as well.
    """
    (folder / "bin").mkdir(parents=True)
    program = python_without_holdfast(folder).rename(folder / "bin" / "python")
    lines = program.read_text().splitlines()
    here = 'export PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)/lib"'
    compiles = "unset PYTHONDONTWRITEBYTECODE"  # which leaves traces of what was imported
    program.write_text("\n".join([lines[0], here, compiles, *lines[1:], ""]))
    shutil.copytree(PACKAGE, folder / "lib" / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))


@contextlib.contextmanager
def running_on(
    cluster: Standalone, folder: Path, records_per_second: str, job: Path = JOB, **environment: str
) -> Iterator[Run]:
    """Start the job, with TLS as between machines. A killed process is seen by its closed streams; nobody is lost for
    being slow."""
    how = {"HOLDFAST_TLS": "on", "HOLDFAST_SILENT_AFTER_MS": "60000", "HOLDFAST_SESSION_TIMEOUT_MS": "60000"}
    flags = ("--master", cluster.url, "--max-records-per-second", records_per_second)
    with running(folder, *flags, job=job, **cluster.environment | how | environment) as run:
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


def without_daemon(cluster: Standalone) -> list[int]:
    """Return the process ids of executors that have no Python yet."""
    return [each.pid for each in cluster.executors() if not _children(each.pid)]


def recovered(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    return run.wait_for(
        lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation"
    )


def lose_worker(run: Run) -> float:
    """SIGKILL the Python process of subtask 0; return when. Checks that it fired and that subtask 1 rolled back."""
    before = run.lines[-1]
    old = pids(before)
    at = time.time()
    os.kill(old[0], signal.SIGKILL)
    after = recovered(run, before)
    assert pid_gone(old[0]) and pids(after)[0] != old[0] and pids(after)[1] == old[1]
    assert hows(after) == {0: "restored", 1: "rolled back"}
    return at


def lose_executor(run: Run) -> float:
    """SIGKILL the executor JVM that hosts subtask 0, and perhaps subtask 1; return when. Checks that it fired."""
    before = run.lines[-1]
    old = pids(before)
    executor = executor_of(old[0])
    survives = executor_of(old[1]).pid != executor.pid
    at = time.time()
    executor.kill()
    after = recovered(run, before)
    assert pid_gone(executor.pid) and pid_gone(old[0]) and pids(after)[0] != old[0]
    assert executor_of(pids(after)[0]).pid != executor.pid
    if survives:
        assert pids(after)[1] == old[1] and hows(after)[1] == "rolled back"
    return at


def lose_driver(run: Run) -> float:
    """SIGKILL the driver; return when."""
    at = time.time()
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.process.wait(10) == -signal.SIGKILL
    return at


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
