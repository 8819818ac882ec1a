"""The execution with resident workers, which stay from the start of the run to its end.

One barrier after another passes through them.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from holdfast.model import WorkerId
from holdfast.runtime.driver.state import Site
from holdfast.runtime.execution.executing import Ports, RunOutcome
from holdfast.runtime.execution.places import Started, WorkerPlace
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.execution.running import DriverRun
from holdfast.runtime.job.live import Status
from holdfast.runtime.processes.control import ControlServer
from holdfast.runtime.processes.detour import detour_of
from holdfast.runtime.processes.host import WorkerTask
from holdfast.runtime.processes.tls import is_wanted, make_credentials
from holdfast.runtime.wire import messages as m

REPORTED_WITHIN_S = 0.5
"""How long the end of a process is held back: its stream ends too, with a report on its last call."""
ZOMBIE_GRACE_S = 30.0
"""How long the process of a silent worker is left alone before it is cancelled."""


class Resident:
    """Carries out the plan with workers that stay for the whole run; see runtime/execution/executing.py.

    Args:
        place: Where their processes run.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place

    def run(self, prepared: Prepared, ports: Ports) -> RunOutcome:
        """See Execution.run."""
        run_host = self._place.start(prepared, ports)
        prepared = replace(prepared, settings=run_host.settings)
        deadline = max(30.0, run_host.settings.checkpoint_every_ms / 100)
        return DriverRun(
            prepared, ports, "continuous", run_host.host, lambda run: _Workers(run, run_host), deadline
        ).run()


class _Workers:
    """The workers of one run; see running.Hosting."""

    def __init__(self, run: DriverRun, run_host: Started) -> None:
        self._run, prepared_run = run, run.prepared
        credentials = make_credentials(is_wanted(prepared_run.settings.tls, run_host.host))
        self._control = ControlServer(run_host.host, credentials, self._received, self._stream_closed)
        task = WorkerTask(
            plan=prepared_run.plan,
            root=prepared_run.folder.root,
            driver=self._control.address,
            credentials=credentials,
            settings=prepared_run.settings,
            detour=detour_of(os.environ),
            container=run_host.container,
        )
        self._processes = run_host.processes(task, self._launch_ended)
        self._zombies: list[tuple[float, int]] = []
        self._ended: list[tuple[float, int, str]] = []
        """Launches whose process has ended unexpectedly, and when the driver's loop is informed."""
        self._warmed = 0

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        self._control.send(worker, message)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        self._processes.launch(number, avoid)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        self._control.dismiss(worker)
        self._zombies.append((self._run.clock.monotonic() + ZOMBIE_GRACE_S, launch))

    def cancel(self, launch: int) -> None:
        self._processes.cancel(launch)

    def turn(self) -> None:
        now = self._run.clock.monotonic()
        ended = [each for each in self._ended if each[0] <= now or not self._awaits_report(each[1])]
        self._ended = [each for each in self._ended if each not in ended]
        for _, launch, error in ended:
            self._run.loop.launch_ended(launch, error)
        due = [launch for at, launch in self._zombies if at <= now]
        self._zombies = [(at, launch) for at, launch in self._zombies if at > now]
        for launch in due:
            self._processes.cancel(launch)

    def published(self, status: Status) -> None:
        if status.state == "running" and status.generation is not None and self._warmed != status.generation:
            self._warmed = status.generation
            settings = self._run.prepared.settings
            self._processes.warm_up(settings.parallelism + settings.standbys)

    def close(self, *, hurry: bool) -> None:
        self._control.close()
        self._processes.close(hurry=hurry)

    # Events from other threads

    def _received(self, message: m.FromWorker) -> None:
        self._run.mailbox.post(lambda: self._run.loop.received(message))

    def _stream_closed(self, worker: WorkerId, why: str) -> None:
        self._run.mailbox.post(lambda: self._run.loop.stream_closed(worker, why))

    def _launch_ended(self, number: int, error: str | None) -> None:
        self._run.mailbox.post(lambda: self._hold_back(number, error))

    def _hold_back(self, number: int, error: str | None) -> None:
        if error is None or not self._awaits_report(number):
            self._run.loop.launch_ended(number, error)
        else:
            self._ended.append((self._run.clock.monotonic() + REPORTED_WITHIN_S, number, error))

    def _awaits_report(self, number: int) -> bool:
        """Return whether an ended launch's worker is not lost yet: its companion may still report the last call."""
        return any(hosted.launch == number for hosted in self._run.loop.state.workers.values())
