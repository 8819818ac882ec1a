"""A table as its SQLite database describes it, and whether it can be captured.

Source: sqlite.org/pragma.html; sqlite.org/rescode.html; sqlite.org/lang_conflict.html.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow as pa

from holdfast.errors import Damaged, HoldfastError, NotAdmitted, Unavailable
from holdfast.runtime.sources.sqlite.table import OWN, SqliteColumn, SqliteTable, Unique, refused
from holdfast.sinks.sqlite import file
from holdfast.sinks.sqlite.dialect import AGAIN, BROKEN

BUSY_MS = 5_000
"""How long a statement waits for other programs."""
_ROWID = ("rowid", "_rowid_", "oid")
_BEFORE = re.compile(r"\bBEFORE\s+(INSERT|UPDATE)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_QUOTED = re.compile(r"""\"[^\"]*\"|'[^']*'|`[^`]*`|\[[^\]]*\]""")
_PARTIAL = re.compile(r"\)\s*WHERE\b", re.IGNORECASE)
_COMMENT = re.compile(r"--|/\*|;")
_ADVICE = "correct the table or the configuration of hf.SQLiteChanges"


def check_exists(path: str) -> None:
    """Raise Unavailable if there is no such file."""
    if not os.path.isfile(path):
        raise Unavailable(
            f"SQLite {path}: the file does not exist",
            not_done="nothing was captured",
            next_step="create the database and its table first, or correct the path of hf.SQLiteChanges",
        )


@contextmanager
def opened(path: str, *, writable: bool) -> Iterator[sqlite3.Connection]:
    """Open a database that exists, until the block ends; errors of SQLite inside become ours.

    Raises:
        ConfigError, Damaged, NotAdmitted, Unavailable: see `meaning_of`.
    """
    check_exists(path)
    where = f"SQLite {path}"
    try:
        with closing(file.connect(path, "rw" if writable else "ro")) as db:
            db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            db.text_factory = _text
            yield db
    except sqlite3.Error as error:
        raise meaning_of(where, error) from error


def meaning_of(where: str, error: sqlite3.Error) -> HoldfastError:
    """Return what an error of SQLite means for a capture."""
    extended = getattr(error, "sqlite_errorcode", None)
    code = None if extended is None else extended & 0xFF
    if code in AGAIN or code == sqlite3.SQLITE_FULL:
        return Unavailable(
            f"{where}: {error}",
            not_done="changes after the last append were not captured yet",
            next_step="look for a program that holds the file, and check its disk; the capture continues where it was",
        )
    if code in BROKEN:
        return Damaged(
            f"{where}: {error}",
            not_done="changes after the last append were not captured",
            next_step="repair the database; into a restored one a capture begins with another log",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return NotAdmitted(
            f"{where}: {error}",
            not_done="nothing was captured",
            next_step="let this user write the file and its directory: a capture keeps the changes in the database",
        )
    return refused(f"{where}: SQLite refuses: {error}", _ADVICE)


def described(db: sqlite3.Connection, wanted: str, schema: pa.Schema | None) -> SqliteTable:
    """Return a table.

    Raises:
        ConfigError: it is missing, or cannot be captured.
    """
    table_row = db.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", (wanted,)
    ).fetchone()
    if table_row is None:
        raise refused(f"table {wanted} does not exist", "create it, or correct tables of hf.SQLiteChanges")
    name, statement = table_row
    if statement.upper().startswith("CREATE VIRTUAL") or name.lower().startswith(OWN):
        raise refused(f"table {name} is no ordinary table", "capture an ordinary table")
    info = db.execute('SELECT name, type, pk, "notnull", dflt_value, hidden FROM pragma_table_xinfo(?)', (name,))
    columns = info.fetchall()
    key = tuple(each[0] for each in sorted((each for each in columns if each[2]), key=lambda each: each[2]))
    if not key:
        raise refused(f"table {name} has no primary key", "give it one; a capture finds rows by their primary key")
    if odd := [each[0] for each in columns if each[0].lower().startswith((OWN, "holdfast_"))]:
        raise refused(f"table {name} has the column {odd[0]!r}, a name that Holdfast uses", "rename the column")
    stored = {each[0]: (each[3], each[4]) for each in columns if not each[5]}
    kept = tuple(SqliteColumn(each[0], each[1]) for each in columns if not each[5])
    uniques = _uniques(db, name, key, stored)
    return SqliteTable(name, kept, key, uniques, schema)


