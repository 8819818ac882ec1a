"""CPU seconds of this process and of everything that it started, including what has ended.

Where this process may create a control group, the kernel counts: all that a member starts belongs to the group, even if
its parent was killed. Elsewhere the clock adds up this process, the children that it has waited for, and all living
descendants; it misses processes whose parent was killed, so it may show too little, never too much.

I/O: /proc, /sys/fs/cgroup.
Source: cgroups(7), getrusage(2), proc_pid_stat(5).
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PREFIX = "holdfast-tests-"
_ADDITIONS = 1_000_000
_ADDITIONS_S = 0.025
"""What they take on the machine whose seconds are in the table of costs, while nothing else runs there."""


class CpuClock:
    """A clock that starts now; `close` gives the control group back.

    Args:
        root: Where proc and sys are mounted.
        groups: Whether a control group may be used.
    """

    def __init__(self, root: Path = Path("/"), groups: bool = True) -> None:
        self._root = root
        self._group: Path | None = None
        self._read: Callable[[], float] = lambda: _rusage_s() + _descendants_s(root)
        if groups:
            self._enter_group()

    @property
    def counts_orphans(self) -> bool:
        """Whether processes count whose parent was killed."""
        return self._group is not None

    def seconds(self) -> float:
        """Return how much was used until now; only differences have a meaning."""
        return self._read()

    def close(self) -> None:
        """Return to the group of before. What still runs stays in the group, and the next clock removes that."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()
            self._group = None

    def _enter_group(self) -> None:
        for parent, reads in _groups(self._root):
            group = parent / f"{_PREFIX}{os.getpid()}"
            try:
                for old in parent.glob(f"{_PREFIX}*"):
                    with contextlib.suppress(OSError):  # a process is in there
                        old.rmdir()
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                reads(group)
            except (OSError, ValueError, IndexError):
                with contextlib.suppress(OSError):
                    group.rmdir()
                continue
            self._group, self._read = group, partial(reads, group)
            return


def _groups(root: Path) -> Iterator[tuple[Path, Callable[[Path], float]]]:
    """Yield the groups of this process that can count, each with how to read a count."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                for mounted in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                    if (root / mounted / "cgroup.procs").exists() and not (root / mounted / "tasks").exists():
                        yield root / mounted / path.lstrip("/"), _version_2_s
            elif "cpuacct" in controllers.split(","):
                yield root / "sys/fs/cgroup/cpuacct" / path.lstrip("/"), _version_1_s


def _version_1_s(group: Path) -> float:
    return int((group / "cpuacct.usage").read_text()) / 1e9


def _version_2_s(group: Path) -> float:
    return int((group / "cpu.stat").read_text().split("usage_usec ")[1].split()[0]) / 1e6


def _rusage_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _descendants_s(root: Path) -> float:
    return sum(tree_s(child, root) for child in _children(root, os.getpid()))


def slowness() -> float:
    """Return how many times the CPU seconds of the table this machine needs now: it is slower, or others share it."""
    return statistics.median(_additions_s() for _ in range(5)) / _ADDITIONS_S


def _additions_s() -> float:
    start_s, total = time.process_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return time.process_time() - start_s


def tree_s(pid: int, root: Path = Path("/")) -> float:
    """Return what a process and its living descendants have used, with the children that they have waited for."""
    total = 0.0
    with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
        stat = (root / f"proc/{pid}/stat").read_text()
        # After the name, which may hold anything: field 14 of the manual page is the twelfth.
        total += sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICKS_PER_S
    return total + sum(tree_s(child, root) for child in _children(root, pid))


def _children(root: Path, pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (root / f"proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found
