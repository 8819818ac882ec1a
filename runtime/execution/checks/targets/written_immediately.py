"""Sinks that are written immediately now, and whose output was delivered at the commit until now.

Tags of the two modes cannot be compared.

Source: PROTOCOL P22; docs/decisions/0012, 0093.
"""

from __future__ import annotations

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.immediate import repeats
from holdfast.runtime.plan.model import Plan


def check(facts: Facts) -> ConfigError | None:
    """Refuse the first such sink."""
    before = facts.folder.before
    return None if before is None else refusal(facts.plan, before)


def refusal(plan: Plan, before: Manifest) -> ConfigError | None:
    """Return why the first such sink of a plan is refused."""
    known = {*(item.writer.sink for item in before.pending), *(done.writer.sink for done in before.confirmed)}
    spec = next((spec for spec in plan.sinks if spec.path is not None and spec.name in known), None)
    if spec is None:
        return None
    what = "written immediately; tags of the two modes cannot be compared"
    not_done = "the job was not started; state and output are untouched"
    next_step = (
        "undo the change of partitioned_by, of the log's key or of the steps before the sink; "
        "or give the sink another name and another table"
    )
    if repeats(spec):
        what = "written as rows come, at least once; output of earlier epochs may still have to be delivered"
        next_step = "give the sink another name; or leave delivery= as it was"
    return ConfigError(
        f"sink {spec.name!r} was written at each commit until now, and would now be {what}",
        not_done=not_done,
        next_step=next_step,
        where=Where(job=plan.app),
    )
