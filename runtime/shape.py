"""The shape of a plan, kept with every checkpoint: what `holdfast plan` compares the job's code with.

Sources and sinks with where they read and write, columns and policies; for every operator and sink its chain, the steps
that its rows pass from where they are made: a source, the result of an operator, late rows, a union. Expressions are in
their normal form (forms.py). Nothing is decided by the shape: whether state can be read is the matter of identity.py.

A step that several chains pass is kept once. Display text stands beside the forms for people and is never compared.

Pure.
Source: docs/design/0024-identity-of-state.md.
"""

from __future__ import annotations

import json
import platform
from typing import Any

import pyarrow as pa

from holdfast.runtime.forms import POLARS, Form, code_hash, form_of
from holdfast.runtime.functions import name_of
from holdfast.runtime.provenance import senders, step_at
from holdfast.runtime.steps import (
    ANY_FRAGMENT,
    INPUT,
    Aggregate,
    Call,
    Check,
    Filter,
    Late,
    Plan,
    Project,
    SinkSpec,
    SinkStep,
    SourceSpec,
    Step,
    Union,
    WindowAggregate,
)

FORMAT_VERSION = 1
TEXT_LENGTH_MAX = 200
PLACE = ("path", "table", "url", "servers", "topic", "prefix")
"""Attributes of sources and sinks that say where they read or write."""
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
    """Return the chain of an operator or sink from a shape; None if it has none of this name."""
    numbers = shape["chains"].get(name)
    return None if numbers is None else [_expanded(shape, number) for number in numbers]


def _expanded(shape: dict[str, Any], number: int) -> dict[str, Any]:
    step: dict[str, Any] = shape["steps"][number]
    if step["step"] != "union":
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
        if step["step"] == "union":
            step = step | {"of": [self.numbered(chain) for chain in step["of"]]}
        text = json.dumps(step, sort_keys=True)
        if text not in self._numbers:
            self._numbers[text] = len(self.known)
            self.known.append(step)
        return self._numbers[text]


def _source(plan: Plan, spec: SourceSpec) -> dict[str, Any]:
    return {
        "kind": type(spec.source).__name__,
        "place": _place(spec.source),
        "columns": _columns(plan.fragments[spec.fragment].schema),
        "event_time": spec.event_time,
        "out_of_orderness_us": spec.out_of_orderness_us,
        "idle_after_us": round(spec.idle_after_s * 1_000_000),
        "on_error": spec.on_error,
    }


def _sink(spec: SinkSpec) -> dict[str, Any]:
    return {
        "kind": type(spec.sink).__name__,
        "place": _place(spec.sink),
        "columns": _columns(spec.schema),
        "upsert_key": None if spec.upsert_key is None else list(spec.upsert_key),
        "written": "at commit" if spec.path is None else "at once",
    }


def _place(connector: object) -> dict[str, str]:
    """Return where a source or sink reads or writes, as far as it says so; passwords are refused in these."""
    said = {name: getattr(connector, name, None) for name in PLACE}
    return {name: value for name, value in said.items() if isinstance(value, str)}


def _columns(schema: pa.Schema) -> list[list[Any]]:
    return [[field.name, str(field.type), field.nullable] for field in schema]


def _chains(plan: Plan) -> dict[str, Chain]:
    """Return the chain of every operator and sink. Their names are distinct; the sink of dead letters has no chain."""
    chains = {}
    for fragment in plan.fragments:
        for step in fragment.steps:
            match step.kind:
                case Aggregate(operator=name) | WindowAggregate(operator=name) | SinkStep(sink=name):
                    chains[name] = _chain(plan, fragment.index, step.input)
    assert all(spec.name in chains for spec in plan.sinks if spec.fragment != ANY_FRAGMENT)
    return chains


def _chain(plan: Plan, fragment: int, step: int) -> Chain:
    """Return the steps from where rows are made to this one."""
    if step == INPUT:
        source = plan.fragments[fragment].source
        if source is not None:
            return [{"step": "source", "name": source}]
        return _united([_chain(plan, *sent) for sent in senders(plan, fragment)])
    at = step_at(plan, fragment, step)
    match at.kind:
        case Union():
            return _united([_chain(plan, fragment, each) for each in (at.input, *at.also)])
        case Aggregate(operator=name) | WindowAggregate(operator=name):
            return [{"step": "operator", "name": name}]
        case Late():
            window = step_at(plan, fragment, at.input).kind
            assert isinstance(window, WindowAggregate)
            return [{"step": "late", "name": window.operator}]
    return [*_chain(plan, fragment, at.input), _described(at)]


def _united(chains: list[Chain]) -> Chain:
    """Return the chain of a union. Between its streams there is no order, and a union of unions is one."""
    if len(chains) == 1:
        return chains[0]
    flat: list[Chain] = []
    for chain in chains:
        flat += chain[0]["of"] if len(chain) == 1 and chain[0]["step"] == "union" else [chain]
    return [{"step": "union", "of": sorted(flat, key=json.dumps)}]


def _described(step: Step) -> dict[str, Any]:
    match step.kind:
        case Filter(predicate=predicate):
            return {"step": "filter", "form": form_of(predicate), "text": _text(f"filter {predicate}")}
        case Project(columns=columns):
            computed = [f"{c.name} = {c.expr.meta.undo_aliases()}" for c in columns if c.passes != c.name]
            forms: dict[str, Form] = {
                c.name: {"column": c.passes} if c.passes is not None else {"expr": form_of(c.expr)} for c in columns
            }
            names = ", ".join(computed) or ", ".join(forms)
            return {"step": "select", "columns": forms, "text": _text(f"select {names}")}
        case Call(how=how, function=function, on_error=on_error):
            return {
                "step": how, "function": name_of(function), "code": code_hash(function), "on_error": on_error,
                "columns": _columns(step.schema), "text": f"{how} {name_of(function)}",
            }  # fmt: skip
        case Check(not_null=not_null):
            return {"step": "check", "not_null": list(not_null), "columns": _columns(step.schema), "text": "as_"}
    raise AssertionError(f"{step.kind} is no part of a chain")


def _text(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else text[: TEXT_LENGTH_MAX - 3] + "..."
