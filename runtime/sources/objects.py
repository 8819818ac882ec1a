"""Objects of a source's catalogue in the job's folder: JSON that ends with its hash.

Pure: bytes in, values out. Source: docs/design/0080-files-source.md, 0095-topics-by-pattern.md.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import ConfigError, Damaged
from holdfast.storage.hashed import fits_hash, with_hash

_NOT_OPENED = "the source was not opened"


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
        found = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _damaged(path, str(error)) from error
    if found.v > version:
        raise ConfigError(
            f"{path} of a source's catalogue has version {found.v}, this version of Holdfast reads {version}",
            not_done=_NOT_OPENED,
            next_step="run the job with the newer version",
        )
    return found


def _damaged(path: str, why: str) -> Damaged:
    return Damaged(
        f"{path} of a source's catalogue cannot be read: {why}",
        not_done=_NOT_OPENED,
        next_step="restore it from a backup of the job's folder",
    )
