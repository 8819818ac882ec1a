"""Hashes of rows, and digests of many rows: equal for equal rows, in any store and any division into batches.

A digest is the number of rows and the sum (mod 2^64) and exclusive or of their hashes. So it does not depend on order,
and the digests of parts add up to that of the whole. An audit compares rows as taken and staged with rows read back
later; so the hash never changes (version 1, golden values) and covers values, never bytes in memory.

The hash of a row mixes the sum of its columns' contributions. A column contributes (value + seed) * odd, with both
constants computed from its name and kind; a null contributes 0, like a missing column. Values are 64 bits: integers,
times and dates unchanged, booleans 0 or 1, floats as binary64, text and bytes by their xxh3. NaN counts as null and
-0.0 as 0.0, because some targets cannot store them. Other kinds, such as lists, cannot be hashed; the digest is then
only the count.

It detects mistakes, and tampering that does not recompute the hashes; it is not a signature.

Invariants
    - Slices, dictionaries, validity buffers, widths of integers and floats, batches and row order change no digest.
    - `_VERSION` names the hash in stored digests: another hash is another version.

Pure: no clock, thread or I/O. Whole columns at a time.
Source: xxHash specification (xxh3-64, seed 0); docs/decisions/0018-audit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from holdfast.model import RowDigest
from holdfast.storage.digests import NOTHING, added
from holdfast.storage.xxh3 import xxh3_of

_VERSION = b"holdfast.rowhash.1"
CHUNK_ROWS = 16_384
"""Rows hashed at a time: few enough that intermediate values stay in the processor's cache."""
_MIX, _HALF, _REST = np.uint64(0xD6E8FEB86659FD93), np.uint64(32), np.uint64(29)
_START = np.uint64(xxhash.xxh3_64_intdigest(_VERSION))

Values = tuple[NDArray[np.uint64], NDArray[np.bool_] | None]
"""64 bits per row, and which rows are null (None: no row is)."""


def digest_of(
    rows: pa.RecordBatch | pa.Table, where: NDArray[np.bool_] | None = None, key: Sequence[str] = ()
) -> RowDigest:
    """Return the digest of these rows.

    Args:
        where: Rows that are hashed by the columns of `key` alone: deletes, which only their key identifies.
        key: The key columns.
    """
    total, first = NOTHING, 0
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        partly = None if where is None else where[first : first + batch.num_rows]
        first += batch.num_rows
        total = added(total, _digest(batch, partly, key))
    return total


def row_hashes(batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
    """Return the hash of every row; None if a column is of a kind that cannot be hashed."""
    hashes = np.empty(batch.num_rows, np.uint64)
    if (columns := _columns(batch, None, ())) is None:
        return None
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, batch.num_rows)
        _hash(columns, start, end, hashes[start:end], np.empty(end - start, np.uint64))
    return hashes


def _digest(batch: pa.RecordBatch, where: NDArray[np.bool_] | None, key: Sequence[str]) -> RowDigest:
    if (columns := _columns(batch, where, key)) is None:
        return RowDigest(batch.num_rows)
    size = min(CHUNK_ROWS, batch.num_rows)
    hash_buffer, scratch = np.empty(size, np.uint64), np.empty(size, np.uint64)
    total = xor = 0
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, batch.num_rows)
        hashes = _hash(columns, start, end, hash_buffer[: end - start], scratch[: end - start])
        total += int(np.add.reduce(hashes))
        xor ^= int(np.bitwise_xor.reduce(hashes))
    return RowDigest(batch.num_rows, total % (1 << 64), xor)


@dataclass(frozen=True)
class _Columns:
    """The input of the hash function, by column."""

    plain: list[tuple[NDArray[np.uint64], NDArray[np.bool_] | None, np.uint64, np.uint64]]
    """Values, the rows that contribute 0 (None: no row), the factor, and the addend."""
    start: np.uint64
    """Initial value of every hash: a constant plus the addends of columns in which every row contributes."""


