"""The job master: takes one event, returns the next state and the effects, by the table `ON`.

The package's docstring explains the theory. A pair of phase and event that is not in the table changes nothing;
`IGNORED` gives the reason. Requests of users are outside the table: their answer depends on the log, not on the phase
(requests.py).

Pure: no clock, thread or I/O. Driven by runtime/driver/loop.py, in production, tests and simulation alike.
Source: PROTOCOL P2, P4, P5, P6, P9, P10, P13, P18; DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.errors import ErrorReport, Fenced, HoldfastError, Where
from holdfast.frozen import changed, replace
from holdfast.model import Generation, WorkerId
from holdfast.runtime.driver import partitions, standbys
from holdfast.runtime.driver.deployment import all_ended, confirm
from holdfast.runtime.driver.epochs import completed, coordinate, expired, manifest_stored, repeated, turn
from holdfast.runtime.driver.events import (
    AppendUnknown,
    Beat,
    CreateRecord,
    Effect,
    End,
    EpochAsked,
    Event,
    LaunchEnded,
    ManifestLoaded,
    ManifestStored,
    Moment,
    RecordFound,
    Send,
    SourcesListed,
    SourcesUnlisted,
    Step,
    StopAsked,
    TargetsRepaired,
    Tick,
    WorkerStreamClosed,
    append_record,
)
from holdfast.runtime.driver.failover import (
    all_run,
    end,
    forget_old,
    forgive_own_pause,
    launch_ended,
    launch_missing,
    lose,
    recover,
    spoken_for,
    standby_failed,
    stream_closed,
    trust,
)
from holdfast.runtime.driver.gathering import (
    base_loaded,
    deploy_if_complete,
    gather,
    placement_refusal,
    repaired,
)
from holdfast.runtime.driver.partitions import begin_listing, hold_back, is_awaited, reason_to_list, unlisted
from holdfast.runtime.driver.requests import end_input, is_past, start_rewind, stop
from holdfast.runtime.driver.state import (
    Delivering,
    Deployed,
    Exhausted,
    Gathering,
    Halted,
    Hosted,
    Interrupted,
    Loading,
    Master,
    Opening,
    Over,
    Phase,
    Repaired,
    Repairing,
    RewindWanted,
    Rules,
    Running,
)
from holdfast.runtime.wire import messages as m


def begin(rules: Rules, owner: str, job: joblog.Job | None, cause: str, at_us: int) -> Step:
    """Take over the job that the log describes, or create it."""
    state = Master(rules, append.Quiet(owner, job), Opening(cause))
    if job is not None:
        return recover(state, cause, at_us)
    body = joblog.JobCreated(rules.name, rules.key_groups)
    log, creates = append.create_job(append.Quiet(owner, None), body, rules.job_uuid, at_us)
    return replace(state, log=log), [CreateRecord(each.record) for each in creates if isinstance(each, append.Create)]


def begin_rewind(rules: Rules, owner: str, job: joblog.Job, asked: RewindWanted, at_us: int) -> Step:
    """Take over a job that is not running, rewind it, repair its targets, and end; no worker is needed."""
    state = Master(rules, append.Quiet(owner, job), Opening("rewinding"))
    return start_rewind(state, asked, Moment(0.0, at_us))


def step(state: Master, event: Event, at: Moment) -> Step:
    """Take one event; return the next state, and the effects for the loop, in order."""
    on = ON.get((type(state.phase), type(event)))
    if on is None:
        return state, []
    after, effects = on.handler(state, event, at)
    assert type(after.phase) in (type(state.phase), *on.to), f"{type(event).__name__} led to {after.phase}"
    return after, effects


# The log


def record_found(state: Master, event: RecordFound, at: Moment) -> Step:
    """This record occupies the number of the record in flight."""
    if not isinstance(state.log, append.InFlight) or state.log.record.seq != event.record.seq:
        return state, []
    log, found = append.occupied(state.log, event.record)
    state = replace(state, log=log)
    out: list[Effect] = []
    for each in found:
        match each:
            case append.Create(record):
                out.append(CreateRecord(record))
            case append.Lost(job, _) if job.finished:
                state, more = end(state, "finished", None)
                out += more
            case append.Lost(job, _):
                state = replace(state, phase=Over("fenced"))
                out.append(End("fenced", taken_over(job)))
            case append.Appended(record, _):
                state, more = _appended(state, record, at)
                out += more
    return state, out


def append_unknown(state: Master, event: AppendUnknown, at: Moment) -> Step:
    """Send the record again (P4)."""
    if not isinstance(state.log, append.InFlight):
        return state, []
    return state, [CreateRecord(each.record) for each in append.retry(state.log)]


def taken_over(job: joblog.Job) -> ErrorReport:
    """Return the error of a driver that another one has fenced.

    Args:
        job: The log with the record of the other driver.
    """
    if job.generation == 0:
        return Fenced(
            f"holdfast fork created job {job.name!r} while this run started",
            not_done="this run was not started and nothing was changed",
            next_step=f"see holdfast status {job.name}; a new run begins with the forked checkpoint",
            where=Where(job=job.name),
        ).report()
    return Fenced(
        f"another run took over job {job.name!r}, which is now in generation {job.generation}",
        not_done="nothing was written after the takeover",
        next_step=f"let that run continue; to see it: holdfast status {job.name}",
        where=Where(job=job.name),
    ).report()


def _appended(state: Master, record: joblog.Record, at: Moment) -> Step:
    match record.body:
        case joblog.JobCreated():
            assert isinstance(state.phase, Opening)
            return recover(state, state.phase.cause, at.at_us)
        case joblog.GenerationStarted() | joblog.Rewound():
            return gather(state, at.now)
        case joblog.CheckpointCompleted():
            return completed(state, at.now)
        case joblog.Expired() | joblog.LogStart():
            return state, expired(state)
        case joblog.Finished():
            return end(state, "finished", None)
        case joblog.Stopped():
            return end(state, "stopped", None)
        case joblog.SavepointNamed():
            raise AssertionError("a driver names a checkpoint in the checkpoint's own record")
        case joblog.Forked():
            raise AssertionError("a fork is not created by a driver")


# Messages of workers


def registered(state: Master, message: m.Register, at: Moment) -> Step:
    """A worker registered."""
    if message.worker in state.workers:
        return state, []
    launching = {number: since for number, since in state.launching.items() if number != message.launch}
    refusal = placement_refusal(state.rules, message)
    if refusal is not None and state.deployed is not None and state.all_hosted:  # it would be a standby
        state = standby_failed(replace(state, launching=launching), refusal.what, at.now)
        return state, [Send(message.worker, m.Exit(refusal.what))]
    silent = m.Heartbeat(message.worker, Generation(0), False, False, (), m.WorkerProgress())
    hosted = Hosted(message.data_address, message.host, message.pid, message.launch, at.now, silent)
    state = replace(state, launching=launching, workers=changed(state.workers, message.worker, hosted))
    state = trust(state, message.host)
    if refusal is not None:
        return end(state, "refused", refusal)
    if isinstance(state.phase, Deployed):
        state = standbys.cover(state)
        return state, standbys.follow(state)
    return deploy_if_complete(state, at.now) if isinstance(state.phase, Gathering) else (state, [])


def too_late(state: Master, message: m.Register, at: Moment) -> Step:
    """A worker registered after the end of the run."""
    return state, [Send(message.worker, m.Exit("the run is over"))]


def failed(state: Master, message: m.Failed, at: Moment) -> Step:
    """A worker reports an error that it cannot overcome."""
    if message.worker not in state.workers:
        return state, []
    if message.permanent and not is_past(state, message):
        return end(state, "failed", message.error)  # in any generation: it would recur
    if message.error.kind == m.ENDED:  # it may know no generation yet
        return lose(state, message.worker, message.error.what, message.error, at.now)
    state, _ = heard(state, message, at)
    if not isinstance(state.phase, Deployed) or message.generation != state.job.generation:
        return state, []
    return lose(state, message.worker, message.error.what, message.error, at.now)


def heard(state: Master, message: m.Heartbeat | m.Ready | m.Ack | m.Failed, at: Moment) -> Step:
    """The worker is alive; nothing else counts in this phase."""
    hosted = state.workers.get(message.worker)
    return (state, []) if hosted is None else (_update(state, message.worker, replace(hosted, seen=at.now)), [])


Handler = Callable[[Master, Any, Moment], Step]


def of_this_generation(handler: Handler) -> Handler:
    """Return the handler for a message that counts only in its generation (P2); any shows that its worker is alive."""

    def on(state: Master, message: m.Heartbeat | m.Ready | m.Ack, at: Moment) -> Step:
        state, _ = heard(state, message, at)
        known = message.worker in state.workers and message.generation == state.job.generation
        return handler(state, message, at) if known else (state, [])

    return on


def beating(state: Master, message: m.Heartbeat, at: Moment) -> Step:
    """A worker reports how far it is."""
    worker_entry, phase = state.workers[message.worker], state.phase
    assert isinstance(phase, Deployed)
    if (
        worker_entry.last_words is not None and worker_entry.last_words.state != "ended"
    ):  # else this was sent before the end
        worker_entry = replace(worker_entry, last_words=None)
    if message.wants_barrier and not isinstance(phase.epochs, coordinator.Idle):
        message = structs.replace(message, wants_barrier=False)  # the barrier on its way takes the changes
    worker_entry = replace(worker_entry, heartbeat=message)
    if message.broken and phase.broken_since is None:
        state = replace(state, phase=replace(phase, broken_since=at.now))
    state = _update(state, message.worker, worker_entry)
    if state.standby_failures and worker_entry.subtask is None and standbys.are_complete(state):
        state = replace(state, standby_failures=0)
    return confirm(state, message.delivered), []


def ready(state: Master, message: m.Ready, at: Moment) -> Step:
    """A subtask takes records."""
    hosted = replace(state.workers[message.worker], ready=True, how=message.how)
    state = _update(state, message.worker, hosted)
    return all_run(state, at.now) if state.all_ready else state, []


def acked(state: Master, message: m.Ack, at: Moment) -> Step:
    """A subtask has stored its part of an epoch."""
    phase = state.phase
    assert isinstance(phase, Deployed)
    state = confirm(state, message.part.delivered)
    epochs, effects = coordinator.acked(phase.epochs, message.epoch, message.part)
    return coordinate(replace(state, phase=replace(phase, epochs=epochs)), effects, at.now)


def _update(state: Master, worker: WorkerId, hosted: Hosted) -> Master:
    return replace(state, workers=changed(state.workers, worker, hosted))


# Sources, time and the user


def listed(state: Master, event: SourcesListed, at: Moment) -> Step:
    """Take the partitions that the sources have."""
    if not is_awaited(state, event.number):
        return state, []
    after = partitions.listed(state, event.partitions, at.now)
    if isinstance(after, HoldfastError):
        return end(state, "failed", after.report())
    return after, end_input(after)


def tick(state: Master, event: Tick, at: Moment) -> Step:
    """Handle the passing of time: silent workers, missing workers, due and overdue epochs."""
    now = at.now
    state = forget_old(forgive_own_pause(state, now), now)
    effects: list[Effect] = []
    for worker, hosted in list(state.workers.items()):
        if not isinstance(state.phase, Over) and now - hosted.seen > state.rules.silent_after:
            cause = f"worker {worker} on {hosted.host} was silent for {now - hosted.seen:.1f} s"
            state, more = lose(state, worker, cause, None, now)
            effects += more
    if isinstance(state.phase, Over):
        return state, effects
    if isinstance(state.log, append.Quiet):
        state, more = _start_what_is_due(state, at)
        effects += more
    state, more = launch_missing(state, now)
    effects += more
    state = standbys.cover(state)
    if isinstance(state.phase, Deployed):
        state, more = turn(state, state.phase, at)
        effects += more
    if isinstance(state.phase, Deployed) and state.all_ready:
        reason = reason_to_list(state, state.phase, now, ended=all_ended(state))
        state, more = (state, []) if reason is None else begin_listing(state, state.phase, reason, now)
        effects += more
    return state, effects


def _start_what_is_due(state: Master, at: Moment) -> Step:
    """Nothing is in flight: start a requested rewind or a recovery that is due, or end a run that only rewinds."""
    if state.rewind is not None:
        return start_rewind(state, state.rewind, at)
    match state.phase:
        case Interrupted(cause=cause):
            return recover(state, cause, at.at_us)
        case Repaired():
            return append_record(state, lambda job: joblog.Stopped(job.base_epoch), at.at_us)
        case _:
            return state, []


def beat(state: Master, event: Beat, at: Moment) -> Step:
    """Show the workers that the driver is alive, and repeat messages that may have been lost."""
    again = repeated(state)
    state, limits = hold_back(state, at.now, event.every)
    return state, [*again, *limits]


def stop_asked(state: Master, event: StopAsked, at: Moment) -> Step:
    """Take a last checkpoint and end the run."""
    return stop(state)


def epoch_asked(state: Master, event: EpochAsked, at: Moment) -> Step:
    """Close the next epoch when it is due, even if nothing is new."""
    return replace(state, epoch_wanted=True), []


# The table


@dataclass(frozen=True)
class On:
    """The handler of an event in a phase."""

    handler: Handler
    to: tuple[type, ...] = ()
    """The phases, other than this one, that may follow."""


_BEFORE = (Opening, Loading, Repairing, Repaired, Gathering)
_DEPLOYED = (Running, Exhausted, Halted, Delivering)
_LIVE = (*_BEFORE, *_DEPLOYED, Interrupted)
PHASES = (*_LIVE, Over)
_AFTER_A_LOSS: Mapping[type, tuple[type, ...]] = {
    **dict.fromkeys(_LIVE, (Over,)),
    **dict.fromkeys(_DEPLOYED, (Interrupted, Over)),
}
"""Phases that may follow the loss of a worker or the end of its process: always including the end, by the restart
limit."""


def _rows(event: type, handler: Handler, to: Mapping[type, tuple[type, ...]]) -> dict[tuple[type, type], On]:
    return {(phase, event): On(handler, phases) for phase, phases in to.items()}


def _same(*phases: type) -> Mapping[type, tuple[type, ...]]:
    return dict.fromkeys(phases, ())


ON: Mapping[tuple[type[Phase], type], On] = {
    **_rows(RecordFound, record_found, {
        Opening: (Loading, Gathering, Running, Over),
        Repaired: (Over,),
        Running: (Over,),
        Exhausted: (Over,),
        Halted: (Delivering, Over),
        Delivering: (Over,),
        Interrupted: (Over,),
    }),
    **_rows(AppendUnknown, append_unknown, _same(Opening, Repaired, *_DEPLOYED, Interrupted)),
    **_rows(ManifestLoaded, base_loaded, {Loading: (Repairing, Gathering, Running, Over)}),
    **_rows(TargetsRepaired, repaired, {Repairing: (Repaired, Gathering, Running)}),
    **_rows(ManifestStored, manifest_stored, _same(Running, Exhausted, Halted)),
    **_rows(SourcesListed, listed, {
        **dict.fromkeys(_LIVE, (Over,)),
        Running: (Exhausted, Over),
    }),
    **_rows(SourcesUnlisted, unlisted, _same(*_LIVE)),
    **_rows(m.Register, registered, {**dict.fromkeys(_LIVE, (Over,)), Gathering: (Running, Over)}),
    **_rows(m.Register, too_late, {Over: ()}),
    **_rows(m.Heartbeat, heard, _same(*_LIVE)),
    **_rows(m.Heartbeat, of_this_generation(beating), _same(*_DEPLOYED)),
    **_rows(m.Ready, heard, _same(*_LIVE)),
    **_rows(m.Ready, of_this_generation(ready), _same(*_DEPLOYED)),
    **_rows(m.Ack, heard, _same(*_LIVE)),
    **_rows(m.Ack, of_this_generation(acked), _same(*_DEPLOYED)),
    **_rows(m.Failed, failed, _AFTER_A_LOSS),
    **_rows(m.Vitals, spoken_for, _AFTER_A_LOSS),
    **_rows(WorkerStreamClosed, stream_closed, _AFTER_A_LOSS),
    **_rows(LaunchEnded, launch_ended, _AFTER_A_LOSS),
    **_rows(Tick, tick, {
        Opening: (Over,),
        Loading: (Opening, Over),
        Repairing: (Opening, Over),
        Repaired: (Over,),
        Gathering: (Opening, Over),
        Running: (Halted, Interrupted, Opening, Over),
        Exhausted: (Halted, Interrupted, Opening, Over),
        Halted: (Interrupted, Opening, Over),
        Delivering: (Interrupted, Opening, Over),
        Interrupted: (Opening, Over),
    }),
    **_rows(Beat, beat, _same(*_LIVE)),
    **_rows(StopAsked, stop_asked, _same(*_LIVE)),
    **_rows(EpochAsked, epoch_asked, _same(*_LIVE)),
}  # fmt: skip
"""The master's handler of each event in each phase; docs/architecture.md draws it."""

IGNORED: Mapping[type, str] = {
    RecordFound: "nothing is in flight: the answer to a repeated append",
    AppendUnknown: "nothing is in flight: its number was read meanwhile",
    ManifestLoaded: "the generation that asked for it is over, or has it",
    TargetsRepaired: "the generation that asked for it is over",
    ManifestStored: "the generation that closed its epoch is over, or the last epoch is completed",
}
"""Why an event changes nothing in the phases that the table does not name for it. The run's end ignores the others."""
