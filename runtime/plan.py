"""Compile what a job's code built into a plan: fragments of steps, joined by edges.

A fragment grows from a source, or from the receiving end of an edge, and takes in everything up to the next shuffle.
Streams of several fragments are united in one of their own, which they reach without a shuffle. A stream that is used
several times is computed once: its steps are shared and their output goes to every use. Streams keyed alike share one
edge.

What leads to no sink and keeps no state is left out. A source that is left out altogether is refused, because it is a
slip in the job's code far more often than a wish.

Invariants
    - The same code gives the same plan, fragment by fragment and step by step.
    - Those of runtime/steps.py.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.aggregates import state_columns
from holdfast.runtime.dead_letters import DEAD_LETTERS, DLQ
from holdfast.runtime.graph import FromSource, Graph, Node, ToSink
from holdfast.runtime.identity import assign_operator_ids, check_against, describe_operators
from holdfast.runtime.immediate_plan import with_immediate_sinks
from holdfast.runtime.report import describe, render
from holdfast.runtime.steps import (
    ANY_FRAGMENT,
    INPUT,
    Aggregate,
    Edge,
    Exchange,
    Fragment,
    Late,
    OperatorSpec,
    Plan,
    SinkSpec,
    SinkStep,
    SourceSpec,
    Step,
    StepKind,
    Union,
    WindowAggregate,
)
from holdfast.runtime.windows import CLOCK_COLUMNS, CLOCK_KEY, END_COLUMN, TIME, WINDOW_END
from holdfast.state.keys import KeyType
from holdfast.state.spec import TableSpec

__all__ = [
    "INPUT",
    "Edge",
    "Fragment",
    "OperatorSpec",
    "Plan",
    "SinkSpec",
    "SourceSpec",
    "Step",
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
    steps: list[Step] = field(default_factory=list)

    def add(
        self,
        input: int,
        kind: StepKind,
        schema: pa.Schema,
        upsert_key: tuple[str, ...] | None,
        also: tuple[int, ...] = (),
    ) -> int:
        self.steps.append(Step(len(self.steps), input, kind, schema, upsert_key, also))
        return len(self.steps) - 1

    def finished(self) -> Fragment:
        return Fragment(self.index, self.source, self.input_edges, self.schema, tuple(self.steps))


@dataclass
class _Compilation:
    """What has been compiled so far, and where each node's output is found."""

    graph: Graph
    growing: list[_Growing] = field(default_factory=list)
    sources: list[SourceSpec] = field(default_factory=list)
    sinks: list[SinkSpec] = field(default_factory=list)
    operators: list[tuple[Aggregate | WindowAggregate, int, pa.Schema]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node number to (fragment, step)."""


def compile_plan(graph: Graph, key_groups: int, previous_ids: Mapping[str, int] | None = None) -> Plan:
    """Compile a graph.

    Args:
        key_groups: Fixed for the job's life.
        previous_ids: Operator ids of the job's last run; its operators keep theirs.

    Raises:
        ConfigError: there is no sink, or a source leads nowhere.
    """
    live = _live(graph)
    work = _Compilation(graph)
    for node in live:
        if isinstance(node.kind, FromSource):
            _take_source(work, node, node.kind)
    columns = _columns_over_edges(live)
    for node in live:
        match node.kind:
            case FromSource():
                pass
            case Aggregate() | WindowAggregate() as aggregate:
                _take_aggregate(work, node, aggregate, columns[_edge_key(node, aggregate)])
            case ToSink(name=name, sink=sink):
                at = _append(work, node, SinkStep(name))
                work.sinks.append(SinkSpec(name, sink, at, node.schema, node.upsert_key))
            case kind:
                _append(work, node, kind)
    if graph.dlq is not None:
        work.sinks.append(SinkSpec(DLQ, graph.dlq, ANY_FRAGMENT, DEAD_LETTERS, None))
    return _finished(work, key_groups, previous_ids or {})


def with_operator_ids(plan: Plan, previous_ids: Mapping[str, int]) -> Plan:
    """Return the plan with the ids that its operators had in the job's last run, and fresh ones for new operators."""
    ids = assign_operator_ids([operator.name for operator in plan.operators], previous_ids)
    operators = tuple(_numbered(operator, ids[operator.name]) for operator in plan.operators)
    return dataclasses.replace(plan, operators=operators)


def _finished(work: _Compilation, key_groups: int, previous_ids: Mapping[str, int]) -> Plan:
    drafts = [draft for kind, fragment, schema in work.operators for draft in _operators(kind, schema, fragment)]
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
    return with_immediate_sinks(plan, {s.name: s.partitioned_by for s in sources if s.partitioned_by})


def _operators(aggregate: Aggregate | WindowAggregate, schema: pa.Schema, fragment: int) -> list[OperatorSpec]:
    """Return the tables behind a step, not numbered yet."""
    name, fields = aggregate.operator, [schema.field(key) for key in aggregate.keys]
    columns = tuple(column for bound in aggregate.aggregations for column in state_columns(bound))
    if isinstance(aggregate, Aggregate):
        return [OperatorSpec(name, 0, fragment, TableSpec(0, name, KeyType.of(fields), columns))]
    key = KeyType.of([pa.field(WINDOW_END, TIME, nullable=False), *fields], unrouted=1)
    window = f"{aggregate.window}, allowed_lateness={aggregate.lateness_us}us, emit={aggregate.emit}"
    clock = aggregate.clock
    return [
        OperatorSpec(name, 0, fragment, TableSpec(0, name, key, (END_COLUMN, *columns)), window),
        OperatorSpec(clock, 0, fragment, TableSpec(0, clock, CLOCK_KEY, CLOCK_COLUMNS)),
    ]


def _numbered(operator: OperatorSpec, id: int) -> OperatorSpec:
    return dataclasses.replace(operator, id=id, table=dataclasses.replace(operator.table, operator=id))


def _live(graph: Graph) -> list[Node]:
    """Return the nodes that lead to a sink or to state, in order."""
    if not any(isinstance(node.kind, ToSink) for node in graph.nodes):
        raise ConfigError(
            f"app {graph.app!r} has no sink, so nothing would ever come out of it",
            not_done="the job was not planned",
            next_step='end a stream with .sink("out", ...)',
        )
    wanted: set[int] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.kind, ToSink | Aggregate | WindowAggregate) or node.number in wanted:
            wanted.add(node.number)
            if node.input is not None:
                wanted.update(each.number for each in (node.input, *node.others))
    for node in graph.nodes:
        if isinstance(node.kind, FromSource) and node.number not in wanted:
            raise ConfigError(
                f"source {node.kind.name!r} of app {graph.app!r} leads to no sink and no aggregate",
                not_done="the job was not planned",
                next_step="give its stream a sink, or remove the source",
            )
    return [node for node in graph.nodes if node.number in wanted]