def check_triggers(db: sqlite3.Connection, table: SqliteTable) -> None:
    """Refuse triggers of others by which a row that REPLACE removes could stay in the log. See Unique.

    Such a row is noted by a trigger before, and checked by one after a change. A trigger of another program that
    writes in between could hide it.
    """
    if not table.uniques:
        return
    for name, statement in db.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (table.name,)
    ):
        if not name.startswith(OWN) and (found := _BEFORE.search(statement)) and _writes(statement, found.end()):
            raise refused(
                f"{table.where} has other unique columns than its key, and the trigger {name} writes before its "
                "changes: a row that REPLACE removes could be missed",
                "make it an AFTER trigger, or drop it",
            )


def _writes(statement: str, begin: int) -> bool:
    _, _, body = statement[begin:].upper().partition("BEGIN")
    return _WRITES.search(body) is not None


def _uniques(
    db: sqlite3.Connection, name: str, key: tuple[str, ...], stored: dict[str, tuple[int, str | None]]
) -> tuple[Unique, ...]:
    """Return by what a row can be replaced besides its key. Raises ConfigError: it is not known."""
    uniques, has_key_index = list[Unique](), False
    indexes = db.execute('SELECT name, origin FROM pragma_index_list(?) WHERE "unique"', (name,)).fetchall()
    for index, origin in indexes:
        parts = db.execute("SELECT name, coll FROM pragma_index_xinfo(?) WHERE key", (index,)).fetchall()
        if origin == "pk":
            has_key_index = True
            if odd := [column for column, collation in parts if collation.upper() != "BINARY"]:
                raise refused(
                    f"table {name}: the key column {odd[0]!r} has a collation by which different texts are one key",
                    "use a primary key with the collation BINARY",
                )
            continue
        if any(column not in stored for column, _ in parts):
            raise refused(
                f"table {name}: the unique index {index} is on an expression or a generated column: a row that REPLACE "
                "removes could be missed",
                "make the index one of columns, or not unique",
            )
        columns = tuple((column, coll, _default(*stored[column])) for column, coll in parts)
        uniques.append(Unique(columns, _condition(db, index)))
    if has_key_index and (rowid := _rowid(db, name, stored)) is not None:
        uniques.append(Unique(((rowid, "BINARY", None),)))
    return tuple(sorted(uniques, key=repr))


def _condition(db: sqlite3.Connection, index: str) -> str | None:
    """Return the condition of a partial index; None if it has none, or one that cannot stand in another statement."""
    query = "SELECT sql FROM main.sqlite_master WHERE type = 'index' AND name = ?"
    statement: str = db.execute(query, (index,)).fetchone()[0] or ""
    unquoted = _QUOTED.sub(lambda name: "x" * len(name[0]), statement)
    if (found := _PARTIAL.search(unquoted)) is None or _COMMENT.search(unquoted):
        return None
    return statement[found.end() :].strip()


def _default(notnull: int, default: str | None) -> str | None:
    return default if notnull else None


def _rowid(db: sqlite3.Connection, name: str, stored: dict[str, tuple[int, str | None]]) -> str | None:
    """Return the name of the number of a row, which is not its key here; None: a row has none, or it has no name."""
    taken = {column.lower() for column in stored}
    if (rowid := next((each for each in _ROWID if each not in taken), None)) is None:
        return None
    quoted = name.replace('"', '""')
    try:
        db.execute(f'SELECT {rowid} FROM main."{quoted}" LIMIT 0')
    except sqlite3.OperationalError as error:
        if f"no such column: {rowid}" not in str(error):
            raise
        return None
    return rowid


def _text(data: bytes) -> str:
    """Return a text. Bytes that are no UTF-8 become such that no column takes."""
    return data.decode("utf-8", "surrogateescape")
