"""The driver of a job as recorded in its `live.json`, and whether that process is known to have ended.

A driver that no longer renews `live.json` may be dead, paused or cut off; another machine cannot distinguish these. On
the same machine the system knows whether the process exists, so a command need not wait until the file is stale, or
send requests to a dead driver.
A wrong answer here is never unsafe: only the job log decides which of two drivers may write (PROTOCOL P3, P6).

Invariants
    - Only a process of this machine and this process namespace, or of an earlier boot of it, is reported as gone.
    - A process counts as gone if the system has reused its number, or if it is a zombie that no parent has reaped.

Source: DESIGN section 13 (`live.json`); proc(5).
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from holdfast.model import DriverProcess

_STATE, _BEGAN = 0, 19
"""Positions of `state` and `starttime` in /proc/PID/stat after the command's name, which may hold any character."""


def boot_id() -> str:
    """Return the machine's boot id, empty if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Return an identifier of this machine; machines made from one image may share one half of it, not both."""
    try:
        installed = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        installed = ""
    return hashlib.sha256(f"{installed} {socket.gethostname()}".encode()).hexdigest()[:16]


def myself(owner: str, now_us: int) -> DriverProcess:
    """Return the entry of this process in `live.json`.

    Args:
        owner: The token by which the job log's records name the driver that wrote them.
    """
    pid = os.getpid()
    return DriverProcess(
        host=socket.gethostname(),
        pid=pid,
        at=now_us,
        owner=owner,
        boot_id=boot_id(),
        namespace=_namespace(),
        began=_began(pid),
    )


def is_gone(driver: DriverProcess) -> bool:
    """Return whether the driver is known to have ended; False if this process cannot know."""
    if driver.host != socket.gethostname():
        return False
    if driver.boot_id and boot_id() and driver.boot_id != boot_id():
        return True
    if driver.namespace and driver.namespace != _namespace():
        return False
    began = _began(driver.pid)
    return began is None or (driver.began is not None and driver.began != began)


def is_running(driver: DriverProcess) -> bool:
    """Return whether the driver is known to run; False if this process cannot know."""
    here = (socket.gethostname(), boot_id(), _namespace())
    if (driver.host, driver.boot_id, driver.namespace) != here or driver.began is None:
        return False
    return _began(driver.pid) == driver.began


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> int | None:
    """Return when the process began, in ticks since the boot; None if it is not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in ("Z", "X") else int(fields[_BEGAN])
