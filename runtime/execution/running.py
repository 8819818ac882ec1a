"""A run of the driver's loop, whatever carries out its epochs: threads post, one loop decides.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.checkpoint.catalogue import Retention
from holdfast.model import JobUuid, WorkerId
from holdfast.ports import Lane
from holdfast.runtime.driver.gathering import local_paths
from holdfast.runtime.driver.killing import functions_of
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.driver.requests import left_undone
from holdfast.runtime.driver.state import Rules, Site
from holdfast.runtime.execution.asking import Asking
from holdfast.runtime.execution.executing import Ports, Publisher, RunOutcome
from holdfast.runtime.execution.heap import spared
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.execution.signals import STOPPING, StopSignals
from holdfast.runtime.job import requests
from holdfast.runtime.job.live import Status
from holdfast.runtime.plan.immediate import not_to_grow
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.plan.topic import topic_place
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.mailbox import Mailbox, Rest, ThreadLanes
from holdfast.runtime.wire.presence import boot_id
from holdfast.state.keys.keygroups import range_of

POLL_S, QUIET_POLL_S = 0.02, 0.1
"""How often the driver looks for what is due; in a job that does nothing, more rarely."""
PUBLISH_EVERY_S = 0.5
REQUESTS_EVERY_S = 1.0
ANSWERED_WITHIN_S = 5.0
"""How long the end of a run may wait until its last answers and status are written."""


class Hosting(Protocol):
    """Carries out the epochs that the driver closes."""

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See DriverPorts.send."""

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """See DriverPorts.launch."""

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """See DriverPorts.dismiss."""

    def cancel(self, launch: int) -> None:
        """See DriverPorts.cancel."""

    def turn(self) -> None:
        """Carry out the actions that are due; called with every turn of the driver's loop."""

    def published(self, status: Status) -> None:
        """Take the status, about twice a second."""

    def close(self, *, hurry: bool) -> None:
        """End the started processes; with `hurry`, wait for none."""


