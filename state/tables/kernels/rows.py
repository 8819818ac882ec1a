"""Kernels that walk the rows of a batch: find or insert, mark as dirty, fold.

A block of rows passes through four loops: hash the keys and prefetch their entries, probe and prefetch the records,
compare the keys (insert what is absent) and mark, run every operation of the program over the block. So the cache
misses of a block overlap, and the folds find their records in the first-level cache.

Invariants
    - A record is complete before the index names it.
    - A kernel stops at the border of a block for which there is no room; its caller makes room and resumes there.

Source: docs/decisions/0036-records-and-kernels.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import (
    address_of,
    get,
    get_f32,
    get_f64,
    get_u8,
    is_valid,
    prefetch,
    put,
    put_f32,
    put_f64,
    put_u8,
)
from holdfast.state.compiled.sources import ADDRESS, FIELDS, OFFSET, VALIDITY
from holdfast.state.tables.kernels.copying import copied
from holdfast.state.tables.kernels.index import insert, is_old, move, remove
from holdfast.state.tables.kernels.layout import (
    BLOCK_ROWS,
    INPUT,
    MOVED_PER_BLOCK,
    OPERATION,
    PROGRAM_FIELDS,
    SCRATCH_GAP,
    SHIFT,
    WORD,
    Control,
    Do,
    Flag,
    KeyPart,
    TablePart,
)
from holdfast.state.tables.kernels.probing import (
    has_key,
    in_one_line,
    load_keys,
    prefetch_entries,
    prefetch_records,
    slot_of,
    write_likely,
    write_tags,
)

_BITS, _OLD_BITS, _MOVED, _COUNT, _HIGH, _FREE, _OPENED, _ARENA = (
    int(Control[name]) for name in ("BITS", "OLD_BITS", "MOVED", "COUNT", "HIGH", "FREE", "OPENED", "ARENA")
)
_VOID, _SEED, _MASK, _BORN, _WORDS, _KEY, _TEXT = (
    int(Control[name]) for name in ("VOID", "SEED", "MASK", "BORN", "WORDS", "KEY", "TEXT")
)
_RECORDS, _RECORDS_SIZE, _ENTRIES, _OLD, _CONTROL, _FREE_AT, _OPENED_AT, _ARENA_AT, _DEFAULTS, _VALUES = (
    int(TablePart[name])
    for name in ("RECORDS", "SIZE", "ENTRIES", "OLD", "CONTROL", "FREE", "OPENED", "ARENA", "DEFAULTS", "VALUES")
)
_COLUMNS, _STARTS, _LENGTHS, _DATA, _FIRST = (
    int(KeyPart[name]) for name in ("COLUMNS", "STARTS", "LENGTHS", "DATA", "FIRST")
)
_WORKING, _ERASED, _USED, _DIRTY_NOW = int(Flag.WORKING), int(Flag.ERASED), int(Flag.USED), int(Control.DIRTY)
_COUNT_ROWS, _SET, _ADD_INT, _MIN_INT, _MAX_INT, _MIN_UINT, _MAX_UINT = (
    int(Do[name]) for name in ("COUNT", "SET", "ADD_INT", "MIN_INT", "MAX_INT", "MIN_UINT", "MAX_UINT")
)
_ADD_FLOAT, _MIN_FLOAT, _MAX_FLOAT, _MIN_F32 = (
    int(Do[name]) for name in ("ADD_FLOAT", "MIN_FLOAT", "MAX_FLOAT", "MIN_FLOAT32")
)
_PART = (BLOCK_ROWS + SCRATCH_GAP) * 8


@inner
def _create(table: int, key: int, words: int, data: int, length: int) -> Any:
    """Write the record of a new key; return its slot."""
    control = get(table, _CONTROL)
    if get(control, _FREE) > 0:
        put(control, _FREE, get(control, _FREE) - 1)
        slot = get(get(table, _FREE_AT), get(control, _FREE))
    else:
        slot = get(control, _HIGH)
        put(control, _HIGH, slot + 1)
    record, state_at = get(table, _RECORDS) + slot * get(control, _WORDS) * 8, get(control, _KEY)
    for word in range(words):
        put(record, word, get(key, word))
    if get(control, _TEXT) != 0:
        arena, arena_end = get(table, _ARENA_AT), get(control, _ARENA)
        for i in range(length):
            put_u8(arena, arena_end + i, get_u8(data, i))
        put(record, 1, arena_end)
        put(record, 2, length)
        put(control, _ARENA, arena_end + length)
    put(record, state_at, _USED)
    for word in range(get(table, _VALUES)):
        put(record, state_at + 1 + word, get(get(table, _DEFAULTS), word))
    put(control, _COUNT, get(control, _COUNT) + 1)
    return slot


@inner
def _mark(control: int, opened: int, slots: int, at: int, size: int) -> None:
    """Mark a block's records as present and dirty; list those that were not dirty, and copy frozen ones before."""
    state_at, count, dirty = get(control, _KEY), get(control, _OPENED), get(control, _DIRTY_NOW)
    write_flags = _WORKING | dirty
    for row in range(size):
        record = get(at, row)
        state = get(record, state_at)
        if state & write_flags != write_flags:
            if state & dirty == 0:
                put(opened, count, get(slots, row))
                count += 1
                state = copied(control, record, get(slots, row))
            put(record, state_at, (state | write_flags) & ~_ERASED)
    put(control, _OPENED, count)


