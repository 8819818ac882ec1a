"""Limits of waits, in CPU seconds of the process that is waited for: a busy machine makes it slow, never wrong.

What loops for ever reaches its limit soon. What waits for ever uses almost nothing, so there is a limit of time as
well, so long that no load of the machine explains it.

I/O: /proc.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from cpu_clock import tree_s

CPU_S, WALL_S = 240.0, 900.0
_POLL_S = 0.2


class Patience:
    """Begins now, and is over when a process, with its descendants, has used too much.

    Args:
        process: Its id.
        cpu_s: CPU seconds that it may use from now on.
        wall_s: Seconds after which it is over in any case.
    """

    def __init__(self, process: int, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self._process, self._limit_s = process, tree_s(process) + cpu_s
        self._ends_at = time.monotonic() + wall_s

    @property
    def over(self) -> bool:
        """Whether the limit is reached."""
        return tree_s(self._process) > self._limit_s or time.monotonic() > self._ends_at


def wait_for_end(process: subprocess.Popen[Any], what: str, patience: Patience | None = None) -> int:
    """Wait until a process has ended; return its exit status."""
    patience = patience or Patience(process.pid)
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            assert not patience.over, f"waited for {what}"


def run(command: list[str], folder: Path, what: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit status, and what it wrote to stdout and stderr."""
    out, errors = folder / "said-out.txt", folder / "said-errors.txt"
    with out.open("w") as to_out, errors.open("w") as to_errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=to_out, stderr=to_errors)
        try:
            status = wait_for_end(process, what)
        finally:
            process.kill()
            process.wait()
    return status, out.read_text(), errors.read_text()
