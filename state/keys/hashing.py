"""Computes canonical bytes, their xxh3-64 and key groups from the words of fixed-width keys.

Importing this module imports Numba.

Source: xxHash specification, XXH3 for inputs of 1 to 128 bytes, seed 0; canonical.py for the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, byte_swapped, fold_product, get, put, put_u8, put_u16, word_at
from holdfast.state.compiled.sources import addresses_of
from holdfast.state.keys.keygroups import GAMMA, MIX_1, MIX_2

BYTES_MAX = 128
_SIGNED, _UNSIGNED, _BOOL = range(3)
_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    ),
    np.int64,
).copy()
"""The first 128 bytes of the default secret."""
_PRIME_1, _PRIME_2, _PRIME_3 = (
    np.uint64(prime) for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
_AVALANCHE, _SHORT = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
_15, _24, _25, _28, _29, _32, _33, _35, _37, _40, _49 = map(np.uint64, (15, 24, 25, 28, 29, 32, 33, 35, 37, 40, 49))
_27, _30, _31 = map(np.uint64, (27, 30, 31))
_LOW, _SIGN = np.uint64(0xFFFFFFFF), np.uint64(1 << 63)


def hashes_of(columns: Sequence[NDArray[np.int64]], kinds: Sequence[pa.DataType], rows: int) -> NDArray[np.uint64]:
    """Return the xxh3-64 of the canonical bytes of keys.

    Args:
        columns: Words, shape (rows,) each; null bits may follow (Keys.word_columns).
        kinds: The types of the columns; their canonical bytes must not exceed BYTES_MAX.
    """
    hashes = np.empty(rows, np.uint64)
    scratch = np.empty(BYTES_MAX // 8 + 2, np.int64)
    hash_words(addresses_of(columns), _forms_of(kinds), _SECRET, scratch, hashes)
    return hashes


def canonical_of(
    columns: Sequence[NDArray[np.int64]], kinds: Sequence[pa.DataType], rows: int, width: int
) -> NDArray[np.uint8]:
    """Return the canonical bytes of keys, shape (rows, width).

    Args:
        columns, kinds: As in hashes_of, of any number.
        width: Bytes of a key.
    """
    data = np.empty(rows * width, np.uint8)
    write_canonical(addresses_of(columns), _forms_of(kinds), rows, data)
    return data.reshape(rows, width)


def key_groups_of_ints(values: NDArray[np.int64], count: int) -> NDArray[np.uint16]:
    """Return the key groups of keys that are one integer, as keygroups.py defines them.

    Args:
        count: Key groups of the job.
    """
    values, groups = np.ascontiguousarray(values), np.empty(values.size, np.uint16)
    write_groups(values.ctypes.data, count, groups)
    return groups


def _forms_of(kinds: Sequence[pa.DataType]) -> NDArray[np.int64]:
    forms = [_BOOL if pa.types.is_boolean(kind) else int(pa.types.is_uint64(kind)) for kind in kinds]
    return np.array(forms, np.int64)


@inner
def _write(columns: int, forms: int, count: int, nulls: int, row: int, to: int) -> Any:
    """Write the canonical bytes of a row; return where they end."""
    at = to
    for column in range(count):
        word, form = np.uint64(get(get(columns, column), row)), get(forms, column)
        null = nulls != 0 and (get(nulls, row) >> column) & 1 != 0
        put_u8(at, 0, np.uint8(0 if null else 1))
        if form == _BOOL:
            put_u8(at, 1, np.uint8(word))
            at += 2
        else:
            if form == _SIGNED and not null:
                word ^= _SIGN
            put(at + 1, 0, np.int64(byte_swapped(word)))
            at += 9
    return at


@inner
def _avalanched(mixed: Any) -> Any:
    mixed ^= mixed >> _37
    mixed *= _AVALANCHE
    return mixed ^ (mixed >> _32)


@inner
def _mixed(data: int, secret: int, at: int, of: int) -> Any:
    """Mix 16 bytes at `at` with the secret's at `of`."""
    return fold_product(word_at(data, at) ^ word_at(secret, of), word_at(data, at + 8) ^ word_at(secret, of + 8))


