"""Kernels over lists of slots: gather, copy, commit, roll back, scan; and the bytes of text keys."""

from __future__ import annotations

from typing import Any

from holdfast.state.compiled.jit import kernel
from holdfast.state.compiled.memory import address_of, get, prefetch, put
from holdfast.state.tables.kernels.copying import copied
from holdfast.state.tables.kernels.layout import DIRTY, Control, Flag

_OPENED, _WORDS, _KEY, _VALUES, _DIRTY_NOW = (
    int(Control[name]) for name in ("OPENED", "WORDS", "KEY", "VALUES", "DIRTY")
)
_WORKING, _COMMITTED, _DIRTY, _ERASED = (int(each) for each in (Flag.WORKING, Flag.COMMITTED, DIRTY, Flag.ERASED))
_AHEAD = 16
"""Records that are prefetched before they are read."""
_GATHERED, _LINE_WORDS = 64, 8
"""Records whose words are gathered together, while the next ones are prefetched; words of a cache line."""


@kernel("none", "words", "number", "number", "words", "matrix")
def gather(records: Any, width: int, first: int, slots: Any, out: Any) -> None:
    """Copy words first, first + 1, ... of every slot's record into the rows of `out`, shape (words, slots)."""
    count, rows, slots_at, to = out.shape[0], slots.size, address_of(slots), address_of(out)
    begin = address_of(records) + 8 * first
    for block in range(0, rows, _GATHERED):
        end = min(rows, block + _GATHERED)
        for i in range(end, min(rows, end + _GATHERED)):
            for word in range(0, count, _LINE_WORDS):
                prefetch(begin, get(slots_at, i) * width + word)
        for word in range(count):  # word by word: one simple loop has more records on their way than nested ones
            for i in range(block, end):
                put(to, word * rows + i, get(begin, get(slots_at, i) * width + word))


@kernel("none", "words", "number", "number", "words", "matrix")
def scatter(records: Any, width: int, first: int, slots: Any, given: Any) -> None:
    """Copy the rows of `given`, shape (words, slots), into words first, first + 1, ... of every slot's record."""
    for i in range(slots.size):
        prefetch(address_of(records), slots[min(i + _AHEAD, slots.size - 1)] * width + first)
        base = slots[i] * width + first
        for word in range(given.shape[0]):
            records[base + word] = given[word, i]


@kernel("none", "words", "words", "words", "number", "number")
def set_flags(records: Any, control: Any, slots: Any, clear: int, add: int) -> None:
    """Clear and set flags of slots."""
    width, key = control[_WORDS], control[_KEY]
    for i in range(slots.size):
        at = slots[i] * width + key
        records[at] = (records[at] & ~clear) | add


@kernel("none", "words", "words", "words", "words", "number", "number")
def reset(records: Any, control: Any, slots: Any, defaults: Any, clear: int, add: int) -> None:
    """Clear and set flags of slots, and give them the default values."""
    width, key = control[_WORDS], control[_KEY]
    for i in range(slots.size):
        at = slots[i] * width + key
        records[at] = (records[at] & ~clear) | add
        for word in range(defaults.size):
            records[at + 1 + word] = defaults[word]


@kernel("none", "words", "words", "words", "words", "words")
def delete(records: Any, control_: Any, opened: Any, slots: Any, defaults: Any) -> None:
    """Make the keys of slots absent and dirty, with default values; list those not dirty. Copies frozen ones first."""
    control = address_of(control_)
    width, key, count, dirty = control_[_WORDS], control_[_KEY], control_[_OPENED], control_[_DIRTY_NOW]
    for i in range(slots.size):
        record = address_of(records) + slots[i] * width * 8
        state = copied(control, record, slots[i])
        if state & dirty == 0:
            opened[count] = slots[i]
            count += 1
        put(record, key, (state | dirty) & ~(_WORKING | _ERASED))
        for word in range(defaults.size):
            put(record, key + 1 + word, defaults[word])
    control_[_OPENED] = count


@kernel("none", "words", "words", "words")
def copy_frozen(records: Any, control_: Any, slots: Any) -> None:
    """Copy those of these records that are frozen."""
    control = address_of(control_)
    width, key = control_[_WORDS], control_[_KEY]
    for i in range(slots.size):
        prefetch(address_of(records), slots[min(i + _AHEAD, slots.size - 1)] * width)
        record = address_of(records) + slots[i] * width * 8
        put(record, key, copied(control, record, slots[i]))


