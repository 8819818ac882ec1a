"""The memory for state on this machine: `state_memory`, and a worker's share if that is not set.

The default is half of the worker's share: the other half is for the interpreter, batches, and the Java process beside
it.

I/O: /proc, /sys/fs/cgroup, the limits of this process.
Source: proc_meminfo(5), cgroups(7); PySpark limits the address space of its workers to `spark.executor.pyspark.memory`.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from holdfast.runtime.config.settings import MICROBATCH, Settings
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget, channel_bytes, check_container, container_share, least

_UNLIMITED = 1 << 60
_ROOT = Path("/")


def container_of(plan: Plan, settings: Settings, conf: Mapping[str, str]) -> int | None:
    """Return the bytes that the executor's container leaves a worker; None: there is none.

    Args:
        conf: Spark's configuration.

    Raises:
        ConfigError: the executors' containers leave too little.
    """
    container = container_share(conf, settings.parallelism + settings.standbys)
    check_container(plan, settings.state_memory, container)
    return None if container is None else container.size


def budget_of(plan: Plan, settings: Settings, container: int | None = None) -> Budget:
    """Return the memory that the state of a worker, or of a task, may use on this machine.

    Args:
        container: See default_state_memory.
    """
    state_memory, workers = settings.state_memory, settings.parallelism + settings.standbys
    each = 0 if settings.mode == MICROBATCH else settings.channel_bytes_max  # tasks have no channels
    channels = channel_bytes(plan, settings.parallelism, each)
    default = default_state_memory(workers, container, _ROOT, settings.local == "true")
    total = state_memory or max(default, least(plan, 1, 0))
    # Without a setting the share of channels is a guess too: a wide job rarely fills them all.
    return Budget(total, channels if state_memory else min(channels, total // 4))


def default_state_memory(
    workers: int, container: int | None = None, root: Path = _ROOT, one_machine: bool = False
) -> int:
    """Return the default budget of one worker, in bytes.

    Args:
        workers: Workers of the job; at most as many as there are processors are taken to run on this machine.
        container: Bytes that the executor's container leaves this worker (plan/memory.py), None if there is none.
            YARN need not enforce them by a control group.
        one_machine: All workers run on this machine, also if it has fewer processors.
    """
    here = workers if one_machine else min(workers, os.cpu_count() or 1)
    shared = min(_machine(root), _cgroup(root)) // max(1, here)
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
    limits = [_UNLIMITED]
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
                limits.append(int(limit))
    return min(limits)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
