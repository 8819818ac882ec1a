"""Copies of sealed objects of a root: a restart reads them from the local disk instead.

A copy is found by the object's name and used only if its bytes have the size and hash that a manifest gives. So any
subset of them is right, whatever a kill, a full disk or another job with the same names has left.

An object is in parts, and is listed after the last of them: a kill, which keeps a prefix of the writes, leaves no
listed object without a part. Parts of objects that are not listed are erased before the next process writes.

Invariants
    - The data that `get` returns has the requested hash.
    - After a kill, at most FLUSH_OBJECTS objects or FLUSH_BYTES bytes are missing, and those that were being flushed.

For use by one thread at a time. Reads and writes through the KeyValue port; no other I/O, clock or thread.
Source: docs/decisions/0122-local-images.md; PROTOCOL P14, P15.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.errors import Unavailable
from holdfast.model import ObjectRef
from holdfast.ports import KeyValue

PART_BYTES = 1 << 20
"""A write holds the interpreter lock for about half a millisecond per mebibyte."""
FLUSH_OBJECTS, FLUSH_BYTES = 8, 64 << 20
ATTEMPTS, PAUSE_S = 40, 0.05
"""RocksDB refuses writes while it flushes its buffers: for less than a second per 32 MiB."""
_LISTED, _PART = b"l", b"p"
_END = b"\xff"


class Copies:
    """The copies of one folder.

    Args:
        store: Holds them, and nothing else.
        pause: Waits for this many seconds, before a part that was refused is written again; None: it is not.
    """

    def __init__(self, store: KeyValue, pause: Callable[[float], object] | None = None) -> None:
        self._store, self._pause = store, pause
        listed = store.scan(_LISTED, _LISTED + _END)
        self._sizes = {key[1:].decode(): int.from_bytes(size, "big") for key, size in listed}
        self._unflushed, self._unflushed_bytes = 0, 0
        bounds = [bound for path in sorted(self._sizes, key=str.encode) for bound in _parts_of(path)]
        gaps = zip([_PART, *bounds[1::2]], [*bounds[::2], _PART + _END], strict=True)
        self._unlisted = [gap for gap in gaps if store.scan(*gap, 1)]
        """Ranges with parts of objects that are not listed."""
        self._partial = set[str]()
        """Objects of which parts may be left, since a write was refused."""

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(self._sizes.values())

    def put(self, path: str, data: bytes) -> None:
        """Keep a copy of an object.

        Raises:
            Unavailable: it was refused; putting it again later is safe.
        """
        self._erase_unlisted()
        view = memoryview(data)
        self._partial.add(path)
        for first in range(0, len(data), PART_BYTES):
            self._write_part(_part(path, first), bytes(view[first : first + PART_BYTES]))
        self._store.write([(_LISTED + path.encode(), len(data).to_bytes(8, "big"))], [])
        self._sizes[path] = len(data)
        self._partial.discard(path)
        self._unflushed, self._unflushed_bytes = self._unflushed + 1, self._unflushed_bytes + len(data)
        if self._unflushed >= FLUSH_OBJECTS or self._unflushed_bytes >= FLUSH_BYTES:
            self._store.flush(wait=False)
            self._unflushed, self._unflushed_bytes = 0, 0

    def _write_part(self, key: bytes, data: bytes) -> None:
        for _ in range(0 if self._pause is None else ATTEMPTS):
            try:
                return self._store.write([(key, data)], [])
            except Unavailable:
                assert self._pause is not None
                self._pause(PAUSE_S)
        self._store.write([(key, data)], [])

    def get(self, ref: ObjectRef) -> bytes | None:
        """Return an object, None if there is no copy of it.

        Raises:
            LocalDamaged: the disk returned other bytes than were written.
        """
        if self._sizes.get(ref.path) != ref.size:
            return None
        parts = self._store.get_many([_part(ref.path, first) for first in range(0, ref.size, PART_BYTES)])
        data = b"".join(part or b"" for part in parts)
        return data if hashlib.sha256(data).hexdigest() == ref.sha256 else None

    def remove(self, chosen: Callable[[str], bool]) -> None:
        """Remove the copies of objects with these names.

        Raises:
            Unavailable: some may remain; a later call removes them.
        """
        self._erase_unlisted()
        paths = {path for path in self._sizes if chosen(path)} | self._partial
        if not paths:
            return
        self._store.write([], [_LISTED + path.encode() for path in paths])
        self._partial |= paths
        for path in paths:
            self._sizes.pop(path, None)
        self._store.erase([_parts_of(path) for path in paths])
        self._partial.clear()

    def _erase_unlisted(self) -> None:
        if self._unlisted:
            self._store.erase(self._unlisted)
            self._unlisted = []


def _part(path: str, first: int) -> bytes:
    return _PART + path.encode() + b"\0" + first.to_bytes(8, "big")


def _parts_of(path: str) -> tuple[bytes, bytes]:
    """Return the range of the keys of all parts of an object."""
    return _PART + path.encode() + b"\0", _PART + path.encode() + b"\1"
