"""Writers of one SQLite file on one host take turns.

SQLite's own wait sleeps ever longer, up to 100 ms at a time, and gives up after a while: of several writers that
deliver all the time, the one that sleeps is passed by the others again and again. Here a writer first takes the lock of
a small file beside the database, and lets it go as soon as its transaction has begun. Only the holder tries to begin.
So the next free moment of the database is its own, and a writer that has just committed queues behind it.

Invariants
    - The queue is a courtesy: SQLite's own lock keeps writers apart. A writer that cannot use the queue, or whose turn
      does not come in time, because the holder is stopped, begins without it.
    - The database file itself is opened by SQLite alone: to close another handle of it would drop SQLite's locks.

Source: sqlite.org/lockingv3.html; flock(2).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from holdfast import children

T = TypeVar("T")

WITHIN_S = 1.0
"""How long a writer waits for its turn, and then for the file."""
LOOK_S = 0.002


def queue_of(path: str) -> str:
    """Return the file whose lock is the queue of a database."""
    place = Path(path)
    return str(place.with_name(f".{place.name}.holdfast-queue"))


def begin(db: sqlite3.Connection, path: str, busy_timeout_ms: int) -> None:
    """Begin a transaction that writes, in turn with the other writers of this host.

    Raises:
        sqlite3.OperationalError: the file was not free in time.
    """
    read(db, path, busy_timeout_ms, lambda: db.execute("BEGIN IMMEDIATE"))


def read(db: sqlite3.Connection, path: str, busy_timeout_ms: int, work: Callable[[], T]) -> T:
    """Read something before a transaction, in turn: while another writer commits, no reader gets in.

    Raises:
        sqlite3.OperationalError: the file was not free in time.
    """
    db.execute("PRAGMA busy_timeout = 0")
    try:
        return in_turn(path, work)
    finally:
        db.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")


def in_turn(path: str, work: Callable[[], T]) -> T:
    """Do this as soon as it is this writer's turn and the file is free; it may be done several times.

    Raises:
        sqlite3.OperationalError: the file was not free in time.
    """
    with _turn(queue_of(path)):
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_S)


@contextmanager
def _turn(queue: str) -> Iterator[None]:
    try:
        handle = _opened(queue)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + WITHIN_S
        with children.kept(handle):
            while not _taken(handle) and time.monotonic() <= deadline:
                time.sleep(LOOK_S)
            yield
    finally:
        with suppress(OSError):  # Nothing was written to it.
            os.close(handle)


def _opened(queue: str) -> int:
    try:
        return os.open(queue, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(queue, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # No locks on this file system: go on without a queue.
        return True
    return True
