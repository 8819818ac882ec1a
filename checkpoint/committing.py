"""The output of a sink with one committer: the staged output of all its writers in an epoch, as that of the first.

Such a sink's target shows the output of all writers in one commit (`traits.commits_once`). So the manifest names it as
one item under the committer's tag, and delivery, repair and audit need no second way: to them the sink has one writer.

Invariants
    - Parts keep their order: by writer, and per writer as it staged them (P8).
    - No part and no digest is lost or counted twice.

Pure: no clock, thread or I/O.
Source: docs/decisions/0056-one-committer.md; PROTOCOL P8, P18, P23.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from holdfast.checkpoint.audit import SinkStaged
from holdfast.checkpoint.manifest import Manifest, SubtaskPart
from holdfast.model import Pending, RowDigest, Staged, Subtask, Writer
from holdfast.storage.digests import whole

COMMITTER = Subtask(0)
"""The writer under whose tag the output of all is delivered."""


def gathered(parts: Iterable[SubtaskPart], sinks: Collection[str]) -> tuple[SubtaskPart, ...]:
    """Return the parts of an epoch, with all output of these sinks in the part of the committer.

    Args:
        parts: One per subtask.
    """
    sorted_parts = sorted(parts, key=lambda part: part.subtask)
    if not sinks:
        return tuple(sorted_parts)
    assert sorted_parts[0].subtask == COMMITTER, "every parallelism has a first subtask"
    others = [_without(part, sinks) for part in sorted_parts]
    every = {
        sink: _together([part.staged[sink] for part in sorted_parts if sink in part.staged]) for sink in sorted(sinks)
    }
    staged = others[0].staged | {sink: found for sink, found in every.items() if found.parts}
    first = replace(others[0], staged=staged)
    if first.audit is not None:
        digests = [
            s for part in sorted_parts if part.audit is not None for s in part.audit.sinks if s.writer.sink in sinks
        ]
        first = replace(first, audit=replace(first.audit, sinks=(*first.audit.sinks, *_digested(digests, sinks))))
    return (first, *others[1:])


def left_by_others(base: Manifest, sinks: Collection[str]) -> list[Pending]:
    """Return undelivered output of sinks that had, or now have, one committer, and not both.

    Its rows may have keys that another writer's output has from now on, so it is delivered before any of that (P20).
    """
    before = base.with_committer
    changed = {item.writer.sink for item in base.pending if (item.writer.sink in before) != (item.writer.sink in sinks)}
    return [item for item in base.pending if item.writer.sink in changed]


def _without(part: SubtaskPart, sinks: Collection[str]) -> SubtaskPart:
    output_by_sink = {sink: found for sink, found in part.staged.items() if sink not in sinks}
    audit = part.audit
    if audit is not None:
        audit = replace(audit, sinks=tuple(each for each in audit.sinks if each.writer.sink not in sinks))
    return replace(part, staged=output_by_sink, audit=audit)


def _together(staged: Sequence[Staged]) -> Staged:
    refs = tuple(ref for each in staged for ref in each.parts)
    return Staged(refs, sum(each.rows for each in staged), tuple(one for each in staged for one in each.uploads))


def _digested(digests: Sequence[SinkStaged], sinks: Collection[str]) -> list[SinkStaged]:
    """Return the digests of the committer: one in all, unless rows of several parts of a writer replace each other."""
    committer_digests = []
    for sink in sorted(sinks):
        mine = [each for each in digests if each.writer.sink == sink]
        parts: tuple[RowDigest, ...] = tuple(part for each in mine for part in each.parts)
        if parts and all(len(each.parts) <= 1 for each in mine):
            parts = (whole(parts),)
        if mine:
            committer_digests.append(SinkStaged(Writer(sink, COMMITTER), parts))
    return committer_digests
