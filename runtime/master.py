"""The job master: the driver's view of one job, from start to end.

It owns the job log (through checkpoint/append.py), gathers workers, gives each a subtask, runs one
coordinator per generation, and starts a new generation when a worker is lost: survivors roll back in
place, only the lost subtask is restored.

Invariants
    - Nothing is deployed before `GenerationStarted` of this generation is in the log.
    - An append in doubt is settled before the next generation is appended (P4).
    - A worker that was lost is never spoken to again; if it lives it is a zombie, and everything it
      says carries an old generation or comes on a closed stream (P2).
    - The run ends only when the last epoch is completed and delivered (P13).

Pure: no clock, thread or I/O. Driven by runtime/driver.py, in production, tests and simulation alike.
Source: PROTOCOL P2, P4, P5, P6, P9, P10, P13, P18; DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.checkpoint import append, coordinator, joblog, recovery
from holdfast.checkpoint.manifest import Confirmed, Manifest, OperatorState, follow
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SourcePosition,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime import messages as m

BROKEN_GRACE_S = 1.0
"""How long the loss of a worker may lag behind its peers' word of broken channels."""


@dataclass(frozen=True)
class Rules:
    """What the master is told at its start; times in seconds."""

    name: str
    job_uuid: JobUuid
    """Used only if the job does not exist yet."""
    host: str
    key_groups: int
    key_ranges: tuple[tuple[int, int], ...]
    """Key groups of each subtask; its length is the parallelism."""
    partitions: Mapping[str, tuple[int, ...]]
    operators: tuple[OperatorState, ...]
    checkpoint_every: float
    silent_after: float
    epoch_deadline: float
    redeploy_every: float
    failures_max: int
    failures_window: float
    backoff_first: float
    """Wait before a worker is started after the second failure in a row; doubles up to `backoff_max`."""
    backoff_max: float

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of each fragment."""
        return len(self.key_ranges)


@dataclass(frozen=True)
class Hosted:
    """A registered worker."""

    address: tuple[str, int]
    host: str
    pid: int
    launch: int
    seen: float
    subtask: Subtask | None = None
    ready: bool = False
    how: str | None = None
    ended: bool = False
    progress: m.Progress = m.Progress()


@dataclass(frozen=True)
class Restart:
    """One recovery, for people: when, why, and how long until all subtasks took records again."""

    at: float
    cause: str
    generation: Generation
    logged_after: float
    """Until the new generation was in the log."""
    deployed_after: float | None = None
    """Until every subtask had a worker."""
    ready_after: float | None = None


@dataclass(frozen=True)
class Opening:
    """The log is being created or the generation's start is being appended."""

    cause: str


@dataclass(frozen=True)
class Gathering:
    """The generation is in the log; its base is known when the manifest was read; workers come."""

    base: Manifest | None
    base_known: bool


@dataclass(frozen=True)
class Running:
    """Every subtask has a worker; epochs are closed once all are ready."""

    base: Manifest | None
    deployed_at: float
    epochs: coordinator.Coordinator
    last_trigger: float
    last: Manifest | None
    """Manifest of the last completed epoch."""
    storing: Manifest | None = None
    final: Epoch | None = None
    """Epoch whose barrier was the last one and which is completed."""
    broken_since: float | None = None
    """A worker reported a broken channel although nobody is lost."""


@dataclass(frozen=True)
class Over:
    """The run has ended; `outcome` is finished, stopped, fenced or failed."""

    outcome: str
    error: Mapping[str, Any] | None = None


Phase = Opening | Gathering | Running | Over


@dataclass(frozen=True)
class Master:
    """Everything the driver knows about the job."""

    rules: Rules
    log: append.Appender
    phase: Phase
    workers: Mapping[WorkerId, Hosted] = field(default_factory=dict)
    launching: Mapping[int, float] = field(default_factory=dict)
    """Spark jobs started whose worker has not registered yet, with their start."""
    launches: int = 0
    failures: tuple[float, ...] = ()
    failures_in_a_row: int = 0
    """Since the last completed epoch."""
    first_failure: Mapping[str, Any] | None = None
    confirmed: Mapping[Writer, Tag] = field(default_factory=dict)
    stopping: bool = False
    recover: str | None = None
    """A recovery is due as soon as the append in flight is settled (P4)."""
    restarts: tuple[Restart, ...] = ()
    recovering_since: float | None = None
    given_up: int = 0

    @property
    def job(self) -> joblog.Job:
        """Return the fold of the log."""
        assert self.log is not None and self.log.job is not None
        return self.log.job


