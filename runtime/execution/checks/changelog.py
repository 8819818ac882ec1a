"""A changelog in another kind of place than where the last checkpoint left the state."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.model import Plan
from holdfast.sinks.contract.changelogs import ROOT, shown_place


def check(facts: Facts) -> ConfigError | None:
    """Refuse to look for the state there."""
    before = facts.folder.before
    return None if before is None else refusal(facts.plan, before)


def refusal(plan: Plan, before: Manifest) -> ConfigError | None:
    """Return why the changelog of a plan is refused."""
    now, had = plan.changelog.place, before.topic or ROOT.place
    if now["kind"] == had["kind"]:
        return None
    return ConfigError(
        f"the app has its changelog in {_place(now)}, but the state of epoch {before.epoch} is in {_place(had)}",
        not_done="the job was not started; state and output are untouched",
        next_step="give the changelog as it was (it is fixed once the job has run), or give the job a new name",
        where=Where(job=plan.app),
    )


def _place(place: Mapping[str, str]) -> str:
    return "the root" if place == ROOT.place else shown_place(place)
