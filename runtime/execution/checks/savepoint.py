"""Starts from a savepoint that is not the newest checkpoint: going back undoes output, so a rewind does it."""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts


def check(facts: Facts) -> ConfigError | None:
    """Refuse them."""
    savepoint = facts.choices.savepoint
    return None if savepoint is None else refusal(facts.plan.app, facts.folder.job, savepoint)


def refusal(name: str, job: joblog.Job | None, savepoint: str) -> ConfigError | None:
    """Return why this savepoint is refused."""
    savepoints = () if job is None else job.savepoints
    named_savepoint = None if job is None else job.savepoint(savepoint)
    if named_savepoint is not None and job is not None and named_savepoint.epoch == job.base_epoch:
        return None
    if named_savepoint is None:
        names = ", ".join(each.name for each in savepoints)
        what = f"job {name!r} has no savepoint {savepoint!r}"
        next_step = f"use one of {names}" if names else "it has none; run it without --from"
    else:
        what = f"savepoint {savepoint!r} is epoch {named_savepoint.epoch}, and job {name!r} has moved on since"
        next_step = f"go back to it first: holdfast rewind {name} --to-savepoint {savepoint}; or run it without --from"
    return ConfigError(
        what,
        not_done="the job was not started; state and output are untouched",
        next_step=next_step,
        where=Where(job=name),
    )
