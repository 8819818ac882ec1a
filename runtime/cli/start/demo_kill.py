"""The fault of the demo: SIGKILL to a process of the job, and the proof that it struck and that the job recovered.

In continuous mode a worker is killed, and the job recovers in a newer generation. In microbatch mode it is the process
of a task that is at work; the job of that epoch is run again.

Invariants
    - Only a process below the job's own is ever killed.
    - The evidence of the recovery is from after the kill. Lines of progress may be read long after they were written,
      so the position of the job is read from the job log.

Source: docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import psutil

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.wire.processes import is_gone

GONE_LIMIT_S = 10
BUSY_S, BUSY_LIMIT_S = 0.05, 10.0
"""How long a process is watched to see whether it works, and how long one is waited for that does."""
DAEMON = "holdfast.runtime.spark.daemon"
"""Part of the command line of Spark's Python daemon and of the processes that it forks."""


class InLog(NamedTuple):
    """The position of the job according to its log; 0 if unknown."""

    generation: int
    epoch: int
    """The newest completed epoch."""


class WorkerSeen(msgspec.Struct):
    """A worker in a line of progress."""

    id: str
    pid: int | None = None
    subtasks: list[int] = []


class ProgressRestart(msgspec.Struct):
    """A recovery in a line of progress."""

    at: str | float | int | None = None
    cause: str | None = None
    recovery_ms: float | None = None


class ProgressLine(msgspec.Struct):
    """One line of `holdfast run --progress json`; unknown = None."""

    state: str | None = None
    records_in: int | None = None
    records_per_s: float | None = None
    epoch: int | None = None
    lag: int | None = None
    generation: int | None = None
    workers: list[WorkerSeen] = []
    restarts: list[ProgressRestart] = []


@dataclass
class DemoKill:
    """The fault of the demo, and the proof that it happened."""

    what: str
    """The process, in words."""
    pid: int
    at_records: int
    """The highest record count seen before a later generation, or in microbatch mode a later epoch."""
    generation: int
    gone: bool
    recovered: bool = False
    epoch: int = 0
    """The newest epoch that was complete when the process had been killed."""
    mode: str = CONTINUOUS

    def look(self, now: ProgressLine) -> None:
        """Take a line of progress that is read after the kill; it may have been written before.

        In microbatch mode the next epoch may have been complete but for its record when its task was killed; the one
        after that began later.
        """
        records, epoch, generation = now.records_in or 0, now.epoch or 0, now.generation or 0
        batches = self.mode == MICROBATCH
        if epoch <= self.epoch if batches else generation <= self.generation:
            self.at_records = max(self.at_records, records)
        elif records > self.at_records and (not batches or epoch >= self.epoch + 2):
            self.recovered = True


def kill_one(
    progress: ProgressLine, job_pid: int, in_log: Callable[[], InLog], mode: str = CONTINUOUS
) -> DemoKill | None:
    """SIGKILL a worker with a subtask, or the process of a task, and wait for its end; None if none is known yet.

    Args:
        in_log: Reads the job log.
    """
    found = _task(job_pid) if mode == MICROBATCH else _worker(progress, job_pid)
    if found is None:
        return None
    what, victim = found
    generation = in_log().generation  # before the kill: the job may recover immediately
    try:
        if is_gone(victim):
            return None
        victim.kill()
    except psutil.NoSuchProcess:
        return None
    epoch = in_log().epoch
    return DemoKill(what, victim.pid, progress.records_in or 0, generation, _gone(victim), epoch=epoch, mode=mode)


def unproven(kill: DemoKill | None, last: ProgressLine) -> list[str]:
    """Return why the run does not prove recovery from a killed process."""
    if kill is None:
        return ["no process was killed: the run proves nothing about failures"]
    shortfall = f"no records were read after the kill in a generation above {kill.generation}"
    if kill.mode == MICROBATCH:
        shortfall = f"no epoch that began after the kill, behind epoch {kill.epoch}, was completed with more records"
    missing = {
        f"pid {kill.pid} outlived SIGKILL by {GONE_LIMIT_S} s": not kill.gone,
        f"{shortfall}; the last is {last.epoch if kill.mode == MICROBATCH else last.generation}": not kill.recovered,
    }
    return [problem for problem, holds in missing.items() if holds]


def _worker(progress: ProgressLine, job_pid: int) -> tuple[str, psutil.Process] | None:
    for worker in progress.workers:
        if worker.pid is None or not worker.subtasks:
            continue
        try:
            victim = psutil.Process(worker.pid)
            assert job_pid in [parent.pid for parent in victim.parents()], "a worker runs below its job"
        except psutil.NoSuchProcess:
            continue
        return f"worker {worker.id}", victim
    return None


def _task(job_pid: int) -> tuple[str, psutil.Process] | None:
    """Return a process that runs a task now; idle ones wait for the next epoch."""
    end = time.monotonic() + BUSY_LIMIT_S
    while time.monotonic() < end:
        before = {process: _used_s(process) for process in _task_processes(job_pid)}
        time.sleep(BUSY_S)
        for process, used_s in before.items():
            if _used_s(process) > used_s + BUSY_S / 2:
                return "a task", process
    return None


def _task_processes(job_pid: int) -> list[psutil.Process]:
    """Return the processes that Spark's Python daemons below the job have forked."""
    try:
        below = psutil.Process(job_pid).children(recursive=True)
    except psutil.Error:
        return []
    python_processes: list[tuple[psutil.Process, int]] = []
    for process in below:
        try:
            if DAEMON in process.cmdline():
                python_processes.append((process, process.ppid()))
        except psutil.Error:
            continue
    parents = {process.pid: parent for process, parent in python_processes}
    daemons = {pid for pid, parent in parents.items() if parent not in parents}
    return [process for process, parent in python_processes if parent in daemons]


def _used_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


def _gone(victim: psutil.Process) -> bool:
    """Wait until the process has ended."""
    end = time.monotonic() + GONE_LIMIT_S
    while time.monotonic() < end:
        if is_gone(victim):
            return True
        time.sleep(0.01)
    return False
