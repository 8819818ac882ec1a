"""Estimate how long a rewound job needs to reach its present position again; None if an input is unknown.

The estimate is the sum of two parts. Reading again: at the best rate between two recent checkpoints of one generation,
so that a job that waited for its input gives an estimate that is too long, not too short. Taking rows back: the time
that planning has just needed to gather them, times the cost of a repair relative to its plan. The restart of workers
and the restore of state are not included.

Invariants
    - An unknown input makes the estimate unknown; it is 0 only if there is nothing to read and nothing to take back.

Source: API.md, JSON `rewind`; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.rewind.sinks import Outlook

RECENT_MAX = 10
"""Number of recent checkpoints that determine the rate; each is one manifest to read."""
REPAIR_PER_PLAN = 1.3
"""A repair gathers the same rows as its plan, then writes them: 0.9 to 1.3 times the plan's CPU, 60,000 rows in
SQLite."""


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
    """Return the best rate of the job's recent epochs; None if no two checkpoints give one."""
    recent = job.completed[-RECENT_MAX:]
    manifests = [repository.load_manifest(each.body.manifest) for each in recent]
    best = 0.0
    for (before, there), (after, here) in pairwise(zip(recent, manifests, strict=True)):
        took_us = after.at - before.at
        if took_us > 0 and after.generation == before.generation:  # between two runs no job was reading
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
