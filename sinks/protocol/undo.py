"""Decides the value of a row after some of its changes are taken back: the core of every repair from before-images.

A rewind takes back the changes of the epochs after its base. Mostly these are the row's last ones: then it gets back
its value before the first of them. If a writer that was behind changed the row later, with an older epoch, that change
stays. Its before-image is then rewritten without the changes that were taken back; else a second rewind would restore
them.

Invariants
    - The row ends as if only the changes that stay had been made, in the order in which they came.
    - The images that stay lead back, one after the other, to the row before all of them.

Pure: no clock, thread or I/O. PROTOCOL P21.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import ConfigError, Fenced
from holdfast.model import Tag
from holdfast.sinks.contract.sink import Repair, Rewinding, Verdict

SAMPLE_MAX = 5
Before = TypeVar("Before")
Place = TypeVar("Place")


@dataclass(frozen=True)
class RowChange(Generic[Place, Before]):
    """One change of a row, in the order in which the target took them.

    Args:
        place: Names the before-image in its target.
        before: The row's earlier values; None: there was no row.
        undone: Whether the rewind takes it back.
    """

    place: Place
    before: Before | None
    undone: bool


@dataclass(frozen=True)
class TakenBack(Generic[Place, Before]):
    """The decision about one row.

    Args:
        last: The row's last change if it is taken back, else None: then the row stays as it is.
        before: The row's values afterwards; None: it is deleted.
        rewritten: Before-images that stay, with their new contents.
    """

    last: Place | None
    before: Before | None
    rewritten: tuple[tuple[Place, Before | None], ...]


def take_back(changes: Iterable[RowChange[Place, Before]]) -> TakenBack[Place, Before]:
    """Decide about one row. The changes are those that have a before-image, oldest first."""
    run: RowChange[Place, Before] | None = None
    last: RowChange[Place, Before] | None = None
    rewritten: list[tuple[Place, Before | None]] = []
    for change in changes:
        last = change
        if change.undone:
            run = run or change
        elif run is not None:
            rewritten.append((change.place, run.before))
            run = None
    if run is None or last is None:
        return TakenBack(None, None, tuple(rewritten))
    return TakenBack(last.place, run.before, tuple(rewritten))


def is_undone(tag: Tag, rewinding: Rewinding) -> bool:
    """Return whether the rewind takes back the delivery with this tag."""
    return tag.timeline < rewinding.to.timeline and tag.epoch > rewinding.to.epoch


def untouched(verdict: Verdict, rewinding: Rewinding) -> Repair:
    """Return the repair of a target that is on the new timeline already."""
    to = rewinding.to
    reason = f"the target is on timeline {to.timeline} already, from epoch {to.epoch} on"
    return Repair(verdict, 0, 0, 0, (), reason)


def impossible(reason: str, *, takes_more: bool = True) -> Repair:
    """Return the repair of a target that cannot be taken back; nothing is known of its rows."""
    return Repair("impossible", 0, 0, None, (), reason, takes_more)


def refused(where: str, reason: str) -> ConfigError:
    """Return the error to raise instead of repairing a target that cannot be taken back."""
    return ConfigError(
        f"{where}: the rewind cannot undo its output: {reason}",
        not_done="nothing in the target was changed, and no writer's tag moved",
        next_step="rewind to a later epoch, or bring back a backup of the target from that time",
    )


def overtaken(where: str, standing: Tag, rewinding: Rewinding) -> Fenced:
    """Return the error to raise if a later rewind was first."""
    return Fenced(
        f"{where}: the target is on timeline {standing.timeline} already; "
        f"this rewind begins timeline {rewinding.to.timeline}",
        not_done="nothing in the target was changed",
        next_step="let this process exit, do not retry it: the job was rewound again and another process runs it",
    )


def dropped(epoch: int, rewinding: Rewinding) -> str:
    """Return the reason why the needed images do not exist."""
    return (
        f"the rows from before epoch {epoch} are no longer kept, or never were, "
        f"and epoch {rewinding.to.epoch} is older: it lies beyond the rewind horizon"
    )
