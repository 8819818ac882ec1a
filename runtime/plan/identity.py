"""Operators keep their identity when the code changes: their number in storage and the meaning of their state.

Keys in storage begin with an operator's number. The number belongs to the name: moving, adding or removing operators in
the code does not change the numbers of others. The number of a removed operator is not reused, because its state may
still exist.

The identity of an operator's state is kept with every checkpoint. It holds, per key column, name, type, nullability and
provenance; per aggregate, function, result type and input column, with the same four; the window's size, offset, event
time, lateness and emission. All of it is structured; display text is never compared. The provenance of a column
(provenance.py) is the original column before renames, or the expression that computes it.

Checkpoints of older versions hold key columns and state columns only. The missing parts are reported as not known; the
next checkpoint has them all.

Invariants
    - Two names never share a number, not even at different times of one job.
    - An operator reads only state that its own identity wrote, or that docs/decisions/0024 or 0038 allows it to read.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError, Where
from holdfast.runtime.operators.contract import Placed, operator_of
from holdfast.runtime.operators.differences import READ_UNCHANGED, Found, StateDifference, kept_by, way_out
from holdfast.runtime.plan.fields import described as described_fields
from holdfast.runtime.plan.fields import kept_fields, with_fields
from holdfast.runtime.plan.model import OperatorSpec, Plan
from holdfast.runtime.plan.provenance import provenance_of
from holdfast.runtime.rows.forms import POLARS
from holdfast.runtime.rows.state_types import with_removed
from holdfast.state.evolution import column_widens
from holdfast.state.tables.spec import OPERATORS_END, ColumnSpec, column_of_type

FIRST_OPERATOR_ID = 1
NOTHING: Mapping[str, frozenset[str]] = {}


def assign_operator_ids(names: Sequence[str], previous: Mapping[str, int]) -> dict[str, int]:
    """Return the number of every operator, with those of `previous` unchanged.

    Args:
        names: The plan's operators, in order.
        previous: Every operator that the job ever had, including those no longer in the code.

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
                f"there is no number left for operator {name!r}; a job can have {OPERATORS_END - 1} in its lifetime",
                not_done="the job was not started",
                next_step="start a new job under another name",
            )
        ids[name] = following
        following += 1
    return ids


