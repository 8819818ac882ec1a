"""`hf.SQLiteChanges`: the changes of a SQLite table, captured into a log by `holdfast capture`, as a source.

The database itself keeps its changes, by triggers, until they are in the log. The job reads the log; see
sources/captured.py. Only `holdfast capture` looks at the `SQLiteCapturing`.

Source: API.md (sources, captured); docs/decisions/0103-sqlite-capture.md.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.sources.captured import CapturedTableSource, log_for, one_table
from holdfast.runtime.sources.connector import SourceConnector
from holdfast.runtime.sources.log import Log
from holdfast.runtime.sources.sqlite.catalogue import described, opened
from holdfast.storage.log.changelog import record_schema
from holdfast.storage.paths import refuse_password
from holdfast.traits import Library


@dataclass(frozen=True, kw_only=True)
class SQLiteCapturing:
    """All that a process needs to capture a table; the arguments are those of `SQLiteChanges`."""

    path: str
    table: str
    log: str
    partitions: int
    schema: pa.Schema | None
    capturer: ClassVar[str] = "holdfast.runtime.capture.sqlite.capturer"
    """See Captured.capturer."""

    @property
    def where(self) -> str:
        """How messages name the table."""
        return f"table {self.table} of {self.path}"

    @property
    def place(self) -> Mapping[str, str]:
        """Where the table is, as a sink that writes to it says."""
        return {"path": self.path, "table": self.table}

    def records(self) -> pa.Schema:
        """Ask the database for the columns that the log will have."""
        with opened(self.path, writable=False) as db:
            table = described(db, self.table, self.schema)
        return record_schema(table.rows(), table.key)


class SQLiteChanges(SourceConnector, RowsOf[Any]):
    """The rows of a SQLite table and all their changes, captured into a log and read from there.

    `holdfast capture JOB.py` captures, as a process of its own: it adds triggers to the table, which keep each change
    in the transaction that makes it, appends the rows that the table has, then all transactions, in the order of
    commits and exactly once. The job reads the log, as `hf.Log` does; it may run, or not, at any time. Give the source
    to `app.table`, with the primary key as `key`: records put and delete rows.

    Args:
        path: The file of the database, on a local disk. Relative to the working directory.
        tables: The table, as "customers"; it needs a primary key. One log has the changes of one table, so several
            tables are several sources.
        into: The log, such as `hf.Log("data/customers")`. `capture` creates it if it is missing, as a changelog with
            the table's primary key. Give it `partitions=1` where a target has to show whole transactions: a job reads
            several partitions side by side.
        schema: A dataclass or pyarrow.Schema with the types of all columns; None: those that are declared. A value of
            another type stops the capture before it.

    Raises:
        ConfigError: an argument cannot be used.
    """

    library: ClassVar[Library] = Library(name="sqlite", version=sqlite3.sqlite_version)

    @checked("hf.SQLiteChanges", '("sales.db", "customers", into=hf.Log("data/customers"))')
    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: str | Sequence[str],
        into: Log[Any],
        *,
        schema: type | ArrowSchema | None = None,
    ) -> None:
        log, text = log_for("hf.SQLiteChanges", into), os.fspath(path)
        table = one_table("hf.SQLiteChanges", tables)
        refuse_password(text, "the path of hf.SQLiteChanges")
        if text in ("", ":memory:") or "://" in text or text.startswith("file:"):
            raise _refused(f"the path is {text!r}", "give the path of a file on a local disk")
        if not table or "\0" in table or table.lower().startswith("sqlite_"):
            raise _refused(f"the table is {table!r}", 'name it as "customers"')
        self.capturing = SQLiteCapturing(
            path=os.path.abspath(text),
            table=table,
            log=log.path,
            partitions=log.partitions,
            schema=None if schema is None else data_schema_of(schema),
        )

    @classmethod
    def example(cls) -> CapturedTableSource:
        """Return a source that has every trait; see listed.py."""
        return cls("sales.db", "customers", Log("data/customers")).source()

    def __repr__(self) -> str:
        of = self.capturing
        return f"SQLiteChanges({of.path!r}, {of.table!r}, into=Log({of.log!r}))"

    def source(self) -> CapturedTableSource:
        of = self.capturing
        return CapturedTableSource(of.log, partitions=of.partitions, capturing=of)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.SQLiteChanges: {what}", not_done="the job was not planned", next_step=next_step)
