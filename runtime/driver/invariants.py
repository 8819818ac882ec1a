"""Invariants of every state of the master, checked after every event in simulation and in tests.

Production does not check them: a broken invariant would end a run that may still be correct. For each invariant, the
tests plant a bug that breaks it.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: PROTOCOL P2, P4, P5, P9, P10, P12, P13.
"""

from __future__ import annotations

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.driver.state import (
    SAVEPOINTS_WAITING_MAX,
    Finishing,
    Gathering,
    Interrupted,
    Master,
    Opening,
    Over,
    Running,
)


def validate(state: Master) -> None:
    """Assert the invariants that hold between two events.

    Raises:
        AssertionError: an invariant is broken; the text names it.
    """
    _workers(state)
    _failures(state)
    _partitions(state)
    match state.phase:
        case Opening():
            assert isinstance(state.log, append.InFlight), "a generation opens while no record is in flight (P4)"
        case Gathering():
            _owned(state)
            assert not any(hosted.ready for hosted in state.workers.values()), "ready before it was deployed (P10)"
        case Running() as running:
            _owned(state)
            _deployed(state)
            _closing(state, running)
        case Interrupted(running=running):
            _owned(state)
            assert state.recovering_since is not None, "a recovery is due, and its beginning is unknown"
            _closing(state, running)
        case Over():
            pass


def _owned(state: Master) -> None:
    """Nothing is gathered or deployed before this driver's start of the generation is in the log."""
    job = state.job
    assert job.owner == state.log.owner, "a generation of another driver is carried out (P4)"
    assert not job.finished, "a finished job runs (P13)"


def _workers(state: Master) -> None:
    subtasks = [hosted.subtask for hosted in state.workers.values() if hosted.subtask is not None]
    assert len(subtasks) == len(set(subtasks)), "two workers have the same subtask (P2)"
    assert all(0 <= subtask < state.rules.parallelism for subtask in subtasks), "a subtask that the job does not have"
    assert all(hosted.subtask is not None for hosted in state.workers.values() if hosted.ready), (
        "ready without a subtask"
    )
    assert all(1 <= number <= state.launches for number in state.launching), "a launch that was never started"
    registered = {hosted.launch for hosted in state.workers.values()}
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


def _deployed(state: Master) -> None:
    subtasks = {hosted.subtask for hosted in state.workers.values() if hosted.subtask is not None}
    assert len(subtasks) == state.rules.parallelism, "a subtask has no worker, and no recovery is due (P10)"


def _closing(state: Master, running: Running) -> None:
    """The open epoch follows the last completed one, and the end of the run follows the last barrier."""
    job, epochs = state.job, running.epochs
    known = _committed_through(epochs)
    assert known == job.base_epoch, "the coordinator counts from another epoch than the log (P5)"
    assert _epoch_of(running.last) == job.base_epoch, "the last manifest is not that of the last checkpoint (P5)"
    deciding = isinstance(epochs, coordinator.Deciding)
    assert (running.storing is not None) == deciding, "a manifest is stored for an epoch that is not decided (P9)"
    if isinstance(epochs, coordinator.Collecting | coordinator.Deciding):
        assert epochs.barrier.epoch >= job.first_epoch, "an epoch that an older generation may have used (P2)"
        assert not epochs.barrier.last or running.halted, "sources still read after the last barrier (P13)"
        assert running.final is None, "an epoch is closed after the last one (P13)"
    if running.storing is not None:
        kept = {(at.source, at.partition) for at in running.storing.positions}
        given = {(each.position.source, each.position.partition) for each in running.assigning}
        assert given <= kept, "the manifest of an epoch lacks partitions that its trigger assigned (P12)"
    if running.finishing:
        listed = running.input_end == "complete" or isinstance(state.ending, Finishing)
        assert listed, "the input is over before the sources were listed once more (P13)"
    if running.final is not None:
        assert running.final == job.base_epoch, "the run ends with an epoch that is not the last one (P13)"
    if isinstance(state.log, append.InFlight):
        _in_flight(state.log.record.body, running)


def _in_flight(body: joblog.Body, running: Running) -> None:
    match body:
        case joblog.CheckpointCompleted(epoch=epoch):
            assert _epoch_of(running.storing) == epoch, "a record commits an epoch that no manifest was stored for (P9)"
        case joblog.Finished() | joblog.Stopped():
            assert running.final is not None, "the run ends before its last epoch is completed (P13)"
        case _:
            pass


def _committed_through(epochs: coordinator.Coordinator) -> Epoch:
    return epochs.committed_through if isinstance(epochs, coordinator.Idle) else epochs.barrier.committed_through


def _epoch_of(manifest: Manifest | None) -> Epoch:
    return NO_EPOCH if manifest is None else manifest.epoch
