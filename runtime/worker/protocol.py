"""The protocol of one worker in one generation: barriers through its fragments, acks, commits.

Every fragment of the subtask closes an epoch on its own alignment; when all have, the worker's part
of the epoch is sealed in the background, and acked only when all of it is durable. The worker learns
the outcome of an epoch from the next barrier, or earlier from an announcement.

Invariants
    - An ack is sent only when the segment and every staged part are durable, including the parts that
      earlier epochs left over.
    - Fragments freeze an epoch before they forward its barrier, and forward every barrier in order (P9).
    - Staged output of an unfinished epoch is named again, in order, in the next ack (P8).
    - A partition is taken over behind the barrier of the trigger that assigns it, once (P12).
    - Messages of another generation change nothing (P2).

Pure: no clock, thread or I/O. Driven by runtime/worker/loop.py, in production, tests and simulation alike.
Source: PROTOCOL P2, P8, P9, P10, P12, P13, P18; DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint import alignment
from holdfast.checkpoint.audit import PartAudit, SinkStaged, joined
from holdfast.checkpoint.bases import Merge, Thresholds, advanced, due, pieces
from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.frozen import replace
from holdfast.model import (
    CHANGELOG,
    NO_EPOCH,
    Barrier,
    ChannelId,
    Epoch,
    Generation,
    ObjectRef,
    Pending,
    RowDigest,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)
from holdfast.runtime.wire.messages import Assigned

DEFAULT_LIMITS = Thresholds()


@dataclass(frozen=True)
class Sealed:
    """The objects that the upload lane made durable for one epoch."""

    segment: SegmentRef | None
    staged: Mapping[str, Staged]
    """The output of this epoch alone, per sink of this subtask."""
    digests: Mapping[str, RowDigest] = field(default_factory=dict)
    """The digest of the rows, per sink that has output."""
    records: int = 0
    """How many rows the segment has."""
    orders: tuple[ObjectRef, ...] | None = None
    """The record of what was taken in this epoch alone, none if nothing was; None: that is not recorded."""


@dataclass(frozen=True)
class Worker:
    """One subtask in one generation."""

    generation: Generation
    timeline: Timeline
    subtask: Subtask
    sources: frozenset[int]
    """Fragments that read a source."""
    aligned: Mapping[int, alignment.Alignment]
    """Fragments that have input channels."""
    passed: Mapping[int, Epoch]
    """Last barrier that each fragment forwarded."""
    committed: Epoch
    assigned: frozenset[tuple[str, int]] = frozenset()
    """Source and partition of what triggers of this generation have assigned to this subtask."""
    halted: bool = False
    """The last barrier was sent: sources emit nothing more (P13)."""
    positions: Mapping[Epoch, tuple[SourcePosition, ...]] = field(default_factory=dict)
    counts: Mapping[Epoch, tuple[PartAudit, ...]] = field(default_factory=dict)
    """The counts of each fragment's input and output in an epoch that is not known to be committed."""
    sealing: frozenset[Epoch] = frozenset()
    """Closed by every fragment and not durable yet; a refused write is retried, so they may finish in any order."""
    sealed: Mapping[Epoch, Sealed] = field(default_factory=dict)
    """Durable and not known to be committed, oldest first."""
    limits: Thresholds = DEFAULT_LIMITS
    handle: SnapshotHandle | None = None
    """The snapshot that the manifest of epoch `committed` names for this subtask; None if the worker never merges."""
    merging: bool = False
    """A merge is in progress, or done and not yet part of a completed epoch; there is one at a time."""
    merged: SegmentRef | None = None
    """The result of a merge; goes into every ack until one of their epochs completes."""
    acked: Mapping[Epoch, SegmentRef] = field(default_factory=dict)
    """The merge that went into the ack of an epoch."""
    committed_once: frozenset[str] = frozenset()
    """Sinks whose committed output the driver hands to one worker for all (docs/decisions/0056)."""


@dataclass(frozen=True)
class PauseChannel:
    """Take nothing more from this channel."""

    channel: ChannelId


@dataclass(frozen=True)
class ResumeChannels:
    """Take from these channels again."""

    channels: frozenset[ChannelId]


