"""The changes that a database keeps for a capture, until they are in the log.

For each captured table, a row of `_holdfast_captures` records the log that receives its changes, and the attempt. It
also records the changes that were removed because the log has them (`confirmed`), and the next append (`announced`).
Changes are announced before they are appended, in a transaction that sees every change committed before it. So an
append has whole transactions, and all of it is on the disk of the database. An append that was announced is not made
larger.

So the log's tag is always one of both numbers. If it is not, database or log were restored from a copy.

Invariants
    - Only changes that the log has are removed.
    - Between `confirmed` and `announced`, all processes append the same changes.

Source: docs/decisions/0103-sqlite-capture.md.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.capture.sqlite.triggers import (
    CAPTURES,
    DELETED,
    REGISTER,
    SEQ,
    VERSION,
    WHEN,
    listed,
    outbox,
    quoted,
    replaced,
    statements,
    trigger,
)
from holdfast.runtime.capture.target import Overtaken
from holdfast.runtime.sources.sqlite.catalogue import check_triggers, described
from holdfast.runtime.sources.sqlite.table import SqliteColumn, SqliteTable, Unique, refused

PIECE_ROWS = 20_000
PIECE_BYTES = 16 * 1024 * 1024
REMOVED_ROWS = 20_000
"""How many changes one transaction removes at most."""
Row: TypeAlias = tuple[Any, ...]
ANOTHER = "capture the table into another log, which begins with a new snapshot, after: "


def forgetting(table: str) -> str:
    """Return the statement by which a database forgets a capture."""
    name = table.replace("'", "''")
    return f"DELETE FROM {CAPTURES} WHERE name = '{name}' COLLATE NOCASE"


class Differs(Exception):
    """The database does not know the position that this process has read from the log."""


@dataclass(frozen=True)
class Registration:
    """The database's entry about the capture of a table."""

    name: str
    version: int
    log: str
    attempt: int
    confirmed: int
    announced: int
    shape: str

    def table(self, schema: pa.Schema | None) -> SqliteTable:
        """Return the table as it was when the capture began."""
        found = json.loads(self.shape)
        columns = tuple(SqliteColumn(*each) for each in found["columns"])
        uniques = tuple(Unique(tuple((a, b, c) for a, b, c in each), where) for each, where in found["uniques"])
        return SqliteTable(self.name, columns, tuple(found["key"]), uniques, schema)


@dataclass(frozen=True)
class Announced:
    """The next append: the changes up to a number, and the reason if nothing can be appended after them."""

    upto: int
    problem: ConfigError | None


def registered(db: sqlite3.Connection, name: str) -> Registration | None:
    """Return the database's entry about the capture of a table; None: it has none. Raises ConfigError."""
    if not db.execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (CAPTURES,)).fetchone():
        return None
    row = db.execute(
        f"SELECT name, version, log, attempt, confirmed, announced, shape FROM main.{CAPTURES} "
        "WHERE name = ? COLLATE NOCASE",
        (name,),
    ).fetchone()
    if row is None:
        return None
    entry = Registration(*row)
    if entry.version != VERSION:
        raise refused(
            f"table {name}: its triggers have the format {entry.version}, and this version of Holdfast knows {VERSION}",
            "run the version of Holdfast that began the capture",
        )
    return entry


def install(db: sqlite3.Connection, table: SqliteTable, log: str, attempt: int) -> None:
    """Let the database keep the changes of a table, for an attempt at a snapshot.

    Raises:
        ConfigError: the table is captured into another log, or a trigger is in the way.
        Overtaken: a later attempt has begun.
        sqlite3.Error
    """
    ddl = statements(table)
    with writing(db):
        check_triggers(db, table)
        db.execute(REGISTER)
        before = registered(db, table.name)
        if before is not None and before.log != log:
            raise refused(
                f"{table.where} is captured into another log, whose process would miss its changes",
                f"if that log was given up, run in the database: {forgetting(table.name)}",
            )
        if before is not None and before.attempt >= attempt:
            raise Overtaken
        _drop(db, table.name)
        for statement in (*ddl.tables.values(), *ddl.triggers.values()):
            db.execute(statement)
        box = quoted(outbox(table.name))
        db.execute(f"INSERT INTO {box} ({DELETED}) VALUES (1)")  # so that no position is 0
        db.execute(f"DELETE FROM {box}")
        shape = {
            "columns": [[column.name, column.declared] for column in table.columns],
            "key": table.key,
            "uniques": [(each.columns, each.where) for each in table.uniques],
        }
        db.execute(
            f"INSERT OR REPLACE INTO {CAPTURES} VALUES (?, ?, ?, ?, 1, 1, ?)",
            (table.name, VERSION, log, attempt, json.dumps(shape)),
        )


def uninstall(db: sqlite3.Connection, table: SqliteTable, log: str, attempt: int) -> None:
    """Remove the objects that an attempt has added, unless a later one has begun. Raises ConfigError, sqlite3.Error."""
    with writing(db):
        found = registered(db, table.name)
        if found is not None and (found.log, found.attempt) == (log, attempt):
            _drop(db, table.name)
            db.execute(f"DELETE FROM {CAPTURES} WHERE name = ?", (table.name,))


def announce(db: sqlite3.Connection, table: SqliteTable, log: str, attempt: int, position: int) -> None:
    """Announce the position of a snapshot. Raises Overtaken, sqlite3.Error."""
    with writing(db):
        cursor = db.execute(
            f"UPDATE {CAPTURES} SET announced = ? WHERE name = ? AND log = ? AND attempt = ?",
            (position, table.name, log, attempt),
        )
        if cursor.rowcount != 1:
            raise Overtaken


