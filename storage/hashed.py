"""JSON that ends with a hash of itself, since JSON with a flipped digit would still be valid.

The hash is the last member of the object: `,"xxh3":"<16 hex digits>"}`, the xxh3-64 of all bytes before that comma.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

import re

import xxhash

_END = re.compile(rb',"xxh3":"([0-9a-f]{16})"\}\Z')
_END_BYTES = 27


def with_hash(data: bytes) -> bytes:
    """Return a JSON object with its hash at the end."""
    assert data.endswith(b"}") and data != b"{}"
    body = data[:-1]
    return body + b',"xxh3":"' + xxhash.xxh3_64_hexdigest(body).encode("ascii") + b'"}'


def own_hash(data: bytes) -> str:
    """Return the hash with which a JSON object ends, or would end if it had one."""
    found = _END.search(data, max(0, len(data) - _END_BYTES))
    return xxhash.xxh3_64_hexdigest(data[: len(data) - 1 if found is None else found.start()])


def fits_hash(data: bytes) -> bool | None:
    """Return whether the hash at the end matches; None if there is none."""
    found = _END.search(data, max(0, len(data) - _END_BYTES))
    return None if found is None else xxhash.xxh3_64_hexdigest(data[: found.start()]).encode("ascii") == found[1]
