"""Which targets of a plan are one and the same, and which ones its sources read.

Two spellings of a place, such as two names of a host, are not recognised: the target itself refuses the second sink
when it delivers, if it belongs to one sink.

Pure. Source: docs/design/0086-fork.md, 0095-topics-by-pattern.md, 0104-tables-with-one-owner.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.source import reads_again
from holdfast.runtime.plan.topic import outputs_of
from holdfast.sinks.contract import Sink
from holdfast.sinks.immediate import IMMEDIATE


def target_of(sink: Sink) -> Mapping[str, str]:
    """Return kind and place of a sink's target; see `same_target`."""
    return same_target({"kind": sink.traits.kind, **sink.traits.place})


def same_target(there: Mapping[str, str]) -> Mapping[str, str]:
    """Return kind and place of a target, which are the same if a sink writes to it immediately."""
    return {**there, "kind": there["kind"].removeprefix(IMMEDIATE)}


def refuse_shared_targets(plan: Plan) -> None:
    """Refuse two sinks that write to one target, if it belongs to one sink.

    Raises:
        ConfigError: names the first two.
    """
    seen: list[SinkSpec] = []
    for spec in plan.sinks:
        for other in seen:
            exclusive = spec.sink.traits.exclusive or other.sink.traits.exclusive
            if exclusive and spec.sink.traits.place and target_of(spec.sink) == target_of(other.sink):
                raise ConfigError(
                    f"sinks {other.name!r} and {spec.name!r} write to {spec.sink.where}: rows of one would be replaced "
                    "or undone by the other",
                    not_done="the job was not planned",
                    next_step="give one of them a target of its own",
                    where=Where(job=plan.app),
                )
        seen.append(spec)


def refuse_own_output(plan: Plan) -> None:
    """Refuse a source that finds what a sink of the job writes: each row would come again, without end.

    Raises:
        ConfigError: the first such sink.
    """
    for spec in outputs_of(plan):
        for source in plan.sources:
            if reads_again(source.source, spec.sink.traits.place):
                raise ConfigError(
                    f"source {source.name!r} reads {source.source.where}, and so also what sink {spec.name!r} writes "
                    f"to {spec.sink.where}: its rows would come again without end",
                    not_done="the job was not planned",
                    next_step="give the sink a target that the source does not read; a pattern of topics can leave one "
                    "out by (?!...)",
                    where=Where(job=plan.app, source=source.name),
                )
