"""The shape of a plan, kept with every checkpoint; `holdfast plan` compares the job's code with it.

The shape holds the sources and sinks with their places, columns and policies, and for every operator and sink its
chain: the steps that its rows pass from where they are made, which is a source, the result of an operator, late rows or
a union. Expressions are in their normal form (forms.py). The shape decides nothing: identity.py decides whether state
can be read.

A step that several chains share is kept once. Display text is kept beside the forms and never compared.

Pure.
Source: docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

import json
import platform
from typing import Any

from holdfast.quantities import BYTES
from holdfast.runtime.operators.contract import INPUT, MAIN
from holdfast.runtime.plan.model import ANY_FRAGMENT, Plan, SinkSpec, SourceSpec
from holdfast.runtime.plan.provenance import senders, step_at
from holdfast.runtime.rows.expressions import ProjectedColumn
from holdfast.runtime.rows.forms import POLARS, form_of
from holdfast.runtime.rows.schema import columns_shown

TEXT_LENGTH_MAX = 200
"""Longest text of an expression of a source."""

FORMAT_VERSION = 1
Chain = list[dict[str, Any]]


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return the shape as JSON-able values."""
    steps = _Steps()
    return {
        "v": FORMAT_VERSION,
        "polars": POLARS,
        "python": platform.python_version(),
        "sources": {spec.name: _source(plan, spec) for spec in plan.sources},
        "sinks": {spec.name: _sink(spec) for spec in plan.sinks},
        "chains": {name: steps.numbered(chain) for name, chain in _chains(plan).items()},
        "steps": steps.known,
    }


def chain_of(shape: dict[str, Any], name: str) -> Chain | None:
    """Return the chain of an operator or sink from a shape; None if the shape has no such name."""
    numbers = shape["chains"].get(name)
    return None if numbers is None else [_expanded(shape, number) for number in numbers]


def _expanded(shape: dict[str, Any], number: int) -> dict[str, Any]:
    step: dict[str, Any] = shape["steps"][number]
    if "of" not in step:
        return dict(step)
    return step | {"of": [[_expanded(shape, each) for each in chain] for chain in step["of"]]}


class _Steps:
    """Numbers the steps of all chains; equal ones get one number."""

    def __init__(self) -> None:
        self.known: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def numbered(self, chain: Chain) -> list[int]:
        return [self._number(step) for step in chain]

    def _number(self, step: dict[str, Any]) -> int:
        if "of" in step:
            step = step | {"of": [self.numbered(chain) for chain in step["of"]]}
        text = json.dumps(step, sort_keys=True)
        if text not in self._numbers:
            self._numbers[text] = len(self.known)
            self.known.append(step)
        return self._numbers[text]


def _source(plan: Plan, spec: SourceSpec) -> dict[str, Any]:
    expressions = {"event_time_from": spec.computed, "watermark": spec.watermark}
    return {
        "kind": spec.source.traits.kind,
        "place": dict(spec.source.traits.place),
        "columns": columns_shown(plan.fragments[spec.fragment].schema),
        "event_time": spec.event_time,
        "out_of_orderness_us": spec.out_of_orderness_us,
        "idle_after_us": round(spec.idle_after_s * 1_000_000),
        "on_error": spec.on_error,
        **({"counts": BYTES} if spec.source.traits.counts_bytes else {}),
    } | {part: _expression(column) for part, column in expressions.items() if column is not None}


def _expression(column: ProjectedColumn) -> dict[str, Any]:
    return {"form": form_of(column.expr), "text": str(column.expr.meta.undo_aliases())[:TEXT_LENGTH_MAX]}


def _sink(spec: SinkSpec) -> dict[str, Any]:
    return {
        "kind": spec.sink.traits.kind,
        "place": dict(spec.sink.traits.place),
        "columns": columns_shown(spec.schema),
        "upsert_key": None if spec.upsert_key is None else list(spec.upsert_key),
        "written": "at commit" if spec.path is None else "at once",
    }


def _chains(plan: Plan) -> dict[str, Chain]:
    """Return the chain of every operator and sink. Their names are distinct; the sink of dead letters has no chain."""
    chains = {}
    for fragment in plan.fragments:
        for placed_step in fragment.steps:
            name = placed_step.step.name if placed_step.step.stateful else placed_step.step.writes_to
            if name is not None:
                inputs = [_chain(plan, fragment.index, each) for each in placed_step.inputs]
                chains[name] = inputs[0] if len(inputs) == 1 else [{"step": placed_step.step.kind, "of": inputs}]
    assert all(spec.name in chains for spec in plan.sinks if spec.fragment != ANY_FRAGMENT)
    return chains


def _chain(plan: Plan, fragment: int, step: int) -> Chain:
    """Return the steps from where rows are made to this one."""
    if step <= INPUT:
        source = plan.fragments[fragment].source
        if source is not None:
            return [{"step": "source", "name": source}]
        return _united([_chain(plan, *sent) for sent in senders(plan, fragment, step)])
    at = step_at(plan, fragment, step)
    if at.step.merges:
        return _united([_chain(plan, fragment, each) for each in at.inputs])
    if at.step.stateful:
        return [{"step": "operator", "name": at.step.name}]
    if at.step.reads_side != MAIN:
        return [{"step": at.step.reads_side, "name": step_at(plan, fragment, at.input).step.name}]
    return [*_chain(plan, fragment, at.input), at.step.shape(at.schema)]


def _united(chains: list[Chain]) -> Chain:
    """Return the chain of a union. Its streams have no order, and a union of unions is one union."""
    if len(chains) == 1:
        return chains[0]
    flat: list[Chain] = []
    for chain in chains:
        flat += chain[0]["of"] if len(chain) == 1 and chain[0]["step"] == "union" else [chain]
    return [{"step": "union", "of": sorted(flat, key=json.dumps)}]
