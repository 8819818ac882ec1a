"""Where a Postgres table is: the connection string, which never holds a password, and the server's name in messages.

A connection string travels to the workers, appears in plans and messages, and is recorded with the shape of a job. So a
password in it is refused; one comes from an `hf.secret`, or libpq takes it from PGPASSWORD, a password file or a
service. An invalid string is never repeated in a message: libpq's own message would quote a part of it, which may be
the password.

Invariants
    - No message and no value of this module holds a secret.

Source: postgresql.org/docs/current/libpq-connect.html.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import ConfigError

SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
"""Parameters of libpq that are secret; which of them exist depends on its version."""
DEFAULTS = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters that a string leaves out. A server that vanished without a word is noticed after half a minute."""
DEFAULT = "(default)"
"""Marks a value that the string leaves to libpq and the environment of a process."""
FORCED = {"client_encoding": "UTF8"}
LOCK_TIMEOUT_MS = 10_000
"""How long a statement waits for another transaction's lock before it gives way."""
DURABLE = (
    f"set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', false), set_config('synchronous_commit', "
    "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, false)"
)
"""Selected in a session, it bounds waits, and makes sure that confirmed rows have reached the server's disk."""


def parsed(dsn: str) -> Mapping[str, str]:
    """Return the parameters of a connection string.

    Raises:
        ConfigError: the string is invalid, or holds a password.
    """
    try:
        parameters = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        raise ConfigError(
            "hf.Postgres: this is not a connection string of Postgres; it is not repeated here, as it may hold a "
            "password",
            not_done="the job was not planned",
            next_step='write "postgresql://USER@HOST:5432/DATABASE" or "host=HOST dbname=DATABASE user=USER"',
        ) from None
    secrets = [name for name in SECRETS if name in parameters]
    if secrets:
        raise ConfigError(
            f"hf.Postgres: the connection string holds a secret: {', '.join(secrets)}",
            not_done="nothing was opened and no job was started",
            next_step='leave it out, and name its place: password=hf.secret("env:PG_PASSWORD"), or a password file '
            "that every worker has (~/.pgpass, or passfile=PATH in the connection string); then change this password, "
            "as plans, process lists or a shell history may have exposed it",
        )
    return parameters


def conninfo(dsn: str) -> str:
    """Return the string that a connection is opened with."""
    return make_conninfo("", **{**DEFAULTS, **parsed(dsn), **FORCED})


def named(dsn: str) -> str:
    """Return the server and the database, as messages and plans name them: "db.example:5432/sales"."""
    given = parsed(dsn)
    host = given.get("host") or given.get("hostaddr") or given.get("service") or DEFAULT
    port = f":{given['port']}" if "port" in given else ""
    return f"{host}{port}/{given.get('dbname') or given.get('user') or DEFAULT}"
