"""`holdfast capture` as a process, and the events that it reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patience import WALL_S, wait_for_end


class CaptureProcess:
    """A process that captures the source of a job.

    Args:
        folder: Where it runs.
        job: The file of the job.
        environment: Further environment variables.
    """

    def __init__(self, folder: Path, job: Path, **environment: str) -> None:
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "capture", str(job), "--json"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)

    def event(self, *kinds: str) -> dict[str, Any]:
        """Return the next event of one of these kinds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] in kinds:
                return found
        raise AssertionError("the process ended early")

    def let_run(self, seconds: float) -> None:
        """Let it run for some time, in which it must not end."""
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the process ended early: {self.process.wait(seconds)}")

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        assert wait_for_end(self.process, "a killed process") == -signal.SIGKILL

    def stop(self) -> dict[str, Any]:
        """Stop it as a service manager does; return its last event."""
        self.process.send_signal(signal.SIGTERM)
        last = self.event("stopped")
        assert wait_for_end(self.process, "a stopped process") == 0
        return last

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WALL_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def capturing(folder: Path, job: Path, **environment: str) -> Iterator[CaptureProcess]:
    """Capture until the block ends."""
    process = CaptureProcess(folder, job, **environment)
    try:
        yield process
    finally:
        process.close()
