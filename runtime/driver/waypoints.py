"""Epochs that a slow copy must reach before it can use a newer base.

A base does not record what was deleted before it, so a copy older than a base cannot advance over it. The last epoch
without the base has the segments that lead up to it. The master keeps its handle until every copy is past the base, and
sends it to a copy that is behind. Without it, a copy that needs longer than the time between two bases would start over
with each of them.

Invariants
    - A waypoint is a completed epoch of this generation or its base, and has not expired: its pieces are stored.
    - There are at most WAYPOINTS_MAX per subtask; a copy that is further behind is restored.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/design/0054-standbys.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Epoch, SnapshotHandle, Subtask

WAYPOINTS_MAX = 8


@dataclass(frozen=True)
class Waypoint:
    """The last completed epoch without a base that the next one has, and the handle of a subtask as of it."""

    epoch: Epoch
    handle: SnapshotHandle


Waypoints = Mapping[Subtask, tuple[Waypoint, ...]]
"""Oldest first."""


def base_of(handle: SnapshotHandle) -> Epoch:
    """Return the newest epoch that a base of this handle is as of: older state cannot be brought to the handle."""
    return max((piece.epoch for piece in pieces(handle) if piece.follows == NO_EPOCH), default=NO_EPOCH)


def passed(
    known: Waypoints, before: Manifest | None, after: Manifest, copies: Mapping[Subtask, Iterable[Epoch]]
) -> Waypoints:
    """Return the waypoints after an epoch is completed.

    Args:
        before: The last completed epoch; None: there is none.
        after: The one that is completed now.
        copies: The epochs of all copies of each subtask, 0 for one that is still to be made.
    """
    if before is None or [h.key_groups for h in before.state] != [h.key_groups for h in after.state]:
        return {}
    found: dict[Subtask, tuple[Waypoint, ...]] = {}
    for old, new in zip(before.state, after.state, strict=True):
        base, oldest = base_of(new), min(copies.get(new.subtask, ()), default=base_of(new))
        every = known.get(new.subtask, ())
        if base_of(old) != base:
            every = (*every, Waypoint(before.epoch, old))
        if ahead := [each for each in every if oldest < each.epoch][-WAYPOINTS_MAX:] if oldest < base else []:
            found[new.subtask] = tuple(ahead)
    return found


def next_for(known: Waypoints, handle: SnapshotHandle, at: Epoch, is_kept: Callable[[Epoch], bool]) -> Waypoint | None:
    """Return the waypoint that a copy as of an epoch must reach first; None if it needs none, or no one leads on.

    Args:
        handle: That of the newest epoch.
        is_kept: Whether this completed epoch has not expired.
    """
    if at == NO_EPOCH or base_of(handle) <= at:
        return None
    found = (each for each in known.get(handle.subtask, ()) if base_of(each.handle) <= at < each.epoch)
    waypoint = next(found, None)
    return waypoint if waypoint is not None and is_kept(waypoint.epoch) else None
