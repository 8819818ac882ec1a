"""Decides when to merge the pieces of a subtask's state, and which pieces a merge replaces.

A handle grows by one segment per epoch. A base merges everything into one segment that follows 0;
a smaller merge replaces the newest segments with one equivalent segment. Both are made in the
background, as of a completed epoch, and take effect with the epoch whose ack names them.

Invariants
    - Restoring a handle before and after a merge gives the same state.
    - Master and worker advance a handle with the same function, so they agree on its pieces.
    - A base is written only after changes of half its size; a segment is merged into a larger one only if that at
      least doubles the segment, so it is rewritten a logarithmic number of times.

Pure: no clock, thread or I/O.
Source: DESIGN section 5 (snapshot); docs/decisions/0007; size-tiered merging as in O'Neil et al., The LSM-Tree, 1996.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.model import NO_EPOCH, Epoch, SegmentRef, SnapshotHandle, Subtask

BASE_BYTES = 64 << 20
"""Segments with fewer bytes never trigger a base."""
SEGMENTS_MAX = 64


@dataclass(frozen=True)
class Thresholds:
    """How much may accumulate before a merge."""

    bytes_max: int = BASE_BYTES
    segments_max: int = SEGMENTS_MAX


@dataclass(frozen=True)
class Merge:
    """Merge these pieces of a handle, as of epoch `through`, into one."""

    through: Epoch
    follows: Epoch
    """0: a base, which needs no tombstones."""
    pieces: tuple[SegmentRef, ...]


def pieces(handle: SnapshotHandle) -> tuple[SegmentRef, ...]:
    """Return base and segments, all in the form of segments, oldest first."""
    found = (*(SegmentRef(handle.base_epoch, NO_EPOCH, ref) for ref in handle.base), *handle.segments)
    return tuple(sorted(found, key=lambda piece: piece.epoch))


def due(handle: SnapshotHandle, through: Epoch, limits: Thresholds) -> Merge | None:
    """Return the merge that is worth making now that `through` is completed, None if there is none.

    Segments that are delivered to a topic leave the handle instead (`undelivered`).
    """
    segments = handle.segments
    if any(segment.writer is not None for segment in segments):
        return None
    gathered = sum(segment.object.size for segment in segments)
    base = sum(ref.size for ref in handle.base)
    everything = Merge(through, NO_EPOCH, pieces(handle))
    if len(segments) > 1 and gathered > max(limits.bytes_max, base // 2):
        return everything
    if len(segments) < max(limits.segments_max, 2):
        return None
    at = _tier(segments, max(limits.segments_max // 2, 2))
    if any(segment.follows == NO_EPOCH for segment in segments) or (at == 0 and not handle.base):
        return everything  # merges the bases of several owners, or the job's first segments into its first base
    follows = segments[at - 1].epoch if at else handle.base_epoch
    return Merge(through, follows, segments[at:])


def _tier(segments: tuple[SegmentRef, ...], least: int) -> int:
    """Return the index from which the newest segments together are about as large as the next older one."""
    at = len(segments) - least
    taken = sum(segment.object.size for segment in segments[at:])
    while at > 0 and (segments[at - 1].object.size <= taken or segments[at - 1].epoch == segments[at].epoch):
        at -= 1
        taken += segments[at].object.size
    return at


def advanced(
    handle: SnapshotHandle,
    segment: SegmentRef | None,
    compacted: SegmentRef | None,
    further: tuple[SegmentRef, ...] = (),
) -> SnapshotHandle:
    """Return the handle one completed epoch later: without the pieces that a merge replaced, with the new segments.

    Args:
        further: As in SubtaskPart.
    """
    if compacted is not None:
        later = tuple(each for each in handle.segments if each.epoch > compacted.epoch)
        if compacted.follows == NO_EPOCH:
            handle = replace(handle, base=(compacted.object,), base_epoch=compacted.epoch, segments=later)
        else:
            below = tuple(each for each in handle.segments if each.epoch <= compacted.follows)
            handle = replace(handle, segments=(*below, compacted, *later))
    new = (*(() if segment is None else (segment,)), *further)
    return replace(handle, segments=(*handle.segments, *new)) if new else handle


def undelivered(handle: SnapshotHandle, delivered: Mapping[Subtask, Epoch]) -> SnapshotHandle:
    """Return the handle without the segments that the changelog's topic holds.

    Args:
        delivered: By writer, the epoch through which the topic has everything. Epochs of one lineage grow, so the epoch
            of a tag identifies the tag.
    """
    left = tuple(s for s in handle.segments if s.writer is None or delivered.get(s.writer, NO_EPOCH) < s.epoch)
    return handle if len(left) == len(handle.segments) else replace(handle, segments=left)