@dataclass(frozen=True)
class CloseFragment:
    """Let the fragment's operators emit, freeze their tables, close the stages of its sinks, forward the barrier."""

    fragment: int
    barrier: Barrier


@dataclass(frozen=True)
class AddPartitions:
    """Read these partitions too, from these positions on; the barrier of their trigger has been forwarded."""

    positions: tuple[SourcePosition, ...]


@dataclass(frozen=True)
class CommitThrough:
    """Everything frozen up to this epoch is committed."""

    through: Epoch


@dataclass(frozen=True)
class QueueOutput:
    """Queue output for its target; per writer first in, first out (P18)."""

    pending: Pending


@dataclass(frozen=True)
class Seal:
    """In the background: seal the segment, store it and the staged parts; then report OutputSealed."""

    epoch: Epoch


@dataclass(frozen=True)
class SendAck:
    """Report to the driver that this part of the epoch is durable."""

    epoch: Epoch
    segment: SegmentRef | None
    staged: Mapping[str, Staged]
    positions: tuple[SourcePosition, ...]
    compacted: SegmentRef | None = None
    audit: PartAudit | None = None
    orders: tuple[ObjectRef, ...] | None = None


@dataclass(frozen=True)
class Compact:
    """In the background: merge these pieces, store the result; then report `compacted`."""

    merge: Merge


Effect = (
    PauseChannel
    | ResumeChannels
    | CloseFragment
    | AddPartitions
    | CommitThrough
    | QueueOutput
    | Seal
    | SendAck
    | Compact
)


def start(
    generation: Generation,
    timeline: Timeline,
    subtask: Subtask,
    base: Epoch,
    first_epoch: Epoch,
    inputs: Mapping[int, frozenset[ChannelId]],
    sources: frozenset[int],
    handle: SnapshotHandle | None = None,
    limits: Thresholds = DEFAULT_LIMITS,
    committed_once: frozenset[str] = frozenset(),
) -> Worker:
    """Return a worker that holds the state of epoch `base`, which `handle` names."""
    before = Epoch(first_epoch - 1)
    return Worker(
        generation,
        timeline,
        subtask,
        sources,
        {fragment: alignment.NoBarrier(channels, before) for fragment, channels in inputs.items()},
        dict.fromkeys((*sources, *inputs), before),
        base,
        limits=limits,
        handle=handle,
        committed_once=committed_once,
    )


def triggered(state: Worker, barrier: Barrier, assignment: Iterable[Assigned] = ()) -> tuple[Worker, list[Effect]]:
    """The driver closes an epoch. A repeated trigger is ignored; the epochs of lost ones are closed first, in order.

    Args:
        assignment: As in `Trigger`; what is new of it applies behind the barrier.
    """
    effects: list[Effect] = []
    for fragment in sorted(state.sources):
        for number in range(state.passed[fragment] + 1, barrier.epoch + 1):
            this = replace(barrier, epoch=Epoch(number), last=barrier.last and number == barrier.epoch)
            state, now = _close(state, fragment, this)
            effects += now
    state, more = _assigned(replace(state, halted=state.halted or barrier.last), assignment)
    return state, effects + more


def _assigned(state: Worker, assignment: Iterable[Assigned]) -> tuple[Worker, list[Effect]]:
    """Take over the partitions of this subtask; triggers repeat them."""
    mine = (each.position for each in assignment if each.subtask == state.subtask)
    new = {(at.source, at.partition): at for at in mine if (at.source, at.partition) not in state.assigned}
    if not new:
        return state, []
    return replace(state, assigned=state.assigned | new.keys()), [AddPartitions(tuple(new.values()))]


def barrier_arrived(state: Worker, fragment: int, channel: ChannelId, barrier: Barrier) -> tuple[Worker, list[Effect]]:
    """A barrier arrived on an input channel."""
    aligned, steps = alignment.step(state.aligned[fragment], channel, barrier)
    state = replace(state, aligned={**state.aligned, fragment: aligned})
    effects: list[Effect] = []
    for each in steps:
        match each:
            case alignment.Pause(paused):
                effects.append(PauseChannel(paused))
            case alignment.Close(closed):
                state, now = _close(state, fragment, closed)
                effects += now
            case alignment.Resume(channels):
                effects.append(ResumeChannels(channels))
    return state, effects


