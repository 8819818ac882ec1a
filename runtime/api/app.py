"""The app: a named dataflow, as a job's code builds it.

Importing a file that builds an app runs nothing. `app.main()` at its end makes `python job.py`, `spark-submit job.py`
and `holdfast run job.py` the same; `app.plan()` returns the plan without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import polars as pl
import pyarrow as pa

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model import KEY_GROUPS_MAX
from holdfast.runtime.api.functions import checked_policy
from holdfast.runtime.api.stream import Stream, Table
from holdfast.runtime.api.tables import table_of
from holdfast.runtime.api.unsupported import APP, no_attribute
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.config.settings import MODES, size_bytes
from holdfast.runtime.plan.compiler import compile_plan
from holdfast.runtime.plan.graph import NOT_GIVEN, FromSource, Graph, Node, check_name
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.source import Source, not_a_source
from holdfast.runtime.plan.targets import refuse_own_output
from holdfast.runtime.plan.topic import with_changelog
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, DLQ
from holdfast.runtime.rows.expressions import ProjectedColumn, check_column_name, unknown_column
from holdfast.runtime.rows.row_types import RowsOf, T
from holdfast.runtime.rows.schema import fits, in_stream, renamed
from holdfast.runtime.sources.connector import (
    ChangelogConnector,
    Connector,
    SourceConnector,
    changelog_of,
    sink_of,
    source_of,
)
from holdfast.runtime.time.event_times import computed_time, watermark_of
from holdfast.runtime.time.windows import TIME
from holdfast.sinks.contract.sink import Sink, not_a_sink


@dataclass(frozen=True)
class _Times:
    """Event-time arguments of `app.source`."""

    event_time: str | pl.Expr | None
    out_of_orderness: Duration | None
    watermark: str | pl.Expr | None
    idle_after: Duration


class App:
    """A named dataflow: sources, operators and sinks, described by a job's file.

    Args:
        name: Identity of the job under its root.
        root: Where the job keeps its history, any fsspec URL; default `./.holdfast`.
        checkpoint_every: Time between two checkpoints, such as "1s".
        parallelism: Workers; default 2.
        standbys: Further workers that follow the state of the others, to take over a subtask in place; in continuous
            mode only. None: the setting, by default 0.
        key_groups: Units in which state moves between workers; fixed once the job has run.
        dlq: A sink for dead letters, such as `hf.Log("data/dead")`: records that cannot be read as rows, and rows on
            which a function with on_error="dlq" fails. None: such a record fails the job.
        mode: "continuous": workers stay in Spark from start to end; or "microbatch": every epoch is one Spark job.
        changelog: Where the changelog of state is kept: "root", in the job's folder; or a topic that can be read as a
            history and as a table, such as `hf.Log("data/changelog")` or
            `hf.Kafka("broker.example:9092", "state")`. It is fixed once the job has run.
        state_memory: Memory of each worker for state, such as "2GiB"; a larger state is swapped to the worker's local
            folder. None: half of the worker's share of the machine or container.
        record_order: Whether every epoch records the order in which workers took their input, so that `holdfast why`,
            `check` and `bisect` replay it exactly. None: the setting.

    Raises:
        ConfigError: a value has the wrong form.
    """

    @checked("hf.App", '("hot-auctions", checkpoint_every="1s")')
    def __init__(
        self,
        name: str = NOT_GIVEN,
        *,
        root: str | None = None,
        checkpoint_every: Duration = "1s",
        parallelism: int | None = None,
        standbys: int | None = None,
        key_groups: int = 128,
        dlq: Sink | Connector | None = None,
        mode: str = "continuous",
        changelog: str | ChangelogConnector = "root",
        state_memory: str | int | None = None,
        record_order: bool | None = None,
    ) -> None:
        self.name = check_name(name, "app")
        duration_ms(checkpoint_every, f"app {name!r} at {position()}: checkpoint_every")
        given = ("parallelism", parallelism, 1, None), ("standbys", standbys, 0, None)
        for parameter, value, least, most in (*given, ("key_groups", key_groups, 1, KEY_GROUPS_MAX)):
            if value is None:
                continue
            if not isinstance(value, int) or value < least or (most is not None and value > most):
                raise ConfigError(
                    f"app {name!r}: {parameter} is {value!r}",
                    not_done="the app was not created",
                    next_step=f"give a whole number of at least {least}" + (f" and at most {most}" if most else ""),
                )
        self.root, self.checkpoint_every, self.parallelism = root, checkpoint_every, parallelism
        self.standbys, self.key_groups, self.state_memory = standbys, key_groups, state_memory
        if state_memory is not None:
            size_bytes(state_memory, f"app {name!r} at {position()}: state_memory")
        self.dlq = None if dlq is None else sink_of(dlq)
        if mode not in MODES:
            raise ConfigError(
                f"app {name!r}: mode is {mode!r}",
                not_done="the job was not planned",
                next_step=f"use one of {', '.join(MODES)}",
            )
        self.mode = mode
        if record_order not in (None, True, False):
            raise ConfigError(
                f"app {name!r}: record_order is {record_order!r}",
                not_done="the app was not created",
                next_step="give True or False, or leave it out for the setting",
            )
        self.record_order = record_order
        self.changelog = changelog_of(changelog)
        self._graph = Graph(name, dlq=self.dlq)

    if not TYPE_CHECKING:  # otherwise a type checker accepts any attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("App", name, APP, dir(type(self)))

    def __repr__(self) -> str:
        built = ", ".join(f"{kind} {name!r}" for name, kind in self._graph.names.items() if name != DLQ)
        return f"<hf.App {self.name!r}: {built or 'nothing is built yet'}>"

    def _repr_html_(self) -> str:
        """Return a drawing of the dataflow built so far, for notebooks."""
        return self._graph.drawn()

    @overload
    def source(
        self,
        name: str,
        source: RowsOf[T],
        *,
        event_time: str | None = None,
        out_of_orderness: Duration | None = None,
        watermark: str | pl.Expr | None = None,
        idle_after: Duration = "30s",
        on_error: str | None = None,
        partitioned_by: Sequence[str] | None = None,
    ) -> Stream[T]: ...
    @overload
    def source(
        self,
        name: str = NOT_GIVEN,
        source: Source | SourceConnector = NOT_GIVEN,
        *,
        event_time: str | pl.Expr | None = None,
        out_of_orderness: Duration | None = None,
        watermark: str | pl.Expr | None = None,
        idle_after: Duration = "30s",
        on_error: str | None = None,
        partitioned_by: Sequence[str] | None = None,
    ) -> Stream[Any]: ...
    @checked("app.source", '("bids", hf.Log("data/bids", Bid), event_time="at")')
    def source(
        self,
        name: str = NOT_GIVEN,
        source: Any = NOT_GIVEN,
        *,
        event_time: str | pl.Expr | None = None,
        out_of_orderness: Duration | None = None,
        watermark: str | pl.Expr | None = None,
        idle_after: Duration = "30s",
        on_error: str | None = None,
        partitioned_by: Sequence[str] | None = None,
    ) -> Stream[Any]:
        """Start a stream from a source.

        Args:
            name: Identity of the source: offsets are kept under it.
            source: For example `hf.Log("data/bids", Bid)`.
            event_time: Column with the time at which a record happened: timestamp[us, UTC], without nulls. Or a
                row-wise expression that computes it, such as `hf.device_clock(...)` or `pl.coalesce("a",
                "b").alias("at")`: it becomes the last column of the stream, whose rows are then `hf.Row`. A record for
                which it is null is undecodable.
            out_of_orderness: How far a record's event time may lie behind that of records before it. Default: "0s".
            watermark: Instead of out_of_orderness, a column or row-wise expression of type timestamp[us, UTC]: a time
                before which no later record of the same partition happened. Null: the record gives no watermark.
            idle_after: Silence after which a partition no longer holds back time.
            on_error: Policy for a record that cannot be read as a row, for example because of a null in a column
                without nulls: "fail" ends the job, "drop" skips the record and counts it, "dlq" makes it a dead letter.
                Default: "dlq" if the app has a DLQ, else "fail".
            partitioned_by: Columns by which writers to the source choose the partition: records that agree in them are
                in one partition. Default: the `key` of `hf.Log(..., key=)`. Sinks with delivery="idempotent" and these
                columns in their key are then written immediately.

        Raises:
            ConfigError: the name is taken or malformed, or the source's columns cannot be used.
        """
        check_name(name, "source")
        where = f"source {name!r} at {position()}"
        times = _Times(event_time, out_of_orderness, watermark, idle_after)
        return Stream(self._graph, self._read(name, source, times, on_error, partitioned_by, where))

    @checked("app.table", '("customers", hf.Log("data/customers", Customer), key="customer")')
    def table(
        self,
        name: str = NOT_GIVEN,
        source: Source | SourceConnector = NOT_GIVEN,
        *,
        key: str | Sequence[str],
        event_time: str | None = None,
        deleted: str | None = None,
        out_of_orderness: Duration = "0s",
        idle_after: Duration = "30s",
        on_error: str | None = None,
    ) -> Table:
        """Start a table from a source: each record replaces the row with its key, or deletes it.

        If several records have the same key, the last one to arrive counts. So all records of a key belong in one
        partition, as in `hf.Log(..., key=)`: between partitions there is no order.

        Args:
            name: Identity of the source: offsets are kept under it.
            source: For example `hf.Log("data/customers", Customer)`, a log that a sink with `key=` wrote, a generator.
            key: The columns that identify a row.
            event_time: Column with the start of a row's validity, for `.lookup(..., as_of="event_time")`. Rows that
                delete have it too, which those of a changelog that a sink wrote do not.
            deleted: A bool column that marks records which delete; default: `holdfast_deleted`, as in a changelog, if
                the source has it. The table is without it.
            out_of_orderness: As for `app.source`, like the next two.
            idle_after: Silence after which a partition no longer holds back time.
            on_error: Policy for a record that cannot be read as a row.

        Raises:
            ConfigError: the name is taken or malformed, or the source's columns cannot be used.
        """
        check_name(name, "source")
        where = f"table {name!r} at {position()}"
        times = _Times(event_time, out_of_orderness, None, idle_after)
        node = self._read(name, source, times, on_error, None, where)
        return Table(self._graph, table_of(self._graph, node, name, key, deleted, where))

    def _read(
        self,
        name: str,
        source: Any,
        times: _Times,
        on_error: str | None,
        partitioned_by: Sequence[str] | None,
        where: str,
    ) -> Node:
        """Add a source to the graph."""
        source = checked_source(source_of(source), where)
        names = in_stream(source.row_type)
        source_schema = renamed(source.schema, names)
        check_columns(source_schema, where)
        schema = source_schema
        time, time_column = event_time_of(times.event_time, schema, where)
        schema = schema if time_column is None else schema.append(time_column.field)
        check_time_arguments(time, times.out_of_orderness, times.watermark, where)
        has_dlq = self.dlq is not None
        policy = checked_policy(on_error or ("dlq" if has_dlq else "fail"), where, has_dlq)
        kind = FromSource(
            self._graph.claim(name, "source"),
            source,
            time,
            _disorder_ms(times.out_of_orderness, where),
            duration_ms(times.idle_after, f"{where}: idle_after"),
            policy,
            _partitioned_by(source, partitioned_by, source_schema, where),
            time_column,
            None if times.watermark is None else watermark_of(times.watermark, schema, where),
        )
        row_type = source.row_type if fits(source.row_type, schema) else None
        return self._graph.add(kind, None, name, schema, row_type=row_type, event_time=time)

    def continue_from(self, graph: Graph) -> None:
        """Take over the dataflow that another app's code has built; for tools that run a part of it."""
        self._graph = graph

    def plan(self) -> Plan:
        """Compile the dataflow that the code has built. Reads and writes nothing.

        Raises:
            ConfigError: there is no sink, a stream leads nowhere, a source reads what a sink writes, or a feature is
                not supported.
        """
        if self.dlq is not None:
            check_dlq(self.dlq, self.name)
        plan = with_changelog(compile_plan(self._graph, self.key_groups), self.changelog)
        refuse_own_output(plan)
        return plan

    @checked("app.run", "(once=True)")
    def run(
        self,
        *,
        once: bool = False,
        root: str | None = None,
        parallelism: int | None = None,
        master: str | None = None,
        local: bool | None = None,
        progress: Literal["auto", "plain", "json", "none"] = "auto",
    ) -> None:
        """Run the job in this program, a notebook or a script, and return when it ends.

        The same run as that of `holdfast run`: it resumes from the last checkpoint, and its commits are kept.
        Interrupting it takes a last checkpoint.

        Args:
            once: Read to the present ends of the sources, deliver, return. Otherwise the job runs until its sources
                end, it is stopped or the program is interrupted.
            root: As `--root` of `holdfast run`, like the next two: None leaves it to the environment and the app.
            parallelism: Workers.
            master: Spark master URL; the default runs Spark on this machine.
            local: Run driver and workers as processes of this machine, without Spark and Java. None leaves it to
                HOLDFAST_LOCAL and is else False.
            progress: "auto" shows it on stderr, "none" nothing; see `holdfast run --help`.

        Raises:
            HoldfastError: the job cannot be started, was fenced, or failed.
        """
        from holdfast.runtime.cli.start.run import run_here

        place = None if local is None else str(local).lower()
        run_here(self, once=once, root=root, parallelism=parallelism, master=master, local=place, progress=progress)

    def main(self) -> None:
        """Run the job with the command line and environment of this process; ends the process."""
        from holdfast.runtime.cli.start.run import main_of

        main_of(self)


