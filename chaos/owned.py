"""What a run has started: known by a token in its environment, and ended to the last process, whatever ends the run.

Whatever a run starts, directly or through Spark, inherits the token. A process is signalled only if it shows it: it was
started by this run, however its parents have changed since. A guard, a process of its own session, hears when the run
is over or its process is gone, and ends what is left: of a run that is killed nothing stays behind.

Invariants
    - No signal goes to a process without the token of the run, nor to one that took over a process id.
    - The guard is there before anything else that a run starts, and after everything else.

A process that somebody starts with a cleared environment is not known as the run's. The guard loads nothing but psutil.
Source: docs/design/0016-live-chaos.md.
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
"""Parts of a run: what belongs to the job, what writes its source, what the harness works with."""
LOOKS_MAX = 200
LOOKS_EMPTY = 2
"""So many looks in a row have to find nothing: one may miss what a process has started just before it ended."""
POLL_S = 0.05
GUARD_ENDS_WITHIN_S = 60.0


def marks(token: str, part: str = JOB) -> dict[str, str]:
    """Return what a process of the run has in its environment."""
    return {TOKEN: f"{token}.{part}"}


def owned(pid: int, token: str, part: str | None = None) -> psutil.Process | None:
    """Return the process if it lives and this run started it, directly or not; with a part: for that one."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        of_run, _, of_part = process.environ().get(TOKEN, "").partition(".")
    except psutil.Error:
        return None
    return process if of_run == token and part in (None, of_part) else None


def living(token: str, part: str | None = None) -> list[psutil.Process]:
    """Return every living process of the run, or of a part of it."""
    return [process for pid in psutil.pids() if (process := owned(pid, token, part)) is not None]


def end_all(token: str, part: str | None = None) -> list[int]:
    """Kill every process of the run, or of a part of it, until there is none; return those that would not go."""
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
    """Ends every process of the run once `end` is called, or the process that made it is gone.

    Args:
        log: File for what it says if it fails.
    """

    def __init__(self, token: str, log: Path) -> None:
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.chaos.owned"], stdin=subprocess.PIPE, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._stdin.write(f"{token}\n".encode())
        self._stdin.flush()

    def end(self) -> None:
        """End what is left of the run, and the guard."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._process.wait(GUARD_ENDS_WITHIN_S)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM meanwhile do what Ctrl-C does, so that what was begun is ended; only a main thread can ask for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _guard() -> None:
    """Wait until whoever holds the other end of stdin has closed it, or has died; then end the run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after the run, not with it
    token = sys.stdin.readline().strip()
    if token:
        sys.stdin.read()
        end_all(token)


if __name__ == "__main__":
    _guard()
