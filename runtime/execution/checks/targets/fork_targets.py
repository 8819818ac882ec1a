"""Sinks that deliver where a job does from which this one was forked.

Many targets would take rows of both jobs: rows that are only added occur twice, and of two rows with the same key
either may win.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.plan.targets import same_target, target_of


def check(facts: Facts) -> ConfigError | None:
    """Refuse the first such sink."""
    if facts.folder.job is None:
        return None
    return next(iter(refusals(facts.plan.app, facts.outputs, facts.folder.repository.origins())), None)


def refusals(job: str, outputs: Sequence[SinkSpec], origins: Sequence[joblog.ForkOrigin]) -> list[ConfigError]:
    """Return why such sinks are refused.

    Args:
        origins: The newest is the last. Targets that their checkpoints do not record are not compared.
    """
    errors = []
    for spec in outputs:
        here = target_of(spec.sink)
        theirs = [
            (origin, name)
            for origin in reversed(origins)
            for name, there in origin.targets.items()
            if same_target(there) == here
        ]
        if spec.sink.traits.place and theirs:
            origin, name = theirs[0]
            errors.append(
                ConfigError(
                    f"sink {spec.name!r} writes to {spec.sink.where}, to which job {origin.job!r} delivers its sink "
                    f"{name!r}; this job was forked from its epoch {origin.epoch}, so rows of both would mix there",
                    not_done="the job was not started; state and output are untouched",
                    next_step=f"give the sink {spec.name!r} another target",
                    where=Where(job=job),
                )
            )
    return errors
