"""Maps an error of Postgres to its meaning for a delivery: who acts.

The server sends a code of five letters with each error, of which the first two are its class. A refusal while a
connection is opened reaches us without the code, as text alone; there the server's own English words decide, and any
other text counts as unavailable.

Messages repeat the server's first line only: its details hold values of rows.

A login or a statement that this user is not allowed is NotAdmitted: an administrator of the server may allow it again,
and nothing is lost until then. A process that has no password to offer is a mistake of the configuration.

Invariants
    - An error is Unavailable if and only if a retry may succeed.

Source: postgresql.org/docs/current/errcodes-appendix.html.
"""

from __future__ import annotations

import re
import socket

import psycopg

from holdfast.errors import ConfigError, HoldfastError
from holdfast.sinks.contract.phrases import (
    NO_ROW,
    NOTHING,
    Meaning,
    broken,
    full,
    never_takes,
    not_admitted,
    refused,
    unavailable,
    unknown,
)


def meaning_of(where: str, error: psycopg.Error) -> HoldfastError | None:
    """Return the error's meaning for a delivery, None if it is a bug here."""
    message = said_by(error)
    if error.sqlstate is None:
        known = next((kind for kind in type(error).__mro__ if kind in _WITHOUT_CODE), None)
        meaning = _at_opening(message) or _WITHOUT_CODE.get(known)
    else:
        meaning = _BY_CODE.get(error.sqlstate) or _BY_CLASS.get(error.sqlstate[:2])
    return None if meaning is None else meaning(where, message)


def said_by(error: psycopg.Error) -> str:
    """Return the server's message without its details; the client's own message in one line.

    The client explains itself on further lines, and its sentences end without a stop.
    """
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return re.sub(r"(?<=\w)\n(?=[A-Z])", ". ", "\n".join(lines)).replace("\n", " ").strip()


def _at_opening(said: str) -> Meaning | None:
    """Return the meaning of the server's words when it refuses a connection; None for other words."""
    return next((meaning for words, meaning in _AT_OPENING if re.search(words, said)), None)


def _without_password(where: str, said: str) -> HoldfastError:
    return ConfigError(
        f"{where}: the server asks for a password, and the process on {socket.gethostname()} has none: {said}",
        not_done=NOTHING,
        next_step="give hf.Postgres password=hf.secret(...), or put the password into a password file that every "
        "worker has (~/.pgpass with mode 600, or passfile=PATH in the connection string) or into PGPASSWORD",
    )


_UNREACHABLE = unknown(
    "check that the server runs, that this host reaches it, and that no other session holds locks on the table"
)
_READ_ONLY = unavailable(
    "the server is read-only",
    "nothing, while a standby is promoted; else name the primary in the connection string, or all hosts with "
    "target_session_attrs=read-write, and check default_transaction_read_only; delivery retries",
)
_FULL = full("the disk of the server", "free space on that disk")
_BROKEN = broken("restore the database from a backup, then rewind the job")
_REFUSED = refused(
    "Postgres refuses the delivery",
    "for a duplicate key give the sink key=[...], so that rows replace each other; else compare the table with the "
    "stream's columns, and check its constraints, triggers and the grants of this user. " + never_takes("table"),
    NO_ROW,
)
_LOGIN = not_admitted(
    "the server did not let this user in",
    "let this user in again; else check user, host and database in the connection string, pg_hba.conf, and the "
    "password where it comes from: hf.secret(...), a password file or PGPASSWORD. A file is read for each connection, "
    "a variable when the job is started",
)
_DATABASE = refused(
    "the database is missing", "create it (CREATE DATABASE), or name another one in the connection string"
)
_SCHEMA = refused("the schema is missing", "create it (CREATE SCHEMA), or give hf.Postgres another schema=")
_PERMISSION = not_admitted(
    "this user lacks a permission",
    "grant it: the user needs USAGE and CREATE on the schema, SELECT, INSERT, UPDATE and DELETE on the table and on "
    "those of Holdfast (holdfast_...) in it, and TEMPORARY on the database; the owner of the schema has all of them",
)
_TABLE = refused(
    "the table or a column is missing, although it existed when the job was started",
    "restore it, or restart the job, which checks the table and creates a missing one",
)

_AT_OPENING: tuple[tuple[str, Meaning], ...] = (
    ("authentication failed", _LOGIN),
    ("no password supplied", _without_password),
    ("no pg_hba.conf entry", _LOGIN),
    ("is not permitted to log in", _LOGIN),
    ('role ".*" does not exist', _LOGIN),
    ('database ".*" does not exist', _DATABASE),
    ("permission denied for database", _PERMISSION),
)
"""The server's words, while no code of an error reaches us."""

_WITHOUT_CODE: dict[type | None, Meaning] = {
    psycopg.OperationalError: _UNREACHABLE,
    psycopg.InterfaceError: _UNREACHABLE,
    psycopg.DataError: _REFUSED,
}
"""Errors of the client: no connection, a lost connection, a value that Postgres has no form for."""

_BY_CODE: dict[str, Meaning] = {
    "25P03": _UNREACHABLE,  # idle in a transaction for too long
    "25P04": _UNREACHABLE,  # a transaction took too long
    "25006": _READ_ONLY,
    "28000": _LOGIN,
    "28P01": _LOGIN,
    "3D000": _DATABASE,
    "3F000": _SCHEMA,
    "42501": _PERMISSION,
    "42703": _TABLE,
    "42P01": _TABLE,
    "53100": _FULL,
    "55006": _UNREACHABLE,  # an object is in use
    "55P03": _UNREACHABLE,  # a lock is held for too long
    "XX000": _UNREACHABLE,  # an internal error
    "XX001": _BROKEN,
    "XX002": _BROKEN,
}
_BY_CLASS: dict[str, Meaning] = {
    "08": _UNREACHABLE,  # the connection
    "40": _UNREACHABLE,  # a conflict of transactions
    "53": _UNREACHABLE,  # resources
    "57": _UNREACHABLE,  # an operator, a shutdown, a timeout
    "58": _UNREACHABLE,  # the system
    "09": _REFUSED,  # a trigger
    "0A": _REFUSED,
    "21": _REFUSED,
    "22": _REFUSED,  # a value
    "23": _REFUSED,  # a constraint
    "27": _REFUSED,
    "2F": _REFUSED,  # a function that a trigger calls; so are 38 and 39
    "38": _REFUSED,
    "39": _REFUSED,
    "42": _REFUSED,
    "44": _REFUSED,
    "54": _REFUSED,  # a limit
    "55": _REFUSED,  # the table is not in the state that a statement needs
    "P0": _REFUSED,  # an exception of a trigger
}
