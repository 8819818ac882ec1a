"""The execution with resident workers: hosts the driver's loop in this process and its workers in Spark.

The workers stay from the start of the run to its end, and one barrier after another passes through them.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from functools import partial

from pyspark import SparkContext

from holdfast.checkpoint.catalogue import Retention
from holdfast.model import Generation, JobUuid, WorkerId
from holdfast.ports import Lane
from holdfast.runtime.driver import master
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.driver.placement import local_paths
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.execution.asking import Asking
from holdfast.runtime.execution.executing import Outcome, Ports, Publisher
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.execution.signals import StopSignals
from holdfast.runtime.job import requests
from holdfast.runtime.job.live import Status
from holdfast.runtime.plan.immediate import not_to_grow
from holdfast.runtime.plan.memory import container_share
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.spark.control import ControlServer
from holdfast.runtime.spark.detour import detour_of
from holdfast.runtime.spark.host import WorkerTask
from holdfast.runtime.spark.launch import SparkHost, check_slots, start_context
from holdfast.runtime.spark.tls import is_wanted, make_credentials
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.mailbox import Mailbox, ThreadLanes
from holdfast.runtime.wire.presence import boot_id
from holdfast.state.keys.keygroups import range_of

POLL_S = 0.02
PUBLISH_EVERY_S = 0.5
REQUESTS_EVERY_S = 1.0
ANSWERED_WITHIN_S = 5.0
"""How long the end of a run may wait until its last answers and status are written."""
ZOMBIE_GRACE_S = 30.0
"""How long a silent worker's Spark task is left alone before it is cancelled."""


class Resident:
    """Carries out the plan with workers that stay for the whole run; see runtime/execution/executing.py."""

    def run(self, prepared: Prepared, ports: Ports) -> Outcome:
        """See Execution.run."""
        settings = prepared.settings
        ports.note("starting Spark")
        context = start_context(prepared.plan.app, settings.master, settings.parallelism)
        check_slots(context, settings.parallelism)
        runner = _Run(prepared, context, ports)
        try:
            return runner.run()
        finally:
            runner.close()