# Effects


@dataclass(frozen=True)
class CreateRecord:
    """Create the record conditionally; answer with record_found, whoever's it is; else nothing."""

    record: joblog.Record


@dataclass(frozen=True)
class LoadManifest:
    """Read and verify the manifest; answer with base_loaded."""

    ref: ObjectRef


@dataclass(frozen=True)
class StoreManifest:
    """Store the manifest durably; answer with manifest_stored."""

    manifest: Manifest
    started: float


@dataclass(frozen=True)
class Send:
    """Send the message to the worker."""

    worker: WorkerId
    message: m.FromDriver


@dataclass(frozen=True)
class Launch:
    """Start a Spark job that hosts one worker."""

    number: int


@dataclass(frozen=True)
class Dismiss:
    """Close the worker's stream; whatever it still says is not heard."""

    worker: WorkerId
    launch: int


@dataclass(frozen=True)
class End:
    """The run is over: dismiss the workers and return the outcome."""

    outcome: str
    error: Mapping[str, Any] | None = None


Effect = CreateRecord | LoadManifest | StoreManifest | Send | Launch | Dismiss | End
Step = tuple[Master, list[Effect]]


def begin(rules: Rules, owner: str, job: joblog.Job | None, cause: str, at_us: int) -> Step:
    """Take over the job that the log describes, or create it."""
    state = Master(rules, append.Quiet(owner, job), Opening(cause))
    if job is None:
        body = joblog.JobCreated(rules.name, rules.key_groups)
        log, effects = append.create_job(append.Quiet(owner, None), body, rules.job_uuid, at_us)
        return _log_effects(replace(state, log=log), effects, 0.0, at_us)
    return _start_generation(state, cause, at_us)


def record_found(state: Master, record: joblog.Record, now: float, at_us: int) -> Step:
    """The slot of the record in flight is occupied by this record."""
    if not isinstance(state.log, append.InFlight) or state.log.record.seq != record.seq:
        return state, []
    log, effects = append.occupied(state.log, record)
    return _log_effects(replace(state, log=log), effects, now, at_us)


def retry_append(state: Master) -> Step:
    """The outcome of an append was not learnt: send it again (P4)."""
    if not isinstance(state.log, append.InFlight) or isinstance(state.phase, Over):
        return state, []
    return state, [CreateRecord(effect.record) for effect in append.retry(state.log)]


def base_loaded(state: Master, manifest: Manifest, now: float) -> Step:
    """The manifest that the generation continues from has been read."""
    if not isinstance(state.phase, Gathering) or manifest.epoch != state.job.base_epoch:
        return state, []
    confirmed = {**state.confirmed}
    for done in manifest.confirmed:
        confirmed[done.writer] = max(done.tag, confirmed.get(done.writer, done.tag))
    state = replace(state, phase=Gathering(manifest, True), confirmed=confirmed)
    return _deploy_if_complete(state, now)


def manifest_stored(state: Master, manifest: Manifest, ref: ObjectRef, now: float, at_us: int) -> Step:
    """The manifest is durable: append the record that makes it true."""
    phase = state.phase
    if not isinstance(phase, Running) or phase.storing != manifest or state.recover is not None:
        return state, []
    assert isinstance(state.log, append.Quiet)
    assert isinstance(phase.epochs, coordinator.Deciding)
    duration = round((now - phase.epochs.started) * 1000)
    known = {segment.object.path for handle in (phase.last.state if phase.last else ()) for segment in handle.segments}
    sizes = {s.object.path: s.object.size for handle in manifest.state for s in handle.segments}
    bytes_new = sum(size for path, size in sizes.items() if path not in known)
    body = joblog.CheckpointCompleted(
        manifest.epoch, manifest.follows, ref, duration, bytes_new, sum(sizes.values())
    )
    log, effects = append.append(state.log, lambda _job: body, at_us)
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
    return _deploy_if_complete(state, now)


