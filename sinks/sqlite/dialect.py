"""SQLite as a dialect of sinks/sql: its names, types, catalogue, statements and errors.

Canonical values are stored as they are: integers and booleans are INTEGER, floats REAL, times, dates, text and JSON
TEXT, binary BLOB. SQLite has no NaN, and makes NULL of one. So a NaN is the text NaN, which a column of REAL keeps as
it is: rows without a value and rows with a wrong one stay apart. A column of an existing table counts by its affinity,
whatever its type is called.

Several workers write to one file, so each waits briefly for the lock, in a queue (queue.py), and then reports
Unavailable. A transaction that writes holds the whole file, so whatever it has read stays as it is.

SQLite reports hundreds of error codes; a delivery distinguishes three meanings. The file is busy, the disk full or a
read failed: the outcome counts as unknown, and a retry may work. The bytes are broken: the user has to restore an older
file. Every other error in our statements means that the table differs from the one that the job was planned for, or
never takes such a row.

Source: sqlite.org/rescode.html; sqlite.org/datatype3.html; sqlite.org/rowidtable.html.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.sinks.contract.phrases import NO_ROW, broken, full, never_takes, refused, unknown
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
from holdfast.sinks.sql.values import TIMESTAMP, Value, is_text
from holdfast.sinks.sqlite import file, queue

T = TypeVar("T")

COLUMNS_MAX = 400
"""SQLite nests an expression 1,000 deep at most; the one for a before-image takes two per column."""
NAN = "NaN"
"""Stands for a NaN."""
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")

_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str | None], ...] = (
    (pa.types.is_uint64, None),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_boolean, "INTEGER"),
    (pa.types.is_floating, "REAL"),
    (pa.types.is_string, "TEXT"),
    (pa.types.is_large_string, "TEXT"),
    (pa.types.is_string_view, "TEXT"),
    (pa.types.is_date32, "TEXT"),
    (lambda kind: bool(kind == TIMESTAMP), "TEXT"),
    (is_text, "TEXT"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_large_binary, "BLOB"),
    (pa.types.is_binary_view, "BLOB"),
)

AGAIN = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_SCHEMA,
}
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_REFUSED = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_ERROR,
}
_HELD = unknown("find the process that holds the file, and check the disk's free space and its health")
_FULL = full("the disk of the file", "free space on the disk of this file")
_BROKEN = broken("restore the file from a backup (sqlite3 FILE .recover saves what it can), then rewind the job")
_REFUSES = refused(
    "SQLite refuses the delivery",
    "for a duplicate key give the sink key=[...], so that rows replace each other; else compare the table with the "
    "stream's columns, and check its constraints and the file's permissions. " + never_takes("table"),
    NO_ROW,
)


@dataclass(frozen=True)
class SQLiteDialect(Dialect):
    """The SQLite file at a path. See sql.dialect.Dialect."""

    path: str

    database = "SQLite"
    place = "file"
    unavailable_next = (
        "check whether another program holds the file, and that its disk has free space and can be written"
    )
    tag_type = "TEXT"
    keeps_nan = True
    limits = TableLimits(COLUMNS_MAX, reserved=("sqlite_",))
    row_order = "rowid"
    row_order_column = ""
    renumbered_by = " (VACUUM does)"
    reads_in_pieces = True
    hold = ""
    errors = sqlite3.Error

    def quoted(self, name: str) -> str:
        return _quoted(name)

    def folded(self, name: str) -> str:
        """SQLite takes ASCII letters alone as equal in upper and lower case."""
        return "".join(letter.lower() if letter.isascii() else letter for letter in name)

    def table(self, name: str) -> str:
        return f"main.{self.quoted(name)}"

    def own(self, name: str) -> str:
        return f"main.{name}"

    def temporary(self, name: str) -> str:
        return f"temp.{name}"

    def mark(self, place: int) -> str:
        return "?"

    def declared(self, kind: pa.DataType) -> str | None:
        return next((name for fits, name in _TYPES if fits(kind)), None)

    def holds(self, column: Column, declared: str) -> bool:
        return affinity(column.declared) == declared

    def bound(self, column: Column, value: Value) -> object:
        return NAN if _is_nan(value) else value

    def readable(self, alias: str, column: Column) -> str:
        return f"{alias}.{self.quoted(column.name)}"

    def row_json(self, alias: str, columns: Sequence[Column]) -> str:
        """SQLite's own text of one real in some thousands reads back as another one."""
        members = []
        for column in sorted(columns, key=lambda column: column.name):
            value = self.readable(alias, column)
            label = json.dumps(column.name, ensure_ascii=False).replace("'", "''")
            members.append(
                f"'{label}:' || CASE typeof({value}) WHEN 'integer' THEN {value} "
                f"WHEN 'real' THEN holdfast_real({value}) WHEN 'text' THEN json_quote({value}) "
                f"WHEN 'blob' THEN '{{\"hex\":\"' || lower(hex({value})) || '\"}}' ELSE 'null' END"
            )
        return "'{' || " + " || ',' || ".join(members) + " || '}'" if members else "'{}'"

    def kind_of(self, db: Connection, name: str) -> str | None:
        kinds = "SELECT type FROM main.sqlite_master WHERE lower(name) = lower(?) ORDER BY type <> 'table'"
        found = db.execute(kinds, (name,)).fetchone()
        return None if found is None else str(found[0])

    def columns(self, db: Connection, table: str) -> list[Column]:
        found = db.execute("SELECT name, type, pk, \"notnull\" FROM pragma_table_info(?, 'main')", (table,))
        return [Column(name, declared, place, not strict) for name, declared, place, strict in found]

    def loosely_compared(self, db: Connection, table: str) -> dict[str, str]:
        rows = db.execute(
            "SELECT x.name, x.coll FROM pragma_index_list(?, 'main') l JOIN pragma_index_xinfo(l.name, 'main') x "
            "WHERE l.origin = 'pk' AND x.key AND upper(x.coll) <> 'BINARY'",
            (table,),
        )
        return {name: f"{collation}, needed is BINARY" for name, collation in rows}

    def check_rights(self, db: Connection, where: str, table: str, own: Sequence[str], keyed: bool) -> None:
        """Who may write the file may do everything."""

    def row_number(self, db: Connection, table: str) -> str | None:
        """A rowid has three names, each of which a column may hide."""
        taken = {self.folded(column.name) for column in self.columns(db, table)}
        without = db.execute("SELECT wr FROM pragma_table_list(?) WHERE schema = 'main'", (table,)).fetchone()
        return next((n for n in _ROW_NUMBERS if n not in taken), None) if without and not without[0] else None

    def numbering(self, db: Connection) -> object:
        """VACUUM raises the version of the schema."""
        return db.execute("PRAGMA schema_version").fetchone()[0]

    def create_temporary(self, db: Connection, table: TemporaryTable) -> None:
        columns = [f"{self.quoted(column.name)} {column.declared}" for column in table.columns]
        if table.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(self.quoted, table.key))})")
        db.execute(f"CREATE TABLE {table.name} ({', '.join(columns)}){' WITHOUT ROWID' if table.key else ''}")

    def clear(self, db: Connection, table: TemporaryTable) -> None:
        db.execute(f"DELETE FROM {table.name}")

    def load(self, db: Connection, table: TemporaryTable, rows: Iterable[tuple[Value, ...]]) -> None:
        reals = [place for place, column in enumerate(table.columns) if affinity(column.declared) == "REAL"]
        if reals:
            rows = (_with_nan_as_text(row, reals) for row in rows)
        verb, marks = "INSERT OR REPLACE" if table.key else "INSERT", ", ".join("?" * len(table.columns))
        db.executemany(f"{verb} INTO {table.name} VALUES ({marks})", rows)

    def upsert(self, db: Connection, put: Upsert) -> int:
        return db.execute(on_conflict(self, put), put.values).rowcount

    def check_place(self, where: str) -> None:
        file.check_place(where, self.path)

    def identity(self) -> tuple[int, int]:
        return file.identity(self.path)

    def connect(self, purpose: Purpose) -> Connection:
        """One that delivers opens the file in turn with other writers."""
        if purpose == "deliver":
            return queue.in_turn(self.path, lambda: file.connect(self.path, "rw"))
        return file.connect(self.path, "rwc" if purpose == "create" else "rw")

    def look(self, db: Connection, work: Callable[[], T]) -> T:
        """While another writer commits, no reader gets in."""
        return queue.read(cast(sqlite3.Connection, db), self.path, file.BUSY_TIMEOUT_MS, work)

    def begin_schema(self, db: Connection) -> None:
        self.begin_write(db)

    def begin_write(self, db: Connection) -> None:
        queue.begin(cast(sqlite3.Connection, db), self.path, file.BUSY_TIMEOUT_MS)

    def begin_read(self, db: Connection) -> None:
        db.execute("BEGIN")

    def meaning_of(self, where: str, error: Exception) -> HoldfastError | None:
        return meaning_of(where, error)


def _with_nan_as_text(row: tuple[Value, ...], reals: Sequence[int]) -> tuple[Value, ...]:
    """Return a row whose NaN, in the columns at these places, are text."""
    if not any(_is_nan(row[place]) for place in reals):
        return row
    return tuple(NAN if _is_nan(value) else value for value in row)


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


@lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def affinity(declared: str) -> str:
    """Return how SQLite treats a column declared so. Source: sqlite.org/datatype3.html, section 3.1."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return "BLOB"
    if any(word in upper for word in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"


def meaning_of(where: str, error: Exception) -> HoldfastError | None:
    """Return the error's meaning for a delivery, None if it is a bug here."""
    extended = getattr(error, "sqlite_errorcode", None)
    code = None if extended is None else extended & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return _FULL(where, str(error))
    if code in AGAIN:
        return _HELD(where, str(error))
    if code in BROKEN:
        return _BROKEN(where, str(error))
    if code in _REFUSED:
        return _REFUSES(where, str(error))
    return None
