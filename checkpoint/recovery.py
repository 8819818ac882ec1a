"""Where a generation starts from: which stored pieces make the state of each subtask.

One answer for every kind of start: restart, failover, another parallelism. Key groups never split,
so with another parallelism a subtask reads the pieces of all old subtasks that overlap its range
and keeps only its own key groups.

Pure: no clock, thread or I/O.
Source: DESIGN section 5 (restore, rescale); PROTOCOL P5, P10, P18.
"""

from __future__ import annotations

from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Pending, SnapshotHandle, Subtask


def handles_for(base: Manifest | None, ranges: list[tuple[int, int]]) -> tuple[SnapshotHandle, ...]:
    """Return one handle per subtask, covering its key-group range [first, end)."""
    return tuple(_handle_for(base, Subtask(i), owned) for i, owned in enumerate(ranges))


def _handle_for(base: Manifest | None, subtask: Subtask, owned: tuple[int, int]) -> SnapshotHandle:
    if base is None:
        return SnapshotHandle(subtask, owned, (), NO_EPOCH, ())
    overlapping = [old for old in base.state if old.key_groups[0] < owned[1] and owned[0] < old.key_groups[1]]
    segments = {segment.object.path: segment for old in overlapping for segment in old.segments}
    bases = {ref.path: ref for old in overlapping for ref in old.base}
    return SnapshotHandle(
        subtask,
        owned,
        tuple(bases.values()),
        # The oldest one: a segment above it may still be missing from one of the bases, and values
        # are absolute, so those that a newer base holds already do no harm.
        min((old.base_epoch for old in overlapping), default=NO_EPOCH),
        tuple(sorted(segments.values(), key=lambda segment: (segment.epoch, segment.object.path))),
    )


def pending_of(base: Manifest | None, subtask: Subtask, parallelism: int) -> tuple[Pending, ...]:
    """Return the undelivered output that this subtask has to deliver first, in order (P18, P20).

    Output of writers that no longer exist goes to the live subtask of the same index modulo the
    parallelism, under the old writer's own tag.
    """
    if base is None:
        return ()
    return tuple(item for item in base.pending if item.writer.subtask % parallelism == subtask)
