"""Timelines: what a job stands on after it was rewound.

A rewind begins a timeline that continues from an earlier checkpoint. What was completed after that
checkpoint belongs to no lineage any more: local state of it is no base, and no later rewind goes there.

Invariants
    - Epochs of two stretches of a lineage never overlap, and every checkpoint the job stands on is in one.
    - An abandoned epoch lies in none, whatever its number: new numbers lie above all old ones (P2).

Pure: no clock, thread or I/O.
Source: PROTOCOL P2, P6, P14; docs/design/0010-rewind.md. The word is PostgreSQL's.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model import EPOCH_MAX, Epoch, Stretch, Timeline


@dataclass(frozen=True)
class Rewind:
    """One rewind: the timeline it began, where that continues from, and the first epoch it may use."""

    timeline: Timeline
    base_epoch: Epoch
    first_epoch: Epoch
    at: int
    accepted: tuple[str, ...] = ()
    """As in `Rewound`: a repair that is made up for later may leave as much as one that was not cut short."""


def lineage_of(rewinds: tuple[Rewind, ...]) -> tuple[Stretch, ...]:
    """Return which epochs each timeline contributed to what the job stands on, oldest first (P14)."""
    stretches, last = [], EPOCH_MAX
    for rewind in reversed(rewinds):
        if rewind.first_epoch <= last:
            stretches.append(Stretch(rewind.timeline, rewind.first_epoch, last))
        last = min(last, rewind.base_epoch)
    return (Stretch(Timeline(1), Epoch(1), last), *reversed(stretches))


def timeline_of(rewinds: tuple[Rewind, ...], epoch: Epoch) -> Timeline:
    """Return which timeline contributed this epoch to the lineage; the newest one for an epoch in none."""
    stretches = lineage_of(rewinds)
    return next((s.timeline for s in stretches if s.first <= epoch <= s.last), stretches[-1].timeline)
