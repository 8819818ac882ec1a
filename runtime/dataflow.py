"""Streams: what a job's code builds. Nothing here reads a record.

Every call adds a node to the app's graph and returns the stream that comes out, so a stream may be used any number of
times. What can be judged from the schemas is judged at the call, because there the traceback points at the line that
has to change; what needs the whole graph waits for `App.plan()`.

A stream is *append* (every row is a new fact) or *upsert* by a key (a row replaces the one with its key). Selecting on
an upsert stream keeps its key columns as they are; a filter turns rows that no longer pass into deletes.

Invariants
    - Nodes are numbered in the order of the calls; a node's input has a lower number.
    - A name belongs to one source, operator or sink of the app, for all time: it is the identity of state and output.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.aggregates import Aggregation, bound
from holdfast.runtime.expressions import Column, Use, columns_of, predicate_of, unknown_column
from holdfast.runtime.sources.source import Source
from holdfast.runtime.steps import Aggregate, Filter, Late, Project, WindowAggregate
from holdfast.sinks.contract import Sink
from holdfast.state.keys import KeyType

if TYPE_CHECKING:
    from holdfast.runtime.windowed import Windowed

NAME_LENGTH_MAX = 100
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, eq=False)
class FromSource:
    """The beginning of a stream."""

    name: str
    source: Source
    event_time: str | None
    out_of_orderness_ms: int
    idle_after_ms: int


@dataclass(frozen=True, eq=False)
class ToSink:
    """The end of a stream."""

    name: str
    sink: Sink


NodeKind = FromSource | Filter | Project | Aggregate | WindowAggregate | Late | ToSink


@dataclass(frozen=True, eq=False)
class Node:
    """One call of the job's code, and the stream that comes out of it."""

    number: int
    input: Node | None
    kind: NodeKind
    stream: str
    """The source or operator that the rows last came from; messages name the stream by it."""
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    event_time: str | None = None
    """The column that says when a row happened, as the source has it."""