@inner
def _fold_block(
    first: int, size: int, program: int, steps: int, inputs: int, all_at: int, some_at: int, some: int
) -> None:
    """Run a program over one block.

    Args:
        all_at: Where the records of the rows begin.
        some_at, some: Scratch: where the records of the rows begin whose value is not null, and their values.
    """
    loaded_column, count, at, values = -1, size, all_at, 0
    for step in range(steps):
        operation = program + step * PROGRAM_FIELDS * 8
        column = get(operation, INPUT)
        if column != loaded_column:
            loaded_column, count, at = column, size, all_at
            description = inputs + column * FIELDS * 8
            values = get(description, ADDRESS)
            if values != 0:
                values += first * 8
            if get(description, VALIDITY) != 0:
                validity, offset, count, at = get(description, VALIDITY), get(description, OFFSET) + first, 0, some_at
                for row in range(size):
                    if is_valid(validity, offset + row):
                        put(some_at, count, get(all_at, row))
                        if values != 0:
                            put(some, count, get(values, row))
                        count += 1
                values = some
        apply_all(get(operation, OPERATION), get(operation, WORD), get(operation, SHIFT), at, count, values)


@inner
def apply_all(do: int, word: int, shift: int, at: int, count: int, given: int) -> None:
    """Run one operation over `count` values; `at` lists the addresses of their records."""
    if do == _COUNT_ROWS:
        for i in range(count):
            record = get(at, i)
            put(record, word, get(record, word) + 1)
    elif do == _ADD_INT:
        for i in range(count):
            record = get(at, i)
            put(record, word, get(record, word) + get(given, i))
    elif do == _SET:
        for i in range(count):
            put(get(at, i), word, get(given, i))
    elif do == _MIN_INT or do == _MAX_INT:
        for i in range(count):
            record, value = get(at, i), get(given, i)
            before = (get(record, word) << shift) >> shift
            if (value < before) if do == _MIN_INT else (value > before):
                put(record, word, value)
    elif do == _MIN_UINT or do == _MAX_UINT:
        for i in range(count):
            record, value = get(at, i), get(given, i)
            less = np.uint64(value) < np.uint64(get(record, word))
            if less == (do == _MIN_UINT) and value != get(record, word):
                put(record, word, value)
    elif do == _ADD_FLOAT:
        for i in range(count):
            record = get(at, i)
            put_f64(record, word, get_f64(record, word) + get_f64(given, i))
    elif do == _MIN_FLOAT or do == _MAX_FLOAT:
        for i in range(count):
            record, number = get(at, i), get_f64(given, i)
            held = get_f64(record, word)
            if np.isnan(held) or (number < held if do == _MIN_FLOAT else number > held):
                put_f64(record, word, number)
    else:
        for i in range(count):
            record, small = get(at, i), np.float32(get_f64(given, i))
            kept = get_f32(record, 2 * word)
            if np.isnan(kept) or (small < kept if do == _MIN_F32 else small > kept):
                put_f32(record, 2 * word, small)