def _partitioned_by(source: Source, given: Sequence[str] | None, schema: pa.Schema, where: str) -> tuple[str, ...]:
    """Return the columns that partition a source, as given in the app or else by the source; () if unknown."""
    known = source.traits.partitioned_by if given is None else given
    columns = (known,) if isinstance(known, str) else tuple(known)
    if given is None:
        columns = tuple(in_stream(source.row_type).get(name, name) for name in columns)
    for name in columns:
        if name not in schema.names:
            raise unknown_column(name, schema.names, where)
    return columns


def event_time_of(
    given: str | pl.Expr | None, schema: pa.Schema, where: str
) -> tuple[str | None, ProjectedColumn | None]:
    """Return the name of the event time column, and the column if it is computed.

    Raises:
        ConfigError: there is no such column, or it is not a point in time.
    """
    if given is None:
        return None, None
    if isinstance(given, pl.Expr):
        if not given.meta.is_column():
            computed = computed_time(given, schema, where)
            return computed.name, computed
        given = given.meta.output_name()
    if given not in schema.names:
        raise unknown_column(given, schema.names, where)
    check_event_time(schema.field(given), where)
    return given, None


def check_time_arguments(
    time: str | None, out_of_orderness: Duration | None, watermark: str | pl.Expr | None, where: str
) -> None:
    """Refuse a watermark or an out-of-orderness that another argument contradicts.

    Raises:
        ConfigError: there is no event time, or both are given.
    """
    what, next_step = None, 'also give event_time="at"'
    if time is None and watermark is not None:
        what = "a watermark without an event time moves nothing"
    elif time is None and _disorder_ms(out_of_orderness, where):
        what = f"out_of_orderness={out_of_orderness!r} without an event time does nothing"
    elif watermark is not None and out_of_orderness is not None:
        what = "watermark= and out_of_orderness= are two ways to say how far event time has come"
        next_step = 'give one; to combine them, subtract: watermark=pl.col("mark") - pl.duration(seconds=5)'
    if what is not None:
        raise ConfigError(f"{where}: {what}", not_done="the job was not planned", next_step=next_step)


