"""State that `--drop-state` drops: which state each argument names, and whether an earlier start has carried it out.

An argument is carried out once. The checkpoints of a run keep the arguments of its command that were carried out, by it
or by an earlier start; the next start ignores those that it is given again. An argument that one start leaves out is
forgotten, and one with another suffix (`totals#2`) is a new one.

Invariants
    - A command that a supervisor or a user repeats drops no state that was written since.
    - State that no argument names is never dropped.

Pure.
Source: docs/decisions/0046-dropped-state.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.manifest import OperatorState
from holdfast.runtime.operators.contract import is_part, operator_of
from holdfast.runtime.operators.differences import part_to_drop
from holdfast.runtime.plan.identity import parts_of
from holdfast.runtime.plan.model import Plan

SUFFIX = "#"


@dataclass(frozen=True)
class GivenUp:
    """The meaning of all arguments of a start."""

    held: Mapping[str, tuple[str, ...]]
    """The operators that have state, and the parts of it that can be given up alone."""
    operators: frozenset[str]
    """Operators whose whole state is given up now, and the clocks that go with them."""
    parts: Mapping[str, frozenset[str]]
    """Parts that are given up now, by operator."""
    carried_out: Mapping[str, tuple[str, ...]]
    """By operator, the arguments that are carried out, by this start or by an earlier one."""
    repeated: tuple[str, ...]
    """The arguments that an earlier start has carried out, and that have no effect now."""
    unknown: tuple[str, ...]
    """The arguments that name no state."""

    def new_suffix(self, argument: str) -> str:
        """Return an argument that gives up the state kept since this one was carried out."""
        used = {each for those in self.carried_out.values() for each in those}
        name = argument.rpartition(SUFFIX)[0] or argument
        return next(again for n in itertools.count(2) if (again := f"{name}{SUFFIX}{n}") not in used)

    def advice(self) -> list[str]:
        """Return a sentence for the user per argument that has no effect."""
        return [
            f"--drop-state {each} has no effect: an earlier start has carried it out. Leave it out; to give up the "
            f"state kept since as well: --drop-state {self.new_suffix(each)}"
            for each in self.repeated
        ]

    def next_step(self, operator: str, said: str) -> str:
        """Return the way out of a refusal; an argument that was carried out is no way out."""
        again = [each for each in self.repeated if each in self.carried_out.get(operator, ())]
        hints = (
            f"; --drop-state {each} has been carried out: for the state kept since, write {self.new_suffix(each)}"
            for each in again
        )
        return said + "".join(hints)


def given_up(plan: Plan, known: Sequence[OperatorState], arguments: Sequence[str]) -> GivenUp:
    """Apply the arguments of `--drop-state` to the operators of the last checkpoint; return the dropped state."""
    carried_out = _carried_out(known, arguments)
    repetitions = [each for those in carried_out.values() for each in those]
    alive = {operator.name: operator for operator in known if not operator.dropped and not is_part(operator.name)}
    state_parts = {name: parts_of(plan, name, operator.schema) for name, operator in alive.items()}
    whole: set[str] = set()
    parts: dict[str, set[str]] = {}
    unknown = []
    for argument in dict.fromkeys(arguments):
        if argument in repetitions:
            continue
        name = _named(argument, state_parts)
        if name is None:
            unknown.append(argument)
            continue
        carried_out.setdefault(operator_of(name), []).append(argument)
        if name in state_parts:
            whole.add(name)
        else:
            operator = operator_of(name)
            parts.setdefault(operator, set()).add(name.removeprefix(part_to_drop(operator, "")))
    return GivenUp(
        state_parts,
        frozenset(whole | _clocks(plan, known, whole)),
        {operator: frozenset(those) for operator, those in parts.items() if operator not in whole},
        {operator: tuple(those) for operator, those in carried_out.items() if those},
        tuple(repetitions),
        tuple(sorted(unknown)),
    )


def _carried_out(known: Sequence[OperatorState], arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return the arguments that an earlier start has carried out, by operator."""
    found: dict[str, list[str]] = {}
    for operator in known:
        found.setdefault(operator.name, []).extend(each for each in operator.carried_out if each in arguments)
    return found


def _clocks(plan: Plan, known: Sequence[OperatorState], whole: Collection[str]) -> set[str]:
    """Return the clocks that go with their operators, because the code no longer has them.

    The clock of a window that is still in the code stays: a closed window never reopens (P11).
    """
    in_code = {operator.name for operator in plan.operators}
    names = (each.name for each in known if not each.dropped and is_part(each.name))
    return {name for name in names if operator_of(name) in whole and name not in in_code}


def _named(argument: str, held: Mapping[str, Collection[str]]) -> str | None:
    """Return the operator, or the part as OPERATOR.PART, that an argument names with or without a suffix."""
    names = {*held, *(part_to_drop(operator, part) for operator, those in held.items() for part in those)}
    return next((each for each in (argument, argument.rpartition(SUFFIX)[0]) if each in names), None)


def unknown_state(given: GivenUp) -> tuple[str, str]:
    """Return the message and the next step for arguments that name no state."""
    what = f"no state is kept for {', '.join(given.unknown)}"
    if not given.held:
        return what, "no operator has state: leave out --drop-state"
    asked = sorted({operator_of(name) for name in given.unknown if is_part(name)} & given.held.keys())
    parts = [f"{name} has state for {', '.join(given.held[name])}" for name in asked if given.held[name]]
    return what, "; ".join([f"operators with state: {', '.join(sorted(given.held))}", *parts])


def with_carried_out(operators: Sequence[OperatorState], given: GivenUp) -> tuple[OperatorState, ...]:
    """Return the operators of a plan, each name's newest entry with the arguments that are carried out for it."""
    newest = {operator.name: operator.id for operator in sorted(operators, key=lambda each: each.id)}
    return tuple(
        msgspec.structs.replace(
            each,
            given_up=given.carried_out.get(each.name, msgspec.UNSET) if newest[each.name] == each.id else msgspec.UNSET,
        )
        for each in operators
    )