@inner
def _settle(
    table: int, given: int, keys: int, first: int, size: int, slots: int, at: int, tags: int, born: int
) -> None:
    """Find or insert the keys of a block, of which `slots` has the likely slots.

    Args:
        at: Becomes where the records begin.
        born: Gets the slots of new records; 0 if they are not wanted.
    """
    records, entries, old, control = get(table, _RECORDS), get(table, _ENTRIES), get(table, _OLD), get(table, _CONTROL)
    stride, text, arena, data = get(control, _WORDS) * 8, get(control, _TEXT), get(table, _ARENA_AT), get(given, _DATA)
    words, moving = 1 if text != 0 else get(control, _KEY), get(control, _MOVED) >= 0
    start, length = data, 0
    for row in range(first, first + size):
        slot, key = get(slots, row), keys + (row - first) * words * 8
        record = records + slot * stride
        if text != 0:
            start, length = data + get(get(given, _STARTS), row), get(get(given, _LENGTHS), row)
        same = slot >= 0 and get(record, 0) == get(key, 0)
        if same and ((words == 1 and text == 0) or has_key(record, key, words, text, arena, start, length)):
            put(at, row - first, record)
            continue
        tag = get(tags, row - first)
        in_old = moving and is_old(control, tag)
        index, bits = old if in_old else entries, get(control, _OLD_BITS) if in_old else get(control, _BITS)
        slot = slot_of(index, bits, tag, records, stride, key, words, text, arena, start, length)
        if slot < 0:
            slot = _create(table, key, words, start, length)
            insert(index, bits, tag, slot)
            if born != 0:
                put(born, get(control, _BORN), slot)
                put(control, _BORN, get(control, _BORN) + 1)
        put(slots, row, slot)
        put(at, row - first, records + slot * stride)


@kernel("number", "words", "words", "words", "number", "number", "number", "words", "matrix", "matrix", "words")
def take_rows(
    table_: Any,
    given_: Any,
    slots_: Any,
    first: int,
    likely: int,
    mark: int,
    born_: Any,
    program_: Any,
    inputs_: Any,
    scratch_: Any,
) -> int:
    """Find or insert the keys of rows from `first` on, and fold the rows.

    Args:
        table_: Where the parts of a table are, in the order of layout.Place.
        given_: Where the parts of the keys are, in the order of layout.Given.
        slots_: Becomes the slots, shape (rows,).
        likely: 1 if slots_ holds the likely slots.
        mark: 1 to mark the records as present and dirty.
        born_: Becomes the slots of records created by this call, if it has room for one per row.
        program_, inputs_: The fold and its inputs; may be empty.
        scratch_: (BLOCK_ROWS + SCRATCH_GAP) * (words of the key + 5) words.

    Returns:
        The first row that was not taken, for lack of room in index or records; else the number of rows.
    """
    table, key_parts, slots, scratch = address_of(table_), address_of(given_), address_of(slots_), address_of(scratch_)
    records, entries, old, control = get(table, _RECORDS), get(table, _ENTRIES), get(table, _OLD), get(table, _CONTROL)
    count, words = get(key_parts, _COLUMNS), 1 if get(control, _TEXT) != 0 else get(control, _KEY)
    tags, at, some_at, some, key_scratch = (
        scratch, scratch + _PART, scratch + 2 * _PART, scratch + 3 * _PART, scratch + 4 * _PART
    )  # fmt: skip
    put(control, _BORN, 0)
    while first < slots_.size:
        size = min(BLOCK_ROWS, slots_.size - first)
        moving = get(control, _MOVED) >= 0
        if not moving and 2 * (get(control, _COUNT) + size) > 1 << get(control, _BITS):
            break
        if (get(control, _HIGH) + size) * get(control, _WORDS) > get(table, _RECORDS_SIZE):
            break
        if moving:
            move(entries, old, control, MOVED_PER_BLOCK)
        keys = get(key_parts, _FIRST) + first * 8
        if words > 1 or count > 1:
            keys = key_scratch
            load_keys(key_parts + _FIRST * 8, count, first, size, keys, words)
        write_tags(keys, words, size, tags, get(control, _SEED), get(control, _MASK))
        if likely != 0:
            prefetch_records(control, size, records, slots + first * 8)
        else:
            prefetch_entries(entries, old, control, tags, size)
            write_likely(entries, old, control, tags, size, records, slots + first * 8)
        _settle(table, key_parts, keys, first, size, slots, at, tags, address_of(born_) if born_.size > 0 else 0)
        if mark != 0:
            _mark(control, get(table, _OPENED_AT), slots + first * 8, at, size)
        if program_.shape[0] > 0:
            _fold_block(first, size, address_of(program_), program_.shape[0], address_of(inputs_), at, some_at, some)
        first += size
    return first