@dataclass
class Graph:
    """Everything that an app's code has built so far."""

    app: str
    nodes: list[Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Name to what it names, such as "sink"."""

    def add(
        self,
        kind: NodeKind,
        input: Node | None,
        stream: str,
        schema: pa.Schema,
        upsert_key: tuple[str, ...] | None = None,
        event_time: str | None = None,
    ) -> Node:
        """Append a node and return it."""
        node = Node(len(self.nodes), input, kind, stream, schema, upsert_key, event_time)
        self.nodes.append(node)
        return node

    def claim(self, name: object, what: str) -> str:
        """Take a name for a source, operator or sink; return it.

        Raises:
            ConfigError: the name is missing, malformed or taken.
        """
        if isinstance(name, str) and name in self.names:
            raise ConfigError(
                f"the name {name!r} at {position()} is already that of the app's {self.names[name]}; "
                "names are the identity of state and output, so each is used once",
                not_done="the job was not planned",
                next_step=f"give the {what} another name",
            )
        checked = check_name(name, what)
        self.names[checked] = what
        return checked


class Stream:
    """Rows on their way. Use it as often as you like: every use sees all rows."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    @property
    def schema(self) -> pa.Schema:
        """The columns of this stream."""
        return self._node.schema

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """The key by which rows replace each other; None for an append stream."""
        return self._node.upsert_key

    @property
    def late(self) -> Stream:
        """The records that came too late for their windows; only the result of a window has them."""
        raise _refused(
            f"late on stream {self._node.stream!r} at {position()}: the stream is not the result of a window",
            "use it on what .window(...).agg(...) returns, before any other step",
        )

    def filter(self, predicate: Any) -> Stream:
        """Keep the rows for which a row-wise Polars expression is true."""
        use = self._use("filter")
        checked = predicate_of(predicate, self.schema, use)
        schema = self.schema
        if self.upsert_key is not None:
            # Rows that no longer pass travel on as deletes, with nothing but their key.
            schema = pa.schema([f if f.name in self.upsert_key else f.with_nullable(True) for f in schema])
        return self._then(Filter(checked, use), schema, self._node.event_time)

    def select(self, *columns: Any, **named: Any) -> Stream:
        """Give exactly these columns. Texts name columns; expressions are Polars', row-wise."""
        use = self._use("select")
        return self._project(columns_of(columns, named, self.schema, use), use)

    def with_columns(self, *columns: Any, **named: Any) -> Stream:
        """Add columns, or replace those of the same name."""
        use = self._use("with_columns")
        given = {column.name: column for column in columns_of(columns, named, self.schema, use)}
        kept = {field.name: Column(field.name, pl.col(field.name), field, field.name) for field in self.schema}
        return self._project(tuple((kept | given).values()), use)

    def key_by(self, *columns: str) -> Keyed:
        """Group rows by columns; nulls form a group of their own."""
        use = self._use("key_by")
        if not columns:
            raise _refused(f"{use}: it names no column", "name the columns that make up the key")
        for name in columns:
            if not isinstance(name, str):
                raise _refused(
                    f"{use}: {name!r} is not the name of a column",
                    "compute the column first, with .with_columns(key=...), then key_by('key')",
                )
            if name not in self.schema.names:
                raise unknown_column(name, self.schema.names, str(use))
            if columns.count(name) > 1:
                raise _refused(f"{use}: the column {name!r} is named twice", "name it once")
        try:
            KeyType.of(self.schema.field(name) for name in columns)
        except ConfigError as error:
            raise _refused(f"{use}: {error.what}", error.next_step) from error
        return Keyed(self._graph, self._node, columns)

    def sink(self, name: str, sink: Sink) -> None:
        """Write the stream to a sink. Several sinks on one stream are not atomic with each other."""
        check_name(name, "sink")
        if not all(callable(getattr(sink, method, None)) for method in ("check", "prepare", "open")):
            raise _refused(
                f"sink {name!r} at {position()}: {sink!r} is not a sink",
                'give one, for example hf.SQLite("out.db", table="hot", key=["auction"])',
            )
        checked = self._graph.claim(name, "sink")
        try:
            sink.check(self.schema, self.upsert_key)
        except HoldfastError as error:
            del self._graph.names[checked]
            raise ConfigError(
                f"sink {name!r} at {position()} does not fit its stream: {error.what}",
                not_done="the job was not planned",
                next_step=error.next_step,
            ) from error
        self._graph.add(ToSink(checked, sink), self._node, self._node.stream, self.schema, self.upsert_key)

    def _use(self, method: str) -> Use:
        return Use(method, position(), self._node.stream)

    def _then(self, kind: NodeKind, schema: pa.Schema, event_time: str | None) -> Stream:
        stream = self._node.stream
        return Stream(self._graph, self._graph.add(kind, self._node, stream, schema, self.upsert_key, event_time))

    def _project(self, columns: tuple[Column, ...], use: Use) -> Stream:
        passed = {column.name: column.passes for column in columns}
        for name in self.upsert_key or ():
            if passed.get(name) != name:
                raise _refused(
                    f"{use}: the stream replaces rows by its key {', '.join(self.upsert_key or ())}, "
                    f"and {name!r} is left out or changed",
                    f"keep {name!r} as it is, and give a computed column another name",
                )
        # What is computed in an upsert stream is null in deletes.
        fields = [c.field if c.passes or self.upsert_key is None else c.field.with_nullable(True) for c in columns]
        time = self._node.event_time
        kept = [column.name for column in columns if time is not None and column.passes == time]
        event_time = time if time in kept else next(iter(kept), None)
        return self._then(Project(columns, use), pa.schema(fields), event_time)


class Keyed:
    """A stream grouped by key: what state belongs to."""

    def __init__(self, graph: Graph, node: Node, keys: tuple[str, ...]) -> None:
        self._graph, self._node, self._keys = graph, node, keys

    def agg(self, name: str, *, emit: str = "changes", **aggregates: Aggregation) -> Stream:
        """Keep aggregates per key; the result is an upsert stream with the last value per key and epoch.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            emit: "changes", the only mode so far.
            aggregates: Result columns: `bids=hf.count(), top=hf.max("price")`.

        Raises:
            ConfigError: a name is taken, a column unknown, or a type that the aggregate does not take.
        """
        where = f"agg {name!r} on stream {self._node.stream!r} at {position()}"
        if self._node.upsert_key is not None:
            raise _refused(
                f"{where}: the stream replaces rows by {', '.join(self._node.upsert_key)}, "
                "and aggregates over rows that are replaced are not supported",
                "aggregate the stream before it, with the other key",
            )
        if emit != "changes":
            raise _refused(f'{where}: emit={emit!r} is not supported; only "changes" is', 'use emit="changes"')
        if not aggregates:
            raise _refused(f"{where}: it has no aggregate", "give at least one, for example rows=hf.count()")
        schema = self._node.schema
        bounds = tuple(bound(column, given, schema, where) for column, given in aggregates.items())
        for aggregation in bounds:
            if aggregation.result.name in self._keys:
                raise _refused(f"{where}: {aggregation.result.name!r} is also a key column", "rename the aggregate")
        checked = self._graph.claim(name, "operator")
        fields = [schema.field(key) for key in self._keys] + [aggregation.result for aggregation in bounds]
        aggregate = Aggregate(checked, self._keys, bounds)
        node = self._graph.add(aggregate, self._node, checked, pa.schema(fields), self._keys)
        return Stream(self._graph, node)


    def window(self, window: object, *, allowed_lateness: str = "0s") -> Windowed:
        """Group rows by windows of event time as well: `.window(hf.tumbling("10s")).agg(...)`.

        Args:
            allowed_lateness: How long after its end a window still takes records.

        Raises:
            ConfigError: the stream has no event time or replaces rows, or the window is of an unknown kind.
        """
        from holdfast.runtime.windowed import windowed

        return windowed(self._graph, self._node, self._keys, window, allowed_lateness)


def check_name(name: object, what: str) -> str:
    """Return the name of an app, source, operator or sink.

    Raises:
        ConfigError: it is missing or malformed.
    """
    if not isinstance(name, str):
        raise _refused(
            f"a {what} at {position()} has no name: its first argument is {name!r}",
            "put a name first: it is the identity of its state or output",
        )
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise _refused(
            f"{name!r} at {position()} cannot be the name of a {what}",
            f"use small letters, digits, '-' and '_', beginning with a letter or digit, at most {NAME_LENGTH_MAX}",
        )
    return name


def position() -> str:
    """Return file and line of the nearest caller outside Holdfast."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "holdfast":
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="the job was not planned", next_step=next_step)