def heard(state: Master, message: m.FromWorker, now: float) -> Step:
    """A registered worker said something."""
    if isinstance(message, m.Register):
        return registered(state, message, now)
    hosted = state.workers.get(message.worker)
    if hosted is None or isinstance(state.phase, Over):
        return state, []
    state = _update(state, message.worker, replace(hosted, seen=now))
    phase = state.phase
    if not isinstance(phase, Running) or message.generation != state.job.generation or state.recover is not None:
        return state, []
    match message:
        case m.Heartbeat():
            return _heartbeat(state, message, now)
        case m.Ready():
            hosted = replace(state.workers[message.worker], ready=True, how=message.how)
            state = _update(state, message.worker, hosted)
            if state.recovering_since is not None and _all_ready(state):
                state = _recovered(state, now)
            return state, []
        case m.Ack():
            state = _confirm(state, message.part.delivered)
            epochs, effects = coordinator.acked(phase.epochs, message.epoch, message.part)
            return _coordinate(replace(state, phase=replace(phase, epochs=epochs)), effects, now)
        case m.Failed():
            if message.permanent:
                return end(state, "failed", message.error)
            return _lose(state, message.worker, str(message.error.get("what", "worker failed")), message.error, now)


def lost(state: Master, worker: WorkerId, cause: str, now: float) -> Step:
    """The worker's stream closed, its Spark job ended, or it was silent for too long."""
    if worker not in state.workers or isinstance(state.phase, Over):
        return state, []
    return _lose(state, worker, cause, None, now)


def launch_ended(state: Master, number: int, error: str | None, now: float) -> Step:
    """The Spark job that hosts a worker ended, for whatever reason."""
    if isinstance(state.phase, Over):
        return state, []
    for worker, hosted in state.workers.items():
        if hosted.launch == number:
            return lost(state, worker, f"worker process ended ({error or 'no error'})", now)
    if number not in state.launching:
        return state, []
    launching = {n: at for n, at in state.launching.items() if n != number}
    cause = {"kind": "unavailable", "what": f"a worker could not be started: {error}"}
    return _count_failure(replace(state, launching=launching), now, cause)


def stop(state: Master) -> Step:
    """Take a last checkpoint, deliver it, and end the run; it can be resumed."""
    return replace(state, stopping=True), []


def tick(state: Master, now: float, at_us: int) -> Step:
    """Time has passed: look for silent workers, missing workers, due and overdue epochs."""
    if isinstance(state.phase, Over):
        return state, []
    effects: list[Effect] = []
    for worker, hosted in list(state.workers.items()):
        if now - hosted.seen > state.rules.silent_after:
            state, more = _lose(state, worker, f"worker {worker} was silent for {now - hosted.seen:.1f} s", None, now)
            effects += more
    if isinstance(state.phase, Over):
        return state, effects
    if state.recover is not None and isinstance(state.log, append.Quiet):
        state, more = _start_generation(state, state.recover, at_us)
        effects += more
    state, more = _launch_missing(state, now)
    effects += more
    if isinstance(state.phase, Running) and state.recover is None:
        state, more = _tick_running(state, state.phase, now, at_us)
        effects += more
    return state, effects


def pulse(state: Master) -> list[Effect]:
    """Show the workers that the driver lives; at the end of a run, repeat what is committed (P9)."""
    effects: list[Effect] = [Send(worker, m.Pulse()) for worker in state.workers]
    if isinstance(state.phase, Running) and state.phase.final is not None:
        effects += [Send(w, m.Committed(state.job.generation, state.phase.final)) for w in _assigned(state)]
    return effects


