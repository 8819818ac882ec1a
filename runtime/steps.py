"""What a plan consists of: fragments of steps, joined by edges.

A fragment is the part of the dataflow between two shuffles; every worker runs one subtask of it. Its steps form a tree
that begins at the fragment's input, a source or edges. All of it is plain values, so that the driver can
ship a plan to its workers and compare two plans.

Invariants
    - Sources' fragments come first; an edge leads from a fragment to one with a higher number.
    - Steps are in topological order: a step's input is `INPUT` or a step before it.
    - The input of an Aggregate or WindowAggregate is always `INPUT` of a fragment that begins at an edge keyed by its
      keys: all rows of one key meet in one subtask, also when there is only one.
    - Batches of an upsert stream carry the int8 column `_op` last; the schemas here leave it out.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from holdfast.model import ChannelId, Subtask
from holdfast.runtime.aggregates import BoundAggregation
from holdfast.runtime.expressions import Column, Use
from holdfast.runtime.sources.source import Source
from holdfast.runtime.windows import Tumbling, event_times_held
from holdfast.sinks.contract import Sink
from holdfast.state.spec import TableSpec

INPUT = -1
"""The input of a step that reads what enters the fragment."""
ANY_FRAGMENT = -1
"""The fragment of the sink of dead letters, which every fragment may write to."""
OnError = Literal["fail", "dlq", "drop"]
"""What becomes of a record that cannot be decoded, or of a row that a function fails on."""


def clock_of(operator: str) -> str:
    """Return the name of the clock of a window operator; no operator of a user's can have it."""
    return f"{operator}.clock"


def is_clock(name: str) -> bool:
    """Return whether this names the clock of a window operator."""
    return name.endswith(".clock")


@dataclass(frozen=True, eq=False)
class Filter:
    """Keep the rows for which the predicate is true. In an upsert stream the others become deletes."""

    predicate: pl.Expr
    use: Use


@dataclass(frozen=True, eq=False)
class Project:
    """Give exactly these columns, in order."""

    columns: tuple[Column, ...]
    use: Use


@dataclass(frozen=True, eq=False)
class Call:
    """Call a Python function with every row, or (`map_batches`) with every batch. Append streams only."""

    how: Literal["map", "flat_map", "filter", "map_batches"]
    function: Callable[[Any], Any]
    row_type: type | None
    """What a row is made as; None is `hf.Row`."""
    on_error: OnError
    operator: str
    """The name under which rows are counted; unlike an aggregate's it identifies nothing that is stored."""
    use: Use


@dataclass(frozen=True, eq=False)
class Check:
    """Give the columns of this schema, in its order; fail where one of `not_null` is null."""

    not_null: tuple[str, ...]
    use: Use


@dataclass(frozen=True, eq=False)
class Union:
    """Give the rows of all inputs, `Step.input` and `Step.also`, which may be those of edges without key."""

    use: Use


@dataclass(frozen=True)
class Aggregate:
    """Keep aggregates per key; at a barrier, give the last values of the keys changed in the epoch."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]


@dataclass(frozen=True)
class WindowAggregate:
    """Keep aggregates per window and key, and give them when event time has passed the window."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]
    time: str
    """Column with the event time."""
    window: Tumbling
    lateness_us: int
    emit: str
    """`close` or `final`."""

    @property
    def clock(self) -> str:
        """Name of the table with the watermark of each key group."""
        return clock_of(self.operator)


@dataclass(frozen=True)
class Late:
    """The records that came too late for the windows before it."""


@dataclass(frozen=True)
class SinkStep:
    """Hand the rows to the sink."""

    sink: str


@dataclass(frozen=True)
class Exchange:
    """Send the rows, reduced to these columns, over an edge to the subtasks that own their keys."""

    edge: int
    columns: tuple[str, ...]


StepKind = Filter | Project | Call | Check | Union | Aggregate | WindowAggregate | Late | SinkStep | Exchange