def _take_source(work: _Compilation, node: Node, source: FromSource) -> None:
    fragment = _Growing(len(work.growing), source.name, (), node.schema)
    work.growing.append(fragment)
    work.sources.append(
        SourceSpec(
            source.name, source.source, fragment.index,
            source.event_time, 1_000 * source.out_of_orderness_ms, source.idle_after_ms / 1_000, source.on_error,
        )
    )  # fmt: skip
    work.places[node.number] = (fragment.index, INPUT)


def _append(work: _Compilation, node: Node, kind: StepKind) -> int:
    """Add a step after the node's input; return its fragment."""
    assert node.input is not None
    at, input = work.places[node.input.number]
    also = tuple(work.places[other.number] for other in node.others)
    if isinstance(kind, Union) and any(fragment != at for fragment, _ in also):
        return _unite(work, node, kind, [(at, input), *also])
    step = work.growing[at].add(input, kind, node.schema, node.upsert_key, tuple(step for _, step in also))
    work.places[node.number] = (at, step)
    return at


def _unite(work: _Compilation, node: Node, union: Union, inputs: list[tuple[int, int]]) -> int:
    """Begin a fragment with the streams of several: each gives its part over an edge without key."""
    at, edges = len(work.growing), []
    for sender in dict.fromkeys(fragment for fragment, _ in inputs):
        first, *also = [step for fragment, step in inputs if fragment == sender]
        part = work.growing[sender].add(first, union, node.schema, None, tuple(also))
        edge = Edge(len(work.edges), sender, at, (), node.schema)
        work.edges.append(edge)
        work.growing[sender].add(part, Exchange(edge.index, tuple(node.schema.names)), node.schema, None)
        edges.append(edge.index)
    work.growing.append(_Growing(at, None, tuple(edges), node.schema))
    work.places[node.number] = (at, INPUT)
    return at


