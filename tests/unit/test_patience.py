"""Limits of waits by the CPU time of the process that is waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from patience import Patience, wait, wait_for_end

LOOPS = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (5, 5))\nwhile True: pass"
"""It ends by itself if the test leaves it behind."""
WAITS = "import sys; sys.stdin.read()"


@contextmanager
def started(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class TestAWait:
    def test_ends_when_the_process_has_used_its_cpu_seconds(self) -> None:
        with started(LOOPS) as process, pytest.raises(AssertionError, match="waited for a loop"):
            wait_for_end(process, "a loop", Patience(process.pid, cpu_s=0.3))

    def test_counts_processes_below_it(self) -> None:
        tied = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", LOOPS)
        code = f"import subprocess; subprocess.run({tied!r})"
        with started(code) as process, pytest.raises(AssertionError, match="waited for a loop"):
            wait_for_end(process, "a loop", Patience(process.pid, cpu_s=0.5))

    def test_a_wait_for_an_idle_process_ends_by_elapsed_time_alone(self) -> None:
        with started(WAITS) as process:
            assert Patience(process.pid, cpu_s=1.0, wall_s=0.0).over
            assert not Patience(process.pid, cpu_s=1.0).over

    def test_returns_what_was_found(self) -> None:
        answers = iter([None, 0, "", "found"])
        assert wait(lambda: next(answers), "an answer") == "found"

    def test_for_what_a_process_does_ends_with_it(self) -> None:
        with started("pass") as process, pytest.raises(AssertionError, match="waited for a file, but its process has"):
            wait(lambda: False, "a file", process.pid)

    def test_for_what_a_process_does_ends_when_it_has_used_its_cpu_seconds(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("patience.CPU_S", 0.3)
        with started(LOOPS) as process, pytest.raises(AssertionError, match="waited for a file$"):
            wait(lambda: False, "a file", process.pid)

    def test_returns_the_exit_status(self) -> None:
        with started("raise SystemExit(3)") as process:
            assert wait_for_end(process, "an end") == 3
