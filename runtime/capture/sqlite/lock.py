"""The lock of a captured table: a small file beside the database, on which a process has a lock while it captures.

It is for courtesy: the log's tag, not the lock, keeps two processes from appending twice. The database file itself is
opened by SQLite alone, as closing another handle of it would drop SQLite's locks.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from zlib import crc32


def file_of(path: str, table: str) -> str:
    """Return the file of the lock of a table."""
    place = Path(path)
    return str(place.with_name(f".{place.name}.holdfast-capture-{crc32(table.lower().encode()):08x}"))


class Lock:
    """A lock that the end of the process releases, or `close`."""

    def __init__(self, path: str, table: str) -> None:
        self._file = os.open(file_of(path, table), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Take the lock; return whether no other process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def is_taken(path: str, table: str) -> bool:
    """Return whether a process captures a table now, without creating the file."""
    try:
        file = os.open(file_of(path, table), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