def _columns(batch: pa.RecordBatch, where: NDArray[np.bool_] | None, key: Sequence[str]) -> _Columns | None:
    plain, start = [], int(_START)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (found := _plain(column)) is None:
            return None
        values, void = found
        odd, addend = _constants(name, _kind(column.type))
        if where is not None and name not in key:
            void = where if void is None else void | where
        start += int(addend) if void is None else 0
        plain.append((values, void, odd, addend))
    return _Columns(plain, np.uint64(start % (1 << 64)))


def _hash(
    columns: _Columns, start: int, end: int, mixed: NDArray[np.uint64], scratch: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Put the hashes of these rows into `mixed`. Every step is one pass over data in the processor's cache."""
    mixed.fill(columns.start)
    for values, void, odd, given in columns.plain:
        np.multiply(values[start:end], odd, out=scratch)
        if void is not None:
            scratch += given
            scratch[void[start:end]] = 0
        mixed += scratch
    np.right_shift(mixed, _HALF, out=scratch)
    mixed ^= scratch
    mixed *= _MIX
    np.right_shift(mixed, _REST, out=scratch)
    mixed ^= scratch
    return mixed


@cache
def _constants(name: str, kind: str) -> tuple[np.uint64, np.uint64]:
    """Return the factor and the addend for a column's values."""
    odd = xxhash.xxh3_64_intdigest(_VERSION + f"\x00odd\x00{kind}\x00{name}".encode()) | 1
    seed = xxhash.xxh3_64_intdigest(_VERSION + f"\x00seed\x00{kind}\x00{name}".encode())
    return np.uint64(odd), np.uint64(seed * odd % (1 << 64))


@cache
def _kind(kind: pa.DataType) -> str:
    """Return the kind of a column that determines its constants; widths and encodings do not matter."""
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    for name, fits in (
        ("bool", pa.types.is_boolean),
        ("int", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("text", _is_text),
        ("bytes", _is_bytes),
    ):
        if fits(kind):
            return name
    if pa.types.is_temporal(kind):
        return str(kind)  # the same number means another time in another unit
    return "null" if pa.types.is_null(kind) else ""


def _plain(column: pa.Array) -> Values | None:
    """Return a column as 64 bits per row, None if its kind cannot be hashed."""
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:  # the most frequent by far
        return _as_bits(column), None
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64), np.ones(len(column), np.bool_)
    if pa.types.is_floating(kind):
        return _floats(column, null)
    if pa.types.is_decimal(kind):
        return _plain(column.cast(pa.string()))  # the text has every digit, and the scale
    if _is_text(kind) or _is_bytes(kind):
        return _texts(column), null
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(kind):
        return None
    return _as_bits(pc.fill_null(column, 0) if null is not None else column), null


def _as_bits(column: pa.Array) -> NDArray[np.uint64]:
    if column.type.bit_width == 64:
        # The result of to_numpy, which gives the interpreter away and waits for other threads to get it back.
        first, data = column.offset, column.buffers()[1]
        return np.frombuffer(data, np.uint64, first + len(column))[first:] if len(column) else np.empty(0, np.uint64)
    whole_numbers = column.to_numpy(zero_copy_only=False)
    if whole_numbers.dtype != np.uint64:
        whole_numbers = whole_numbers.astype(np.int64, copy=False).view(np.uint64)
    return np.asarray(whole_numbers)


def _floats(column: pa.Array, null: NDArray[np.bool_] | None) -> Values:
    values = (pc.fill_null(column, 0.0) if null is not None else column).to_numpy(zero_copy_only=False)
    values = values.astype(np.float64) + 0.0  # turns -0.0 into 0.0
    if (nan := np.isnan(values)).any():
        null = nan if null is None else null | nan
    return values.view(np.uint64), null


def _texts(column: pa.Array) -> NDArray[np.uint64]:
    """Return the xxh3 of each value, 0 for a null."""
    return xxh3_of(column.cast(pa.binary()) if pa.types.is_fixed_size_binary(column.type) else column)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
