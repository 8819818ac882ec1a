"""The cluster of live chaos for the end-to-end tests: jobs packed as for other machines, and verified kills."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark
from patience import WALL_S, wait
from running import JOB, Run, pid_gone, running

import holdfast
from holdfast.chaos.live.cluster import MASTER_OPTIONS, LiveCluster
from holdfast.chaos.live.job import EXECUTOR

HOSTS = 2
CORES = 2
_PAGE = r"MasterWebUI.* (http://127\.0\.0\.1:\d+)"
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PACKAGE = Path(holdfast.__file__).parent


class Standalone(LiveCluster):
    """Two hosts and the processes below them. Their output goes to files in the folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(folder, HOSTS, CORES, {"TMPDIR": str(folder), **environment})
        self.folder = folder

    def processes(self) -> list[psutil.Process]:
        """Return master, hosts and everything below them."""
        roots = [psutil.Process(pid) for pid in sorted(self.daemons())]
        return [*roots, *(child for root in roots for child in _children(root.pid))]

    def lose_master(self, moment: Callable[[], object] = lambda: None) -> float:
        """SIGKILL the master of a cluster that remembers, and start it again on its port; return the time of the kill.

        Args:
            moment: Returns when it is to be killed.
        """
        master, before = self._master, self.seen_by_master()
        assert master is not None
        moment()
        at = time.time()
        os.kill(master.pid, signal.SIGKILL)
        assert master.wait(WALL_S) == -signal.SIGKILL
        log = self._start_master(int(self.url.rpartition(":")[2]))
        masters = len(re.findall(_PAGE, log.read_text(errors="replace"))) + 1
        self._awaited(log, _PAGE, masters)
        wait(lambda: self.seen_by_master() == before, "the same hosts and applications to be known")
        return at

    def seen_by_master(self) -> tuple[str, int, list[str]]:
        """Return, as the newest master reports: its status, how many hosts are alive, and the running applications."""
        page = re.findall(_PAGE, (self.folder / "master.log").read_text(errors="replace"))[-1]
        with urllib.request.urlopen(f"{page}/json", timeout=WALL_S) as answer:
            seen = json.load(answer)
        hosts = sum(host["state"] == "ALIVE" for host in seen["workers"])
        return seen["status"], hosts, [app["id"] for app in seen["activeapps"] if app["state"] == "RUNNING"]

    def tasks(self) -> list[psutil.Process]:
        """Return the Python processes below the daemons of executors; one runs a task, or waits for the next."""
        daemons = (daemon for executor in self.executors() for daemon in _children(executor.pid, recursive=False))
        return [task for daemon in daemons for task in _children(daemon.pid, recursive=False)]

    def is_idle(self) -> bool:
        """Return whether nothing runs but the daemons. Spark's start script leaves them dead children."""
        return all(process.pid in self.daemons() or pid_gone(process.pid) for process in self.processes())

    def executors(self) -> list[psutil.Process]:
        """Return the running executors."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if EXECUTOR in " ".join(process.cmdline()):
                    found.append(process)
        return found


def remembering(folder: Path) -> dict[str, str]:
    """Return the environment of a cluster whose master, started again, knows hosts and applications.

    Any other master would have the executors of its predecessor ended.

    Args:
        folder: Where the master keeps them.
    """
    kept = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder}"
    return {"SPARK_MASTER_OPTS": f"{MASTER_OPTIONS} {kept}"}


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

    An editable install relies on `.pth` files, which `-S` ignores.
    """
    program = folder / "python-without-holdfast"
    packages = os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    own_path = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}"'
    program.write_text(f'#!/bin/sh\n{own_path}\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program


def make_environment(folder: Path) -> None:
    """Make an environment that works wherever it is unpacked: an interpreter, and Holdfast beside it.

    It uses this machine's copies of third-party packages, a gigabyte; a real environment would contain them.
    """
    (folder / "bin").mkdir(parents=True)
    program = python_without_holdfast(folder).rename(folder / "bin" / "python")
    lines = program.read_text().splitlines()
    here = 'export PYTHONPATH="$(cd "$(dirname "$0")/.." && pwd)/lib"'
    compiles = "unset PYTHONDONTWRITEBYTECODE"  # so that imports leave compiled files behind
    program.write_text("\n".join([lines[0], here, compiles, *lines[1:], ""]))
    shutil.copytree(PACKAGE, folder / "lib" / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))


@contextlib.contextmanager
def running_on(
    cluster: Standalone,
    folder: Path,
    records_per_second: str,
    *,
    job: Path = JOB,
    flags: Sequence[str] = (),
    **environment: str,
) -> Iterator[Run]:
    """Start the job, with TLS as between machines. Closed streams reveal a killed process; slowness never counts as a
    loss."""
    how = {"HOLDFAST_TLS": "on", "HOLDFAST_SILENT_AFTER_MS": "60000", "HOLDFAST_SESSION_TIMEOUT_MS": "60000"}
    on = ("--master", cluster.url, "--max-records-per-second", records_per_second)
    with running(folder, *on, *flags, job=job, **cluster.environment | how | environment) as run:
        yield run


def pids(progress: dict[str, Any]) -> dict[int, int]:
    """Return process ids of the workers by subtask."""
    return {worker["subtasks"][0]: worker["pid"] for worker in progress["workers"] if worker["subtasks"]}


def hows(progress: dict[str, Any]) -> dict[int, str]:
    """Return, by subtask, how its worker obtained its state."""
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
    """SIGKILL the Python process of subtask 0; return the time. Checks that it fired and that subtask 1 rolled back."""
    before = run.lines[-1]
    old = pids(before)
    at = time.time()
    os.kill(old[0], signal.SIGKILL)
    after = recovered(run, before)
    assert pid_gone(old[0]) and pids(after)[0] != old[0] and pids(after)[1] == old[1]
    assert hows(after) == {0: "restored", 1: "rolled back"}
    return at


def lose_executor(run: Run) -> float:
    """SIGKILL the executor JVM that hosts subtask 0, and perhaps subtask 1; return the time. Checks that it fired."""
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


def lose_tasks_executor(cluster: Standalone, run: Run) -> None:
    """SIGKILL an executor of a job in microbatch mode, and wait until epochs are completed again, with another one."""
    before, victim = run.lines[-1], cluster.executors()[0]
    victim.kill()
    run.wait_for(lambda p: p["epoch"] >= before["epoch"] + 2, "epochs after the kill")
    assert pid_gone(victim.pid)
    wait(lambda: len(cluster.executors()) == HOSTS, "another executor")


def lose_driver(run: Run) -> float:
    """SIGKILL the driver; return the time."""
    at = time.time()
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.process.wait(WALL_S) == -signal.SIGKILL
    return at


def _children(pid: int, recursive: bool = True) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
