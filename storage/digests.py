"""Sums and differences of digests: the digests of the parts, in any order, determine the digest of the whole.

Invariants
    - If a value is unknown for one part, it is unknown for the whole.

Pure: no clock, thread or I/O. Hashes nothing, so code that only reads digests does not load Polars.
Source: docs/decisions/0018-audit.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import RowDigest

NOTHING = RowDigest(0, 0, 0)


def added(one: RowDigest, other: RowDigest) -> RowDigest:
    """Return the digest of both together; a value that is unknown for one is unknown for both."""
    rows = one.rows + other.rows
    if one.sum is None or other.sum is None or one.xor is None or other.xor is None:
        return RowDigest(rows)
    return RowDigest(rows, (one.sum + other.sum) % (1 << 64), one.xor ^ other.xor)


def removed(one: RowDigest, other: RowDigest) -> RowDigest:
    """Return the digest of the first without the second, which is part of it."""
    rows = one.rows - other.rows
    if one.sum is None or other.sum is None or one.xor is None or other.xor is None:
        return RowDigest(rows)
    return RowDigest(rows, (one.sum - other.sum) % (1 << 64), one.xor ^ other.xor)


def whole(parts: Iterable[RowDigest]) -> RowDigest:
    """Return the digest of all parts together."""
    total = NOTHING
    for part in parts:
        total = added(total, part)
    return total
