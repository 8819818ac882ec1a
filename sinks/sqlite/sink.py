"""`hf.SQLite`: a table in a SQLite file as a sink. target.py writes at each commit, immediate.py before it.

Source: DESIGN section 7; API.md (sinks).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.sinks.audited import Asked, Shown
from holdfast.sinks.contract import (
    Repair,
    Rewinding,
    check_key,
    check_null_keys,
)
from holdfast.sinks.immediate import ImmediateSink, ImmediateTarget, Owner, Written
from holdfast.sinks.owners import Claim, Holding
from holdfast.sinks.sql import tags
from holdfast.sinks.sql import values as sql_values
from holdfast.sinks.sqlite import audit as sqlite_audit
from holdfast.sinks.sqlite import owners as sqlite_owners
from holdfast.sinks.sqlite.file import (
    BUSY_TIMEOUT_MS,
    check_columns,
    check_existing,
    check_name,
    check_place,
    connect,
    create_table,
    preparing,
    translated,
)
from holdfast.sinks.sqlite.immediate import (
    ImmediateSQLiteTarget,
    create_fence,
    refuse_delivered,
    refuse_fenced,
    written,
)
from holdfast.sinks.sqlite.queue import begin
from holdfast.sinks.sqlite.repair import RepairedTable, create_horizon, plan_repair, repair
from holdfast.sinks.sqlite.rows import CREATE_TOMBSTONE, TAG_COLUMN
from holdfast.sinks.sqlite.target import SQLiteTarget
from holdfast.storage.paths import refuse_password
from holdfast.traits import SinkTraits

COLUMNS_MAX = 400
"""SQLite nests an expression 1,000 deep at most; the one for a before-image takes two per column."""


@dataclass(frozen=True, init=False)
class SQLite:
    """A table in a SQLite file; created, file and table, if missing, else checked.

    Args:
        path: The file, on a disk that every worker sees. Relative to the working directory.
        table: The table.
        key: The columns of the primary key; a row replaces the one with its key. Without it,
            rows are only added.
        delivery: "transactional": the rows of an epoch become visible in one transaction, after its checkpoint.
            "idempotent": so too, and a key changes only by a newer tag than the one its row carries in the column
            `_holdfast_tag`; needs a key. Where no shuffle lies between source and sink, and the source is partitioned
            by columns of the key, rows are written immediately, before the commit; `holdfast plan` says which it is.
    """

    path: str
    table: str
    key: tuple[str, ...] | None
    delivery: str

    @checked("hf.SQLite", '("out.db", table="hot", key=["auction"])')
    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        key: Iterable[str] | None = None,
        delivery: str = "transactional",
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise ConfigError(
                f"hf.SQLite: {os.fspath(path)!r} is no file; results have to outlive the process",
                next_step="give the path of a file; a test reads results with hf.testing.TestDriver",
            )
        refuse_password(os.fspath(path), "the path of hf.SQLite")
        key = (key,) if isinstance(key, str) else key
        object.__setattr__(self, "path", os.path.abspath(path))
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "key", None if key is None else tuple(key))
        object.__setattr__(self, "delivery", delivery)

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"SQLite {self.path}, table {self.table!r}"

    @property
    def traits(self) -> SinkTraits:
        """See Sink.traits."""
        return SinkTraits(
            kind="SQLite",
            local_paths=(self.path,),
            place={"path": self.path, "table": self.table},
            keyed=self.key is not None,
            immediate=self.tags_rows,
            repairs=True,
            audits=True,
            merges=True,
            checks_owner=True,
            remembers_owner=True,
        )

    @property
    def tags_rows(self) -> bool:
        """Whether every row carries its tag."""
        return self.delivery == "idempotent"

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.check."""
        self._check_delivery(schema)
        check_name(self.where, "table", self.table)
        if self.table.lower().startswith(("sqlite_", "holdfast_")):
            raise ConfigError(f"{self.where}: names with this prefix are reserved", next_step="choose another table")
        check_key(self.where, schema, upsert_key, self.key)
        if len(schema) > COLUMNS_MAX:
            raise ConfigError(
                f"{self.where}: {len(schema)} columns are more than the {COLUMNS_MAX} it takes",
                next_step="select the columns you need before the sink",
            )
        check_columns(self.where, schema)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.prepare."""
        self.check(schema, upsert_key)
        check_place(self.where, self.path)
        with preparing(self.where), closing(connect(self.path, "rwc")) as db:
            begin(db, self.path, BUSY_TIMEOUT_MS)
            ours = (tags.CREATE_PROGRESS, tags.CREATE_UNDO, tags.CREATE_OWNER)
            for create in (*ours, *([CREATE_TOMBSTONE] if self.tags_rows else [])):
                db.execute(create)
            create_horizon(db)
            kind = db.execute("SELECT type FROM sqlite_master WHERE lower(name) = lower(?)", (self.table,)).fetchone()
            if kind is None:
                db.execute(create_table(self.where, self.table, self._table_schema(schema), self.key))
            elif kind[0] != "table":
                raise ConfigError(f"{self.where}: is a {kind[0]}, not a table", next_step="choose another table name")
            else:
                check_existing(self.where, db, self.table, self._table_schema(schema), self.key)
            db.execute("COMMIT")

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""
        check_null_keys(self.where, self.key, batch)
        sql_values.check_values(self.where, batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> SQLiteTarget:
        """See Sink.open."""
        return SQLiteTarget(self, job_uuid, writer, claim=claim)

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        with translated(self.where), closing(connect(self.path, "rw")) as db:
            return sqlite_owners.holding(db, job_uuid, name)

    def at_once(self) -> ImmediateSink:
        """See IdempotentSink.at_once."""
        assert self.tags_rows, "other rows keep no tags"
        return ImmediateSQLite(self)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """Refuse a table that this sink of this job has written immediately until now; see OwnedSink.check_owner."""
        if self.tags_rows:
            refuse_fenced(self, job_uuid, name)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.plan_repair."""
        return plan_repair(self._repaired(schema), rewinding)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.repair."""
        return repair(self._repaired(schema), rewinding)

    def shown(self, asked: Asked) -> Shown:
        """See AuditableSink.shown."""
        return sqlite_audit.shown(self.where, self.path, self.table, self.key, asked)

    def _repaired(self, schema: pa.Schema) -> RepairedTable:
        return RepairedTable(self.where, self.path, self.table, tuple(schema.names), self.key, self.tags_rows)

    def _check_delivery(self, schema: pa.Schema) -> None:
        if self.delivery not in ("transactional", "idempotent"):
            raise ConfigError(
                f"{self.where}: there is no delivery={self.delivery!r}",
                next_step='leave delivery out, or write delivery="transactional" or delivery="idempotent"',
            )
        if self.tags_rows and self.key is None:
            raise ConfigError(
                f'{self.where}: delivery="idempotent" keeps a tag per key, and the sink has no key',
                next_step="give the sink key=[...], or leave delivery out: rows are then added, each exactly once",
            )
        if self.tags_rows and TAG_COLUMN in (name.lower() for name in schema.names):
            raise ConfigError(
                f"{self.where}: the stream has a column named {TAG_COLUMN!r}, which holds the tags of rows",
                next_step="rename it before the sink",
            )

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field(TAG_COLUMN, pa.string(), nullable=False)) if self.tags_rows else schema


@dataclass(frozen=True)
class ImmediateSQLite:
    """`hf.SQLite(..., delivery="idempotent")` where the plan found that it may be written immediately."""

    table: SQLite

    @property
    def key(self) -> tuple[str, ...] | None:
        """See Sink.key."""
        return self.table.key

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.table.where

    @property
    def traits(self) -> SinkTraits:
        """See Sink.traits; recorded shapes of jobs know this kind, without a place."""
        return SinkTraits(
            kind="ImmediateSQLite",
            local_paths=(self.table.path,),
            keyed=True,
            immediate=True,
            checks_owner=True,
            remembers_owner=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.check."""
        self.table.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.prepare."""
        self.table.prepare(schema, upsert_key)
        create_fence(self.table)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """Refuse a table that this sink of this job has written at the commit until now."""
        refuse_delivered(self.table, job_uuid, name)

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""
        self.table.accept(batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> SQLiteTarget:
        """See Sink.open; nothing is ever staged for it."""
        return self.table.open(job_uuid, writer, claim)

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        return self.table.holding(job_uuid, name)

    def open_at_once(self, owner: Owner) -> ImmediateTarget:
        """See ImmediateSink.open_at_once."""
        return ImmediateSQLiteTarget(self.table, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        """See ImmediateSink.written."""
        return written(self.table, job_uuid, sink)
