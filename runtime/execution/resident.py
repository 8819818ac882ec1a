"""The execution with resident workers, which stay in Spark from the start of the run to its end.

One barrier after another passes through them.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from pyspark import SparkContext

from holdfast.model import WorkerId
from holdfast.runtime.driver.state import Site
from holdfast.runtime.execution.executing import Outcome, Ports
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.execution.running import Run
from holdfast.runtime.job.live import Status
from holdfast.runtime.processes.control import ControlServer
from holdfast.runtime.processes.detour import detour_of
from holdfast.runtime.processes.host import WorkerTask
from holdfast.runtime.processes.memory import MemorySettings, memory_settings
from holdfast.runtime.processes.tls import is_wanted, make_credentials
from holdfast.runtime.spark.launch import SparkHost, check_slots, driver_host, start_context
from holdfast.runtime.wire import messages as m

ZOMBIE_GRACE_S = 30.0
"""How long a silent worker's Spark task is left alone before it is cancelled."""


class Resident:
    """Carries out the plan with workers that stay for the whole run; see runtime/execution/executing.py."""

    def run(self, prepared: Prepared, ports: Ports) -> Outcome:
        """See Execution.run."""
        settings = prepared.settings
        ports.note("starting Spark")
        context = start_context(prepared.plan.app, settings.master, settings.parallelism + settings.standbys)
        standbys = check_slots(context, settings.parallelism, settings.standbys, ports.note)
        if standbys < settings.standbys:
            ports.note(
                f"{settings.standbys} standbys were requested, and Spark has free slots for {standbys}; the run starts "
                "with these. For all of them, give Spark more cores"
            )
            settings = replace(settings, standbys=standbys)
            prepared = replace(prepared, settings=settings)
        conf = dict(context.getConf().getAll())
        memory = memory_settings(prepared.plan, settings.state_memory, settings.parallelism, conf, standbys)
        host, deadline = driver_host(context), max(30.0, settings.checkpoint_every_ms / 100)
        return Run(prepared, ports, "continuous", host, lambda run: _Workers(run, context, memory), deadline).run()


class _Workers:
    """The workers of one run; see running.Hosting."""

    def __init__(self, run: Run, context: SparkContext, memory: MemorySettings) -> None:
        self._run, prepared = run, run.prepared
        host = driver_host(context)
        credentials = make_credentials(is_wanted(prepared.settings.tls, host))
        self._control = ControlServer(host, credentials, self._received, self._stream_closed)
        settings = prepared.settings
        rate = settings.max_records_per_second
        task = WorkerTask(
            prepared.plan,
            prepared.root,
            self._control.address,
            credentials,
            settings.heartbeat_ms / 1000,
            settings.session_timeout_ms / 1000,
            None if rate is None else float(rate),
            detour_of(os.environ),
            settings.channel_bytes_max,
            settings.staged_bytes_max,
            settings.hung_after_ms / 1000,
            memory,
            settings.silent_after_ms / 1000,
        )
        self._spark = SparkHost(context, task, self._launch_ended)
        self._zombies: list[tuple[float, int]] = []
        self._launched = self._warmed = 0

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        self._control.send(worker, message)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        self._launched = number
        self._spark.launch(number, avoid)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        self._control.dismiss(worker)
        self._zombies.append((self._run.clock.monotonic() + ZOMBIE_GRACE_S, launch))

    def cancel(self, launch: int) -> None:
        self._spark.cancel(launch)

    def turn(self) -> None:
        now = self._run.clock.monotonic()
        due = [launch for at, launch in self._zombies if at <= now]
        self._zombies = [(at, launch) for at, launch in self._zombies if at > now]
        for launch in due:
            self._spark.cancel(launch)

    def published(self, status: Status) -> None:
        if status.state == "running" and status.generation is not None and self._warmed != status.generation:
            self._warmed = status.generation
            settings = self._run.prepared.settings
            self._spark.warm_up(settings.parallelism + settings.standbys)

    def close(self) -> None:
        self._control.close()
        for launch in range(1, self._launched + 1):
            self._spark.cancel(launch)

    # Events from other threads

    def _received(self, message: m.FromWorker) -> None:
        self._run.mailbox.post(lambda: self._run.loop.received(message))

    def _stream_closed(self, worker: WorkerId, why: str) -> None:
        self._run.mailbox.post(lambda: self._run.loop.stream_closed(worker, why))

    def _launch_ended(self, number: int, error: str | None) -> None:
        self._run.mailbox.post(lambda: self._run.loop.launch_ended(number, error))