@dataclass(frozen=True)
class Step:
    """One step of a fragment, with the stream that comes out (for sinks and exchanges: that goes in)."""

    id: int
    input: int
    kind: StepKind
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    also: tuple[int, ...] = ()
    """Further inputs of a Union."""


@dataclass(frozen=True)
class Fragment:
    """Steps without a shuffle between them. Either it has a `source`, or edges lead to it."""

    index: int
    source: str | None
    input_edges: tuple[int, ...]
    """One shuffle by key, or one edge without key from each fragment whose streams are united here."""
    schema: pa.Schema
    """What enters."""
    steps: tuple[Step, ...]

    def calls(self) -> bool:
        """Return whether Python functions are among its steps."""
        return any(isinstance(step.kind, Call) for step in self.steps)


@dataclass(frozen=True)
class Edge:
    """A shuffle by key from every subtask of one fragment to every subtask of another.

    Without a key, rows stay in their subtask, and its memory: a union of streams of several fragments needs no shuffle.
    """

    index: int
    from_fragment: int
    to_fragment: int
    key: tuple[str, ...]
    schema: pa.Schema

    def channels(self, subtasks: Iterable[Subtask]) -> list[ChannelId]:
        """Return the channels between any two of these subtasks."""
        both = [(s, s) for s in subtasks] if not self.key else itertools.product(subtasks, repeat=2)
        return [ChannelId(self.index, sender, receiver) for sender, receiver in both]


@dataclass(frozen=True, eq=False)
class SourceSpec:
    """A source by its stable name."""

    name: str
    source: Source
    fragment: int
    event_time: str | None = None
    out_of_orderness_us: int = 0
    idle_after_s: float = 30.0
    on_error: OnError = "fail"
    """What becomes of a record that cannot be decoded."""


@dataclass(frozen=True, eq=False)
class SinkSpec:
    """A sink by its stable name, with the stream that reaches it."""

    name: str
    sink: Sink
    fragment: int
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    path: str | None = None
    """Identity of the code between the source and a sink that is written at once; None: it is written at the commit."""


@dataclass(frozen=True)
class OperatorSpec:
    """A stateful operator by its stable name; `id` (u16) begins its keys in storage."""

    name: str
    id: int
    fragment: int
    table: TableSpec
    window: str | None = None
    """What its windows are; state of other windows cannot be read."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The whole job, ready to be run by any number of workers."""

    app: str
    key_groups: int
    sources: tuple[SourceSpec, ...]
    sinks: tuple[SinkSpec, ...]
    operators: tuple[OperatorSpec, ...]
    fragments: tuple[Fragment, ...]
    edges: tuple[Edge, ...]

    def operator(self, name: str) -> OperatorSpec:
        """Return the operator of this name; it exists."""
        return next(operator for operator in self.operators if operator.name == name)

    def event_times_held(self) -> tuple[int, int]:
        """Return the first and the last event time that all windows of the job, and targets, can hold."""
        kinds = [step.kind for fragment in self.fragments for step in fragment.steps]
        return event_times_held((k.window, k.lateness_us) for k in kinds if isinstance(k, WindowAggregate))

    def read_together(self) -> dict[int, int]:
        """Return, for every fragment that reads a source, the first of those that it is united with, itself if none.

        What is united waits for the one that is behind in event time, so that one is read first.
        """
        first = {fragment.index: fragment.index for fragment in self.fragments if fragment.source is not None}
        begins = {index: {index} for index in first}
        for fragment in self.fragments:
            edges = [self.edges[index] for index in fragment.input_edges if not self.edges[index].key]
            for edge in edges:
                begins.setdefault(fragment.index, set()).update(begins.get(edge.from_fragment, ()))
            joined = {first[index] for index in begins.get(fragment.index, ())}
            first |= {index: min(joined) for index, group in first.items() if group in joined}
        return first
