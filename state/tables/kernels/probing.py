"""Find keys through the index: their tags, the slots that they may have, and whether a record has a key.

The tag in an entry nearly always names the right slot, so the *likely* slot of a key is found without reading a record.

Source: docs/decisions/0036-records-and-kernels.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.state.compiled.jit import inner
from holdfast.state.compiled.memory import get, prefetch, put, word_at
from holdfast.state.tables.kernels.index import home_of, is_old
from holdfast.state.tables.kernels.layout import Control

_BITS, _OLD_BITS, _MOVED, _WORDS = (int(Control[name]) for name in ("BITS", "OLD_BITS", "MOVED", "WORDS"))
_SLOT = (1 << 32) - 1
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_29, _32, _33 = np.uint64(29), np.uint64(32), np.uint64(33)


@inner
def tag_of(key: int, words: int, seed: int, mask: int) -> Any:
    """Return the tag of a key: the upper bits of a seeded hash of its words, or of its xxh3 for text."""
    hash_value = np.uint64(seed)
    for word in range(words):
        hash_value ^= np.uint64(get(key, word))
        hash_value ^= hash_value >> _32
        hash_value *= _MIX_1
    hash_value ^= hash_value >> _29
    hash_value *= _MIX_2
    return np.int64(hash_value >> _33) & mask


@inner
def load_keys(columns: int, count: int, first: int, size: int, out: int, words: int) -> None:
    """Write the key words of a block, rows one after another; without a column of null bits, no value is null."""
    for column in range(count):
        given = get(columns, column) + first * 8
        for row in range(size):
            put(out, row * words + column, get(given, row))
    if count < words:
        for row in range(size):
            put(out, row * words + count, 0)


@inner
def write_tags(keys: int, words: int, size: int, tags: int, seed: int, mask: int) -> None:
    """Write the tags of a block's keys."""
    if words == 1:  # a loop that is compiled to vectors
        for row in range(size):
            put(tags, row, tag_of(keys + row * 8, 1, seed, mask))
    else:
        for row in range(size):
            put(tags, row, tag_of(keys + row * words * 8, words, seed, mask))


@inner
def prefetch_entries(entries: int, old: int, control: int, tags: int, size: int) -> None:
    bits = get(control, _BITS)
    if get(control, _MOVED) < 0:
        for row in range(size):
            prefetch(entries, home_of(get(tags, row), bits))
        return
    for row in range(size):
        tag = get(tags, row)
        if is_old(control, tag):
            prefetch(old, home_of(tag, get(control, _OLD_BITS)))
        else:
            prefetch(entries, home_of(tag, bits))


@inner
def in_one_line(stride: int) -> bool:
    """Return whether every record lies in one line of the cache."""
    return stride == 64 or stride == 32 or stride == 16


@inner
def write_likely(entries: int, old: int, control: int, tags: int, size: int, records: int, slots: int) -> None:
    """Write the slot that each key of a block may have, -1 if it has none; prefetch the records."""
    bits, stride = get(control, _BITS), get(control, _WORDS) * 8
    moving, wide = get(control, _MOVED) >= 0, not in_one_line(stride)
    for row in range(size):
        tag = get(tags, row)
        if moving and is_old(control, tag):
            slot = likely_of(old, get(control, _OLD_BITS), tag)
        else:
            slot = likely_of(entries, bits, tag)
        put(slots, row, slot)
        prefetch(records + slot * stride, 0)
        if wide:
            prefetch(records + slot * stride + stride, -1)


@inner
def prefetch_records(control: int, size: int, records: int, slots: int) -> None:
    """Prefetch the records of slots."""
    stride = get(control, _WORDS) * 8
    wide = not in_one_line(stride)
    for row in range(size):
        record = records + get(slots, row) * stride
        prefetch(record, 0)
        if wide:
            prefetch(record + stride, -1)


@inner
def same_bytes(one: int, other: int, length: int) -> bool:
    """Compare bytes; both places are readable 8 bytes beyond them."""
    position = 0
    while position + 8 <= length:
        if word_at(one, position) != word_at(other, position):
            return False
        position += 8
    left = length - position
    return left == 0 or (word_at(one, position) ^ word_at(other, position)) << np.uint64(64 - 8 * left) == 0


@inner
def has_key(record: int, key: int, words: int, text: int, arena: int, data: int, length: int) -> bool:
    """Return whether a record has this key; `data` is where the bytes of a text key begin."""
    if text != 0:
        if get(record, 0) != get(key, 0) or get(record, 2) != length:
            return False
        return same_bytes(arena + get(record, 1), data, length)
    for word in range(words):
        if get(record, word) != get(key, word):
            return False
    return True


@inner
def slot_of(
    index: int,
    bits: int,
    tag: int,
    records: int,
    stride: int,
    key: int,
    words: int,
    text: int,
    arena: int,
    data: int,
    length: int,
) -> Any:
    """Return the slot of a key, -1 if it is absent."""
    mask = (1 << bits) - 1
    at = home_of(tag, bits)
    while True:
        entry = get(index, at)
        if entry == 0:
            return -1
        if entry >> 32 == tag:
            slot = (entry & _SLOT) - 1
            if has_key(records + slot * stride, key, words, text, arena, data, length):
                return slot
        at = (at + 1) & mask


@inner
def likely_of(entries: int, bits: int, tag: int) -> Any:
    """Return the slot of the first entry with this tag, -1 if there is none."""
    mask = (1 << bits) - 1
    at = home_of(tag, bits)
    entry = get(entries, at)
    while entry != 0 and entry >> 32 != tag:
        at = (at + 1) & mask
        entry = get(entries, at)
    return (entry & _SLOT) - 1


__all__ = [
    "has_key",
    "in_one_line",
    "load_keys",
    "prefetch_entries",
    "prefetch_records",
    "slot_of",
    "tag_of",
    "write_likely",
    "write_tags",
]
