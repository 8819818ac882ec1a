"""Rewinds a job that nobody runs: a driver without workers that fences, repairs the targets, and stops.

It is the loop of every driver, so a crash at any point is made up for by whoever runs the job next, and of two that
start at once the job log lets one win. From before its first record to its end it shows itself in `live.json`, so that
whoever repeats a command that was killed knows that nobody is left to be asked.

Source: DESIGN sections 9, 13; PROTOCOL P4, P6, P21; docs/design/0010-rewind.md.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, Unavailable, Where
from holdfast.model import JobUuid, WorkerId
from holdfast.ports import Lane
from holdfast.runtime import master, presence, status
from holdfast.runtime import messages as m
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.driver import DriverLoop
from holdfast.runtime.mailbox import Mailbox, ThreadLanes
from holdfast.runtime.repair import unrepairable
from holdfast.runtime.steps import SinkSpec

POLL_S = 0.02
TELL_EVERY_S = 0.5
LAST_WORDS_WITHIN_S = 5.0
_KINDS: dict[str, type[HoldfastError]] = {kind.kind: kind for kind in (ConfigError, Damaged, Fenced, Unavailable)}


class _Ports:
    """A driver's surroundings with nobody to talk to."""

    def __init__(self, repository: Repository, sinks: Sequence[SinkSpec], lanes: ThreadLanes) -> None:
        self.clock, self.repository, self.sinks, self._lanes = SystemClock(), repository, sinks, lanes

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """There is no worker."""
        raise AssertionError(f"no worker is here to hear of {message}")

    def launch(self, number: int) -> None:
        """There is nothing for a worker to do."""
        raise AssertionError("a rewind of a job that nobody runs needs no worker")

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """There is no worker."""

    def cancel(self, launch: int) -> None:
        """Nothing was launched."""

    def lane(self, name: str) -> Lane:
        """See DriverPorts.lane."""
        return self._lanes.lane(name)


def check_in_time(name: str, repairs_s: float | None, timeout_s: float) -> None:
    """Refuse repairs that would be cut short: SQLite rolls one back after all its work, and the job has gone back.

    Args:
        repairs_s: How long they are expected to take; None if that is unknown.

    Raises:
        ConfigError: longer than there is time.
    """
    if repairs_s is not None and repairs_s > timeout_s:
        raise ConfigError(
            f"taking back the output of {name!r} takes about {math.ceil(repairs_s)} s, longer than --timeout "
            f"{timeout_s:g}s",
            not_done="nothing was changed",
            next_step=f"give it time, such as --timeout {math.ceil(2 * repairs_s)}s",
            where=Where(job=name),
        )


def rewind_stopped(
    repository: Repository,
    job: Job,
    asked: master.RewindWanted,
    sinks: Sequence[SinkSpec],
    timeout_s: float,
    tell: Callable[[Mapping[str, Any]], None],
    adopted: tuple[str, ...] = (),
) -> None:
    """Append `Rewound`, repair every target, append `Stopped`.

    Args:
        job: The log as it was when the plan was made: if it has moved since, nothing is done.
        tell: Replaces `live.json`.
        adopted: Owners of other histories, from which targets may be taken over.

    Raises:
        Fenced: somebody else was first, or took over.
        Unavailable: the log or a target cannot be reached in time.
        HoldfastError: a target cannot be repaired.
    """
    mailbox = Mailbox()
    lanes = ThreadLanes(mailbox)
    owner = uuid.uuid4().hex
    loop = DriverLoop(_rules(job, sinks, adopted), owner, _Ports(repository, sinks, lanes))
    deadline = time.monotonic() + timeout_s
    tell(_told(job, owner, "recovering", f"going back to epoch {asked.epoch}"))
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
                told = _told(loop.state.job, owner, "recovering", f"going back to epoch {asked.epoch}")
                lanes.lane("live").submit(lambda told=told: tell(told), lambda _: None)  # type: ignore[misc]
            mailbox.wait(POLL_S)
        kind, error = loop.outcome
        if kind != "stopped":
            raise _failure(job, kind, error or {})
        _last_words(lanes, tell, _told(loop.state.job, owner, "stopped", None))
    except Fenced:
        raise  # the file is the new owner's
    except HoldfastError as error:
        _last_words(lanes, tell, _told(loop.state.job, owner, "failed", error.what))
        raise
    finally:
        lanes.close()


def _told(job: Job, owner: str, state: str, reason: str | None) -> dict[str, Any]:
    """Return what a driver without workers says of itself in `live.json`."""
    told = status.of_log(job, job.name, "")
    told |= {"state": state, "reason": reason, "driver": presence.myself(owner, SystemClock().wall_us())}
    return told


def _last_words(lanes: ThreadLanes, tell: Callable[[Mapping[str, Any]], None], told: Mapping[str, Any]) -> None:
    """Say them behind what is being said already: what lands last in `live.json` is what others see.

    Without them others wait until it is stale: no reason to say that the rewind has failed.
    """
    over = threading.Event()

    def say() -> None:
        try:
            tell(told)
        finally:
            over.set()

    lanes.lane("live").submit(say, lambda _: None)
    over.wait(LAST_WORDS_WITHIN_S)


def _rules(job: Job, sinks: Sequence[SinkSpec], adopted: tuple[str, ...]) -> master.Rules:
    """Return what a master without workers goes by; most of it never comes to be asked."""
    return master.Rules(
        name=job.name, job_uuid=JobUuid(job.uuid), host=socket.gethostname(), key_groups=job.key_groups,
        key_ranges=((0, job.key_groups),), partitions={}, operators=(), checkpoint_every=1.0, silent_after=5.0,
        epoch_deadline=30.0, redeploy_every=10.0, failures_max=1, failures_window=60.0, backoff_first=0.1,
        backoff_max=1.0, unrepairable=unrepairable(sinks), adopted=adopted,
    )  # fmt: skip


def _too_slow(repository: Repository, before: Job, loop: DriverLoop, timeout_s: float) -> Unavailable:
    now = repository.read_log()
    if now is None or now.timeline == before.timeline:
        return Unavailable(
            f"the job log of {before.name!r} could not be written to within {timeout_s:g} s",
            not_done="it is not known whether the job was rewound",
            next_step=f"see holdfast status {before.name}, then try again",
            where=Where(job=before.name),
        )
    errors, waiting = loop.repairs.errors, loop.repairs.waiting
    waits = "; ".join(f"{sink}: {errors.get(sink, 'at work, or no answer yet')}" for sink in waiting)
    away = "make them reachable, then " if errors else ""
    return Unavailable(
        f"job {before.name!r} is rewound, but not all targets are repaired within {timeout_s:g} s: {waits}",
        not_done="targets named here still show what was to be taken back",
        next_step=f"{away}run the job: it repairs them before it does anything else, however long that takes; "
        "a rewind of much output needs a longer --timeout",
        where=Where(job=before.name),
    )


def _failure(job: Job, kind: str, error: Mapping[str, Any]) -> HoldfastError:
    if kind == "fenced":
        return Fenced(
            f"job {job.name!r} went on while it was to be rewound: somebody else runs it, or rewound it first",
            not_done="this rewind was not carried out, or not to its end; whoever owns the job now sees to that",
            next_step=f"see holdfast status {job.name}; then plan again",
            where=Where(job=job.name),
        )
    raised = _KINDS.get(str(error.get("kind")), ConfigError)
    return raised(
        str(error.get("what", kind)),
        not_done=str(error.get("not_done", "the targets were not all repaired")),
        next_step=str(error.get("next", "remove the cause, then run the job: it repairs them first")),
        where=Where(job=job.name),
    )