def positions_noted(
    state: Worker, epoch: Epoch, positions: tuple[SourcePosition, ...], counts: PartAudit | None = None
) -> Worker:
    """The interpreter reports a fragment's positions when it closed the epoch, and what it took and emitted."""
    known = (*state.positions.get(epoch, ()), *positions)
    state = replace(state, positions={**state.positions, epoch: known})
    if counts is None:
        return state
    return replace(state, counts={**state.counts, epoch: (*state.counts.get(epoch, ()), counts)})


def output_sealed(state: Worker, epoch: Epoch, sealed: Sealed) -> tuple[Worker, list[Effect]]:
    """Everything of this epoch is durable: ack it, together with what earlier epochs left over.

    An epoch that is durable before an earlier one waits for it: the earlier one was given up, and its
    output belongs in this ack (P8).
    """
    state = replace(state, sealing=state.sealing - {epoch}, sealed={**state.sealed, epoch: sealed})
    oldest = min(state.sealing, default=None)
    if oldest is not None and oldest < epoch:
        return state, []
    newest = max(e for e in state.sealed if oldest is None or e < oldest)
    positions = state.positions.get(newest, ())
    if state.merged is not None:
        state = replace(state, acked={**state.acked, newest: state.acked.get(newest, state.merged)})
    merge_result = state.acked.get(newest)
    staged = _staged_through(state, newest)
    audit = _audit_through(state, newest)
    orders = _orders_through(state, newest)
    return state, [SendAck(newest, state.sealed[newest].segment, staged, positions, merge_result, audit, orders)]


def compacted(state: Worker, merged: SegmentRef) -> Worker:
    """A merge is stored: it goes into the next acks."""
    assert state.merging and state.merged is None and merged.epoch <= state.committed
    return replace(state, merged=merged)


def committed(state: Worker, through: Epoch) -> tuple[Worker, list[Effect]]:
    """An epoch and all before it are known to be committed; an older announcement changes nothing (P9)."""
    if through <= state.committed:
        return state, []
    assert through in state.sealed, f"epoch {through} was committed without this worker's part"
    effects: list[Effect] = [CommitThrough(through)]
    for sink, staged in sorted(_staged_through(state, through).items()):
        if staged.parts and sink not in state.committed_once:
            effects.append(QueueOutput(Pending(Writer(sink, state.subtask), Tag(state.timeline, through), staged)))
    state, merges = _advance(state, through)
    left = {epoch: sealed for epoch, sealed in state.sealed.items() if epoch > through}
    positions = {epoch: at for epoch, at in state.positions.items() if epoch > through}
    acked = {epoch: merged for epoch, merged in state.acked.items() if epoch > through}
    counts = {epoch: counted for epoch, counted in state.counts.items() if epoch > through}
    state = replace(state, committed=through, sealed=left, positions=positions, acked=acked, counts=counts)
    return state, [*effects, *merges]


def _advance(state: Worker, through: Epoch) -> tuple[Worker, list[Effect]]:
    """Update the handle to what this epoch's manifest names for the subtask, and start a merge if one is due."""
    if state.handle is None:
        return state, []
    merged_ref, segment = state.acked.get(through), state.sealed[through].segment
    before = state.handle
    if segment is not None and segment.writer is not None:
        before = replace(before, segments=())  # a topic takes the segments over, and nothing here needs them
    handle = advanced(before, segment, merged_ref)
    state = replace(state, handle=handle)
    if merged_ref is not None:
        state = replace(state, merging=False, merged=None)
    merge = None if state.merging else due(handle, through, state.limits)
    return (state, []) if merge is None else (replace(state, merging=True), [Compact(merge)])


def awaits_outcome(state: Worker) -> bool:
    """Return whether every fragment has closed the last epoch that is known here, and its outcome is open.

    Then no barrier of this epoch is behind anything that this worker has not taken, or behind anything that another
    worker can only send to this one: every worker that sends to it has closed the epoch too.
    """
    newest = max(state.passed.values())
    closed = all(epoch == newest for epoch in state.passed.values())
    return closed and newest > state.committed and (newest in state.sealing or newest in state.sealed)


