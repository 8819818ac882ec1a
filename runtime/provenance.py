"""Where the columns of a step come from: traced back through projections and shuffles.

A column that a projection hands on under another name is the same column; one that it computes is what the expression
says, in terms of the columns that the projection read. Tracing ends where rows are made: at a source, the result of an
operator, a Python function, a union. There a column is what it is called, and nothing of the place is kept: a union
more, or a function that gives the same columns, changes no state.

Pure.
Source: docs/design/0024-identity-of-state.md.
"""

from __future__ import annotations

import polars as pl

from holdfast.runtime.forms import Form, bounded, columns_replaced, form_of
from holdfast.runtime.steps import INPUT, Check, Exchange, Filter, Plan, Project, Step


def senders(plan: Plan, fragment: int) -> list[tuple[int, int]]:
    """Return what enters a fragment over its edges: (fragment, step) of the streams that are sent."""
    found = []
    for index in plan.fragments[fragment].input_edges:
        edge = plan.edges[index]
        steps = plan.fragments[edge.from_fragment].steps
        sent = next(step for step in steps if isinstance(step.kind, Exchange) and step.kind.edge == index)
        found.append((edge.from_fragment, sent.input))
    return found


def step_at(plan: Plan, fragment: int, step: int) -> Step:
    """Return the step of this number."""
    return next(each for each in plan.fragments[fragment].steps if each.id == step)


def provenance_of(plan: Plan, fragment: int, step: int, name: str) -> Form:
    """Return what a column is that comes out of a step, or with `INPUT` enters the fragment.

    Returns:
        {"column": name}, or {"expr": ...} with the normal form of what computes it.
    """
    while True:
        if step == INPUT:
            sent = senders(plan, fragment)
            if len(sent) != 1:
                return {"column": name}
            fragment, step = sent[0]
            continue
        at = step_at(plan, fragment, step)
        match at.kind:
            case Filter() | Check():
                pass
            case Project(columns=columns):
                column = next(each for each in columns if each.name == name)
                if column.passes is None:
                    return _computed(plan, fragment, at, column.expr)
                name = column.passes
            case _:
                return {"column": name}
        step = at.input


def _computed(plan: Plan, fragment: int, step: Step, expr: pl.Expr) -> Form:
    def replaced(name: str) -> Form:
        match provenance_of(plan, fragment, step.input, name):
            case {"column": column}:
                return {"Column": column}
            case {"expr": inner}:
                return inner
            case hashed:
                return hashed

    form = form_of(expr)
    if isinstance(form, dict) and set(form) == {"sha256"}:  # it names the columns that it reads, and hides them
        inputs = {name: replaced(name) for name in sorted(set(expr.meta.root_names()))}
        return bounded({"expr": form | {"inputs": inputs}})
    return bounded({"expr": columns_replaced(form, replaced)})
