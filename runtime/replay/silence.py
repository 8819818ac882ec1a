"""Whether the partitions that an epoch took nothing of were idle when it began.

Checkpoints do not record that a partition is idle, and a job that is restored counts each as active for `idle_after`.
So a replay would hold event time back where the job did not. A partition was idle if its offset was the same at a
checkpoint that is older by `idle_after`.

Invariants
    - A partition without such a checkpoint counts as active: nothing is taken from event time on a guess.

Source: docs/decisions/0023-silent-partitions.md, 0132-shadow.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.joblog import Completed
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.replay.spans import Span

Offsets = Mapping[tuple[str, int], int]


def begins_idle(stored: Stored, start: Completed | None, sources: Sequence[SourceSpec], span: Span) -> bool:
    """Return whether an epoch has partitions without records, and all of them were idle when it began.

    Args:
        start: The checkpoint that the epoch follows.
        span: The records that it took.

    Raises:
        Damaged, Unavailable: a manifest cannot be read.
    """
    silent = [(each.source, each.partition) for each in span if not each.offsets]
    if start is None or not silent:
        return False
    idle_after_us = {spec.name: round(spec.idle_after_s * 1e6) for spec in sources}
    now = _offsets(stored, start)
    earlier: dict[int, Offsets | None] = {}
    for at in silent:
        before_us = start.at - idle_after_us[at[0]]
        if before_us not in earlier:
            older = [done for done in stored.job.completed if done.at <= before_us]
            earlier[before_us] = _offsets(stored, older[-1]) if older else None
        offsets = earlier[before_us]
        if offsets is None or offsets.get(at) != now.get(at):
            return False
    return True


def _offsets(stored: Stored, done: Completed) -> Offsets:
    manifest = stored.repository.load_manifest(done.body.manifest)
    return {(at.source, at.partition): at.offset for at in manifest.positions}
