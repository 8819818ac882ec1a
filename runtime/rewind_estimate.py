"""How long it would take until a rewound job is again where it is now: an estimate, None where something is unknown.

Two parts are added. Records are read again as fast as the job is known to have read: the best rate between two
checkpoints of one generation among its recent ones, so an estimate from a job that waited for its input is too long,
not too short. Rows are taken back as fast as planning has just now gathered them, times what a repair costs more than
its plan. What a restart of workers and a restore of state take is not in it.

Invariants
    - What is not known makes the estimate unknown; it is 0 only if nothing is to be read and nothing to be taken back.

Source: API.md, JSON `rewind`; docs/design/0010-rewind.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.rewind_sinks import Outlook

RECENT_MAX = 10
"""How many of the last checkpoints tell the rate; each is one manifest to read."""
REPAIR_PER_PLAN = 1.3
"""A repair gathers what its plan gathers, then writes it: 0.9 to 1.3 times the plan's CPU, 60,000 rows in SQLite."""


def estimate_ms(
    repository: Repository, job: Job, sources: Sequence[Mapping[str, Any]], sinks: Sequence[Outlook]
) -> int | None:
    """Return the estimate in milliseconds.

    Args:
        sources: As in API.md, JSON `rewind`.
    """
    reading, taking_back = _reading_s(repository, job, sources), taking_back_s(sinks)
    return None if reading is None or taking_back is None else math.ceil((reading + taking_back) * 1000)


def _reading_s(repository: Repository, job: Job, sources: Sequence[Mapping[str, Any]]) -> float | None:
    records = 0
    for at in sources:
        if at["records"] is None:
            return None
        records += at["records"]
    if not records:
        return 0.0
    rate = records_per_s(repository, job)
    return None if rate is None else records / rate


def records_per_s(repository: Repository, job: Job) -> float | None:
    """Return the best rate of the job's recent epochs; None if no two checkpoints tell one."""
    recent = job.completed[-RECENT_MAX:]
    manifests = [repository.load_manifest(each.body.manifest) for each in recent]
    best = 0.0
    for (before, there), (after, here) in pairwise(zip(recent, manifests, strict=True)):
        took_us = after.at - before.at
        if took_us > 0 and after.generation == before.generation:  # between two runs nobody read
            best = max(best, _records_between(there, here) / (took_us / 1e6))
    return best or None


def _records_between(there: Manifest, here: Manifest) -> int:
    before = {(at.source, at.partition): at.offset for at in there.positions}
    read = [(before.get((at.source, at.partition), -1), at.offset) for at in here.positions]
    return sum(last - first for first, last in read if 0 <= first <= last)


def taking_back_s(sinks: Sequence[Outlook]) -> float | None:
    """Return how long the repairs would take one after the other; None if that is unknown."""
    total = 0.0
    for sink in sinks:
        if sink.refused:
            continue  # its rows stay
        if sink.looked_s is None or sink.shown["restore"] is None or sink.shown["delete"] is None:
            return None
        if sink.shown["restore"] or sink.shown["delete"]:
            total += sink.looked_s * REPAIR_PER_PLAN
    return total
