"""The job master: the driver's view of one job, from start to end. Its theory of operation:

One driver process owns a job at a time. Which one is decided by the job log alone: a sequence of records in an object
store, each created only if no object of its number exists. The log is the one thing that drivers share, and the one
thing that is never wrong. What a driver knows beyond it is a guess about processes that may be slow, cut off or dead.

What a job is at any moment is the fold of its log. A *generation* begins with a record, `GenerationStarted` or
`Rewound`; a driver that finds the start of a newer one where it wanted to append is fenced and leaves. Within its
generation a driver closes *epochs*: sources send a barrier, every subtask freezes its state where the barrier passes
and stores it, a manifest names all the parts, and the record of that manifest commits the epoch. Before the record
nothing has happened; after it everything has, though targets may show it later: committed output is delivered by the
workers, first in, first out, for as long as it takes, and every manifest names what is not known to be delivered.

From this follows what the driver does when something fails. It does not find out what a lost worker did. It appends
the start of a new generation, whose base is the last completed epoch, lets every survivor roll back to it in place,
and restores the lost subtasks elsewhere. Whatever old workers still do happens under an old generation: their messages
are ignored, their streams closed, their writes fenced by the tags in the targets. A rewind is the same with an older
base and a new *timeline*, and with one more step: targets take back what the older timeline had delivered beyond it.

The master decides; it does nothing. It takes one event at a time and returns the next state and the effects, in order.
runtime/driver/loop.py performs them and reports each result as another event; messages may be lost, repeated or late,
and any event may come in any phase. So no handler relies on the event before it, and `tick` repeats what has no answer.

    Opening ------> Gathering ------> Running ------> Over
    the start is    base, repairs,    epochs close    the outcome
    in flight       workers come      one by one
       ^                                 |
       +--------- Interrupted <----------+
                  a worker was lost

    - Opening: the start of the generation is in flight. Nothing may be assumed about who owns the job.
    - Gathering: the log holds the start. The base is loaded, targets are repaired after a rewind, workers come up. A
      run that was to end with a rewind ends here.
    - Running: every subtask has a worker. The coordinator opens one epoch after the other, unless nothing is new.
    - Interrupted: the generation cannot continue. A record in flight is settled first, as its epoch may be complete.
    - Over: nothing is heard any more.

How the user wants the run to end (`Master.ending`) and where to go back to (`Master.rewind`) outlive these phases:
they are requests, and a recovery in between does not undo them.

The parts, all pure: master_state.py (what is known, and the effects), gathering.py (from a start to the deployment),
deployment.py (what is derived from the state), failover.py (losses, the restart limit, launches), rewinding.py,
retention.py (what expires), master_requests.py (what users ask), invariants.py (what must hold between two events).
Scripts of events with the effects that follow are in tests/transcripts/master.

Invariants
    - Nothing is deployed before the log holds the start of this generation, `GenerationStarted` or `Rewound`.
    - An append in doubt is settled before the next generation is appended (P4).
    - The master never sends to a lost worker again. If that worker is alive it is a zombie, and every message
      from it carries an old generation or arrives on a closed stream (P2).
    - The run ends only when the last epoch is completed and delivered (P13).

Pure: no clock, thread or I/O. Driven by runtime/driver/loop.py, in production, tests and simulation alike.
Source: PROTOCOL P2, P4, P5, P6, P9, P10, P13, P18; DESIGN sections 3 and 4.
"""