@inner
def _hash_tiny(data: int, length: int, secret: int) -> Any:
    """Hash 1 to 8 bytes; those after them must be readable."""
    first = word_at(data, 0)
    size = np.uint64(length)
    if length < 4:
        byte = np.uint64(0xFF)
        last, middle = np.uint64(8 * (length - 1)), np.uint64(8 * (length >> 1))
        combined = ((first & byte) << np.uint64(16)) | (((first >> middle) & byte) << _24)
        combined |= ((first >> last) & byte) | (size << np.uint64(8))
        flip = word_at(secret, 0)
        hash_value = combined ^ ((flip & _LOW) ^ (flip >> _32))
        hash_value ^= hash_value >> _33
        hash_value *= _PRIME_2
        hash_value ^= hash_value >> _29
        hash_value *= _PRIME_3
        return hash_value ^ (hash_value >> _32)
    last = word_at(data, length - 4) & _LOW
    hash_value = (last + ((first & _LOW) << _32)) ^ (word_at(secret, 8) ^ word_at(secret, 16))
    hash_value ^= ((hash_value << _49) | (hash_value >> _15)) ^ ((hash_value << _24) | (hash_value >> _40))
    hash_value *= _SHORT
    hash_value ^= (hash_value >> _35) + size
    hash_value *= _SHORT
    return hash_value ^ (hash_value >> _28)


@inner
def _hash(data: int, length: int, secret: int) -> Any:
    """Hash 1 to 128 bytes."""
    if length <= 8:
        return _hash_tiny(data, length, secret)
    if length <= 16:
        low = word_at(data, 0) ^ (word_at(secret, 24) ^ word_at(secret, 32))
        high = word_at(data, length - 8) ^ (word_at(secret, 40) ^ word_at(secret, 48))
        return _avalanched(np.uint64(length) + byte_swapped(low) + high + fold_product(low, high))
    accumulator = np.uint64(length) * _PRIME_1
    for step in range((length - 1) >> 5, -1, -1):
        accumulator += _mixed(data, secret, 16 * step, 32 * step)
        accumulator += _mixed(data, secret, length - 16 * (step + 1), 32 * step + 16)
    return _avalanched(accumulator)


@kernel("none", "words", "words", "words", "words", "hashes")
def hash_words(columns_: Any, forms_: Any, secret_: Any, scratch_: Any, hashes_: Any) -> None:
    """Hash rows of words; see hashes_of."""
    columns, forms, data, count = address_of(columns_), address_of(forms_), address_of(scratch_), forms_.size
    nulls = get(columns, count) if columns_.size > count else 0
    hashes = address_of(hashes_)
    for row in range(hashes_.size):
        end = _write(columns, forms, count, nulls, row, data)
        put(hashes, row, np.int64(_hash(data, end - data, address_of(secret_))))


@kernel("none", "words", "words", "number", "bytes")
def write_canonical(columns_: Any, forms_: Any, rows: int, data_: Any) -> None:
    """Write the canonical bytes of rows of words, one after another; see canonical_of."""
    columns, forms, count, at = address_of(columns_), address_of(forms_), forms_.size, address_of(data_)
    nulls = get(columns, count) if columns_.size > count else 0
    for row in range(rows):
        at = _write(columns, forms, count, nulls, row, at)


@kernel("none", "number", "number", "groups")
def write_groups(values: int, count: int, groups_: Any) -> None:
    """Write the key group of every integer at this address: splitmix64, then multiply-shift."""
    groups = address_of(groups_)
    for row in range(groups_.size):
        hash_value = np.uint64(get(values, row)) + GAMMA
        hash_value = (hash_value ^ (hash_value >> _30)) * MIX_1
        hash_value = (hash_value ^ (hash_value >> _27)) * MIX_2
        hash_value ^= hash_value >> _31
        put_u16(groups, row, np.uint16(((hash_value >> _32) * np.uint64(count)) >> _32))


__all__ = [
    "BYTES_MAX",
    "canonical_of",
    "hash_words",
    "hashes_of",
    "key_groups_of_ints",
    "write_canonical",
    "write_groups",
]
