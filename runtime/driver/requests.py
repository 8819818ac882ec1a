"""Requests to a running job, as the master carries them out: stop, finish, end now, take a savepoint, rewind.

A request names the generation that its sender saw. The master refuses a request made for an earlier run. A request for
a generation that it does not know yet is left to the driver of that generation.

How a run can end
    - `stop`: a last barrier at the current positions of the sources; `Stopped` once all output is delivered. The job
      can be resumed.
    - `stop --finish`: the sources are listed, and every partition is read to its end as of the request's arrival (a
      recovery takes the ends again), or no further with `unread: drop`. The end of input follows: last watermark, last
      barrier, `Finished`. The job cannot be resumed.
    - `stop --now`: no barrier and no record, as if the driver had been killed. Committed epochs stay, the next run
      reads the rest again.
    - `run --once`: the sources stop at the offsets that were their ends at the start; the rest is as for `stop`.
    Partitions that are added after these ends were fixed are not read (P12).

`Rewound` starts a generation on a new timeline, so a rewind is a recovery with another base. A request names the
timeline that the user saw, and also the generation if it applies a plan. So of two concurrent requests, one wins.

Invariants
    - A savepoint is an epoch triggered after the request, and its name is inside `CheckpointCompleted` (P13).
    - A requested name waits until an epoch that carries it is completed, over epochs given up and recoveries.
    - One epoch takes one name; the last barrier waits until at most one name is left.
    - The master accepts only requests that the run will carry out: a run that ends with a rewind takes no savepoint,
      does not finish and does not rewind a second time.
    - The master accepts nothing before the log holds the start of this run: an older driver may still finish the job.
    - An accepted request that the run did not carry out before it ended is answered again, as refused (`left_undone`).
    - A rewind waits until nothing is in flight, and is drafted only for a checkpoint that the log still holds.
    - A record in flight counts as appended when a request is checked: a checkpoint that it expires is refused.
    - A rewind is refused unless the before-images of everything after the base still exist (P16).

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN sections 9, 13; PROTOCOL P4, P6, P13, P16, P21; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.errors import Fenced
from holdfast.model import Epoch, Generation
from holdfast.runtime.driver.deployment import all_ended, all_report, nothing_new
from holdfast.runtime.driver.events import Effect, Moment, Send, Step, append_record
from holdfast.runtime.driver.failover import end
from holdfast.runtime.driver.partitions import all_input_is_listed, waits_for_nothing
from holdfast.runtime.driver.state import (
    SAVEPOINTS_WAITING_MAX,
    Delivering,
    Deployed,
    Finishing,
    Halted,
    Master,
    Opening,
    Over,
    RewindWanted,
    Running,
    Stopping,
)
from holdfast.runtime.wire import messages as m

DROP = "drop"
"""In a request to finish: unread records stay unread."""
ENDED_NOW = "ended"
"""Outcome of a run that `stop --now` ended: nothing was appended, the job can be run again."""


@dataclass(frozen=True)
class RequestAnswer:
    """The answer to a request."""

    accepted: bool
    generation: Generation
    reason: str | None = None
    """Why it was not carried out."""
    outdated: bool = False
    """The job has moved since the command looked at it: the same command, planned again, may succeed."""

    def as_json(self) -> dict[str, Any]:
        """Return the answer in its stored form."""
        answer = {"accepted": self.accepted, "generation": self.generation, "reason": self.reason}
        return answer | {"outdated": True} if self.outdated else answer


def carry_out(
    state: Master, kind: str, args: Mapping[str, Any], generation: int, first: Generation
) -> tuple[Master, list[Effect], RequestAnswer | None]:
    """Carry out a request, or refuse it with a reason.

    Args:
        generation: The generation that the request was made for.
        first: The first generation of this run.

    Returns:
        No answer if this driver has not seen the request's generation, or the log does not hold the driver's own yet.
    """
    if not is_judged(state, generation, first):
        return state, [], None
    log = state.log.job
    assert log is not None
    refusal = _refusal(state, kind, args, generation, first)
    if refusal is not None:
        moved = kind == "rewind" and refusal == outdated(state, args)
        return state, [], RequestAnswer(False, log.generation, refusal, moved)
    effects: list[Effect] = []
    if kind == "savepoint":
        state = replace(state, savepoints=(*state.savepoints, args["name"]))
    elif kind == "rewind":
        state = accept_rewind(state, args)
    elif args.get("how") == "now":
        state, effects = end(state, ENDED_NOW, None)
    elif args.get("how") == "finish":
        state, effects = finish(state, drop_unread=args.get("unread") == DROP)
    else:
        state, effects = stop(state)
    return state, effects, RequestAnswer(True, log.generation)


def is_judged(state: Master, generation: int, first: Generation) -> bool:
    """Return whether this driver can accept or refuse yet; see carry_out."""
    log = state.log.job
    if log is None or generation > log.generation:
        return False
    return generation < first or log.owner == state.log.owner or isinstance(state.phase, Over)


def left_undone(state: Master, kind: str, args: Mapping[str, Any]) -> str | None:
    """Return why the run ended without an accepted request; None if it was carried out, or the run is not over."""
    job, phase = state.log.job, state.phase
    if not isinstance(phase, Over) or (job is not None and _is_carried_out(job, phase, kind, args)):
        return None
    match phase.outcome:
        case "fenced":
            return "another run took over the job before the request was carried out"
        case "failed" | "refused":
            return "the run failed before the request was carried out"
        case _:
            return "the run ended before the request was carried out"


def _is_carried_out(job: joblog.Job, over: Over, kind: str, args: Mapping[str, Any]) -> bool:
    match kind, args.get("how"):
        case "savepoint", _:
            return job.savepoint(args["name"]) is not None
        case "rewind", _:
            to = (args["timeline"] + 1, args["epoch"])
            return any((each.timeline, each.base_epoch) == to for each in job.rewinds)
        case _, "now":
            return over.outcome == ENDED_NOW
        case _, "finish":
            return over.outcome == "finished"
        case _:
            return over.outcome in ("stopped", "finished")


def stop(state: Master) -> Step:
    """Take a last checkpoint, deliver it, and end the run, which can be resumed. A finishing job still finishes."""
    return state if isinstance(state.ending, Finishing) else replace(state, ending=Stopping()), []


def finish(state: Master, *, drop_unread: bool = False) -> Step:
    """Read all sources to their present ends, or no further; then finish the job as at the end of its input."""
    before = state.ending if isinstance(state.ending, Finishing) else Finishing(False)
    state = replace(state, ending=replace(before, drop_unread=before.drop_unread or drop_unread))
    return state, end_input(state)


def end_input(state: Master) -> list[Effect]:
    """Announce the end of input to the workers; repeated until they have read it, because messages may be lost."""
    ending, phase = state.ending, state.deployed
    if not isinstance(ending, Finishing) or phase is None or not state.all_ready or all_ended(state):
        return []
    if not all_input_is_listed(state, phase):
        return []
    return [Send(worker, m.EndInput(state.job.generation, ending.drop_unread)) for worker in state.assigned]


def is_over(state: Master, phase: Deployed) -> bool:
    """Return whether the next barrier is the last one."""
    finishing, stopping = isinstance(state.ending, Finishing), isinstance(state.ending, Stopping)
    caught_up = state.rules.until is not None and not finishing and _all_caught_up(state)
    if all_ended(state) and isinstance(phase, Running):
        caught_up = False  # it may finish: see first whether there are other partitions
    return (stopping or input_is_over(state, phase) or caught_up) and len(state.savepoints) <= 1


def input_is_over(state: Master, phase: Deployed) -> bool:
    """Return whether all input is read, and the job finishes with the next barrier."""
    return all_ended(state) and all_input_is_listed(state, phase)


def is_due(state: Master, phase: Deployed, now: float) -> bool:
    """Return whether to close the next epoch now, although it may not be the last."""
    if state.savepoints or waits_for_nothing(state, phase):
        return True
    if any(state.workers[worker].heartbeat.wants_barrier for worker in state.assigned):
        return True
    wanted = state.epoch_wanted or not nothing_new(state, phase.epochs)
    return wanted and now - phase.last_trigger >= state.rules.checkpoint_every


def next_name(state: Master) -> str | None:
    """Return the name that the next epoch carries."""
    return state.savepoints[0] if state.savepoints else None


def named(state: Master, savepoint: str | None) -> Master:
    """The epoch is completed: its name no longer waits."""
    return replace(state, savepoints=tuple(name for name in state.savepoints if name != savepoint))


def unless_taken(body: joblog.CheckpointCompleted) -> append.Draft:
    """Return the draft of the record, without the name if another checkpoint has received it in the meantime."""

    def draft(job: joblog.Job) -> joblog.Body:
        taken = body.savepoint is not None and job.savepoint(body.savepoint) is not None
        return structs.replace(body, savepoint=None) if taken else body

    return draft


def _refusal(state: Master, kind: str, args: Mapping[str, Any], generation: int, first: Generation) -> str | None:
    if generation < first:
        return f"the request was made for generation {generation}, which belongs to an earlier run"
    if isinstance(state.phase, Over):
        return "the run is over"
    if kind == "stop":
        how = args.get("how")
        if how not in (None, "finish", "now"):
            return f"this version of Holdfast has no way to stop called {how!r}"
        if args.get("unread") not in (None, DROP):
            return f"this version of Holdfast has no treatment of unread records called {args['unread']!r}"
        if how == "finish" and _only_stops(state):
            return "the job is already stopping and its last barrier is out; run it again, then finish it"
        if how == "finish" and is_last_act(state):
            return "the job is rewinding and will stop there; run it again, then finish it"
        return None
    if kind == "savepoint":
        return _no_savepoint(state, args.get("name"))
    if kind == "rewind":
        return rewind_refusal(state, args, ending=_last_barrier_is_out(state))
    return f"this version of Holdfast has no requests of the kind {kind!r}"


def _no_savepoint(state: Master, name: object) -> str | None:
    if not isinstance(name, str) or joblog.SAVEPOINT_NAME.fullmatch(name) is None:
        return f"{name!r} is not a valid name for a savepoint"
    if state.job.savepoint(name) is not None:
        return f"a savepoint {name!r} already exists"
    if name in state.savepoints:
        return f"a savepoint {name!r} is already being taken"
    if len(state.savepoints) >= SAVEPOINTS_WAITING_MAX:
        return f"{len(state.savepoints)} savepoints are already waiting"
    if _last_barrier_is_out(state):
        return "the job is ending and its last barrier is out; name its last checkpoint when it has ended"
    if is_last_act(state):
        return "the job is rewinding and will stop there; name its last checkpoint when it has ended"
    return None


def _last_barrier_is_out(state: Master) -> bool:
    match state.deployed:
        case Delivering():
            return True
        case Deployed(epochs=coordinator.Collecting(barrier=barrier) | coordinator.Deciding(barrier=barrier)):
            return barrier.last
        case _:
            return False


def _only_stops(state: Master) -> bool:
    """Return whether sources halted before the end of their input; this generation cannot finish then."""
    return isinstance(state.deployed, Halted | Delivering) and not state.deployed.finishing


def _all_caught_up(state: Master) -> bool:
    return all_report(state, lambda heartbeat: heartbeat.caught_up)


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


def start_rewind(state: Master, asked: RewindWanted, at: Moment) -> Step:
    """Append `Rewound`; nothing is in flight. If the checkpoint has expired in the meantime, do nothing."""
    state = replace(state, rewind=None)
    if no_way_back(state.job, asked.epoch) is not None:
        return state, []
    host, cause = state.rules.host, f"rewound to epoch {asked.epoch}"
    if asked.accepted:
        cause += f", accepted: {', '.join(asked.accepted)}"

    def rewound(job: joblog.Job) -> joblog.Body:
        return joblog.Rewound(asked.epoch, joblog.next_first_epoch(job), host, cause, asked.accepted)

    since = at.now if state.recovering_since is None else state.recovering_since
    state = replace(state, phase=Opening(cause, stops=asked.stop), recovering_since=since)
    return append_record(state, rewound, at.at_us)


def is_last_act(state: Master) -> bool:
    """Return whether the run ends with a rewind and takes no further checkpoint."""
    return state.ends_repaired or (state.rewind is not None and state.rewind.stop)


def is_past(state: Master, message: m.Failed) -> bool:
    """Return whether the worker failed only because a target fenced output that a rewind of this job has abandoned."""
    return message.error.kind == Fenced.kind and message.generation < state.job.generation


def rewind_refusal(state: Master, args: Mapping[str, Any], *, ending: bool) -> str | None:
    """Return why a request to rewind is refused, None if it is not.

    Args:
        ending: The last barrier has been sent.
    """
    epoch, timeline, planned, job = args.get("epoch"), args.get("timeline"), args.get("planned"), state.job
    acceptances = args.get("accept", [])
    if not isinstance(epoch, int) or not isinstance(timeline, int) or not isinstance(planned, int | None):
        return "the request does not name an epoch and a timeline to rewind to"
    if not is_accept(acceptances):
        return "the request's `accept` is not a list of SINK:VERDICT"
    if (why := outdated(state, args)) is not None:
        return why
    if is_last_act(state):
        return "the job is rewinding and will stop there; rewind it when it has stopped"
    if state.ending is not None or ending:
        return "the job is ending; rewind it when it has ended"
    if args.get("stop") and state.savepoints:
        return f"savepoint {state.savepoints[0]!r} has not been taken yet; rewind when it is complete"
    if left := [sink for sink in state.rules.unrepairable if f"{sink}:impossible" not in acceptances]:
        return f"sink {left[0]!r} cannot take output back"
    return no_way_back(job, epoch) or no_way_back(_coming(state), epoch)


def outdated(state: Master, args: Mapping[str, Any]) -> str | None:
    """Return the change of the job since the rewind was planned; None if the plan still fits."""
    timeline, planned_generation, job = args.get("timeline"), args.get("planned"), state.job
    if not timeline == job.timeline == _coming(state).timeline or state.rewind is not None:
        return "another rewind of the job was accepted since the plan was made"
    if planned_generation is not None and planned_generation != job.generation:
        return (
            f"the job has recovered since the plan was made: it is in generation {job.generation}, not "
            f"{planned_generation}"
        )
    return None


def _coming(state: Master) -> joblog.Job:
    coming = append.expected(state.log)
    assert coming is not None, "a driver that owns the job has read its log"
    return coming


def accept_rewind(state: Master, args: Mapping[str, Any]) -> Master:
    """Rewind as soon as nothing is in flight."""
    accepted = tuple(sorted(set(args.get("accept", ()))))
    return replace(state, rewind=RewindWanted(Epoch(args["epoch"]), bool(args.get("stop")), accepted))


def is_accept(found: object) -> bool:
    """Return whether this is a list of text, as acceptances of the form SINK:VERDICT are."""
    return isinstance(found, list | tuple) and all(isinstance(each, str) for each in found)
