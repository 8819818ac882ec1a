"""The lock of a captured table: a small file beside the database, on which a process has a lock while it captures.

It is for courtesy: the log's tag, not the lock, keeps two processes from appending twice. The database file itself is
opened by SQLite alone, as closing another handle of it would drop SQLite's locks.

Source: flock(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from holdfast.errors import NotAdmitted, Unavailable


def file_of(path: str, table: str) -> str:
    """Return the file of the lock of a table."""
    place = Path(path)
    return str(place.with_name(f".{place.name}.holdfast-capture-{crc32(table.lower().encode()):08x}"))


class Lock:
    """A lock that the end of the process releases, or `close`.

    Raises:
        NotAdmitted, Unavailable: the file cannot be created or opened.
    """

    def __init__(self, path: str, table: str) -> None:
        self._path = file_of(path, table)
        with _explained(self._path):
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Take the lock; return whether no other process has it. Raises Unavailable."""
        with _explained(self._path):
            return _locked(self._file, fcntl.LOCK_EX)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def is_taken(path: str, table: str) -> bool:
    """Return whether a process captures a table now, without creating the file. Raises NotAdmitted, Unavailable."""
    name = file_of(path, table)
    with _explained(name):
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locked(file, fcntl.LOCK_SH)
        finally:
            os.close(file)


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        lacks_permission = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        kind = NotAdmitted if lacks_permission else Unavailable
        raise kind(
            f"the file of a capture's lock, {path}, cannot be used: {error.strerror}",
            not_done="nothing was captured",
            next_step="let this user write the database's directory and that file, which another user's process may "
            "have created; then delete the file while no process captures"
            if lacks_permission
            else "check the disk: the capture needs a local one",
        ) from error
