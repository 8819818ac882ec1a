"""Connections to a Postgres server.

Invariants
    - Only an explicit BEGIN starts a transaction, and COMMIT has either committed or raised an error.
    - Confirmed rows have reached the server's disk, whatever `synchronous_commit` the database or role has.
    - A wait for another transaction's lock is bounded, so that a delivery reports it and is retried.

Source: postgresql.org/docs/current/runtime-config-client.html; psycopg.org/psycopg3/docs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from holdfast import children
from holdfast.errors import ConfigError, NotAdmitted
from holdfast.secrets import Secret
from holdfast.sinks.postgres.place import DURABLE, conninfo, named
from holdfast.sinks.sql.dialect import Connection, Cursor

VERSION_MIN = 120_000
"""Postgres 12: text of reals reads back as the same bits, and collations say whether they are deterministic."""
_SETTINGS = (
    "SELECT set_config('extra_float_digits', '1', false), set_config('jit', 'off', false), "
    f"set_config('standard_conforming_strings', 'on', false), {DURABLE}"
)


class ServerConnection(Connection):
    """One connection, whose marks are $1, $2 ... See sql.dialect.Connection."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.psycopg = connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        """A COMMIT that the server turned into a rollback is not a commit."""
        cursor = self.psycopg.execute(_text(sql), values)
        if sql == "COMMIT" and cursor.statusmessage != "COMMIT":
            raise psycopg.errors.TransactionRollback(f"the server answered COMMIT with {cursor.statusmessage}")
        return cursor

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:
        cursor = self.psycopg.cursor()
        cursor.executemany(_text(sql), rows)
        return cursor

    def copy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Send rows by COPY."""
        with self.psycopg.cursor().copy(_text(sql)) as copy:
            for row in rows:
                copy.write_row(row)

    def close(self) -> None:
        self.psycopg.close()


def connect(dsn: str, password: Secret | None, check: bool) -> ServerConnection:
    """Open a connection.

    Args:
        password: Where the password is read, now; None: libpq knows one, or needs none.
        check: Whether to refuse a server or a database that cannot hold every value.

    Raises:
        ConfigError: the server is too old, the database's encoding is not UTF-8, or the secret is not set here.
        NotAdmitted: the file of the secret cannot be read.
    """
    connection = psycopg.connect(
        conninfo(dsn),
        password=_value(dsn, password),
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=psycopg.RawCursor,
    )
    children.keep(connection)
    try:
        if check:
            _check(dsn, connection.info)
        connection.execute(_SETTINGS)
    except BaseException:
        connection.close()
        raise
    return ServerConnection(connection)


def _value(dsn: str, password: Secret | None) -> str | None:
    """Read the password; an error names the server too."""
    try:
        return None if password is None else password.value()
    except (ConfigError, NotAdmitted) as error:
        error.what = f"Postgres {named(dsn)}: {error.what}"
        raise


def _check(dsn: str, info: psycopg.ConnectionInfo) -> None:
    if info.server_version < VERSION_MIN:
        raise ConfigError(
            f"Postgres {named(dsn)}: the server has version {info.server_version // 10_000}, needed is 12 or newer",
            next_step="use a newer server",
        )
    encoding = info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"Postgres {named(dsn)}: the encoding of the database is {encoding}, which cannot hold every text",
            next_step="use a database with the encoding UTF8",
        )


def _text(sql: str) -> bytes:
    return sql.encode()
