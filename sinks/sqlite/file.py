"""The SQLite file: opening it, naming things in it, and what its errors mean for a delivery.

SQLite reports hundreds of codes; a delivery distinguishes three. The file is busy, the disk full
or a read failed: the outcome counts as unknown, and trying again may work. The bytes are broken:
the user has to restore an older file. Every other error in our statements means that the table is
not what the job was planned for, or never takes such a row.

Invariants
    - Names reach a statement only through `quoted`.
    - A code that is in no list is a bug here, and is raised as it is.

Source: sqlite.org/rescode.html.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, HoldfastError, Unavailable
from holdfast.sinks.contract import OP
from holdfast.sinks.sql.values import affinity, declared_type, real_as_json

BUSY_TIMEOUT_MS = 250
"""How long a statement waits for another's lock before it gives way."""
HEADER = b"SQLite format 3\x00"

_AGAIN = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_SCHEMA,
}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_REFUSED = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_ERROR,
}


def connect(path: str, mode: str) -> sqlite3.Connection:
    """Open the file; mode "rw" never creates it, "rwc" does, for its user alone."""
    if mode == "rwc":
        with suppress(OSError):  # What stands in the way, SQLite reports.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    db = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_MS / 1_000,
        isolation_level=None,  # Transactions begin where the code says BEGIN, nowhere else.
        check_same_thread=False,
    )
    db.execute("PRAGMA synchronous = EXTRA")
    db.create_function("holdfast_real", 1, real_as_json, deterministic=True)
    return db


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise SQLite's errors as the kind that says who acts."""
    try:
        yield
    except sqlite3.Error as error:
        meaning = meaning_of(where, error)
        if meaning is None:
            raise
        raise meaning from error


@contextmanager
def preparing(where: str) -> Iterator[None]:
    """Raise SQLite's errors while a target is prepared: no delivery is under way, and nothing is retried."""
    try:
        with translated(where):
            yield
    except Unavailable as error:
        error.not_done = "the table was neither checked nor created"
        error.next_step = (
            "check whether another program holds the file, and that its disk has free space and can be written; "
            "then run the job again"
        )
        raise


def meaning_of(where: str, error: sqlite3.Error) -> HoldfastError | None:
    """Return what the error means for a delivery, None if it is a bug here."""
    extended = getattr(error, "sqlite_errorcode", None)
    code = None if extended is None else extended & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(
            f"{where}: the disk of the file is full ({error})",
            not_done="it is not known whether this delivery is in",
            next_step="free space on the disk of this file; delivery is tried again by itself, and nothing is skipped",
        )
    if code in _AGAIN:
        return Unavailable(
            f"{where}: {error}",
            not_done="it is not known whether this delivery is in",
            next_step="nothing: delivery reads the tag and tries again; if it stays so, look who holds the file, "
            "at the disk's free space and its health",
        )
    if code in _BROKEN:
        return Damaged(
            f"{where}: {error}",
            not_done="nothing was delivered",
            next_step="restore the file from a backup (sqlite3 FILE .recover saves what it can), then rewind the job",
        )
    if code in _REFUSED:
        return ConfigError(
            f"{where}: SQLite refuses the delivery: {error}",
            not_done="no row of this epoch was written, nor of any later one",
            next_step="for a duplicate key give the sink key=[...], so that rows replace each other; else compare "
            "the table with the stream's columns, and look at its constraints and at the file's permissions. Rows that "
            "the table can never take stay first in line: correct the job, and leave them behind with holdfast rewind "
            "JOB.py --to-epoch N --apply, where N is the epoch that was last delivered (holdfast status JOB)",
        )
    return None


