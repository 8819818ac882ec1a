"""The fault of the demo: SIGKILL to a process of the job, and the proof that it struck and that the job recovered.

In continuous mode a worker is killed, and the job recovers in a newer generation. In microbatch mode it is the process
of a task that is at work; the job of that epoch is run again.

Invariants
    - Only a process below the job's own is ever killed.

Source: docs/design/0047-microbatch.md.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import msgspec
import psutil

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.wire.processes import is_gone

GONE_LIMIT_S = 10
BUSY_S, BUSY_LIMIT_S = 0.05, 10.0
"""How long a process is watched to see whether it works, and how long one is waited for that does."""
DAEMON = "holdfast.runtime.spark.daemon"
"""In the command line of Spark's Python daemon and of what it forks."""


class WorkerSeen(msgspec.Struct):
    """A worker in a line of progress."""

    id: str
    pid: int | None = None
    subtasks: list[int] = []


class Restart(msgspec.Struct):
    """A recovery in a line of progress."""

    at: str | float | int | None = None
    cause: str | None = None
    recovery_ms: float | None = None


class Progress(msgspec.Struct):
    """One line of `holdfast run --progress json`; unknown = None."""

    state: str | None = None
    records_in: int | None = None
    records_per_s: float | None = None
    epoch: int | None = None
    lag: int | None = None
    generation: int | None = None
    workers: list[WorkerSeen] = []
    restarts: list[Restart] = []


@dataclass
class Kill:
    """The fault of the demo, and the proof that it happened."""

    what: str
    """The process, in words."""
    pid: int
    at_records: int
    """The highest record count seen in the generation of the victim."""
    generation: int
    gone: bool
    recovered: bool = False
    epoch: int | None = None
    """The last epoch that was complete."""
    mode: str = CONTINUOUS

    def look(self, now: Progress) -> None:
        """Take a later line of progress."""
        records, generation = now.records_in or 0, now.generation or 0
        if self.mode == MICROBATCH:
            self.recovered |= records > self.at_records and (now.epoch or 0) >= (self.epoch or 0) + 2
        elif generation == self.generation:
            self.at_records = records
        elif generation > self.generation and records > self.at_records:
            self.recovered = True


def kill_one(progress: Progress, job_pid: int, mode: str = CONTINUOUS) -> Kill | None:
    """SIGKILL a worker that has a subtask, or a task at work, and wait until it is gone; None if none is known yet."""
    found = _task(job_pid) if mode == MICROBATCH else _worker(progress, job_pid)
    if found is None:
        return None
    what, victim = found
    os.kill(victim.pid, signal.SIGKILL)
    seen = progress.records_in or 0, progress.generation or 0
    return Kill(what, victim.pid, *seen, _gone(victim), epoch=progress.epoch, mode=mode)


def unproven(kill: Kill | None, last: Progress) -> list[str]:
    """Return why the run does not prove recovery from a killed process."""
    if kill is None:
        return ["no process was killed: the run proves nothing about failures"]
    stayed = f"no records were read after the kill in a generation above {kill.generation}"
    if kill.mode == MICROBATCH:
        stayed = f"no two epochs with more records were completed after the kill in epoch {kill.epoch}"
    missing = {
        f"pid {kill.pid} outlived SIGKILL by {GONE_LIMIT_S} s": not kill.gone,
        f"{stayed}; the last is {last.epoch if kill.mode == MICROBATCH else last.generation}": not kill.recovered,
    }
    return [problem for problem, holds in missing.items() if holds]


def _worker(progress: Progress, job_pid: int) -> tuple[str, psutil.Process] | None:
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
    """Return what Spark's Python daemons below the job have forked."""
    found: list[psutil.Process] = []
    for process in psutil.Process(job_pid).children(recursive=True):
        try:
            if DAEMON in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    daemons = {process.ppid() for process in found}
    return [process for process in found if process.pid not in daemons]


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
