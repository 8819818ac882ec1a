"""Compile the graph of a job's code into a plan: fragments of steps, joined by edges.

A fragment grows from a source, or from the receiving end of an edge, and takes in everything up to the next shuffle.
A union of streams from several fragments gets a separate fragment, which they reach without a shuffle. A stream that
is used several times is computed once: its steps are shared and their output goes to every use. Streams with the same
key share one edge.

Steps that lead to no sink and keep no state are left out. A source that would be left out is refused, because it is
far more often a mistake than intended.

Invariants
    - The same code gives the same plan, fragment by fragment and step by step.
    - Those of runtime/plan/model.py.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.operators.contract import INPUT, MAIN, OP_FIELD, Placed, Step, entry, needed_behind, part_name
from holdfast.runtime.operators.exchange import Exchange
from holdfast.runtime.plan.graph import FromSource, Graph, Node
from holdfast.runtime.plan.identity import assign_operator_ids, check_against, describe_operators
from holdfast.runtime.plan.immediate import with_immediate_sinks
from holdfast.runtime.plan.model import ANY_FRAGMENT, Edge, Fragment, OperatorSpec, Plan, SinkSpec, SourceSpec
from holdfast.runtime.plan.shown.report import describe, render
from holdfast.runtime.plan.targets import refuse_shared_targets
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, DLQ
from holdfast.state.tables.spec import TableSpec

__all__ = [
    "Edge",
    "Fragment",
    "OperatorSpec",
    "Plan",
    "SinkSpec",
    "SourceSpec",
    "assign_operator_ids",
    "check_against",
    "compile_plan",
    "describe",
    "describe_operators",
    "render",
    "with_operator_ids",
]


@dataclass
class _Growing:
    """A fragment under construction."""

    index: int
    source: str | None
    input_edges: tuple[int, ...]
    schema: pa.Schema
    further: tuple[pa.Schema, ...] = ()
    steps: list[Placed] = field(default_factory=list)

    def add(
        self,
        input: int,
        step: Step,
        schema: pa.Schema,
        upsert_key: tuple[str, ...] | None,
        also: tuple[int, ...] = (),
    ) -> int:
        self.steps.append(Placed(len(self.steps), input, step, schema, upsert_key, also))
        return len(self.steps) - 1

    def finished(self) -> Fragment:
        return Fragment(self.index, self.source, self.input_edges, self.schema, tuple(self.steps), self.further)


@dataclass
class _Compilation:
    """The parts compiled so far, and where to find each node's output."""

    graph: Graph
    growing: list[_Growing] = field(default_factory=list)
    sources: list[SourceSpec] = field(default_factory=list)
    sinks: list[SinkSpec] = field(default_factory=list)
    operators: list[OperatorSpec] = field(default_factory=list)
    """Not numbered yet."""
    edges: list[Edge] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node number to (fragment, step)."""


def compile_plan(graph: Graph, key_groups: int, previous_ids: Mapping[str, int] | None = None) -> Plan:
    """Compile a graph.

    Args:
        key_groups: Fixed for the job's life.
        previous_ids: Operator ids of the job's last run; its operators keep theirs.

    Raises:
        ConfigError: the app has no sink, a source leads nowhere, or two sinks write to a target that takes one.
    """
    live = _live(graph)
    work = _Compilation(graph)
    for node in live:
        if isinstance(node.kind, FromSource):
            _take_source(work, node, node.kind)
    columns = _columns_over_edges(live)
    for node in live:
        if isinstance(node.kind, FromSource):
            continue
        if node.kind.keyed_by(0):
            at = _take_keyed(work, node, node.kind, columns)
        else:
            at = _append(work, node, node.kind)
        if (sink := node.kind.writes_to) is not None:
            work.sinks.append(SinkSpec(sink, graph.sinks[sink], at, node.schema, node.upsert_key))
    if graph.dlq is not None:
        work.sinks.append(SinkSpec(DLQ, graph.dlq, ANY_FRAGMENT, DEAD_LETTERS, None))
    return _finished(work, key_groups, previous_ids or {})


def with_operator_ids(plan: Plan, previous_ids: Mapping[str, int]) -> Plan:
    """Return the plan with the ids that its operators had in the job's last run, and fresh ones for new operators."""
    ids = assign_operator_ids([operator.name for operator in plan.operators], previous_ids)
    operators = tuple(_numbered(operator, ids[operator.name]) for operator in plan.operators)
    return dataclasses.replace(plan, operators=operators)