@kernel("none", "words", "words", "words", "words", "words")
def commit(records: Any, committed: Any, control: Any, slots: Any, copies: Any) -> None:
    """Copy frozen values to the committed side.

    Args:
        copies: The copies of the records of these slots, one after another.
    """
    width, key = control[_WORDS], control[_KEY]
    columns = control[_VALUES]
    for i in range(slots.size):
        slot = slots[i]
        ahead = slots[min(i + _AHEAD, slots.size - 1)]
        prefetch(address_of(records), ahead * width + key)
        prefetch(address_of(committed), ahead * columns)
        at = slot * width + key
        before = records[at]
        state = before
        if copies[i * width + key] & _WORKING != 0:
            state |= _COMMITTED
            for word in range(columns):
                committed[slot * columns + word] = copies[i * width + key + 1 + word]
        else:
            state &= ~_COMMITTED
        if state != before:  # records that are only read leave memory without being written to the disk
            records[at] = state


@kernel("none", "words", "words", "words", "words", "words")
def roll_back(records: Any, committed: Any, control: Any, defaults: Any, slots: Any) -> None:
    """Give slots their committed values, or the defaults if their keys are not committed."""
    width, key, columns = control[_WORDS], control[_KEY], defaults.size
    for i in range(slots.size):
        slot = slots[i]
        at = slot * width + key
        state = records[at] & ~(_DIRTY | _WORKING | _ERASED)
        if state & _COMMITTED != 0:
            state |= _WORKING
            for word in range(columns):
                records[at + 1 + word] = committed[slot * columns + word]
        else:
            for word in range(columns):
                records[at + 1 + word] = defaults[word]
        records[at] = state


@kernel("number", "words", "words", "number", "number", "number", "number", "words")
def scan(records: Any, control: Any, first: int, end: int, wanted: int, without: int, out: Any) -> int:
    """List the used slots of [first, end) that have one of the flags `wanted` (any slot if 0) and none of `without`."""
    width, key, count = control[_WORDS], control[_KEY], 0
    for slot in range(first, end):
        state = records[slot * width + key]
        if state == 0 or state & without != 0 or (wanted != 0 and state & wanted == 0):
            continue
        out[count] = slot
        count += 1
    return count


@kernel("number", "words", "words", "number", "number", "words", "words", "words", "words", "words")
def scan_times(
    records_: Any, control_: Any, first: int, end: int, wanted_: Any, known_: Any, out_: Any, times_: Any, left_: Any
) -> int:
    """List the present slots of [first, end) whose time is wanted, with their times.

    Args:
        wanted_: The word of the time; times up to the next number are wanted, and times after the one after it, up to
            the last one.
        known_: Those of the latter times that are not wanted.
        left_: Becomes the earliest and the latest time that is not among the first ones; as it was if there is none.

    Returns:
        How many there are.
    """
    records, control, time_bounds, excluded_times = (
        address_of(records_),
        address_of(control_),
        address_of(wanted_),
        address_of(known_),
    )
    stride, state_at, word = get(control, _WORDS) * 8, get(control, _KEY), get(time_bounds, 0)
    over, after, through, out, times = (
        get(time_bounds, 1),
        get(time_bounds, 2),
        get(time_bounds, 3),
        address_of(out_),
        address_of(times_),
    )
    count, before, has_before, take = 0, 0, False, False
    for slot in range(first, end):
        record = records + slot * stride
        if get(record, state_at) & _WORKING == 0:
            continue
        at = get(record, word)
        if not has_before or at != before:  # slots come in runs of one time
            before, has_before, take = at, True, at <= over
            if not take:
                left_[0], left_[1] = min(left_[0], at), max(left_[1], at)
                take = after < at <= through
                for number in range(known_.size):
                    take = take and get(excluded_times, number) != at
        if take:
            put(out, count, slot)
            put(times, count, at)
            count += 1
    return count


@kernel("none", "bytes", "words", "words", "words", "bytes")
def copy_bytes(arena: Any, starts: Any, lengths: Any, to: Any, out: Any) -> None:
    """Copy byte strings of the arena to out[to[i]], ..."""
    for i in range(starts.size):
        start, first = starts[i], to[i]
        for byte in range(lengths[i]):
            out[first + byte] = arena[start + byte]


@kernel("number", "words", "words", "number", "number", "bytes", "bytes", "number")
def compact_arena(records: Any, control: Any, first: int, end: int, arena: Any, out: Any, used: int) -> int:
    """Copy the bytes of the keys in slots [first, end) after the `used` bytes of another arena; return its bytes."""
    width, key = control[_WORDS], control[_KEY]
    for slot in range(first, end):
        base = slot * width
        if records[base + key] != 0:
            start, length = records[base + 1], records[base + 2]
            for byte in range(length):
                out[used + byte] = arena[start + byte]
            records[base + 1] = used
            used += length
    return used


__all__ = [
    "commit",
    "compact_arena",
    "copy_bytes",
    "copy_frozen",
    "delete",
    "gather",
    "reset",
    "roll_back",
    "scan",
    "scan_times",
    "scatter",
    "set_flags",
]
