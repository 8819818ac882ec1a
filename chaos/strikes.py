"""Faults of processes, carried out: SIGKILL, SIGSTOP and SIGCONT, and files that cannot be written.

Invariant
    - A fault says that it fired only after its effect was seen: the process is gone, is stopped, writes nothing more.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import psutil

from holdfast.chaos.nemesis import Planned
from holdfast.runtime.processes import is_gone

SEEN_WITHIN_S = 10.0
POLL_S = 0.005
BEATS, BEAT_LEAST_S = 8, 1.0
BEATS_MISSED = 2
"""A full disk has fired when nothing was written for so many times the usual pause between two writes."""


class Strike(Protocol):
    """One fault under way."""

    target: str
    killed: frozenset[int]
    """Processes that `begin` killed, also if it returned False."""

    def begin(self) -> bool:
        """Strike; False if there is nothing to strike any more."""

    def evidence(self) -> str | None:
        """Return what shows that it has fired, None as long as nothing does."""

    def heal(self) -> str:
        """Undo what lasts, whether it has fired or not; return what was found."""


class Kill:
    """SIGKILL.

    Args:
        revive: Starts again what nobody else starts again; says what it did.
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


class Stop:
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
            return f"pid {self._process.pid} had gone meanwhile"
        return f"pid {self._process.pid} goes on"


class Full:
    """No file may grow: what a write to a full disk does, but with EFBIG. Pipes and sockets go on.

    Args:
        written: When the newest records of the job log were written, in seconds since 1970, in order. It gets one for
            every epoch, and none while the driver or a worker can write nothing.
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
            return False  # whether a job that writes nothing was kept from writing cannot be seen
        self._beat_s = max(BEAT_LEAST_S, pauses[len(pauses) // 2])
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
        limited = [str(process.pid) for process in self._before if _may_write(process) is False]
        quiet_s = time.time() - max([self._began, *self._written()[-1:]])
        if not limited or quiet_s < BEATS_MISSED * self._beat_s:
            return None
        usual = f"nothing was written for {1000 * quiet_s:.0f} ms, before every {1000 * self._beat_s:.0f} ms"
        return f"no file of pid {', '.join(limited)} may grow, {usual}"

    def heal(self) -> str:
        healed = 0
        for process, before in self._before.items():
            if process.is_running():
                try:
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
                    healed += 1
                except ProcessLookupError:
                    continue
        return f"{healed} of {len(self._before)} processes may write again"


def of_processes(
    fault: Planned,
    does: str,
    prey: list[psutil.Process],
    written: Callable[[], list[float]],
    revive: Callable[[], str] | None = None,
) -> Strike | None:
    """Return the fault for what there is now; None if there is nothing.

    Args:
        written: As `Full` takes it.
    """
    if not prey:
        return None
    one = prey[fault.rank % len(prey)]
    return Kill(one, revive) if does == "kill" else Stop(one) if does == "signal-stop" else Full(prey, written)


def _may_write(process: psutil.Process) -> bool | None:
    try:
        return resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] != 0
    except ProcessLookupError:
        return None


def seen(true: Callable[[], bool]) -> bool:
    """Wait until it is so; False if that takes too long."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
