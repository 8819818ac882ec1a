"""Waits of a running job, as part of its status: the epoch being closed, workers being launched, a backlog.

`holdfast explain` turns it into sentences. Times are durations since the event, by the driver's clock.

Pure: values in, values out.
Source: API.md, `holdfast explain`; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.checkpoint import append, coordinator
from holdfast.model import NO_EPOCH, Pending, Tag, Timeline, WorkerId
from holdfast.runtime.driver.deployment import older_output_is_left
from holdfast.runtime.driver.failover import launch_allowed_at
from holdfast.runtime.driver.state import Deployed, Finishing, Hosted, Master, Stopping
from holdfast.runtime.job.live import (
    Activity,
    EndedPartition,
    Failures,
    LaunchingWorker,
    OpenEpoch,
    SinkBacklog,
    Waiting,
)
from holdfast.runtime.wire.vitals import FUNCTION, INTERPRETER, SOURCE, described

STOP = "stop"
"""How a status names the ending of a job that was asked to stop."""
SLOW_FUNCTION, SLOW_SOURCE = "slow_function", "slow_source"
"""Codes of the problem that a worker is busy with one row, batch or read for seconds."""
EPOCHS_MEASURED = 5
"""The first of a generation take longer, and so may a single one."""


def busy_with(marks: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return code, sentence and advice for each function or read with which a worker has been busy for seconds.

    Args:
        marks: Functions and reads that keep workers busy, as their heartbeats report.
    """
    long = sorted({each for each in marks if each.startswith((FUNCTION, SOURCE)) or each == INTERPRETER})
    advice = "find out what it computes or waits for; a worker that is busy with it for longer than hung_after_ms is "
    return [
        (
            SLOW_SOURCE if mark.startswith(SOURCE) else SLOW_FUNCTION,
            f"a worker is busy with {described(mark)}, which takes seconds for one row or batch",
            f"{advice}replaced",
        )
        for mark in long
    ]


def of(state: Master) -> Activity:
    """Return the waits of the job, as part of the status of a run."""
    now = state.looked_at or 0.0
    deployment = state.deployed
    end_request = {Finishing: "finish", Stopping: STOP, type(None): None}[type(state.ending)]
    return Activity(
        records_in=sum(worker_state.heartbeat.progress.records_in for worker_state in state.workers.values()),
        epochs_given_up=state.given_up,
        parallelism=state.rules.parallelism,
        checkpoint_every_ms=_ms(state.rules.checkpoint_every),
        ending="once" if end_request is None and state.rules.until is not None else end_request,
        savepoints_waiting=state.savepoints,
        appending=state.log.record.kind if isinstance(state.log, append.InFlight) else None,
        open_epoch=None if deployment is None else _open_epoch(state, deployment, now),
        older_output_left=deployment is not None and older_output_is_left(state, deployment.base),
        launching=tuple(LaunchingWorker(number=n, since_ms=_ms(now - at)) for n, at in sorted(state.launching.items())),
        next_launch_ms=max(0, _ms(launch_allowed_at(state) - now)) if state.failures else 0,
        failures=Failures(
            len(state.failures),
            state.rules.restart_failures_max,
            state.failures[-1].error.what if state.failures else None,
        ),
        backlog=_backlog(state, deployment),
        waiting=tuple(_waiting(worker, worker_state, now) for worker, worker_state in state.workers.items()),
        ended=tuple(
            EndedPartition(at.source, at.partition)
            for worker_state in state.workers.values()
            for at in worker_state.heartbeat.progress.ended
        ),
        listing_ms=None if state.listing is None else _ms(now - state.listing.since),
        epoch_ms=_epoch_ms(state),
    )


def _waiting(worker: WorkerId, hosted: Hosted, now: float) -> Waiting:
    said = hosted.heartbeat
    return Waiting(worker, hosted.subtask, hosted.ready, said.ended, _ms(now - hosted.seen), said.progress.held_by)


def _epoch_ms(state: Master) -> int | None:
    job = state.log.job
    if job is None or not job.starts:
        return None
    last = [done for done in job.completed[-EPOCHS_MEASURED:] if done.generation == job.starts[-1].generation]
    return min(done.body.duration_ms for done in last) if len(last) == EPOCHS_MEASURED else None


def _open_epoch(state: Master, phase: Deployed, now: float) -> OpenEpoch | None:
    match phase.epochs:
        case coordinator.Collecting(barrier=barrier, started=started, parts=parts):
            missing = [subtask for subtask in range(state.rules.parallelism) if subtask not in parts]
        case coordinator.Deciding(barrier=barrier, started=started):
            missing = []
        case _:
            return None
    return OpenEpoch(
        epoch=barrier.epoch,
        open_ms=_ms(now - started),
        deadline_ms=_ms(state.rules.epoch_deadline),
        last=barrier.last,
        savepoint=None if phase.closing is None else phase.closing.savepoint,
        missing=tuple(missing),
    )


def _backlog(state: Master, phase: Deployed | None) -> tuple[SinkBacklog, ...]:
    """Return, per sink, the committed output that no worker has reported as delivered."""
    nothing = Tag(Timeline(0), NO_EPOCH)
    left: dict[str, list[Pending]] = {}
    for item in phase.last.pending if phase is not None and phase.last is not None else ():
        if state.confirmed.get(item.writer, nothing) < item.tag:
            left.setdefault(item.writer.sink, []).append(item)
    return tuple(
        SinkBacklog(
            sink=sink,
            epochs=len({item.tag for item in items}),
            oldest_epoch=min(item.tag.epoch for item in items),
            rows=sum(item.staged.rows for item in items),
            bytes=sum(part.size for item in items for part in item.staged.parts),
        )
        for sink, items in sorted(left.items())
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