def describe_operators(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the identity of each operator's state, as JSON-able values to store with a checkpoint."""
    steps = _stateful(plan)
    return {operator.name: _described(plan, operator, steps.get(operator.name)) for operator in plan.operators}


def describe_continued(
    plan: Plan, previous: Mapping[str, Mapping[str, Any]], given_up: Mapping[str, frozenset[str]] = NOTHING
) -> dict[str, dict[str, Any]]:
    """Return the identity of each operator's state as `describe_operators` does, with removed fields of kept values.

    `check_against` has accepted these arguments.
    """
    steps, identities = _stateful(plan), describe_operators(plan)
    for name, placed in steps.items():
        kept = previous.get(name, {}).get("identity")
        if kept is not None:
            before = placed.step.without(kept, given_up.get(name, frozenset()))
            identities[name]["identity"] = with_removed(before, identities[name]["identity"])
    return identities


def check_against(
    plan: Plan,
    previous: Mapping[str, Mapping[str, Any]],
    given_up: Mapping[str, frozenset[str]] = NOTHING,
    next_step: Callable[[str, str], str] = lambda _, said: said,
) -> None:
    """Refuse a plan whose operators cannot read the existing state.

    Args:
        previous: The result of `describe_operators` for the job's last run.
        given_up: By operator, the parts of its state that the user gives up.
        next_step: Completes the next step of a refusal, given the operator.

    Raises:
        ConfigError: for the first difference that is refused.
    """
    if (refusal := unreadable(plan, previous, given_up, next_step)) is not None:
        raise refusal


def unreadable(
    plan: Plan,
    previous: Mapping[str, Mapping[str, Any]],
    given_up: Mapping[str, frozenset[str]],
    next_step: Callable[[str, str], str],
) -> ConfigError | None:
    """Return why the first operator that cannot read its state is refused; see `check_against`."""
    for difference in differences(plan, previous, given_up):
        if difference.effect is None:
            return ConfigError(
                difference.what,
                not_done="the job was not started; its state is unchanged",
                next_step=next_step(difference.operator, difference.next_step),
                where=Where(job=plan.app, operator=difference.operator),
            )
    return None


def differences(
    plan: Plan, previous: Mapping[str, Mapping[str, Any]], given_up: Mapping[str, frozenset[str]] = NOTHING
) -> list[StateDifference]:
    """Return every difference between the plan's operators and those that wrote the state, allowed ones included."""
    now, steps = describe_operators(plan), _stateful(plan)
    return [
        each
        for operator in plan.operators
        if (name := operator.name) in previous
        for each in _compared(operator, steps.get(name), previous[name], now[name], given_up.get(name, frozenset()))
    ]


def parts_of(plan: Plan, name: str, before: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an operator's kept state that can each be given up alone."""
    placed, kept = _stateful(plan).get(name), before.get("identity")
    if placed is None or kept is None or kept_by(kept) != placed.step.keeps:
        return ()
    return placed.step.parts(kept)


def with_field_ids(
    plan: Plan, previous: Mapping[str, Mapping[str, Any]], given_up: Mapping[str, frozenset[str]] = NOTHING
) -> Plan:
    """Return the plan with the ids that its columns of state had in the job's last run, and fresh ones for new columns.

    `check_against` has accepted these arguments.
    """
    steps = _stateful(plan)

    def numbered(operator: OperatorSpec) -> OperatorSpec:
        before = previous.get(operator.name)
        if before is None:
            return operator
        names = [column.name for column in operator.table.columns]
        former: Mapping[str, str] = {name: name for name in names}
        placed, kept = steps.get(operator.name), before.get("identity")
        if placed is not None and kept is not None:
            kept = placed.step.without(kept, given_up.get(operator.name, frozenset()))
            former = placed.step.continued(kept, names)
        return replace(operator, table=with_fields(operator.table, kept_fields(before), former))

    return replace(plan, operators=tuple(map(numbered, plan.operators)))


def not_known(plan: Plan, previous: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the operators whose state was written by a version that kept no complete identity."""
    now = describe_operators(plan)
    return [name for name in now if name in previous and "identity" in now[name] and "identity" not in previous[name]]


def _stateful(plan: Plan) -> dict[str, Placed]:
    """Return the steps with state, by name; tables beside an operator's own are none."""
    steps = (placed for fragment in plan.fragments for placed in fragment.steps)
    return {placed.step.name: placed for placed in steps if placed.step.stateful and placed.step.name is not None}


def _described(plan: Plan, operator: OperatorSpec, placed: Placed | None) -> dict[str, Any]:
    table = operator.table
    description: dict[str, Any] = {
        "id": operator.id,
        "key": [[name, str(kind)] for name, kind in zip(table.key.names, table.key.types, strict=True)],
        "columns": [[column.name, column.type_name] for column in table.columns],
    }
    if operator.window is not None:
        description["window"] = operator.window
    if (fields := described_fields(table)) is not None:
        description["fields"] = fields
    if placed is None and table.key.unrouted:  # readers of an additional table have no identity of its own
        description |= {"unrouted": table.key.unrouted, "times": list(operator.times)}
    if placed is not None:
        description["identity"] = {"v": 1, "polars": POLARS} | placed.step.identity(
            _InputColumns(plan, placed, operator)
        )
    return description


class _InputColumns:
    """Describes the columns of the inputs of a step; a Description."""

    def __init__(self, plan: Plan, placed: Placed, operator: OperatorSpec) -> None:
        self._plan, self._inputs, self._fragment = plan, placed.inputs, plan.fragments[operator.fragment]

    def __call__(self, name: str, port: int = 0) -> dict[str, Any]:
        made = provenance_of(self._plan, self._fragment.index, self._inputs[port], name)
        return _column(self._fragment.entering(port).field(name)) | {"from": made}

    def names(self, port: int = 0) -> list[str]:
        return list(self._fragment.entering(port).names)


def _column(field: pa.Field) -> dict[str, Any]:
    return {"column": field.name, "type": str(field.type), "nullable": field.nullable}


def _compared(
    operator: OperatorSpec,
    placed: Placed | None,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    given_up: frozenset[str],
) -> list[StateDifference]:
    name, old, new = operator.name, before.get("identity"), now.get("identity")
    if placed is None or old is None or new is None:
        return [*_windows_by_text(name, before, now), *_tables(name, before, now)]
    comparison = Found(name, old.get("polars") == new["polars"])
    if (holds := kept_by(old)) != placed.step.keeps:
        comparison.refuse(f"kept {holds} and now keeps {placed.step.keeps}")
        return comparison.differences
    for part in sorted(given_up):
        comparison.allow(f"gives up the state of {part!r}", "its stored values are no longer read")
    kept = placed.step.without(old, given_up)
    placed.step.compare(comparison, kept, new)
    if all(each.effect is not None for each in comparison.differences):
        _compare_columns(comparison, operator, placed, kept, before)
    return comparison.differences or _tables(name, before, now)


def _compare_columns(
    found: Found, operator: OperatorSpec, placed: Placed, kept: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Compare the state columns of operators that continue: an accepted identity may still have other columns."""
    columns, fields = operator.table.columns, kept_fields(before)
    former, types = placed.step.continued(kept, [column.name for column in columns]), dict(before["columns"])
    for column in columns:
        old = former.get(column.name)
        if old is None or types.get(old) == column.type_name:
            continue
        had = f"the state column {old!r}: {types[old]}" if old in types else f"no state column {old!r}"
        what = f"had {had} and now has {column.name!r}: {column.type_name}"
        before_column = column_of_type(old, types[old]) if old in types else None
        if before_column is None or not column_widens(before_column, column):
            found.refuse(what)
        elif fields.ids[old] in fields.late and not _tells_no_value(before_column, column):
            found.refuse(what, "; it was added later, and its state does not distinguish a value from no value")
        elif column.nullable != before_column.nullable:
            found.allow(what, READ_UNCHANGED)


def _tells_no_value(before: ColumnSpec, now: ColumnSpec) -> bool:
    """Return whether the kept rows of a column show that they have no value yet."""
    return before.nullable or bool(now.counter) or (not before.varying and np.dtype(before.dtype).kind == "f")


def _tables(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[StateDifference]:
    """Compare key and state columns, the only ones that checkpoints of older versions record."""
    table_differences = []
    for part, called in (("key", "key"), ("columns", "state columns")):
        if [list(column) for column in before[part]] != now[part]:
            what = (
                f"operator {name!r} had the {called} {_listed(before[part])} and now has {_listed(now[part])}, "
                "so it cannot read its state"
            )
            table_differences.append(StateDifference(name, what, None, way_out(operator_of(name))))
    return table_differences


def _windows_by_text(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[StateDifference]:
    """Compare windows by the text that checkpoints of older versions record."""
    old, new = before.get("window"), now.get("window")
    if old == new:
        return []
    what = f"operator {name!r} had the windows {old} and now has {new}; windows that are already closed would reopen"
    return [StateDifference(name, what, None, way_out(name))]


def _listed(columns: Sequence[Sequence[str]]) -> str:
    return "(" + ", ".join(f"{name}: {kind}" for name, kind in columns) + ")"
