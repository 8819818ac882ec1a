"""Epochs while subtasks run: triggered when due, committed by one record, announced, expired; the last ends the run.

A message may be lost, so a beat repeats everything that no barrier repeats: the last commit, output for a committer,
the end of input, the newest epoch for standbys.

The driver alone knows the staged output of all writers: the last manifest names it as pending until it is confirmed. A
sink with one committer gets its output that way: a deployment hands over the output that its base names, later messages
that of later epochs.

Invariants
    - No epoch is committed before all output of older writers is delivered, after a change of the parallelism (P20).
    - Output that is handed to a committer is committed, oldest first, and without a gap after the base (P18).
    - The end of the run is appended only when the output of its last epoch is delivered (P13).

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: PROTOCOL P7, P8, P9, P13, P16, P18, P20, P23; docs/decisions/0007, 0056-one-committer.md.
"""

from __future__ import annotations

from msgspec import structs

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.catalogue import expirable, log_is_long
from holdfast.checkpoint.committing import COMMITTER
from holdfast.checkpoint.timeline import timeline_of
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Epoch, Pending, Tag, Timeline
from holdfast.runtime.driver import killing, standbys
from holdfast.runtime.driver.deployment import (
    completion,
    deployments,
    next_manifest,
    nothing_new,
    older_output_is_left,
)
from holdfast.runtime.driver.events import (
    Effect,
    ManifestStored,
    Moment,
    Send,
    Step,
    StoreManifest,
    SweepObjects,
    append_record,
)
from holdfast.runtime.driver.failover import broken_channels_are_due, proved, recover_channels
from holdfast.runtime.driver.partitions import unassigned
from holdfast.runtime.driver.requests import (
    end_input,
    input_is_over,
    is_due,
    is_over,
    named,
    next_name,
    unless_taken,
)
from holdfast.runtime.driver.state import (
    Closing,
    Delivering,
    Deployed,
    Halted,
    Hosted,
    Interrupted,
    Master,
    is_complete,
)
from holdfast.runtime.wire import messages as m
from holdfast.sinks.protocol import delivery

HANDED_OVER_MAX = delivery.TOGETHER_EPOCHS_MAX
"""Epochs of a sink in one message; the committer gets the next ones as it confirms these."""


def turn(state: Master, phase: Deployed, at: Moment) -> Step:
    """Take the next step that is due: recover channels, deploy again, open an epoch or give one up, end the run."""
    now = at.now
    if broken_channels_are_due(state, phase, now):
        return recover_channels(state, phase, at)
    if not state.all_ready:
        if now - phase.deployed_at > state.rules.redeploy_every:
            late = [w for w, hosted in state.workers.items() if hosted.subtask is not None and not hosted.ready]
            state = replace(state, phase=replace(phase, deployed_at=now))
            return state, [Send(*each) for each in deployments(state, phase.base, late)]
        return state, []
    if isinstance(phase, Delivering):
        return end_if_delivered(state, phase, at)
    match phase.epochs:
        case coordinator.Idle() as idle:
            if older_output_is_left(state, phase.base) or not isinstance(state.log, append.Quiet):
                return state, []
            if (draft := expiry(state, at.at_us)) is not None:
                return append_record(state, draft, at.at_us)
            last = is_over(state, phase)
            return _trigger(state, phase, idle, last, now) if last or is_due(state, phase, now) else (state, [])
        case coordinator.Collecting(started=started) as collecting if now - started > state.rules.epoch_deadline:
            epochs, effects = coordinator.deadline_passed(collecting)
            phase = replace(phase, epochs=epochs, closing=None)
            return coordinate(replace(state, phase=phase, given_up=state.given_up + 1), effects, now)
        case _:
            return state, []


def _trigger(state: Master, phase: Deployed, idle: coordinator.Idle, last: bool, now: float) -> Step:
    epochs, effects = coordinator.trigger(idle, now, last)
    if isinstance(epochs, coordinator.Idle):
        return coordinate(state, effects, now)
    finishing = last and input_is_over(state, phase)
    closing = Closing(next_name(state), unassigned(state, phase))
    phase = replace(phase, epochs=epochs, last_trigger=now, closing=closing)
    if last or isinstance(phase, Halted):
        phase = Halted(**phase.shared, finishing=finishing, complete=is_complete(phase))
    workers = {worker: _without_wish(hosted) for worker, hosted in state.workers.items()}
    return coordinate(replace(state, phase=phase, epoch_wanted=False, workers=workers), effects, now)


