"""The operators and sinks of which a replay may give another result, because nothing recorded the order of their input.

It follows from the plan alone: steps say how they depend on the order, and what they emit, later steps take.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.runtime.operators.contract import UNRECORDED, entry
from holdfast.runtime.plan.model import Fragment, Plan
from holdfast.runtime.replay.proof import Kind

Causes = dict[str, None]
"""Texts, each once and in order."""


class Unordered(NamedTuple):
    """An operator or a sink that may differ."""

    kind: Kind
    name: str
    why: tuple[str, ...]
    """Its own dependence on the order first, then that of the operators before it."""


def may_differ(plan: Plan, *, recorded: bool = False) -> tuple[Unordered, ...]:
    """Return the operators and sinks whose result may depend on the order in which records met, in the plan's order.

    Args:
        recorded: Whether the order was recorded and followed: then few may.
    """
    over: dict[int, Causes] = {}
    steps = [each for fragment in plan.fragments for each in _of_fragment(plan, fragment, over)]
    if recorded:
        left = [each._replace(why=tuple(why for why in each.why if why.startswith(UNRECORDED))) for each in steps]
        steps = [each for each in left if each.why]
    return tuple(dict.fromkeys(steps))


def _of_fragment(plan: Plan, fragment: Fragment, over: dict[int, Causes]) -> Iterator[Unordered]:
    """Args: over: The causes of what an edge carries; takes those of the edges that begin here."""
    causes: dict[int, Causes] = {entry(port): {} for port in range(1 + len(fragment.further))}
    for edge in fragment.input_edges:
        causes[entry(plan.edges[edge].port)] |= over.get(edge, {})
    for placed_step in fragment.steps:
        before: Causes = {}
        for point in placed_step.inputs:
            before |= causes.get(point, {})
        step = placed_step.step
        own = dict.fromkeys(step.depends_on_order())
        causes[placed_step.id] = before | (
            dict.fromkeys(f"{why} in {step.name!r}" for why in own) if step.name else own
        )
        if step.sends_to is not None:
            over[step.sends_to] = over.get(step.sends_to, {}) | before
        if step.writes_to is not None and before:
            yield Unordered("sink", step.writes_to, tuple(before))
        elif step.stateful and step.name is not None and (own or before):
            yield Unordered("operator", step.name, (*own, *before))
