"""The checks of a start, in the order in which they refuse it.

The first refusal is the one that users see: causes come before symptoms, and checks without cost before those that
connect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.errors import HoldfastError
from holdfast.runtime.execution.checks import (
    changelog,
    finished_rows,
    inputs,
    kept_state,
    key_groups,
    microbatch,
    own_root,
    private_memory,
    savepoint,
    second_run,
    secrets,
    sources,
    state_memory,
)
from holdfast.runtime.execution.checks.targets import (
    adoption,
    fork_targets,
    holdings,
    moved_targets,
    rewound,
    rivals,
    undelivered,
    written_immediately,
)
from holdfast.runtime.execution.facts import Facts

Check: TypeAlias = Callable[[Facts], HoldfastError | None]

OF_SETTINGS: tuple[Check, ...] = (own_root.check, state_memory.check, microbatch.check)
"""Checks of plan and settings alone; `holdfast plan` shows no plan that they refuse."""
ANY_JOB: tuple[Check, ...] = (private_memory.check, *OF_SETTINGS, savepoint.check)
"""Checks of every start; nothing is opened before the last one. Then the job log decides which checks follow."""
OF_A_FINISHED_JOB: tuple[Check, ...] = (finished_rows.check,)
"""Checks of a job that is not run again; they replace the checks below."""
BEFORE_TARGETS: tuple[Check, ...] = (
    fork_targets.check,
    key_groups.check,
    second_run.check,
    changelog.check,
    undelivered.check,
    written_immediately.check,
    rewound.check,
    kept_state.check,
    secrets.check,
    sources.check,
    inputs.check,
)
"""Checks against the history of the job and its sources; nothing is created."""
OF_TARGETS: tuple[Check, ...] = (moved_targets.check, rivals.check, adoption.check, holdings.check)
"""Checks of targets that exist."""
ALL = (*ANY_JOB, *OF_A_FINISHED_JOB, *BEFORE_TARGETS, *OF_TARGETS)


def name_of(check: Check) -> str:
    """Return the name of a check: that of its module."""
    return check.__module__.rpartition(".")[2]


def refuse(refusal: HoldfastError | None) -> None:
    """Raise the refusal, if there is one."""
    if refusal is not None:
        raise refusal


def pass_all(checks: tuple[Check, ...], facts: Facts) -> None:
    """Let every check look at the facts. Raises HoldfastError: the first refusal."""
    for check in checks:
        refuse(check(facts))