def _without_wish(hosted: Hosted) -> Hosted:
    """A barrier on its way takes the changes: earlier wishes of the worker are met."""
    if not hosted.heartbeat.wants_barrier:
        return hosted
    return replace(hosted, heartbeat=structs.replace(hosted.heartbeat, wants_barrier=False))


def coordinate(state: Master, effects: list[coordinator.Effect], now: float) -> Step:
    """Translate the coordinator's effects into the driver's."""
    out: list[Effect] = []
    for effect in effects:
        phase = state.phase
        match effect:
            case coordinator.SendBarrier(barrier):
                assert isinstance(phase, Deployed) and phase.closing is not None
                finishing = isinstance(phase, Halted) and phase.finishing
                trigger = m.Trigger(state.job.generation, barrier, finishing, phase.closing.assigned)
                out += [Send(w, trigger) for w in state.assigned]
            case coordinator.Announce(epoch):
                out += [Send(w, _committed(state, epoch)) for w in state.assigned]
            case coordinator.Decide(_, started, _):
                assert isinstance(phase, Deployed) and phase.closing is not None
                manifest = next_manifest(state, effect)
                closing = replace(phase.closing, manifest=manifest)
                state = replace(state, phase=replace(phase, closing=closing))
                out.append(StoreManifest(manifest, started))
            case coordinator.MustRecover(given_up):
                assert isinstance(phase, Deployed)
                interrupted = Interrupted(phase, f"{given_up} epochs in a row were not completed")
                state = replace(state, phase=interrupted, recovering_since=now)
            case coordinator.EpochGivenUp():
                pass
    return state, out


def manifest_stored(state: Master, event: ManifestStored, at: Moment) -> Step:
    """The manifest is durable: append the record that makes it true."""
    phase = state.phase
    assert isinstance(phase, Deployed)
    if phase.closing is None or phase.closing.manifest != event.manifest:
        return state, []
    assert isinstance(phase.epochs, coordinator.Deciding)
    body = completion(phase, event.manifest, event.ref, round((at.now - phase.epochs.started) * 1000))
    return append_record(state, unless_taken(body), at.at_us)


def completed(state: Master, now: float) -> Step:
    """The record of an epoch is in the log: the epoch is committed."""
    phase = state.deployed
    if phase is None or not isinstance(phase.epochs, coordinator.Deciding):
        return state, []
    assert phase.closing is not None and phase.closing.manifest is not None
    barrier, manifest, name = phase.epochs.barrier, phase.closing.manifest, phase.closing.savepoint
    epochs, effects = coordinator.appended(phase.epochs)
    # The first epoch of a generation decides which objects of older generations remain: sweep the others.
    # Attempts to fork that were killed may have left some of generation 0.
    older = state.job.generation > 1 or phase.base is not None
    sweeps: list[Effect] = [SweepObjects(state.job)] if phase.last is phase.base and older else []
    waypoints = standbys.waypoints_after(state, phase, manifest)
    phase = replace(phase, epochs=epochs, last=manifest, closing=None, waypoints=waypoints)
    if barrier.last:
        assert isinstance(phase, Halted)
        phase = Delivering(**phase.shared, final=barrier.epoch, finishing=phase.finishing)
    after = replace(state.phase, deployed=phase) if isinstance(state.phase, Interrupted) else phase
    state = replace(proved(state), phase=after, failures_in_a_row=0, broken_in_a_row=0)
    state = replace(state, kills=killing.passed(state.kills, manifest.positions), unexplained=())
    state, out = coordinate(named(state, name), effects, now)
    return state, [*out, *hand_over(state), *standbys.follow(state), *sweeps]