@kernel("none", "words", "words", "words", "number", "words")
def find_rows(table_: Any, given_: Any, slots_: Any, likely: int, scratch_: Any) -> None:
    """Find keys without inserting them: slots_ becomes the slot of every key, -1 for those that are absent.

    Args:
        likely: 1 if slots_ holds the likely slots.
    """
    table, key_parts, slots, scratch = address_of(table_), address_of(given_), address_of(slots_), address_of(scratch_)
    records, entries, old, control = get(table, _RECORDS), get(table, _ENTRIES), get(table, _OLD), get(table, _CONTROL)
    text, moving, stride = get(control, _TEXT), get(control, _MOVED) >= 0, get(control, _WORDS) * 8
    words, keys, tags = 1 if text != 0 else get(control, _KEY), scratch + _PART, scratch
    data, arena, length = get(key_parts, _DATA), get(table, _ARENA_AT), 0
    start = data
    for first in range(0, slots_.size, BLOCK_ROWS):
        size = min(BLOCK_ROWS, slots_.size - first)
        load_keys(key_parts + _FIRST * 8, get(key_parts, _COLUMNS), first, size, keys, words)
        write_tags(keys, words, size, tags, get(control, _SEED), get(control, _MASK))
        if likely != 0:
            prefetch_records(control, size, records, slots + first * 8)
        else:
            prefetch_entries(entries, old, control, tags, size)
            write_likely(entries, old, control, tags, size, records, slots + first * 8)
        for row in range(size):
            slot, key = get(slots, first + row), keys + row * words * 8
            if slot < 0:
                continue  # no entry has its tag
            if text != 0:
                start, length = (
                    data + get(get(key_parts, _STARTS), first + row),
                    get(get(key_parts, _LENGTHS), first + row),
                )
            if has_key(records + slot * stride, key, words, text, arena, start, length):
                continue
            tag = get(tags, row)
            in_old = moving and is_old(control, tag)
            index, bits = old if in_old else entries, get(control, _OLD_BITS) if in_old else get(control, _BITS)
            put(slots, first + row, slot_of(index, bits, tag, records, stride, key, words, text, arena, start, length))


@kernel("none", "words", "words", "words", "words", "number", "matrix", "matrix", "words")
def fold_rows(
    records_: Any, control_: Any, opened_: Any, slots_: Any, mark: int, program_: Any, inputs_: Any, scratch_: Any
) -> None:
    """Mark the records of these slots as present and dirty if `mark` is 1, and fold one row into each."""
    records, control, touched_slots, slots = (
        address_of(records_),
        address_of(control_),
        address_of(opened_),
        address_of(slots_),
    )
    stride, steps, rows, at = get(control, _WORDS) * 8, program_.shape[0], slots_.size, address_of(scratch_)
    program, inputs, wide = address_of(program_), address_of(inputs_), not in_one_line(stride)
    for first in range(0, rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, rows - first)
        for row in range(size):
            record = records + get(slots, first + row) * stride
            put(at, row, record)
            prefetch(record, 0)
            if wide:
                prefetch(record + stride, -1)
        if mark != 0:
            _mark(control, touched_slots, slots + first * 8, at, size)
        if steps > 0:
            _fold_block(first, size, program, steps, inputs, at, at + _PART, at + 2 * _PART)


@kernel("none", "words", "words", "words", "number", "number")
def free_slots(table_: Any, slots_: Any, tags_: Any, removes: int, frees: int) -> None:
    """Delete the keys of these slots from the index, and put the slots into the free list: both, or one first.

    Args:
        tags_: Tags of the keys, if they are deleted.
    """
    table, free, tags = address_of(table_), get(address_of(table_), _FREE_AT), address_of(tags_)
    records, control = get(table, _RECORDS), get(table, _CONTROL)
    width, state_at, text = get(control, _WORDS), get(control, _KEY), get(control, _TEXT)
    for i in range(slots_.size):
        slot = get(address_of(slots_), i)
        record = records + slot * width * 8
        if removes != 0:
            if i % BLOCK_ROWS == 0:  # the entries of a block are on their way together
                size = min(BLOCK_ROWS, slots_.size - i)
                prefetch_entries(get(table, _ENTRIES), get(table, _OLD), control, tags + i * 8, size)
            tag = get(tags, i)
            in_old = get(control, _MOVED) >= 0 and is_old(control, tag)
            index = get(table, _OLD) if in_old else get(table, _ENTRIES)
            remove(index, get(control, _OLD_BITS) if in_old else get(control, _BITS), tag, slot)
        if frees != 0:
            if text != 0:
                put(control, _VOID, get(control, _VOID) + get(record, 2))
            put(record, state_at, 0)
            put(free, get(control, _FREE), slot)
            put(control, _FREE, get(control, _FREE) + 1)
            put(control, _COUNT, get(control, _COUNT) - 1)
