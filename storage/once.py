"""Objects that are written once: an existing object is never replaced, not even by the process whose name it carries.

The name of an object identifies its writer, so writers do not conflict, with two exceptions: a write that is repeated
after a lost reply, and a copy of the process, which a user's function may have forked. The first finds its own bytes.
The second would change an object that a manifest may already name.

Invariants
    - An object that exists keeps its bytes.
    - Writing the same bytes again succeeds, also if one read of the object that exists is damaged.

Pure: the store does the I/O.
Source: PROTOCOL P16; docs/decisions/0117-functions-that-kill.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.errors import AlreadyExists, HoldfastError, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import create_many
from holdfast.storage.hashing import ByteSink, Hashed, hash_file
from holdfast.storage.objects import opened, writing


class NameTaken(HoldfastError):
    """An object that only this process writes exists with other bytes. Another worker uses other names."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"object {path} exists with other bytes, although only this process writes an object of that name",
            not_done="the object was not changed, and no checkpoint will name it",
            next_step="no action needed: a new worker writes under another name. If this repeats, look for functions "
            "that fork, and let their children end with os._exit",
        )


class WrittenObject(NamedTuple):
    """Size and hash of the written object."""

    size: int
    sha256: str


def create_same(store: ObjectStore, path: str, data: bytes) -> None:
    """Create an object; one that exists must hold these bytes. Raises NameTaken, Unavailable."""
    try:
        store.create(path, data)
    except AlreadyExists:
        _compare(store, path, WrittenObject(len(data), hashlib.sha256(data).hexdigest()))


def create_each_same(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Create objects; those that exist must hold these bytes. Raises NameTaken; Unavailable: each may exist or not."""
    for path in create_many(store, objects):
        _compare(store, path, WrittenObject(len(objects[path]), hashlib.sha256(objects[path]).hexdigest()))


def write_same(store: ObjectStore, path: str, write: Callable[[ByteSink], object]) -> WrittenObject:
    """Create an object part by part; one that exists must hold these bytes. It becomes visible, whole, at the end.

    Args:
        write: Writes the bytes into the sink that it receives.

    Raises:
        NameTaken: it holds others.
        Unavailable: the object may exist or not.
    """
    out: Hashed[hashlib._Hash] | None = None
    try:
        with writing(store, path) as file:
            out = Hashed(file, hashlib.sha256())
            write(out)
    except AlreadyExists:
        assert out is not None
        _compare(store, path, WrittenObject(out.size, out.hash.hexdigest()))
    return WrittenObject(out.size, out.hash.hexdigest())


def _compare(store: ObjectStore, path: str, wanted: WrittenObject) -> None:
    """Compare an object with the intended bytes; a second read distinguishes different bytes from a damaged read."""
    if (first := _read_back(store, path)) == wanted or (again := _read_back(store, path)) == wanted:
        return
    if again != first:
        raise Unavailable(f"two reads of object {path} returned different bytes", next_step="it is written again")
    raise NameTaken(path)


def _read_back(store: ObjectStore, path: str) -> WrittenObject:
    """Return size and hash of an object, read piece by piece: it may be larger than memory."""
    try:
        with opened(store, path) as file:
            size = file.size()
            return WrittenObject(size, hash_file(file, hashlib.sha256(), size).hexdigest())
    except NotFound:
        raise Unavailable(f"object {path} was removed while it was written", next_step="it is written again") from None
    except OSError as error:
        raise Unavailable(f"object {path} cannot be read: {error}", next_step="it is written again") from error
