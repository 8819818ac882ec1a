"""Many objects in few requests, or in requests that run side by side, from stores that can.

Invariants
    - A bulk deletion removes the objects that it is given and no others. After an error, any of them may be left.
    - A bulk read returns every object that exists, whole.

Pure: the store does the I/O.
Source: S3's DeleteObjects takes up to 1,000 keys; docs/decisions/0053-control-plane-at-scale.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

from holdfast.errors import AlreadyExists, NotFound, TooLarge
from holdfast.ports import ObjectStore

Item = TypeVar("Item")
DELETED_MAX = 1_000
"""How many objects one deletion may name."""
READ_MAX = 256
"""How many objects are read side by side at most."""


@runtime_checkable
class BulkStore(Protocol):
    """An object store in which a request costs a round trip."""

    def get_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of those objects that exist. Raises Unavailable."""

    def create_many(self, objects: Mapping[str, bytes]) -> Sequence[str]:
        """Create the objects whose names are free, and return the other names.

        Raises Unavailable: each may exist or not.
        """

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remove at most DELETED_MAX objects; a missing object is not an error. Raises Unavailable."""


class Page(NamedTuple):
    """A part of a listing, in the order of the names."""

    paths: list[str]
    more: bool
    """Others follow; never if there are no paths."""


@runtime_checkable
class OrderedStore(Protocol):
    """An object store that lists a folder from any name on."""

    def list_after(self, folder: str, path: str) -> Page:
        """Return paths below the folder, the first after this one, which need not exist. Raises Unavailable."""


def _is_bulk(store: ObjectStore) -> TypeGuard[BulkStore]:
    return _has_bulk(type(store))


@cache
def _has_bulk(kind: type[ObjectStore]) -> bool:
    """Return whether stores of this class are a BulkStore; to compare the methods takes as long as a small read."""
    return issubclass(kind, BulkStore)


def read_together(store: ObjectStore) -> int:
    """Return how many objects are best read together: 1 if the store reads one after the other."""
    return READ_MAX if _is_bulk(store) else 1


@runtime_checkable
class LimitedStore(Protocol):
    """An object store that reads no more of an object than it is asked to."""

    def get_at_most(self, path: str, bytes_max: int) -> bytes:
        """Return the bytes. Raises NotFound; TooLarge if there are more; Unavailable."""


def get_at_most(store: ObjectStore, path: str, bytes_max: int) -> bytes:
    """Return the bytes of an object that other processes may write too. Raises NotFound; TooLarge; Unavailable."""
    if isinstance(store, LimitedStore):
        return store.get_at_most(path, bytes_max)
    if len(data := store.get(path)) > bytes_max:
        raise TooLarge(path, bytes_max)
    return data


def get_each(store: ObjectStore, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of those objects that exist."""
    if _is_bulk(store):
        return store.get_many(paths)
    data_by_path = {}
    for path in paths:
        try:
            data_by_path[path] = store.get(path)
        except NotFound:
            continue
    return data_by_path


def create_many(store: ObjectStore, objects: Mapping[str, bytes]) -> Sequence[str]:
    """Create the objects whose names are free, and return the other names. Raises Unavailable."""
    if _is_bulk(store):
        return store.create_many(objects)
    taken_paths = []
    for path, data in objects.items():
        try:
            store.create(path, data)
        except AlreadyExists:
            taken_paths.append(path)
    return taken_paths


def delete_each(store: ObjectStore, paths: Sequence[str]) -> None:
    """Remove objects; missing ones are not an error."""
    if _is_bulk(store):
        for part in parts(paths, DELETED_MAX):
            store.delete_many(part)
        return
    for path in paths:
        store.delete(path)


def list_behind(store: ObjectStore, folder: str, path: str) -> list[str]:
    """Return the paths below the folder that come after this one, in order."""
    if not isinstance(store, OrderedStore):
        return [paths for paths in store.list(folder) if paths > path]
    paths, page = list[str](), Page([path], more=True)
    while page.more:
        page = store.list_after(folder, page.paths[-1])
        paths += page.paths
    return paths


def parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in order, in parts of this size; the last may be smaller."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
