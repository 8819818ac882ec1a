"""Secrets of sources and sinks that cannot be read here. Workers read theirs when they connect."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import ConfigError, NotAdmitted, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.model import Plan, SinkSpec


def check(facts: Facts) -> ConfigError | None:
    """Refuse to start without the first one."""
    return next(iter(refusals(facts.plan, facts.outputs)), None)


def refusals(plan: Plan, outputs: Sequence[SinkSpec]) -> list[ConfigError]:
    """Return why secrets cannot be read in this process, in the order of the sources and sinks that name them."""
    named = [(f"source {s.name!r}", secret) for s in plan.sources for secret in s.source.traits.secrets]
    named += [(f"sink {s.name!r}", secret) for s in outputs for secret in s.sink.traits.secrets]
    missing = []
    for name, secret in named:
        try:
            secret.value()
        except (ConfigError, NotAdmitted) as error:
            not_done = "the job was not started; state and output are untouched"
            what, where = f"{name}: {error.what}", Where(job=plan.app)
            missing.append(ConfigError(what, not_done=not_done, next_step=error.next_step, where=where))
    return missing
