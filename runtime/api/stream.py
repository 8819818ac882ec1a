"""Streams, from which a job's code builds its dataflow. Nothing here reads a record.

Every call adds a node to the app's graph and returns the resulting stream, so a stream may be used any number of times.
Each call checks everything that follows from the schemas, so that the traceback points at the line to change; checks
that need the whole graph wait for `App.plan()`.

A stream is *append* (every row is a new fact) or *upsert* by a key (a row replaces the one with its key). `select` on
an upsert stream keeps its key columns as they are; `filter` turns rows that no longer pass into deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn

import polars as pl
import pyarrow as pa

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.api.functions import call_of, checked_as, row_schema, united
from holdfast.runtime.api.joined import joined, late_of
from holdfast.runtime.api.matched import matched
from holdfast.runtime.api.process import batches_of, process_of, processed, side_of
from holdfast.runtime.api.tables import changes_of, converted, group_keys, grouped, joined_tables, looked_up, searched
from holdfast.runtime.api.unsupported import KEYED_STREAM, STREAM, no_attribute
from holdfast.runtime.api.windowed import Grouping, aggregated, checked_keep, grouping_of, late, refuse_own
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.functions.aggregation import Aggregation, bound, check_former, refuse_unnamed
from holdfast.runtime.functions.users.keyed_process import KeyedProcess
from holdfast.runtime.operators.aggregates.aggregate import Aggregate
from holdfast.runtime.operators.aggregates.running import RunningAggregate
from holdfast.runtime.operators.call import How
from holdfast.runtime.operators.chain import Filter, Project
from holdfast.runtime.operators.contract import Step
from holdfast.runtime.operators.dedup import Dedup
from holdfast.runtime.operators.sink import SinkStep
from holdfast.runtime.operators.union import Union
from holdfast.runtime.plan.drawing import columns_text as schema_text
from holdfast.runtime.plan.graph import NOT_GIVEN, Graph, Node, check_name, refused
from holdfast.runtime.rows.expressions import ProjectedColumn, Use, columns_of, predicate_of, unknown_column
from holdfast.runtime.rows.row_types import ArrowSchema, R, Row, T
from holdfast.runtime.rows.schema import aliases_of, renamed
from holdfast.runtime.sources.connector import Connector, sink_of
from holdfast.runtime.time.join_bounds import Between
from holdfast.runtime.time.patterns import PARTIALS, Pattern
from holdfast.runtime.time.triggers import AllTime, Every
from holdfast.runtime.time.windows import LENGTH_MAX_US, WINDOW_END, Windows
from holdfast.sinks.contract.sink import Sink, not_a_sink
from holdfast.state.keys.batch import KeyType

EVERYTHING = pa.field("_all", pa.int64(), nullable=False)
"""The key of windows that take the rows of all keys; no column of a user can have its name."""


class Stream(Generic[T]):
    """A stream of rows. Use it as often as you like: every use sees all rows.

    `T` is the type of rows in Python functions: the dataclass of the source or of the last `to=` or `as_`, else
    `hf.Row`. With it a type checker finds fields that a row does not have.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    if not TYPE_CHECKING:  # otherwise a type checker accepts any attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("Stream", name, STREAM, dir(type(self)))

    def __repr__(self) -> str:
        node = self._node
        upsert = f"; upsert by {', '.join(node.upsert_key)}" if node.upsert_key else ""
        return f"<Stream {node.stream!r}: {schema_text(node.schema)}{upsert}>"

    def _repr_html_(self) -> str:
        """Return a drawing of the steps up to the stream, with its columns, for notebooks."""
        return self._graph.drawn(self._node)

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
        """Records that arrived too late for their windows; only the result of a window has them."""
        raise refused(
            f"late on stream {self._node.stream!r} at {position()}: the stream is not the result of a window",
            "use it on the result of .window(...).agg(...), before any other step",
        )

    @checked(".filter", '(pl.col("price") > 0)')
    def filter(self, predicate: pl.Expr | Callable[[T], Any], *, on_error: str = "fail") -> Stream[T]:
        """Keep the rows for which a row-wise Polars expression, or a Python function of the row, is true."""
        use = self._use("filter")
        if callable(predicate) and not isinstance(predicate, pl.Expr):
            return self._call("filter", predicate, (self.schema, self._node.row_type), on_error)
        if on_error != "fail":
            raise refused(f"{use}: on_error is for Python functions only", "leave it out")
        condition = predicate_of(predicate, self.schema, use)
        schema = self.schema
        if self.upsert_key is not None:
            # Rows that no longer pass continue as deletes, with nothing but their key.
            # The event time of a table's version stays, so that its delete has one.
            kept = {*self.upsert_key, self._node.event_time}
            schema = pa.schema([f if f.name in kept else f.with_nullable(True) for f in schema])
        step = Filter(condition, use, None if self.upsert_key is None else self._node.event_time)
        return self._then(step, schema, self._node.row_type, self._node.event_time)

    def select(self, *columns: Any, **named: Any) -> Stream[Row]:
        """Return exactly these columns. Strings name columns; expressions are row-wise Polars expressions."""
        use = self._use("select")
        return self._project(columns_of(columns, named, self.schema, use), use)

    def with_columns(self, *columns: Any, **named: Any) -> Stream[Row]:
        """Add columns, or replace those of the same name."""
        use = self._use("with_columns")
        given = {column.name: column for column in columns_of(columns, named, self.schema, use)}
        kept = {field.name: ProjectedColumn(field.name, pl.col(field.name), field, field.name) for field in self.schema}
        return self._project(tuple((kept | given).values()), use)

    @checked(".map", "(fn, to=Out)")
    def map(
        self, fn: Callable[[T], Any], to: type[R] | ArrowSchema = NOT_GIVEN, *, on_error: str = "fail"
    ) -> Stream[R]:
        """Call a function with every row; it returns one row: a `to`, a dict, a tuple or an `hf.Row`.

        Args:
            fn: Takes an instance of the stream's dataclass (that of the source or of the last `to=` or `as_`), after
                select and agg an `hf.Row`. Must return the same result whenever it is called with the same row.
            to: Rows of the result: a dataclass or a pyarrow.Schema. The function's results are checked against it.
            on_error: "fail" ends the job at a row that cannot be computed; "drop" skips the row and counts it;
                "dlq" makes it a dead letter, see `hf.App(dlq=)`.

        Raises:
            ConfigError: not a function of one argument, or an upsert stream.
        """
        return self._call("map", fn, row_schema(to, self._use("map")), on_error)

    @checked(".flat_map", "(fn, to=Out)")
    def flat_map(
        self, fn: Callable[[T], Any], to: type[R] | ArrowSchema = NOT_GIVEN, *, on_error: str = "fail"
    ) -> Stream[R]:
        """Call a function with every row; it returns a list of rows, or yields them. Otherwise like `map`."""
        return self._call("flat_map", fn, row_schema(to, self._use("flat_map")), on_error)

    @checked(".map_batches", "(fn, to=Out)")
    def map_batches(
        self, fn: Callable[[Any], Any], to: type[R] | ArrowSchema = NOT_GIVEN, *, on_error: str = "fail"
    ) -> Stream[R]:
        """Call a function with every pyarrow.RecordBatch; it returns a RecordBatch with the columns of `to`.

        Batch boundaries mean nothing and differ after a failure: the result for a row may depend on that row alone.
        With "drop" and "dlq" the function is called again with halves of a failed batch, to find the rows at fault.
        """
        return self._call("map_batches", fn, row_schema(to, self._use("map_batches")), on_error)

    def union(self, *streams: Stream[T]) -> Stream[T]:
        """Return the rows of this stream and of others with the same columns, in no order between streams."""
        use = self._use("union")
        for stream in streams:
            if not isinstance(stream, Stream) or stream._graph is not self._graph:
                raise refused(f"{use}: {stream!r} is not a stream of this app", "give streams of the same app")
        nodes = [self._node, *(stream._node for stream in streams)]
        if any(node.upsert_key is not None for node in nodes):
            raise refused(
                f"{use}: a stream that replaces rows by a key cannot be united with others",
                "give each its own sink, or unite the streams before they are aggregated",
            )
        if not streams:
            raise refused(f"{use}: no other stream is given", "give at least one")
        schema = united([node.schema for node in nodes], use)
        kinds = {node.row_type for node in nodes}
        row_type = kinds.pop() if len(kinds) == 1 else None
        times = {node.event_time for node in nodes}
        event_time = times.pop() if len(times) == 1 else None
        return Stream(
            self._graph,
            self._graph.add(
                Union(use),
                self._node,
                self._node.stream,
                schema,
                row_type=row_type,
                others=tuple(nodes[1:]),
                event_time=event_time,
            ),
        )

    @checked(".window", '(hf.tumbling("10s"), allowed_lateness="1m")')
    def window(self, window: object = None, *, allowed_lateness: Duration = "0s") -> Windowed:
        """Group all rows by windows of event time, whatever their keys: `.window(hf.tumbling("10s")).agg(...)`.

        One subtask takes all the rows; `.key_by(...).window(...)` spreads them by key. See `Keyed.window`.
        """
        stream = self
        if self.upsert_key is None:
            mark = ProjectedColumn(EVERYTHING.name, pl.lit(0, pl.Int64), EVERYTHING, None)
            columns = [ProjectedColumn(field.name, pl.col(field.name), field, field.name) for field in self.schema]
            stream = self._project((*columns, mark), self._use("window"))
        node = stream._node
        return Windowed(self._graph, node, grouping_of(node, (EVERYTHING.name,), window, allowed_lateness))

    @checked(".join", '("name", other, on="user", within=hf.between("0s", "1h"))')
    def join(
        self,
        name: str = NOT_GIVEN,
        other: Stream = NOT_GIVEN,
        *,
        on: str | Sequence[str],
        within: Between | None = None,
        window: Windows | None = None,
        how: str = "inner",
        suffix: str = "_right",
    ) -> JoinedStream:
        """Join rows with rows of another stream that have the same key and fit in event time.

        Columns: those of this stream, then those of the other except `on`; window_start and window_end if a window is
        given. A pair is emitted when its second row arrives; an unmatched row when no partner can come any longer. Rows
        that arrive after that go to `.late`, or are only counted. A null in a key column joins nothing.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            other: The right stream; may be this one.
            on: The columns whose values must be equal, of the same names and types in both streams.
            within: `hf.between("0s", "1h")`: a right row joins a left row if it is at most an hour younger.
            window: Rows join that are in the same window, such as `hf.tumbling("1h")`; instead of `within`.
            how: Whose unmatched rows are emitted, with nulls for the other's columns: "inner" (none), "left", "right",
                "full". The result's event time is the left stream's, with "right" the right one's, with "full" none.
            suffix: Is appended to the names of the other's columns that this stream has too.

        Raises:
            ConfigError: neither `within` nor `window` is given, which bound the state; or a stream has no event time
                or replaces rows.
        """
        where = f"join {name!r} on stream {self._node.stream!r} at {position()}"
        if not isinstance(other, Stream) or other._graph is not self._graph:
            raise refused(f"{where}: {other!r} is not a stream of this app", "give a stream of the same app")
        nodes = self._node, other._node
        return JoinedStream(self._graph, joined(self._graph, nodes, name, on, within, window, how, suffix))

    @checked(".lookup", '("with-customer", customers, on="customer")')
    def lookup(
        self,
        name: str = NOT_GIVEN,
        table: Table = NOT_GIVEN,
        *,
        on: str | Sequence[str | tuple[str, str]],
        as_of: str = "event_time",
        how: str = "inner",
        suffix: str = "_right",
    ) -> Stream[Row]:
        """Add to every row the columns of the table's row with its key.

        Columns: those of this stream, then those of the table except its key. A null in a key column finds nothing.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            table: Made by `app.table` or `.to_table`.
            on: The table's key: names that both have, or pairs of a column of this stream and one of the table.
            as_of: "event_time": the row that the table had at the event time of each row. A row waits until the
                watermark of both has passed its time; the state keeps the rows that wait and the versions that they
                may ask for. A row behind the watermark gets its version if it is still kept, else it goes to `.late`.
                "latest": the row that the table has when a row arrives, which depends on the order of reading; the
                state keeps one row per key, and the table's event time holds nothing back.
            how: "inner" drops rows that find nothing, and counts them; "left" keeps them, with nulls.
            suffix: Is appended to the names of the table's columns that this stream has too.

        Raises:
            ConfigError: `on` is not the table's key, this stream replaces rows, or an event time is missing.
        """
        where = f"lookup {name!r} on stream {self._node.stream!r} at {position()}"
        if not isinstance(table, Table) or table._graph is not self._graph:
            raise refused(
                f"{where}: {table!r} is not a table of this app",
                'give one, for example app.table("customers", hf.Log("data/customers"), key="customer"), or make one '
                'of a stream: .to_table("customers", key="customer")',
            )
        node = looked_up(self._graph, (self._node, table._node), name, on, as_of, how, suffix)
        return Stream(self._graph, node) if as_of == "latest" else TimedStream(self._graph, node)

    @checked(".search", '("alerts", queries, on="merchant", terms={"amount": ("least", "most")})')
    def search(
        self,
        name: str = NOT_GIVEN,
        queries: Table = NOT_GIVEN,
        *,
        on: str | Sequence[str | tuple[str, str]],
        terms: Mapping[str, str | Sequence[str | None]] | None = None,
        closed: str = "both",
        suffix: str = "_right",
        to: type[R] | ArrowSchema | None = None,
    ) -> Stream[Any]:
        """Return each row once per standing query that it satisfies, with the columns of the query.

        A query is a row of a table: it is in force for the rows that arrive after it, until it is deleted or replaced.
        Which rows these are depends on the order of reading. A query is satisfied if all its terms are.

        Columns: those of this stream, then those of the table except `on`.

        Args:
            name: Identity of the state, one row per query; they are also kept under `<name>-queries`. Renaming the
                operator starts it empty.
            queries: Made by `app.table` or `.to_table`, with any key.
            on: The columns by which rows and queries meet: names that both have, or pairs of a column of this stream
                and one of the table. They must be equal; a query with a null there is dropped and counted, and a row
                finds nothing. A row is compared with all queries that have its values, and with no others.
            terms: Per column of this stream, the column of the table that has to be equal; or two columns of the table,
                the lower and the upper bound, of which one may be None. A null in the table restricts nothing.
            closed: Which bounds are in the ranges: "both", "left", "right" or "none".
            suffix: Is appended to the names of the table's columns that this stream has too.
            to: A dataclass or schema with the columns to return, by name; all by default.

        Raises:
            ConfigError: `on` is empty, a column is unknown or cannot be compared, or this stream replaces rows.
        """
        where = f"search {name!r} on stream {self._node.stream!r} at {position()}"
        if not isinstance(queries, Table) or queries._graph is not self._graph:
            raise refused(
                f"{where}: {queries!r} is not a table of this app",
                'give one, for example app.table("queries", hf.Log("data/queries"), key="query"), or make one '
                'of a stream: .to_table("queries", key="query")',
            )
        node = searched(self._graph, (self._node, queries._node), name, on, terms or {}, closed, suffix)
        matches: Stream[Any] = Stream(self._graph, node)
        if to is None:
            return matches
        wanted = row_schema(to, self._use("search"))[0].names
        return matches.select(*(each for each in wanted if each in matches.schema.names)).as_(to)

    @checked(".to_table", '("customers", key="customer")')
    def to_table(self, name: str = NOT_GIVEN, *, key: str | Sequence[str]) -> Table:
        """Return the stream as a table: of the rows with one key, the one that arrived last counts.

        A column `holdfast_deleted`, as in the records of a changelog, marks rows that delete. A stream whose rows
        replace each other by this key, such as an aggregate, is a table as it is.

        Args:
            name: The table's name in messages and in the app.
            key: The columns that identify a row.

        Raises:
            ConfigError: the name is taken, a column unknown, or rows replace each other by another key.
        """
        return Table(self._graph, converted(self._graph, self._node, name, key))

    @checked(".match", '("name", hf.pattern("a").followed_by("b").within("1h"), key="user", to=Out)')
    def match(
        self,
        name: str = NOT_GIVEN,
        pattern: Pattern = NOT_GIVEN,
        *,
        key: str | Sequence[str],
        to: type[R] | ArrowSchema,
        select: Callable[[Any], Any] | None = None,
        skip: str = "past_last",
        on_error: str = "fail",
        partial_matches_max: int = PARTIALS,
    ) -> MatchedStream[R]:
        """Emit a row for every match of a pattern in the rows of a key, in the order of event time.

        A match is emitted when the watermark has passed its last row; a pattern that ends in `not_followed_by`, when
        it has passed the end of `within`. Rows that arrive behind the watermark go to `.late`, or are only counted.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            pattern: `hf.pattern(...)`, with `.within(...)`, which bounds the kept rows.
            key: The columns that rows of a match have in common. Nulls form a separate key.
            to: Rows of the result. Without `select`, a field is a key column, the event time column (the time of the
                match), or `<step>_<column>`.
            select: Takes the rows of the match, `m.a` for the step "a" (a tuple of rows for a step with `times`), and
                returns a row of `to`. Event time then leaves the operator `within` later if `to` has its column.
            skip: After a match, "past_last" forgets partial matches that began before its end, so matches never
                overlap; "to_next" those that began with the same row; "none" forgets none.
            on_error: "fail" ends the job at a row for which a function fails, or which raises the number of partial
                matches above the limit; "drop" leaves the row, or the match if it is `select` that fails, out and
                counts it; "dlq" makes it a dead letter, see `hf.App(dlq=)`.
            partial_matches_max: The limit of partial matches per key, 1 to 1,000,000. It may change between runs; a
                key that has more from an earlier run keeps them, and no row may add to them.

        Raises:
            ConfigError: the pattern has no `within`, the stream has no event time or replaces rows, or a condition or
                a field does not fit its columns.
        """
        node = matched(self._graph, self._node, name, pattern, key, to, select, skip, on_error, partial_matches_max)
        return MatchedStream(self._graph, node)

    @checked(".as_", "(Out)")
    def as_(self, to: type[R] | ArrowSchema) -> Stream[R]:
        """Check that the columns are those of a dataclass or schema; later functions receive the dataclass.

        Names and types must agree. If a nullable column must become non-null, every row is checked: a null fails the
        job.
        """
        use = self._use("as_")
        wanted, row_type = row_schema(to, use)
        check, schema = checked_as(self.schema, wanted, self.upsert_key, use, row_type)
        return self._then(check, schema, row_type, self._time_in(schema))

    def key_by(self, *columns: str) -> Keyed:
        """Group rows by columns; nulls form a separate group."""
        use = self._use("key_by")
        if not columns:
            raise refused(f"{use}: no column is given", "name the columns that make up the key")
        for name in columns:
            if not isinstance(name, str):
                raise refused(
                    f"{use}: {name!r} is not the name of a column",
                    "compute the column first, with .with_columns(key=...), then key_by('key')",
                )
            if name not in self.schema.names:
                raise unknown_column(name, self.schema.names, str(use))
            if columns.count(name) > 1:
                raise refused(f"{use}: the column {name!r} is named twice", "name it once")
        try:
            KeyType.of(self.schema.field(name) for name in columns)
        except ConfigError as error:
            raise refused(f"{use}: {error.what}", error.next_step) from error
        return Keyed(self._graph, self._node, columns)

    @checked(".sink", '("out", hf.SQLite("out.db", table="hot", key=["auction"]))')
    def sink(self, name: str = NOT_GIVEN, sink: Sink | Connector = NOT_GIVEN) -> None:
        """Write the stream to a sink. Several sinks on one stream are not atomic with each other."""
        check_name(name, "sink")
        sink = sink_of(sink)
        if (what := not_a_sink(sink)) is not None:
            raise refused(
                f"sink {name!r} at {position()}: {what}",
                'give one, for example hf.SQLite("out.db", table="hot", key=["auction"])',
            )
        sink_name, names = self._graph.claim(name, "sink"), aliases_of(self._node.row_type)
        schema = renamed(self.schema, names)
        key = None if self.upsert_key is None else tuple(names.get(each, each) for each in self.upsert_key)
        try:
            sink.check(schema, key)
        except HoldfastError as error:
            del self._graph.names[sink_name]
            raise ConfigError(
                f"sink {name!r} at {position()} does not fit its stream: {error.what}",
                not_done="the job was not planned",
                next_step=error.next_step,
            ) from error
        self._graph.sinks[sink_name] = sink
        step = SinkStep(sink_name, tuple((alias, name) for name, alias in names.items()))
        self._graph.add(step, self._node, self._node.stream, schema, key)

    @checked(".show", "(10)")
    def show(self, n: int = 10) -> None:
        """Print the first rows of the stream, computed in this process from the input that is there now.

        Nothing is written: no root, no target. All input up to the stream is read, at most 256 MiB, and event time then
        ends, so that windows close. Sources need an end: `hf.Rows`, files, logs, a generator with a count.

        Args:
            n: How many rows at most, at least 1.

        Raises:
            ConfigError: a source has no end or too much input, or `n` is no such number.
            HoldfastError: a source cannot be read, or a step fails on a row.
        """
        from holdfast.runtime.testing.shown import text_of

        if type(n) is not int or n < 1:
            raise refused(f"show on stream {self._node.stream!r} at {position()}: n is {n!r}", "give 1 or more")
        print(text_of(self._graph, self._node, n))

    def _use(self, method: str) -> Use:
        return Use(method, position(), self._node.stream)

    def _then(
        self, kind: Step, schema: pa.Schema, row_type: type | None = None, event_time: str | None = None
    ) -> Stream:
        node = self._graph.add(
            kind, self._node, self._node.stream, schema, self.upsert_key, row_type=row_type, event_time=event_time
        )
        return Stream(self._graph, node)

    def _call(self, how: How, function: Any, gives: tuple[pa.Schema, type | None], on_error: str) -> Stream:
        use = self._use(how)
        if self.upsert_key is not None:
            raise refused(
                f"{use}: the stream replaces rows by {', '.join(self.upsert_key)}, and Python functions take only rows "
                "that are never replaced",
                "use expressions (select, with_columns, filter), or call the function before the aggregate",
            )
        steps = (node.kind for node in self._graph.nodes if isinstance(node.kind, Step))
        taken = {step.name for step in steps if step.name is not None}
        has_dlq = self._graph.dlq is not None
        call = call_of(how, function, self.schema, self._node.row_type, on_error, use, taken, has_dlq, gives[1])
        return self._then(call, *gives, self._time_in(gives[0]))

    def _time_in(self, schema: pa.Schema) -> str | None:
        """Return the event time column of a function's result: the stream's, if the result has it unchanged."""
        time = self._node.event_time
        kept = time is not None and time in schema.names and schema.field(time) == self.schema.field(time)
        return time if kept else None

    def _project(self, columns: tuple[ProjectedColumn, ...], use: Use) -> Stream:
        passed = {column.name: column.passes for column in columns}
        for name in self.upsert_key or ():
            if passed.get(name) != name:
                raise refused(
                    f"{use}: the stream replaces rows by its key {', '.join(self.upsert_key or ())}, "
                    f"and {name!r} is left out or changed",
                    f"keep {name!r} as it is, and give a computed column another name",
                )
        # Computed columns of an upsert stream are null in deletes.
        fields = [c.field if c.passes or self.upsert_key is None else c.field.with_nullable(True) for c in columns]
        time = self._node.event_time
        kept = [column.name for column in columns if time is not None and column.passes == time]
        event_time = time if time in kept else next(iter(kept), None)
        return self._then(Project(columns, use), pa.schema(fields), event_time=event_time)


