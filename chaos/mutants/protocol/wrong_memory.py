"""Wrong versions of a worker that waits for memory or copies frozen records; mutants.py names the rule of each.

Source: docs/decisions/0039-state-larger-than-memory.md, docs/decisions/0043-incremental-freeze.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from holdfast.runtime.worker.loop import WorkerLoop
from holdfast.state.tables.kernels.layout import Control
from holdfast.state.tables.table import StateTable

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def never_asks(_: Right) -> Right:
    """A worker waits for the next barrier however many changes it holds."""
    return lambda loop: False


def asks_for_new_changes_only(_: Right) -> Right:
    """Changes of an epoch that was given up do not make the worker ask for another one."""

    def wants_barrier(loop: WorkerLoop) -> bool:
        budget, state = loop._limits.budget, loop._state
        return budget is not None and state is not None and state.dirty_bytes > budget.early_from

    return wants_barrier


def stops_for_good(right: Right) -> Right:
    """Sources that were stopped once are not read again in this process."""
    stopped_loops: WeakSet[WorkerLoop] = WeakSet()

    def memory_is_full(loop: WorkerLoop) -> bool:
        if right(loop):
            stopped_loops.add(loop)
        return loop in stopped_loops

    return memory_is_full


def asks_the_disk_once(_: Right) -> Right:
    """A disk that was full is not tried again while sources wait for it."""
    return lambda store: None


def copies_what_was_changed(right: Right) -> Right:
    """A change overwrites a frozen record that was not copied yet, and its new values are copied."""

    def change(table: StateTable, *given: Any) -> Any:
        before = int(table._control[Control.COPIED])
        result = right(table, *given)
        copy_range = slice(before, int(table._control[Control.COPIED]))
        if copy_range.start < copy_range.stop:
            copies = table._frozen[-1].copies
            changed = table._gather(copies.slots[copy_range], 0, copies.width)
            copies.words.reshape(-1, copies.width)[copy_range] = changed.T
        return result

    return change