from __future__ import annotations

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ErrorReport, Fenced, Where
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Epoch, ObjectRef, Tag, Timeline, WorkerId
from holdfast.runtime.driver import placement, retention, rewinding
from holdfast.runtime.driver.deployment import (
    all_ended,
    all_ready,
    assigned,
    completion,
    confirm,
    deployment,
    launch_allowed_at,
    next_manifest,
    nothing_new,
    older_output_is_left,
)
from holdfast.runtime.driver.failover import (
    all_run,
    count_failure,
    end,
    forgive_own_pause,
    is_held,
    launch_ended,
    launch_missing,
    lose,
    lost,
    spoken_for,
)
from holdfast.runtime.driver.gathering import base_loaded, deploy_if_complete, gather, repaired
from holdfast.runtime.driver.requests import (
    carry_out,
    close_epoch,
    end_input,
    is_due,
    is_judged,
    is_over,
    left_undone,
    named,
    next_name,
    stop,
    unless_taken,
)
from holdfast.runtime.driver.state import (
    Cancel,
    Checked,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    Gathering,
    GoneSinks,
    Hosted,
    Interrupted,
    Launch,
    LoadManifest,
    Master,
    Opening,
    Over,
    RepairTargets,
    Restart,
    RewindWanted,
    Rules,
    Running,
    Send,
    Step,
    StoreManifest,
    Sweep,
)
from holdfast.runtime.wire import messages as m

__all__ = [
    "Cancel",
    "Checked",
    "CreateRecord",
    "Dismiss",
    "Effect",
    "End",
    "Gathering",
    "GoneSinks",
    "Hosted",
    "Interrupted",
    "Launch",
    "LoadManifest",
    "Master",
    "Opening",
    "Over",
    "RepairTargets",
    "Restart",
    "RewindWanted",
    "Rules",
    "Running",
    "Send",
    "Step",
    "StoreManifest",
    "Sweep",
    "base_loaded",
    "begin",
    "begin_rewind",
    "carry_out",
    "close_epoch",
    "end",
    "heard",
    "is_judged",
    "launch_ended",
    "left_undone",
    "lost",
    "repaired",
    "stop",
    "taken_over",
    "tick",
]

BROKEN_GRACE_S = 1.0
"""How long the loss of a worker may lag behind its peers' reports of broken channels."""


def begin(rules: Rules, owner: str, job: joblog.Job | None, cause: str, at_us: int) -> Step:
    """Take over the job that the log describes, or create it."""
    state = Master(rules, append.Quiet(owner, job), Opening(cause))
    if job is None:
        body = joblog.JobCreated(rules.name, rules.key_groups)
        log, effects = append.create_job(append.Quiet(owner, None), body, rules.job_uuid, at_us)
        return _log_effects(replace(state, log=log), effects, 0.0, at_us)
    return _start_generation(state, cause, at_us)


def begin_rewind(rules: Rules, owner: str, job: joblog.Job, asked: RewindWanted, at_us: int) -> Step:
    """Take over a job that is not running, rewind it, repair its targets, and end; no worker is needed."""
    state = Master(rules, append.Quiet(owner, job), Opening("rewinding"))
    return rewinding.start(state, asked, 0.0, at_us)


def record_found(state: Master, record: joblog.Record, now: float, at_us: int) -> Step:
    """The slot of the record in flight is occupied by this record."""
    if isinstance(state.phase, Over):
        return state, []
    if not isinstance(state.log, append.InFlight) or state.log.record.seq != record.seq:
        return state, []
    log, effects = append.occupied(state.log, record)
    return _log_effects(replace(state, log=log), effects, now, at_us)


def retry_append(state: Master) -> Step:
    """The outcome of an append is unknown: send it again (P4)."""
    if not isinstance(state.log, append.InFlight) or isinstance(state.phase, Over):
        return state, []
    return state, [CreateRecord(effect.record) for effect in append.retry(state.log)]


def manifest_stored(state: Master, manifest: Manifest, ref: ObjectRef, now: float, at_us: int) -> Step:
    """The manifest is durable: append the record that makes it true."""
    phase = state.phase
    if not isinstance(phase, Running) or phase.storing != manifest:
        return state, []
    assert isinstance(state.log, append.Quiet)
    assert isinstance(phase.epochs, coordinator.Deciding)
    body = completion(phase, manifest, ref, round((now - phase.epochs.started) * 1000))
    log, effects = append.append(state.log, unless_taken(body), at_us)
    return _log_effects(replace(state, log=log), effects, now, at_us)