class Keyed:
    """A stream grouped by key; state belongs to keys."""

    def __init__(self, graph: Graph, node: Node, keys: tuple[str, ...]) -> None:
        self._graph, self._node, self._keys = graph, node, keys

    if not TYPE_CHECKING:  # otherwise a type checker accepts any attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("Keyed", name, KEYED_STREAM, dir(type(self)))

    def __repr__(self) -> str:
        return f"<Keyed: stream {self._node.stream!r} by {', '.join(self._keys)}>"

    def agg(
        self,
        name: str = NOT_GIVEN,
        *unnamed: Never,
        emit: str = "changes",
        keep: str | Sequence[str] = (),
        **aggregates: Aggregation,
    ) -> Stream[Row]:
        """Keep aggregates per key; columns: the keys, the columns of `keep`, the aggregates.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            emit: "changes": the last values of each key that changed, once per epoch (an upsert stream). "each": a row
                per record, with the aggregates after it (an append stream), in the order of the records of a key.
            keep: Columns of the record that are in its row, with emit="each". If the event time is among them, it is
                that of the result.
            aggregates: Result columns: `bids=hf.count(), top=hf.max("price")`.

        Raises:
            ConfigError: a name is taken, a column unknown, or a type that the aggregate does not take.
        """
        check_name(name, "operator")
        where = f"agg {name!r} on stream {self._node.stream!r} at {position()}"
        refuse_unnamed(unnamed, where)
        if self._node.upsert_key is not None:
            raise refused(
                f"{where}: the stream replaces rows by {', '.join(self._node.upsert_key)}, "
                "and aggregates over replaced rows are not supported",
                "aggregate the stream that comes before this one, with the other key",
            )
        kept_columns = checked_keep(emit, keep, self._node.schema, where)
        if not aggregates:
            raise refused(f"{where}: no aggregate is given", "give at least one, for example rows=hf.count()")
        schema = self._node.schema
        check_former(aggregates, where)
        bounds = tuple(
            bound(column, given, schema, where, self._node.event_time) for column, given in aggregates.items()
        )
        for aggregation in bounds:
            if aggregation.result.name in self._keys:
                raise refused(f"{where}: {aggregation.result.name!r} is also a key column", "rename the aggregate")
            if aggregation.result.name in kept_columns:
                raise refused(f"{where}: {aggregation.result.name!r} is also in keep=", "rename the aggregate")
            if emit == "each" and aggregation.kind.calls:
                refuse_own(aggregation, where, 'emit="each"')
        operator = self._graph.claim(name, "operator")
        kept_columns = tuple(column for column in dict.fromkeys(kept_columns) if column not in self._keys)
        names = self._keys if emit == "changes" else (*self._keys, *kept_columns)
        rows = pa.schema([*(schema.field(name) for name in names), *(aggregation.result for aggregation in bounds)])
        if emit == "changes":
            aggregate = Aggregate(operator, self._keys, bounds)
            return Stream(self._graph, self._graph.add(aggregate, self._node, operator, rows, self._keys))
        time = self._node.event_time if self._node.event_time in names else None
        running = RunningAggregate(operator, self._keys, bounds, kept_columns)
        return Stream(self._graph, self._graph.add(running, self._node, operator, rows, event_time=time))

    @checked(".dedup", '("unique", within="10m")')
    def dedup(self, name: str = NOT_GIVEN, *, within: Duration = NOT_GIVEN) -> TimedStream:
        """Pass the first row of every key, and drop its repetitions within a duration of event time.

        A row is dropped if a row of its key has passed whose event time differs by less than `within`, in either
        direction. The order of arrival does not matter. A row exactly `within` later passes and becomes the new first.
        A row is late if the watermark is at least `within` after its event time, because the rows that it may repeat
        have left the state; late rows go to `.late`, or are only counted if it is unused. A passed row stays in the
        state for two to three times `within`.

        Args:
            name: Identity of the state. Renaming the operator starts it empty; with another `within` it is refused.
            within: A duration such as "10m" or timedelta(minutes=10).

        Raises:
            ConfigError: the stream has no event time or replaces rows, or `within` is not a duration.
        """
        check_name(name, "operator")
        node = self._node
        where = f"dedup {name!r} on stream {node.stream!r} at {position()}"
        if node.upsert_key is not None:
            raise refused(
                f"{where}: the stream replaces rows by {', '.join(node.upsert_key)}, so it has one row per key already",
                "use it on the stream before the aggregate",
            )
        if node.event_time is None:
            raise refused(
                f"{where}: the stream has no event time",
                'name it at the source, app.source(..., event_time="at"), and keep that column as it is up to here',
            )
        within_us = 1_000 * duration_ms(within, f"{where}: within")
        if not 0 < 2 * within_us <= LENGTH_MAX_US:
            raise refused(f"{where}: within={within!r} is not above 0 and below 500 years", 'give for example "10m"')
        if WINDOW_END in self._keys:
            raise refused(f"{where}: {WINDOW_END!r} is a key column, and the state has one of that name", "rename it")
        step = Dedup(self._graph.claim(name, "operator"), self._keys, node.event_time, within_us)
        added = self._graph.add(
            step, node, step.operator, node.schema, row_type=node.row_type, event_time=node.event_time
        )
        return TimedStream(self._graph, added)

    @checked(".process", '("fraud", Fraud(), to=Alert)')
    def process(
        self,
        name: str = NOT_GIVEN,
        process: KeyedProcess[Any, R] = NOT_GIVEN,
        *,
        to: type[R] | ArrowSchema = NOT_GIVEN,
        sides: Mapping[str, type | ArrowSchema] | None = None,
        on_error: str = "fail",
    ) -> ProcessedStream[R]:
        """Call a keyed function with every record, and when its timers fire; it emits rows of `to`.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            process: An instance of a class that derives from `hf.KeyedProcess`.
            to: Rows that `ctx.emit` takes: a dataclass or a pyarrow.Schema.
            sides: Rows that `ctx.side(name, row)` takes, by name; `.side(name)` of the result reads them.
            on_error: "fail" ends the job at a record that cannot be handled; "drop" leaves the record out and counts
                it; "dlq" makes it a dead letter, see `hf.App(dlq=)`. Nothing that a failed call did is kept.

        Raises:
            ConfigError: the stream replaces rows, the function declares state that cannot be kept, or a name is taken.
        """
        check_name(name, "operator")
        kind, row_type = process_of(self._graph, self._node, self._keys, name, process, to, sides, on_error)
        return ProcessedStream(self._graph, processed(self._graph, self._node, kind, row_type))

    @checked(".process_batches", '("totals", Totals(), to=Out)')
    def process_batches(
        self,
        name: str = NOT_GIVEN,
        process: KeyedProcess[Any, R] = NOT_GIVEN,
        *,
        to: type[R] | ArrowSchema = NOT_GIVEN,
        on_error: str = "fail",
    ) -> Stream[R]:
        """Call a keyed function with whole batches: `on_batch(self, ctx, batch)`, with state as NumPy arrays.

        `ctx.numbers[i]` is the number of the key of row i. A `hf.Value(int | float | bool)` named `total` is
        `self.total.values[number]`, with `self.total.present[number]` False for a key without a value; both arrays are
        changed in place. Batch boundaries mean nothing: a function handles the rows of a key in order, as if they came
        one by one. With "drop" and "dlq" it is called again with halves of a failed batch.

        Raises:
            ConfigError: as for `process`; or it declares other state than numbers without ttl.
        """
        check_name(name, "operator")
        kind, row_type = batches_of(self._graph, self._node, self._keys, name, process, to, on_error)
        return Stream(self._graph, processed(self._graph, self._node, kind, row_type))

    @checked(".window", '(hf.tumbling("10s"), allowed_lateness="1m")')
    def window(self, window: object = None, *, allowed_lateness: Duration = "0s") -> Windowed:
        """Also group rows by windows of event time: `.window(hf.tumbling("10s")).agg(...)`.

        `hf.all_time(hf.count_of(100))` are windows of 100 records of a key; they need no event time.

        Args:
            allowed_lateness: How long after its end a window still accepts records.

        Raises:
            ConfigError: the stream has no event time or replaces rows, or the window is of an unknown kind.
        """
        return Windowed(self._graph, self._node, grouping_of(self._node, self._keys, window, allowed_lateness))


