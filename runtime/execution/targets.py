"""Creates the targets of a job when it starts, or checks that those that exist fit."""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.runtime.plan.model import SinkSpec

AGAIN = (
    "start the job again; if this repeats, check that the target runs, that this host reaches it, and that no other "
    "program blocks it"
)


def create_target(spec: SinkSpec, job: joblog.Job | None) -> None:
    """Create or check a target. The job runs even if a target it has used before is unreachable or locked, perhaps by
    a stopped process of an older run: only deliveries to that target wait (P24).

    Raises:
        ConfigError: the target does not fit, or does not admit the user of a job that has not used it before.
        Unavailable: it is unreachable, and the job has not used it before.
    """
    try:
        spec.sink.prepare(spec.schema, spec.upsert_key)
        if (ownership := spec.sink.ownership) is not None:
            ownership.check_owner(None if job is None else job.uuid, spec.name)
    except Unavailable as error:
        if job is not None and any(each.generation > 0 for each in job.retained):  # the first one of a fork has none
            return
        raise at_a_start(error) from error


def at_a_start(error: Unavailable) -> HoldfastError:
    """Return the error of a target as a start reports it: no delivery was under way, and none retries."""
    kind = ConfigError if isinstance(error, NotAdmitted) else Unavailable
    next_step = AGAIN if error.next_step.startswith("no action needed") else error.next_step
    return kind(error.what, not_done="the job was not started", next_step=next_step, where=error.where)
