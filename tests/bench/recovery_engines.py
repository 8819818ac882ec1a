"""What the benchmark of recovery kills on a cluster: jobs of Holdfast in both modes, and Structured Streaming.

Each loses a Python process, an executor or its driver; each tells when its epochs began and were done. Every kill is
checked: the process is gone, and Spark or the job log recorded the loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import psutil
from patience import WALL_S, wait, wait_for_end
from running import Run, pid_gone
from spark_events import SparkEvents
from standalone import (
    CORES,
    HOSTS,
    SPARK_SUBMIT,
    Standalone,
    lose_driver,
    lose_executor,
    lose_worker,
    running_on,
)

from holdfast.checkpoint.repository import Repository
from holdfast.storage.objects import open_objects

ROWS_PER_SECOND = 20_000
FILES_PER_BATCH = 2
FILE_ROWS = ROWS_PER_SECOND // FILES_PER_BATCH
EVERY = "1s"
NO_LIMIT = 1_000_000_000
LOOKS_MAX = 40
"""How many processes are killed at most until one was running a task: tasks take milliseconds, and processes wait."""
_HERE = Path(__file__).parent
_BUSY = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


@dataclass(frozen=True)
class Epoch:
    """A completed epoch or batch; times in seconds since 1970."""

    began: float
    done: float


class Engine(Protocol):
    """What is killed. `lose_*` return when; those of an executor and of a driver, while a job runs or between two."""

    name: str
    folder: Path
    keeps: tuple[str, ...]
    """What it leaves in its folder for the next driver."""

    def prepare(self, rows: pl.DataFrame) -> None:
        """Write the input in another form, if it does not read the log."""

    def running(self, *, python: bool = False) -> contextlib.AbstractContextManager[None]:
        """Start a driver; it is at work when this returns."""

    def epochs(self) -> list[Epoch]:
        """Return the completed epochs, oldest first."""

    def lose_worker(self) -> float:
        """SIGKILL a Python process that is at work."""

    def lose_executor(self, *, during: bool) -> float:
        """SIGKILL an executor."""

    def lose_driver(self, *, during: bool) -> float:
        """SIGKILL the driver."""

    def first_record(self, at: float) -> float | None:
        """Return when a replaced subtask took its first record; None if no subtask is resident."""

    def at_moment(self, *, during: bool) -> None:
        """Return while a job runs, or between two jobs."""

    def finish(self) -> None:
        """Read everything that is left."""


def next_epoch(engine: Engine, at: float) -> Epoch:
    """Return the first epoch that began after this moment, once it is done."""
    found: Epoch = wait(
        lambda: next((each for each in engine.epochs() if each.began > at), None), "an epoch after the kill"
    )
    return found


def first_done(engine: Engine, at: float) -> float:
    """Return when the first epoch after this moment was done, whenever it began: a driver repeats the last batch."""
    found: float = wait(lambda: next((each.done for each in engine.epochs() if each.done > at), None), "the next epoch")
    return found


def settled(engine: Engine, epochs: int = 3) -> None:
    """Wait until so many further epochs are done."""
    at = time.time()
    wait(lambda: sum(each.done > at for each in engine.epochs()) >= epochs, "further epochs")


class _OnSpark:
    """Jobs of Spark, seen by its event log."""

    def __init__(self, cluster: Standalone, events: SparkEvents) -> None:
        self._cluster, self._events = cluster, events

    def at_moment(self, *, during: bool) -> None:
        wait(lambda: self._events.job_runs() is during, "a job" if during else "a pause between jobs")

    def first_record(self, at: float) -> float | None:
        return None

    def lose_task(self, struck: Callable[[float], object]) -> float:
        """SIGKILL Python processes until one was running a task.

        Args:
            struck: Waits until everything that ran at this moment is over.
        """
        for _ in range(LOOKS_MAX):
            failed = self._events.look().tasks_failed
            task = wait(self._at_work, "a task at work")
            at = time.time()
            task.kill()
            struck(at)
            assert pid_gone(task.pid)
            if self._events.look().tasks_failed > failed:
                return at
        raise AssertionError(f"none of {LOOKS_MAX} killed processes ran a task")

    def _at_work(self) -> psutil.Process | None:
        tasks = self._cluster.tasks()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:  # no pause: a task at work is seen for milliseconds
            if not self._events.job_runs():
                continue
            for task in tasks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if task.status() in _BUSY:
                        return task
        return None

    def lose_executor(self, *, during: bool) -> float:
        victim, lost = self._cluster.executors()[0], self._events.look().executors_lost
        self.at_moment(during=during)
        at = time.time()
        victim.kill()
        wait(lambda: pid_gone(victim.pid) and self._events.look().executors_lost > lost, "the loss to be noticed")
        wait(lambda: len(self._cluster.executors()) == 2, "another executor")
        return at


class _Job:
    """A job of Holdfast."""

    def __init__(self, cluster: Standalone, folder: Path, mode: str) -> None:
        self._cluster, self.folder, self._mode = cluster, folder, mode
        self.name = f"Holdfast, {mode}"
        self.keeps: tuple[str, ...] = ("root", ".out.db.holdfast-queue")
        self._repository = Repository(open_objects(str(folder / "root" / "recovery")))
        self.run: Run | None = None

    def prepare(self, rows: pl.DataFrame) -> None:
        """It reads the log."""

    @contextlib.contextmanager
    def running(self, *, python: bool = False) -> Iterator[None]:
        before = self._generation()
        with self._started(ROWS_PER_SECOND) as run:
            self.run = run
            run.wait_until_running()
            assert self._generation() > before
            yield
            if run.process.poll() is None:
                run.process.send_signal(signal.SIGTERM)
                assert run.finish() == 0, run.errors()

    def epochs(self) -> list[Epoch]:
        job = self._repository.read_log()
        done = job.completed if job is not None else ()
        return [Epoch(each.at / 1e6 - each.body.duration_ms / 1e3, each.at / 1e6) for each in done]

    def finish(self) -> None:
        with self._started(NO_LIMIT) as run:
            assert run.finish() == 0, run.errors()
            assert run.lines[-1]["state"] == "finished"

    def _started(self, rate: int) -> contextlib.AbstractContextManager[Run]:
        flags = ("--mode", self._mode, "--every", EVERY)
        return running_on(self._cluster, self.folder, str(rate), job=_HERE / "recovery_job.py", flags=flags)

    def _generation(self) -> int:
        job = self._repository.read_log()
        return job.generation if job is not None else 0

    def _lose_driver(self) -> float:
        assert self.run is not None
        return lose_driver(self.run)


class Continuous(_Job):
    """Resident workers: subtask 0 loses its process or its executor."""

    def __init__(self, cluster: Standalone, folder: Path) -> None:
        super().__init__(cluster, folder, "continuous")
        self._restarts = 0

    def lose_worker(self) -> float:
        return self._lose(lose_worker)

    def lose_executor(self, *, during: bool) -> float:
        # After a start, free slots are warmed up, which takes seconds; after those a replacement is started there.
        wait(lambda: len(self._cluster.tasks()) == HOSTS * CORES, "a Python process for every slot")
        return self._lose(lose_executor)

    def lose_driver(self, *, during: bool) -> float:
        return self._lose_driver()

    def first_record(self, at: float) -> float | None:
        return first_record(self.folder / "root" / "recovery", self._restarts, 0) / 1e6

    def at_moment(self, *, during: bool) -> None:
        """Workers are always at work."""

    def _lose(self, lose: Callable[[Run], float]) -> float:
        assert self.run is not None
        self._restarts = len(self.run.lines[-1]["restarts"]) + 1
        return lose(self.run)


class Microbatch(_Job, _OnSpark):
    """A job in Spark per epoch. Spark repeats lost tasks, so no generation ends."""

    def __init__(self, cluster: Standalone, events: SparkEvents, folder: Path) -> None:
        _Job.__init__(self, cluster, folder, "microbatch")
        _OnSpark.__init__(self, cluster, events)

    def lose_worker(self) -> float:
        before = self._generation()
        at = self.lose_task(lambda at: next_epoch(self, at))
        assert self._generation() == before, "Spark repeats a lost task"
        return at

    def lose_driver(self, *, during: bool) -> float:
        self.at_moment(during=during)
        return self._lose_driver()


class StructuredStreaming(_OnSpark):
    """The peer. Its driver is the JVM that spark-submit becomes."""

    name = "Structured Streaming"
    keeps: tuple[str, ...] = ("checkpoints", "files", "driver.log")

    def __init__(self, cluster: Standalone, events: SparkEvents, folder: Path) -> None:
        super().__init__(cluster, events)
        self.folder, self._files, self._checkpoints = folder, folder / "files", folder / "checkpoints"
        self._driver: subprocess.Popen[bytes] | None = None

    def prepare(self, rows: pl.DataFrame) -> None:
        """Write files, of which a batch reads a few."""
        self._files.mkdir()
        for number, part in enumerate(rows.iter_slices(FILE_ROWS)):
            part.write_parquet(self._files / f"{number:06d}.parquet")

    @contextlib.contextmanager
    def running(self, *, python: bool = False) -> Iterator[None]:
        at = time.time()
        with self._started(FILES_PER_BATCH, "python" if python else "sql", "1 second") as driver:
            self._driver = driver
            wait(lambda: any(each.done > at for each in self.epochs()) or self._check(driver), "a batch")
            yield

    def epochs(self) -> list[Epoch]:
        began, done = (self._times(folder) for folder in ("offsets", "commits"))
        return [Epoch(began[batch], done[batch]) for batch in sorted(done) if batch in began]

    def lose_worker(self) -> float:
        return self.lose_task(lambda at: next_epoch(self, at))

    def lose_driver(self, *, during: bool) -> float:
        assert self._driver is not None
        self.at_moment(during=during)
        at = time.time()
        os.kill(self._driver.pid, signal.SIGKILL)
        assert self._driver.wait(WALL_S) == -signal.SIGKILL
        return at

    def finish(self) -> None:
        with self._started(100 * FILES_PER_BATCH, "sql") as driver:
            assert wait_for_end(driver, "the end of the query") == 0, self._errors()

    @contextlib.contextmanager
    def _started(self, files: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        program = (str(_HERE / "recovery_peer.py"), str(self._files), str(files), str(self._checkpoints))
        command = [str(SPARK_SUBMIT), "--master", self._cluster.url, *program, str(self.folder / "out.db"), *arguments]
        own = {"TMPDIR": str(self.folder), "PYSPARK_PYTHON": sys.executable}
        environment = {**os.environ, **self._cluster.environment, **own}
        with (self.folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        try:
            yield driver
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(WALL_S)

    def _times(self, folder: str) -> dict[int, float]:
        """Return when the numbered files of a folder were written."""
        times = dict[int, float]()
        with contextlib.suppress(FileNotFoundError):
            for path in (self._checkpoints / folder).iterdir():
                if path.name.isdigit():
                    times[int(path.name)] = path.stat().st_mtime
        return times

    def _check(self, driver: subprocess.Popen[bytes]) -> bool:
        assert driver.poll() is None, self._errors()
        return False

    def _errors(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-3_000:]


def living(folder: Path) -> list[psutil.Process]:
    """Return the processes that use this folder for temporary files: drivers, their JVMs and what these started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def first_record(folder: Path, restarts: int, subtask: int) -> int:
    """Return when the subtask took its first record after this many restarts, in microseconds.

    Args:
        folder: The folder of the job in its root.
    """

    def found() -> Any:
        status = json.loads((folder / "live.json").read_text())
        if len(status["restarts"]) < restarts:
            return None
        at = [w["first_record_at"] for w in status["workers"] if w["subtasks"] == [subtask] and w["how"]]
        return at[0] if at else None

    return int(wait(found, "the first record"))
