"""Processes of this machine that others started: whether one has gone, and signals to one with all below it.

Invariant
    - A process that went meanwhile is no error; a signal never goes to one that only has its number now.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

import psutil


def is_gone(process: psutil.Process) -> bool:
    """Return whether the process is dead or only waits to be reaped."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def signal_all(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a process that this one started and to everything below it."""
    if process.poll() is not None:
        return  # reaped: its number may be another's
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        for each in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)