def _edge_key(node: Node, aggregate: Aggregate | WindowAggregate) -> tuple[int, tuple[str, ...]]:
    assert node.input is not None
    return node.input.number, aggregate.keys


def _columns_over_edges(live: list[Node]) -> dict[tuple[int, tuple[str, ...]], tuple[str, ...]]:
    """Return which columns each shuffle carries: keys, what aggregates behind it read, all if late rows are used."""
    columns: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}
    for node in live:
        before = node.input
        if isinstance(node.kind, Late):
            assert before is not None and before.input is not None and isinstance(before.kind, WindowAggregate)
            key = _edge_key(before, before.kind)
            columns[key] = tuple(dict.fromkeys((*columns[key], *before.input.schema.names)))
        elif isinstance(node.kind, Aggregate | WindowAggregate):
            read = tuple(bound.column for bound in node.kind.aggregations if bound.column is not None)
            if isinstance(node.kind, WindowAggregate):
                read = (node.kind.time, *read)
            key = _edge_key(node, node.kind)
            columns[key] = tuple(dict.fromkeys((*columns.get(key, node.kind.keys), *read)))
    return columns


def _take_aggregate(
    work: _Compilation, node: Node, aggregate: Aggregate | WindowAggregate, columns: tuple[str, ...]
) -> None:
    assert node.input is not None
    edge = _edge(work, node.input, aggregate.keys, columns)
    fragment = work.growing[edge.to_fragment]
    step = fragment.add(INPUT, aggregate, node.schema, node.upsert_key)
    work.places[node.number] = (fragment.index, step)
    work.operators.append((aggregate, fragment.index, node.schema))


def _edge(work: _Compilation, input: Node, keys: tuple[str, ...], columns: tuple[str, ...]) -> Edge:
    """Return the edge that shuffles the node's stream by these keys; make it at the first use."""
    at, step = work.places[input.number]
    for edge in work.edges:
        if edge.key == keys and edge.from_fragment == at and _exchanges(work.growing[at], step, edge.index):
            return edge
    schema = pa.schema([input.schema.field(name) for name in columns])
    _refuse_dictionaries(schema)
    edge = Edge(len(work.edges), at, len(work.growing), keys, schema)
    work.edges.append(edge)
    work.growing[at].add(step, Exchange(edge.index, columns), schema, input.upsert_key)
    work.growing.append(_Growing(edge.to_fragment, None, (edge.index,), schema))
    return edge


def _refuse_dictionaries(schema: pa.Schema) -> None:
    """A batch that is sent alone does not carry the dictionary of an Enum or Categorical column."""
    for column in schema:
        if pa.types.is_dictionary(column.type):
            raise ConfigError(
                f"column {column.name!r} is an Enum or Categorical, which cannot be sent to other workers",
                not_done="the job was not planned",
                next_step=f'before key_by, .with_columns({column.name}=pl.col("{column.name}").cast(pl.String))',
            )


def _exchanges(fragment: _Growing, input: int, edge: int) -> bool:
    return any(
        step.input == input and isinstance(step.kind, Exchange) and step.kind.edge == edge for step in fragment.steps
    )
