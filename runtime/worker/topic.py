"""The records of a topic as pieces of state, in front of the segments that are not delivered yet.

A restore takes pieces one after another, so each part of the topic that is read becomes a small piece in memory. They
are labelled with one epoch, no later than the pieces behind them: what matters is that the records of a key come in
the order of their epochs, and that everything newer follows.

Invariants
    - The records are those of the target's lineage, after one epoch and through the target's.
    - A topic that lacks what was delivered to it or what the target needs, or that another history of the job wrote
      to, is refused before a row is used.

Source: docs/decisions/0055-changelog-topic.md; PROTOCOL P10, P14, P24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.bases import pieces, undelivered
from holdfast.model import NO_EPOCH, Epoch, SegmentRef, Timeline, WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.target import StateTarget
from holdfast.sinks.contract.changelogs import (
    ROOT,
    AsOf,
    OpenChangelog,
    check_holds,
    check_ours,
    check_reaches,
    shown_place,
)
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.records import deltas_in
from holdfast.state.store import Piece

READER = WorkerId("topic")


@dataclass(frozen=True)
class Older:
    """The part of a target's state that a topic holds."""

    plan: Plan
    target: StateTarget
    found: OpenChangelog

    @property
    def newer(self) -> tuple[SegmentRef, ...]:
        """Return the stored pieces that the topic lacks, oldest first."""
        return pieces(undelivered(self.target.handle, self.found.delivered))

    def usable(self, applied: Epoch | None, key_groups: tuple[int, int] | None) -> bool:
        """Return whether state as of an epoch, of some key groups, can be brought to the target by records after it.

        Not if the topic is compacted beyond it, since deletes may be gone.
        """
        if applied is None or self.found.empty:
            return True
        return applied >= self.found.floor and key_groups == self.target.handle.key_groups

    def pieces(
        self, after: Epoch, before: tuple[SegmentRef, ...], advanced: Callable[[int, int], object]
    ) -> Iterator[Piece]:
        """Yield the records after an epoch.

        Args:
            before: The stored pieces that follow.
            advanced: See OpenChangelog.records.
        """
        target, plan, topic = self.target, self.plan, self.target.topic
        if topic is None or after >= target.base_epoch:
            return
        key_groups, count = target.handle.key_groups, plan.key_groups
        epoch = min([target.base_epoch, *(piece.epoch for piece in before)])
        header = SegmentHeader(target.job_uuid, target.generation, Timeline(target.timeline), epoch, NO_EPOCH, READER)
        specs = {operator.id: operator.table for operator in plan.operators}
        which = AsOf(target.job_uuid, topic.history, target.base_epoch, after, key_groups, count)
        for records in self.found.records(which, advanced):
            for delta in deltas_in(records, specs, key_groups, count, epoch):
                yield Piece(seal(header, [delta]), key_groups)


def older(plan: Plan, target: StateTarget) -> Older:
    """Look at what the topic holds for a target.

    Raises:
        Damaged: it lacks what was delivered to it, or another history of the job delivered to it.
        Fenced: another history owns it.
        ConfigError: it is missing, or compacted beyond the target.
        Unavailable: it cannot be reached now.
    """
    changelog = ROOT if target.topic is None or target.base_epoch == NO_EPOCH else plan.changelog
    open_changelog = changelog.open(target.job_uuid)
    if target.topic is not None and target.base_epoch != NO_EPOCH:
        where = f"changelog {shown_place(changelog.place)}"
        check_ours(where, open_changelog, target.claim)
        check_holds(where, open_changelog, target.topic.delivered)
        check_reaches(where, open_changelog, target.base_epoch)
    return Older(plan, target, open_changelog)
