"""A Spark standalone cluster on this machine, from the pyspark package: a master and two workers, each a process.

Unlike `local-cluster` nothing of it lives in the driver: it survives a killed driver, and its executors are
started by daemons that know nothing of the job. All listen on 127.0.0.1 only, on ports the system chooses.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
from running import JOB, Run, pid_gone, running

import holdfast

WORKERS = 2
CORES = 2
START_LIMIT_S = 60.0
EXECUTOR = "CoarseGrainedExecutorBackend"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live for seconds: six of them start for one test."""
DEFAULTS = f"""\
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.extraJavaOptions {QUICK_JAVA}
spark.executor.extraJavaOptions {QUICK_JAVA}
spark.executor.memory 512m
"""
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PACKAGE = Path(holdfast.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


class Standalone:
    """A master and two workers. What they write goes to files in the folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
        self.environment = {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
        """What a driver on this cluster needs."""
        daemons = {"TMPDIR": str(folder), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
        self._environment = {**os.environ, **self.environment, **daemons, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        """Start master and workers; return once both workers are registered."""
        log = self._spawn("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.url = _awaited(log, r"Starting Spark master at (spark://\S+)", 1)[0]
        for number in range(WORKERS):
            work = self.folder / f"work-{number}"
            flags = ("-c", str(CORES), "-m", "1g", "-d", str(work), "--port", "0", "--webui-port", "0", self.url)
            self._spawn(f"worker-{number}", "worker.Worker", *flags)
        _awaited(log, r"Registering worker ([\d.]+:\d+)", WORKERS)

    def processes(self) -> list[psutil.Process]:
        """Return master, workers and everything below them."""
        roots = [psutil.Process(each.pid) for each in self._processes]
        return [*roots, *(child for root in roots for child in _children(root.pid))]

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now."""
        found = []
        for process in self._processes:
            for child in _children(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if EXECUTOR in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def close(self) -> None:
        """End every process that was started, with its children."""
        for process in reversed(self._processes):
            for child in _children(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait(10)

    def _spawn(self, name: str, daemon: str, *flags: str) -> Path:
        log = self.folder / f"{name}.log"
        command = [str(SPARK_CLASS), f"{_DEPLOY}.{daemon}"]
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", *flags], stdout=out, stderr=subprocess.STDOUT,
                    env=self._environment, start_new_session=True,
                )
            )  # fmt: skip
        return log


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


def _awaited(log: Path, pattern: str, count: int) -> list[str]:
    """Return what the pattern finds in the log, once it is found so often."""
    found: list[str] = []
    pause = threading.Event()
    for _ in range(round(START_LIMIT_S / 0.05)):
        found = re.findall(pattern, log.read_text(errors="replace"))
        if len(found) >= count:
            return found
        pause.wait(0.05)
    raise AssertionError(f"waited for {count} of {pattern!r} in {log}:\n{log.read_text()[-3_000:]}")