def _finished(work: _Compilation, key_groups: int, previous_ids: Mapping[str, int]) -> Plan:
    drafts = work.operators
    ids = assign_operator_ids([draft.name for draft in drafts], previous_ids)
    plan = Plan(
        app=work.graph.app,
        key_groups=key_groups,
        sources=tuple(work.sources),
        sinks=tuple(work.sinks),
        operators=tuple(_numbered(draft, ids[draft.name]) for draft in drafts),
        fragments=tuple(fragment.finished() for fragment in work.growing),
        edges=tuple(work.edges),
    )
    sources = [node.kind for node in work.graph.nodes if isinstance(node.kind, FromSource)]
    refuse_shared_targets(plan)
    return with_immediate_sinks(plan, {s.name: s.partitioned_by for s in sources if s.partitioned_by})


def _numbered(operator: OperatorSpec, id: int) -> OperatorSpec:
    return dataclasses.replace(operator, id=id, table=dataclasses.replace(operator.table, operator=id))


def _live(graph: Graph) -> list[Node]:
    """Return the nodes that lead to a sink or to state, in order."""
    if not graph.sinks:
        raise ConfigError(
            f"app {graph.app!r} has no sink, so it would produce no output",
            not_done="the job was not planned",
            next_step='end a stream with .sink("out", ...)',
        )
    live_numbers: set[int] = set()
    for node in reversed(graph.nodes):
        kind = node.kind
        kept = isinstance(kind, Step) and (kind.writes_to is not None or kind.stateful)
        if kept or node.number in live_numbers:
            live_numbers.update(each.number for each in (node, *node.inputs))
    for node in graph.nodes:
        if isinstance(node.kind, FromSource) and node.number not in live_numbers:
            raise ConfigError(
                f"source {node.kind.name!r} of app {graph.app!r} leads to no sink and no aggregate",
                not_done="the job was not planned",
                next_step="give its stream a sink, or remove the source",
            )
    return [node for node in graph.nodes if node.number in live_numbers]


def _take_source(work: _Compilation, node: Node, source: FromSource) -> None:
    fragment = _Growing(len(work.growing), source.name, (), node.schema)
    work.growing.append(fragment)
    work.sources.append(
        SourceSpec(
            source.name,
            source.source,
            fragment.index,
            source.event_time,
            1_000 * source.out_of_orderness_ms,
            source.idle_after_ms / 1_000,
            source.on_error,
            source.computed,
            source.watermark,
        )
    )
    work.places[node.number] = (fragment.index, INPUT)


def _append(work: _Compilation, node: Node, step: Step) -> int:
    """Add a step after the node's inputs; return its fragment."""
    inputs = [work.places[before.number] for before in node.inputs]
    at, first = inputs[0]
    if step.merges and any(fragment != at for fragment, _ in inputs):
        return _unite(work, node, step, inputs)
    assert all(fragment == at for fragment, _ in inputs)
    added = work.growing[at].add(first, step, node.schema, node.upsert_key, tuple(each for _, each in inputs[1:]))
    work.places[node.number] = (at, added)
    return at


def _unite(work: _Compilation, node: Node, merging: Step, inputs: list[tuple[int, int]]) -> int:
    """Begin a fragment for a union across fragments: each sends its part over an edge without key."""
    at, edges = len(work.growing), []
    for sender in dict.fromkeys(fragment for fragment, _ in inputs):
        first, *also = [step for fragment, step in inputs if fragment == sender]
        part = work.growing[sender].add(first, merging, node.schema, None, tuple(also))
        edge = Edge(len(work.edges), sender, at, (), node.schema)
        work.edges.append(edge)
        work.growing[sender].add(part, Exchange(edge.index, tuple(node.schema.names)), node.schema, None)
        edges.append(edge.index)
    work.growing.append(_Growing(at, None, tuple(edges), node.schema))
    work.places[node.number] = (at, INPUT)
    return at


_EdgeKey = tuple[int, tuple[str, ...], tuple[int, int] | None]
"""The node whose stream is shuffled, by its number, and the keys; for which node and port, if it is not shared."""


def _edge_key(node: Node, step: Step, port: int) -> _EdgeKey:
    return node.inputs[port].number, step.keyed_by(port), (node.number, port) if len(node.inputs) > 1 else None


