"""Postgres as a dialect of sinks/sql: its names, types, catalogue and statements.

Integers are bigint, floats double precision, booleans boolean, text text, binary bytea, dates date, times timestamptz,
times of day time, lists, structs and maps text, as JSON. Rows without a key, and before-images, are numbered by an
identity column, `_holdfast_row`; nothing renumbers it.

Many transactions write to one table at the same time. A delivery runs in REPEATABLE READ: if another transaction has
meanwhile changed a row that it puts, deletes or holds, the server refuses it with a serialization failure. The tag is
then read again. So a zombie whose epoch its successor delivered meanwhile moves no tag, whichever of the two comes
first.

Source: postgresql.org/docs/current: transaction-iso.html, explicit-locking.html, sql-insert.html, catalogs.html.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar, cast

import psycopg
import pyarrow as pa
from psycopg import sql

from holdfast.errors import HoldfastError
from holdfast.secrets import Secret
from holdfast.sinks.postgres import rights
from holdfast.sinks.postgres.errors import meaning_of
from holdfast.sinks.postgres.server import ServerConnection, connect
from holdfast.sinks.sql.dialect import (
    Column,
    Connection,
    Dialect,
    Purpose,
    TableLimits,
    TemporaryTable,
    Upsert,
    on_conflict,
)
from holdfast.sinks.sql.values import TIME_OF_DAY, TIMESTAMP, Value, is_text

T = TypeVar("T")

ROW = "_holdfast_row"
"""The column that numbers rows."""
COLUMNS_MAX = 400
"""A row has to fit a page of 8 KB: 18 bytes for each long value that is stored elsewhere."""
SCHEMA_LOCK = 0x686F6C6466617374
"""The advisory lock of a transaction that creates tables: CREATE TABLE IF NOT EXISTS races with itself."""
_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")

_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str | None], ...] = (
    (pa.types.is_uint64, None),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_string_view, "text"),
    (pa.types.is_date32, "date"),
    (lambda kind: bool(kind == TIMESTAMP), "timestamp with time zone"),
    (lambda kind: bool(kind == TIME_OF_DAY), "time without time zone"),
    (is_text, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_binary_view, "bytea"),
)
_READ = {
    "boolean": "{0}::int",
    "date": "to_char({0}, 'YYYY-MM-DD')",
    "time without time zone": "to_char({0}, 'HH24:MI:SS.US')",
    "timestamp with time zone": "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
}
"""How a column becomes its canonical value; others are canonical already."""
_REAL = (
    "CASE WHEN {0} = 'NaN' THEN '{{\"real\":\"nan\"}}' WHEN {0} = 'Infinity' THEN '{{\"real\":\"inf\"}}' "
    "WHEN {0} = '-Infinity' THEN '{{\"real\":\"-inf\"}}' WHEN {0}::text ~ '[.e]' THEN {0}::text "
    "ELSE {0}::text || '.0' END"
)
_JSON = {
    "bigint": "{0}::text",
    "boolean": "{0}::int::text",
    "double precision": _REAL,
    "bytea": "'{{\"hex\":\"' || encode({0}, 'hex') || '\"}}'",
}
"""How a column becomes canonical JSON; others are text, of which `to_json` makes a JSON string."""
_KINDS = {
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "p": "partitioned table",
    "S": "sequence",
    "i": "index",
    "I": "index",
    "c": "composite type",
}


@dataclass(frozen=True)
class PostgresDialect(Dialect):
    """A schema of a Postgres database. See sql.dialect.Dialect."""

    dsn: str
    schema: str
    password: Secret | None = None

    database = "Postgres"
    place = "database"
    unavailable_next = (
        "check that the server runs, that this host reaches it, and that no other session holds locks on the table"
    )
    tag_type = 'text COLLATE "C"'
    keeps_nan = True
    limits = TableLimits(COLUMNS_MAX, name_bytes=63, reserved=("pg_",), reserved_columns=(ROW, *_SYSTEM_COLUMNS))
    row_order = ROW
    row_order_column = f"{ROW} bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
    renumbered_by = ""
    reads_in_pieces = False
    hold = " FOR SHARE"
    errors = psycopg.Error

    def quoted(self, name: str) -> str:
        return _quoted(name)

    def folded(self, name: str) -> str:
        """Quoted names are compared byte by byte."""
        return name

    def table(self, name: str) -> str:
        return f"{_quoted(self.schema)}.{_quoted(name)}"

    def own(self, name: str) -> str:
        return f"{_quoted(self.schema)}.{name}"

    def temporary(self, name: str) -> str:
        return f"pg_temp.{name}"

    def mark(self, place: int) -> str:
        return f"${place}"

    def declared(self, kind: pa.DataType) -> str | None:
        return next((name for fits, name in _TYPES if fits(kind)), None)

    def holds(self, column: Column, declared: str) -> bool:
        """Text of any collation will do, where no certain one is asked for."""
        return column.declared == declared or column.declared.startswith(f"{declared} COLLATE ")

    def bound(self, column: Column, value: Value) -> object:
        """The server reads texts as the column's type."""
        return bool(value) if column.declared == "boolean" else value

    def readable(self, alias: str, column: Column) -> str:
        return _READ.get(column.declared, "{0}").format(f"{alias}.{_quoted(column.name)}")

    def row_json(self, alias: str, columns: Sequence[Column]) -> str:
        members = []
        for column in sorted(columns, key=attrgetter("name")):
            label = json.dumps(column.name, ensure_ascii=False).replace("'", "''")
            stored = f"{alias}.{_quoted(column.name)}"
            text = _JSON.get(column.declared, f"to_json({self.readable(alias, column)})::text").format(stored)
            members.append(f"'{label}:' || coalesce({text}, 'null')")
        return f"'{{' || array_to_string(ARRAY[{', '.join(members)}], ',') || '}}'" if members else "'{}'"

    def kind_of(self, db: Connection, name: str) -> str | None:
        """After a crash of the server an unlogged table is empty, and the tags are not."""
        row = db.execute(
            "SELECT c.relkind::text, c.relpersistence::text FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
            (self.schema, name),
        ).fetchone()
        if row is None:
            return None
        kind, persistence = row
        return _KINDS.get(kind, "table" if persistence == "p" else "table that is not kept through a crash (UNLOGGED)")

    def columns(self, db: Connection, table: str) -> list[Column]:
        """A deferrable primary key is none: ON CONFLICT does not take it."""
        rows = db.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) "
            "|| CASE WHEN a.attcollation = t.typcollation THEN '' WHEN o.collname = 'C' THEN ' COLLATE \"C\"' "
            "ELSE ' COLLATE ' || quote_ident(s.nspname) || '.' || quote_ident(o.collname) END "
            "|| CASE WHEN a.attgenerated <> '' OR a.attidentity = 'a' THEN ' GENERATED ALWAYS' ELSE '' END, "
            "coalesce(array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum), 0), NOT a.attnotnull "
            "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation "
            "LEFT JOIN pg_catalog.pg_namespace s ON s.oid = o.collnamespace "
            "LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indimmediate "
            "WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> $3 "
            "ORDER BY a.attnum",
            (self.schema, table, ROW),
        )
        return [Column(*row) for row in rows]

    def loosely_compared(self, db: Connection, table: str) -> dict[str, str]:
        rows = db.execute(
            "SELECT a.attname, o.collname FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey) "
            "JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation AND NOT o.collisdeterministic "
            "WHERE n.nspname = $1 AND c.relname = $2",
            (self.schema, table),
        )
        return {name: f"{collation}, needed is a deterministic collation" for name, collation in rows}

    def check_rights(self, db: Connection, where: str, table: str, own: Sequence[str], keyed: bool) -> None:
        numbered = self.row_number(db, table) is not None
        needed = rights.KEYED if keyed else rights.NUMBERED if numbered else rights.ADDED
        if lacking := rights.lacking(db, self.schema, table, needed, own):
            raise rights.refused(where, lacking)

    def row_number(self, db: Connection, table: str) -> str | None:
        """A user's own table may lack the column."""
        row = db.execute(
            "SELECT 1 FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND a.attidentity = 'a' AND EXISTS "
            "(SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid "
            "AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)",
            (self.schema, table, ROW),
        ).fetchone()
        return ROW if row else None

    def numbering(self, db: Connection) -> object:
        """Nothing renumbers rows."""
        return None

    def create_temporary(self, db: Connection, table: TemporaryTable) -> None:
        """No index: COPY and one pass over the rows are quicker."""
        columns = [f"{_quoted(column.name)} {column.declared}" for column in table.columns]
        columns.append(f"{ROW} bigint GENERATED ALWAYS AS IDENTITY")
        db.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")

    def clear(self, db: Connection, table: TemporaryTable) -> None:
        db.execute(f"TRUNCATE {table.name}")

    def load(self, db: Connection, table: TemporaryTable, rows: Iterable[tuple[Value, ...]]) -> None:
        names = ", ".join(_quoted(column.name) for column in table.columns)
        cast(ServerConnection, db).copy(f"COPY {table.name} ({names}) FROM STDIN", rows)
        if table.key:
            key = ", ".join(map(_quoted, table.key))
            db.execute(
                f"DELETE FROM {table.name} i USING (SELECT {ROW} AS n, row_number() OVER "
                f"(PARTITION BY {key} ORDER BY {ROW} DESC) AS place FROM {table.name}) d "
                f"WHERE d.n = i.{ROW} AND d.place > 1"
            )

    def upsert(self, db: Connection, put: Upsert) -> int:
        return db.execute(on_conflict(self, put), put.values).rowcount

    def check_place(self, where: str) -> None:
        """Only the server knows its contents."""

    def identity(self) -> str:
        """A server that is replaced ends its connections."""
        return self.dsn

    def connect(self, purpose: Purpose) -> Connection:
        """No database and no schema is ever created."""
        return connect(self.dsn, self.password, check=purpose == "create")

    def look(self, db: Connection, work: Callable[[], T]) -> T:
        """Readers and writers do not wait for each other."""
        return work()

    def begin_schema(self, db: Connection) -> None:
        db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        db.execute("SELECT pg_advisory_xact_lock($1::bigint)", (SCHEMA_LOCK,))

    def begin_write(self, db: Connection) -> None:
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")

    def begin_read(self, db: Connection) -> None:
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")

    def meaning_of(self, where: str, error: Exception) -> HoldfastError | None:
        return meaning_of(where, cast(psycopg.Error, error))


@lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
