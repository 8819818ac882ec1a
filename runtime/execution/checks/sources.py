"""Refuses sources that differ from the code, are unreachable, or have no end with `--once`."""

from __future__ import annotations

from holdfast.errors import ConfigError, HoldfastError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.model import SourceSpec


def check(facts: Facts) -> HoldfastError | None:
    """Refuse the first such source."""
    for spec in facts.plan.sources:
        if (refused := refusal(spec)) is not None:
            return refused
        if facts.choices.once and (endless := spec.source.traits.endless) is not None:
            return ConfigError(
                f"source {spec.name!r} is {endless.what}: it has no end to read to",
                not_done="the job was not started; state and output are untouched",
                next_step=f"{endless.instead}, or run without --once",
                where=Where(job=facts.plan.app, source=spec.name),
            )
    return None


def refusal(spec: SourceSpec) -> HoldfastError | None:
    """Return why a source refuses the plan, or cannot be reached."""
    try:
        spec.source.check()
    except HoldfastError as error:
        return error
    return None
