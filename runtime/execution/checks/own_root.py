"""Sources that read the folder in which the job keeps its log, checkpoints and requests."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.targets import reads_target
from holdfast.storage.paths import join


def check(facts: Facts) -> ConfigError | None:
    """Refuse the first such source."""
    return refusal(facts.plan, facts.settings.root)


def refusal(plan: Plan, root: str) -> ConfigError | None:
    """Return why the first such source is refused.

    Args:
        root: The folder below which jobs have their folders.
    """
    folder = join(root, plan.app)
    for source in plan.sources:
        if reads_target(source.source, {"path": folder}):
            return ConfigError(
                f"source {source.name!r} reads {source.source.where}, and so also the files of the job itself, which "
                f"are in {folder}",
                not_done="the job was not started; state and output are untouched",
                next_step="give the job a root outside of that folder (--root, HOLDFAST_ROOT), or one whose name "
                "begins with a dot: such folders are not read",
                where=Where(job=plan.app, source=source.name),
            )
    return None
