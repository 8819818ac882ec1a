"""Timelines: the lineage of a job after rewinds.

A rewind begins a timeline that continues from an earlier checkpoint. Epochs completed after that checkpoint no longer
belong to the lineage: local state of such an epoch cannot be a base, and no later rewind returns to it.

Invariants
    - Epochs of two stretches of a lineage never overlap, and every checkpoint of the job's lineage is in one.
    - An abandoned epoch is in no stretch, whatever its number: new numbers are above all old ones (P2).

Pure: no clock, thread or I/O.
Source: PROTOCOL P2, P6, P14; docs/decisions/0010-rewind.md. The word is PostgreSQL's.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model import EPOCH_MAX, Epoch, Stretch, Timeline


@dataclass(frozen=True)
class Rewind:
    """One rewind: the timeline that it began, the checkpoint from which that continues, and its first usable epoch."""

    timeline: Timeline
    base_epoch: Epoch
    first_epoch: Epoch
    at: int
    accepted: tuple[str, ...] = ()
    """As in `Rewound`: a repair that is completed later may leave the same rows as one that was not interrupted."""


def lineage_of(rewinds: tuple[Rewind, ...]) -> tuple[Stretch, ...]:
    """Return the epochs that each timeline contributed to the job's lineage, oldest first (P14)."""
    stretches, last = [], EPOCH_MAX
    for rewind in reversed(rewinds):
        if rewind.first_epoch <= last:
            stretches.append(Stretch(rewind.timeline, rewind.first_epoch, last))
        last = min(last, rewind.base_epoch)
    return (Stretch(Timeline(1), Epoch(1), last), *reversed(stretches))


def timeline_of(rewinds: tuple[Rewind, ...], epoch: Epoch) -> Timeline:
    """Return the timeline that contributed this epoch to the lineage; the newest one for an epoch in none."""
    stretches = lineage_of(rewinds)
    return next((s.timeline for s in stretches if s.first <= epoch <= s.last), stretches[-1].timeline)
