"""Runs a `holdfast` command and kills it with SIGKILL at its k-th step that changes something.

A step is a file opened for writing, linked, renamed or removed below a folder, or an SQL statement that begins. Python
itself reports them (audit events, the trace of a SQLite connection), so the command's own code is unchanged.

    python killed_at.py K FOLDER ARGUMENT...        K = 0 kills nothing; the last line of stderr counts the steps
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

CONNECT = sqlite3.connect
CHANGES = ("os.link", "os.rename", "os.remove")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    """Counts steps, and ends the process at one of them."""

    def __init__(self, kill_at: int, folder: Path) -> None:
        self.done, self._kill_at, self._folder = 0, kill_at, str(folder)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event before Python acts on it."""
        if event == "open":
            path, _, flags = arguments
            changes = flags & WRITES and self._inside(path)
        else:
            changes = event in CHANGES and any(self._inside(path) for path in arguments[:2])
        if changes:
            self._take()

    def connected(self, *arguments: Any, **named: Any) -> sqlite3.Connection:
        """Open a database that reports its statements."""
        connection: sqlite3.Connection = CONNECT(*arguments, **named)
        connection.set_trace_callback(lambda _: self._take())
        return connection

    def _inside(self, path: Any) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(self._folder)

    def _take(self) -> None:
        self.done += 1
        if self.done == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the command; return its exit status."""
    from holdfast.runtime.cli.main import main as holdfast

    steps = Steps(int(sys.argv[1]), Path(sys.argv[2]))
    sys.addaudithook(steps.audit)
    sqlite3.connect = steps.connected  # type: ignore[assignment]
    status = holdfast(sys.argv[3:])
    print(f"{steps.done} steps", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
