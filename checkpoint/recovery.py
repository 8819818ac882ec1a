"""Finds the stored pieces from which a generation restores the state of each subtask.

The same answer serves every kind of start: restart, failover, another parallelism. Key groups never split. With another
parallelism, a subtask reads the pieces of all old subtasks that overlap its range, and keeps only its own key groups.
Each piece counts only for the key groups that its last owner had: another owner may have a newer base, and a base has
no tombstones against older segments.

Pure: no clock, thread or I/O.
Source: DESIGN section 5 (restore, rescale); PROTOCOL P5, P10, P18.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Pending, SegmentRef, SnapshotHandle, Subtask


def handles_for(base: Manifest | None, ranges: Sequence[tuple[int, int]]) -> tuple[SnapshotHandle, ...]:
    """Return one handle per subtask, covering its key-group range [first, end).

    Takes as many steps as there are subtasks and pieces, not their product.
    """
    state = () if base is None else sorted(base.state, key=lambda each: each.key_groups)
    firsts, ends = [old.key_groups[0] for old in state], [old.key_groups[1] for old in state]
    # The ranges of the old subtasks are disjoint: those that overlap a range are neighbours.
    return tuple(
        _handle_for(state[bisect_right(ends, owned[0]) : bisect_left(firsts, owned[1])], Subtask(i), owned)
        for i, owned in enumerate(ranges)
    )


def _handle_for(overlapping: Sequence[SnapshotHandle], subtask: Subtask, owned: tuple[int, int]) -> SnapshotHandle:
    """Return the handle of a subtask, from those of the old subtasks that overlap its range, in their order."""
    alone = overlapping[0] if len(overlapping) == 1 else None
    spans: dict[str, list[SegmentRef]] = {}
    for old in overlapping:
        for piece in old.segments if alone is not None else pieces(old):
            span = piece.key_groups or old.key_groups
            first, end = max(span[0], old.key_groups[0], owned[0]), min(span[1], old.key_groups[1], owned[1])
            if first < end:
                _add(spans.setdefault(piece.object.path, []), piece, (first, end))
    segments = [_restricted(piece, owned) for each in spans.values() for piece in each]
    return SnapshotHandle(
        subtask,
        owned,
        () if alone is None else alone.base,
        NO_EPOCH if alone is None else alone.base_epoch,
        tuple(sorted(segments, key=lambda piece: (piece.epoch, piece.object.path))),
    )


def _restricted(piece: SegmentRef, owned: tuple[int, int]) -> SegmentRef:
    return replace(piece, key_groups=None) if piece.key_groups == owned else piece


def _add(spans: list[SegmentRef], piece: SegmentRef, span: tuple[int, int]) -> None:
    """Name the piece for these key groups too; merge adjacent spans."""
    if spans and spans[-1].key_groups is not None and spans[-1].key_groups[1] == span[0]:
        span = (spans.pop().key_groups[0], span[1])  # type: ignore[index]
    spans.append(replace(piece, key_groups=span))


def pending_by_subtask(base: Manifest | None, parallelism: int) -> dict[Subtask, tuple[Pending, ...]]:
    """Return the undelivered output that each subtask must deliver first, in order (P18, P20); without those that have
    none.

    Output of writers that no longer exist goes to the live subtask of the same index modulo the
    parallelism, under the old writer's own tag.
    """
    found: dict[Subtask, list[Pending]] = {}
    for item in () if base is None else base.pending:
        found.setdefault(Subtask(item.writer.subtask % parallelism), []).append(item)
    return {subtask: tuple(items) for subtask, items in found.items()}
