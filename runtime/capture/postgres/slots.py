"""Slots and publications of a capture: their names, how they are created, and the server's reports about them.

A slot belongs to one attempt at a snapshot of one table for one log, as its name shows. So no capture ever uses the
slot of another log, of an earlier table with the same name, or of an abandoned attempt.

Source: postgresql.org/docs/current: view-pg-replication-slots.html, sql-createpublication.html.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import psycopg
from psycopg import sql

from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.runtime.capture.postgres.messages import lsn_of, lsn_text
from holdfast.runtime.sources.postgres.catalogue import Db
from holdfast.runtime.sources.postgres.table import SourceTable

_UUID_DIGITS = 16
_NAME_MOST = 40


class SlotInUse(Unavailable):
    """Another connection reads the slot, perhaps one whose process has ended a moment ago."""


@dataclass(frozen=True)
class Lag:
    """How far a slot is behind."""

    behind_bytes: int
    """Bytes of the server's log after the confirmed position."""
    retained_bytes: int
    """Bytes of the server's log that the slot keeps on the server's disk."""


def slot_prefix(log_uuid: str, table: SourceTable) -> str:
    """Return how the names of the slots of a log begin."""
    return f"holdfast_{log_uuid.replace('-', '')[:_UUID_DIGITS]}_{table.oid}_"


def lock_key(log_uuid: str) -> int:
    """Return the key of the advisory lock that processes of one log take turns by: a signed integer of 64 bits."""
    return int.from_bytes(bytes.fromhex(log_uuid.replace("-", "")[:_UUID_DIGITS]), "big", signed=True)


def publication_of(table: SourceTable) -> str:
    """Return the name of the publication that a capture creates for a table."""
    plain = re.sub(r"[^a-z0-9_]", "_", f"{table.schema}_{table.name}".lower())[:_NAME_MOST]
    return f"holdfast_{plain}_{crc32(f'{table.schema}.{table.name}'.encode()):08x}"


def try_lock(db: Db, key: int) -> bool:
    """Take the lock of a log for as long as the connection is open; return whether no other process has it."""
    found = db.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,)).fetchone()
    return found is not None and bool(found[0])


_GAP = "changes are missing from the stream, so capture the table into another log, which begins with a new snapshot"


def ensure_publication(db: Db, table: SourceTable, name: str, *, create: bool, begun: bool) -> None:
    """Check a publication, or create it.

    Args:
        begun: Whether the log has a snapshot. Then nothing is created or advised that would hide a gap: changes that
            were committed while the publication did not have the table are never sent.

    Raises:
        ConfigError: it lacks the table, columns, rows or kinds of changes; or it is missing and not to be created.
        NotAdmitted: this user may not create it.
    """
    publication = db.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate "
        "FROM pg_catalog.pg_publication WHERE pubname = %s",
        (name,),
    ).fetchone()
    identifier, place = sql.Identifier(name), sql.Identifier(table.schema, table.name)
    statement = _statement(table, name)
    if publication is None and create and not begun:
        try:
            db.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE ONLY {}").format(identifier, place))
        except psycopg.errors.DuplicateObject:  # another process was faster
            ensure_publication(db, table, name, create=False, begun=begun)
        except psycopg.errors.InsufficientPrivilege as error:
            raise _not_publishing(name, statement) from error
        return
    gap = _GAP
    if publication is None and begun:
        raise _lost(f"the publication {name!r} is missing: it was dropped", gap)
    if publication is None:
        raise _refused(f"there is no publication {name!r}", f"create it: {statement}")
    lacking = (
        partial(_lost, next_step=gap)
        if begun
        else partial(_refused, next_step=f'run DROP PUBLICATION "{name}"; {statement}')
    )
    if not publication[0]:
        raise lacking(f"the publication {name!r} lacks inserts, updates, deletes or truncates")
    part = db.execute(
        "SELECT attnames::text[], rowfilter IS NULL FROM pg_catalog.pg_publication_tables "
        "WHERE pubname = %s AND schemaname = %s AND tablename = %s",
        (name, table.schema, table.name),
    ).fetchone()
    if part is None and begun:
        raise _lost(f"the publication {name!r} no longer has the {table.where}", gap)
    if part is None:
        raise _refused(
            f"the publication {name!r} does not have the {table.where}",
            f'add it: ALTER PUBLICATION "{name}" ADD TABLE "{table.schema}"."{table.name}"',
        )
    names, whole = part
    if not whole or {column.name for column in table.columns} - set(names):
        raise lacking(f"the publication {name!r} leaves out rows or columns of the {table.where}")


def check_may_publish(db: Db, table: SourceTable, name: str) -> None:
    """Check that this user may create a publication. Raises NotAdmitted."""
    privilege_row = db.execute(
        "SELECT has_database_privilege(current_database(), 'CREATE') AND pg_has_role(relowner, 'USAGE') "
        "FROM pg_catalog.pg_class WHERE oid = %s::oid",
        (table.oid,),
    ).fetchone()
    if privilege_row is not None and not privilege_row[0]:
        raise _not_publishing(name, _statement(table, name))


