"""Jobs that have finished, and whose code has other records now than those that they have read."""

from __future__ import annotations

from contextlib import closing

from holdfast.errors import ConfigError
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.same_source import other_rows


def check(facts: Facts) -> ConfigError | None:
    """Refuse to report their results as those of these records."""
    plan, positions = facts.plan, facts.folder.positions
    for spec in (each for each in plan.sources if each.source.traits.in_plan):
        with closing(spec.source.open()) as opened:
            why = other_rows(opened, [at for at in positions if at.source == spec.name])
        if why is not None:
            return ConfigError(
                f"job {plan.app!r} has finished, and its source {spec.name!r} has other rows now: {why}",
                not_done="nothing was run; the results are those of the former rows",
                next_step="to run it with these rows, give the app another name or another root",
            )
    return None