def registered(state: Master, message: m.Register, now: float) -> Step:
    """A worker came up."""
    if isinstance(state.phase, Over):
        return state, [Send(message.worker, m.Exit("the run is over"))]
    if message.worker in state.workers:
        return state, []
    launching = {number: at for number, at in state.launching.items() if number != message.launch}
    hosted = Hosted(message.data_address, message.host, message.pid, message.launch, now)
    state = replace(state, launching=launching, workers={**state.workers, message.worker: hosted})
    if (refused := placement.refusal(state.rules, message)) is not None:
        return end(state, "refused", refused)
    return deploy_if_complete(state, now)


def heard(state: Master, message: m.FromWorker, now: float) -> Step:
    """Take a message from a worker."""
    if isinstance(message, m.Register):
        return registered(state, message, now)
    hosted = state.workers.get(message.worker)
    if hosted is None or isinstance(state.phase, Over):
        return state, []
    if isinstance(message, m.Vitals):
        return spoken_for(state, message, now)
    if isinstance(message, m.Failed) and message.permanent and not rewinding.is_past(state, message):
        return end(state, "failed", message.error)  # in any generation: it would recur
    state = _update(state, message.worker, replace(hosted, seen=now))
    phase = state.phase
    if not isinstance(phase, Running) or message.generation != state.job.generation:
        return state, []
    match message:
        case m.Heartbeat():
            return _heartbeat(state, message, now)
        case m.Ready():
            hosted = replace(state.workers[message.worker], ready=True, how=message.how)
            state = _update(state, message.worker, hosted)
            return all_run(state, now) if all_ready(state) else state, []
        case m.Ack():
            state = confirm(state, message.part.delivered)
            epochs, effects = coordinator.acked(phase.epochs, message.epoch, message.part)
            return _coordinate(replace(state, phase=replace(phase, epochs=epochs)), effects, now)
        case m.Failed():
            return lose(state, message.worker, message.error.what, message.error, now)


def tick(state: Master, now: float, at_us: int) -> Step:
    """Time has passed: look for silent workers, missing workers, due and overdue epochs."""
    if isinstance(state.phase, Over):
        return state, []
    state = forgive_own_pause(state, now)
    effects: list[Effect] = []
    for worker, hosted in list(state.workers.items()):
        if not isinstance(state.phase, Over) and now - hosted.seen > state.rules.silent_after:
            state, more = lose(state, worker, f"worker {worker} was silent for {now - hosted.seen:.1f} s", None, now)
            effects += more
    if isinstance(state.phase, Over):
        return state, effects
    if isinstance(state.log, append.Quiet):
        state, more = _start_what_is_due(state, now, at_us)
        effects += more
    state, more = launch_missing(state, now)
    effects += more
    if isinstance(state.phase, Running):
        state, more = _tick_running(state, state.phase, now, at_us)
        effects += more
    return state, effects


def _start_what_is_due(state: Master, now: float, at_us: int) -> Step:
    """Nothing is in flight: start a requested rewind or a recovery that is due, or end a run that only rewinds."""
    if state.rewind is not None:
        return rewinding.start(state, state.rewind, now, at_us)
    if isinstance(state.phase, Interrupted):
        return _start_generation(state, state.phase.cause, at_us)
    if (draft := rewinding.end(state)) is not None:
        assert isinstance(state.log, append.Quiet)
        log, appends = append.append(state.log, draft, at_us)
        return _log_effects(replace(state, log=log), appends, now, at_us)
    return state, []


def pulse(state: Master) -> list[Effect]:
    """Show the workers that the driver lives; where no barrier follows, repeat what is committed (P9)."""
    effects: list[Effect] = [Send(worker, m.Pulse()) for worker in state.workers]
    if state.running is not None and (committed := _said_by_no_barrier(state, state.running)) is not None:
        effects += [Send(w, _committed(state, committed)) for w in assigned(state)]
    return effects + end_input(state)


def _committed(state: Master, epoch: Epoch) -> m.Committed:
    newest = state.job.completed[-1].body
    assert newest.epoch == epoch
    return m.Committed(state.job.generation, epoch, newest.manifest.sha256)


