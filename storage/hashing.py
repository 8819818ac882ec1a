"""Hashes bytes as they pass: on their way into an object, or while an object is read back.

Pure: it reads and writes only the files that it is given.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

HASHED_BYTES = 1 << 20
"""Bytes of a file that are read at a time."""


class ByteSink(Protocol):
    """Where bytes are written."""

    def write(self, data: bytes, /) -> int:
        """Append bytes."""


class Hash(Protocol):
    """A hash of hashlib or xxhash."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


Of = TypeVar("Of", bound=Hash)


class Hashed(Generic[Of]):
    """A file that counts and hashes the bytes that it passes on, for Arrow too.

    Args:
        into: Receives the bytes.
        hashed: The hash, of no bytes yet.
    """

    closed = False

    def __init__(self, into: ByteSink, hashed: Of) -> None:
        self._into: ByteSink | None = into
        self.size, self.hash = 0, hashed

    def write(self, data: bytes) -> int:
        if self._into is not None:
            self.size += len(data)
            self.hash.update(data)
            self._into.write(data)
        return len(data)

    def discard(self) -> None:
        """Pass nothing on from now on."""
        self._into = None

    def flush(self) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """The file belongs to the caller."""


class Tee:
    """A file that also holds the bytes that it passes on.

    Args:
        into: Receives the bytes.
        bytes_max: More are not held, none of them.
    """

    def __init__(self, into: ByteSink, bytes_max: int) -> None:
        self._into, self._left, self._parts = into, bytes_max, list[bytes]()

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left >= 0:
            self._parts.append(bytes(data))
        elif self._parts:
            self._parts = []
        return self._into.write(data)

    @property
    def data(self) -> bytes | None:
        """Return all bytes, None if they were too many."""
        return b"".join(self._parts) if self._left >= 0 else None


def hash_file(file: pa.NativeFile, hashed: Of, end: int) -> Of:
    """Add the first bytes of a file to a hash, and return it. Raises OSError."""
    stream = file.get_stream(0, end)
    while piece := stream.read_buffer(HASHED_BYTES):
        hashed.update(piece)
    return hashed
