"""Open addressing with linear probing over one-word entries; see layout.py for their form.

The index grows by *generations*: each block of rows moves a bounded share of entries, in the order of their homes,
which a larger index keeps. A key is in exactly one generation: the old one as long as its home there has not been
moved. The new generation's memory is touched in order, so the system hands it out page by page.

Invariants
    - Moving stops after an empty entry only, so no run of entries lies across the border.
    - A generation is at most five eighths full, so a probe always ends.

Source: Knuth, The Art of Computer Programming 3, 6.4 (algorithms L and R).
"""

from __future__ import annotations

from typing import Any

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get, put
from holdfast.state.tables.kernels.layout import Control

_BITS, _OLD_BITS, _START, _MOVED = (
    int(each) for each in (Control.BITS, Control.OLD_BITS, Control.START, Control.MOVED)
)
_TAG_BITS = 31
_SLOT = (1 << 32) - 1


@inner
def home_of(tag: int, bits: int) -> int:
    """Return the entry at which probing for a tag begins."""
    return tag >> (_TAG_BITS - bits)


@inner
def is_old(control: int, tag: int) -> bool:
    """Return whether keys of this tag are in the old generation; one must be moving."""
    bits = get(control, _OLD_BITS)
    return bool(((home_of(tag, bits) - get(control, _START)) & ((1 << bits) - 1)) >= get(control, _MOVED))


@inner
def insert(entries: int, bits: int, tag: int, slot: int) -> None:
    """Insert a key that is absent."""
    mask = (1 << bits) - 1
    at = home_of(tag, bits)
    while get(entries, at) != 0:
        at = (at + 1) & mask
    put(entries, at, (tag << 32) | (slot + 1))


@inner
def remove(entries: int, bits: int, tag: int, slot: int) -> None:
    """Delete an entry, and shift the entries after it back, so that no probe ends too early."""
    mask = (1 << bits) - 1
    hole = home_of(tag, bits)
    while (get(entries, hole) & _SLOT) != slot + 1:
        hole = (hole + 1) & mask
    at = (hole + 1) & mask
    entry = get(entries, at)
    while entry != 0:
        if ((at - home_of(entry >> 32, bits)) & mask) >= ((at - hole) & mask):
            put(entries, hole, entry)
            hole = at
        at = (at + 1) & mask
        entry = get(entries, at)
    put(entries, hole, 0)


@inner
def move(entries: int, old: int, control: int, share: int) -> None:
    """Move at least `share` entries of the old generation, or all that are left."""
    size = 1 << get(control, _OLD_BITS)
    start, bits, moved_count = get(control, _START), get(control, _BITS), get(control, _MOVED)
    target = min(moved_count + share, size)
    while True:
        at = (start + moved_count) & (size - 1)
        entry = get(old, at)
        moved_count += 1
        if entry != 0:
            insert(entries, bits, entry >> 32, (entry & _SLOT) - 1)
            put(old, at, 0)
        elif moved_count >= target:
            break
    put(control, _MOVED, -1 if moved_count >= size else moved_count)


@kernel("none", "words", "words", "number")
def refill(entries_: Any, from_: Any, bits: int) -> None:
    """Insert all entries of one index into another, empty one with 1 << bits entries."""
    entries, old = address_of(entries_), address_of(from_)
    for at in range(from_.size):
        entry = get(old, at)
        if entry != 0:
            insert(entries, bits, entry >> 32, (entry & _SLOT) - 1)
