"""What a real run stands on: cluster, source, proxies, observers; and the finding of what a fault strikes.

Invariant
    - `close` ends everything that `open` began, whatever has happened in between.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from holdfast.chaos import strikes
from holdfast.chaos.feeding import Feeder
from holdfast.chaos.findings import Finding
from holdfast.chaos.live_job import LiveJob
from holdfast.chaos.live_kinds import KINDS
from holdfast.chaos.nemesis import Planned
from holdfast.chaos.scenario import Feed, Scenario
from holdfast.chaos.strikes import Strike

DEFAULTS = {"HOLDFAST_RESTART_FAILURES_MAX": "1000000"}
"""Of the job's environment: faults are meant, so their number ends no job."""


class Field:
    """The surroundings of one run."""

    def __init__(self, scenario: Scenario, out: Path) -> None:
        self._scenario, self._out = scenario, out
        self.environment = DEFAULTS | {key: self._filled(text) for key, text in scenario.environment.items()}
        self.error: str | None = None
        self._feeder: Feeder | None = None
        self._command: subprocess.Popen[bytes] | None = None
        self._job: LiveJob | None = None

    def open(self) -> None:
        """Start what the job needs."""
        drive = self._scenario.drive
        if isinstance(drive, Feed):
            source, target = self._filled(drive.source), self._filled(drive.target)
            self._feeder = Feeder(source, target, drive.records_per_second, self._scenario.duration_ms / 1000)

    def job(self, file: Path) -> LiveJob:
        """Return the job, which is to be started."""
        flags = ("--master", self._scenario.platform.name, "--parallelism", str(self._scenario.parallelism))
        self._job = LiveJob(file, self._out, flags, self.environment)
        if self._feeder is not None:
            self._feeder.start()
        return self._job

    def feed(self) -> None:
        """Begin to write the source, if a command does."""
        drive = self._scenario.drive
        if isinstance(drive, tuple):
            assert self._job is not None
            words = [self._filled(word) for word in drive]
            with (self._out / "drive.log").open("wb") as said:
                self._command = subprocess.Popen(
                    words, stdout=said, stderr=subprocess.STDOUT, env=self._job.environment, start_new_session=True
                )

    def release(self) -> bool:
        """The faults are over: let the source come to its end. Returns whether it will be sealed from here."""
        if self._feeder is not None:
            self._feeder.release()
        return self._feeder is not None

    @property
    def driven(self) -> bool:
        """Return whether nothing more is written to the source."""
        return (self._feeder is None or self._feeder.done) and (
            self._command is None or self._command.poll() is not None
        )

    def look(self) -> None:
        """See whether the source is still written."""
        if self._feeder is not None and self._feeder.error is not None:
            self.error = f"the source could not be fed: {self._feeder.error.what}"
        if self._command is not None and self._command.poll() not in (None, 0):
            self.error = f"the command that drives the source ended with status {self._command.poll()}"

    def strike(self, fault: Planned) -> Strike | None:
        """Return the fault for what there is now; None if there is nothing to strike yet."""
        kind = KINDS[fault.kind]
        assert self._job is not None
        return strikes.of_processes(fault, kind.does, self._job.prey(kind.prey))

    def observed(self) -> Iterable[Finding]:
        """Return what observers found."""
        return ()

    def close(self) -> None:
        """End everything."""
        if self._feeder is not None:
            self._feeder.close()
        if self._job is not None:
            self._job.close()
        if self._command is not None:
            self._command.wait()

    def _filled(self, text: str) -> str:
        return os.path.expandvars(text.replace("{out}", str(self._out)))