def _columns_over_edges(live: list[Node]) -> dict[_EdgeKey, tuple[str, ...]]:
    """Return the columns of each shuffle: keys, and what the steps after it and their sides read."""
    steps = [(node, node.kind) for node in live if isinstance(node.kind, Step)]
    columns_by_point = needed_behind(
        [(n.number, [(each.number, each.schema) for each in n.inputs], s) for n, s in steps]
    )
    columns: dict[_EdgeKey, tuple[str, ...]] = {}
    for node, step in steps:
        behind = columns_by_point.get(node.number, {})
        sides = {side: names for side, names in behind.items() if side == MAIN}
        if step.reads_side != MAIN:
            node, behind = node.inputs[0], columns_by_point[node.inputs[0].number]
            assert isinstance(node.kind, Step)
            step, sides = node.kind, behind
        for port, before in enumerate(node.inputs):
            if keys := step.keyed_by(port):
                key = _edge_key(node, step, port)
                columns[key] = tuple(dict.fromkeys((*columns.get(key, keys), *step.reads(port, before.schema, sides))))
    return columns


def _take_keyed(work: _Compilation, node: Node, step: Step, columns: dict[_EdgeKey, tuple[str, ...]]) -> int:
    """Begin a fragment with a step, or extend the one that its shuffle leads to; return the fragment."""
    edge_columns = [columns[_edge_key(node, step, port)] for port in range(len(node.inputs))]
    if len(edge_columns) == 1:
        edges = [_shared_edge(work, node.inputs[0], step.keyed_by(0), edge_columns[0])]
    else:
        assert all(step.keyed_by(port) for port in range(len(edge_columns))), "either all inputs have keys, or none"
        to = len(work.growing)
        ports = enumerate(zip(node.inputs, edge_columns, strict=True))
        edges = [_new_edge(work, before, to, step.keyed_by(port), names, port) for port, (before, names) in ports]
        schemas = [edge.schema for edge in edges]
        work.growing.append(_Growing(to, None, tuple(edge.index for edge in edges), schemas[0], tuple(schemas[1:])))
    at, (first, *also) = edges[0].to_fragment, [entry(edge.port) for edge in edges]
    work.places[node.number] = at, work.growing[at].add(first, step, node.schema, node.upsert_key, tuple(also))
    if step.name is not None:
        for draft in step.tables([edge.schema for edge in edges]):
            name = part_name(step.name, draft.part)
            table = TableSpec(0, name, draft.key, draft.columns, orders=draft.orders)
            work.operators.append(OperatorSpec(name, 0, at, table, draft.window, draft.times))
    return at


def _shared_edge(work: _Compilation, input: Node, keys: tuple[str, ...], columns: tuple[str, ...]) -> Edge:
    """Return the edge that shuffles the node's stream by these keys; create it, with its fragment, at the first use."""
    at, step = work.places[input.number]
    for edge in work.edges:
        alone = len(work.growing[edge.to_fragment].input_edges) == 1
        if edge.key == keys and edge.from_fragment == at and alone and _exchanges(work.growing[at], step, edge.index):
            return edge
    edge = _new_edge(work, input, len(work.growing), keys, columns)
    work.growing.append(_Growing(edge.to_fragment, None, (edge.index,), edge.schema))
    return edge


def _new_edge(
    work: _Compilation, input: Node, to: int, keys: tuple[str, ...], columns: tuple[str, ...], port: int = 0
) -> Edge:
    """Create an edge that shuffles the node's stream by these keys."""
    at, step = work.places[input.number]
    schema = pa.schema([input.schema.field(name) for name in columns])
    _refuse_dictionaries(schema)
    marks = (OP_FIELD,) if input.upsert_key is not None else ()
    edge = Edge(len(work.edges), at, to, keys, pa.schema([*schema, *marks]), port)
    work.edges.append(edge)
    work.growing[at].add(step, Exchange(edge.index, tuple(edge.schema.names)), schema, input.upsert_key)
    return edge


def _refuse_dictionaries(schema: pa.Schema) -> None:
    """Refuse Enum and Categorical columns: a batch that is sent alone does not carry their dictionary."""
    for column in schema:
        if pa.types.is_dictionary(column.type):
            raise ConfigError(
                f"column {column.name!r} is an Enum or Categorical, which cannot be sent to other workers",
                not_done="the job was not planned",
                next_step=f'before key_by, .with_columns({column.name}=pl.col("{column.name}").cast(pl.String))',
            )


def _exchanges(fragment: _Growing, input: int, edge: int) -> bool:
    return any(placed.input == input and placed.step.sends_to == edge for placed in fragment.steps)
