"""Folders of copies: a new worker takes one over or creates one.

Below a parent, every worker incarnation has one folder with a random name after its key groups, and one RocksDB in it.
A folder without a live owner was left by a worker that ended; the first process that opens it owns it, since RocksDB
locks it.

Invariants
    - Two live processes never hold the same folder.
    - A damaged folder is never offered, even if the damage was found only while it was in use. It is removed once no
      process holds it.

I/O: local files.
Source: docs/decisions/0122-local-images.md.
"""

from __future__ import annotations

import shutil
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from holdfast.errors import Damaged, Unavailable
from holdfast.state.local.copies import Copies
from holdfast.state.local.rocks import DAMAGED, RocksKeyValue, RocksMemory

_LOCK = "LOCK"
_REMOVED = ".removed-"


@dataclass(frozen=True, eq=False)
class CopyFolder:
    """A folder that this process holds, open."""

    path: Path
    store: RocksKeyValue
    copies: Copies

    def close(self) -> None:
        """Release it."""
        self.store.close()

    def discard(self) -> None:
        """Release it and remove all its files."""
        # Renamed while the lock is held, so a worker that looks for folders meanwhile never opens this one.
        trash = self.path.with_name(_REMOVED + self.path.name)
        with suppress(OSError):
            self.path.rename(trash)
        try:
            self.store.close()
        finally:
            shutil.rmtree(trash, onerror=_unless_gone)


def claim(parent: Path, key_groups: tuple[int, int], memory: RocksMemory | None = None) -> CopyFolder:
    """Take over the folder of these key groups with the most copies, else create one; others of them are removed.

    So are those of key groups inside these: every worker that dies leaves a folder behind.

    Raises:
        OSError: none can be created.
        Unavailable: RocksDB cannot create one.
    """
    _make_room(parent, memory)
    held = [folder for path in sorted(parent.iterdir()) if (folder := _opened(path, key_groups, memory)) is not None]
    same = [folder for folder in held if _groups_of(folder.path) == key_groups]
    best = max(same, key=lambda folder: folder.copies.nbytes, default=None)
    for folder in held:
        if folder is not best:
            folder.discard()
    if best is not None:
        return best
    path = parent / f"{key_groups[0]}-{key_groups[1]}-{uuid.uuid4().hex}"
    path.mkdir(parents=True)
    return _folder(path, RocksKeyValue(path, memory))


def _opened(path: Path, key_groups: tuple[int, int], memory: RocksMemory | None) -> CopyFolder | None:
    """Return a folder whose key groups lie inside these, if no live process holds it and it can be read."""
    groups = _groups_of(path)
    if groups is None or not (key_groups[0] <= groups[0] and groups[1] <= key_groups[1]):
        return None
    if not (path / _LOCK).exists() or (path / DAMAGED).exists():
        return None
    try:
        store = RocksKeyValue(path, memory)
    except (Unavailable, Damaged):
        return None
    try:
        return _folder(path, store)
    except (Unavailable, Damaged):
        store.close()
        return None


def _folder(path: Path, store: RocksKeyValue) -> CopyFolder:
    return CopyFolder(path, store, Copies(store, time.sleep))


def _groups_of(path: Path) -> tuple[int, int] | None:
    try:
        first, end, _ = path.name.split("-")
        return int(first), int(end)
    except ValueError:
        return None


def _make_room(parent: Path, memory: RocksMemory | None) -> None:
    """Remove the folders that no process may use again."""
    for path in sorted(parent.iterdir()):
        if path.name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)  # the process that began the removal may still be at it
        elif (path / DAMAGED).exists() and not _is_held(path, memory):
            removed = path.with_name(_REMOVED + path.name)
            with suppress(FileNotFoundError):  # another worker was first
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)


def _is_held(path: Path, memory: RocksMemory | None) -> bool:
    """Return whether a live process may hold a damaged folder: RocksDB locks it before it reads it."""
    try:
        RocksKeyValue(path, memory).close()
    except Damaged:
        return False
    except Unavailable:
        return True
    return False


def _unless_gone(_: object, path: str, error: tuple[type[BaseException], BaseException, TracebackType]) -> None:
    """Another worker may be removing the same folder, so a file that is already gone is not an error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
