"""Signals to a process and all below it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from patience import WALL_S

from holdfast.runtime.wire.processes import is_gone, signal_all

CHILD = "import sys; sys.stdin.read()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for its child, whose number it has printed."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


class TestSignals:
    def test_reach_everything_below_the_process(self, parent: subprocess.Popen[str]) -> None:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        ends = os.pidfd_open(child.pid)
        signal_all(parent, signal.SIGKILL)
        assert parent.wait(WALL_S) == -signal.SIGKILL
        assert select.select([ends], [], [], WALL_S)[0] == [ends]
        os.close(ends)
        assert is_gone(child)

    def test_to_an_ended_process_reach_no_other_process(self, parent: subprocess.Popen[str]) -> None:
        parent.kill()
        parent.wait(WALL_S)
        signal_all(parent, signal.SIGKILL)


class TestGone:
    def test_includes_a_process_that_waits_to_be_reaped(self, parent: subprocess.Popen[str]) -> None:
        process = psutil.Process(parent.pid)
        assert not is_gone(process)
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(process)