@dataclass(frozen=True, eq=False, repr=False)
class Windowed:
    """A stream grouped by key and window."""

    graph: Graph
    node: Node
    grouping: Grouping

    if not TYPE_CHECKING:  # else a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("Windowed", name, {}, dir(type(self)))

    def __repr__(self) -> str:
        keys, window = ", ".join(self.grouping.keys), self.grouping.window.shown()
        return f"<Windowed: stream {self.node.stream!r} by {keys} over {window}>"

    def agg(
        self, name: str = NOT_GIVEN, *unnamed: Never, emit: str | Every = "close", **aggregates: Aggregation
    ) -> TimedStream:
        """Keep aggregates per window and key; columns: the keys, window_start, window_end, the aggregates.

        Windows of `hf.all_time` have the event time of their last record instead of bounds, if the stream has one.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            emit: "close": when the window ends, corrected by later records within the lateness (an upsert stream
                unless the lateness is 0). "final": once, after the lateness. `hf.every("10s")`: as "close", and early,
                by processing time, while the window is open and changes (an upsert stream).
            aggregates: Result columns: `bids=hf.count(), top=hf.max("price")`.

        Raises:
            ConfigError: a name is taken, a column is unknown, or the aggregate does not take its type.
        """
        node = aggregated(self.graph, self.node, self.grouping, name, unnamed, emit, aggregates)
        if isinstance(self.grouping.window, AllTime):
            marked = EVERYTHING.name in node.schema.names
            return PunctualStream(self.graph, _without_mark(self.graph, node, None) if marked else node)
        return (
            UnkeyedStream(self.graph, node) if EVERYTHING.name in node.schema.names else TimedStream(self.graph, node)
        )


