"""Where the columns of a step come from: traced back through projections and shuffles.

A column that a projection renames is the same column; a computed column is its expression, in terms of the columns
that the projection read. Tracing ends where rows are made: at a source, the result of an operator, a Python function,
a union. There a column is identified by its name alone, not by the place: adding a union, or a function that returns
the same columns, changes no state.

Pure.
Source: docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

import polars as pl

from holdfast.runtime.operators.contract import INPUT, Placed, entry
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.forms import Form, form_of, in_terms_of


def senders(plan: Plan, fragment: int, point: int = INPUT) -> list[tuple[int, int]]:
    """Return the streams that enter a fragment at this point, each as (fragment, step) of the sender."""
    streams = []
    for index in plan.fragments[fragment].input_edges:
        edge = plan.edges[index]
        if entry(edge.port) != point:
            continue
        steps = plan.fragments[edge.from_fragment].steps
        sent = next(placed for placed in steps if placed.step.sends_to == index)
        streams.append((edge.from_fragment, sent.input))
    return streams


def step_at(plan: Plan, fragment: int, step: int) -> Placed:
    """Return the step of this number."""
    return next(each for each in plan.fragments[fragment].steps if each.id == step)


def provenance_of(plan: Plan, fragment: int, step: int, name: str) -> Form:
    """Return the provenance of a column in a step's output, or with `INPUT` in the fragment's input.

    Returns:
        {"column": name}, or {"expr": ...} with the normal form of the expression that computes it.
    """
    while True:
        if step <= INPUT:
            sent = senders(plan, fragment, step)
            if len(sent) != 1:
                return _read(plan, fragment, name)
            fragment, step = sent[0]
            continue
        at = step_at(plan, fragment, step)
        origin = at.step.made_from(name)
        if origin is None:
            return {"column": name}
        if isinstance(origin, pl.Expr):
            return _computed(plan, fragment, at, origin)
        name = origin
        step = at.input


def _read(plan: Plan, fragment: int, name: str) -> Form:
    """Return the provenance of a column in the input of a fragment that one stream, or a source, does not enter."""
    for spec in plan.sources:
        if spec.fragment == fragment and spec.computed is not None and spec.computed.name == name:
            names = spec.computed.expr.meta.root_names()
            return in_terms_of(form_of(spec.computed.expr), names, lambda column: {"column": column})
    return {"column": name}


def _computed(plan: Plan, fragment: int, placed: Placed, expr: pl.Expr) -> Form:
    def origin(name: str) -> Form:
        return provenance_of(plan, fragment, placed.input, name)

    return in_terms_of(form_of(expr), expr.meta.root_names(), origin)