def _disorder_ms(out_of_orderness: Duration | None, where: str) -> int:
    return 0 if out_of_orderness is None else duration_ms(out_of_orderness, f"{where}: out_of_orderness")


def checked_source(source: Source, where: str) -> Source:
    """Return the source if a job can read it.

    Raises:
        ConfigError: it is not a source, or gives other records each time.
    """
    what, next_step = not_a_source(source), 'give one, for example hf.Log("data/bids", Bid)'
    if what is None and not source.traits.replayable:
        what = f"{source.where} cannot be read again from a position, which recovery needs"
        next_step = "append what it gives to a log, with a program of your own, and read the log with hf.Log"
    if what is not None:
        raise ConfigError(f"{where}: {what}", not_done="the job was not planned", next_step=next_step)
    return source


def check_dlq(sink: Sink, app: str) -> None:
    """Refuse a sink that cannot keep every dead letter.

    Raises:
        ConfigError: it is not a sink, replaces rows by a key, or does not take the columns of dead letters.
    """
    what, next_step = not_a_sink(sink), 'give a log, for example dlq=hf.Log("data/dead")'
    if what is None and sink.traits.keyed:
        what = f"{sink!r} has a key: dead letters would replace each other"
        next_step = f"leave the key out, or {next_step}"
    elif what is None:
        try:
            sink.check(DEAD_LETTERS, None)
        except HoldfastError as error:
            what, next_step = error.what, error.next_step
    if what is not None:
        raise ConfigError(f"the dlq of app {app!r}: {what}", not_done="the job was not planned", next_step=next_step)


