"""The memory that this machine gives a worker if no `state_memory` is set.

It is half of the worker's share: the other half is for the interpreter, batches, and the Java process beside it.

I/O: /proc, /sys/fs/cgroup, the limits of this process.
Source: proc_meminfo(5), cgroups(7); PySpark limits the address space of its workers to `spark.executor.pyspark.memory`.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

_UNLIMITED = 1 << 60
_ROOT = Path("/")


def default_state_memory(parallelism: int, container: int | None = None, root: Path = _ROOT) -> int:
    """Return the default budget of one worker, in bytes.

    Args:
        parallelism: Workers of the job; at most as many as there are processors are taken to run on this machine.
        container: Bytes that the executor's container leaves this worker (plan/memory.py), None if there is none.
            YARN need not enforce them by a control group.
    """
    shared = min(_machine(root), _cgroup(root)) // max(1, min(parallelism, os.cpu_count() or 1))
    return min(shared, address_space(), _UNLIMITED if container is None else container) // 2


def address_space() -> int:
    """Return the limit on the address space of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _machine(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _cgroup(root: Path) -> int:
    """Return the least limit on the way from the control group of this process to the top, of version 1 or 2."""
    found = [_UNLIMITED]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):  # inside a container, the group's own path is often not visible
            limit = _text(folder.joinpath(*parts[:depth], name)).strip()
            if limit.isdigit():
                found.append(int(limit))
    return min(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
