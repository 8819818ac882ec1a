"""Invariants of every state of the master, which hold between two events.

Those of fence, owner and order cost a few comparisons, and a driver that breaks one could harm stored data: they are
checked in production too, before the effects of the event are performed, and a broken one ends the run. The others are
checked in simulation and in tests. For each invariant, the tests plant a bug that breaks it.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: PROTOCOL P2, P4, P5, P9, P10, P12, P13.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import JobFailed, Where
from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.driver.state import (
    SAVEPOINTS_WAITING_MAX,
    Delivering,
    Deployed,
    Finishing,
    Gathering,
    Halted,
    Interrupted,
    Loading,
    Master,
    Opening,
    Over,
    Repairing,
)


def validate(state: Master) -> None:
    """Assert all invariants.

    Raises:
        AssertionError: an invariant is broken; the text names it.
    """
    for what in _broken(state):
        raise AssertionError(what)
    _workers(state)
    _failures(state)
    _partitions(state)
    match state.phase:
        case Loading() | Repairing() | Gathering():
            assert not any(hosted.ready for hosted in state.workers.values()), "ready before it was deployed (P10)"
        case Deployed() as phase:
            subtasks = {hosted.subtask for hosted in state.workers.values() if hosted.subtask is not None}
            assert len(subtasks) == state.rules.parallelism, "a subtask has no worker, and no recovery is due (P10)"
            _assigned(phase)
        case Interrupted(deployed=phase):
            assert state.recovering_since is not None, "a recovery is due, and its beginning is unknown"
            _assigned(phase)
        case _:
            pass


def refusal(state: Master) -> JobFailed | None:
    """Return why the run must end: its state breaks an invariant of fence, owner or order; None if none is broken."""
    for what in _broken(state):
        return JobFailed(
            f"the driver reached a state that its protocol excludes: {what}",
            not_done="nothing that followed from this state was done; everything up to the last checkpoint is kept",
            next_step="run the job again: it resumes from there. Report the message with the driver's log, since this "
            "is an error of Holdfast",
            where=Where(job=state.rules.name),
        )
    return None


def _broken(state: Master) -> Iterator[str]:
    """Give the invariants of fence, owner and order that are broken."""
    phase, log = state.phase, state.log
    if isinstance(phase, Over):
        return
    if isinstance(log, append.OvertakenDriver):
        yield "a driver goes on that a newer generation has fenced (P4)"
    if isinstance(phase, Opening):
        if not isinstance(log, append.InFlight):
            yield "a generation opens while no record is in flight (P4)"
        return
    if state.job.owner != log.owner:
        yield "a generation of another driver is carried out (P4)"
    if state.job.finished:
        yield "a finished job runs (P13)"
    if isinstance(phase, Loading | Repairing | Gathering) and not isinstance(log, append.Quiet):
        yield "a record is in flight before the generation is deployed (P4)"
    if state.deployed is not None:
        yield from _order(state, state.deployed)


def _order(state: Master, phase: Deployed) -> Iterator[str]:
    """The open epoch follows the last completed one, and the end of the run follows the last barrier."""
    job, epochs, closing = state.job, phase.epochs, phase.closing
    if _committed_through(epochs) != job.base_epoch:
        yield "the coordinator counts from another epoch than the log (P5)"
    if _epoch_of(phase.last) != job.base_epoch:
        yield "the last manifest is not that of the last checkpoint (P5)"
    if (closing is None) != isinstance(epochs, coordinator.Idle):
        yield "an epoch is closed that no trigger opened (P8)"
    manifest = None if closing is None else closing.manifest
    if (manifest is not None) != isinstance(epochs, coordinator.Deciding):
        yield "a manifest is stored for an epoch that is not decided (P9)"
    if not isinstance(epochs, coordinator.Idle):
        if epochs.barrier.epoch < job.first_epoch:
            yield "an epoch that an older generation may have used (P2)"
        if isinstance(phase, Delivering):
            yield "an epoch is closed after the last one (P13)"
        elif epochs.barrier.last and not isinstance(phase, Halted):
            yield "sources still read after the last barrier (P13)"
    if isinstance(phase, Halted) and phase.finishing and not (phase.complete or isinstance(state.ending, Finishing)):
        yield "the input is over before the sources were listed once more (P13)"
    if isinstance(phase, Delivering) and phase.final != job.base_epoch:
        yield "the run ends with an epoch that is not the last one (P13)"
    if isinstance(state.log, append.InFlight):
        yield from _in_flight(state.log.record.body, phase, manifest)


def _in_flight(body: joblog.Body, phase: Deployed, manifest: Manifest | None) -> Iterator[str]:
    match body:
        case joblog.CheckpointCompleted(epoch=epoch) if _epoch_of(manifest) != epoch:
            yield "a record commits an epoch that no manifest was stored for (P9)"
        case joblog.Finished() | joblog.Stopped() if not isinstance(phase, Delivering):
            yield "the run ends before its last epoch is completed (P13)"
        case _:
            pass


def _workers(state: Master) -> None:
    subtasks = [worker_entry.subtask for worker_entry in state.workers.values() if worker_entry.subtask is not None]
    assert len(subtasks) == len(set(subtasks)), "two workers have the same subtask (P2)"
    assert all(0 <= subtask < state.rules.parallelism for subtask in subtasks), "a subtask that the job does not have"
    assert all(worker_entry.subtask is not None for worker_entry in state.workers.values() if worker_entry.ready), (
        "ready without a subtask"
    )
    assert all(1 <= number <= state.launches for number in state.launching), "a launch that was never started"
    registered = {worker_entry.launch for worker_entry in state.workers.values()}
    assert not registered & set(state.launching), "a launch whose worker registered still counts as missing"


def _failures(state: Master) -> None:
    over = isinstance(state.phase, Over)
    assert over or len(state.failures) <= state.rules.restart_failures_max, "the run outlives the restart limit"
    moments = [failure.at for failure in state.failures]
    assert moments == sorted(moments), "the first cause is not the oldest failure"
    names = state.savepoints
    assert len(set(names)) == len(names) <= SAVEPOINTS_WAITING_MAX, "a savepoint is requested twice, or too many are"
    recovered = state.recovering_since is not None or not state.restarts or state.restarts[-1].ready_after is not None
    assert recovered, "a recovery has ended, and how long it took is unknown"


def _partitions(state: Master) -> None:
    known = [(source, p) for source, partitions in state.rules.partitions.items() for p in partitions]
    known += [(at.source, at.partition) for at in state.discovered]
    assert len(known) == len(set(known)), "a partition is discovered twice (P12)"


def _assigned(phase: Deployed) -> None:
    if phase.closing is not None and phase.closing.manifest is not None:
        kept = {(at.source, at.partition) for at in phase.closing.manifest.positions}
        given = {(each.position.source, each.position.partition) for each in phase.closing.assigned}
        assert given <= kept, "the manifest of an epoch lacks partitions that its trigger assigned (P12)"


def _committed_through(epochs: coordinator.Coordinator) -> Epoch:
    return epochs.committed_through if isinstance(epochs, coordinator.Idle) else epochs.barrier.committed_through


def _epoch_of(manifest: Manifest | None) -> Epoch:
    return NO_EPOCH if manifest is None else manifest.epoch
