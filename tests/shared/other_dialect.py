"""A second dialect, as different from SQLite's as its engine allows, for the tests of the seam in sinks/sql.

It quotes with backticks, folds to upper case, numbers its marks, stores times as microseconds, dates as digits and
booleans as letters, loads without a key and removes duplicates afterwards, and puts rows by merging, deleting and
inserting. So whatever sinks/sql takes for granted of SQLite fails here.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.sinks.sql.dialect import Column, Connection, Cursor, Missing, Purpose, TableLimits, TemporaryTable, Upsert
from holdfast.sinks.sql.sink import TableSink
from holdfast.sinks.sql.values import Value, real_as_json
from holdfast.sinks.sqlite import file, queue
from holdfast.sinks.sqlite.dialect import meaning_of
from holdfast.traits import SinkTraits

T = TypeVar("T")

BUSY_TIMEOUT_MS = 250
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGER, REAL, TEXT, BINARY = "BIGINT", "DOUBLE PRECISION", "VARCHAR", "BLOB8"
FLAG, TIME, DAY = "FLAGCHAR", "MICROINT", "DAYCHAR"
HOLD = " -- held"


class Numbered:
    """A connection whose marks are :1, :2 ...; it has seen these statements."""

    def __init__(self, path: str, mode: str) -> None:
        self.sqlite = file.connect(path, mode)
        self.seen: list[str] = []
        self.loading = False
        for function in (time_text, day_text, flag_number):
            self.sqlite.create_function(function.__name__, 1, function, deterministic=True)
        self.sqlite.create_function("row_text", -1, row_text, deterministic=True)

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        assert not self.loading, "a bulk load has the connection for itself"
        self.seen.append(sql)
        return self.sqlite.execute(sql, _named(values))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:
        self.seen.append(sql)
        return self.sqlite.executemany(sql, map(_named, rows))

    def close(self) -> None:
        self.sqlite.close()


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {str(place): value for place, value in enumerate(values, 1)}


def time_text(us: int | None) -> str | None:
    if us is None:
        return None
    return (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def day_text(digits: str | None) -> str | None:
    return None if digits is None else f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"


def flag_number(letter: str | None) -> int | None:
    """Return any value but the two letters unchanged: it is wrong, and the audit reports it."""
    return cast(int | None, {"t": 1, "f": 0}.get(cast(str, letter), letter))


def row_text(names: str, *values: Value) -> str:
    members = zip(json.loads(names), map(value_text, values), strict=True)
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in members) + "}"


def value_text(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bytes():
            return f'{{"hex":"{value.hex()}"}}'
        case float():
            return real_as_json(value)
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class OtherDialect:
    path: str

    database = "Other"
    place = "database"
    unavailable_next = "check whether another program holds the database"
    tag_type = f"{TEXT} COLLATE BINARY"
    keeps_nan = False
    limits = TableLimits(columns=20, name_bytes=63, reserved=("pg_",))
    row_order = "_rowid_"
    row_order_column = ""
    renumbered_by = ""
    reads_in_pieces = True
    hold = HOLD
    errors = sqlite3.Error

    def quoted(self, name: str) -> str:
        doubled = name.replace("`", "``")
        return f"`{doubled}`"

    def folded(self, name: str) -> str:
        return "".join(letter.upper() if letter.isascii() else letter for letter in name)

    def table(self, name: str) -> str:
        return f"`main`.{self.quoted(name)}"

    def own(self, name: str) -> str:
        return f"`main`.{name.upper()}"

    def temporary(self, name: str) -> str:
        return f"`temp`.`{name.upper()}`"

    def mark(self, place: int) -> str:
        return f":{place}"

    def declared(self, kind: pa.DataType) -> str | None:
        tests = pa.types
        if tests.is_integer(kind):
            return None if tests.is_uint64(kind) else INTEGER
        if tests.is_floating(kind):
            return REAL
        if tests.is_string(kind) or tests.is_large_string(kind) or tests.is_string_view(kind):
            return TEXT
        if tests.is_binary(kind) or tests.is_large_binary(kind) or tests.is_binary_view(kind):
            return BINARY
        return {pa.bool_(): FLAG, pa.timestamp("us", "UTC"): TIME, pa.date32(): DAY}.get(kind)

    def holds(self, column: Column, declared: str) -> bool:
        return column.declared == declared.removesuffix(" COLLATE BINARY")

    def bound(self, column: Column, value: Value) -> object:
        match column.declared, value:
            case "FLAGCHAR", int():
                return "t" if value else "f"
            case "MICROINT", str():
                return (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
            case "DAYCHAR", str():
                return value.replace("-", "")
        return value

    def readable(self, alias: str, column: Column) -> str:
        name = f"{alias}.{self.quoted(column.name)}"
        reads = {FLAG: "flag_number", TIME: "time_text", DAY: "day_text"}
        return f"{reads[column.declared]}({name})" if column.declared in reads else name

    def row_json(self, alias: str, columns: Sequence[Column]) -> str:
        ordered = sorted(columns, key=lambda column: column.name)
        names = json.dumps([column.name for column in ordered]).replace("'", "''")
        values = "".join(f", {self.readable(alias, column)}" for column in ordered)
        return f"row_text('{names}'{values})"

    def kind_of(self, db: Connection, name: str) -> str | None:
        found = db.execute("SELECT type FROM `main`.sqlite_master WHERE upper(name) = upper(:1)", [name]).fetchone()
        return None if found is None else str(found[0])

    def columns(self, db: Connection, table: str) -> list[Column]:
        found = db.execute("SELECT name, type, pk, `notnull` FROM pragma_table_info(:1, 'main')", [table])
        return [Column(name, declared, place, not strict) for name, declared, place, strict in found]

    def loosely_compared(self, db: Connection, table: str) -> dict[str, str]:
        return {}

    def check_rights(self, db: Connection, where: str, table: str, own: Sequence[str], keyed: bool) -> None:
        """There are no users."""

    def row_number(self, db: Connection, table: str) -> str | None:
        return "oid"

    def numbering(self, db: Connection) -> object:
        return db.execute("PRAGMA schema_version").fetchone()[0]

    def create_temporary(self, db: Connection, table: TemporaryTable) -> None:
        columns = ", ".join(f"{self.quoted(column.name)} {column.declared}" for column in table.columns)
        db.execute(f"CREATE TABLE {table.name} ({columns})")

    def clear(self, db: Connection, table: TemporaryTable) -> None:
        db.execute(f"DELETE FROM {table.name} WHERE 1 = 1")

    def load(self, db: Connection, table: TemporaryTable, rows: Iterable[tuple[Value, ...]]) -> None:
        marks = ", ".join(self.mark(place) for place in range(1, len(table.columns) + 1))
        stored = ([self.bound(c, value) for c, value in zip(table.columns, row, strict=True)] for row in rows)
        numbered = cast(Numbered, db)
        numbered.loading = True
        db.executemany(f"INSERT INTO {table.name} VALUES ({marks})", stored)
        numbered.loading = False
        if table.key:
            key = ", ".join(map(self.quoted, table.key))
            last = f"SELECT max(_rowid_) FROM {table.name} GROUP BY {key}"
            db.execute(f"DELETE FROM {table.name} WHERE _rowid_ NOT IN ({last})")

    def upsert(self, db: Connection, put: Upsert) -> int:
        """Merge the given rows with the existing ones, then delete and insert the changed rows."""
        columns, key = (", ".join(map(self.quoted, names)) for names in (put.columns, put.key))
        same = " AND ".join(f"t.{self.quoted(name)} = excluded.{self.quoted(name)}" for name in put.key)
        missing = f"t.{self.quoted(put.key[0])} IS NULL"
        replaces = missing if put.sets == {} else f"({missing} OR ({put.only_if or '1 = 1'}))"
        db.execute("DROP TABLE IF EXISTS temp.merged")
        db.execute(
            f"CREATE TEMP TABLE merged AS WITH excluded({columns}) AS ({put.source}) "
            f"SELECT {', '.join(self._merged(put, missing))} "
            f"FROM excluded LEFT JOIN {put.into} AS t ON {same} WHERE {replaces}",
            put.values,
        )
        db.execute(f"DELETE FROM {put.into} WHERE ({key}) IN (SELECT {key} FROM temp.merged)")
        return db.execute(f"INSERT INTO {put.into} ({columns}) SELECT {columns} FROM temp.merged").rowcount

    def _merged(self, put: Upsert, missing: str) -> Iterator[str]:
        for name in map(self.quoted, put.columns):
            value = f"excluded.{name}" if put.sets is None else put.sets.get(name.strip("`"), f"t.{name}")
            yield f"CASE WHEN {missing} THEN excluded.{name} ELSE {value} END AS {name}"

    def check_place(self, where: str) -> None:
        """Any path will do."""

    def identity(self) -> int:
        if not os.path.exists(self.path):
            raise Missing("the database is missing", "restore it")
        return os.stat(self.path).st_ino

    def connect(self, purpose: Purpose) -> Connection:
        mode = "rwc" if purpose == "create" else "rw"
        return queue.in_turn(self.path, lambda: Numbered(self.path, mode))

    def look(self, db: Connection, work: Callable[[], T]) -> T:
        return queue.read(cast(Numbered, db).sqlite, self.path, BUSY_TIMEOUT_MS, work)

    def begin_schema(self, db: Connection) -> None:
        self.begin_write(db)

    def begin_write(self, db: Connection) -> None:
        queue.begin(cast(Numbered, db).sqlite, self.path, BUSY_TIMEOUT_MS)
        cast(Numbered, db).seen.append("BEGIN WRITE")

    def begin_read(self, db: Connection) -> None:
        db.execute("BEGIN")

    def meaning_of(self, where: str, error: Exception) -> HoldfastError | None:
        return meaning_of(where, error)


@dataclass(frozen=True)
class OtherTable(TableSink):
    """A table of the other database as a sink: all that a new database adds besides its dialect."""

    path: str | os.PathLike[str]
    table: str
    key: tuple[str, ...] | None = None
    delivery: str = "transactional"

    @property
    def dialect(self) -> OtherDialect:
        return OtherDialect(os.fspath(self.path))

    @property
    def where(self) -> str:
        return f"Other {self.path}, table {self.table!r}"

    @property
    def traits(self) -> SinkTraits:
        return self.traits_of("Other", {}, (os.fspath(self.path),))