def _tick_running(state: Master, phase: Running, now: float, at_us: int) -> Step:
    if phase.broken_since is not None and now - phase.broken_since > BROKEN_GRACE_S:
        cause = "a data channel broke between live workers"
        return _start_generation(replace(state, recovering_since=phase.broken_since), cause, at_us)
    if not _all_ready(state):
        if now - phase.deployed_at > state.rules.redeploy_every:
            late = [w for w, hosted in state.workers.items() if hosted.subtask is not None and not hosted.ready]
            state = replace(state, phase=replace(phase, deployed_at=now))
            return state, [Send(w, _deployment(state, phase.base, w)) for w in late]
        return state, []
    if phase.final is not None:
        return _finish_if_delivered(state, phase, at_us)
    match phase.epochs:
        case coordinator.Idle() as idle:
            over = state.stopping or _all_ended(state)
            if _older_output_is_left(state, phase.base):
                return state, []
            if not over and now - phase.last_trigger < state.rules.checkpoint_every:
                return state, []
            epochs, effects = coordinator.trigger(idle, now, over)
            state = replace(state, phase=replace(phase, epochs=epochs, last_trigger=now))
            return _coordinate(state, effects, now)
        case coordinator.Collecting(started=started) as collecting if now - started > state.rules.epoch_deadline:
            epochs, effects = coordinator.deadline_passed(collecting)
            state = replace(state, phase=replace(phase, epochs=epochs), given_up=state.given_up + 1)
            return _coordinate(state, effects, now)
        case _:
            return state, []


def _older_output_is_left(state: Master, base: Manifest | None) -> bool:
    """P20: after a rescale nothing is committed, and so delivered, before all output of the old writers is in."""
    if base is None or not _moved(state, base):
        return False
    return any(item.writer not in state.confirmed or state.confirmed[item.writer] < item.tag for item in base.pending)


def _coordinate(state: Master, effects: list[coordinator.Effect], now: float) -> Step:
    """Turn what the coordinator decided into what the driver does."""
    out: list[Effect] = []
    generation = state.job.generation
    for effect in effects:
        match effect:
            case coordinator.Trigger(barrier):
                out += [Send(w, m.Trigger(generation, barrier)) for w in _assigned(state)]
            case coordinator.Announce(epoch):
                out += [Send(w, m.Committed(generation, epoch)) for w in _assigned(state)]
            case coordinator.Decide(_, started, _):
                manifest = _next_manifest(state, effect)
                assert isinstance(state.phase, Running)
                state = replace(state, phase=replace(state.phase, storing=manifest))
                out.append(StoreManifest(manifest, started))
            case coordinator.MustRecover(given_up):
                state = replace(state, recover=f"{given_up} epochs in a row were not completed", recovering_since=now)
            case coordinator.GivenUp():
                pass
    return state, out


def _next_manifest(state: Master, decided: coordinator.Decide) -> Manifest:
    assert isinstance(state.phase, Running)
    rules, job, last = state.rules, state.job, state.phase.last
    header = Manifest(
        job.uuid, job.generation, job.timeline, decided.barrier.epoch, job.base_epoch, rules.parallelism,
        job.key_groups, (), (), (), (), rules.operators,
    )  # fmt: skip
    handles = recovery.handles_for(last, list(rules.key_ranges)) if last is None or _moved(state, last) else last.state
    positions = {(at.source, at.partition): at.offset for at in (last.positions if last else ())}
    return follow(handles, positions, last.pending if last else (), state.confirmed, header, decided.parts)


def _moved(state: Master, last: Manifest | None) -> bool:
    return last is None or tuple(handle.key_groups for handle in last.state) != state.rules.key_ranges


def _log_effects(state: Master, effects: list[append.Effect], now: float, at_us: int) -> Step:
    out: list[Effect] = []
    for effect in effects:
        match effect:
            case append.Create(record):
                out.append(CreateRecord(record))
            case append.Lost(job, ours):
                state = replace(state, phase=Over("fenced"))
                error = {"kind": "fenced", "job": job.name, "ours": ours, "theirs": job.generation}
                out.append(End("fenced", error))
            case append.Appended(record, _):
                state, more = _appended(state, record, now, at_us)
                out += more
    return state, out


def _appended(state: Master, record: joblog.Record, now: float, at_us: int) -> Step:
    match record.body:
        case joblog.JobCreated():
            assert isinstance(state.phase, Opening)
            return _start_generation(state, state.phase.cause, at_us)
        case joblog.GenerationStarted():
            return _gather(state, now)
        case joblog.CheckpointCompleted():
            return _completed(state, now, at_us)
        case joblog.Finished():
            return end(state, "finished", None)
        case joblog.Stopped():
            return end(state, "stopped", None)


