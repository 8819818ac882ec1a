"""Local state directories: a new worker takes one over or creates one.

Below a local root, every worker incarnation has one directory with a random name and one RocksDB in it. A directory
without a live owner was left by a worker that ended; the first process that opens it owns it, since RocksDB locks it.
Its marker decides whether its content may be used (P14).

Invariants
    - Two live processes never hold the same directory.
    - A damaged directory is never offered, even if the damage was found only while it was in use. It is removed once
      no process holds it, since the copy that replaces it needs the room.

I/O: local files.
Carries out PROTOCOL P14, P15.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, JobUuid
from holdfast.state.local.rocks import DAMAGED, RocksKeyValue, RocksMemory
from holdfast.state.marker import Declared, Lineage, Marker, read_marker, usable

__all__ = ["LocalDirectory", "claim", "create", "discard", "unheld", "usable"]

_LOCK = "LOCK"
_REMOVED = ".removed-"


@dataclass(frozen=True, eq=False)
class LocalDirectory:
    """A directory that this process holds, open."""

    path: Path
    store: RocksKeyValue
    marker: Marker | None


def create(root: Path, memory: RocksMemory | None = None) -> LocalDirectory:
    """Create an empty directory below the local root and open it."""
    path = root / uuid.uuid4().hex
    path.mkdir(parents=True)
    return LocalDirectory(path, RocksKeyValue(path, memory), None)


def unheld(root: Path, memory: RocksMemory | None = None) -> list[LocalDirectory]:
    """Open and return all directories below the local root that no live process holds, by name.

    The caller closes those it does not use. A registering worker reports their markers to the
    master; damaged directories are left out.
    """
    opened = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith(_REMOVED) or not (path / _LOCK).exists() or (path / DAMAGED).exists():
            continue
        try:
            store = RocksKeyValue(path, memory)
        except (Unavailable, Damaged):
            continue
        try:
            opened.append(LocalDirectory(path, store, read_marker(store)))
        except (Unavailable, Damaged):
            store.close()
    return opened


def claim(
    root: Path,
    job_uuid: JobUuid,
    lineage: Lineage,
    target: Epoch,
    owned: tuple[int, int],
    declared: Declared,
    memory: RocksMemory | None = None,
) -> LocalDirectory:
    """Take over the directory that leaves the least to restore, else create one.

    The best directory covers most of the owned key groups; among equals, the one applied furthest wins. Directories
    that could only serve the same key groups, or none at all, are removed: every worker that dies leaves one behind,
    and each recovery opens all of them. Damaged directories, and those whose removal was begun, are removed too.
    """
    found = unheld(root, memory)
    _make_room(root, memory)
    ranked = []
    for directory in found:
        covered = usable(directory.marker, job_uuid, lineage, target, owned, declared)
        if covered is not None and directory.marker is not None:
            ranked.append((covered[1] - covered[0], directory.marker.applied, directory.path.name, directory))
    best = max(ranked, key=lambda entry: entry[:3])[3] if ranked else None
    for directory in found:
        if directory is best:
            continue
        if directory.marker is None or _lies_inside(directory.marker.key_groups, owned):
            discard(directory)
        else:
            directory.store.close()
    return best or create(root, memory)


def _make_room(root: Path, memory: RocksMemory | None) -> None:
    """Remove the directories that no process may use again."""
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)  # the process that began the removal may still be at it
        elif (path / DAMAGED).exists() and not _is_held(path, memory):
            removed = path.with_name(_REMOVED + path.name)
            with suppress(FileNotFoundError):  # another worker was first
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)


def _is_held(path: Path, memory: RocksMemory | None) -> bool:
    """Return whether a live process may hold a damaged directory: RocksDB locks it before it reads it."""
    try:
        RocksKeyValue(path, memory).close()
    except Damaged:
        return False
    except Unavailable:
        return True
    return False


def _lies_inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def discard(directory: LocalDirectory) -> None:
    """Close a directory and remove it with all its files."""
    # Renamed while the lock is held, so a worker that looks for directories meanwhile never opens this one.
    # Flushed before, so that closing has nothing left to write below the old name.
    directory.store.flush()
    removed = directory.path.with_name(_REMOVED + directory.path.name)
    directory.path.rename(removed)
    try:
        directory.store.close()
    finally:
        shutil.rmtree(removed, onerror=_unless_gone)


def _unless_gone(_: object, path: str, error: tuple[type[BaseException], BaseException, TracebackType]) -> None:
    """Another worker may be removing the same directory, so a file that is already gone is not an error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
