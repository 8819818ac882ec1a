"""Processes of this machine: whether one has ended, its end with its parent, signals to one and all its descendants.

Invariant
    - If a process has ended in the meantime, that is not an error, and the signal never reaches another process that
      has its number now.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends; no other process would end it."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before this process asked
        os.kill(os.getpid(), signal.SIGKILL)


def is_gone(process: psutil.Process) -> bool:
    """Return whether the process has ended, including one that waits to be reaped or is being reaped."""
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def signal_all(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a child of this process and to all the child's descendants."""
    if process.poll() is not None:
        return  # reaped: the system may have reused its number
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        for each in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)
