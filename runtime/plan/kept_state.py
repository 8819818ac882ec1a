"""What becomes of a job's kept state under the job's present code: numbers, field ids, and what the user gives up.

Pure.
Source: docs/design/0024-identity-of-state.md, docs/design/0038-schema-evolution.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.checkpoint.manifest import OperatorState
from holdfast.errors import ConfigError, Where
from holdfast.runtime.operators.contract import is_part, operator_of
from holdfast.runtime.operators.differences import part_to_drop
from holdfast.runtime.plan.compiler import with_operator_ids
from holdfast.runtime.plan.fields import kept_fields
from holdfast.runtime.plan.identity import check_against, describe_operators, parts_of, with_field_ids
from holdfast.runtime.plan.model import Plan


def with_identities(
    plan: Plan, known: Sequence[OperatorState], drop_state: Sequence[str]
) -> tuple[Plan, tuple[OperatorState, ...]]:
    """Give every operator its former number and field ids; those of dropped state stay reserved.

    Args:
        known: The operators of the job's last checkpoint.
        drop_state: Operators, or parts as OPERATOR.PART, whose kept state is given up.

    Raises:
        ConfigError: an operator cannot read its state, or state would be lost that is not given up.
    """
    alive = {operator.name: operator for operator in known if not operator.dropped}
    parts = {name: parts_of(plan, name, operator.schema) for name, operator in alive.items() if not is_part(name)}
    given_up = _parts_given_up(parts, drop_state)
    named = {part_to_drop(name, part) for name, those in given_up.items() for part in those}
    unknown = sorted(set(drop_state) - named - parts.keys())
    drop_state = with_clocks(plan, alive, [name for name in drop_state if name not in named])
    gone = left_operators(plan, known, drop_state)
    if unknown or gone:
        what, next_step = _unknown_state(unknown, parts) if unknown else left_state(gone)
        raise ConfigError(
            what,
            not_done="the job was not started; state and output are untouched",
            next_step=next_step,
            where=Where(job=plan.app),
        )
    dropped = tuple(msgspec.structs.replace(o, dropped=True) for o in known if _is_past(o, drop_state))
    kept = {name: operator for name, operator in alive.items() if name not in drop_state}
    taken = {f"dropped {operator.id}": operator.id for operator in dropped}
    plan = with_operator_ids(plan, {name: operator.id for name, operator in kept.items()} | taken)
    schemas = {name: operator.schema for name, operator in kept.items()}
    check_against(plan, schemas, given_up)
    plan = with_field_ids(plan, schemas, given_up)
    described = describe_operators(plan)
    return plan, (*dropped, *(OperatorState(o.name, o.id, described[o.name]) for o in plan.operators))


def with_clocks(plan: Plan, alive: Collection[str], drop_state: Sequence[str]) -> list[str]:
    """Return the operators to drop, with the clocks of windows that the code no longer has.

    The clock of a window that is still in the code stays: a closed window never reopens (P11).
    """
    kept = {operator.name for operator in plan.operators}
    clocks = [name for name in alive if is_part(name) and operator_of(name) in drop_state]
    return [*drop_state, *(clock for clock in clocks if clock not in kept)]


def _parts_given_up(parts: Mapping[str, Collection[str]], drop_state: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the parts that are given up, by operator."""
    found = {name: frozenset(p for p in those if part_to_drop(name, p) in drop_state) for name, those in parts.items()}
    return {name: given_up for name, given_up in found.items() if given_up}


def _unknown_state(unknown: Sequence[str], parts: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    what = f"no state is kept for {', '.join(unknown)}"
    if not parts:
        return what, "no operator has state: leave out --drop-state"
    asked = sorted({operator_of(name) for name in unknown if is_part(name)} & parts.keys())
    held = [f"{name} has state for {', '.join(parts[name])}" for name in asked if parts[name]]
    return what, "; ".join([f"operators with state: {', '.join(sorted(parts))}", *held])


def left_operators(plan: Plan, known: Sequence[OperatorState], drop_state: Sequence[str] = ()) -> list[str]:
    """Return the operators that have state and are neither in the code nor dropped; a clock goes with its operator."""
    named = {operator.name for operator in plan.operators} | set(drop_state)
    return sorted(o.name for o in known if not o.dropped and not is_part(o.name) and o.name not in named)


def left_state(gone: Sequence[str]) -> tuple[str, str]:
    """Return the message and the next step for state whose operator the code no longer has."""
    drop = " ".join(f"--drop-state {name}" for name in gone)
    return (
        f"state is kept for {', '.join(gone)}, which the app no longer has",
        f"put the operators back, or give up their state: {drop}",
    )


def _is_past(operator: OperatorState, drop_state: Sequence[str]) -> bool:
    return operator.dropped or operator.name in drop_state


def lost_since(before: Sequence[OperatorState], now: Sequence[OperatorState]) -> str | None:
    """Return which operator of an earlier checkpoint has given up state that it had then; None if none has."""
    kept = {(operator.name, operator.id): operator for operator in now if not operator.dropped}
    for operator in before:
        if operator.dropped:
            continue
        if (present := kept.get((operator.name, operator.id))) is None:
            return f"operator {operator.name!r} has dropped"
        gone = set(kept_fields(operator.schema).ids.values()) & set(kept_fields(present.schema).past)
        if gone:
            return f"operator {operator.name!r} has dropped, with {', '.join(sorted(gone))}, a part of"
    return None
