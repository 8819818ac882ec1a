"""Carries out the faults of processes: SIGKILL, SIGSTOP and SIGCONT, and files that cannot be written.

Invariant
    - A fault reports that it fired only after its effect was seen: the process has ended, is stopped, or no longer
      writes.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import psutil

from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.runtime.wire.processes import is_gone

SEEN_WITHIN_S = 10.0
POLL_S = 0.005
BEATS, BEAT_LEAST_S = 8, 1.0
BEATS_MISSED = 2
"""A full disk has fired when nothing was written for this many times the usual pause between two writes."""


class LiveStrike(Protocol):
    """One fault in progress."""

    target: str
    killed: frozenset[int]
    """Processes that `begin` killed, even if it returned False."""

    def begin(self) -> bool:
        """Strike; False if the victim has ended."""

    def evidence(self) -> str | None:
        """Return the evidence that it has fired, None while there is none."""

    def heal(self) -> str:
        """Undo lasting effects, whether or not it has fired; return a description."""


class ProcessKill:
    """SIGKILL.

    Args:
        revive: Restarts a process that no supervisor restarts; returns a description.
    """

    def __init__(self, process: psutil.Process, revive: Callable[[], str] | None = None) -> None:
        self._process = process
        self._revive = revive
        self._began = 0.0
        self.killed: frozenset[int] = frozenset()
        self.target = f"pid {process.pid}"

    def begin(self) -> bool:
        self._began = time.monotonic()
        try:
            self._process.kill()
        except psutil.NoSuchProcess:
            return False
        self.killed = frozenset({self._process.pid})
        return True

    def evidence(self) -> str | None:
        took_ms = 1000 * (time.monotonic() - self._began)
        return f"pid {self._process.pid} gone within {took_ms:.0f} ms" if is_gone(self._process) else None

    def heal(self) -> str:
        return "" if self._revive is None else self._revive()


class ProcessStop:
    """SIGSTOP, later SIGCONT."""

    killed: frozenset[int] = frozenset()

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.target = f"pid {process.pid}"

    def begin(self) -> bool:
        try:
            self._process.suspend()
        except psutil.NoSuchProcess:
            return False
        return True

    def evidence(self) -> str | None:
        try:
            stopped = self._process.status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return None
        return f"pid {self._process.pid} is in state stopped" if stopped else None

    def heal(self) -> str:
        try:
            self._process.resume()
        except psutil.NoSuchProcess:
            return f"pid {self._process.pid} ended meanwhile"
        return f"pid {self._process.pid} resumed"


class Full:
    """No file may grow, as on a full disk, but with EFBIG. Pipes and sockets still work.

    Args:
        written: When the newest records of the job log were written, in seconds since 1970, in order. The log gets a
            record for every epoch, and none while the driver or a worker can write nothing.
    """

    killed: frozenset[int] = frozenset()

    def __init__(self, processes: list[psutil.Process], written: Callable[[], list[float]]) -> None:
        self._processes, self._written = processes, written
        self._began = self._beat_s = 0.0
        self._before: dict[psutil.Process, tuple[int, int]] = {}
        self.target = ", ".join(f"pid {process.pid}" for process in processes)

    def begin(self) -> bool:
        pauses = sorted(after - before for before, after in pairwise(self._written()[-BEATS - 1 :]))
        if not pauses:
            return False  # with a job that writes nothing the effect cannot be seen
        self._beat_s = max(BEAT_LEAST_S, pauses[len(pauses) // 2])
        if BEATS_MISSED * self._beat_s >= SEEN_WITHIN_S:
            return False  # the job writes so rarely, as after recoveries, that its silence would prove nothing in time
        for process in self._processes:
            try:
                before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
            except ProcessLookupError:
                continue
            self._before[process] = before
        self._began = time.time()
        return bool(self._before)

    def evidence(self) -> str | None:
        ended = [str(process.pid) for process in self._before if is_gone(process)]
        if ended:
            return f"pid {', '.join(ended)} ended when no file of it could grow"
        limited_pids = [str(process.pid) for process in self._before if _may_write(process) is False]
        quiet_s = time.time() - max([self._began, *self._written()[-1:]])
        if not limited_pids or quiet_s < BEATS_MISSED * self._beat_s:
            return None
        usual = f"nothing was written for {1000 * quiet_s:.0f} ms, earlier every {1000 * self._beat_s:.0f} ms"
        return f"no file of pid {', '.join(limited_pids)} may grow, {usual}"

    def heal(self) -> str:
        healed_count = 0
        for process, before in self._before.items():
            if process.is_running():
                try:
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
                    healed_count += 1
                except ProcessLookupError:
                    continue
        return f"{healed_count} of {len(self._before)} processes may write again"


def of_processes(
    fault: Planned,
    does: str,
    victim: list[psutil.Process],
    written: Callable[[], list[float]],
    revive: Callable[[], str] | None = None,
) -> LiveStrike | None:
    """Return the fault, bound to a victim that exists now; None if there is none.

    Args:
        written: As `Full` takes it.
    """
    if not victim:
        return None
    one = victim[fault.rank % len(victim)]
    return (
        ProcessKill(one, revive)
        if does == "kill"
        else ProcessStop(one)
        if does == "signal-stop"
        else Full(victim, written)
    )


def _may_write(process: psutil.Process) -> bool | None:
    try:
        return resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] != 0
    except ProcessLookupError:
        return None


def seen(true: Callable[[], bool]) -> bool:
    """Wait until the condition holds; False if that takes too long."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
