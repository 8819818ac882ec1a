"""How the master rewinds to an earlier checkpoint: when that is possible, and the record that does it.

`Rewound` starts a generation on a new timeline, so a rewind is a recovery with another base. A request names the
timeline that the user saw, and also the generation if it applies a plan. So of two concurrent requests, one wins.

Invariants
    - A rewind waits until nothing is in flight, and is drafted only for a checkpoint that the log still holds.
    - A record in flight counts as appended when a request is checked: a checkpoint that it expires is refused.
    - A rewind is refused unless the before-images of everything after the base still exist (P16).

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN section 9; PROTOCOL P4, P6, P16, P21; docs/design/0010-rewind.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoint import append, joblog
from holdfast.errors import Fenced
from holdfast.model import Epoch
from holdfast.runtime.driver.state import CreateRecord, Gathering, Master, Opening, RewindWanted, Step
from holdfast.runtime.wire import messages as m


def no_way_back(job: joblog.Job, epoch: int) -> str | None:
    """Return why the job cannot be rewound to this epoch, None if it can."""
    if job.finished:
        return "the job has finished and cannot be rewound"
    if epoch in job.abandoned_epochs:
        return f"an earlier rewind abandoned epoch {epoch}; its output has already been undone"
    if job.checkpoint(epoch) is None:
        return f"no checkpoint of epoch {epoch} exists"
    if epoch < job.expired_through:
        return (
            f"epoch {epoch} lies beyond the rewind horizon: targets no longer keep before-images through epoch "
            f"{job.expired_through}"
        )
    return None


def ways_back(job: joblog.Job) -> Sequence[joblog.Completed]:
    """Return the checkpoints to which the job can be rewound, oldest first: those for which `no_way_back` is None."""
    first = first_way_back(job)
    return () if first is None else job.completed[first:]


def first_way_back(job: joblog.Job) -> int | None:
    """Return where in `job.completed` the checkpoints begin to which the job can be rewound; None: there is none."""
    first = bisect_left(job.completed, job.expired_through, key=lambda each: each.body.epoch)
    return None if job.finished or first == len(job.completed) else first


def start(state: Master, asked: RewindWanted, now: float, at_us: int) -> Step:
    """Append `Rewound`; nothing is in flight. If the checkpoint has expired in the meantime, do nothing."""
    quiet, state = state.log, replace(state, rewind=None)
    assert isinstance(quiet, append.Quiet)
    if no_way_back(state.job, asked.epoch) is not None:
        return state, []
    host, cause = state.rules.host, f"rewound to epoch {asked.epoch}"
    if asked.accepted:
        cause += f", accepted: {', '.join(asked.accepted)}"
    log, creates = append.append(
        quiet,
        lambda job: joblog.Rewound(asked.epoch, joblog.next_first_epoch(job), host, cause, asked.accepted),
        at_us,
    )
    since = now if state.recovering_since is None else state.recovering_since
    state = replace(state, log=log, phase=Opening(cause, stops=asked.stop), recovering_since=since)
    return state, [CreateRecord(each.record) for each in creates if isinstance(each, append.Create)]


def end(state: Master) -> append.Draft | None:
    """Return the record that ends the run, if it ends with the repairs and they are complete."""
    phase, job = state.phase, state.job
    if not state.ends_repaired or not isinstance(phase, Gathering) or not (phase.base_known and phase.repaired):
        return None
    return lambda _job: joblog.Stopped(job.base_epoch)


def is_last_act(state: Master) -> bool:
    """Return whether the run ends with a rewind and takes no further checkpoint."""
    return state.ends_repaired or (state.rewind is not None and state.rewind.stop)


def is_past(state: Master, message: m.Failed) -> bool:
    """Return whether the worker failed only because a target fenced output that a rewind of this job has abandoned."""
    return message.error.kind == Fenced.kind and message.generation < state.job.generation


def refusal(state: Master, args: Mapping[str, Any], *, ending: bool) -> str | None:
    """Return why a request to rewind is refused, None if it is not.

    Args:
        ending: The last barrier has been sent.
    """
    epoch, timeline, planned, job = args.get("epoch"), args.get("timeline"), args.get("planned"), state.job
    accepted = args.get("accept", [])
    if not isinstance(epoch, int) or not isinstance(timeline, int) or not isinstance(planned, int | None):
        return "the request does not name an epoch and a timeline to rewind to"
    if not is_accept(accepted):
        return "the request's `accept` is not a list of SINK:VERDICT"
    if (why := outdated(state, args)) is not None:
        return why
    if is_last_act(state):
        return "the job is rewinding and will stop there; rewind it when it has stopped"
    if state.ending is not None or ending:
        return "the job is ending; rewind it when it has ended"
    if args.get("stop") and state.savepoints:
        return f"savepoint {state.savepoints[0]!r} has not been taken yet; rewind when it is complete"
    if left := [sink for sink in state.rules.unrepairable if f"{sink}:impossible" not in accepted]:
        return f"sink {left[0]!r} cannot take output back"
    return no_way_back(job, epoch) or no_way_back(_coming(state), epoch)


def outdated(state: Master, args: Mapping[str, Any]) -> str | None:
    """Return what happened to the job since the rewind was planned; None if the plan still fits."""
    timeline, planned, job = args.get("timeline"), args.get("planned"), state.job
    if not timeline == job.timeline == _coming(state).timeline or state.rewind is not None:
        return "another rewind of the job was accepted since the plan was made"
    if planned is not None and planned != job.generation:
        return f"the job has recovered since the plan was made: it is in generation {job.generation}, not {planned}"
    return None


def _coming(state: Master) -> joblog.Job:
    coming = append.expected(state.log)
    assert coming is not None, "a driver that owns the job has read its log"
    return coming


def accept(state: Master, args: Mapping[str, Any]) -> Master:
    """Rewind as soon as nothing is in flight."""
    accepted = tuple(sorted(set(args.get("accept", ()))))
    return replace(state, rewind=RewindWanted(Epoch(args["epoch"]), bool(args.get("stop")), accepted))


def is_accept(found: object) -> bool:
    """Return whether this is a list of text, as acceptances of the form SINK:VERDICT are."""
    return isinstance(found, list | tuple) and all(isinstance(each, str) for each in found)
