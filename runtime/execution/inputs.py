"""Records that a source has when a job starts, and whether the job can continue reading them (P12, P22)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.model import SourcePosition
from holdfast.runtime.driver.partitions import FIRST_RECORD, no_longer_listed, refusal_to_grow
from holdfast.runtime.plan.immediate import not_to_grow
from holdfast.runtime.plan.model import Plan, SourceSpec
from holdfast.runtime.plan.same_source import refuse_other_sources


@dataclass(frozen=True)
class SourceFacts:
    """The state of a source at a start."""

    refusal: HoldfastError | None
    """Why the job cannot continue in it; then the rest is empty."""
    partitions: tuple[int, ...] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    """Per partition, the offset after its last record."""


def look_at(plan: Plan, positions: Sequence[SourcePosition], spec: SourceSpec) -> SourceFacts:
    """Open a source, and compare it with the last checkpoint.

    Args:
        positions: Those of the last checkpoint; none before the first.
    """
    try:
        with closing(spec.source.open()) as source:
            refuse_other_sources(plan.app, positions, {spec.name: source})
            partitions = tuple(source.partitions())
            refusal = _changed_partitions(plan, positions, spec.name, partitions)
            return SourceFacts(None, partitions, source.end_offsets()) if refusal is None else SourceFacts(refusal)
    except HoldfastError as error:
        return SourceFacts(error)


def _changed_partitions(
    plan: Plan, positions: Sequence[SourcePosition], source: str, here: Collection[int]
) -> HoldfastError | None:
    """Return why a source is refused that lacks a partition of the last checkpoint, or has one that it must not have.

    Args:
        here: The partitions that the source lists.
    """
    read = [at.partition for at in positions if at.source == source]
    if gone := [(source, partition) for partition in read if partition not in here]:
        return no_longer_listed(plan.app, gone)
    new = [SourcePosition(source, p, FIRST_RECORD) for p in here if p not in read] if read else []
    return refusal_to_grow(plan.app, not_to_grow(plan), new)