def check_event_time(column: pa.Field, where: str) -> None:
    """Refuse an event time that is not a point in time.

    Raises:
        ConfigError: its type is not timestamp[us, UTC], or it may be null.
    """
    if column.type == TIME and not column.nullable:
        return
    naive = pa.types.is_timestamp(column.type) and column.type.tz is None
    fault = "has no time zone" if naive else "may be null" if column.type == TIME else f"is {column.type}"
    raise ConfigError(
        f"{where}: the event time {column.name!r} {fault}; it must be timestamp[us, UTC] without nulls",
        not_done="the job was not planned",
        next_step="fill the log with times in UTC, in a column that is never null; "
        "in a dataclass: datetime, in a pyarrow schema: pa.timestamp('us', 'UTC'), nullable=False",
    )


def check_columns(schema: pa.Schema, where: str) -> None:
    """Refuse a source schema that no stream can have.

    Raises:
        ConfigError: no column, a name twice, or a name that begins with an underscore.
    """
    if not schema.names or len(set(schema.names)) != len(schema.names):
        raise ConfigError(
            f"{where}: its columns are {', '.join(schema.names) or 'none at all'}",
            not_done="the job was not planned",
            next_step="give the source at least one column, and each column its own name",
        )
    for name in schema.names:
        check_column_name(name, where)
