"""Plans and settings that need workers which stay, in microbatch mode."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.microbatch.layers import idle_standbys
from holdfast.runtime.plan.immediate import is_immediate, repeats
from holdfast.runtime.plan.model import Plan, is_boundless


def check(facts: Facts) -> ConfigError | None:
    """Refuse them."""
    if facts.settings.mode != MICROBATCH:
        return None
    return refusal(facts.plan) or idle_standbys(facts.settings.standbys)


def refusal(plan: Plan) -> ConfigError | None:
    """Return why a plan cannot run as microbatches: a sink is written immediately, or a source always has more."""
    for source in plan.sources:
        if is_boundless(source):
            endless = source.source.traits.endless
            assert endless is not None
            return ConfigError(
                f"source {source.name!r} is {endless.what}: it has no end that an epoch could read to",
                not_done="the job was not started; state and output are untouched",
                next_step=f"{endless.for_microbatch or endless.instead}, or run it with --mode continuous",
                where=Where(job=plan.app),
            )
    for spec in plan.sinks:
        if is_immediate(spec):
            return ConfigError(
                f"sink {spec.name!r} is written immediately, before its epoch commits, and in microbatch mode nothing "
                "is written before the commit",
                not_done="the job was not started; state and output are untouched",
                next_step="run it with --mode continuous, or "
                + ("leave delivery= out" if repeats(spec) else "give the sink no key that partitions its source"),
                where=Where(job=plan.app),
            )
    return None
