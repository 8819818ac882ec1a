"""The app: a named dataflow, as a job's code builds it.

Importing a file that builds an app runs nothing. `app.main()` at its end makes `python job.py`, `spark-submit job.py`
and `holdfast run job.py` the same; `app.plan()` gives the plan without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model import KEY_GROUPS_MAX
from holdfast.runtime.dataflow import Stream
from holdfast.runtime.dead_letters import DEAD_LETTERS
from holdfast.runtime.expressions import check_column_name, unknown_column
from holdfast.runtime.functions import checked_policy
from holdfast.runtime.graph import NOT_GIVEN, FromSource, Graph, check_name
from holdfast.runtime.plan import compile_plan
from holdfast.runtime.settings import duration_ms
from holdfast.runtime.sources.log import Log
from holdfast.runtime.sources.source import Source
from holdfast.runtime.steps import Plan
from holdfast.runtime.unsupported import APP, no_attribute
from holdfast.runtime.windows import TIME
from holdfast.sinks.contract import Sink


class App:
    """A job in the making.

    Args:
        name: Identity of the job under its root.
        root: Where the job keeps its history, any fsspec URL; default `./.holdfast`.
        checkpoint_every: Time between two checkpoints, such as "1s".
        parallelism: Workers; default 2.
        standbys: Warm spare workers. Only 0 so far.
        key_groups: Units in which state moves between workers; fixed once the job has run.
        mode, changelog, state_memory: Only their defaults so far.
        dlq: A sink for dead letters, such as `hf.Log("data/dead")`: records that no row can be made of, and rows that
            a function with on_error="dlq" fails on. None: such a record fails the job.

    Raises:
        ConfigError: a value has the wrong form.
    """

    @checked("hf.App", '("hot-auctions", checkpoint_every="1s")')
    def __init__(
        self,
        name: str = NOT_GIVEN,
        *,
        root: str | None = None,
        checkpoint_every: str = "1s",
        parallelism: int | None = None,
        standbys: int = 0,
        key_groups: int = 128,
        dlq: Sink | None = None,
        mode: str = "continuous",
        changelog: object = "root",
        state_memory: object = None,
    ) -> None:
        self.name = check_name(name, "app")
        duration_ms(checkpoint_every, "checkpoint_every")
        for called, value, most in (("parallelism", parallelism, None), ("key_groups", key_groups, KEY_GROUPS_MAX)):
            if value is not None and (not isinstance(value, int) or value < 1 or (most is not None and value > most)):
                raise ConfigError(
                    f"app {name!r}: {called} is {value!r}",
                    not_done="the app was not created",
                    next_step="give a whole number of at least 1" + (f" and at most {most}" if most else ""),
                )
        self.root, self.checkpoint_every, self.parallelism = root, checkpoint_every, parallelism
        self.standbys, self.key_groups, self.dlq = standbys, key_groups, dlq
        self._later = {
            f"mode={mode!r}": mode != "continuous",
            f"changelog={changelog!r}": changelog != "root",
            f"state_memory={state_memory!r}": state_memory is not None,
        }
        self._graph = Graph(name, dlq=dlq)

    if not TYPE_CHECKING:  # a type checker would take every name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute('App', name, APP, dir(type(self)))

    @checked("app.source", '("bids", hf.Log("data/bids", Bid), event_time="at")')
    def source(
        self,
        name: str = NOT_GIVEN,
        source: Source = NOT_GIVEN,
        *,
        event_time: str | None = None,
        out_of_orderness: str = "0s",
        idle_after: str = "30s",
        on_error: str | None = None,
        partitioned_by: Sequence[str] | None = None,
    ) -> Stream:
        """Begin a stream at a source.

        Args:
            name: Identity of the source: offsets are kept under it.
            source: For example `hf.Log("data/bids", Bid)`.
            event_time: Column that says when a record happened: timestamp[us, UTC], without nulls.
            out_of_orderness: How late records may come behind newer ones.
            idle_after: Silence after which a partition no longer holds back time.
            on_error: What becomes of a record that no row can be made of, for example because a column is null that
                may not be: "fail" ends the job, "drop" leaves it out and counts it, "dlq" makes it a dead letter.
                Default: "dlq" if the app has a DLQ, else "fail".
            partitioned_by: Columns by which whoever writes to the source chooses the partition: records that agree in
                them are in one partition. `hf.Log(..., key=)` says so itself. With it, sinks with
                delivery="idempotent" and these columns in their key are written at once.

        Raises:
            ConfigError: the name is taken or malformed, or the source's columns cannot be used.
        """
        check_name(name, "source")
        schema = getattr(source, "schema", None)
        if not isinstance(schema, pa.Schema):
            raise ConfigError(
                f"source {name!r} at {position()}: "
                + ("no source is given" if source is None else f"{source!r} is not a source"),
                not_done="the job was not planned",
                next_step='give one, for example hf.Log("data/bids", Bid)',
            )
        where = f"source {name!r} at {position()}"
        check_columns(schema, where)
        if event_time is not None and event_time not in schema.names:
            raise unknown_column(event_time, schema.names, where)
        if event_time is not None:
            check_event_time(schema.field(event_time), where)
        has_dlq = self.dlq is not None
        policy = checked_policy(on_error or ("dlq" if has_dlq else "fail"), where, has_dlq)
        kind = FromSource(
            self._graph.claim(name, "source"),
            source,
            event_time,
            duration_ms(out_of_orderness, "out_of_orderness"),
            duration_ms(idle_after, "idle_after"),
            policy,
            _partitioned_by(source, partitioned_by, schema, where),
        )
        node = self._graph.add(kind, None, name, schema, row_type=_row_type(source), event_time=event_time)
        return Stream(self._graph, node)

    def plan(self) -> Plan:
        """Compile what the code has built. Reads and writes nothing.

        Raises:
            ConfigError: there is no sink, something leads nowhere, or a feature is not supported.
        """
        self._refuse_unsupported()
        if self.dlq is not None:
            check_dlq(self.dlq, self.name)
        return compile_plan(self._graph, self.key_groups)

    def main(self) -> None:
        """Run the job with the command line and environment of this process; ends the process."""
        from holdfast.runtime.cli.run import main_of

        main_of(self)

    def _refuse_unsupported(self) -> None:
        asked = {
            f"standbys={self.standbys}": self.standbys != 0,
            **self._later,
        }
        for what, used in asked.items():
            if used:
                raise ConfigError(
                    f"app {self.name!r} uses {what}, which this version does not support",
                    not_done="the job was not planned",
                    next_step=f"leave out {what.split('=', 1)[0]}",
                )


def _partitioned_by(
    source: Source, given: Sequence[str] | None, schema: pa.Schema, where: str
) -> tuple[str, ...]:
    """Return the columns by which a source is partitioned, as the app or else the source says; () if nobody knows."""
    known = getattr(source, "key", None) if given is None else given
    columns = (known,) if isinstance(known, str) else tuple(known or ())
    for name in columns:
        if name not in schema.names:
            raise unknown_column(name, schema.names, where)
    return columns


def _row_type(source: Source) -> type | None:
    """Return the dataclass in which a source's rows were described, if it was one."""
    described = getattr(source, "row_type", None)
    return described if isinstance(described, type) else None


