"""A table of a SQL database as a sink: everything but its place.

A public sink is a frozen dataclass that derives from `TableSink`, and gives the dialect, bound to a place, and how
messages name the table. target.py writes at each commit, immediate.py before it.

Pure: no clock, thread or I/O of its own. Source: DESIGN section 7; API.md (sinks); docs/decisions/0034-sql-dialects.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.secrets import Secret
from holdfast.sinks.contract.audited import AuditQuery, Audits, TargetContents
from holdfast.sinks.contract.immediate import IMMEDIATE, ImmediateTarget, Owner, Written
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import ImmediateSink, Repair, Repairs, Rewinding, Sink, check_key, check_null_keys
from holdfast.sinks.sql import audit, claims, immediate, moved, owners, tags
from holdfast.sinks.sql.dialect import Dialect, Missing, preparing, translated
from holdfast.sinks.sql.repair import create_horizon, plan_repair, repair
from holdfast.sinks.sql.row_tags import TOMBSTONE, create_tombstone
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import TAG_COLUMN, check_columns, check_existing, check_table_name, create_table
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sql.values import check_values
from holdfast.traits import SinkTraits


class TableSink(Repairs, Audits, Ownership, Sink):
    """A table as a sink. See contract.Sink.

    Attributes:
        table: Its name.
        key: The columns of its primary key; None: rows are only added.
        delivery: "transactional", or "idempotent": every row carries its tag.
    """

    table: str
    key: tuple[str, ...] | None
    delivery: str

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """The database and its place."""

    def traits_of(
        self,
        kind: str,
        place: Mapping[str, str],
        local_paths: tuple[str, ...] = (),
        secrets: tuple[Secret, ...] = (),
    ) -> SinkTraits:
        """Return the traits of a table; they are the same in every database but for its name and its place."""
        return SinkTraits(
            kind=kind,
            local_paths=local_paths,
            place=place,
            secrets=secrets,
            keyed=self.key is not None,
            exclusive=self.key is not None,
        )

    @property
    def tags_rows(self) -> bool:
        """Whether every row carries its tag."""
        return self.delivery == "idempotent"

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self._check_delivery(schema)
        check_table_name(self.where, self.dialect, self.table)
        check_key(self.where, schema, upsert_key, self.key)
        check_columns(self.where, self.dialect, schema)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self._set_up(schema, upsert_key, keep=True)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        """It runs `prepare`, and rolls it back."""
        self.check(schema, upsert_key)
        try:
            self.dialect.identity()
        except Missing as missing:
            self.dialect.check_place(self.where)
            return f"{missing.what}; the first start creates it"
        existed = self._set_up(schema, upsert_key, keep=False)
        return "the table exists and fits the stream" if existed else "the first start creates the table"

    def _set_up(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None, keep: bool) -> bool:
        """Create missing tables and check existing ones, or only try to; return whether the table existed."""
        self.check(schema, upsert_key)
        dialect = self.dialect
        dialect.check_place(self.where)
        with preparing(dialect, self.where), closing(dialect.connect("create")) as db:
            s = Session(dialect, db)
            dialect.begin_schema(db)
            for create in (tags.create_progress, tags.create_undo, tags.create_owner, tags.create_table_claims):
                s.execute(create(dialect))
            moved.note_tables(s)
            if self.tags_rows:
                s.execute(create_tombstone(dialect))
            create_horizon(s)
            had_table = self._prepare_table(s, schema)
            own = (*tags.OF_EVERY_SINK, TOMBSTONE) if self.tags_rows else tags.OF_EVERY_SINK
            dialect.check_rights(db, self.where, self.table, own, keyed=self.key is not None)
            s.commit() if keep else s.rollback()
        return had_table

    def accept(self, batch: pa.RecordBatch) -> None:
        check_null_keys(self.where, self.key, batch)
        check_values(self.where, batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> SqlTarget:
        return SqlTarget(self, job_uuid, writer, claim=claim)

    def holding(self, job_uuid: str, name: str) -> Holding:
        with translated(self.dialect, self.where), closing(self.dialect.connect("read")) as db:
            s = Session(self.dialect, db)

            def look() -> Holding:
                held = owners.held(s, job_uuid, name)
                newest = tags.newest(s, job_uuid, name) if s.has(tags.PROGRESS) else None
                rival = claims.rival(s, self, (job_uuid, name)) if self.key is not None else None
                return Holding(held, newest, rival)

            return s.at_one_moment(look)

    @property
    def immediate(self) -> ImmediateSink | None:
        return ImmediateSqlTable(self) if self.tags_rows else None

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """Refuse also a table that this sink of this job has written immediately until now."""
        if self.tags_rows:
            immediate.refuse_fenced(self, job_uuid, name)
        with translated(self.dialect, self.where), closing(self.dialect.connect("read")) as db:
            s = Session(self.dialect, db)
            s.at_one_moment(lambda: claims.refuse_namesake(s, self, (job_uuid or "", name)))

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return plan_repair(self, rewinding, schema)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return repair(self, rewinding, schema)

    def contents(self, query: AuditQuery) -> TargetContents:
        return audit.contents(self, query)

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
        if self.tags_rows and self.dialect.folded(TAG_COLUMN) in map(self.dialect.folded, schema.names):
            raise ConfigError(
                f"{self.where}: the stream has a column named {TAG_COLUMN!r}, which holds the tags of rows",
                next_step="rename it before the sink",
            )

    def _prepare_table(self, s: Session, schema: pa.Schema) -> bool:
        """Create the user's table if it is missing, else check that the stream fits it; return whether it existed."""
        if self.tags_rows:
            schema = schema.append(pa.field(TAG_COLUMN, pa.string(), nullable=False))
        kind = s.dialect.kind_of(s.db, self.table)
        if kind is None:
            s.execute(create_table(self.where, s.dialect, self.table, schema, self.key))
            claims.release(s, self)
        elif kind != "table":
            raise ConfigError(f"{self.where}: is a {kind}, not a table", next_step="choose another table name")
        else:
            check_existing(self.where, s, self.table, schema, self.key)
        return kind is not None


@dataclass(frozen=True)
class ImmediateSqlTable(Ownership, ImmediateSink):
    """A table with delivery="idempotent" where the plan found that it may be written immediately."""

    table: TableSink

    @property
    def key(self) -> tuple[str, ...] | None:
        return self.table.key

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.table.where

    @property
    def traits(self) -> SinkTraits:
        """Recorded shapes of jobs know this kind, those of earlier versions without a place."""
        return SinkTraits(
            kind=f"{IMMEDIATE}{self.table.traits.kind}",
            local_paths=self.table.traits.local_paths,
            place=self.table.traits.place,
            secrets=self.table.traits.secrets,
            keyed=True,
            exclusive=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.table.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.table.prepare(schema, upsert_key)
        immediate.prepare_fence(self.table)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        return self.table.probe(schema, upsert_key)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """Refuse a table that this sink of this job has written at the commit until now."""
        immediate.refuse_delivered(self.table, job_uuid, name)

    def accept(self, batch: pa.RecordBatch) -> None:
        self.table.accept(batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> SqlTarget:
        """Nothing is ever staged for it."""
        return self.table.open(job_uuid, writer, claim)

    def holding(self, job_uuid: str, name: str) -> Holding:
        return self.table.holding(job_uuid, name)

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return immediate.ImmediateSqlTarget(self.table, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        return immediate.written(self.table, job_uuid, sink)
