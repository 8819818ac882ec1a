"""A table as its Postgres server describes it, and whether it can be captured.

Source: postgresql.org/docs/current: catalog-pg-class.html, catalog-pg-attribute.html, logical-replication-publication.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.runtime.sources.postgres.columns import SETTINGS, PgColumn
from holdfast.runtime.sources.postgres.table import DEFAULT, FULL, SourceTable
from holdfast.secrets import Secret
from holdfast.sinks.postgres.errors import said_by
from holdfast.sinks.postgres.place import conninfo, named

VERSION_MIN = 150_000
"""Postgres 15: publications name their columns, and empty transactions are not sent."""
_LIMITS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""A snapshot may take hours; and the server frees what a vanished host had locked after a minute."""
RDS_REPLICATION = "rds_replication"
"""The role whose members Amazon RDS lets replicate; they lack the attribute REPLICATION, which it gives to no user."""
_IDENTITIES = {DEFAULT: "DEFAULT", "n": "NOTHING", "i": "USING INDEX", FULL: "FULL"}
Db = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def connected(dsn: str, password: Secret | None, **parameters: str) -> Iterator[Db]:
    """Connect to the server, until the block ends; errors of the server inside become ours.

    Raises:
        ConfigError, NotAdmitted, Unavailable: see `meaning_of`.
    """
    where, value = f"Postgres {named(dsn)}", None if password is None else password.value()
    info = make_conninfo(conninfo(dsn), **({} if value is None else {"password": value}), **parameters)
    try:
        # Without `with`: it would send a COMMIT, which a connection with a running stream cannot.
        with closing(psycopg.connect(info, autocommit=True, prepare_threshold=None)) as db:
            if db.info.server_version < VERSION_MIN:
                raise _refused(
                    f"{where}: the server has version {db.info.server_version // 10_000}, needed is 15 or newer",
                    "use a newer server",
                )
            for name, setting in {**SETTINGS, **_LIMITS}.items():
                db.execute(f"SET {name} = '{setting}'".encode())
            yield db
    except psycopg.Error as error:
        raise meaning_of(where, error) from error


def meaning_of(where: str, error: psycopg.Error) -> HoldfastError:
    """Return what an error of the server means for a capture. It repeats the first line only: others hold values."""
    message = said_by(error)
    state = error.sqlstate or ""
    if state == "42501":
        return NotAdmitted(
            f"{where}: this user lacks a right: {message}",
            not_done="nothing was captured",
            next_step="grant what is missing: REPLICATION (ALTER ROLE ... REPLICATION), SELECT on the table, and for "
            "the publication that it owns the table, or an administrator creates it",
        )
    if state == "53400" or "replication slots are in use" in message:
        return ConfigError(
            f"{where}: the server has no free replication slot: {message}",
            not_done="nothing was captured",
            next_step="drop slots that are no longer used (SELECT pg_drop_replication_slot(...)), or raise "
            "max_replication_slots and restart the server",
        )
    if state.startswith(("08", "53", "55", "57", "40")) or not state and not _refused_login(message):
        return Unavailable(
            f"{where}: {message}",
            not_done="changes after the last append were not captured yet",
            next_step="check that the server runs and that this host reaches it; the capture continues where it was",
        )
    if not state or state.startswith("28") or state == "3D000":
        return NotAdmitted(
            f"{where}: the server did not let this user in, from {socket.gethostname()}: {message}",
            not_done="nothing was captured",
            next_step="check user, database and password (password=hf.secret(...), a password file or PGPASSWORD), and "
            "pg_hba.conf of the server",
        )
    return ConfigError(
        f"{where}: Postgres refuses: {message} ({state})",
        not_done="nothing was captured",
        next_step="correct the table or the configuration of hf.PostgresChanges",
    )