def check_dlq(sink: object, app: str) -> None:
    """Refuse a sink that cannot keep every dead letter.

    Raises:
        ConfigError: it is no sink, replaces rows by a key, or does not take the columns of dead letters.
    """
    what, next_step = None, 'give a log, for example dlq=hf.Log("data/dead")'
    if not all(callable(getattr(sink, method, None)) for method in ("check", "prepare", "open")):
        what = f"{sink!r} is not a sink"
    elif not isinstance(sink, Log) and getattr(sink, "key", None) is not None:
        what = f"{sink!r} has a key, by which dead letters would replace each other"
        next_step = f"leave the key out, or {next_step}"
    else:
        try:
            sink.check(DEAD_LETTERS, None)  # type: ignore[attr-defined]
        except HoldfastError as error:
            what, next_step = error.what, error.next_step
    if what is not None:
        raise ConfigError(f"the dlq of app {app!r}: {what}", not_done="the job was not planned", next_step=next_step)


def check_event_time(column: pa.Field, where: str) -> None:
    """Refuse an event time that is no point in time.

    Raises:
        ConfigError: another type than timestamp[us, UTC], or it may be null.
    """
    if column.type == TIME and not column.nullable:
        return
    naive = pa.types.is_timestamp(column.type) and column.type.tz is None
    fault = "has no time zone" if naive else "may be null" if column.type == TIME else f"is {column.type}"
    raise ConfigError(
        f"{where}: the event time {column.name!r} {fault}; it must be timestamp[us, UTC] without nulls",
        not_done="the job was not planned",
        next_step="write times in UTC, in a column that is never null, when the log is filled; "
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
