"""The job master: the driver's view of one job, from start to end. Its theory of operation:

One driver process owns a job at a time. The job log alone decides which: a sequence of records in an object store,
each created only if no object of its number exists. Drivers share nothing else, and the log is never wrong. Everything
else that a driver knows is a guess about processes that may be slow, cut off or dead.

The state of a job is the fold of its log. A *generation* begins with a record, `GenerationStarted` or `Rewound`; a
driver that finds the start of a newer one at the number of its own append is fenced and exits. Within its generation a
driver closes *epochs*: sources send a barrier, every subtask freezes its state where the barrier passes and stores it,
a manifest names all the parts, and the record of that manifest commits the epoch. Before the record, nothing of the
epoch counts; after it, all of it does, although targets may show it later: workers deliver committed output first in,
first out, and every manifest names the output that is not known to be delivered.

That determines how the driver handles a failure. It does not find out how far a lost worker came. It appends the start
of a new generation, whose base is the last completed epoch, lets every survivor roll back to it in place, and restores
the lost subtasks on other workers. Old workers act under an old generation: their messages are ignored, their streams
closed, their writes fenced by the tags in the targets. A rewind is the same with an older base, a new *timeline*, and
one more step: targets take back the output that the older timeline delivered after the base.

The master decides; it does not act. It takes one event at a time and returns the next state and the effects, in order.
runtime/driver/loop.py performs them and reports each result as another event. Messages may be lost, repeated or late,
and any event may come in any phase. So no handler relies on the event before it, and `tick` repeats every effect that
has no answer.

    Opening ------> Gathering ------> Running ------> Over
    the start is    base, repairs,    epochs close    the outcome
    in flight       workers come      one by one
       ^                                 |
       +--------- Interrupted <----------+
                  a worker was lost

    - Opening: the start of the generation is in flight. The owner of the job is unknown.
    - Gathering: the log holds the start. The base is loaded, targets are repaired after a rewind, workers register. A
      run that was to end with a rewind ends here.
    - Running: every subtask has a worker. The coordinator opens one epoch after the other, unless nothing is new.
    - Interrupted: the generation cannot continue. A record in flight is settled first, as its epoch may be complete.
    - Over: events change nothing any more.

The requested ending of the run (`Master.ending`) and the requested rewind (`Master.rewind`) outlive these phases: a
recovery in between does not undo them.

The parts, all pure: state.py (the state and the effects), gathering.py (from a start to the deployment), deployment.py
(values derived from the state), partitions.py (which partitions are read, and by which subtask), committers.py (output
that one worker delivers for all), failover.py (losses, the restart limit, launches), rewinding.py, retention.py
(expiry), requests.py (requests of users), killing.py (functions that end their process), severed.py (broken channels
between live workers), avoiding.py (hosts where workers should rather not start), abreast.py (subtasks that keep
together in event time), invariants.py (invariants between two events). Scripts of events with the effects that follow
are in tests/transcripts/master.

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

from collections.abc import Sequence

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ErrorReport, Fenced, HoldfastError, Where
from holdfast.frozen import changed, replace
from holdfast.model import NO_EPOCH, Epoch, ObjectRef, SourcePosition, Tag, Timeline, WorkerId
from holdfast.runtime.driver import killing, partitions, requests, retention, standbys
from holdfast.runtime.driver.committers import behind, hand_over
from holdfast.runtime.driver.deployment import (
    all_ended,
    completion,
    confirm,
    deployments,
    next_manifest,
    nothing_new,
    older_output_is_left,
)
from holdfast.runtime.driver.events import (
    Cancel,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    Launch,
    ListPartitions,
    LoadManifest,
    RepairTargets,
    Send,
    Step,
    StoreManifest,
    Sweep,
)
from holdfast.runtime.driver.failover import (
    all_run,
    breaks,
    cause_of,
    channels_are_due,
    count_failure,
    end,
    forget_old,
    forgive_own_pause,
    launch_ended,
    launch_missing,
    lose,
    lost,
    noted,
    proved,
    spoken_for,
    standby_failed,
    to_replace,
    trust,
)
from holdfast.runtime.driver.gathering import base_loaded, deploy_if_complete, gather, placement_refusal, repaired
from holdfast.runtime.driver.partitions import (
    begin_listing,
    hold_back,
    is_awaited,
    reason_to_list,
    unassigned,
    unlisted,
)
from holdfast.runtime.driver.requests import (
    carry_out,
    close_epoch,
    end_input,
    input_is_over,
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
    Checked,
    Gathering,
    GoneSinks,
    Hosted,
    Interrupted,
    Master,
    Opening,
    Over,
    Restart,
    RewindWanted,
    Rules,
    Running,
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
    "ListPartitions",
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
    "hold_back",
    "is_judged",
    "launch_ended",
    "left_undone",
    "listed",
    "lost",
    "repaired",
    "stop",
    "taken_over",
    "tick",
    "unlisted",
]


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
    return requests.start_rewind(state, asked, 0.0, at_us)


def record_found(state: Master, record: joblog.Record, now: float, at_us: int) -> Step:
    """This record occupies the slot of the record in flight."""
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
    """A worker registered."""
    if isinstance(state.phase, Over):
        return state, [Send(message.worker, m.Exit("the run is over"))]
    if message.worker in state.workers:
        return state, []
    launching = {number: at for number, at in state.launching.items() if number != message.launch}
    refused = placement_refusal(state.rules, message)
    if refused is not None and state.running is not None and state.all_hosted:  # it would be a standby
        state = standby_failed(replace(state, launching=launching), refused.what, now)
        return state, [Send(message.worker, m.Exit(refused.what))]
    hosted = Hosted(message.data_address, message.host, message.pid, message.launch, now)
    state = replace(state, launching=launching, workers=changed(state.workers, message.worker, hosted))
    state = trust(state, message.host)
    if refused is not None:
        return end(state, "refused", refused)
    if isinstance(state.phase, Running):
        state = standbys.cover(state)
        return state, standbys.follow(state)
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
    if isinstance(message, m.Failed) and message.permanent and not requests.is_past(state, message):
        return end(state, "failed", message.error)  # in any generation: it would recur
    if isinstance(message, m.Failed) and message.error.kind == m.ENDED:
        return lose(state, message.worker, message.error.what, message.error, now)  # it may know no generation yet
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
            return all_run(state, now) if state.all_ready else state, []
        case m.Ack():
            state = confirm(state, message.part.delivered)
            epochs, effects = coordinator.acked(phase.epochs, message.epoch, message.part)
            return _coordinate(replace(state, phase=replace(phase, epochs=epochs)), effects, now)
        case m.Failed():
            return lose(state, message.worker, message.error.what, message.error, now)


def tick(state: Master, now: float, at_us: int) -> Step:
    """Handle the passing of time: silent workers, missing workers, due and overdue epochs."""
    if isinstance(state.phase, Over):
        return state, []
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
        state, more = _start_what_is_due(state, now, at_us)
        effects += more
    state, more = launch_missing(state, now)
    effects += more
    state = standbys.cover(state)
    if isinstance(state.phase, Running):
        state, more = _tick_running(state, state.phase, now, at_us)
        effects += more
    if isinstance(state.phase, Running) and state.all_ready:
        reason = reason_to_list(state, state.phase, now, ended=all_ended(state))
        state, more = (state, []) if reason is None else begin_listing(state, state.phase, reason, now)
        effects += more
    return state, effects


def listed(state: Master, number: int, found: Sequence[SourcePosition], now: float) -> Step:
    """Take the partitions that the sources have: the answer to `ListPartitions`.

    Args:
        found: Every partition. The offset is that of the first record; of a partition known before it is ignored.
    """
    if not is_awaited(state, number):
        return state, []
    after = partitions.listed(state, found, now)
    if isinstance(after, HoldfastError):
        return end(state, "failed", after.report())
    return after, end_input(after)


def _start_what_is_due(state: Master, now: float, at_us: int) -> Step:
    """Nothing is in flight: start a requested rewind or a recovery that is due, or end a run that only rewinds."""
    if state.rewind is not None:
        return requests.start_rewind(state, state.rewind, now, at_us)
    if isinstance(state.phase, Interrupted):
        return _start_generation(state, state.phase.cause, at_us)
    if (draft := requests.end_of_rewind(state)) is not None:
        assert isinstance(state.log, append.Quiet)
        log, appends = append.append(state.log, draft, at_us)
        return _log_effects(replace(state, log=log), appends, now, at_us)
    return state, []


def pulse(state: Master) -> list[Effect]:
    """Show the workers that the driver is alive; where no barrier follows, repeat the last commit (P9)."""
    alive = m.Pulse(behind(state))
    effects: list[Effect] = [Send(worker, alive) for worker in state.workers]
    effects += hand_over(state)
    effects += standbys.follow(state)
    if state.running is not None and (committed := _said_by_no_barrier(state, state.running)) is not None:
        effects += [Send(w, _committed(state, committed)) for w in state.assigned]
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
    if channels_are_due(state, phase, now):
        return _recover_channels(state, phase, now, at_us)
    if not state.all_ready:
        if now - phase.deployed_at > state.rules.redeploy_every:
            late = [w for w, hosted in state.workers.items() if hosted.subtask is not None and not hosted.ready]
            state = replace(state, phase=replace(phase, deployed_at=now))
            return state, [Send(*each) for each in deployments(state, phase.base, late)]
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
            over = is_over(state, phase)
            if not (over or is_due(state, phase, now)):
                return state, []
            epochs, effects = coordinator.trigger(idle, now, over)
            finishing, halted = over and input_is_over(state, phase), phase.halted or over
            phase = replace(phase, epochs=epochs, last_trigger=now, finishing=finishing, halted=halted)
            phase = replace(phase, savepoint=next_name(state), assigning=unassigned(state, phase))
            workers = {worker: replace(hosted, wants_barrier=False) for worker, hosted in state.workers.items()}
            state = replace(state, phase=phase, epoch_wanted=False, workers=workers)
            return _coordinate(state, effects, now)
        case coordinator.Collecting(started=started) as collecting if now - started > state.rules.epoch_deadline:
            epochs, effects = coordinator.deadline_passed(collecting)
            state = replace(state, phase=replace(phase, epochs=epochs), given_up=state.given_up + 1)
            return _coordinate(state, effects, now)
        case _:
            return state, []


def _recover_channels(state: Master, phase: Running, now: float, at_us: int) -> Step:
    """Start a generation because channels broke between live workers: in place, or with one of them replaced."""
    found = breaks(state)
    cause, victim = cause_of(state, found), to_replace(state, found, now)
    state = replace(noted(state, found, now), recovering_since=phase.broken_since)
    if victim is not None:
        return lose(state, victim, f"{cause}; the worker on {state.workers[victim].host} was replaced", None, now)
    state = replace(state, broken_in_a_row=state.broken_in_a_row + 1)
    state, ending = count_failure(state, now, None, cause)
    return (state, ending) if isinstance(state.phase, Over) else _start_generation(state, cause, at_us)


def _coordinate(state: Master, effects: list[coordinator.Effect], now: float) -> Step:
    """Translate the coordinator's effects into the driver's."""
    out: list[Effect] = []
    generation = state.job.generation
    for effect in effects:
        match effect:
            case coordinator.Trigger(barrier):
                assert isinstance(state.phase, Running)
                trigger = m.Trigger(generation, barrier, state.phase.finishing, state.phase.assigning)
                out += [Send(w, trigger) for w in state.assigned]
            case coordinator.Announce(epoch):
                out += [Send(w, _committed(state, epoch)) for w in state.assigned]
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
        case joblog.Forked():
            raise AssertionError("a fork is not created by a driver")


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
    # The first epoch of a generation decides which objects of older generations remain: sweep the others.
    # Attempts to fork that were killed may have left some of generation 0.
    older = state.job.generation > 1 or phase.base is not None
    sweeps: list[Effect] = [Sweep(state.job)] if phase.last is phase.base and older else []
    assert phase.storing is not None
    passed = standbys.waypoints_after(state, phase, phase.storing)
    phase = replace(phase, epochs=epochs, last=phase.storing, storing=None, final=final, waypoints=passed)
    after = replace(state.phase, running=phase) if isinstance(state.phase, Interrupted) else phase
    state = replace(proved(state), phase=after, failures_in_a_row=0, broken_in_a_row=0)
    assert phase.last is not None
    state = replace(state, kills=killing.passed(state.kills, phase.last.positions), unexplained=())
    state = named(state, phase)
    state, out = _coordinate(state, effects, now)
    return state, [*out, *hand_over(state), *standbys.follow(state), *sweeps]


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
    if hosted.last_words is not None and hosted.last_words.state != "ended":  # else this was sent before the end
        hosted = replace(hosted, last_words=None)
    hosted = replace(hosted, quiet=message.quiet, partitions=message.partitions, copies=message.copies)
    hosted = replace(hosted, broken_to=message.broken_to)
    # A barrier on its way takes the changes: what a worker reports until it is taken says nothing about the next one.
    idle = isinstance(state.phase, Running) and isinstance(state.phase.epochs, coordinator.Idle)
    hosted = replace(hosted, wants_barrier=message.wants_barrier and idle)
    if message.broken and isinstance(state.phase, Running) and state.phase.broken_since is None:
        state = replace(state, phase=replace(state.phase, broken_since=now))
    state = _update(state, message.worker, hosted)
    if state.standby_failures and hosted.subtask is None and standbys.are_complete(state):
        state = replace(state, standby_failures=0)
    return confirm(state, message.delivered), []


def _update(state: Master, worker: WorkerId, hosted: Hosted) -> Master:
    return replace(state, workers=changed(state.workers, worker, hosted))
