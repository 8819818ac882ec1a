"""Rows that targets of immediately written sinks hold beyond the checkpoint from which a run starts.

A crash can leave such rows. The same code writes the same rows again, and nothing changes. Changed code does not: rows
that the old code wrote for re-read records keep their tags, so the new code's rows for these records are not applied. A
stop at a barrier leaves no such rows.

Source: PROTOCOL P22; docs/design/0012.
"""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Unavailable, Where
from holdfast.runtime.plan.compiler import Plan, SinkSpec
from holdfast.runtime.plan.immediate import immediate_sink, repeats
from holdfast.sinks.contract.immediate import Origin


def check_written_immediately(plan: Plan, before: Manifest) -> None:
    """Refuse to write a sink immediately if its output was delivered at the commit until now.

    Raises:
        ConfigError: there is such a sink.
    """
    known = {*(item.writer.sink for item in before.pending), *(done.writer.sink for done in before.confirmed)}
    for spec in plan.sinks:
        if spec.path is not None and spec.name in known:
            if repeats(spec):
                raise _was_transactional(plan.app, spec)
            raise ConfigError(
                f"sink {spec.name!r} was written at each commit until now, and would now be written immediately; tags "
                "of the two modes cannot be compared",
                not_done="the job was not started; state and output are untouched",
                next_step="undo the change of partitioned_by, of the log's key or of the steps before the sink; "
                "or give the sink another name and another table",
                where=Where(job=plan.app),
            )


def _was_transactional(job: str, spec: SinkSpec) -> ConfigError:
    return ConfigError(
        f"sink {spec.name!r} was written at each commit until now, and would now be written as rows come, at least "
        "once; output of earlier epochs may still have to be delivered",
        not_done="the job was not started; state and output are untouched",
        next_step="give the sink another name; or leave delivery= as it was",
        where=Where(job=job),
    )


def uncommitted_writes(plan: Plan, job: joblog.Job | None, before: Manifest | None) -> tuple[str, ...]:
    """Return a warning for every partition of which other code wrote rows beyond the checkpoint."""
    if job is None:
        return ()
    starts = {Origin(at.source, at.partition): at.offset for at in (before.positions if before is not None else ())}
    return tuple(warning for spec in plan.sinks for warning in _uncommitted_writes(spec, job, starts))


def _uncommitted_writes(spec: SinkSpec, job: joblog.Job, starts: dict[Origin, int]) -> list[str]:
    if (sink := immediate_sink(spec)) is None:
        return []
    try:
        written = sink.written(job.uuid, spec.name)
    except Unavailable as error:
        away = f"sink {spec.name!r} cannot report how far it is written ({error.what})"
        return [f"{away}; if the code before it has changed since a crash, rows of the old code may remain"]
    return [
        f"sink {spec.name!r} is written immediately, and its code has changed: after the last checkpoint, the old code "
        f"wrote rows from offsets {max(0, starts.get(each.origin, 0))} to {each.offset - 1} of partition "
        f"{each.origin.partition} of source {each.origin.source!r}; they stay as they are unless later records replace "
        f"them.\nNext: to avoid this, run the old code and end it with holdfast stop {job.name} before changing it"
        for each in sorted(written, key=lambda each: each.origin)
        if each.path != spec.path and each.timeline == job.timeline and each.offset > starts.get(each.origin, 0)
    ]