def advance(db: sqlite3.Connection, table: SqliteTable, log: str, attempt: int, position: int) -> Announced:
    """Remove the changes that the log has, and announce those that follow.

    Args:
        position: The number up to which the log has all changes.

    Raises:
        ConfigError: changes may be missing from the next append.
        Differs: the database knows another position.
        sqlite3.Error
    """
    box, more = quoted(outbox(table.name)), True
    while more:
        with writing(db):
            found = _checked(db, table.name, log, attempt, position)
            if found.confirmed == position < found.announced:
                return Announced(found.announced, _changed(db, table))
            db.execute(f"UPDATE {CAPTURES} SET announced = ? WHERE name = ?", (position, table.name))
            db.execute(
                f"DELETE FROM {box} WHERE {SEQ} IN (SELECT {SEQ} FROM {box} WHERE {SEQ} <= ? ORDER BY {SEQ} LIMIT ?)",
                (position, REMOVED_ROWS),
            )
            more = db.execute(f"SELECT 1 FROM {box} WHERE {SEQ} <= ? LIMIT 1", (position,)).fetchone() is not None
            if not more:
                upto, problem = newest(db, table.name), _changed(db, table)
                if table.uniques:
                    db.execute(f"DELETE FROM {quoted(replaced(table.name))}")
                db.execute(
                    f"UPDATE {CAPTURES} SET confirmed = ?, announced = ? WHERE name = ?", (position, upto, table.name)
                )
    return Announced(upto, problem)


def newest(db: sqlite3.Connection, name: str) -> int:
    """Return the number of the newest change. Raises Differs: the outbox no longer exists."""
    found = db.execute("SELECT seq FROM main.sqlite_sequence WHERE name = ?", (outbox(name),)).fetchone()
    if found is None:
        raise Differs
    return int(found[0])


def is_idle(db: sqlite3.Connection, name: str, position: int) -> bool:
    """Return whether there is nothing to remove, and nothing to append. Raises Differs."""
    found = registered(db, name)
    if found is None:
        raise Differs
    return found.confirmed == found.announced == position == newest(db, name)


def changes(db: sqlite3.Connection, table: SqliteTable, after: int, upto: int) -> Iterator[pa.Table]:
    """Return the changes after a number, in pieces, each with the mark of a delete as its last column.

    No read is open while a piece is used: it would let writers wait. Raises ConfigError, sqlite3.Error.
    """
    query = (
        f"SELECT {SEQ}, {DELETED}, {listed(table.names)} FROM {quoted(outbox(table.name))} "
        f"WHERE {SEQ} > ? AND {SEQ} <= ? ORDER BY {SEQ} LIMIT {PIECE_ROWS}"
    )
    while after < upto:
        cursor = db.execute(query, (after, upto))
        rows = next(pieces(cursor), [])
        cursor.close()
        if not rows:
            return
        after = rows[-1][0]
        yield marked(table, [row[2:] for row in rows], [bool(row[1]) for row in rows])


def pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Return rows in pieces that are limited in rows and bytes."""
    piece, size = list[Row](), 0
    for row in rows:
        piece.append(row)
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(piece) >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def marked(table: SqliteTable, rows: list[Row], deleted: list[bool]) -> pa.Table:
    """Return rows as columns, with whether each is deleted as the last one. Raises ConfigError."""
    return table.table_of(rows, deleted).append_column(DELETED, pa.array(deleted, pa.bool_()))


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """Write in one transaction, which no other writer overlaps; an error takes it back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _checked(db: sqlite3.Connection, name: str, log: str, attempt: int, position: int) -> Registration:
    entry = registered(db, name)
    if entry is None or (entry.log, entry.attempt) != (log, attempt):
        raise Differs
    if position not in (entry.confirmed, entry.announced):
        raise Differs
    return entry


def _changed(db: sqlite3.Connection, table: SqliteTable) -> ConfigError | None:
    """Return why nothing can be captured after the changes in the outbox; None: nothing has changed.

    Raises:
        ConfigError: the outbox itself may lack changes.
    """
    try:
        now = described(db, table.name, table.schema)
    except ConfigError as error:
        return _stopped(table, error.what)
    if (now.columns, now.key) != (table.columns, table.key):
        had, has = (", ".join(f"{c.name} {c.declared}".strip() for c in each.columns) for each in (table, now))
        return _stopped(table, f"its columns were {had}, and are {has} now")
    made = statements(table).triggers
    found = dict(db.execute("SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger'").fetchall())
    if any(found.get(name) != statement for name, statement in made.items()):
        return _stopped(table, "its triggers were dropped or changed, perhaps with the table")
    if now.uniques != table.uniques:
        raise refused(
            f"{table.where} has other unique columns than when its capture began: rows that REPLACE removed may be "
            "missing from its changes",
            f"{ANOTHER}{forgetting(table.name)}",
        )
    check_triggers(db, table)
    return None


def _stopped(table: SqliteTable, how: str) -> ConfigError:
    return ConfigError(
        f"{table.where} has changed while it was captured: {how}",
        not_done="no change after that was captured; those before it are in the log",
        next_step=f"{ANOTHER}{forgetting(table.name)}",
    )


def _drop(db: sqlite3.Connection, name: str) -> None:
    """Drop the objects that an earlier attempt has added."""
    for when in WHEN:
        db.execute(f"DROP TRIGGER IF EXISTS {quoted(trigger(name, when))}")
    for made in (outbox(name), replaced(name)):
        db.execute(f"DROP TABLE IF EXISTS {quoted(made)}")
