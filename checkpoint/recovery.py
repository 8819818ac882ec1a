"""Finds the stored pieces from which a generation restores the state of each subtask.

The same answer serves every kind of start: restart, failover, another parallelism. Key groups never split,
so with another parallelism a subtask reads the pieces of all old subtasks that overlap its range
and keeps only its own key groups. Each piece counts only for the key groups that its last owner had:
another owner may have a newer base, and a base has no tombstones against older segments.

Pure: no clock, thread or I/O.
Source: DESIGN section 5 (restore, rescale); PROTOCOL P5, P10, P18.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Pending, SegmentRef, SnapshotHandle, Subtask


def handles_for(base: Manifest | None, ranges: list[tuple[int, int]]) -> tuple[SnapshotHandle, ...]:
    """Return one handle per subtask, covering its key-group range [first, end)."""
    return tuple(_handle_for(base, Subtask(i), owned) for i, owned in enumerate(ranges))


def _handle_for(base: Manifest | None, subtask: Subtask, owned: tuple[int, int]) -> SnapshotHandle:
    if base is None:
        return SnapshotHandle(subtask, owned, (), NO_EPOCH, ())
    overlapping = [old for old in base.state if old.key_groups[0] < owned[1] and owned[0] < old.key_groups[1]]
    alone = overlapping[0] if len(overlapping) == 1 else None
    spans: dict[str, list[SegmentRef]] = {}
    for old in sorted(overlapping, key=lambda each: each.key_groups):
        for piece in old.segments if alone is not None else pieces(old):
            span = piece.key_groups or old.key_groups
            first, end = max(span[0], old.key_groups[0], owned[0]), min(span[1], old.key_groups[1], owned[1])
            if first < end:
                _add(spans.setdefault(piece.object.path, []), piece, (first, end))
    found = [_restricted(piece, owned) for each in spans.values() for piece in each]
    return SnapshotHandle(
        subtask,
        owned,
        () if alone is None else alone.base,
        NO_EPOCH if alone is None else alone.base_epoch,
        tuple(sorted(found, key=lambda piece: (piece.epoch, piece.object.path))),
    )


def _restricted(piece: SegmentRef, owned: tuple[int, int]) -> SegmentRef:
    return replace(piece, key_groups=None) if piece.key_groups == owned else piece


def _add(spans: list[SegmentRef], piece: SegmentRef, span: tuple[int, int]) -> None:
    """Name the piece for these key groups too; merge adjacent spans."""
    if spans and spans[-1].key_groups is not None and spans[-1].key_groups[1] == span[0]:
        span = (spans.pop().key_groups[0], span[1])  # type: ignore[index]
    spans.append(replace(piece, key_groups=span))


def pending_of(base: Manifest | None, subtask: Subtask, parallelism: int) -> tuple[Pending, ...]:
    """Return the undelivered output that this subtask must deliver first, in order (P18, P20).

    Output of writers that no longer exist goes to the live subtask of the same index modulo the
    parallelism, under the old writer's own tag.
    """
    if base is None:
        return ()
    return tuple(item for item in base.pending if item.writer.subtask % parallelism == subtask)
