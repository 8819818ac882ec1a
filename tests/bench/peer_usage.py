"""What a command takes, with all processes that it starts: time, processor time, memory. One ruler for every engine.

The processes are those of a session of the command's own and all below them, such as a JVM with a session of its own,
found in /proc five times a second. What a process uses
between the last look at it and its end is missed, as is one that lives for less than that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import NamedTuple

LOOK_EVERY_S = 0.2
TICKS_PER_S, PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """The resources of a session.

    Args:
        began_at: When the command was started, in seconds since 1970.
    """

    began_at: float
    ended_at: float = 0.0
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of a time in seconds since 1970 and the processor seconds that all processes had used by then."""
    peak_bytes: int = 0
    """The largest sum of resident memory; what processes share counts in each of them."""
    _cpu_s: dict[int, float] = field(default_factory=dict)

    def sample(self, session: int) -> None:
        """Look at the processes of a session."""
        resident = 0
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            if (found := _stat(pid)) is not None and (found.session == session or found.parent in self._cpu_s):
                self._cpu_s[pid] = max(self._cpu_s.get(pid, 0.0), found.cpu_s)
                resident += found.resident_bytes
        self.samples.append((time.time(), sum(self._cpu_s.values())))
        self.peak_bytes = max(self.peak_bytes, resident)

    @property
    def cpu_s(self) -> float:
        """Processor seconds in all."""
        return self.samples[-1][1]

    def cpu_s_after(self, at: float) -> float:
        """Return the processor seconds that were used after a moment, in seconds since 1970."""
        before = [(0.0, 0.0), *((each, used) for each, used in self.samples if each <= at)]
        return self.cpu_s - before[-1][1]


def used_by(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    timeout_s: float,
    look: Callable[[], None] = lambda: None,
) -> Usage:
    """Run a command to its end.

    Args:
        folder: Where it runs.
        environment: Variables besides those of this process. BENCH_T0 is set to the time of the start.
        output: The file that takes what it prints.
        look: Called after each look at the processes.

    Raises:
        AssertionError: it failed, or did not end in time; its processes have ended.
    """
    usage, pause = Usage(time.time()), Event()
    variables = {**os.environ, **environment, "BENCH_T0": str(usage.began_at)}
    with output.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                assert time.time() - usage.began_at < timeout_s, f"{command} has run for {timeout_s} s"
                usage.sample(process.pid)
                look()
                pause.wait(LOOK_EVERY_S)
            usage.ended_at = time.time()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, f"{command} ended with {process.returncode}: {output.read_text()[-3_000:]}"
    return usage


class _Stat(NamedTuple):
    parent: int
    session: int
    cpu_s: float
    resident_bytes: int


def _stat(pid: int) -> _Stat | None:
    """Return what a process uses; None for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    used_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return _Stat(int(fields[1]), int(fields[3]), used_s, int(fields[21]) * PAGE_BYTES)