class DriverRun:
    """The driver process at work.

    Args:
        mode: Which execution runs.
        host: The name of this machine for workers.
        hosting: Creates the host that carries out the epochs; it posts events to this run.
        epoch_deadline: Seconds after which an epoch is given up.
    """

    def __init__(
        self,
        prepared: Prepared,
        ports: Ports,
        mode: str,
        host: str,
        hosting: Callable[[DriverRun], Hosting],
        epoch_deadline: float,
    ) -> None:
        self.clock = SystemClock()
        self.repository = prepared.folder.repository
        self.sinks, self.sources = prepared.outputs, prepared.plan.sources
        self.changelog = prepared.plan.changelog
        self.prepared, self._ports = prepared, ports
        self.mailbox = Mailbox()
        self._lanes = ThreadLanes(self.mailbox)
        self._owner = uuid.uuid4().hex
        rules = _rules(prepared, host, epoch_deadline)
        self.loop = DriverLoop(rules, self._owner, self, prepared.settings.heartbeat_ms / 1000)
        self._inbox = requests.Inbox(prepared.folder.store)
        self._publisher = Publisher(mode, self._owner, prepared, self.lane, self._inbox)
        self._asking = Asking(self._inbox, self.loop, self.lane, prepared)
        self._hosting = hosting(self)

    def run(self) -> RunOutcome:
        """Run the job to its end."""
        hurry = True  # after an interrupt or a defect
        with spared(), StopSignals() as signals:
            try:
                outcome = self._run(signals)
                hurry = False
                return outcome
            finally:
                self._hosting.close(hurry=hurry)
                self._lanes.close()

    def _run(self, signals: StopSignals) -> RunOutcome:
        loop, now, job = self.loop, self.clock.monotonic, self.prepared.folder.job
        loop.begin(job, "started" if job is None else "started again")
        next_publish = next_requests = 0.0
        rest = Rest(POLL_S, QUIET_POLL_S)
        while loop.outcome is None:
            self.mailbox.drain()
            if signals.arrived():
                loop.stop()
                self._ports.note(STOPPING)
            loop.turn()
            if now() >= next_publish:
                next_publish = now() + PUBLISH_EVERY_S
                self._publish()
            if now() >= next_requests:
                next_requests = now() + REQUESTS_EVERY_S
                self._lanes.lane("requests").submit(self._inbox.poll, self._asking.found)
            self._hosting.turn()
            if loop.acted:
                loop.acted = False
                rest.worked()
            self.mailbox.wait(rest.sleep_s())
        undone = partial(left_undone, loop.state)
        self._lanes.lane("requests").submit(lambda: self._inbox.close(undone), lambda _: None)
        self._flush("requests", "positions")  # before the last status: commands take that as the end of the run
        last = self._publish()
        self._flush("live")
        kind, error = loop.outcome
        return RunOutcome(kind, error, last)

    # Ports of the driver's loop

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See DriverPorts.send."""
        self._hosting.send(worker, message)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """See DriverPorts.launch."""
        self._hosting.launch(number, avoid)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """See DriverPorts.dismiss."""
        self._hosting.dismiss(worker, launch)

    def cancel(self, launch: int) -> None:
        """See DriverPorts.cancel."""
        self._hosting.cancel(launch)

    def lane(self, name: str) -> Lane:
        """See DriverPorts.lane."""
        return self._lanes.lane(name)

    def _flush(self, *lanes: str) -> None:
        """Wait until the lanes have completed their queued work, for ANSWERED_WITHIN_S at most."""
        waiting, deadline = set(lanes), time.monotonic() + ANSWERED_WITHIN_S
        for lane in lanes:
            self._lanes.lane(lane).submit(lambda: None, lambda _, lane=lane: waiting.discard(lane))  # type: ignore[misc]
        while waiting and time.monotonic() < deadline:
            self.mailbox.drain()
            self.mailbox.wait(POLL_S)

    def _publish(self) -> Status:
        shown = self._publisher.publish(self.loop, self.clock.wall_us())
        self._hosting.published(shown)
        self._ports.update(shown)
        return shown


def _rules(prepared: Prepared, host: str, epoch_deadline: float) -> Rules:
    settings, plan, targets = prepared.settings, prepared.plan, prepared.targets
    every = settings.checkpoint_every_ms / 1000
    count = plan.key_groups
    return Rules(
        name=plan.app,
        job_uuid=JobUuid(uuid.uuid4().hex),
        host=host,
        key_groups=count,
        key_ranges=tuple(range_of(i, settings.parallelism, count) for i in range(settings.parallelism)),
        partitions=prepared.inputs.partitions,
        operators=prepared.state.operators,
        checkpoint_every=every,
        silent_after=settings.silent_after_ms / 1000,
        heartbeat_every=settings.heartbeat_ms / 1000,
        epoch_deadline=epoch_deadline,
        redeploy_every=10.0,
        restart_failures_max=settings.restart_failures_max,
        restart_window=settings.restart_window_ms / 1000,
        restart_backoff_first=settings.restart_backoff_first_ms / 1000,
        restart_backoff_max=settings.restart_backoff_max_ms / 1000,
        until=prepared.inputs.until,
        retention=Retention(settings.retained_checkpoints, settings.retained_for_ms * 1000),
        machine=(socket.gethostname(), boot_id()),
        local_paths=() if settings.shared_paths == "true" else local_paths(plan, prepared.folder.root),
        unrepairable=unrepairable(prepared.outputs),
        audit=settings.audit,
        shape=shape_of(plan),
        gone_sinks=targets.gone,
        checked=prepared.state.checked,
        adopted=targets.adopted,
        standbys=settings.standbys,
        discover_every=settings.partition_discovery_ms / 1000,
        loses_partitions=any(spec.source.traits.loses_partitions for spec in plan.sources),
        loss_alarm=settings.loss_alarm_ms / 1000,
        fixed=not_to_grow(plan),
        aligned=plan.aligned(),
        changelog=topic_place(plan),
        committed_once=tuple(sorted(plan.committed_once())),
        staged_bytes_max=settings.staged_bytes_max,
        functions=functions_of(plan),
        in_bytes=plan.in_bytes(),
        record_order=settings.record_order == "true",
    )
