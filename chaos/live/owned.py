"""The processes of a run: identified by a token in their environment, and all ended, however the run ends.

Every process that a run starts, directly or through Spark, inherits the token. Only a process with the token is
signalled: this run started it, even if its parents have changed since. A guard, a process in its own session, notices
    when the run or its process has ended, and ends all remaining processes, even those of a killed run.

Invariants
    - No signal goes to a process without the token of the run, or to one that reuses a process id.
    - The guard starts before every other process of a run and ends after all of them.

A process started with a cleared environment is not recognised. The guard loads nothing but psutil.
Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

TOKEN = "HOLDFAST_CHAOS_RUN"
JOB, SOURCE, TOOLS = "", "source", "tools"
"""Parts of a run: the job, the command that writes its source, the tools of the harness."""
LOOKS_MAX = 200
LOOKS_EMPTY = 2
"""Looks in a row that must find nothing: one look may miss a process whose parent has just started it and ended."""
POLL_S = 0.05
GUARD_ENDS_WITHIN_S = 60.0


def marks(token: str, part: str = JOB) -> dict[str, str]:
    """Return the environment variables that mark a process of the run."""
    return {TOKEN: f"{token}.{part}"}


def owned(pid: int, token: str, part: str | None = None) -> psutil.Process | None:
    """Return the process if it is alive and this run, or this part of it, started it, directly or not."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        of_run, _, of_part = process.environ().get(TOKEN, "").partition(".")
    except psutil.Error:
        return None
    return process if of_run == token and part in (None, of_part) else None


def living(token: str, part: str | None = None) -> list[psutil.Process]:
    """Return every live process of the run, or of a part of it."""
    return [process for pid in psutil.pids() if (process := owned(pid, token, part)) is not None]


def end_all(token: str, part: str | None = None) -> list[int]:
    """Kill every process of the run, or of a part of it, until none is left; return those that survived."""
    left: list[int] = []
    empty = 0
    for _ in range(LOOKS_MAX):
        found = living(token, part)
        left = [process.pid for process in found]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        empty = 0 if left else empty + 1
        if empty == LOOKS_EMPTY:
            return []
        if left:
            time.sleep(POLL_S)
    return left


class Guard:
    """Ends every process of the run once `end` is called, or once its creator has ended.

    Args:
        log: File for its error output.
    """

    def __init__(self, token: str, log: Path) -> None:
        with log.open("wb") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.chaos.live.owned"],
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._stdin.write(f"{token}\n".encode())
        self._stdin.flush()

    def end(self) -> None:
        """End all remaining processes of the run, and the guard."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._process.wait(GUARD_ENDS_WITHIN_S)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that everything started is ended; only the main thread can set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _guard() -> None:
    """Wait until the process at the other end of stdin closes it or dies; then end the run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after the run, not with it
    token = sys.stdin.readline().strip()
    if token:
        sys.stdin.read()
        end_all(token)


if __name__ == "__main__":
    _guard()
