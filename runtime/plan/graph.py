"""The graph that a job's code builds: one node per call, and the names in use.

Invariants
    - Nodes are numbered in the order of the calls; a node's input has a lower number.
    - A name belongs to one source, operator or sink of the app, permanently: it is the identity of state and output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.arguments import position
from holdfast.errors import ConfigError
from holdfast.runtime.operators.contract import Step
from holdfast.runtime.plan.drawing import Box, box_of, columns_text, drawn, joined, upstream
from holdfast.runtime.plan.source import Source
from holdfast.runtime.rows.dead_letters import DLQ, OnError
from holdfast.runtime.rows.expressions import ProjectedColumn
from holdfast.sinks.contract.sink import Sink

NAME_LENGTH_MAX = 100
NOT_GIVEN: Any = None
"""Default of required arguments: a missing argument is refused with a message, like a wrong one."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_NAMED = {
    "app": "it is the identity of the job and the name of its folder below the root",
    "source": "offsets are kept under it",
    "sink": "it is the identity of the output",
}


@dataclass(frozen=True, eq=False)
class FromSource:
    """The beginning of a stream."""

    name: str
    source: Source
    event_time: str | None
    out_of_orderness_ms: int
    idle_after_ms: int
    on_error: OnError
    partitioned_by: tuple[str, ...] = ()
    """Columns whose equal values are in one partition; () if unknown."""
    computed: ProjectedColumn | None = None
    """The event time column, if it is computed from the records."""
    watermark: ProjectedColumn | None = None
    """The watermarks of records, from the columns of the stream; None: those that follow from event time."""


@dataclass(frozen=True, eq=False)
class Node:
    """One call of the job's code, and the resulting stream."""

    number: int
    input: Node | None
    kind: FromSource | Step
    stream: str
    """The last source or operator that produced the rows; messages name the stream by it."""
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    row_type: type | None = None
    """The dataclass of the rows in Python functions; None is `hf.Row`."""
    others: tuple[Node, ...] = ()
    """Further inputs of a step with several."""
    event_time: str | None = None
    """The event time column, unchanged from the source."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """All inputs; the index is the port."""
        return () if self.input is None else (self.input, *self.others)


@dataclass
class Graph:
    """Everything that an app's code has built so far."""

    app: str
    nodes: list[Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=lambda: {DLQ: "dead letter queue"})
    """Kind of each name, such as "sink"."""
    sinks: dict[str, Sink] = field(default_factory=dict)
    """By name."""
    dlq: Sink | None = None
    """Where dead letters go."""

    def add(
        self,
        kind: FromSource | Step,
        input: Node | None,
        stream: str,
        schema: pa.Schema,
        upsert_key: tuple[str, ...] | None = None,
        *,
        row_type: type | None = None,
        others: tuple[Node, ...] = (),
        event_time: str | None = None,
    ) -> Node:
        """Append a node and return it."""
        node = Node(len(self.nodes), input, kind, stream, schema, upsert_key, row_type, others, event_time)
        self.nodes.append(node)
        return node

    def drawn(self, of: Node | None = None) -> str:
        """Return the dataflow built so far as HTML with a drawing; for one stream, the steps up to it."""
        boxes = [_box(node) for node in self.nodes]
        title = f"app {self.app}" if of is None else f"stream {of.stream}: {columns_text(of.schema)}"
        return drawn(title, boxes if of is None else upstream(boxes, of.number))

    def claim(self, name: object, what: str) -> str:
        """Claim a name for a source, operator or sink; return it.

        Raises:
            ConfigError: the name is missing, malformed or taken.
        """
        if isinstance(name, str) and name in self.names:
            raise ConfigError(
                f"the name {name!r} at {position()} is already the name of the app's {self.names[name]}; "
                "names are the identity of state and output, so each is used once",
                not_done="the job was not planned",
                next_step=f"give the {what} another name",
            )
        checked = check_name(name, what)
        self.names[checked] = what
        return checked


def _box(node: Node) -> Box:
    if isinstance(node.kind, FromSource):
        lines = (f"source {node.kind.name}", repr(node.kind.source))
        return Box(node.number, lines, "source", "\n".join((*lines, columns_text(node.schema))))
    inputs = tuple((each.number, joined(node.kind.keyed_by(port))) for port, each in enumerate(node.inputs))
    return box_of(node.number, node.kind, node.schema, node.upsert_key, inputs)


def is_name(name: str) -> bool:
    """Return whether an app, source, operator or sink can have this name."""
    return _NAME.fullmatch(name) is not None and len(name) <= NAME_LENGTH_MAX


def check_name(name: object, what: str) -> str:
    """Return the name of an app, source, operator or sink.

    Raises:
        ConfigError: it is missing or malformed.
    """
    if not isinstance(name, str):
        given = "nothing is given" if name is None else f"its first argument is {name!r}"
        raise refused(
            f"{_article(what)} {what} at {position()} has no name: {given}",
            "put a name first: " + _NAMED.get(what, "it is the identity of its state"),
        )
    if not is_name(name):
        raise refused(
            f"{name!r} at {position()} cannot be the name of {_article(what)} {what}",
            f"use small letters, digits, '-' and '_', beginning with a letter or digit, at most {NAME_LENGTH_MAX}",
        )
    return name


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def refused(what: str, next_step: str) -> ConfigError:
    """Return the error for a call that cannot be planned."""
    return ConfigError(what, not_done="the job was not planned", next_step=next_step)
