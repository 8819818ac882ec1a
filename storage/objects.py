"""Object stores: a local folder, memory, or a bucket, all with conditional create.

Everything durable in Holdfast is an object, and `create` is the only primitive that decides races:
if several writers create one name, exactly one wins, and no reader ever sees a partial object.

Invariants
    - An object is visible whole or not at all, even after a crash in the middle of a write.
    - `create` never replaces; `put` replaces atomically.
    - No object is empty: s3fs skips the condition for zero bytes, so creating an empty object would not be conditional.

Source: holdfast.ports.ObjectStore; PROTOCOL P4: `Unavailable` leaves the outcome of a write open; callers settle it
by an owner token inside the object.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol, TypeGuard, runtime_checkable

import pyarrow as pa

from holdfast.errors import AlreadyExists, ConfigError, NotFound, Unavailable
from holdfast.extras import install
from holdfast.ports import ObjectStore
from holdfast.storage.local import LocalObjects
from holdfast.storage.paths import checked_folder, checked_path, local_path, refuse_password
from holdfast.storage.remote import FsspecObjects, require_s3fs

__all__ = [
    "FileStore",
    "FsspecObjects",
    "LocalObjects",
    "MappedStore",
    "MemoryObjects",
    "open_objects",
    "opened",
    "read_buffer",
    "writing",
]


@runtime_checkable
class MappedStore(Protocol):
    """An object store whose objects can be mapped into memory instead of copied."""

    def mapped(self, path: str) -> pa.Buffer:
        """Return the bytes without reading them yet. Raises NotFound."""


@runtime_checkable
class FileStore(Protocol):
    """An object store that reads and writes an object as a file, so that no process must hold all of it."""

    def opened(self, path: str) -> pa.NativeFile:
        """Return the object for reads at any place; a later deletion does not end them.

        Raises:
            NotFound: there is no such object.
            Unavailable: it could not be read.
        """

    def writing(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Create an object; it becomes visible, whole, when the block ends without an error.

        Raises:
            AlreadyExists: the name is taken; nothing was changed.
            Unavailable: the object may exist or not. Errors within the block pass unchanged.
        """


def _is_file_store(store: ObjectStore) -> TypeGuard[FileStore]:
    return _has_files(type(store))


@cache
def _has_files(kind: type[ObjectStore]) -> bool:
    """Return whether stores of this class are a FileStore; to compare the methods takes as long as a small write."""
    return issubclass(kind, FileStore)


@contextmanager
def writing(store: ObjectStore, path: str) -> Iterator[BinaryIO]:
    """Write an object part by part; a store without files receives it whole. Errors as `FileStore.writing`."""
    if _is_file_store(store):
        with store.writing(path) as file:
            yield file
        return
    held = io.BytesIO()
    yield held
    store.create(path, held.getvalue())


def opened(store: ObjectStore, path: str) -> pa.NativeFile:
    """Return an object for reads piece by piece; a store without files gives it whole. Errors as `FileStore.opened`."""
    return store.opened(path) if _is_file_store(store) else pa.BufferReader(store.get(path))


def read_buffer(store: ObjectStore, path: str) -> pa.Buffer:
    """Return an object's bytes, memory-mapped if the store supports it. Raises NotFound."""
    if type(store) is LocalObjects or isinstance(store, MappedStore):  # the second takes a while to tell
        return store.mapped(path)
    return pa.py_buffer(store.get(path))


class MemoryObjects:
    """Objects in the memory of this process; for tests and simulation. Safe to share between threads."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "memory"

    def create(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        with self._lock:
            if checked_path(path) in self._objects:
                raise AlreadyExists(path)
            self._objects[checked_path(path)] = data

    def put(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        with self._lock:
            self._objects[checked_path(path)] = data

    def get(self, path: str) -> bytes:
        with self._lock:
            if (data := self._objects.get(checked_path(path))) is None:
                raise NotFound(path)
            return data

    def list(self, prefix: str) -> list[str]:
        folder = f"{checked_folder(prefix)}/".lstrip("/")
        with self._lock:
            return sorted(path for path in self._objects if path.startswith(folder))

    def delete(self, path: str) -> None:
        with self._lock:
            self._objects.pop(checked_path(path), None)


def open_objects(url_or_path: str | os.PathLike[str], *, writable: bool = True) -> ObjectStore:
    """Open the store below a folder or a URL (`s3://bucket/prefix`, `file:///folder`, `memory://name`).

    Args:
        url_or_path: The root of all paths in the store.
        writable: Create a missing local root and prove that it is writable. If false, nothing is created or written.

    Raises:
        ConfigError: the root is a file or not writable, the scheme is unknown, or an extra is not installed.
        Unavailable: a local root could not be examined.
    """
    text = os.fspath(url_or_path)
    refuse_password(text, "the path of the store")
    if (path := local_path(text)) is not None:
        return _open_local(Path(path), writable)
    scheme = text.partition("://")[0]
    if scheme not in ("s3", "memory"):
        raise ConfigError(
            f"{text!r} has the unknown scheme {scheme!r}",
            not_done="the store was not opened",
            next_step=f"use a folder, or s3://bucket/prefix with the extra s3: {install('s3')}",
        )
    if scheme == "s3":
        require_s3fs(text)
    return FsspecObjects(text)


def _open_local(root: Path, writable: bool) -> LocalObjects:
    store = LocalObjects(root)
    if root.exists() and not root.is_dir():
        raise ConfigError(
            f"{store.root} is a file, not a folder",
            not_done="the store was not opened",
            next_step="name a folder, or a path that does not exist yet",
        )
    if writable:
        try:
            store.prove_writable()
        except Unavailable as error:
            raise ConfigError(
                f"{store.root} cannot be written: {error.what}",
                not_done="the store was not opened",
                next_step=error.next_step,
            ) from error
    return store
