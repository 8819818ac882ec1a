"""Runs a job: checks it, takes it over, hosts the driver's loop until the run ends.

Everything that can be refused is refused before the job log is touched: plan, settings, sources,
targets, slots, another run of the same job.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import SparkContext

from holdfast.checkpoint import joblog
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Unavailable, Where
from holdfast.model import Generation, JobUuid, WorkerId
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime import dlq_places, master, requests, status
from holdfast.runtime import messages as m
from holdfast.runtime.admission import (
    check_from,
    check_has_end,
    check_repairable,
    check_sinks,
    prepare_sink,
    refuse_private_memory,
    refuse_second_run,
    with_identities,
)
from holdfast.runtime.asking import Asking
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.driver import DriverLoop
from holdfast.runtime.exposed import check_written_at_once, exposed
from holdfast.runtime.holdings import check_targets
from holdfast.runtime.log_end import read_whole_log
from holdfast.runtime.mailbox import Mailbox, ThreadLanes
from holdfast.runtime.placement import local_paths
from holdfast.runtime.plan import Plan
from holdfast.runtime.presence import boot_id, myself
from holdfast.runtime.reading import refuse_other_sources
from holdfast.runtime.repair import unrepairable, writers_of
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import shape_of
from holdfast.runtime.signals import StopSignals
from holdfast.runtime.spark.control import ControlServer
from holdfast.runtime.spark.detour import detour_of
from holdfast.runtime.spark.host import WorkerTask
from holdfast.runtime.spark.launch import SparkHost, check_slots, start_context
from holdfast.runtime.spark.tls import is_wanted, make_credentials
from holdfast.state.keygroups import range_of
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join

POLL_S = 0.02
PUBLISH_EVERY_S = 0.5
REQUESTS_EVERY_S = 1.0
ANSWERED_WITHIN_S = 5.0
"""How long the end of a run may wait for its last words to be written."""
ZOMBIE_GRACE_S = 30.0
"""How long a silent worker's Spark task is left alone before it is cancelled."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and its last status."""

    kind: str
    """finished, stopped, ended (at once), fenced, refused, failed, or `already finished`."""
    error: Mapping[str, Any] | None
    status: Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A job that may run: all checks are passed, nothing was appended yet."""

    plan: Plan
    settings: Settings
    root: str
    """Absolute URL or path of the job's folder."""
    store: ObjectStore
    repository: Repository
    job: joblog.Job | None
    operators: tuple[OperatorState, ...]
    partitions: Mapping[str, tuple[int, ...]]
    until: Mapping[str, Mapping[int, int]] | None = None
    """With `once`: the end offsets of every source as they were found."""
    warnings: tuple[str, ...] = ()
    """For people: what this run cannot make right."""
    gone_sinks: master.GoneSinks | None = None
    adopted: tuple[str, ...] = ()
    """Owners of other histories, from which targets may be taken over."""


