"""The parts of a plan: fragments of steps, joined by edges.

A fragment is the part of the dataflow between two shuffles; every worker runs one subtask of it. Its steps form a tree
that begins at the fragment's input, a source or edges. A plan consists of plain values, so that the driver can send it
to its workers and compare two plans.

Invariants
    - Fragments of sources come first; an edge leads from a fragment to one with a higher number.
    - Steps are in topological order: a step's input is `INPUT` or a step before it.
    - The input of a step with keys is always `INPUT` of a fragment that begins at an edge with these keys: all rows of
      one key meet in one subtask, even if there is only one subtask.
    - Batches of an upsert stream carry the int8 column `_op` last; the schemas here omit it, but for those of edges.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.model import CHANGELOG, ChannelId, Subtask
from holdfast.runtime.operators.contract import INPUT, Placed, entry
from holdfast.runtime.plan.code import JobModule
from holdfast.runtime.plan.drawing import Box, box_of, columns_text, drawn, joined
from holdfast.runtime.plan.source import Source
from holdfast.runtime.rows.dead_letters import OnError
from holdfast.runtime.rows.expressions import ProjectedColumn
from holdfast.runtime.time.time_alignment import Group
from holdfast.sinks.contract.changelogs import ROOT, Changelog
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.protocol.staging import decode
from holdfast.state.tables.spec import TableSpec

ANY_FRAGMENT = -1
"""The fragment of the sink of dead letters, which every fragment may write to."""


@dataclass(frozen=True)
class Fragment:
    """Steps without a shuffle between them. A fragment has either a `source` or edges that lead to it."""

    index: int
    source: str | None
    input_edges: tuple[int, ...]
    """Shuffles by key, one per port, or one edge without key from each fragment whose streams are united here."""
    schema: pa.Schema
    """Schema of the input."""
    steps: tuple[Placed, ...]
    further: tuple[pa.Schema, ...] = ()
    """Schemas of the ports after the first, if the fragment begins at a step with several keyed inputs."""

    def entering(self, port: int) -> pa.Schema:
        """Return the schema of a port."""
        return (self.schema, *self.further)[port]

    def timed(self, port: int) -> bool:
        """Return whether the watermarks of a port's edges hold back event time in the fragment."""
        point = entry(port)
        ports = [(placed.step, at) for placed in self.steps for at, each in enumerate(placed.inputs) if each == point]
        return all(step.timed(at) for step, at in ports)

    def calls(self) -> list[str]:
        """Return the names of the Python functions among its steps."""
        return [name for placed in self.steps for name in placed.step.busy_with()]


@dataclass(frozen=True)
class Edge:
    """A shuffle by key from every subtask of one fragment to every subtask of another.

    Without a key, rows stay in the memory of their subtask: a union of streams of several fragments needs no shuffle.
    """

    index: int
    from_fragment: int
    to_fragment: int
    key: tuple[str, ...]
    schema: pa.Schema
    port: int = 0
    """The input of the receiving step that it leads to."""

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
    """Policy for a record that cannot be decoded."""
    computed: ProjectedColumn | None = None
    """The event time column, if it is computed from the records; the fragment's input has it last."""
    watermark: ProjectedColumn | None = None
    """The watermarks of records, from the columns of the fragment's input; None: those that follow from event time."""


@dataclass(frozen=True, eq=False)
class SinkSpec:
    """A sink by its stable name, with the stream that reaches it."""

    name: str
    sink: Sink
    fragment: int
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    path: str | None = None
    """Identity of the code between the source and a sink that is written immediately; None if written at the commit."""
    decode: Callable[[bytes], Iterable[pa.RecordBatch]] = decode
    """Returns the rows of a staged part."""


