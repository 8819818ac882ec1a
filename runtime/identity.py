"""Operators keep their identity over changes of the code: their number in storage and the shape of their state.

Keys in storage begin with an operator's number. The number belongs to the name: operators that are moved, added or
removed in the code leave the others' numbers alone, and the number of a removed operator is not given away, because its
state may still be there.

Invariants
    - Two names never share a number, not even at different times of one job.
    - State is read only by an operator whose key and state columns are the ones that wrote it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, Where
from holdfast.runtime.steps import OperatorSpec, Plan
from holdfast.state.spec import OPERATORS_END

FIRST_OPERATOR_ID = 1


def assign_operator_ids(names: Sequence[str], previous: Mapping[str, int]) -> dict[str, int]:
    """Return the number of every operator, those of `previous` unchanged.

    Args:
        names: The plan's operators, in order.
        previous: Every operator that the job ever had, also those no longer in the code.

    Returns:
        All of `previous`, and the new names.

    Raises:
        ConfigError: there are no numbers left.
    """
    ids = dict(previous)
    following = max(ids.values(), default=FIRST_OPERATOR_ID - 1) + 1
    for name in names:
        if name in ids:
            continue
        if following >= OPERATORS_END:
            raise ConfigError(
                f"there is no number left for operator {name!r}; a job can have {OPERATORS_END - 1} in its life",
                not_done="the job was not started",
                next_step="start a new job under another name",
            )
        ids[name] = following
        following += 1
    return ids


def describe_operators(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return, per operator, what its state looks like, as JSON-able values to be kept with a checkpoint."""
    return {operator.name: _described(operator) for operator in plan.operators}


def check_against(plan: Plan, previous: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a plan whose operators cannot read the state that is there.

    Args:
        previous: What `describe_operators` gave for the job's last run.

    Raises:
        ConfigError: an operator of the same name had another key or other state columns.
    """
    for operator in plan.operators:
        before = previous.get(operator.name)
        now = _described(operator)
        if before is None:
            continue
        if (before.get("window"), operator.window) != (None, None) and before.get("window") != operator.window:
            raise _other_windows(plan.app, operator, str(before.get("window")))
        for part in ("key", "columns"):
            if [list(column) for column in before[part]] != now[part]:
                called = "key" if part == "key" else "state columns"
                raise ConfigError(
                    f"operator {operator.name!r} had the {called} {_listed(before[part])} "
                    f"and now has {_listed(now[part])}, so it cannot read its state",
                    not_done="the job was not started; its state is unchanged",
                    next_step=f"take back the change, give the operator a new name, or drop its state: "
                    f"holdfast run ... --drop-state {operator.name}",
                    where=Where(job=plan.app, operator=operator.name),
                )


def _described(operator: OperatorSpec) -> dict[str, Any]:
    table = operator.table
    return {
        "id": operator.id,
        "key": [[name, str(kind)] for name, kind in zip(table.key.names, table.key.types, strict=True)],
        "columns": [[column.name, column.dtype.name] for column in table.columns],
    } | ({} if operator.window is None else {"window": operator.window})


def _other_windows(app: str, operator: OperatorSpec, before: str) -> ConfigError:
    return ConfigError(
        f"operator {operator.name!r} had the windows {before} and now has {operator.window}; "
        "windows that are closed already would be opened again",
        not_done="the job was not started; its state is unchanged",
        next_step=f"take back the change, or give the operator a new name instead of {operator.name!r}",
        where=Where(job=app, operator=operator.name),
    )


def _listed(columns: Sequence[Sequence[str]]) -> str:
    return "(" + ", ".join(f"{name}: {kind}" for name, kind in columns) + ")"
