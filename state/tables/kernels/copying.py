"""Copies a record that a barrier froze, before anything else changes it.

At a barrier the flags EVEN and ODD change roles, and nothing is copied: a record with the flag of the previous interval
is *frozen*. A background step copies such records, a bounded number at a time; a kernel that changes one copies it
first. Then the flag is cleared, so a record is copied once.

Invariants
    - The copies of an epoch hold every record as of its barrier.
    - When the next barrier changes the roles, no record is frozen any longer.

Source: DESIGN section 5; docs/decisions/0043-incremental-freeze.md.
"""

from __future__ import annotations

from typing import Any

from holdfast.state.compiled.jit import inner
from holdfast.state.compiled.memory import get, put
from holdfast.state.tables.kernels.layout import DIRTY, Control

_WORDS, _KEY, _DIRTY, _COPIES, _SLOTS, _COPIED, _KNOWN, _WITHOUT = (
    int(Control[name]) for name in ("WORDS", "KEY", "DIRTY", "COPIES", "COPIED_SLOTS", "COPIED", "KNOWN", "WITHOUT")
)
_BOTH = int(DIRTY)


@inner
def copied(control: int, record: int, slot: int) -> Any:
    """Copy a record if it is frozen; return its state, which is not frozen, for the caller to write."""
    state = get(record, get(control, _KEY))
    frozen = _BOTH ^ get(control, _DIRTY)
    if state & frozen == 0:
        return state
    state &= ~frozen
    known = get(control, _KNOWN)
    if state & get(control, _WITHOUT) == 0 and (known == 0 or state & known != 0):
        width, count = get(control, _WORDS), get(control, _COPIED)
        to = get(control, _COPIES) + count * width * 8
        for word in range(width):
            put(to, word, get(record, word))
        put(get(control, _SLOTS), count, slot)
        put(control, _COPIED, count + 1)
    return state


__all__ = ["copied"]
