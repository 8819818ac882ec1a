"""Rewind a job that is not running: a driver without workers that fences, repairs the targets, and stops.

It uses the loop of every driver. So after a crash at any point, the next run completes the rewind. If two runs start at
the same time, the job log lets one win. From before its first record until its end it keeps its entry in `live.json`.
So a command that is repeated after a kill can see that the earlier process has ended.

Source: DESIGN sections 9, 13; PROTOCOL P4, P6, P21; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, ErrorReport, Fenced, HoldfastError, Unavailable, Where
from holdfast.model import JobUuid, WorkerId
from holdfast.ports import Lane
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.driver.state import RewindWanted, Rules, Site
from holdfast.runtime.job import status
from holdfast.runtime.job.live import State, Status
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire import presence
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.mailbox import Mailbox, ThreadLanes
from holdfast.sinks.contract.changelogs import ROOT

POLL_S = 0.02
TELL_EVERY_S = 0.5
LAST_WORDS_WITHIN_S = 5.0


class _StoppedPorts:
    """The ports of a driver without workers."""

    def __init__(self, repository: Repository, sinks: Sequence[SinkSpec], lanes: ThreadLanes) -> None:
        self.clock, self.repository, self.sinks, self._lanes = SystemClock(), repository, sinks, lanes
        self.sources = ()  # nothing is read
        self.changelog = ROOT  # nothing is compacted

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Never called: there is no worker."""
        raise AssertionError(f"there is no worker to send {message} to")

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Never called: a worker would have nothing to do."""
        raise AssertionError("a rewind of a job that is not running needs no worker")

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """No effect: there is no worker."""

    def cancel(self, launch: int) -> None:
        """No effect: nothing was launched."""

    def lane(self, name: str) -> Lane:
        """See DriverPorts.lane."""
        return self._lanes.lane(name)


def check_in_time(name: str, repairs_s: float | None, timeout_s: float) -> None:
    """Refuse repairs that would not complete in time: SQLite would roll back all the work, with the job rewound.

    Args:
        repairs_s: Their expected duration; None if unknown.

    Raises:
        ConfigError: they take longer than the timeout.
    """
    if repairs_s is not None and repairs_s > timeout_s:
        raise ConfigError(
            f"taking back the output of {name!r} takes about {math.ceil(repairs_s)} s, longer than --timeout "
            f"{timeout_s:g}s",
            not_done="nothing was changed",
            next_step=f"give it more time, such as --timeout {math.ceil(2 * repairs_s)}s",
            where=Where(job=name),
        )


def rewind_stopped(
    repository: Repository,
    job: Job,
    asked: RewindWanted,
    sinks: Sequence[SinkSpec],
    timeout_s: float,
    tell: Callable[[Status], None],
    adopted: tuple[str, ...] = (),
) -> None:
    """Append `Rewound`, repair every target, append `Stopped`.

    Args:
        job: The log as it was when the plan was made; if it has changed since, nothing is done.
        tell: Publishes a status as `live.json`.
        adopted: Owners of other histories whose targets may be taken over.

    Raises:
        Fenced: another process was first, or took over.
        Unavailable: the log or a target cannot be reached in time.
        HoldfastError: a target cannot be repaired.
    """
    mailbox = Mailbox()
    lanes = ThreadLanes(mailbox)
    owner = uuid.uuid4().hex
    loop = DriverLoop(_rules(job, sinks, adopted), owner, _StoppedPorts(repository, sinks, lanes))
    deadline = time.monotonic() + timeout_s
    tell(_reported(job, owner, "recovering", f"rewinding to epoch {asked.epoch}"))
    next_tell = time.monotonic() + TELL_EVERY_S
    try:
        loop.rewind(job, asked)
        while loop.outcome is None:
            mailbox.drain()
            loop.turn()
            if time.monotonic() > deadline:
                raise _too_slow(repository, job, loop, timeout_s)
            if time.monotonic() > next_tell:
                next_tell = time.monotonic() + TELL_EVERY_S
                reported = _reported(loop.state.job, owner, "recovering", f"rewinding to epoch {asked.epoch}")
                lanes.lane("live").submit(lambda reported=reported: tell(reported), lambda _: None)  # type: ignore[misc]
            mailbox.wait(POLL_S)
        kind, error = loop.outcome
        if kind != "stopped":
            raise _failure(job, kind, error)
        _last_words(lanes, tell, _reported(loop.state.job, owner, "stopped", None))
    except Fenced:
        raise  # the new owner writes the file
    except HoldfastError as error:
        _last_words(lanes, tell, _reported(loop.state.job, owner, "failed", error.what))
        raise
    finally:
        lanes.close()


def _reported(job: Job, owner: str, state: State, reason: str | None) -> Status:
    """Return the entry of a driver without workers in `live.json`."""
    driver = presence.myself(owner, SystemClock().wall_us())
    return structs.replace(status.of_log(job, job.name, ""), state=state, reason=reason, driver=driver)


def _last_words(lanes: ThreadLanes, tell: Callable[[Status], None], reported: Status) -> None:
    """Write the final `live.json` after any write in progress, because readers see the last one.

    If that fails, readers wait until the file is stale; the rewind has succeeded anyway.
    """
    over = threading.Event()

    def say() -> None:
        try:
            tell(reported)
        finally:
            over.set()

    lanes.lane("live").submit(say, lambda _: None)
    over.wait(LAST_WORDS_WITHIN_S)


def _rules(job: Job, sinks: Sequence[SinkSpec], adopted: tuple[str, ...]) -> Rules:
    """Return the rules of a master without workers; most of them are never used."""
    return Rules(
        name=job.name,
        job_uuid=JobUuid(job.uuid),
        host=socket.gethostname(),
        key_groups=job.key_groups,
        key_ranges=((0, job.key_groups),),
        partitions={},
        operators=(),
        checkpoint_every=1.0,
        silent_after=5.0,
        epoch_deadline=30.0,
        redeploy_every=10.0,
        restart_failures_max=1,
        restart_window=60.0,
        restart_backoff_first=0.1,
        restart_backoff_max=1.0,
        unrepairable=unrepairable(sinks),
        adopted=adopted,
    )


def _too_slow(repository: Repository, before: Job, loop: DriverLoop, timeout_s: float) -> Unavailable:
    now = repository.read_log()
    if now is None or now.timeline == before.timeline:
        return Unavailable(
            f"no record could be appended to the job log of {before.name!r} within {timeout_s:g} s",
            not_done="whether the job was rewound is unknown",
            next_step=f"see holdfast status {before.name}, then retry",
            where=Where(job=before.name),
        )
    errors, waiting = loop.repairs.errors, loop.repairs.waiting
    waits = "; ".join(f"{sink}: {errors.get(sink, 'in progress, or no answer yet')}" for sink in waiting)
    away = "make them reachable, then " if errors else ""
    return Unavailable(
        f"job {before.name!r} is rewound, but not all targets were repaired within {timeout_s:g} s: {waits}",
        not_done="the targets named here still hold the output that the rewind undoes",
        next_step=f"{away}run the job: it repairs them before it does anything else, however long that takes; "
        "to rewind much output, give a longer --timeout",
        where=Where(job=before.name),
    )


def _failure(job: Job, kind: str, error: ErrorReport | None) -> HoldfastError:
    if kind == "fenced":
        return Fenced(
            f"job {job.name!r} changed before the rewind completed: another process runs it, or rewound it first",
            not_done="this rewind was not carried out, or not completed; the job's present owner completes it",
            next_step=f"see holdfast status {job.name}; then plan again",
            where=Where(job=job.name),
        )
    if error is None:
        return ConfigError(
            kind,
            not_done="the targets were not all repaired",
            next_step="remove the cause, then run the job: it repairs them first",
            where=Where(job=job.name),
        )
    return replace(error, job=job.name).as_error()
