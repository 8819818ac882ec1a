"""Copies of sealed objects of a root: a restart reads them from the local disk instead.

A copy is found by the object's name and used only if its bytes have the size and hash that a manifest gives. So any
subset of them is right, whatever a kill, a full disk or another job with the same names has left.

An object is in parts, and is listed after the last of them: a kill, which keeps a prefix of the writes, leaves no
listed object without a part.

Invariants
    - What `get` returns has the hash that was asked for.
    - After a kill, at most FLUSH_OBJECTS objects and FLUSH_BYTES bytes that were put are missing.

For use by one thread at a time. Reads and writes through the KeyValue port; no other I/O, clock or thread.
Source: docs/design/0122-local-images.md; PROTOCOL P14, P15.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.model import ObjectRef
from holdfast.ports import KeyValue

PART_BYTES = 1 << 20
"""A write holds the interpreter lock for about half a millisecond per mebibyte."""
FLUSH_OBJECTS, FLUSH_BYTES = 8, 64 << 20
_LISTED, _PART = b"l", b"p"
_END = b"\xff"


class Copies:
    """The copies of one folder.

    Args:
        store: Holds them, and nothing else.
    """

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        listed = store.scan(_LISTED, _LISTED + _END)
        self._sizes = {key[1:].decode(): int.from_bytes(size, "big") for key, size in listed}
        self._unflushed, self._unflushed_bytes = 0, 0

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(self._sizes.values())

    def put(self, path: str, data: bytes) -> None:
        """Keep a copy of an object.

        Raises:
            Unavailable: it was refused; putting it again later is safe.
        """
        view = memoryview(data)
        for first in range(0, len(data), PART_BYTES):
            self._store.write([(_part(path, first), bytes(view[first : first + PART_BYTES]))], [])
        self._store.write([(_LISTED + path.encode(), len(data).to_bytes(8, "big"))], [])
        self._sizes[path] = len(data)
        self._unflushed, self._unflushed_bytes = self._unflushed + 1, self._unflushed_bytes + len(data)
        if self._unflushed >= FLUSH_OBJECTS or self._unflushed_bytes >= FLUSH_BYTES:
            self._store.flush(wait=False)
            self._unflushed, self._unflushed_bytes = 0, 0

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
        removed = [path for path in self._sizes if chosen(path)]
        if not removed:
            return
        self._store.write([], [_LISTED + path.encode() for path in removed])
        for path in removed:
            del self._sizes[path]
        self._store.erase([(_PART + path.encode() + b"\0", _PART + path.encode() + b"\1") for path in removed])


def _part(path: str, first: int) -> bytes:
    return _PART + path.encode() + b"\0" + first.to_bytes(8, "big")