@dataclass(frozen=True)
class OperatorSpec:
    """A stateful operator by its stable name; `id` (u16) begins its keys in storage."""

    name: str
    id: int
    fragment: int
    table: TableSpec
    window: str | None = None
    """Description of its windows; state of other windows cannot be read."""
    times: tuple[str, ...] = ()
    """See TableDraft."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The whole job, which any number of workers can run."""

    app: str
    key_groups: int
    sources: tuple[SourceSpec, ...]
    sinks: tuple[SinkSpec, ...]
    operators: tuple[OperatorSpec, ...]
    fragments: tuple[Fragment, ...]
    edges: tuple[Edge, ...]
    changelog: Changelog = ROOT
    """Where the changelog of its state is kept; topic.py delivers it."""
    code: tuple[JobModule, ...] = field(default=(), compare=False, repr=False)
    """The modules that travel to workers by value."""

    def operator(self, name: str) -> OperatorSpec:
        """Return the operator of this name; it exists."""
        return next(operator for operator in self.operators if operator.name == name)

    def _repr_html_(self) -> str:
        """Return a drawing of the plan, for notebooks."""
        return drawn(f"plan of {self.app}", self._boxes())

    def _boxes(self) -> list[Box]:
        """Return the sources and steps of all fragments; a text beside an arrow names the key of a shuffle."""
        boxes, last, senders = list[Box](), dict[tuple[int, int], int](), dict[int, int]()
        for fragment in self.fragments:
            into = tuple((senders[index], joined(self.edges[index].key)) for index in fragment.input_edges)
            if fragment.source is not None:
                source = next(each for each in self.sources if each.name == fragment.source)
                last[fragment.index, INPUT] = len(boxes)
                lines = (f"source {source.name}", repr(source.source))
                boxes.append(Box(len(boxes), lines, "source", "\n".join((*lines, columns_text(fragment.schema)))))
            for placed_step in fragment.steps:
                input_boxes = [
                    last[fragment.index, each] for each in placed_step.inputs if (fragment.index, each) in last
                ]
                if placed_step.step.sends_to is not None:
                    senders[placed_step.step.sends_to] = input_boxes[0]
                    continue
                inputs = (*((each, "") for each in input_boxes), *(into if placed_step.input == INPUT else ()))
                last[fragment.index, placed_step.id] = len(boxes)
                boxes.append(box_of(len(boxes), placed_step.step, placed_step.schema, placed_step.upsert_key, inputs))
        return boxes

    def in_bytes(self) -> tuple[str, ...]:
        """Return the sources whose offsets count bytes of text, not records."""
        return tuple(spec.name for spec in self.sources if spec.source.traits.counts_bytes)

    def committed_once(self) -> frozenset[str]:
        """Return the sinks whose output of an epoch one committer delivers for all writers."""
        named = (spec.name for spec in self.sinks if spec.sink.traits.commits_once and spec.path is None)
        return frozenset((*named, CHANGELOG) if self.changelog.commits_once else named)

    def event_times_held(self) -> tuple[int, int]:
        """Return the first and the last event time that all windows and targets of the job can hold."""
        held = [placed.step.times_held() for fragment in self.fragments for placed in fragment.steps]
        return max(first for first, _ in held), min(last for _, last in held)

    def read_together(self) -> dict[int, int]:
        """Return, for every fragment that reads a source, the first of the fragments united with it, or itself.

        A union and a join wait for the input that is behind in event time, so that input is read first. A look-up in
        the present version of a table waits for none.
        """
        first = {fragment.index: fragment.index for fragment in self.fragments if fragment.source is not None}
        begins = {index: {index} for index in first}
        for fragment in self.fragments:
            edges = [self.edges[index] for index in fragment.input_edges]
            edges = [edge for edge in edges if fragment.timed(edge.port)]
            for edge in edges if fragment.further else [edge for edge in edges if not edge.key]:
                begins.setdefault(fragment.index, set()).update(begins.get(edge.from_fragment, ()))
            joined = {first[index] for index in begins.get(fragment.index, ())}
            first |= {index: min(joined) for index, group in first.items() if group in joined}
        return first

    def aligned(self) -> tuple[Group, ...]:
        """Return the groups of sources whose subtasks keep together in event time (docs/decisions/0048)."""
        first = self.read_together()
        timed = [spec for spec in self.sources if spec.event_time is not None]
        groups = {at: [s for s in timed if first[s.fragment] == at] for at in dict.fromkeys(first.values())}
        return tuple(_group(specs) for specs in groups.values() if specs)


def is_boundless(spec: SourceSpec) -> bool:
    """Return whether a source has more records at any time, so that its end offsets are those that were read."""
    return spec.source.traits.endless is not None and not spec.source.traits.paced


def _group(specs: list[SourceSpec]) -> Group:
    names, boundless = (s.name for s in specs), (s.name for s in specs if is_boundless(s))
    return Group(frozenset(names), max(s.idle_after_s for s in specs), frozenset(boundless))