def _start_generation(state: Master, cause: str, at_us: int) -> Step:
    """Append the start of a new generation; its base is whatever the log holds before it (P5)."""
    if not isinstance(state.log, append.Quiet):
        return replace(state, recover=cause), []
    host = state.rules.host
    log, effects = append.append(
        state.log,
        lambda job: joblog.GenerationStarted(joblog.next_first_epoch(job), job.base_epoch, host, cause),
        at_us,
    )
    state = replace(state, log=log, phase=Opening(cause), recover=None)
    return _log_effects(state, effects, 0.0, at_us)


def _gather(state: Master, now: float) -> Step:
    """The generation is ours: every worker is free to take a subtask of it."""
    if state.recovering_since is not None:
        started = state.job.starts[-1]
        since = state.recovering_since
        restart = Restart(since, started.cause, state.job.generation, logged_after=now - since)
        state = replace(state, restarts=(*state.restarts, restart))
    workers = {w: replace(hosted, ready=False, how=None, ended=False) for w, hosted in state.workers.items()}
    state = replace(state, workers=workers)
    if not state.job.completed:
        return _deploy_if_complete(replace(state, phase=Gathering(None, True)), now)
    state = replace(state, phase=Gathering(None, False))
    return state, [LoadManifest(state.job.completed[-1].body.manifest)]


def _deploy_if_complete(state: Master, now: float) -> Step:
    phase = state.phase
    if not isinstance(phase, Gathering) or not phase.base_known:
        return state, []
    if len(state.workers) < state.rules.parallelism:
        return _launch_missing(state, now)
    taken = {hosted.subtask for hosted in state.workers.values() if hosted.subtask is not None}
    free = [Subtask(s) for s in range(state.rules.parallelism) if s not in taken]
    workers = dict(state.workers)
    for worker, hosted in workers.items():
        if hosted.subtask is None and free:
            workers[worker] = replace(hosted, subtask=free.pop(0))
    job = state.job
    epochs = coordinator.start(state.rules.parallelism, job.base_epoch, job.first_epoch)
    state = replace(state, workers=workers, phase=Running(phase.base, now, epochs, now, phase.base))
    if state.recovering_since is not None:
        deployed = replace(state.restarts[-1], deployed_after=now - state.recovering_since)
        state = replace(state, restarts=(*state.restarts[:-1], deployed))
    return state, [Send(w, _deployment(state, phase.base, w)) for w in _assigned(state)]


def _deployment(state: Master, base: Manifest | None, worker: WorkerId) -> m.Deploy:
    rules, job = state.rules, state.job
    subtask = state.workers[worker].subtask
    assert subtask is not None
    peers = tuple(m.Peer(h.subtask, w, h.address) for w, h in state.workers.items() if h.subtask is not None)
    known = {(at.source, at.partition): at.offset for at in (base.positions if base else ())}
    positions = tuple(
        SourcePosition(source, p, known.get((source, p), -1))
        for source, partitions in sorted(rules.partitions.items())
        for i, p in enumerate(partitions)
        if i % rules.parallelism == subtask
    )
    pending = recovery.pending_of(base, subtask, rules.parallelism)
    confirmed = tuple(Confirmed(w, tag) for w, tag in state.confirmed.items() if w.subtask == subtask)
    return m.Deploy(
        job.uuid, job.generation, job.timeline, job.first_epoch, job.base_epoch, subtask, peers,
        recovery.handles_for(base, list(rules.key_ranges))[subtask], positions, pending, confirmed,
    )  # fmt: skip


def _completed(state: Master, now: float, at_us: int) -> Step:
    phase = state.phase
    if not isinstance(phase, Running) or not isinstance(phase.epochs, coordinator.Deciding):
        return state, []
    last_barrier = phase.epochs.barrier.last
    epochs, effects = coordinator.appended(phase.epochs)
    final = phase.epochs.barrier.epoch if last_barrier else None
    phase = replace(phase, epochs=epochs, last=phase.storing, storing=None, final=final)
    state = replace(state, phase=phase, failures_in_a_row=0)
    return _coordinate(state, effects, now)