def holds(state: Worker, epoch: Epoch, handle: SnapshotHandle) -> bool:
    """Return whether this worker's state as of an epoch is what its manifest names (P10).

    If segments go to a topic, the manifest names those that it may lack; the epoch's own is always among them.
    """
    if (own_handle := handle_at(state, epoch)) is None:
        return False
    ours = [segment for segment in own_handle.segments if segment.epoch == epoch]
    if any(segment.writer is not None for segment in own_handle.segments):
        return bool(ours) and set(ours) <= set(handle.segments)
    return set(pieces(own_handle)) == set(pieces(handle))


def handle_at(state: Worker, epoch: Epoch) -> SnapshotHandle | None:
    """Return what this epoch's manifest names if it contains this worker's part; None if it cannot."""
    if state.handle is None or epoch == state.committed:
        return state.handle
    if (sealed := state.sealed.get(epoch)) is None:
        return None
    return advanced(state.handle, sealed.segment, state.acked.get(epoch))


def part_of(state: Worker, ack: SendAck, delivered: tuple[Confirmed, ...]) -> SubtaskPart:
    """Return the ack's content, with the last delivered tags of this worker's writers."""
    staged = dict(ack.staged)
    given = ack.positions, ack.segment, staged, delivered, ack.compacted, ack.audit
    return SubtaskPart(state.subtask, *given, orders=ack.orders)


def _close(state: Worker, fragment: int, barrier: Barrier) -> tuple[Worker, list[Effect]]:
    state, effects = committed(state, barrier.committed_through)
    assert barrier.epoch == state.passed[fragment] + 1
    state = replace(state, passed={**state.passed, fragment: barrier.epoch})
    effects.append(CloseFragment(fragment, barrier))
    if all(epoch >= barrier.epoch for epoch in state.passed.values()):
        state = replace(state, sealing=state.sealing | {barrier.epoch})
        effects.append(Seal(barrier.epoch))
    return state, effects


def _staged_through(state: Worker, epoch: Epoch) -> dict[str, Staged]:
    """Merge forward the parts of every epoch not known to be committed, in order, up to this one (P8).

    The last segment alone goes to the changelog's topic: it has the changes of the epochs before it that were given up.
    Uploads count for one epoch alone: rows of several may replace each other, so a committer reads the parts.
    """
    output_by_sink: dict[str, Staged] = {}
    for number in sorted(state.sealed):
        if number > epoch:
            continue
        for sink, staged in state.sealed[number].staged.items():
            before = output_by_sink.get(sink)
            output_by_sink[sink] = staged if before is None else _one_after_the_other(before, staged)
    last = state.sealed[epoch]
    if last.segment is not None and last.segment.writer is not None:
        output_by_sink[CHANGELOG] = Staged((last.segment.object,), last.records)
    return output_by_sink


def _one_after_the_other(before: Staged, staged: Staged) -> Staged:
    return Staged((*before.parts, *staged.parts), before.rows + staged.rows)


def _audit_through(state: Worker, epoch: Epoch) -> PartAudit | None:
    """Merge forward the audits of every epoch not known to be committed, in order, up to this one (P8)."""
    if epoch not in state.counts:
        return None
    parts: list[PartAudit] = []
    for number in sorted(state.counts):
        if number <= epoch:
            parts += state.counts[number]
            digests = state.sealed[number].digests if number in state.sealed else {}
            writers = {sink: Writer(sink, state.subtask) for sink in sorted(digests)}
            parts.append(PartAudit(sinks=tuple(SinkStaged(writers[sink], (digests[sink],)) for sink in writers)))
    return joined(parts)


def _orders_through(state: Worker, epoch: Epoch) -> tuple[ObjectRef, ...] | None:
    """Merge forward the records of every epoch not known to be committed, in order, up to this one (P8)."""
    refs: list[ObjectRef] = []
    for number in sorted(state.sealed):
        if number <= epoch:
            if (own := state.sealed[number].orders) is None:
                return None
            refs += own
    return tuple(refs)


def durable_epochs(state: Worker) -> int:
    """Return how many epochs are sealed and not known to be committed."""
    return len([epoch for epoch in state.sealed if epoch > max(state.committed, NO_EPOCH)])
