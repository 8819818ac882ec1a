"""The surroundings of a real run: cluster, source, proxies, observers; it also finds the victims of faults.

Invariants
    - `close` ends everything that was started, whatever happened in between and whichever of its steps fails.
    - No part outlives this process, however the process ends.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from holdfast.chaos.judge.findings import Finding
from holdfast.chaos.judge.kinds import KINDS, needs_toxiproxy
from holdfast.chaos.live import owned
from holdfast.chaos.live.cluster import LiveCluster
from holdfast.chaos.live.faults import strikes
from holdfast.chaos.live.faults.damage import Flip
from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.chaos.live.faults.proxy import Toxiproxy, of_connections
from holdfast.chaos.live.faults.scenario import PROCESSES, Feed, LiveScenario
from holdfast.chaos.live.faults.strikes import LiveStrike
from holdfast.chaos.live.feeding import Feeder
from holdfast.chaos.live.folders import filled, keeps_temporary_below
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.observer import Observer
from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.processes.detour import VARIABLE as DETOUR

DEFAULTS = {"HOLDFAST_RESTART_FAILURES_MAX": "1000000"}
"""Settings for the job's environment: faults are intended, so their number must not end the job."""


class Testbed:
    """The surroundings of one run."""

    __test__ = False  # the name begins like those of test classes

    def __init__(self, scenario: LiveScenario, out: Path) -> None:
        self._scenario, self._out = scenario, out
        self.token = uuid.uuid4().hex
        given = {key: self._filled(text) for key, text in scenario.environment.items()}
        self.environment = DEFAULTS | given | owned.marks(self.token, owned.TOOLS)
        self.error: str | None = None
        self._feeder: Feeder | None = None
        self._command: subprocess.Popen[bytes] | None = None
        self._command_ended = False
        """Whether this object ended it."""
        self._job: LiveJob | None = None
        self._toxiproxy: Toxiproxy | None = None
        self._observer: Observer | None = None
        self._cluster: LiveCluster | None = None
        self.closing = ExitStack()
        """The steps of `close`, newest first; all are taken, even if some fail."""

    def open(self) -> None:
        """Start everything that the job needs."""
        self.closing.callback(owned.Guard(self.token, self._out / "guard.log").end)
        self.closing.callback(self._end_all)
        platform, drive = self._scenario.platform, self._scenario.drive
        if isinstance(drive, Feed):  # first, so that a missing log is noticed before anything is started
            self._prepare(drive.prepare)
            source, target = self._filled(drive.source), self._filled(drive.target)
            self._feeder = Feeder(source, target, drive.records_per_second, self._scenario.duration_ms / 1000)
            self.closing.callback(self._feeder.close)
        if needs_toxiproxy(self._scenario.rates):
            self._toxiproxy = Toxiproxy(self._out / "toxiproxy.log", owned.marks(self.token, owned.TOOLS))
            self.closing.callback(self._toxiproxy.close)
            self.environment[DETOUR] = self._toxiproxy.address
        if platform.hosts:
            inherited = keeps_temporary_below(self._out) | self.environment | owned.marks(self.token)
            self._cluster = LiveCluster(self._out / "cluster", platform.hosts, platform.cores, inherited)
            self.closing.callback(self._cluster.close)
            self._cluster.start()
            self.environment |= self._cluster.environment

    def job(self, file: Path) -> LiveJob:
        """Return the job, not yet started."""
        platform = self._scenario.platform.name
        master = platform if self._cluster is None else self._cluster.url
        place = ("--local",) if platform == PROCESSES else ("--master", master)
        flags = (*place, "--parallelism", str(self._scenario.parallelism))
        targets = [replace(each, path=self._filled(each.path)) for each in self._scenario.observe]
        self._observer = Observer(self._out / "root", targets) if targets else None
        self._job = LiveJob(file, self._out, flags, self.environment, self.token)
        self.closing.callback(self._job.close)
        if self._observer is not None:
            self._observer.start()
            self.closing.callback(self._observer.close)
        if self._feeder is not None:
            self._feeder.start()
        return self._job

    def feed(self) -> None:
        """Start the command that writes the source, if there is one."""
        drive = self._scenario.drive
        if isinstance(drive, tuple):
            assert self._job is not None
            words = [self._filled(word) for word in drive]
            with (self._out / "drive.log").open("wb") as log_file:
                environment = self._job.environment | owned.marks(self.token, owned.SOURCE)
                try:
                    self._command = subprocess.Popen(
                        words, stdout=log_file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                    )
                except OSError as error:
                    self.error = f"the command that drives the source cannot be run: {error}"

    def release(self) -> bool:
        """The faults are over: let the source end. Returns whether this process will seal it."""
        if self._feeder is not None:
            self._feeder.release()
        return self._feeder is not None

    def end_command(self) -> None:
        """End the command that writes the source, with its children: the input must not change during a check."""
        if self._command is not None:
            self._command_ended = True
            owned.end_all(self.token, owned.SOURCE)

    @property
    def driven(self) -> bool:
        """Return whether the source is complete."""
        return (self._feeder is None or self._feeder.done) and (
            self._command is None or self._command.poll() is not None
        )

    def look(self) -> None:
        """Set `error` if writing the source has failed."""
        if self._feeder is not None and self._feeder.error is not None:
            self.error = f"the source could not be fed: {self._feeder.error.what}"
        if self._command is not None and not self._command_ended and self._command.poll() not in (None, 0):
            self.error = f"the command that drives the source ended with status {self._command.poll()}"

    def strike(self, fault: Planned) -> LiveStrike | None:
        """Return the fault, bound to a victim that exists now; None if there is none yet."""
        kind = KINDS[fault.kind]
        job = self._job
        assert job is not None
        if kind.plane is not None:
            assert self._toxiproxy is not None
            return of_connections(fault, kind, self._toxiproxy, job.victim("worker"), job.ours)
        if kind.does == "corrupt":
            return self._flip(fault, kill=kind.victim == "driver")
        if kind.victim == "host":
            assert self._cluster is not None
            return strikes.of_processes(fault, kind.does, self._cluster.hosts(), job.written, self._cluster.revive)
        return strikes.of_processes(fault, kind.does, job.victim(kind.victim), job.written)

    def left(self) -> list[int]:
        """Return the live processes of the job, without the cluster's daemons."""
        assert self._job is not None
        daemons = set() if self._cluster is None else self._cluster.daemons()
        return [process.pid for process in self._job.all() if process.pid not in daemons]

    def observed(self) -> Iterable[Finding]:
        """End the observer; return its findings."""
        return [] if self._observer is None else self._observer.close()

    def unseen(self) -> list[str]:
        """Return the targets that were to be observed and never appeared."""
        return [] if self._observer is None else self._observer.unseen()

    def close(self) -> None:
        """End everything."""
        self.closing.close()

    def _filled(self, text: str) -> str:
        return filled(text, str(self._out))

    def _end_all(self) -> None:
        left = owned.end_all(self.token)
        if self._command is not None:
            self._command.poll()
        if left:
            raise HoldfastError(
                f"the processes {left} of the run did not end",
                not_done="they still run",
                next_step="find out what they wait for: ps -o pid,stat,wchan,args",
            )

    def _flip(self, fault: Planned, kill: bool) -> LiveStrike | None:
        assert self._job is not None
        folder, drivers = self._job.folder(), self._job.victim("driver")
        return None if folder is None or not drivers else Flip(folder, fault.rank, drivers[0] if kill else None)

    def _prepare(self, command: tuple[str, ...]) -> None:
        if not command:
            return
        words = [self._filled(word) for word in command]
        environment = {**os.environ, **self.environment, **owned.marks(self.token, owned.SOURCE)}
        try:
            process = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        except OSError as error:
            raise ConfigError(
                f"the command that prepares the source cannot be run: {error}",
                not_done="the job was not started",
                next_step="run it by hand: " + " ".join(command),
            ) from error
        if process.returncode != 0:
            said = process.stderr[-500:].strip()
            raise ConfigError(
                f"the command that prepares the source ended with status {process.returncode}: {said}",
                not_done="the job was not started",
                next_step="run it by hand: " + " ".join(command),
            )