def end_if_delivered(state: Master, phase: Delivering, at: Moment) -> Step:
    """Append the end once all output is delivered; until then the commit is repeated (P13)."""
    assert phase.last is not None
    open_ = [p for p in phase.last.pending if state.confirmed.get(p.writer, Tag(Timeline(0), NO_EPOCH)) < p.tag]
    if open_ or not isinstance(state.log, append.Quiet):
        return state, []
    body: joblog.Body = joblog.Finished(phase.final) if phase.finishing else joblog.Stopped(phase.final)
    return append_record(state, lambda _job: body, at.at_us)


# Repeated


def repeated(state: Master) -> list[Effect]:
    """Show the workers that the driver is alive; where no barrier follows, repeat the last commit (P9)."""
    alive = m.Pulse(behind(state))
    effects: list[Effect] = [Send(worker, alive) for worker in state.workers]
    effects += hand_over(state)
    effects += standbys.follow(state)
    if state.deployed is not None and (committed := _said_by_no_barrier(state, state.deployed)) is not None:
        effects += [Send(w, _committed(state, committed)) for w in state.assigned]
    return effects + end_input(state)


def _committed(state: Master, epoch: Epoch) -> m.Committed:
    newest = state.job.completed[-1].body
    assert newest.epoch == epoch
    return m.Committed(state.job.generation, epoch, newest.manifest.sha256)


def _said_by_no_barrier(state: Master, phase: Deployed) -> Epoch | None:
    """Return the last epoch if no barrier will announce it: it ends the run, or nothing is new since."""
    if isinstance(phase, Delivering):
        return phase.final
    match phase.epochs:
        case coordinator.Idle(committed_through=committed) if nothing_new(state, phase.epochs):
            return committed
        case _:
            return None


# Sinks with one committer


def hand_over(state: Master) -> list[Send]:
    """Return the message to the committer's worker, none if there is nothing to deliver."""
    phase = state.phase
    if not isinstance(phase, Deployed) or not state.rules.committed_once:
        return []
    base = NO_EPOCH if phase.base is None else phase.base.epoch
    pending = tuple(
        item for items in _open(state, phase).values() for item in items[:HANDED_OVER_MAX] if item.tag.epoch > base
    )
    host = next((worker for worker, hosted in state.workers.items() if hosted.subtask == COMMITTER), None)
    return [Send(host, m.Deliver(state.job.generation, pending))] if pending and host is not None else []


def behind(state: Master) -> bool:
    """Return whether so much output waits for a committer that sources must stop."""
    phase, rules = state.deployed, state.rules
    if phase is None:
        return False
    for items in _open(state, phase).values():
        size = sum(part.size for item in items for part in item.staged.parts)
        if delivery.too_much(len(items), size, bytes_max=rules.staged_bytes_max * rules.parallelism):
            return True
    return False


def _open(state: Master, phase: Deployed) -> dict[str, list[Pending]]:
    """Return the pending output of each sink with one committer that is not confirmed, oldest first."""
    pending_by_sink: dict[str, list[Pending]] = {sink: [] for sink in state.rules.committed_once}
    for item in () if phase.last is None else phase.last.pending:
        confirmed_tag = state.confirmed.get(item.writer)
        if (
            item.writer.sink in pending_by_sink
            and item.writer.subtask == COMMITTER
            and (confirmed_tag is None or confirmed_tag < item.tag)
        ):
            pending_by_sink[item.writer.sink].append(item)
    return {sink: sorted(items, key=lambda item: item.tag) for sink, items in pending_by_sink.items()}


# Retention


def expiry(state: Master, at_us: int) -> append.Draft | None:
    """Return the record that expires checkpoints or lets the log begin later; None if neither is due."""
    rule, job = state.rules.retention, state.job
    if (through := expirable(job, rule, at_us)) != NO_EPOCH:
        return lambda _job: joblog.Expired(through)
    return joblog.LogStart if log_is_long(job, rule) else None


def expired(state: Master) -> list[Effect]:
    """The record is in the log: objects, records and before-images may be deleted."""
    job = state.job
    through = job.expired_through
    # The tag carries the epoch's own timeline: tags of a later timeline are above all that an earlier one delivered.
    message = m.BeforeImagesExpired(job.generation, Tag(timeline_of(job.rewinds, through), through))
    return [SweepObjects(job), *(Send(worker, message) for worker in state.assigned)]
