"""Sources that are no longer those whose records the job has read, or whose partitions have changed (P12, P22)."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.runtime.execution.facts import Facts


def check(facts: Facts) -> HoldfastError | None:
    """Refuse the first such source. Those that are copied are compared once they are copied."""
    looks = (facts.look(spec) for spec in facts.plan.sources if not spec.source.traits.copied)
    return next((look.refusal for look in looks if look.refusal is not None), None)
