"""What the master does when somebody asks something of the running job: stop, finish, end now, take a savepoint.

A request names the generation that its asker saw. One that was made for an earlier run is answered and not carried
out; one for a generation that this driver does not know of yet is left for whoever owns that one.

How a run can end
    - `stop`: a last barrier where the sources stand; `Stopped` once all is delivered. Goes on later.
    - `stop --finish`: every source is read to where it ends when the request arrives (a recovery asks again), or no
      further with `unread: drop`; then what happens at the end of input happens: last watermark, last barrier,
      `Finished`. For good.
    - `stop --now`: no barrier and no record, as if the driver had been killed. Whatever was committed stays, the rest
      is read again by the next run.
    - `run --once`: the sources stop at the offsets that were their ends at the start; then as `stop`.

Invariants
    - A savepoint is an epoch triggered after it was asked for, and its name is inside `CheckpointCompleted` (P13).
    - A name stays asked for until an epoch that carries it is completed, over epochs given up and recoveries.
    - One epoch takes one name; the last barrier waits until at most one is left.
    - Nothing is accepted that the run will not do: one that ends with a rewind takes no savepoint, does not finish and
      goes back no second time.
    - Nothing is accepted before the start of this run is in the log: an older driver may still finish the job.
    - What a run has accepted and does not live to carry out is answered again, as refused (`left_undone`).

Pure: no clock, thread or I/O. Part of runtime/master.py.
Source: DESIGN section 13 (requests); PROTOCOL P6, P13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.model import Generation
from holdfast.runtime import messages as m
from holdfast.runtime import rewinding
from holdfast.runtime.deployment import all_ended, all_ready, assigned, nothing_new
from holdfast.runtime.failover import end
from holdfast.runtime.master_state import Effect, Master, Over, Running, Send, Step

SAVEPOINTS_WAITING_MAX = 16
DROP = "drop"
"""Of a request to finish: records that are not read yet never are."""
ENDED_NOW = "ended"
"""Outcome of a run that `stop --now` ended: nothing was appended, the job can be run again."""


@dataclass(frozen=True)
class Answer:
    """What a request led to."""

    accepted: bool
    generation: Generation
    reason: str | None = None
    """Why it was not carried out."""

    def as_json(self) -> dict[str, Any]:
        """Return the answer as it is stored beside the request."""
        return {"accepted": self.accepted, "generation": self.generation, "reason": self.reason}


def carry_out(
    state: Master, kind: str, args: Mapping[str, Any], generation: int, first: Generation
) -> tuple[Master, list[Effect], Answer | None]:
    """Do what a request asks, or say why not.

    Args:
        generation: The one that the request was made for.
        first: The first generation of this run.

    Returns:
        No answer if the request is for a generation that this driver has not seen, or its own is not in the log yet.
    """
    if not is_judged(state, generation, first):
        return state, [], None
    log = state.log.job
    assert log is not None
    refusal = _refusal(state, kind, args, generation, first)
    if refusal is not None:
        return state, [], Answer(False, log.generation, refusal)
    effects: list[Effect] = []
    if kind == "savepoint":
        state = replace(state, savepoints=(*state.savepoints, args["name"]))
    elif kind == "rewind":
        state = rewinding.accept(state, args)
    elif args.get("how") == "now":
        state, effects = end(state, ENDED_NOW, None)
    elif args.get("how") == "finish":
        state, effects = finish(state, drop_unread=args.get("unread") == DROP)
    else:
        state, effects = stop(state)
    return state, effects, Answer(True, log.generation)


def is_judged(state: Master, generation: int, first: Generation) -> bool:
    """Return whether this driver can say yes or no by now; see carry_out."""
    log = state.log.job
    if log is None or generation > log.generation:
        return False
    return generation < first or log.owner == state.log.owner or isinstance(state.phase, Over)


def left_undone(state: Master, kind: str, args: Mapping[str, Any]) -> str | None:
    """Return why a request that this run accepted was not carried out; None if it was, or the run is not over."""
    job, phase = state.log.job, state.phase
    if not isinstance(phase, Over) or (job is not None and _is_carried_out(job, phase, kind, args)):
        return None
    match phase.outcome:
        case "fenced":
            return "another run took the job over before it was carried out"
        case "failed" | "refused":
            return "the run failed before it was carried out"
        case _:
            return "the run was ended before it was carried out"


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
    """Take a last checkpoint, deliver it, and end the run; it can be resumed. A job that finishes goes on to finish."""
    return replace(state, stopping=not state.finish_asked), []


def finish(state: Master, *, drop_unread: bool = False) -> Step:
    """Read all sources to where they end now, or no further; then the run ends as at the end of input, for good."""
    state = replace(state, stopping=False, finish_asked=True, drop_unread=state.drop_unread or drop_unread)
    return state, end_input(state)


def end_input(state: Master) -> list[Effect]:
    """Tell the workers that their input ends; repeated until they have read it, as messages may be lost."""
    if not state.finish_asked or not isinstance(state.phase, Running) or not all_ready(state) or all_ended(state):
        return []
    return [Send(worker, m.EndInput(state.job.generation, state.drop_unread)) for worker in assigned(state)]


def is_over(state: Master) -> bool:
    """Return whether the next barrier is the last one."""
    caught_up = state.rules.until is not None and not state.finish_asked and _all_caught_up(state)
    read = all_ended(state) or caught_up
    return (state.stopping or read) and len(state.savepoints) <= 1


def is_due(state: Master, phase: Running, now: float) -> bool:
    """Return whether the next epoch is to be closed now, although it may not be the last."""
    if state.savepoints:
        return True
    wanted = state.epoch_wanted or not nothing_new(state, phase.epochs)
    return wanted and now - phase.last_trigger >= state.rules.checkpoint_every


def close_epoch(state: Master) -> Master:
    """Let the next epoch be closed when it is due, also if nothing is new."""
    return replace(state, epoch_wanted=True)


def next_name(state: Master) -> str | None:
    """Return the name that the next epoch carries."""
    return state.savepoints[0] if state.savepoints else None


def named(state: Master, phase: Running) -> Master:
    """The epoch is completed: its name is no longer asked for."""
    return replace(state, savepoints=tuple(name for name in state.savepoints if name != phase.savepoint))


def unless_taken(body: joblog.CheckpointCompleted) -> append.Draft:
    """Return the draft of the record: somebody may have given the name to another checkpoint just before it."""

    def draft(job: joblog.Job) -> joblog.Body:
        taken = body.savepoint is not None and job.savepoint(body.savepoint) is not None
        return structs.replace(body, savepoint=None) if taken else body

    return draft


def _refusal(state: Master, kind: str, args: Mapping[str, Any], generation: int, first: Generation) -> str | None:
    if generation < first:
        return f"it was made for generation {generation}, which belongs to an earlier run"
    if isinstance(state.phase, Over):
        return "the run is over"
    if kind == "stop":
        how = args.get("how")
        if how not in (None, "finish", "now"):
            return f"this version does not know how to stop {how!r}"
        if args.get("unread") not in (None, DROP):
            return f"this version does not know what to do with unread records: {args['unread']!r}"
        if how == "finish" and _only_stops(state):
            return "the job is stopping already, its last barrier is out; run it again, then finish it"
        if how == "finish" and rewinding.is_last_act(state):
            return "the job goes back and stops there; run it again, then finish it"
        return None
    if kind == "savepoint":
        return _no_savepoint(state, args.get("name"))
    if kind == "rewind":
        return rewinding.refusal(state, args, ending=_last_barrier_is_out(state))
    return f"this version does not know requests of the kind {kind!r}"


def _no_savepoint(state: Master, name: object) -> str | None:
    if not isinstance(name, str) or joblog.SAVEPOINT_NAME.fullmatch(name) is None:
        return f"{name!r} is no name for a savepoint"
    if state.job.savepoint(name) is not None:
        return f"there is a savepoint {name!r} already"
    if name in state.savepoints:
        return f"a savepoint {name!r} is being taken already"
    if len(state.savepoints) >= SAVEPOINTS_WAITING_MAX:
        return f"{len(state.savepoints)} savepoints are waiting already"
    if _last_barrier_is_out(state):
        return "the job is ending and its last barrier is out; name its last checkpoint when it has ended"
    if rewinding.is_last_act(state):
        return "the job goes back and stops there; name its last checkpoint when it has ended"
    return None


def _last_barrier_is_out(state: Master) -> bool:
    match state.phase:
        case Running(final=final) if final is not None:
            return True
        case Running(epochs=coordinator.Collecting(barrier=barrier) | coordinator.Deciding(barrier=barrier)):
            return barrier.last
        case _:
            return False


def _only_stops(state: Master) -> bool:
    """Return whether sources have halted before the end of their input; this generation cannot finish."""
    return isinstance(state.phase, Running) and state.phase.halted and not state.phase.finishing


def _all_caught_up(state: Master) -> bool:
    caught_up = [hosted for hosted in state.workers.values() if hosted.subtask is not None and hosted.caught_up]
    return len(caught_up) == state.rules.parallelism
