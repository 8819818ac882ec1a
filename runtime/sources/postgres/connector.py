"""`hf.PostgresChanges`: the changes of a Postgres table, captured into a log by `holdfast capture`, as a source.

A change stream is sent once: the server forgets what was confirmed. So a job never reads one: it reads the log; see
sources/captured.py. Only `holdfast capture` looks at the `Capturing`.

psycopg is an extra (`pip install holdfast[postgres]`). A job needs it only until the log exists: before that, the
columns are those that the server reports.

Source: API.md (sources, captured); docs/decisions/0087-postgres-capture.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.runtime.rows.row_types import RowsOf
from holdfast.runtime.sources.captured import CapturedTableSource, log_for, one_table
from holdfast.runtime.sources.connector import SourceConnector
from holdfast.runtime.sources.log import Log
from holdfast.secrets import Secret, secret_argument
from holdfast.storage.log.changelog import record_schema
from holdfast.traits import Library

NAME_BYTES = 63
"""The longest name of Postgres."""


@dataclass(frozen=True, kw_only=True)
class Capturing:
    """All that a process needs to capture a table; the arguments are those of `PostgresChanges`."""

    dsn: str
    password: Secret | None
    schema: str
    table: str
    log: str
    partitions: int
    publication: str | None
    columns: tuple[str, ...] | None = None
    capturer: ClassVar[str] = "holdfast.runtime.capture.postgres.capturer"
    """See Captured.capturer."""

    @property
    def where(self) -> str:
        """How messages name the table."""
        return f"table {self.schema}.{self.table}"

    @property
    def place(self) -> Mapping[str, str]:
        """Where the table is, as a sink that writes to it says."""
        try:
            from holdfast.sinks.postgres.place import named
        except ImportError:
            return {}
        return {"database": named(self.dsn), "schema": self.schema, "table": self.table}

    def records(self) -> pa.Schema:
        """Ask the database for the columns that the log will have."""
        try:
            from holdfast.runtime.sources.postgres.catalogue import connected, described
        except ImportError as error:
            raise no_driver(error) from error
        with connected(self.dsn, self.password) as db:
            table = described(db, self.schema, self.table, self.columns)
        return record_schema(table.rows(), table.key)


class PostgresChanges(SourceConnector, RowsOf[Any]):
    """The rows of a Postgres table and all their changes, captured into a log and read from there.

    `holdfast capture JOB.py` captures, as a process of its own: it appends the rows that the table has, then each
    committed transaction, in the order of commits and exactly once. The job reads the log, as `hf.Log` does; it may
    run, or not, at any time. Give the source to `app.table`, with the primary key as `key`: records put and delete
    rows.

    Args:
        dsn: The database, as for `hf.Postgres`, without a password. Postgres 15 or newer, with wal_level = logical; the
            user needs the right REPLICATION, and SELECT on the table.
        tables: The table, as "customers" or "sales.customers"; it needs a primary key. One log has the changes of one
            table, so several tables are several sources.
        into: The log, such as `hf.Log("data/customers")`. `capture` creates it if it is missing, as a changelog with
            the table's primary key. Give it `partitions=1` where a target has to show whole transactions: a job reads
            several partitions side by side.
        password: Where `capture` reads the password: hf.secret("env:PG_PASSWORD"); see `hf.Postgres`.
        publication: The publication to use; an administrator has created it for the table. None: `capture` creates
            one, for which its user has to own the table.
        columns: The columns to capture, with those of the primary key; None: all but generated ones. The types of the
            others do not matter, and may change.

    Raises:
        ConfigError: an argument cannot be used.
    """

    library: ClassVar[Library] = Library(name="psycopg", extra="postgres")

    @checked("hf.PostgresChanges", '("postgresql://app@db.example/sales", "customers", into=hf.Log("data/customers"))')
    def __init__(
        self,
        dsn: str,
        tables: str | Sequence[str],
        into: Log[Any],
        *,
        password: Secret | None = None,
        publication: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        log = log_for("hf.PostgresChanges", into)
        schema, table = _table_of(tables)
        if publication is not None and not 1 <= len(str(publication).encode()) <= NAME_BYTES:
            raise _refused(f"publication is {publication!r}", "give the name of a publication")
        self.capturing = Capturing(
            dsn=dsn,
            password=secret_argument(password, "hf.PostgresChanges(password=)"),
            schema=schema,
            table=table,
            log=log.path,
            partitions=log.partitions,
            publication=publication,
            columns=_columns_of(columns),
        )
        _check_dsn(dsn)

    @classmethod
    def example(cls) -> CapturedTableSource:
        """Return a source that has every trait; see listed.py."""
        return cls("postgresql://app@db.example/sales", "customers", Log("data/customers")).source()

    def __repr__(self) -> str:
        of = self.capturing
        return f"PostgresChanges('{of.schema}.{of.table}', into=Log({of.log!r}))"

    def source(self) -> CapturedTableSource:
        of = self.capturing
        return CapturedTableSource(of.log, partitions=of.partitions, capturing=of)


def no_driver(error: ImportError) -> ConfigError:
    """Return the error for a missing psycopg."""
    return ConfigError(
        f"hf.PostgresChanges needs psycopg, which cannot be imported: {error}",
        not_done="nothing was captured",
        next_step=f"install it on this machine: {install('postgres')}",
    )


def _check_dsn(dsn: str) -> None:
    """Refuse a string with a password before any message repeats it. Where psycopg is missing, none is opened."""
    try:
        from holdfast.sinks.postgres.place import parsed
    except ImportError:
        return
    parsed(dsn)


def _table_of(tables: str | Sequence[str]) -> tuple[str, str]:
    """Return the schema and the name of the table."""
    qualified_name = one_table("hf.PostgresChanges", tables)
    schema, dot, name = qualified_name.rpartition(".")
    schema = schema if dot else "public"
    if any(not 1 <= len(each.encode()) <= NAME_BYTES or "\0" in each for each in (schema, name)) or "." in schema:
        raise _refused(
            f"the table is {qualified_name!r}", 'name it as "customers", or with its schema: "sales.customers"'
        )
    return schema, name


def _columns_of(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(each, str) and each for each in names) or len(set(names)) < len(names):
        raise _refused(f"columns is {columns!r}", 'name each column once, with the primary key: columns=["id", "city"]')
    return tuple(names)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.PostgresChanges: {what}", not_done="the job was not planned", next_step=next_step)
