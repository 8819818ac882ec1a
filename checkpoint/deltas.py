"""A manifest as its difference from an earlier one: pieces of that one, and new bytes between them.

Manifests of a job name the same segments again and again, and little else takes so much room. JSON objects are compared
as text, so a difference needs no knowledge of a manifest's fields, and rebuilds it byte for byte.

Invariants
    - `rebuilt(base, difference(base, data)) == data`, whatever the two are.

Pure: no clock, thread or I/O.
Source: docs/decisions/0059-delta-manifests.md; rsync and VCDIFF (RFC 3284) copy and insert in the same way.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

WHOLE_ENDING, DELTA_ENDING = ".json", "-delta.json"
"""How the names of manifests end: those that are stored whole, and those that are stored as differences."""
_END = b"},"
"""Ends an object in a list; it separates the pieces."""

Copy: TypeAlias = tuple[int, int]
"""Index of the first piece of the base, and how many."""
Step: TypeAlias = Copy | bytes
_STEPS = msgspec.msgpack.Decoder(list[Step])


def difference(base: bytes, data: bytes) -> bytes:
    """Return how to make `data` of `base`."""
    old = base.split(_END)
    place = {piece: index for index, piece in enumerate(old)}
    steps, new = list[Step](), list[bytes]()
    first = count = 0
    for piece in data.split(_END):
        if count and first + count < len(old) and old[first + count] == piece:
            count += 1
            continue
        if count:
            steps.append((first, count))
            count = 0
        if (old_index := place.get(piece)) is None:
            new.append(piece)
            continue
        if new:
            steps.append(_END.join(new))
            new = []
        first, count = old_index, 1
    if count:
        steps.append((first, count))
    if new:
        steps.append(_END.join(new))
    return msgspec.msgpack.encode(steps)


def rebuilt(base: bytes, difference: bytes) -> bytes:
    """Return the data that a difference makes of the base.

    Raises:
        ValueError: the difference does not fit any or this base.
    """
    old, pieces = base.split(_END), list[bytes]()
    for step in _STEPS.decode(difference):
        if isinstance(step, bytes):
            pieces.append(step)
            continue
        first, count = step
        if not 0 <= first < first + count <= len(old):
            raise ValueError(f"it copies {count} pieces from {first} of {len(old)}")
        pieces += old[first : first + count]
    return _END.join(pieces)
