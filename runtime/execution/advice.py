"""Warnings at a start: rows beyond the checkpoint, records that no longer exist, arguments without effect.

A crash can leave rows of sinks that are written immediately beyond the checkpoint. The same code writes the same rows
again, and nothing changes. Changed code does not: rows that the old code wrote for re-read records keep their tags, so
the new code's rows for these records are not applied. A stop at a barrier leaves no such rows.

Source: PROTOCOL P22; docs/decisions/0012, 0046, 0086.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from holdfast.checkpoint import joblog
from holdfast.errors import Unavailable
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.immediate import immediate_sink
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.sinks.contract.immediate import Origin


def warnings_of(facts: Facts, plan: Plan, partitions: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return a warning for the user about everything that this run cannot guarantee.

    Args:
        plan: With the copies of its sources.
    """
    job, starts = facts.folder.job, {Origin(at.source, at.partition): at.offset for at in facts.folder.positions}
    warnings = facts.given.advice()
    if job is None:
        return tuple(warnings)
    lost = _not_in_fork(plan, starts, partitions) if job.generation == 0 and facts.folder.before is not None else []
    return (*(each for spec in plan.sinks for each in _uncommitted_writes(spec, job, starts)), *lost, *warnings)


def _not_in_fork(plan: Plan, starts: Mapping[Origin, int], partitions: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return a warning for every partition of which a fork that has not begun can read nothing any longer."""
    warnings = []
    for spec in (each for each in plan.sources if each.source.traits.loses_partitions):
        with closing(spec.source.open()) as opened:
            for partition in partitions[spec.name]:
                if (why := opened.gone(partition)) is not None:
                    warnings.append(
                        f"source {spec.name!r}, partition {partition}: {why}. This job was forked from an epoch that "
                        f"had read it up to offset {max(0, starts.get(Origin(spec.name, partition), 0))}, and reads no "
                        "further records of it"
                    )
    return warnings


def _uncommitted_writes(spec: SinkSpec, job: joblog.Job, starts: Mapping[Origin, int]) -> list[str]:
    """Return a warning for every partition of which other code wrote rows beyond the checkpoint."""
    if (sink := immediate_sink(spec)) is None:
        return []
    try:
        written_offsets = sink.written(job.uuid, spec.name)
    except Unavailable as error:
        away = f"sink {spec.name!r} cannot report how far it is written ({error.what})"
        return [f"{away}; if the code before it has changed since a crash, rows of the old code may remain"]
    return [
        f"sink {spec.name!r} is written immediately, and its code has changed: after the last checkpoint, the old code "
        f"wrote rows from offsets {max(0, starts.get(each.origin, 0))} to {each.offset - 1} of partition "
        f"{each.origin.partition} of source {each.origin.source!r}; they stay as they are unless later records replace "
        f"them.\nNext: to avoid this, run the old code and end it with holdfast stop {job.name} before changing it"
        for each in sorted(written_offsets, key=lambda each: each.origin)
        if each.path != spec.path and each.timeline == job.timeline and each.offset > starts.get(each.origin, 0)
    ]
