"""Which targets of a plan are one and the same.

Two spellings of a place, such as two names of a host, are not recognised: the target itself refuses the second sink
when it delivers, if it belongs to one sink.

Pure. Source: docs/design/0086-fork.md, 0104-tables-with-one-owner.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan, SinkSpec
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
