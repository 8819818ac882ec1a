"""Maps a job's kept state to the job's present code: numbers, field ids, and the state that the user drops.

Pure.
Source: docs/decisions/0024-identity-of-state.md, 0038-schema-evolution.md,
0046-dropped-state.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.manifest import OperatorState
from holdfast.errors import ConfigError, Where
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.compiler import with_operator_ids
from holdfast.runtime.plan.fields import kept_fields
from holdfast.runtime.plan.given_up import GivenUp, given_up, unknown_state, with_carried_out
from holdfast.runtime.plan.identity import describe_continued, unreadable, with_field_ids
from holdfast.runtime.plan.model import Plan


def with_identities(
    plan: Plan, known: Sequence[OperatorState], drop_state: Sequence[str]
) -> tuple[Plan, tuple[OperatorState, ...]]:
    """Give every operator its former number and field ids; those of dropped state stay reserved.

    Args:
        known: The operators of the job's last checkpoint.
        drop_state: The arguments of `--drop-state`; those that an earlier start has carried out have no effect.

    Raises:
        ConfigError: an operator cannot read its state, or state would be lost that is not given up.
    """
    given = given_up(plan, known, drop_state)
    if (refusal := state_refusal(plan, known, given)) is not None:
        raise refusal
    return identified(plan, known, given)


def state_refusal(plan: Plan, known: Sequence[OperatorState], given: GivenUp) -> ConfigError | None:
    """Return why a start is refused: an operator cannot read its state, or state would be lost that is not given up."""
    gone = left_operators(plan, known, given.operators)
    if given.unknown or gone:
        what, next_step = unknown_state(given) if given.unknown else left_state(gone)
        return ConfigError(
            what,
            not_done="the job was not started; state and output are untouched",
            next_step=next_step,
            where=Where(job=plan.app),
        )
    return unreadable(numbered(plan, known, given), _schemas(known, given), given.parts, given.next_step)


def identified(plan: Plan, known: Sequence[OperatorState], given: GivenUp) -> tuple[Plan, tuple[OperatorState, ...]]:
    """Give every operator its former number and field ids; `state_refusal` has accepted the arguments."""
    past_operators = tuple(msgspec.structs.replace(o, dropped=True) for o in known if _is_past(o, given))
    schemas = _schemas(known, given)
    plan = with_field_ids(numbered(plan, known, given), schemas, given.parts)
    described = describe_continued(plan, schemas, given.parts)
    present = (OperatorState(o.name, o.id, described[o.name]) for o in plan.operators)
    return plan, with_carried_out((*past_operators, *present), given)


def _schemas(known: Sequence[OperatorState], given: GivenUp) -> dict[str, Any]:
    return {operator.name: operator.schema for operator in known if not _is_past(operator, given)}


def numbered(plan: Plan, known: Sequence[OperatorState], given: GivenUp) -> Plan:
    """Return the plan with its operators' numbers; those of state that is given up stay reserved."""
    kept = {operator.name: operator.id for operator in known if not _is_past(operator, given)}
    return with_operator_ids(plan, kept | _reserved(operator for operator in known if _is_past(operator, given)))


def _reserved(past: Iterable[OperatorState]) -> dict[str, int]:
    """Return numbers that no operator of the plan can get."""
    return {f"dropped {operator.id}": operator.id for operator in past}


def _is_past(operator: OperatorState, given: GivenUp) -> bool:
    return operator.dropped or operator.name in given.operators


def left_operators(plan: Plan, known: Sequence[OperatorState], given_up: Collection[str] = ()) -> list[str]:
    """Return the operators that have state and are neither in the code nor dropped; a clock goes with its operator."""
    named = {operator.name for operator in plan.operators} | set(given_up)
    return sorted(o.name for o in known if not o.dropped and not is_part(o.name) and o.name not in named)


def left_state(gone: Sequence[str]) -> tuple[str, str]:
    """Return the message and the next step for state whose operator the code no longer has."""
    drop = " ".join(f"--drop-state {name}" for name in gone)
    return (
        f"state is kept for {', '.join(gone)}, which the app no longer has",
        f"put the operators back, or give up their state: {drop}",
    )


def lost_since(before: Sequence[OperatorState], now: Sequence[OperatorState]) -> str | None:
    """Return which operator of an earlier checkpoint has given up state that it had then; None if none has."""
    current_operators = {(operator.name, operator.id): operator for operator in now if not operator.dropped}
    for operator in before:
        if operator.dropped:
            continue
        if (present := current_operators.get((operator.name, operator.id))) is None:
            return f"operator {operator.name!r} has dropped"
        gone = set(kept_fields(operator.schema).ids.values()) & set(kept_fields(present.schema).past)
        if gone:
            return f"operator {operator.name!r} has dropped, with {', '.join(sorted(gone))}, a part of"
    return None