class ProcessedStream(Stream[T]):
    """The rows that a keyed function emits; those on its sides are separate streams."""

    def side(self, name: str) -> Stream:
        """Return the rows that the function emits by `ctx.side(name, row)`; if unused, they are discarded."""
        return Stream(self._graph, side_of(self._graph, self._node, name))


class TimedStream(Stream[Row]):
    """The results of an operator over event time; its late records are a separate stream."""

    @property
    def late(self) -> Stream:
        """The records that arrived too late for the operator; if unused, they are only counted."""
        return Stream(self._graph, late(self._graph, self._node))


class PunctualStream(TimedStream):
    """The results of windows for which no record is late."""

    @property
    def late(self) -> Stream:
        """Not for these windows: they take records of any event time."""
        raise refused(f"late on stream {self._node.stream!r} at {position()}: no record is late for it", "leave it out")


class MatchedStream(Stream[T]):
    """The matches of a pattern; its late records are a separate stream."""

    @property
    def late(self) -> Stream:
        """The records that arrived behind the watermark; if unused, they are only counted."""
        return Stream(self._graph, late(self._graph, self._node))


class UnkeyedStream(TimedStream):
    """The results of windows of all rows, without the key that they have in common.

    Args:
        result: The results with it.
    """

    def __init__(self, graph: Graph, result: Node) -> None:
        key = (
            None if result.upsert_key is None else tuple(name for name in result.upsert_key if name != EVERYTHING.name)
        )
        super().__init__(graph, _without_mark(graph, result, key))
        self._result = result

    @property
    def late(self) -> Stream:
        """The records that arrived too late for the operator; if unused, they are only counted."""
        return Stream(self._graph, _without_mark(self._graph, late(self._graph, self._result), None))


