"""Appends to the job log so that the outcome of every append becomes known.

A record that was sent is sent again, with the same bytes and the same sequence, until that slot is occupied and read.
The owner token in the slot decides: the record is ours, or another writer's record must be folded first. An epoch
whose record has an unknown outcome is never abandoned meanwhile.

Invariants
    - At most one record is in flight.
    - A generation's base is the fold of all records before its own start, folded again after every conflict (P5).
    - A driver that finds a newer generation appends nothing more.
    - If another process names a checkpoint meanwhile, the record is folded and delays no append (P6).
    - A rewind is not rebuilt on top of records that others appended meanwhile: the user saw another head.
    - Nothing is appended to a finished job: a start after its end would make the log unreadable.

Pure: no clock, thread or I/O. Driven by runtime/driver/master.py.
Source: PROTOCOL P4, P5, P6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.joblog import (
    STARTS,
    Body,
    GenerationStarted,
    Job,
    JobCreated,
    Record,
    Rewound,
    SavepointNamed,
    fold,
)
from holdfast.model import Generation, JobUuid, Timeline

Draft = Callable[[Job], Body]
"""Makes the body from the fold that it will follow; called again after a conflict."""


@dataclass(frozen=True)
class Quiet:
    """Nothing is in flight."""

    owner: str
    job: Job | None


@dataclass(frozen=True)
class InFlight:
    """This record was sent; its outcome is not known yet."""

    owner: str
    job: Job | None
    record: Record
    draft: Draft


@dataclass(frozen=True)
class OvertakenDriver:
    """A newer generation owns the job, it is finished, or it is a fork: this driver may not append again."""

    owner: str
    job: Job
    ours: Generation


Appender = Quiet | InFlight | OvertakenDriver


@dataclass(frozen=True)
class Create:
    """Create the record conditionally at its sequence; then call `occupied` with the record stored at that sequence."""

    record: Record


@dataclass(frozen=True)
class Appended:
    """The record is in the log; `job` is the fold up to and including it."""

    record: Record
    job: Job


@dataclass(frozen=True)
class Lost:
    """A newer generation is in the log, the job is finished, or a fork was created in its place. Exit; do not retry."""

    job: Job
    """With `job.finished`, an older driver finished the job just before our start."""
    ours: Generation


Effect = Create | Appended | Lost


def create_job(state: Quiet, body: JobCreated, uuid: JobUuid, at: int) -> tuple[Appender, list[Effect]]:
    """Send the first record of a new job; if another driver was first, its record is used (P1)."""
    assert state.job is None
    record = Record(1, uuid, Generation(0), Timeline(1), state.owner, at, body, prev="")
    return InFlight(state.owner, None, record, lambda _job: body), [Create(record)]


def append(state: Quiet, draft: Draft, at: int) -> tuple[Appender, list[Effect]]:
    """Send the next record. The caller waits for Appended or Lost before it sends another."""
    assert state.job is not None and not state.job.finished
    record = _record(state.owner, state.job, draft, at)
    return InFlight(state.owner, state.job, record, draft), [Create(record)]


def retry(state: InFlight) -> list[Create]:
    """Send the same record again: its outcome is unknown (P4)."""
    return [Create(state.record)]


def occupied(state: InFlight, found: Record) -> tuple[Appender, list[Effect]]:
    """Take the record stored at the sequence of the record in flight: ours, or another writer's."""
    assert found.seq == state.record.seq
    job = fold(state.job, found)
    if found.owner == state.owner:
        return Quiet(state.owner, job), [Appended(found, job)]
    if isinstance(found.body, JobCreated):
        # Two drivers created the job concurrently; the job has the other's UUID.
        return Quiet(state.owner, job), [Appended(found, job)]
    if isinstance(found.body, SavepointNamed):
        return _send_again(state, job)
    # That a fork was created in place of ours ends this driver too: it has checked its code against no checkpoint.
    starting = isinstance(state.record.body, GenerationStarted)
    if isinstance(found.body, STARTS) or job.finished or not starting:
        ours = state.record.generation
        return OvertakenDriver(state.owner, job, ours), [Lost(job, ours)]
    # An older driver's last record came first: fold it, and start from the newer base (P5).
    return _send_again(state, job)


def expected(state: Appender) -> Job | None:
    """Return the fold with the record in flight, as it will be unless another process was first."""
    return fold(state.job, state.record) if isinstance(state, InFlight) else state.job


def _send_again(state: InFlight, job: Job) -> tuple[Appender, list[Effect]]:
    record = _record(state.owner, job, state.draft, state.record.at)
    return InFlight(state.owner, job, record, state.draft), [Create(record)]


def _record(owner: str, job: Job, draft: Draft, at: int) -> Record:
    body = draft(job)
    generation = Generation(job.generation + isinstance(body, STARTS))
    timeline = Timeline(job.timeline + isinstance(body, Rewound))
    return Record(job.next_seq, job.uuid, generation, timeline, owner, at, body, prev=job.head)
