"""What the targets of sinks that are written at once hold beyond the checkpoint from which a run starts.

After a crash they do: the same code gives the same rows again, and nothing changes. Other code does not. The rows that
the old code wrote for the records that are read again keep their tags, so the new code's rows for the same records are
not applied. A stop at a barrier leaves no such records.

Source: PROTOCOL P22; docs/design/0012.
"""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Unavailable, Where
from holdfast.runtime.plan import Plan, SinkSpec
from holdfast.sinks.immediate import ImmediateSink, Origin


def check_written_at_once(plan: Plan, before: Manifest) -> None:
    """Refuse to write a sink at once whose output was delivered at the commit until now.

    Raises:
        ConfigError: there is such a sink.
    """
    known = {*(item.writer.sink for item in before.pending), *(done.writer.sink for done in before.confirmed)}
    for spec in plan.sinks:
        if spec.path is not None and spec.name in known:
            raise ConfigError(
                f"sink {spec.name!r} was written at each commit until now, and would be written at once; the tags of "
                "the two do not compare",
                not_done="the job was not started; state and output are untouched",
                next_step="take back the change of partitioned_by, of the log's key or of the steps before the sink; "
                "or give the sink another name and another table",
                where=Where(job=plan.app),
            )


def exposed(plan: Plan, job: joblog.Job | None, before: Manifest | None) -> tuple[str, ...]:
    """Return a warning per partition that other code has written from beyond the checkpoint."""
    if job is None:
        return ()
    starts = {Origin(at.source, at.partition): at.offset for at in (before.positions if before is not None else ())}
    return tuple(warning for spec in plan.sinks for warning in _exposed(spec, job, starts))


def _exposed(spec: SinkSpec, job: joblog.Job, starts: dict[Origin, int]) -> list[str]:
    if spec.path is None or not isinstance(spec.sink, ImmediateSink):
        return []
    try:
        written = spec.sink.written(job.uuid, spec.name)
    except Unavailable as error:
        away = f"sink {spec.name!r} cannot be asked how far it is written ({error.what})"
        return [f"{away}; if the code before it has changed since a crash, rows of the old code may stay"]
    return [
        f"sink {spec.name!r} is written at once, and its code has changed since: rows from offsets "
        f"{max(0, starts.get(each.origin, 0))} to {each.offset - 1} of partition {each.origin.partition} of source "
        f"{each.origin.source!r} were written by the old code, after the last checkpoint, and stay as they are unless "
        f"later records replace them.\nNext: to avoid this, run the old code and end it with holdfast stop {job.name} "
        "before changing it"
        for each in sorted(written, key=lambda each: each.origin)
        if each.path != spec.path and each.timeline == job.timeline and each.offset > starts.get(each.origin, 0)
    ]
