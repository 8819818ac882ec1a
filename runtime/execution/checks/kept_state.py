"""Code that cannot read its state, or that would lose state which the user does not give up."""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.kept_state import state_refusal


def check(facts: Facts) -> ConfigError | None:
    """Refuse it."""
    return state_refusal(facts.plan, facts.folder.operators, facts.given)