def _said_by_no_barrier(state: Master, phase: Running) -> Epoch | None:
    """Return the last epoch if no barrier will announce it: it ends the run, or nothing is new since."""
    if phase.final is not None:
        return phase.final
    match phase.epochs:
        case coordinator.Idle(committed_through=committed) if nothing_new(state, phase.epochs):
            return committed
        case _:
            return None


def _tick_running(state: Master, phase: Running, now: float, at_us: int) -> Step:
    broken = phase.broken_since is not None and now - phase.broken_since > BROKEN_GRACE_S
    # The cause may persist, so launches are paced: not one recovery per second. A recovery that has to wait for a held
    # worker would break in the same way.
    if broken and now >= launch_allowed_at(state) and not is_held(state):
        cause = "a data channel broke between live workers"
        state, ending = count_failure(replace(state, recovering_since=phase.broken_since), now, None, cause)
        return (state, ending) if isinstance(state.phase, Over) else _start_generation(state, cause, at_us)
    if not all_ready(state):
        if now - phase.deployed_at > state.rules.redeploy_every:
            late = [w for w, hosted in state.workers.items() if hosted.subtask is not None and not hosted.ready]
            state = replace(state, phase=replace(phase, deployed_at=now))
            return state, [Send(w, deployment(state, phase.base, w)) for w in late]
        return state, []
    if phase.final is not None:
        return _finish_if_delivered(state, phase, at_us)
    match phase.epochs:
        case coordinator.Idle() as idle:
            if older_output_is_left(state, phase.base) or not isinstance(state.log, append.Quiet):
                return state, []
            if (draft := retention.draft(state, at_us)) is not None:
                log, appends = append.append(state.log, draft, at_us)
                return _log_effects(replace(state, log=log), appends, now, at_us)
            over = is_over(state)
            if not (over or is_due(state, phase, now)):
                return state, []
            epochs, effects = coordinator.trigger(idle, now, over)
            finishing, halted = over and all_ended(state), phase.halted or over
            phase = replace(phase, epochs=epochs, last_trigger=now, finishing=finishing, halted=halted)
            phase = replace(phase, savepoint=next_name(state))
            state = replace(state, phase=phase, epoch_wanted=False)
            return _coordinate(state, effects, now)
        case coordinator.Collecting(started=started) as collecting if now - started > state.rules.epoch_deadline:
            epochs, effects = coordinator.deadline_passed(collecting)
            state = replace(state, phase=replace(phase, epochs=epochs), given_up=state.given_up + 1)
            return _coordinate(state, effects, now)
        case _:
            return state, []


def _coordinate(state: Master, effects: list[coordinator.Effect], now: float) -> Step:
    """Turn what the coordinator decided into what the driver does."""
    out: list[Effect] = []
    generation = state.job.generation
    for effect in effects:
        match effect:
            case coordinator.Trigger(barrier):
                finishing = isinstance(state.phase, Running) and state.phase.finishing
                out += [Send(w, m.Trigger(generation, barrier, finishing)) for w in assigned(state)]
            case coordinator.Announce(epoch):
                out += [Send(w, _committed(state, epoch)) for w in assigned(state)]
            case coordinator.Decide(_, started, _):
                manifest = next_manifest(state, effect)
                assert isinstance(state.phase, Running)
                state = replace(state, phase=replace(state.phase, storing=manifest))
                out.append(StoreManifest(manifest, started))
            case coordinator.MustRecover(given_up):
                assert isinstance(state.phase, Running)
                phase = Interrupted(state.phase, f"{given_up} epochs in a row were not completed")
                state = replace(state, phase=phase, recovering_since=now)
            case coordinator.GivenUp():
                pass
    return state, out


def _log_effects(state: Master, effects: list[append.Effect], now: float, at_us: int) -> Step:
    out: list[Effect] = []
    for effect in effects:
        match effect:
            case append.Create(record):
                out.append(CreateRecord(record))
            case append.Lost(job, _) if job.finished:
                state, more = end(state, "finished", None)
                out += more
            case append.Lost(job, _):
                state = replace(state, phase=Over("fenced"))
                out.append(End("fenced", taken_over(job)))
            case append.Appended(record, _):
                state, more = _appended(state, record, now, at_us)
                out += more
    return state, out


