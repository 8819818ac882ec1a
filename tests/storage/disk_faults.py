"""Disk faults: counts a process's file operations, including those of RocksDB and SQLite, and makes one fail.

A step is one call that may fail on a real machine: opening, writing, syncing, closing, linking or removing a file below
one folder, one call of RocksDB, one SQL statement. `Steps` intercepts the functions that the process calls, so the
running code is production code; at the k-th step it refuses, kills the process, or tears a write.

Invariants
    - A fault strikes the k-th of the steps that can fail in its way, and reports that first.
    - A refused step has no effect, except that a file whose close was refused is closed, as on Linux.
    - Only calls on paths below the folder count, so a process may report through other files.

It replaces functions of `os` and of other modules permanently: use it in a process that is meant to be killed, never
in the test's own process. I/O: local files.
Source: the I/O error and crash tests of SQLite (sqlite.org/testing.html); docs/decisions/0017-storage-faults.md.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Self
from urllib.parse import unquote

import pyarrow as pa
import rocksdict
from unsynced import Unsynced

from holdfast.state.local import rocks

What = Literal["nothing", "full", "broken", "kill", "power", "torn"]
_CHANGING = frozenset(
    {"create", "write", "link", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "sql"}
    | {"rocks.open", "rocks.write", "rocks.flush", "rocks.close"}
)
_GROWING = frozenset({"create", "write", "fsync", "link", "mkdir", "close", "sql"})
_ABLE = {
    "nothing": frozenset[str](),
    "full": _GROWING | {"rocks.open", "rocks.write", "rocks.flush"},
    "kill": _CHANGING,  # between two of these the files do not change
    "power": (_CHANGING | {"fsync"}),
    "torn": frozenset({"write"}),
}
"""Steps that can fail in this way; every other `What` strikes any step."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_UNFAILING = ("ROLLBACK", "PRAGMA")


@dataclass(frozen=True)
class DiskFault:
    """What goes wrong.

    Args:
        what: `full` and `broken` refuse (ENOSPC, EIO), `kill` and `power` end the process before the step, `torn`
            writes half and ends it.
        at: Which of the steps that can fail in this way is struck, counted from 1.
        lasting: From then on every step that can fail in this way does.
        below: Only steps on paths with this prefix, relative to the folder.
    """

    what: What
    at: int
    lasting: bool = False
    below: str = ""

    def can_strike(self, name: str, path: str) -> bool:
        """Return whether a step can fail in this way."""
        able = _ABLE.get(self.what)
        return path.startswith(self.below) and (able is None or name in able)