def described(db: Db, schema: str, name: str, wanted: Collection[str] | None = None) -> SourceTable:
    """Return a table.

    Args:
        wanted: The columns to capture; None: all but generated ones.

    Raises:
        ConfigError: it is missing, or cannot be captured.
    """
    table_row = db.execute(
        "SELECT c.oid::int8, c.relkind::text, c.relpersistence::text, c.relreplident::text, c.reltoastrelid <> 0 "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    where = f"table {schema}.{name}"
    if table_row is None:
        raise _refused(f"{where} does not exist", "create it, or correct tables of hf.PostgresChanges")
    oid, kind, persistence, identity, has_toast = table_row
    if kind != "r" or persistence != "p":
        raise _refused(f"{where} is no ordinary, permanent table", "capture an ordinary table, such as one partition")
    columns, key = _columns(db, oid)
    if not key:
        raise _refused(f"{where} has no primary key", f"add one: ALTER TABLE {schema}.{name} ADD PRIMARY KEY (...)")
    if (child := _child(db, oid)) is not None:
        raise _inherited(where, child)
    _check_identity(schema, name, identity, has_toast)
    if wanted is None:
        return SourceTable(schema, name, oid, columns, key, identity == FULL)
    _check_wanted(where, wanted, [column.name for column in columns], key)
    chosen = tuple(column for column in columns if column.name in wanted)
    return SourceTable(schema, name, oid, chosen, key, identity == FULL, partial=True)


def check_server(dsn: str, db: Db) -> None:
    """Refuse a server, or a user, by which no change can be captured.

    Raises:
        ConfigError: wal_level is not logical, or the server is a standby.
        NotAdmitted: the user has no right to replicate.
    """
    role_row = db.execute(
        "SELECT current_setting('wal_level'), pg_is_in_recovery(), rolname, rolreplication OR rolsuper OR EXISTS ("
        "SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = %s AND pg_has_role(current_user, g.oid, 'MEMBER')) "
        "FROM pg_catalog.pg_roles WHERE rolname = current_user",
        (RDS_REPLICATION,),
    ).fetchone()
    assert role_row is not None, "a session has a role"
    level, standby, user, may = role_row
    where = f"Postgres {named(dsn)}"
    if standby:
        raise _refused(f"{where}: the server is a standby", "name the primary in the connection string")
    if level != "logical":
        raise _refused(
            f"{where}: wal_level is {level}, needed is logical",
            "run ALTER SYSTEM SET wal_level = logical, and restart the server",
        )
    if not may:
        raise NotAdmitted(
            f"{where}: the user {user} has no right to replicate",
            not_done="nothing was captured",
            next_step=f"grant it as an administrator: ALTER ROLE {user} REPLICATION (on Amazon RDS: GRANT "
            f"{RDS_REPLICATION} TO {user})",
        )


def check_readable(db: Db, table: SourceTable) -> None:
    """Check that this user may read the rows of a table, as a snapshot does.

    Raises:
        NotAdmitted: a permission is missing.
    """
    privilege_row = db.execute(
        "SELECT current_user, has_schema_privilege(c.relnamespace, 'USAGE'), bool_and(has_column_privilege(c.oid, "
        "a.attnum, 'SELECT')) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.oid = %s::oid AND a.attnum > 0 AND a.attname = ANY(%s::text[]) GROUP BY c.relnamespace",
        (table.oid, [column.name for column in table.columns]),
    ).fetchone()
    if privilege_row is None:
        return
    user, finds, reads = privilege_row
    grants = [] if finds else [f'GRANT USAGE ON SCHEMA "{table.schema}" TO "{user}"']
    grants += [] if reads else [f'GRANT SELECT ON "{table.schema}"."{table.name}" TO "{user}"']
    if grants:
        raise NotAdmitted(
            f"the user {user} may not read the {table.where}",
            not_done="nothing was captured",
            next_step=f"grant it: {'; '.join(grants)}",
        )


def primary_key(db: Db, oid: int) -> str | None:
    """Return the columns of a table's primary key by their numbers, which no renaming changes; None: it has none."""
    index_row = db.execute(
        "SELECT indkey::text FROM pg_catalog.pg_index WHERE indrelid = %s::oid AND indisprimary AND indimmediate",
        (oid,),
    ).fetchone()
    return None if index_row is None else str(index_row[0])


def check_key(db: Db, table: SourceTable, before: str | None) -> None:
    """Check that a table has kept the primary key by which its log identifies rows, and that all its rows are its own.

    Raises:
        ConfigError: it has none, or another one: two rows may have had the same key. Or another table inherits from it.
    """
    if (child := _child(db, table.oid)) is not None:
        raise _inherited(table.where, child)
    if primary_key(db, table.oid) == before:
        return
    key = ", ".join(f'"{name}"' for name in table.key)
    raise ConfigError(
        f"{table.where} has lost its primary key ({key}), by which its log identifies rows",
        not_done="nothing more was captured, and the log stays as it is",
        next_step="if no two rows have had the same key since, restore it, and start again: ALTER TABLE "
        f'"{table.schema}"."{table.name}" ADD PRIMARY KEY ({key}); else capture the table into another log',
    )


def _columns(db: Db, oid: int) -> tuple[tuple[PgColumn, ...], tuple[str, ...]]:
    """Return the columns and the primary key of a table."""
    column_rows = db.execute(
        "WITH RECURSIVE base(attnum, oid, typmod, domain) AS ("
        "SELECT attnum, atttypid, atttypmod, false FROM pg_catalog.pg_attribute WHERE attrelid = %(oid)s::oid "
        "UNION ALL SELECT attnum, typbasetype, CASE WHEN typtypmod = -1 THEN typmod ELSE typtypmod END, true "
        "FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid WHERE typtype = 'd') "
        "SELECT a.attname, a.atttypid::int8, a.atttypmod, format_type(a.atttypid, a.atttypmod), "
        "b.domain, b.oid::int8, b.typmod, "
        "coalesce(array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum), 0) "
        "FROM pg_catalog.pg_attribute a JOIN base b ON b.attnum = a.attnum "
        "JOIN pg_catalog.pg_type t ON t.oid = b.oid AND t.typtype <> 'd' "
        "LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary AND i.indimmediate "
        "WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
        "ORDER BY a.attnum",
        {"oid": oid},
    ).fetchall()
    places = sorted((place, name) for name, *_, place in column_rows if place)
    columns = tuple(
        PgColumn(name, type_oid, typmod, type_name, (base, base_typmod) if domain else None)
        for name, type_oid, typmod, type_name, domain, base, base_typmod, _ in column_rows
    )
    return columns, tuple(name for _, name in places)


def _child(db: Db, oid: int) -> str | None:
    """Return a table that inherits from this one; None: there is none."""
    child_row = db.execute(
        "SELECT inhrelid::regclass::text FROM pg_catalog.pg_inherits WHERE inhparent = %s::oid ORDER BY 1 LIMIT 1",
        (oid,),
    ).fetchone()
    return None if child_row is None else str(child_row[0])


def _inherited(where: str, child: str) -> ConfigError:
    return _refused(
        f"{where} has rows in a table that inherits from it, {child}: no primary key covers both, and their changes "
        "are not those of this table",
        f"capture {child} and each other such table separately, and the parent without them: ALTER TABLE {child} NO "
        "INHERIT ...; or use declarative partitions and capture each of them",
    )


def _check_wanted(where: str, wanted: Collection[str], names: Sequence[str], key: Sequence[str]) -> None:
    """Refuse a choice of columns that a table lacks, or by which its rows cannot be told apart."""
    if unknown := [each for each in wanted if each not in names]:
        raise _refused(
            f"{where} has no column {unknown[0]!r} that can be captured",
            f"name columns of the table that are not generated: {', '.join(names)}",
        )
    if missing := [each for each in key if each not in wanted]:
        raise _refused(
            f"{where}: columns= leaves out {missing[0]!r}, a column of the primary key",
            f"add it: rows are identified by {', '.join(key)}",
        )


def _check_identity(schema: str, name: str, identity: str, toasted: bool) -> None:
    """Refuse a table whose changes may lack values: without FULL, a long value that did not change is not sent."""
    if identity == FULL or (identity == DEFAULT and not toasted):
        return
    raise _refused(
        f"table {schema}.{name} has REPLICA IDENTITY {_IDENTITIES.get(identity, identity)}"
        + (
            " and columns that can be long: an update is sent without a long value that it leaves as it is"
            if identity == DEFAULT
            else ", by which no old row is found"
        ),
        f'run on the server: ALTER TABLE "{schema}"."{name}" REPLICA IDENTITY FULL',
    )


def _refused_login(said: str) -> bool:
    """Return whether the words are those of a server that did not let a connection in; then there is no code."""
    words = (
        "authentication failed",
        "no password supplied",
        "pg_hba.conf",
        "does not exist",
        "not permitted to log in",
    )
    return any(each in said for each in words)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was captured", next_step=next_step)
