"""Objects of a source's catalogue in the job's folder: JSON that ends with its hash.

The head, `catalogue.json`, names the folder of the catalogue that the job reads. Folders of others are left by starts
that did not complete, or were replaced.

Pure: no clock, thread or I/O of its own. Source: docs/decisions/0080-files-source.md, 0095-topics-by-pattern.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ConfigError, Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import get_at_most
from holdfast.storage.hashed import fits_hash, with_hash

HEAD_PATH = "catalogue.json"
HEAD_BYTES_MAX = 1 << 20
H = TypeVar("H", bound=msgspec.Struct)
_NOT_OPENED = "the source was not opened"


def read_head(store: ObjectStore, decoder: msgspec.json.Decoder[H], version: int) -> H | None:
    """Return what `catalogue.json` says; None before there is one. Raises as `decoded`.

    Args:
        store: The source's folder.
    """
    try:
        data = get_at_most(store, HEAD_PATH, HEAD_BYTES_MAX)
    except NotFound:
        return None
    head: H = decoded(decoder, data, HEAD_PATH, version)
    return head


def write_head(store: ObjectStore, head: msgspec.Struct) -> None:
    """Name the catalogue that the job reads."""
    store.put(HEAD_PATH, encoded(head))


def remove(store: ObjectStore, unused: Callable[[str], bool]) -> None:
    """Remove the objects with paths that are no longer used."""
    for path in filter(unused, store.list("")):
        store.delete(path)


def encoded(value: msgspec.Struct) -> bytes:
    """Return the bytes of an object."""
    return with_hash(msgspec.json.encode(value))


def decoded(decoder: msgspec.json.Decoder[Any], data: bytes, path: str, version: int) -> Any:
    """Return what an object says.

    Args:
        path: Where it was found, for messages.
        version: The newest format that is known; the value has its own in `v`.

    Raises:
        ConfigError: a newer version of Holdfast wrote it.
        Damaged: it is not as it was written.
    """
    if not fits_hash(data):
        raise _damaged(path, "its hash does not match its bytes")
    try:
        value = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _damaged(path, str(error)) from error
    if value.v > version:
        raise ConfigError(
            f"{path} of a source's catalogue has version {value.v}, this version of Holdfast reads {version}",
            not_done=_NOT_OPENED,
            next_step="run the job with the newer version",
        )
    return value


def _damaged(path: str, why: str) -> Damaged:
    return Damaged(
        f"{path} of a source's catalogue cannot be read: {why}",
        not_done=_NOT_OPENED,
        next_step="restore it from a backup of the job's folder",
    )