class Steps:
    """Counts the steps of this process below one folder, and lets one fail.

    Args:
        folder: Everything below it counts.
        fault: What goes wrong.
        tell: Called with number, name and path of the step, before the fault strikes it.
        unsynced: Receives every step that succeeded, if the machine loses power afterwards.
    """

    def __init__(
        self,
        folder: str,
        fault: DiskFault,
        tell: Callable[[int, str, str], None],
        unsynced: Unsynced | None = None,
    ) -> None:
        self.fault = fault
        self.able = 0
        """Steps so far that the fault can strike."""
        self.rocks_opened: list[int] = []
        """Which of these opened a RocksDB, counted from 1."""
        self.seen: dict[str, int] = {}
        """Steps so far, by name."""
        self.read: set[str] = set()
        """Files that were opened for reading."""
        self._folder, self._tell, self._struck = f"{folder.rstrip('/')}/", tell, False
        self._unsynced = unsynced

    def heal(self) -> None:
        """From now on nothing fails."""
        self.fault = DiskFault("nothing", 0)

    def install(self) -> None:
        """Intercept the functions by which this process accesses its files."""
        for name in ("mkdir", "rmdir", "unlink", "remove", "scandir"):
            self._replace_one(name)
        for name in ("link", "replace", "rename"):
            self._replace_two(name)
        self._replace_handles()
        real_open, real_map, real_connect, real_db = io.open, pa.memory_map, sqlite3.connect, rocksdict.Rdict

        def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            path = self._inside(file)
            if path is None:
                return real_open(file, mode, *arguments, **named)
            writes = mode.strip("bt") != "r"
            self._take("create" if writes else "open", path)
            found = real_open(file, mode, *arguments, **named)
            if not writes:
                self.read.add(path)
                return found
            self._note("create", path)
            return _File(found, path, self)

        def mapped(path: str, *arguments: Any) -> Any:
            if (known := self._inside(path)) is not None:
                self._take("map", known)
                self.read.add(known)
            return real_map(path, *arguments)

        def connected(database: Any, **named: Any) -> sqlite3.Connection:
            path = self._inside(unquote(os.fspath(database).removeprefix("file:").partition("?")[0]))
            if path is None:
                elsewhere: sqlite3.Connection = real_connect(database, **named)
                return elsewhere
            self._take("sql", path)
            connection: _Connection = real_connect(database, factory=_Connection, **named)
            connection.watch(self, path)
            return connection

        def rocks_opened(path: str, *arguments: Any, **named: Any) -> Any:
            if (known := self._inside(path)) is None:
                return real_db(path, *arguments, **named)
            self._take("rocks.open", known)
            return _Rocks(real_db(path, *arguments, **named), known, self)

        for module, name, function in (
            (io, "open", opened),
            (builtins, "open", opened),
            (pa, "memory_map", mapped),
            (sqlite3, "connect", connected),
            (rocks, "Rdict", rocks_opened),
        ):
            setattr(module, name, function)

    def take(self, name: str, path: str) -> None:
        """Count one step; raise, or end the process, if the fault strikes it."""
        self._take(name, path)

    def tear(self, write: Callable[[], object]) -> NoReturn:
        """Write the part that survives of a torn write, then end the process."""
        write()
        self._kill()

    def tears(self, path: str) -> bool:
        """Count one write; return whether to tear it."""
        if not self._strikes("write", path):
            return False
        self._say("write", path)
        if self.fault.what == "torn":
            return True
        self._fail("write", path)
        return False

    def _take(self, name: str, path: str) -> None:
        if self._strikes(name, path):
            self._say(name, path)
            self._fail(name, path)

    def _strikes(self, name: str, path: str) -> bool:
        self.seen[name] = self.seen.get(name, 0) + 1
        if not self.fault.can_strike(name, path):
            return False
        self.able += 1
        if name == "rocks.open":
            self.rocks_opened.append(self.able)
        return self.able == self.fault.at or (self.fault.lasting and self.able > self.fault.at)

    def _say(self, name: str, path: str) -> None:
        if not self._struck:
            self._struck = True
            self._tell(self.able, name, path)

    def _fail(self, name: str, path: str) -> None:
        what = self.fault.what
        if not self.fault.lasting:
            self.heal()
        if what in ("kill", "power"):
            self._kill()
        code = errno.ENOSPC if what == "full" else errno.EIO
        if name.startswith("rocks."):
            raise _RocksError(f"IO error: {os.strerror(code)}: While appending to file: {path}")
        if name == "sql":
            raise _sql_error(sqlite3.SQLITE_FULL if what == "full" else sqlite3.SQLITE_IOERR)
        raise OSError(code, os.strerror(code), path)

    def _kill(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process does not continue")

    def _note(self, name: str, path: str, to: str = "") -> None:
        if self._unsynced is not None:
            self._unsynced.note(name, path, to)

    def _inside(self, path: Any, folder: int | None = None) -> str | None:
        """Return the path relative to the folder, None if it is not below it."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        text = os.fsdecode(path)
        if folder is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
        return text.removeprefix(self._folder) if text.startswith(self._folder) else None

    def _replace_one(self, name: str) -> None:
        real = getattr(os, name)

        def called(path: Any = ".", *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
            if dir_fd is not None:
                named["dir_fd"] = dir_fd
            known = self._inside(path, dir_fd)
            if known is None:
                return real(path, *arguments, **named)
            self._take(name, known)
            result = real(path, *arguments, **named)
            self._note(name, known)
            return result

        setattr(os, name, called)

    def _replace_two(self, name: str) -> None:
        real = getattr(os, name)

        def called(path: Any, to: Any, **named: Any) -> None:
            known = self._inside(path)
            if known is not None:
                self._take(name, known)
            real(path, to, **named)
            if known is not None:
                self._note(name, known, self._inside(to) or "")

        setattr(os, name, called)

    def _replace_handles(self) -> None:
        real_open, real_fsync, real_close = os.open, os.fsync, os.close
        handles: dict[int, str] = {}

        def opened(path: Any, flags: int, *arguments: Any, dir_fd: int | None = None, **named: Any) -> int:
            if dir_fd is not None:
                named["dir_fd"] = dir_fd
            known = self._inside(path, dir_fd)
            if known is None:
                handle: int = real_open(path, flags, *arguments, **named)
                handles.pop(handle, None)  # the descriptor of a file object that has been closed
                return handle
            self._take("create" if flags & _WRITING else "open", known)
            handle = real_open(path, flags, *arguments, **named)
            handles[handle] = known
            return handle

        def synced(handle: int) -> None:
            known = self._inside(os.readlink(f"/proc/self/fd/{handle}"))
            if known is not None:
                self._take("fsync", known)
            real_fsync(handle)
            if known is not None:
                self._note("fsync", known)

        def closed(handle: int) -> None:
            known = handles.pop(handle, None)
            real_close(handle)  # as on Linux: the descriptor is closed even if close reports an error
            if known is not None:
                self._take("close", known)

        for name, function in (("open", opened), ("fsync", synced), ("close", closed)):
            setattr(os, name, function)


class _RocksError(Exception):
    """Rocksdict raises bare exceptions; only the beginning of the message identifies the error."""


class _File:
    """A file open for writing."""

    def __init__(self, file: Any, path: str, steps: Steps) -> None:
        self._file, self._path, self._steps = file, path, steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        if self._steps.tears(self._path):
            self._steps.tear(lambda: (self._file.write(data[: len(data) // 2]), self._file.flush()))
        return int(self._file.write(data))

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._steps.take("close", self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Rocks:
    """An open RocksDB."""

    def __init__(self, db: Any, path: str, steps: Steps) -> None:
        self._db, self._path, self._steps = db, path, steps

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._db, name)
        if name not in ("get", "write", "iter", "flush", "close"):
            return real

        def called(*arguments: Any) -> Any:
            self._steps.take(f"rocks.{name}", self._path)
            return real(*arguments)

        return called


class _Connection(sqlite3.Connection):
    """An open SQLite file."""

    def watch(self, steps: Steps, path: str) -> None:
        """From now on every statement is a step."""
        self._steps, self._path = steps, path

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self._statement(sql)
        return super().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self._statement(sql)
        return super().executemany(sql, *arguments)

    def _statement(self, sql: str) -> None:
        if not sql.lstrip().upper().startswith(_UNFAILING):
            self._steps.take("sql", self._path)


def _sql_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full" if code == sqlite3.SQLITE_FULL else "disk I/O error")
    error.sqlite_errorcode = code
    return error