def _statement(table: SourceTable, name: str) -> str:
    return f'CREATE PUBLICATION "{name}" FOR TABLE "{table.schema}"."{table.name}"'


def _not_publishing(name: str, made: str) -> NotAdmitted:
    return NotAdmitted(
        f"this user may not create the publication {name!r}: it needs CREATE on the database, and to own the table",
        not_done="nothing was captured",
        next_step=f"let an administrator create it: {made}",
    )


Published = tuple[object, ...]
"""A value that changes with the publication: a table that is set again, with or without a filter, has another OID
there."""


def published(db: Db, table: SourceTable, name: str) -> Published:
    """Return the state of a publication now, as far as it concerns a table."""
    publication = db.execute(
        "SELECT p.oid::int8, pubinsert, pubupdate, pubdelete, pubtruncate, r.oid::int8 "
        "FROM pg_catalog.pg_publication p "
        "LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %s WHERE p.pubname = %s",
        (table.oid, name),
    ).fetchone()
    return publication or ()


def check_published(db: Db, table: SourceTable, name: str, before: Published) -> None:
    """Check that a publication has left nothing out since a state of it that was in order.

    The received changes were committed before this check, so it finds any filter that left out some of them.

    Raises:
        ConfigError: it leaves something out, or may have done so.
    """
    if published(db, table, name) == before:
        return
    ensure_publication(db, table, name, create=False, begun=True)
    raise _lost(
        f"the publication {name!r} was changed while it was read, and may have left out changes of the {table.where} "
        f"meanwhile",
        _GAP,
    )


def check_slot(db: Db, slot: str, at: int) -> None:
    """Check that a slot still has all changes after a position.

    Raises:
        ConfigError: it is missing, or has lost or left out changes.
        SlotInUse: another connection reads it.
    """
    slot_row = db.execute(
        "SELECT active_pid, wal_status, confirmed_flush_lsn::text, pg_current_wal_flush_lsn()::text "
        "FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND database = current_database()",
        (slot,),
    ).fetchone()
    end = "capture the table into another log, which begins with a new snapshot"
    if slot_row is None:
        raise _lost(
            f"the replication slot {slot} is missing: it was dropped, or the table or the database was replaced", end
        )
    pid, wal_status, confirmed_lsn, wal_end = slot_row
    if wal_status == "lost":
        raise _lost(
            f"the replication slot {slot} has lost changes: the server removed the log that it needed",
            f"raise max_slot_wal_keep_size, drop the slot (SELECT pg_drop_replication_slot('{slot}')), and {end}",
        )
    if lsn_of(confirmed_lsn) > at:
        raise _lost(
            f"the log has the changes up to {lsn_text(at)}, but the slot {slot} begins at {confirmed_lsn}: the log was "
            "restored from an older copy, or the slot was advanced by another program",
            f"restore the newer log; else {end}",
        )
    if lsn_of(wal_end) < at:
        raise _lost(
            f"the log has the changes up to {lsn_text(at)}, but the server is at {wal_end}: the database was restored "
            "from an older copy",
            end,
        )
    if pid is not None:
        raise SlotInUse(
            f"the replication slot {slot} is in use by the server process {pid}",
            not_done="nothing was captured",
            next_step="nothing, if a capture ended just now: the server notices within wal_sender_timeout; else end "
            f"the program that uses it: SELECT pg_terminate_backend({pid})",
        )


def has_publication(db: Db, name: str) -> bool:
    """Return whether there is a publication of this name."""
    return bool(db.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone())


def free_slots(db: Db) -> int:
    """Return how many slots the server can still create."""
    found = db.execute(
        "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_catalog.pg_replication_slots"
    ).fetchone()
    return 0 if found is None else int(found[0])


def drop_others(db: Db, prefix: str, keep: str | None) -> None:
    """Drop the slots of attempts that were given up. One that is still in use is left to a later start."""
    slots = db.execute(
        "SELECT slot_name FROM pg_catalog.pg_replication_slots "
        "WHERE starts_with(slot_name::text, %s) AND slot_name <> %s AND NOT active AND database = current_database()",
        (prefix, keep or ""),
    ).fetchall()
    for (name,) in slots:
        try:
            db.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            continue


def lag_of(db: Db, slot: str) -> Lag | None:
    """Return how far a slot is behind; None if it has lost its place."""
    lags = db.execute(
        "SELECT (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::int8, "
        "(pg_current_wal_flush_lsn() - restart_lsn)::int8 FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    return None if lags is None or None in lags else Lag(max(0, lags[0]), max(0, lags[1]))


def _lost(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="nothing more was captured, and the log stays as it is", next_step=next_step)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was captured", next_step=next_step)
