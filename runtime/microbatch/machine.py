"""Decides about the epochs of one generation in microbatch mode: one job at a time, then its acks.

The master triggers epochs as it does in continuous mode. Here a trigger fixes the offsets that the epoch reads and
starts a job; the results of its tasks become one part per subtask. State and positions advance when the epoch is known
to be completed, and not before: an epoch that was given up leaves nothing behind, since the next one reads the same
records again. A job that fails in a way that may pass runs again from the same offsets.

Invariants
    - One job runs at a time; results of any other change nothing (P26).
    - A job's base is the last completed epoch, and it reads from that epoch's positions.
    - An epoch keeps its offsets, whatever is appended to the sources while its job is tried again.
    - Parts are made only of one result per task, and only if all tasks read from just these (P26).
    - A merge goes into every ack until one of their epochs is completed.

Pure: no clock, thread or I/O. Driven by runtime/microbatch/host.py.
Source: PROTOCOL P8, P12, P16, P18, P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.audit import PartAudit, joined
from holdfast.checkpoint.bases import Merge, Thresholds, advanced, due, undelivered
from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.errors import ErrorReport
from holdfast.frozen import replace
from holdfast.model import (
    NO_EPOCH,
    Cut,
    Epoch,
    Generation,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)
from holdfast.runtime.microbatch.blocks import Attempt, Result, mixed
from holdfast.runtime.time.time_alignment import Place
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.protocol import QueueOutput

ATTEMPTS_MAX = 3
"""How often the job of one epoch may fail in Spark before the generation fails."""
WAIT_FIRST_S, WAIT_MAX_S = 1.0, 30.0
"""How long a job waits while a source or the root refuses its tasks; doubles."""
DEFAULT_LIMITS = Thresholds()
Positions = Mapping[Place, SourcePosition]


@dataclass(frozen=True)
class BatchIdle:
    """No job runs, and no epoch waits for its outcome."""


@dataclass(frozen=True)
class BatchRunning:
    """The job of this epoch runs."""

    trigger: m.Trigger
    until: Mapping[Place, int]
    """Where the epoch stops reading each partition."""
    tries: int = 1
    waits: int = 0
    """How often a source or the root refused tasks: as in continuous mode, that alone fails no generation."""
    refused: str = ""
    """Why the last job was refused; empty if it was not."""


@dataclass(frozen=True)
class Acked:
    """All parts of this epoch are with the driver; its outcome is open."""

    trigger: m.Trigger
    parts: tuple[SubtaskPart, ...]
    progress: tuple[tuple[Subtask, m.WorkerProgress], ...]
    """Progress of every task, with its subtask."""


@dataclass(frozen=True)
class Batches:
    """All subtasks in one generation, as of the last epoch known to be completed."""

    generation: Generation
    timeline: Timeline
    cut: Cut
    handles: tuple[SnapshotHandle, ...]
    """The handle of every subtask."""
    positions: Positions
    newest: Epoch
    """The last epoch that was triggered."""
    phase: BatchIdle | BatchRunning | Acked = BatchIdle()
    job: int = 0
    """Number of the last job."""
    halted: bool = False
    """The last barrier was sent: nothing more is read in this generation (P13)."""
    limits: Thresholds = Thresholds()
    merging: frozenset[Subtask] = frozenset()
    """A merge is in progress, or done and not yet part of a completed epoch."""
    merged: Mapping[Subtask, SegmentRef] = field(default_factory=dict)
    committed_once: frozenset[str] = frozenset()
    """Sinks whose committed output the driver hands over for all writers together (docs/decisions/0056)."""

    @property
    def reached(self) -> Positions:
        """Return the positions after the last epoch whose parts are complete, whatever becomes of it."""
        return {**self.positions, **_positions(self.phase)} if isinstance(self.phase, Acked) else self.positions

    @property
    def closed(self) -> Epoch:
        """Return the last epoch of this generation whose parts are complete, if no later one was begun; else 0."""
        if isinstance(self.phase, Acked):
            return self.phase.trigger.barrier.epoch
        return self.cut.epoch if self.cut.epoch == self.newest else NO_EPOCH


@dataclass(frozen=True)
class StartJob:
    """Start this job: the tasks of the epoch, from the base that the state has, up to these offsets."""

    job: int
    trigger: m.Trigger
    until: Mapping[Place, int]
    after_s: float = 0.0
    """How long to wait before."""


@dataclass(frozen=True)
class CancelJob:
    """End a job whose results no longer count."""

    job: int


@dataclass(frozen=True)
class AckPart:
    """Report to the driver that this part of the epoch is durable."""

    epoch: Epoch
    part: SubtaskPart


@dataclass(frozen=True)
class CompactSubtask:
    """In the background: merge these pieces of a subtask, store the result; then report `compacted`."""

    subtask: Subtask
    merge: Merge


@dataclass(frozen=True)
class FailGeneration:
    """Report to the driver that the generation cannot continue."""

    error: ErrorReport
    permanent: bool


Effect = StartJob | CancelJob | AckPart | QueueOutput | CompactSubtask | FailGeneration
Step = tuple[Batches, list[Effect]]


def start(
    deploys: Iterable[m.Deploy],
    jobs: int = 0,
    limits: Thresholds = DEFAULT_LIMITS,
    committed_once: frozenset[str] = frozenset(),
) -> Batches:
    """Return the state at the start of a generation; there is one deployment per subtask.

    Args:
        jobs: How many jobs earlier generations of this run have started: numbers are not used twice.
        committed_once: See `Batches.committed_once`.
    """
    by_subtask = sorted(deploys, key=lambda each: each.subtask)
    first = by_subtask[0]
    return Batches(
        first.generation,
        first.timeline,
        Cut(first.base_epoch, first.lineage.get(first.base_epoch, "")),
        tuple(each.handle for each in by_subtask),
        {(at.source, at.partition): _of(at, each.subtask) for each in by_subtask for at in each.positions},
        Epoch(first.first_epoch - 1),
        job=jobs,
        limits=limits,
        committed_once=committed_once,
    )


def triggered(state: Batches, trigger: m.Trigger, until: Mapping[Place, int]) -> Step:
    """The driver closes an epoch; it sends the trigger to every subtask, and the first one counts.

    Args:
        until: Where the epoch stops reading each partition.
    """
    if trigger.generation != state.generation or trigger.barrier.epoch <= state.newest:
        return state, []
    state, effects = committed(state, Cut(trigger.barrier.committed_through, ""))
    if isinstance(state.phase, BatchRunning):
        effects.append(CancelJob(state.job))
    halted = state.halted or trigger.barrier.last
    state = replace(state, newest=trigger.barrier.epoch, halted=halted, job=state.job + 1)
    state = replace(state, phase=BatchRunning(trigger, until))
    return state, [*effects, StartJob(state.job, trigger, until)]


def finished(state: Batches, job: int, results: Iterable[Result], layers: int) -> Step:
    """All tasks of a job have ended, with these results."""
    phase = state.phase
    if not isinstance(phase, BatchRunning) or job != state.job:
        return state, []
    results = tuple(results)
    if (failure := _cause(results)) is not None:
        assert failure.error is not None
        if failure.permanent:
            return replace(state, phase=BatchIdle()), [FailGeneration(failure.error, permanent=True)]
        return _again(state, replace(phase, waits=phase.waits + 1, refused=failure.error.what))
    if (problem := inconsistent(results, layers, len(state.handles))) is not None:
        return failed_job(state, job, problem)
    parts = tuple(_part(state, Subtask(number), results) for number in range(len(state.handles)))
    progress = tuple((each.attempt.subtask, each.progress) for each in results)
    state = replace(state, phase=Acked(phase.trigger, parts, progress))
    return state, [AckPart(phase.trigger.barrier.epoch, part) for part in parts]


def failed_job(state: Batches, job: int, error: ErrorReport) -> Step:
    """A job ended without results that fit together."""
    phase = state.phase
    if not isinstance(phase, BatchRunning) or job != state.job:
        return state, []
    if phase.tries >= ATTEMPTS_MAX:
        return replace(state, phase=BatchIdle()), [FailGeneration(error, permanent=False)]
    return _again(state, replace(phase, tries=phase.tries + 1))


def killed_job(state: Batches, job: int, error: ErrorReport) -> Step:
    """A function ended the process of a task: the driver counts such ends, and one in a generation."""
    if not isinstance(state.phase, BatchRunning) or job != state.job:
        return state, []
    return replace(state, phase=BatchIdle()), [FailGeneration(error, permanent=False)]


def _again(state: Batches, phase: BatchRunning) -> Step:
    wait_s = min(WAIT_FIRST_S * 2.0 ** min(phase.waits - 1, 32), WAIT_MAX_S) if phase.refused else 0.0
    state = replace(state, phase=phase, job=state.job + 1)
    return state, [StartJob(state.job, phase.trigger, phase.until, wait_s)]


def committed(state: Batches, cut: Cut, delivered: Mapping[Subtask, Epoch] | None = None) -> Step:
    """An epoch and all before it are known to be completed; its manifest may be reported later.

    Args:
        delivered: As for `undelivered`.
    """
    if cut.epoch == state.cut.epoch and not state.cut.manifest:
        return replace(state, cut=cut), []
    if cut.epoch <= state.cut.epoch:
        return state, []
    phase = state.phase
    assert isinstance(phase, Acked) and phase.trigger.barrier.epoch == cut.epoch, "an epoch without this run's parts"
    effects: list[Effect] = []
    for part in phase.parts:
        for sink, staged in sorted(part.staged.items()):
            if staged.parts and sink not in state.committed_once:
                tag = Tag(state.timeline, cut.epoch)
                effects.append(QueueOutput(Pending(Writer(sink, part.subtask), tag, staged)))
    positions = state.reached
    compacted_subtasks = frozenset(part.subtask for part in phase.parts if part.compacted is not None)
    handles = tuple(
        undelivered(advanced(handle, part.segment, part.compacted, part.further), delivered or {})
        for handle, part in zip(state.handles, phase.parts, strict=True)
    )
    merged = {subtask: ref for subtask, ref in state.merged.items() if subtask not in compacted_subtasks}
    state = replace(state, cut=cut, phase=BatchIdle(), positions=positions, handles=handles, merged=merged)
    state = replace(state, merging=state.merging - compacted_subtasks)
    merges = _due(state)
    state = replace(state, merging=state.merging | {each.subtask for each in merges})
    return state, [*effects, *merges]


def compacted(state: Batches, subtask: Subtask, merged: SegmentRef) -> Batches:
    """A merge is stored: it goes into the next acks."""
    assert subtask in state.merging and subtask not in state.merged
    return replace(state, merged={**state.merged, subtask: merged})


def inconsistent(results: Iterable[Result], layers: int, parallelism: int) -> ErrorReport | None:
    """Return why these results cannot be parts of one epoch; None if they can."""
    attempts: dict[tuple[int, Subtask], Attempt] = {}
    results = tuple(results)
    for result in results:
        at = result.attempt
        if attempts.setdefault((at.layer, at.subtask), at) != at:
            return mixed(at.layer, at.subtask).report()
    for result in results:
        for read in result.read_from:
            if attempts.get((read.layer, read.subtask)) != read:
                return mixed(read.layer, read.subtask).report()
    missing = [(layer, subtask) for layer in range(layers) for subtask in range(parallelism)]
    missing = [place for place in missing if place not in attempts]
    if missing:
        return ErrorReport(
            kind="unavailable",
            what=f"task {missing[0][1]} of layer {missing[0][0]} left no result",
            not_done="the epoch was not completed",
            next="its job runs again from the same offsets",
        )
    return None


def _cause(results: Iterable[Result]) -> Result | None:
    """Return the failed result that explains the others: tasks of later layers fail because their input is missing."""
    failed = (each for each in results if each.error is not None)
    return min(failed, key=lambda each: (not each.permanent, each.attempt.layer), default=None)


def _part(state: Batches, subtask: Subtask, results: Iterable[Result]) -> SubtaskPart:
    mine = sorted((each for each in results if each.attempt.subtask == subtask), key=lambda each: each.attempt.layer)
    segments = [each.segment for each in mine if each.segment is not None]
    output_by_sink: dict[str, Staged] = {}
    audits: list[PartAudit] = []
    for each in mine:
        for sink, new in each.staged.items():
            before = output_by_sink.get(sink)
            whole = new if before is None else Staged((*before.parts, *new.parts), before.rows + new.rows)
            output_by_sink[sink] = whole
        if each.audit is not None:
            audits.append(each.audit)
    return SubtaskPart(
        subtask,
        tuple(at for each in mine for at in each.positions),
        segments[0] if segments else None,
        output_by_sink,
        (),
        state.merged.get(subtask),
        joined(audits) if audits else None,
        tuple(segments[1:]),
        None if any(each.orders is None for each in mine) else tuple(ref for each in mine for ref in each.orders or ()),
    )


def _positions(phase: Acked) -> dict[Place, SourcePosition]:
    """Return the positions after an epoch, and those of partitions that its trigger assigned (P12)."""
    begun = {(a.position.source, a.position.partition): _of(a.position, a.subtask) for a in phase.trigger.assignment}
    read = {(at.source, at.partition): _of(at, part.subtask) for part in phase.parts for at in part.positions}
    return {**begun, **read}


def _of(at: SourcePosition, subtask: Subtask) -> SourcePosition:
    return msgspec.structs.replace(at, subtask=subtask)


def _due(state: Batches) -> list[CompactSubtask]:
    """Return the merges that are worth making; one per subtask at a time."""
    found = (
        (h.subtask, due(h, state.cut.epoch, state.limits)) for h in state.handles if h.subtask not in state.merging
    )
    return [CompactSubtask(subtask, merge) for subtask, merge in found if merge is not None]
