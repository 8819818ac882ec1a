"""The statements by which a database keeps the changes of a table, in the transaction that makes them: an outbox.

A trigger does not record the effect that a statement asked for, but the state of a key right after it: its row in the
table, or that it has none. So a trigger of another program that changes the row again, in whatever order both run,
leaves the right row as the last one; and to keep a change twice is harmless.

REPLACE removes rows without a trigger (unless recursive_triggers is on). One with the same key is followed by a put of
this key. For those with another key, a trigger before the change notes the rows that have one of its unique values. The
trigger after the change then records the deletes of rows that the table no longer has. The one before the next change
does so too: a change that IGNORE leaves out has no trigger after it, and its notes would pile up.

Invariants
    - After a change, the last record of every key that it touched is the key's state in the table.
    - Records have numbers that grow, also over deletes of them (AUTOINCREMENT): the order of the changes.
    - Notes are those of one change.
    - No trigger reads more of the table than the rows with the key, or with one of the unique values.
    - Names of two tables are not those of one trigger: no word before the name is the beginning of another one.

Pure: no clock, thread or I/O.
Source: sqlite.org/lang_createtrigger.html; sqlite.org/lang_conflict.html; docs/decisions/0103-sqlite-capture.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.runtime.sources.sqlite.table import OWN, SqliteTable, Unique

VERSION = 2
"""Version of the tables and triggers below."""
CAPTURES = f"{OWN}captures"
SEQ, DELETED = f"{OWN}seq", f"{OWN}deleted"
WHEN = {
    "before_insert": "BEFORE INSERT",
    "before_update": "BEFORE UPDATE",
    "insert": "AFTER INSERT",
    "update": "AFTER UPDATE",
    "delete": "AFTER DELETE",
}
REGISTER = (
    f"CREATE TABLE IF NOT EXISTS {CAPTURES} (name TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, "
    "log TEXT NOT NULL, attempt INTEGER NOT NULL, confirmed INTEGER NOT NULL, announced INTEGER NOT NULL, "
    "shape TEXT NOT NULL)"
)


@dataclass(frozen=True)
class Statements:
    """Objects that a capture adds to a database for a table."""

    tables: dict[str, str]
    """Name -> statement that creates it."""
    triggers: dict[str, str]


def outbox(name: str) -> str:
    """Return the table that keeps the changes of a table."""
    return f"{OWN}changes_{name}"


def replaced(name: str) -> str:
    """Return the table that notes rows which REPLACE may remove."""
    return f"{OWN}replaced_{name}"


def quoted(name: str) -> str:
    """Return a name as statements write it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def listed(names: Iterable[str]) -> str:
    """Return names as statements list them."""
    return ", ".join(map(quoted, names))


def statements(table: SqliteTable) -> Statements:
    """Return the statements that let a database keep the changes of a table."""
    place, box, notes = quoted(table.name), quoted(outbox(table.name)), quoted(replaced(table.name))
    tables = {
        outbox(table.name): f"CREATE TABLE {box} ({SEQ} INTEGER PRIMARY KEY AUTOINCREMENT, {DELETED} INTEGER NOT NULL, "
        f"{listed(table.names)})"
    }
    insert = f"INSERT INTO {box} ({DELETED}, {listed(table.names)}) SELECT 0, {listed(table.names)} FROM {place} WHERE "
    insert += f"{_is(table, place, 'NEW')};"
    delete = f"INSERT INTO {box} ({DELETED}, {listed(table.key)}) SELECT 1, {_of('OLD', table.key)} WHERE NOT EXISTS "
    delete += f"(SELECT 1 FROM {place} WHERE {_is(table, place, 'OLD')});"
    triggers, replaced_deletes = dict[str, str](), ""
    if table.uniques:
        tables[replaced(table.name)] = f"CREATE TABLE {notes} ({listed(table.key)})"
        conflicts = " OR ".join(_conflict(place, unique) for unique in table.uniques)
        note = f"INSERT INTO {notes} ({listed(table.key)}) SELECT {listed(table.key)} FROM {place} WHERE ({conflicts})"
        replaced_deletes = (
            f"INSERT INTO {box} ({DELETED}, {listed(table.key)}) SELECT 1, {listed(table.key)} FROM {notes} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {place} WHERE {_is(table, place, notes)}); DELETE FROM {notes};"
        )
        triggers |= _trigger(table, "before_insert", f"{replaced_deletes} {note};")
        triggers |= _trigger(table, "before_update", f"{replaced_deletes} {note} AND NOT ({_is(table, place, 'OLD')});")
    triggers |= _trigger(table, "insert", f"{insert} {replaced_deletes}")
    triggers |= _trigger(table, "update", f"{insert} {delete} {replaced_deletes}")
    triggers |= _trigger(table, "delete", delete)
    return Statements(tables, triggers)


def trigger(name: str, when: str) -> str:
    """Return the name of a trigger of a table."""
    return f"{OWN}{when}_{name}"


def _trigger(table: SqliteTable, when: str, body: str) -> dict[str, str]:
    full = trigger(table.name, when)
    return {full: f"CREATE TRIGGER {quoted(full)} {WHEN[when]} ON {quoted(table.name)} BEGIN {body.strip()} END"}


def _is(table: SqliteTable, one: str, other: str) -> str:
    """Return the condition that two rows have the same key, whatever the collations of its columns are."""
    return " AND ".join(f"{one}.{quoted(name)} IS {other}.{quoted(name)} COLLATE BINARY" for name in table.key)


def _of(row: str, names: Iterable[str]) -> str:
    return ", ".join(f"{row}.{quoted(name)}" for name in names)


def _conflict(place: str, unique: Unique) -> str:
    """Return the condition that a row has the unique values of the new one. NULL differs from NULL."""
    parts = []
    for name, collation, default in unique.columns:
        new = f"NEW.{quoted(name)}" if default is None else f"coalesce(NEW.{quoted(name)}, {default})"
        parts.append(f"{place}.{quoted(name)} = {new} COLLATE {quoted(collation)}")
    if unique.where is not None:  # without it, SQLite could not use the index
        parts.append(f"({unique.where})")
    return f"({' AND '.join(parts)})"
