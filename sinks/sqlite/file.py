"""The file of a SQLite database: whether it can be one, which one it is, and opening it.

The journal mode is left as it is found: SQLite's default rollback journal. Write-ahead logging would be quicker. But
several processes that write and checkpoint one file can damage it in every version from 3.7.0 to 3.51.2, and Python
brings its own.

Invariants
    - Only mode "rwc" creates the file, for its user alone.
    - `synchronous=EXTRA`: confirmed rows survive a power failure. FULL does not sync the folder after the journal
      is deleted; a journal that comes back would roll the delivery back.

Source: PROTOCOL P24; sqlite.org/wal.html, "The WAL-Reset Bug".
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from urllib.parse import quote

from holdfast.errors import ConfigError
from holdfast.sinks.sql.dialect import Missing
from holdfast.sinks.sql.values import real_as_json

BUSY_TIMEOUT_MS = 250
"""How long a statement waits for another's lock before it gives way."""
HEADER = b"SQLite format 3\x00"


def connect(path: str, mode: str) -> sqlite3.Connection:
    """Open the file; mode "rw" never creates it, "rwc" does, for its user alone."""
    if mode == "rwc":
        with suppress(OSError):  # SQLite reports the obstacle.
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


def identity(path: str) -> tuple[int, int]:
    """Return device and inode of the file. Raises Missing."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise Missing(
            f"the file is missing ({error.strerror})",
            next_step="restore the file; if the worker runs on another host, the path must be shared storage",
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise Missing("the path is not a file", next_step="restore the file")
    return status.st_dev, status.st_ino


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
