"""Limits of waits, in CPU seconds of the process that is waited for: a busy machine makes it slow, never wrong.

What loops for ever reaches its limit soon. What waits for ever uses almost nothing, so there is a limit of time as
well, so long that no load of the machine explains it. It is the only one for threads and servers, whose CPU time says
nothing: pytest ends a test of theirs before, with all stacks, and this limit ends what the test then still waits for.

I/O: /proc.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from cpu_clock import tree_s

CPU_S, WALL_S = 240.0, 900.0
_POLL_S, _LOOK_S = 0.2, 0.02


class Patience:
    """Begins now, and is over when a process, with its descendants, has used too much.

    Args:
        process: Its id; None: what is waited for is no process, so time alone counts.
        cpu_s: CPU seconds that it may use from now on.
        wall_s: Seconds after which it is over in any case.
    """

    def __init__(self, process: int | None, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self._process, self._limit_s = process, 0.0 if process is None else tree_s(process) + cpu_s
        self._ends_at = time.monotonic() + wall_s

    @property
    def over(self) -> bool:
        """Whether the limit is reached."""
        used_up = self._process is not None and tree_s(self._process) > self._limit_s
        return used_up or time.monotonic() > self._ends_at


def wait(found: Any, what: str, process: int | None = None, within_s: float = WALL_S) -> Any:
    """Poll until something is found; return it.

    Args:
        found: Called without arguments.
        process: The id of the process that has to bring it about, if it is one.
        within_s: A limit that is itself the subject: later it would come true for another reason.
    """
    patience, pause = Patience(process, CPU_S, within_s), threading.Event()
    while not (value := found()):
        ended = process is not None and not _runs(process)
        if ended and (value := found()):
            return value
        assert not ended, f"waited for {what}, but its process has ended"
        assert not patience.over, f"waited for {what}"
        pause.wait(_LOOK_S)
    return value


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_for_end(process: subprocess.Popen[Any], what: str, patience: Patience | None = None) -> int:
    """Wait until a process has ended; return its exit status."""
    patience = patience or Patience(process.pid)
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            assert not patience.over, f"waited for {what}"


def run(
    command: list[str], folder: Path, what: str, environment: dict[str, str] | None = None, **options: Any
) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit status, and what it wrote to stdout and stderr.

    Args:
        environment: None: that of this process.
        options: Of `subprocess.Popen`.
    """
    out, errors = folder / "said-out.txt", folder / "said-errors.txt"
    with out.open("w") as to_out, errors.open("w") as to_errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=to_out, stderr=to_errors, **options)
        try:
            status = wait_for_end(process, what)
        finally:
            process.kill()
            process.wait()
    return status, out.read_text(), errors.read_text()