def prepare(
    plan: Plan,
    settings: Settings,
    drop_state: Sequence[str] = (),
    *,
    once: bool = False,
    takeover: bool = False,
    savepoint: str | None = None,
    adopt_targets: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Check all that can be checked without Spark, and create missing targets.

    Args:
        drop_state: Operators whose kept state is given up, because they are gone or have changed.
        once: Read no further than the sources reach now, then stop.
        takeover: Do not ask whether another run is alive: the start of this one fences it.
        savepoint: Where to start from; it has to be the last checkpoint.
        adopt_targets: Sinks whose targets are moved to this job, though another history of it took them over.
        note: Called with a line for people when there is something to wait for.

    Raises:
        ConfigError: the job, a setting, a source or a target does not fit.
        Damaged: the job log was cut short, or a target stands beyond what it completed.
        Fenced: another run of this job is alive.
    """
    plan = replace(plan, key_groups=settings.key_groups)
    refuse_private_memory(plan, settings.root)
    root = join(settings.root, plan.app)
    store = open_objects(root)
    repository = Repository(store)
    job = read_whole_log(plan.app, store, repository)
    if savepoint is not None:
        check_from(plan.app, job, savepoint)
    if job is not None and job.finished:
        return Prepared(plan, settings, root, store, repository, job, (), {})
    if job is not None:
        _check_job(job, plan, settings)
        if not takeover:
            refuse_second_run(store, job, note)
    before = None if job is None else _last_manifest(repository, job)
    gone_sinks: master.GoneSinks | None = None
    if before is not None:
        gone_sinks = check_sinks(plan, before, repository.records)
        check_written_at_once(plan, before)
    if job is not None and before is not None and job.repair_due:
        written = {writer.sink for writer in writers_of(repository, job, before, ())}
        check_repairable(plan, written, job.rewinds[-1].accepted)
    plan, operators = with_identities(plan, before.operators if before is not None else (), drop_state)
    partitions, until = _look_at_sources(plan, before, once)
    for sink in plan.sinks:
        prepare_sink(sink, job)
    adopted = () if job is None else check_targets(repository, job, plan.sinks, adopt_targets)
    dlq_places.write(store, plan)
    warnings = exposed(plan, job, before)
    return Prepared(
        plan, settings, root, store, repository, job, operators, partitions, until, warnings, gone_sinks, adopted
    )


def _look_at_sources(
    plan: Plan, before: Manifest | None, once: bool
) -> tuple[dict[str, tuple[int, ...]], dict[str, Mapping[int, int]] | None]:
    """Check every source; return its partitions and, with `once`, its end offsets."""
    partitions: dict[str, tuple[int, ...]] = {}
    until: dict[str, Mapping[int, int]] | None = {} if once else None
    for spec in plan.sources:
        spec.source.check()
        if once:
            check_has_end(plan.app, spec.name, spec.source)
        opened = spec.source.open()
        refuse_other_sources(plan.app, () if before is None else before.positions, {spec.name: opened})
        partitions[spec.name] = tuple(opened.partitions())
        if until is not None:
            until[spec.name] = opened.end_offsets()
        opened.close()
    return partitions, until


def run(
    prepared: Prepared, progress: Callable[[Mapping[str, Any]], None], started: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Run the job until it finishes, stops, fails or is fenced.

    Args:
        progress: Called about twice a second with the status.
        started: Called with a line for people at each step of starting up.
    """
    if prepared.job is not None and prepared.job.finished:
        return Outcome("already finished", None, status.of_log(prepared.job, prepared.plan.app, prepared.root))
    settings = prepared.settings
    started("starting Spark")
    context = start_context(prepared.plan.app, settings.master, settings.parallelism)
    check_slots(context, settings.parallelism)
    runner = _Run(prepared, context, progress)
    try:
        return runner.run()
    finally:
        runner.close()


class _Run:
    """The driver process at work: threads post, one loop decides."""

    def __init__(
        self, prepared: Prepared, context: SparkContext, progress: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.clock = SystemClock()
        self.repository, self.sinks = prepared.repository, prepared.plan.sinks
        self._prepared, self._progress = prepared, progress
        self._mailbox = Mailbox()
        self._lanes = ThreadLanes(self._mailbox)
        self._host = context.getConf().get("spark.driver.host", "127.0.0.1")
        credentials = make_credentials(is_wanted(prepared.settings.tls, self._host))
        self._control = ControlServer(self._host, credentials, self._received, self._stream_closed)
        settings = prepared.settings
        rate = settings.max_records_per_second
        task = WorkerTask(
            prepared.plan, prepared.root, self._control.address, credentials, settings.heartbeat_ms / 1000,
            settings.session_timeout_ms / 1000, None if rate is None else float(rate), detour_of(os.environ),
            settings.channel_bytes_max, settings.staged_bytes_max,
            settings.hung_after_ms / 1000,
        )  # fmt: skip
        self._spark = SparkHost(context, task, self._launch_ended)
        self._zombies: list[tuple[float, int]] = []
        self._live_refused: Unavailable | None = None
        self._owner = uuid.uuid4().hex
        self._loop = DriverLoop(_rules(prepared, self._host), self._owner, self, settings.heartbeat_ms / 1000)
        self._inbox = requests.Inbox(prepared.store)
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
        """Wait until what was given to the lanes is done, or until it takes too long."""
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

    def _shown(self, result: object) -> None:
        self._live_refused = result if isinstance(result, Unavailable) else None

    def _publish(self) -> Mapping[str, Any]:
        me = myself(self._owner, self.clock.wall_us())
        shown = status.of_run(self._loop.state, self._prepared.root, "continuous", me)
        if shown["state"] == "running" and self._warmed != shown["generation"]:
            self._warmed = shown["generation"]
            self._spark.warm_up(self._prepared.settings.parallelism)
        if (swept := self._loop.sweep.problem) is not None:
            shown["problems"].append({"code": swept.kind, "what": swept.what, "next": swept.next_step})
        if (refused := self._loop.refused or self._live_refused) is not None:
            shown["problems"].append(status.root_refused(refused))
        shown["problems"] += status.unreadable_requests(self._prepared.root, self._inbox.unreadable)
        if self._loop.repairs.waiting:
            shown["repairing"] = self._loop.repairs.as_json()
        data = json.dumps(shown).encode()
        if self._loop.outcome is None or self._loop.outcome[0] != "fenced":
            self._lanes.lane("live").submit(lambda: self._prepared.store.put("live.json", data), self._shown)
        self._progress(shown)
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
        failures_max=settings.restart_failures_max,
        failures_window=settings.restart_window_ms / 1000,
        backoff_first=settings.restart_backoff_first_ms / 1000,
        backoff_max=settings.restart_backoff_max_ms / 1000,
        until=prepared.until,
        retention=Retention(settings.retained_checkpoints, settings.retained_for_ms * 1000),
        machine=(socket.gethostname(), boot_id()),
        local_paths=() if settings.shared_paths == "true" else local_paths(plan, prepared.root),
        unrepairable=unrepairable(plan.sinks),
        audit=settings.audit,
        shape=shape_of(plan),
        gone_sinks=prepared.gone_sinks,
        adopted=prepared.adopted,
    )


def _last_manifest(repository: Repository, job: joblog.Job) -> Manifest | None:
    return repository.load_manifest(job.completed[-1].body.manifest) if job.completed else None


def _check_job(job: joblog.Job, plan: Plan, settings: Settings) -> None:
    if job.key_groups != plan.key_groups:
        raise ConfigError(
            f"job {job.name!r} was created with key_groups={job.key_groups}, and now has key_groups={plan.key_groups} "
            f"(origin: {settings.origin('key_groups')})",
            not_done="the job was not started; state and output are untouched",
            next_step=f"set key_groups={job.key_groups} (it is fixed for the job's life), or give the job a new name",
            where=Where(job=job.name),
        )