def taken_over(job: joblog.Job) -> ErrorReport:
    """Return the error of a driver that another one has fenced.

    Args:
        job: The log with the record of the other driver.
    """
    return Fenced(
        f"another run took over job {job.name!r}, which is now in generation {job.generation}",
        not_done="nothing was written after the takeover",
        next_step=f"let that run continue; to see it: holdfast status {job.name}",
        where=Where(job=job.name),
    ).report()


def _appended(state: Master, record: joblog.Record, now: float, at_us: int) -> Step:
    match record.body:
        case joblog.JobCreated():
            assert isinstance(state.phase, Opening)
            return _start_generation(state, state.phase.cause, at_us)
        case joblog.GenerationStarted() | joblog.Rewound():
            return gather(state, now)
        case joblog.CheckpointCompleted():
            return _completed(state, now, at_us)
        case joblog.Expired() | joblog.LogStart():
            return state, retention.appended(state)
        case joblog.Finished():
            return end(state, "finished", None)
        case joblog.Stopped():
            return end(state, "stopped", None)
        case joblog.SavepointNamed():
            raise AssertionError("a driver names a checkpoint in the checkpoint's own record")


def _start_generation(state: Master, cause: str, at_us: int) -> Step:
    """Append the start of a new generation; its base is the last completed epoch in the log before it (P5)."""
    if not isinstance(state.log, append.Quiet):
        assert state.running is not None, "a record in flight is the start of a generation, or one is running"
        return replace(state, phase=Interrupted(state.running, cause)), []
    host = state.rules.host
    log, effects = append.append(
        state.log,
        lambda job: joblog.GenerationStarted(joblog.next_first_epoch(job), job.base_epoch, host, cause),
        at_us,
    )
    state = replace(state, log=log, phase=Opening(cause))
    return _log_effects(state, effects, 0.0, at_us)


def _completed(state: Master, now: float, at_us: int) -> Step:
    phase = state.running
    if phase is None or not isinstance(phase.epochs, coordinator.Deciding):
        return state, []
    last_barrier = phase.epochs.barrier.last
    epochs, effects = coordinator.appended(phase.epochs)
    final = phase.epochs.barrier.epoch if last_barrier else None
    # The first epoch of a generation settles what older generations left behind.
    sweeps: list[Effect] = [Sweep(state.job)] if phase.last is phase.base and state.job.generation > 1 else []
    phase = replace(phase, epochs=epochs, last=phase.storing, storing=None, final=final)
    after = replace(state.phase, running=phase) if isinstance(state.phase, Interrupted) else phase
    state = named(replace(state, phase=after, failures_in_a_row=0), phase)
    state, out = _coordinate(state, effects, now)
    return state, out + sweeps


def _finish_if_delivered(state: Master, phase: Running, at_us: int) -> Step:
    """Append the end once all output is delivered; until then the commit is repeated (P13)."""
    assert phase.last is not None and phase.final is not None
    open_ = [p for p in phase.last.pending if state.confirmed.get(p.writer, Tag(Timeline(0), NO_EPOCH)) < p.tag]
    if open_ or not isinstance(state.log, append.Quiet):
        return state, []
    final = phase.final
    body: joblog.Body = joblog.Finished(final) if phase.finishing else joblog.Stopped(final)
    log, effects = append.append(state.log, lambda _job: body, at_us)
    return _log_effects(replace(state, log=log), effects, 0.0, at_us)


def _heartbeat(state: Master, message: m.Heartbeat, now: float) -> Step:
    hosted = state.workers[message.worker]
    hosted = replace(hosted, ended=message.ended, caught_up=message.caught_up, progress=message.progress)
    hosted = replace(hosted, last_words=None, quiet=message.quiet)
    if message.broken and isinstance(state.phase, Running) and state.phase.broken_since is None:
        state = replace(state, phase=replace(state.phase, broken_since=now))
    return confirm(_update(state, message.worker, hosted), message.delivered), []


def _update(state: Master, worker: WorkerId, hosted: Hosted) -> Master:
    return replace(state, workers={**state.workers, worker: hosted})