def _finish_if_delivered(state: Master, phase: Running, at_us: int) -> Step:
    """P13: the end is appended only when nothing is left to deliver; until then the commit is repeated."""
    assert phase.last is not None and phase.final is not None
    open_ = [p for p in phase.last.pending if state.confirmed.get(p.writer, Tag(Timeline(0), NO_EPOCH)) < p.tag]
    if open_ or not isinstance(state.log, append.Quiet):
        return state, []
    ended = _all_ended(state)
    final = phase.final
    body: joblog.Body = joblog.Finished(final) if ended else joblog.Stopped(final)
    log, effects = append.append(state.log, lambda _job: body, at_us)
    return _log_effects(replace(state, log=log), effects, 0.0, at_us)


def _heartbeat(state: Master, message: m.Heartbeat, now: float) -> Step:
    hosted = state.workers[message.worker]
    hosted = replace(hosted, ended=message.ended, progress=message.progress)
    if message.broken and isinstance(state.phase, Running) and state.phase.broken_since is None:
        state = replace(state, phase=replace(state.phase, broken_since=now))
    return _confirm(_update(state, message.worker, hosted), message.delivered), []


def _confirm(state: Master, delivered: tuple[Confirmed, ...]) -> Master:
    confirmed = {**state.confirmed}
    for done in delivered:
        confirmed[done.writer] = max(done.tag, confirmed.get(done.writer, done.tag))
    return replace(state, confirmed=confirmed)


def _lose(state: Master, worker: WorkerId, cause: str, error: Mapping[str, Any] | None, now: float) -> Step:
    hosted = state.workers[worker]
    workers = {w: h for w, h in state.workers.items() if w != worker}
    state = replace(state, workers=workers)
    effects: list[Effect] = [Dismiss(worker, hosted.launch)]
    if isinstance(state.phase, Running):
        since = state.recovering_since if state.recovering_since is not None else now
        state = replace(state, recover=cause, recovering_since=since)
    state, more = _count_failure(state, now, error or {"kind": "failed", "what": cause})
    return state, effects + more


def _count_failure(state: Master, now: float, error: Mapping[str, Any]) -> Step:
    window = state.rules.failures_window
    recent = (*(at for at in state.failures if now - at < window), now)
    first = state.first_failure if len(recent) > 1 and state.first_failure is not None else error
    state = replace(state, failures=recent, first_failure=first, failures_in_a_row=state.failures_in_a_row + 1)
    if len(recent) > state.rules.failures_max:
        return end(state, "failed", first)
    return state, []


def _launch_missing(state: Master, now: float) -> Step:
    missing = state.rules.parallelism - len(state.workers) - len(state.launching)
    if missing > 0 and now < _launch_allowed_at(state):
        return state, []
    effects: list[Effect] = []
    for _ in range(max(missing, 0)):
        number = state.launches + 1
        state = replace(state, launches=number, launching={**state.launching, number: now})
        effects.append(Launch(number))
    return state, effects


def _launch_allowed_at(state: Master) -> float:
    """The first failure after a completed epoch is answered at once, the next ones ever later."""
    if state.failures_in_a_row < 2:
        return 0.0
    delay = state.rules.backoff_first * 2.0 ** min(state.failures_in_a_row - 2, 32)
    return state.failures[-1] + min(delay, state.rules.backoff_max)


def end(state: Master, outcome: str, error: Mapping[str, Any] | None) -> Step:
    """End the run with this outcome: finished, stopped, fenced or failed."""
    leaving: list[Effect] = [Send(w, m.Exit(outcome)) for w in state.workers]
    return replace(state, phase=Over(outcome, error)), [*leaving, End(outcome, error)]


def _recovered(state: Master, now: float) -> Master:
    assert state.recovering_since is not None
    done = replace(state.restarts[-1], ready_after=now - state.recovering_since)
    return replace(state, restarts=(*state.restarts[:-1], done), recovering_since=None)


def _update(state: Master, worker: WorkerId, hosted: Hosted) -> Master:
    return replace(state, workers={**state.workers, worker: hosted})


def _assigned(state: Master) -> list[WorkerId]:
    return [worker for worker, hosted in state.workers.items() if hosted.subtask is not None]


def _all_ready(state: Master) -> bool:
    ready = [hosted for hosted in state.workers.values() if hosted.subtask is not None and hosted.ready]
    return len(ready) == state.rules.parallelism


def _all_ended(state: Master) -> bool:
    ended = [hosted for hosted in state.workers.values() if hosted.subtask is not None and hosted.ended]
    return len(ended) == state.rules.parallelism
