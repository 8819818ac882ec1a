"""Kernels for batches whose rows are taken in the order of their places: tags, likely slots, inputs in another order.

Source: docs/decisions/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

from typing import Any

from holdfast.state.compiled.jit import kernel
from holdfast.state.compiled.memory import address_of, get, get_u8, is_valid, put, put_u8
from holdfast.state.compiled.sources import ADDRESS, FIELDS, OFFSET, VALIDITY
from holdfast.state.tables.kernels.layout import BLOCK_ROWS, SCRATCH_GAP, Control, KeyPart, TablePart
from holdfast.state.tables.kernels.probing import load_keys, prefetch_entries, write_likely, write_tags

_KEY, _TEXT, _SEED, _MASK = (int(Control[name]) for name in ("KEY", "TEXT", "SEED", "MASK"))
_RECORDS, _ENTRIES, _OLD, _CONTROL = (int(TablePart[name]) for name in ("RECORDS", "ENTRIES", "OLD", "CONTROL"))
_COLUMNS, _FIRST = int(KeyPart.COLUMNS), int(KeyPart.FIRST)
_PART = (BLOCK_ROWS + SCRATCH_GAP) * 8


@kernel("none", "words", "words", "words", "words")
def tag_rows(table_: Any, given_: Any, tags_: Any, scratch_: Any) -> None:
    """Write the tag of every key."""
    key_parts, tags, keys = address_of(given_), address_of(tags_), address_of(scratch_) + _PART
    control = get(address_of(table_), _CONTROL)
    words = 1 if get(control, _TEXT) != 0 else get(control, _KEY)
    for first in range(0, tags_.size, BLOCK_ROWS):
        size = min(BLOCK_ROWS, tags_.size - first)
        load_keys(key_parts + _FIRST * 8, get(key_parts, _COLUMNS), first, size, keys, words)
        write_tags(keys, words, size, tags + first * 8, get(control, _SEED), get(control, _MASK))


@kernel("none", "words", "words", "words")
def likely_slots(table_: Any, tags_: Any, slots_: Any) -> None:
    """Write the slot that the key of every tag may have, -1 if it has none."""
    table, tags, slots = address_of(table_), address_of(tags_), address_of(slots_)
    records, entries, old, control = get(table, _RECORDS), get(table, _ENTRIES), get(table, _OLD), get(table, _CONTROL)
    for first in range(0, tags_.size, BLOCK_ROWS):
        size = min(BLOCK_ROWS, tags_.size - first)
        prefetch_entries(entries, old, control, tags + first * 8, size)
        write_likely(entries, old, control, tags + first * 8, size, records, slots + first * 8)


@kernel("none", "matrix", "words", "matrix", "bytes")
def reorder_inputs(inputs_: Any, order_: Any, values_: Any, bits_: Any) -> None:
    """Copy inputs of a fold in another order, and describe the copies in their place.

    Args:
        inputs_: Descriptions of the inputs, which are overwritten.
        values_: Becomes their values, shape (inputs, rows).
        bits_: Becomes their bitmaps of nulls, each of whole bytes; zero before.
    """
    rows, order, bitmap = order_.size, address_of(order_), (order_.size + 7) // 8
    for number in range(inputs_.shape[0]):
        description = address_of(inputs_) + number * FIELDS * 8
        given, values = get(description, ADDRESS), address_of(values_) + number * rows * 8
        if given != 0:
            for row in range(rows):
                put(values, row, get(given, get(order, row)))
            put(description, ADDRESS, values)
        validity, offset, bits = (
            get(description, VALIDITY),
            get(description, OFFSET),
            address_of(bits_) + number * bitmap,
        )
        if validity != 0:
            for row in range(rows):
                if is_valid(validity, offset + get(order, row)):
                    put_u8(bits, row >> 3, get_u8(bits, row >> 3) | (1 << (row & 7)))
            put(description, VALIDITY, bits)
            put(description, OFFSET, 0)


__all__ = ["likely_slots", "reorder_inputs", "tag_rows"]
