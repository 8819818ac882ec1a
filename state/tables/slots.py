"""Keys and columns by slot: the storage of a resident table.

Every key has a dense slot, which it keeps until all slots are renumbered. A slot has flags, and a working and a
committed value per column; table.py moves them.

Invariants
    - A new slot has default values on both sides and no flags.

Pure: no clock, thread or I/O.
Source: DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.keys.batch import Keys
from holdfast.state.tables.arena import KeyArena, KeyBatch
from holdfast.state.tables.expiry import Through, covered
from holdfast.state.tables.index import Index, Rows
from holdfast.state.tables.slab import Slab
from holdfast.state.tables.spec import TableSpec

WORKING, COMMITTED, DIRTY, UNAPPLIED, RECENT, ERASED = (np.uint8(1 << bit) for bit in range(6))
"""Flags of a slot: the key exists now; existed at the last commit; was written since the last barrier; its commit is
not in the cold store; was written recently; is absent because it expired."""
NEITHER = np.uint8(255) ^ (WORKING | COMMITTED)


class SlotColumns:
    """Slots of one operator's keys."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._clear()

    def _clear(self) -> None:
        self._index = Index()
        self._arena = None if self.spec.key.injective else KeyArena()
        self._working = {column.name: Slab(column.dtype) for column in self.spec.columns}
        self._committed = {column.name: Slab(column.dtype) for column in self.spec.columns}
        self._flags, self._claims = Slab(np.uint8), Slab(np.int32)
        self._born = 0

    def __len__(self) -> int:
        """The number of slots, of present and absent keys."""
        return self._index.count

    def column(self, name: str) -> NDArray[Any]:
        """Return the working values by slot, to read and write; valid until the next slots(), which may move them."""
        return self._working[name].array[: self._index.count]

    def is_present(self, slots: Rows) -> NDArray[np.bool_]:
        """Return whether the keys exist now."""
        present: NDArray[np.bool_] = (self._flags.array.take(slots) & WORKING) != 0
        return present

    def keys_at(self, slots: Rows) -> Keys:
        """Return the keys of slots; copied only at first use, since the key of a slot never changes."""
        index, arena = self._index, self._arena
        canonical = None if arena is None else lambda: arena.take(slots)
        return self.spec.key.deferred(slots.size, lambda: index.hashes.take(slots), canonical)

    def key_columns(self, slots: Rows) -> list[pa.Array]:
        """Return the key columns of slots."""
        return self.spec.key.decode(self.keys_at(slots))

    def _slots_in(self, through: Through) -> Rows:
        """Return the existing slots in the ranges."""
        assert self._arena is not None
        there = (self._flags.array[: self._index.count] & (WORKING | COMMITTED)) != 0
        slots = np.flatnonzero(there & (self._arena.leading_ints() <= through.max()))
        return slots[covered(self.keys_at(slots), through)]

    def _keyed(self, keys: Keys) -> tuple[Callable[..., Any] | None, Callable[[Rows], None] | None]:
        """Return how the index compares these keys with stored ones, and how it stores them."""
        arena = self._arena
        if arena is None:
            return None, None
        batch = KeyBatch(keys.canonical())
        return arena.same(batch), lambda rows: arena.append(batch, rows)

    def _find(self, keys: Keys) -> Rows:
        return self._index.find(keys.hashes, self._keyed(keys)[0])

    def _place(self, keys: Keys) -> Rows:
        """Find or insert; new slots have default values and are absent."""
        slots = self._index.slots(keys.hashes, *self._keyed(keys))
        first, end = self._born, self._index.count
        if end > first:
            for slab in (self._flags, self._claims, *self._working.values(), *self._committed.values()):
                slab.hold(end)
            self._flags.array[first:end] = 0
            for column in self.spec.columns:
                self._working[column.name].array[first:end] = column.default
                self._committed[column.name].array[first:end] = column.default
            self._born = end
        return slots

    def _empty(self, side: dict[str, Slab], slots: Rows) -> None:
        for column in self.spec.columns:
            side[column.name].array[slots] = column.default

    def _each_once(self, slots: Rows) -> Rows:
        """Drop repeated slots: each writes its row to its slot's claim, and exactly one of them reads it back."""
        rows = np.arange(slots.size, dtype=np.int32)
        self._claims.array[slots] = rows
        once: Rows = slots[self._claims.array.take(slots) == rows]
        return once