def _without_mark(graph: Graph, node: Node, upsert_key: tuple[str, ...] | None) -> Node:
    """Remove the column by which all rows have one key."""
    fields = [field for field in node.schema if field.name != EVERYTHING.name]
    columns = tuple(ProjectedColumn(field.name, pl.col(field.name), field, field.name) for field in fields)
    step = Project(columns, Use("window", position(), node.stream))
    return graph.add(step, node, node.stream, pa.schema(fields), upsert_key, event_time=node.event_time)


class Table(Stream[Row]):
    """Rows by key: each replaces the row with its key, or deletes it. Made by `app.table` and `.to_table`.

    A filter deletes the rows that no longer pass. A table keeps state only where it is looked up.
    """

    def filter(self, predicate: pl.Expr | Callable[[Row], Any], *, on_error: str = "fail") -> Table:
        """Keep the rows for which a row-wise Polars expression is true; the others are deleted."""
        return Table(self._graph, super().filter(predicate, on_error=on_error)._node)

    def select(self, *columns: Any, **named: Any) -> Table:
        """Return exactly these columns, among them the key as it is."""
        return Table(self._graph, super().select(*columns, **named)._node)

    def with_columns(self, *columns: Any, **named: Any) -> Table:
        """Add columns, or replace those of the same name; the key stays as it is."""
        return Table(self._graph, super().with_columns(*columns, **named)._node)

    @checked(".join", '("name", other, on="customer")')
    def join(  # type: ignore[override]
        self,
        name: str = NOT_GIVEN,
        other: Table = NOT_GIVEN,
        *,
        on: str | Sequence[str | tuple[str, str]],
        how: str = "inner",
        suffix: str = "_right",
    ) -> Table:
        """Join each row of this table with the row of another that it refers to, and follow the changes of both.

        Columns: those of this table, then those of the other except its key. The result is a table by the key of this
        one. A null in a column of `on`, or in the key, joins nothing.

        Args:
            name: Identity of the state. Renaming the operator starts it empty. If `on` is not the key of this table,
                `<name>-rows` and `<name>-matches` name two more operators with state.
            other: The right table.
            on: The key of the other table, and the columns of this one that refer to it: names that both have, or pairs
                of a column of this table and one of the other. They may be the key of this table too.
            how: "inner"; or "left", which keeps rows that find none. By the key of both also "right" and "full", which
                keep rows that only the other table, or one of them has.
            suffix: Is appended to the names of the other's columns that this table has too.

        Raises:
            ConfigError: `on` is not the key of the other table, or a column cannot be kept.
        """
        where = f"join {name!r} on table {self._node.stream!r} at {position()}"
        if not isinstance(other, Table) or other._graph is not self._graph:
            raise refused(
                f"{where}: {other!r} is not a table of this app",
                "give a table of the same app; rows of a stream find those of a table with stream.lookup(...)",
            )
        return Table(self._graph, joined_tables(self._graph, (self._node, other._node), name, on, how, suffix))

    def group_by(self, *columns: str) -> GroupedTable:
        """Group the rows that the table has now: `.group_by("city").agg("cities", customers=hf.count())`."""
        return GroupedTable(self._graph, self._node, group_keys(self._node, columns))

    def to_changes(self) -> Stream[Row]:
        """Return the changes as rows that are never replaced.

        The first column, `holdfast_deleted`, is false for a row that was put, and true for a deleted row, which has
        only its key and event time. So these are the records of a changelog: a log of them is a table again.
        """
        return Stream(self._graph, changes_of(self._graph, self._node))


