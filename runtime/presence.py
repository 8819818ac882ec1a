"""Who drives a job, as its `live.json` says, and whether that process is known to have ended.

A driver that renews `live.json` no more may be dead, asleep or cut off; from afar nobody can tell. On the same machine
the system knows: then nobody has to wait until the file is stale, and nobody asks the dead. To be wrong here is rude,
not unsafe: whoever acts in a driver's place is kept apart from it by the job log alone (PROTOCOL P3, P6).

Invariants
    - "Gone" is said only of a process of this machine and this process namespace, or of an earlier boot of it.
    - A number that the system has given to another process since counts as gone, a dead child nobody waited for too.

Source: DESIGN section 13 (`live.json`); proc(5).
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STATE, _BEGAN = 0, 19
"""Places in /proc/PID/stat behind the command's name, which may hold anything: `state`, `starttime`."""


def boot_id() -> str:
    """Return the machine's boot id, empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Return what this machine is known by; machines made from one image may share one half of it, not both."""
    try:
        installed = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        installed = ""
    return hashlib.sha256(f"{installed} {socket.gethostname()}".encode()).hexdigest()[:16]


def myself(owner: str, now_us: int) -> dict[str, Any]:
    """Return how this process shows itself in `live.json`.

    Args:
        owner: The token in the job log's records that says which driver wrote them.
    """
    pid = os.getpid()
    return {
        "host": socket.gethostname(), "pid": pid, "seen_ms": 0, "at": now_us, "owner": owner, "boot_id": boot_id(),
        "namespace": _namespace(), "began": _began(pid),
    }  # fmt: skip


def is_gone(driver: Mapping[str, Any]) -> bool:
    """Return whether the driver is known to have ended; False if that cannot be told from here."""
    if driver["host"] != socket.gethostname():
        return False
    if driver.get("boot_id") and boot_id() and driver["boot_id"] != boot_id():
        return True
    if driver.get("namespace") and driver["namespace"] != _namespace():
        return False
    began, said = _began(driver["pid"]), driver.get("began")
    return began is None or (said is not None and said != began)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> int | None:
    """Return when the process began, in ticks since the boot; None if there is none that still runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in ("Z", "X") else int(fields[_BEGAN])