def quoted(name: str) -> str:
    """Return the name as SQL takes it, whatever it holds."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def listed(names: Iterable[str]) -> str:
    """Return the names quoted, between commas."""
    return ", ".join(quoted(name) for name in names)


def json_object(alias: str, names: Iterable[str]) -> str:
    """Return the SQL expression that writes these columns as canonical JSON (see sql_values)."""
    members = []
    for name in sorted(names):
        column = f"{alias}.{quoted(name)}"
        label = json.dumps(name, ensure_ascii=False).replace("'", "''")
        members.append(
            f"'{label}:' || CASE typeof({column}) WHEN 'integer' THEN {column} "
            f"WHEN 'real' THEN holdfast_real({column}) WHEN 'text' THEN json_quote({column}) "
            f"WHEN 'blob' THEN '{{\"hex\":\"' || lower(hex({column})) || '\"}}' ELSE 'null' END"
        )
    return "'{' || " + " || ',' || ".join(members) + " || '}'" if members else "'{}'"


def check_name(where: str, kind: str, name: str) -> None:
    """Refuse a name that SQL cannot hold even quoted."""
    if not name or "\x00" in name:
        raise ConfigError(f"{where}: {name!r} is no name for a {kind}", next_step=f"rename the {kind}")


def check_columns(where: str, schema: pa.Schema) -> None:
    """Refuse columns that no table can have.

    Raises:
        ConfigError: a name or a type that SQLite does not take, or two names that it takes for one.
    """
    taken = {OP}
    for field in schema:
        check_name(where, "column", field.name)
        declared_type(where, field)
        if field.name.lower() in taken:
            raise ConfigError(
                f"{where}: the column {field.name!r} appears twice; SQLite takes upper and lower case as one",
                next_step="rename one of the columns before the sink",
            )
        taken.add(field.name.lower())


def check_place(where: str, path: str) -> None:
    """Refuse a path where no SQLite file is, or can be created."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigError(f"{where}: there is no directory {folder}", next_step=f"create it: mkdir -p {folder}")
    if os.path.isdir(path):
        raise ConfigError(f"{where}: the path is a directory", next_step="give the path of a file in it")
    exists = os.path.exists(path)
    if not os.access(folder, os.W_OK) or (exists and not os.access(path, os.W_OK | os.R_OK)):
        raise ConfigError(
            f"{where}: the file or its directory is not writable; SQLite keeps its journal beside the file",
            next_step="change the permissions, or choose another path",
        )
    if exists:
        with open(path, "rb") as file:
            header = file.read(len(HEADER))
        if header and header != HEADER:
            raise ConfigError(f"{where}: the file is not a SQLite database", next_step="choose another path")


def create_table(where: str, table: str, schema: pa.Schema, key: tuple[str, ...] | None) -> str:
    """Return the statement that creates a table for the stream."""
    columns = [
        f"{quoted(field.name)} {declared_type(where, field)}{' NOT NULL' if field.name in (key or ()) else ''}"
        for field in schema
    ]
    if key is not None:
        columns.append(f"PRIMARY KEY ({listed(key)})")
    return f"CREATE TABLE main.{quoted(table)} ({', '.join(columns)})"


def table_columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str, int]]:
    """Return name, declared type and place in the primary key (0: none) of every column; [] if no table."""
    found = db.execute("SELECT name, type, pk FROM pragma_table_info(?, 'main')", (table,))
    return [(name, declared, place) for name, declared, place in found]


def check_existing(
    where: str, db: sqlite3.Connection, table: str, schema: pa.Schema, key: tuple[str, ...] | None
) -> None:
    """Refuse a table that the stream does not fit.

    Raises:
        ConfigError: columns, their types or the primary key differ, a column takes no null and may get one, or
            different keys are the same in the table.
    """
    found = {name: (declared, position) for name, declared, position in table_columns(db, table)}
    wanted = {field.name: declared_type(where, field) for field in schema}
    differences = [f"{name!r} is missing" for name in wanted if name not in found]
    differences += [f"{name!r} is not a column of the stream" for name in found if name not in wanted]
    for name, declared in wanted.items():
        if name in found and affinity(found[name][0]) != declared:
            differences.append(f"{name!r} is declared {found[name][0] or 'without a type'}, needed is {declared}")
    differences += _may_be_null(db, table, schema, key or ())
    primary = {name for name, (_, position) in found.items() if position}
    if key is not None and primary != set(key):
        differences.append(f"its primary key is {sorted(primary)}, the sink's key is {sorted(key)}")
    differences += [
        f"{name!r} is compared by {collation}, needed is BINARY: different keys would be one row"
        for name, collation in _loosely_compared(db, table)
        if key is not None and wanted.get(name) == "TEXT"
    ]
    if differences:
        raise ConfigError(
            f"{where}: the existing table differs: {'; '.join(differences)}",
            not_done="the job was not started, the table was not changed",
            next_step="name another table, or change or drop this one; a missing table is created to fit",
        )


def _may_be_null(db: sqlite3.Connection, table: str, schema: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """Say which columns take no null, and may get one: a row with it would be refused after its epoch is committed.

    Those of the key may not: `accept` looks at every row's.
    """
    found = db.execute("SELECT name FROM pragma_table_info(?, 'main') WHERE \"notnull\"", (table,))
    strict, differences = {name for (name,) in found} - set(key), []
    for field in schema:
        if field.name in strict and field.nullable:
            differences.append(f"{field.name!r} is NOT NULL, and may be null in the stream")
        elif field.name in strict and pa.types.is_floating(field.type):
            differences.append(f"{field.name!r} is NOT NULL, and may be NaN in the stream, which is stored as NULL")
    return differences


def _loosely_compared(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Return columns of the primary key that take different texts as the same one, with their collation."""
    found = db.execute(
        "SELECT x.name, x.coll FROM pragma_index_list(?, 'main') l JOIN pragma_index_xinfo(l.name, 'main') x "
        "WHERE l.origin = 'pk' AND x.key AND upper(x.coll) <> 'BINARY'",
        (table,),
    )
    return found.fetchall()
