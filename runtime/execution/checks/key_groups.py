"""Another number of key groups than the one with which the job was created."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts


def check(facts: Facts) -> ConfigError | None:
    """Refuse it: it is fixed for the job's life."""
    job, now = facts.folder.job, facts.plan.key_groups
    if job is None or job.key_groups == now:
        return None
    return ConfigError(
        f"job {job.name!r} was created with key_groups={job.key_groups}, but now has key_groups={now} "
        f"(origin: {facts.settings.origin('key_groups')})",
        not_done="the job was not started; state and output are untouched",
        next_step=f"set key_groups={job.key_groups} (it is fixed for the job's life), or give the job a new name",
        where=Where(job=job.name),
    )