class _Run:
    """The driver process at work: threads post, one loop decides."""

    def __init__(self, prepared: Prepared, context: SparkContext, ports: Ports) -> None:
        self.clock = SystemClock()
        self.repository = prepared.repository
        self.sinks, self.sources = prepared.plan.sinks, prepared.plan.sources
        self._prepared, self._ports = prepared, ports
        self._mailbox = Mailbox()
        self._lanes = ThreadLanes(self._mailbox)
        self._host = context.getConf().get("spark.driver.host", "127.0.0.1")
        credentials = make_credentials(is_wanted(prepared.settings.tls, self._host))
        self._control = ControlServer(self._host, credentials, self._received, self._stream_closed)
        settings = prepared.settings
        rate = settings.max_records_per_second
        container = container_share(dict(context.getConf().getAll()), settings.parallelism)
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
            settings.state_memory,
            settings.parallelism,
            None if container is None else container.size,
        )
        self._spark = SparkHost(context, task, self._launch_ended)
        self._zombies: list[tuple[float, int]] = []
        self._owner = uuid.uuid4().hex
        self._loop = DriverLoop(_rules(prepared, self._host), self._owner, self, settings.heartbeat_ms / 1000)
        self._inbox = requests.Inbox(prepared.store)
        self._publisher = Publisher("continuous", self._owner, prepared, self.lane, self._inbox)
        self._launched = self._warmed = 0
        first = Generation(1 if prepared.job is None else prepared.job.generation + 1)
        self._asking = Asking(
            self._inbox, self._loop, self.lane, self.repository, prepared.plan, prepared.operators, first
        )

    def run(self) -> Outcome:
        with StopSignals() as signals:
            return self._run(signals)

    def _run(self, signals: StopSignals) -> Outcome:
        loop, now = self._loop, self.clock.monotonic
        loop.begin(self._prepared.job, "started" if self._prepared.job is None else "started again")
        next_publish = next_requests = 0.0
        while loop.outcome is None:
            self._mailbox.drain()
            if signals.arrived():
                loop.stop()
            loop.turn()
            if now() >= next_publish:
                next_publish = now() + PUBLISH_EVERY_S
                self._publish()
            if now() >= next_requests:
                next_requests = now() + REQUESTS_EVERY_S
                self._lanes.lane("requests").submit(self._inbox.poll, self._asking.found)
            self._cancel_zombies(now())
            self._mailbox.wait(POLL_S)
        left_undone = partial(master.left_undone, loop.state)
        self._lanes.lane("requests").submit(lambda: self._inbox.close(left_undone), lambda _: None)
        self._flush("requests")  # before the last status: commands take that as the end of the run
        last = self._publish()
        self._flush("live")
        kind, error = loop.outcome
        return Outcome(kind, error, last)

    def close(self) -> None:
        """End what this run started."""
        self._control.close()
        for launch in range(1, self._launched + 1):
            self._spark.cancel(launch)
        self._lanes.close()

    # Ports of the driver's loop

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        self._control.send(worker, message)

    def launch(self, number: int) -> None:
        self._launched = number
        self._spark.launch(number)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        self._control.dismiss(worker)
        self._zombies.append((self.clock.monotonic() + ZOMBIE_GRACE_S, launch))

    def cancel(self, launch: int) -> None:
        self._spark.cancel(launch)

    def lane(self, name: str) -> Lane:
        return self._lanes.lane(name)

    # Events from other threads

    def _received(self, message: m.FromWorker) -> None:
        self._mailbox.post(lambda: self._loop.received(message))

    def _stream_closed(self, worker: WorkerId, why: str) -> None:
        self._mailbox.post(lambda: self._loop.stream_closed(worker, why))

    def _launch_ended(self, number: int, error: str | None) -> None:
        self._mailbox.post(lambda: self._loop.launch_ended(number, error))

    def _flush(self, *lanes: str) -> None:
        """Wait until the lanes have completed their queued work, for ANSWERED_WITHIN_S at most."""
        waiting, deadline = set(lanes), time.monotonic() + ANSWERED_WITHIN_S
        for lane in lanes:
            self._lanes.lane(lane).submit(lambda: None, lambda _, lane=lane: waiting.discard(lane))  # type: ignore[misc]
        while waiting and time.monotonic() < deadline:
            self._mailbox.drain()
            self._mailbox.wait(POLL_S)

    def _cancel_zombies(self, now: float) -> None:
        due = [launch for at, launch in self._zombies if at <= now]
        self._zombies = [(at, launch) for at, launch in self._zombies if at > now]
        for launch in due:
            self._spark.cancel(launch)

    def _publish(self) -> Status:
        shown = self._publisher.publish(self._loop, self.clock.wall_us())
        if shown.state == "running" and shown.generation is not None and self._warmed != shown.generation:
            self._warmed = shown.generation
            self._spark.warm_up(self._prepared.settings.parallelism)
        self._ports.update(shown)
        return shown


def _rules(prepared: Prepared, host: str) -> master.Rules:
    settings, plan = prepared.settings, prepared.plan
    every = settings.checkpoint_every_ms / 1000
    count = plan.key_groups
    return master.Rules(
        name=plan.app,
        job_uuid=JobUuid(uuid.uuid4().hex),
        host=host,
        key_groups=count,
        key_ranges=tuple(range_of(i, settings.parallelism, count) for i in range(settings.parallelism)),
        partitions=prepared.partitions,
        operators=prepared.operators,
        checkpoint_every=every,
        silent_after=settings.silent_after_ms / 1000,
        epoch_deadline=max(30.0, 10 * every),
        redeploy_every=10.0,
        restart_failures_max=settings.restart_failures_max,
        restart_window=settings.restart_window_ms / 1000,
        restart_backoff_first=settings.restart_backoff_first_ms / 1000,
        restart_backoff_max=settings.restart_backoff_max_ms / 1000,
        until=prepared.until,
        retention=Retention(settings.retained_checkpoints, settings.retained_for_ms * 1000),
        machine=(socket.gethostname(), boot_id()),
        local_paths=() if settings.shared_paths == "true" else local_paths(plan, prepared.root),
        unrepairable=unrepairable(plan.sinks),
        audit=settings.audit,
        shape=shape_of(plan),
        gone_sinks=prepared.gone_sinks,
        checked=prepared.checked,
        adopted=prepared.adopted,
        discover_every=settings.partition_discovery_ms / 1000,
        fixed=not_to_grow(plan),
    )