@dataclass(frozen=True, eq=False, repr=False)
class GroupedTable:
    """A table grouped by columns, which may change."""

    graph: Graph
    node: Node
    keys: tuple[str, ...]

    if not TYPE_CHECKING:  # else a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("GroupedTable", name, {}, dir(type(self)))

    def __repr__(self) -> str:
        return f"<GroupedTable: table {self.node.stream!r} by {', '.join(self.keys)}>"

    def agg(self, name: str = NOT_GIVEN, *unnamed: Never, **aggregates: Aggregation) -> Table:
        """Keep aggregates over the rows that the table has now, per group; the result is a table by the group.

        When a row changes, its old values are taken back from their group and the new ones added to theirs. A group
        whose rows are all gone is deleted. The changes of an epoch are emitted once per group.

        Args:
            name: Identity of the state; the rows of the table are kept under `<name>-rows`.
            aggregates: Result columns, of hf.count, hf.sum, hf.mean, hf.var, hf.min and hf.max: others would need all
                rows of a group. For `min` and `max` the state keeps the different values of a group.

        Raises:
            ConfigError: a name is taken, a column unknown, or an aggregate cannot take rows back.
        """
        return Table(self.graph, grouped(self.graph, self.node, self.keys, name, unnamed, aggregates))


class JoinedStream(Stream[Row]):
    """The pairs of a join; its late rows are a separate stream."""

    @property
    def late(self) -> Stream:
        """The rows of both streams that arrived too late for the join, with nulls for the other's columns."""
        return Stream(self._graph, late_of(self._graph, self._node))
