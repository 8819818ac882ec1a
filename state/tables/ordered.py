"""The ordered index of a resident table: the slots of all keys that exist now, in the order of the key or of a time.

It is a function of the records, so it is never stored. The code that changes records notes their slots, in any order
and any number of times. Before a range is read, every noted slot is compared with the tree's entry for it.

Invariants
    - After `settle`, the tree holds exactly the present slots, with the times in their records.
    - A slot that is in the tree keeps its key: slots are dropped after `settle` only, and when they are absent.

Pure: no clock, thread or I/O.
Source: docs/decisions/0041-ordered-rows-and-timers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.compiled.sources import Words
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.expiry import can_expire
from holdfast.state.tables.kernels.tree_layout import LEAF_ENTRIES, NODE_HEADER, NONE, Tree
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.records import TableRecords
from holdfast.state.tables.slab import RESERVED, Rows, Slab
from holdfast.state.tables.sortwords import Bound, SortWords

BY_KEY = ""
"""The order of the key; any other order is named by the value column with the time that comes first."""
NOTED_MAX = 1 << 16
"""More noted slots than this are reduced to different ones, once they have doubled."""
SORTED_FROM = 512
"""So many slots are inserted in their order: the path to a leaf stays in the cache."""
FOUND_AT_ONCE = 1 << 16
"""Ranges with at most this many slots are found in one pass; longer ones are counted first."""
SPARSE = 8
"""A tree is rebuilt when this part of its room, or less, is in use."""
_SMALL = 1_024
_FIRST_NODES = 16
_NO_LIMIT = (1 << 63) - 1
_NO_ROWS: Rows = np.empty(0, np.int64)


class RangeSlots(NamedTuple):
    """The slots of several ranges, one range after another."""

    counts: Rows
    """Slots per range."""
    slots: Rows


class OrderedIndex:
    """One order of a table.

    Args:
        table: The records.
        by: BY_KEY, or the column of times, int64, never written without touching the key.
        places: Returns where the parts of the table are, in the order of kernels.layout.Place.
    """

    def __init__(self, table: TableRecords, by: str, places: Callable[[], Words]) -> None:
        from holdfast.state.tables.kernels import tree  # imports the compiler, which few commands need

        types = {column.name: column.dtype for column in table.spec.columns}
        assert by == BY_KEY or types[by] == np.int64, "rows are ordered by an int64 column"
        self._table, self._by, self._places, self._kernels = table, by, places, tree
        self._words = SortWords(table.spec.key, by != BY_KEY)
        self.clear()

    def clear(self) -> None:
        """Forget all slots."""
        self._words.clear()
        self._noted: list[Rows] = []
        self._noted_count, self._noted_max = 0, NOTED_MAX
        self._held = np.zeros(0, np.bool_)
        """Per slot, whether it is in the tree."""
        self._times = np.zeros(0, np.int64)
        """Per slot in the tree, the time by which it is in the tree."""
        self._plant()

    def _plant(self) -> None:
        """Start with an empty tree."""
        width, control = self._words.count + 1, np.zeros(Tree.FIELDS, np.int64)
        node = NODE_HEADER + LEAF_ENTRIES * width
        self._nodes = Slab(np.int64, RESERVED * width, _FIRST_NODES * node)
        control[Tree.LEVELS] = control[Tree.HIGH] = control[Tree.USED] = 1
        control[Tree.FREE], control[Tree.ROOM] = NONE, _FIRST_NODES
        control[Tree.WORDS], control[Tree.TEXT] = self._words.count, self._words.text
        control[Tree.INNER], control[Tree.NODE] = LEAF_ENTRIES * width // (width + 1), node
        self._nodes.array[:NODE_HEADER] = (0, NONE, NONE, 0)
        self._control = control

    def __len__(self) -> int:
        """The number of slots in the tree."""
        return int(self._control[Tree.COUNT])

    @property
    def nbytes(self) -> int:
        """Bytes of nodes, user keys and lists of slots."""
        nodes = 8 * int(self._control[Tree.HIGH] * self._control[Tree.NODE])
        return nodes + self._words.nbytes + self._held.nbytes + self._times.nbytes + 8 * self._noted_count

    @property
    def reads_keys(self) -> bool:
        """Return whether the tree compares keys of records, of which some may be anywhere."""
        return self._words.text

    # Following the records

    def note(self, slots: Rows) -> None:
        """Note slots whose presence or time was changed, or will be in this batch."""
        if not slots.size:
            return
        self._noted.append(np.array(slots, np.int64))  # the caller may reuse its array
        self._noted_count += slots.size
        if self._noted_count > self._noted_max:
            noted = distinct(np.concatenate(self._noted))
            self._noted, self._noted_count, self._noted_max = [noted], noted.size, max(NOTED_MAX, 2 * noted.size)

    def settle(self) -> None:
        """Bring the tree into agreement with the records of all noted slots."""
        if not self._noted:
            return
        slots = distinct(np.concatenate(self._noted))
        self._hold(int(slots[-1]) + 1)
        present, held = self._table.is_present(slots), self._held[slots]
        moved = present & held & (self._times_of(slots) != self._times[slots]) if self._by else np.zeros_like(held)
        self._remove(slots[held & (moved | ~present)])
        self._insert(slots[present & (moved | ~held)])
        self._noted, self._noted_count, self._noted_max = [], 0, NOTED_MAX  # until then, a failure is repeated
        room, spare = int(self._control[Tree.USED]) * LEAF_ENTRIES, LEAF_ENTRIES * _SMALL
        if room > SPARSE * len(self) + spare or self._words.users > 2 * len(self) + _SMALL:
            self._rebuild()

    def _rebuild(self) -> None:
        self._words.clear()
        self._plant()
        slots = np.flatnonzero(self._held)
        self._held[slots] = False
        self._insert(slots)

    def _hold(self, size: int) -> None:
        if size > self._held.size:
            grown = max(size, 2 * self._held.size)
            self._held = np.concatenate([self._held, np.zeros(grown - self._held.size, np.bool_)])
            if self._by:
                self._times = np.concatenate([self._times, np.zeros(grown - self._times.size, np.int64)])

    def _times_of(self, slots: Rows) -> NDArray[np.int64]:
        return self._table.values(self._by, slots)

    def _insert(self, slots: Rows) -> None:
        if not slots.size:
            return
        if self._by:
            self._times[slots] = self._times_of(slots)
        bounds = self._whole(slots)
        if slots.size >= SORTED_FROM:
            order = np.lexsort(bounds.words.T[::-1])
            slots, bounds = slots[order], bounds.take(order)
        control, nodes, places, insert_count = self._control, self._nodes, self._places(), 0
        while True:
            insert_count = self._kernels.insert_rows(places, nodes.array, control, bounds.places, slots, insert_count)
            self._held[slots[:insert_count]] = True
            if insert_count == slots.size:
                return
            room = 2 * int(control[Tree.ROOM])
            nodes.hold(room * int(control[Tree.NODE]), int(control[Tree.HIGH] * control[Tree.NODE]))
            control[Tree.ROOM] = room

    def _remove(self, slots: Rows) -> None:
        if not slots.size:
            return
        bound = self._whole(slots)
        removed = self._kernels.remove_rows(self._places(), self._nodes.array, self._control, bound.places, slots)
        assert removed == slots.size, "a slot in the tree is not where its key belongs"
        self._held[slots] = False

    def _whole(self, slots: Rows) -> Bound:
        """Return the keys of slots with the times by which they are in the tree."""
        return self._words.whole(self._table.keys_at(slots), self._times[slots] if self._by else None)

    # Ranges

    def below(
        self,
        users: Keys,
        first: Sequence[pa.Array] = (),
        end: Sequence[pa.Array] = (),
        *,
        skip: Rows | int = 0,
        limit: Rows | int | None = None,
        descending: bool = False,
    ) -> RangeSlots:
        """Return the rows of user keys whose suffix is in [first, end).

        Args:
            users: User keys; one may occur more than once.
            first, end: The first columns of the suffix, one value per user key; none: there is no such bound.
            skip, limit: How many rows of each user key to leave out first, and how many to return then at most.
            descending: From the last row of each user key to the first.
        """
        self.settle()  # may give user keys other numbers
        lower, upper = self._words.below(users, first, False), self._words.below(users, end, not end)
        return self._found(lower, upper, skip, limit, descending)

    def through(self, last: int, limit: int | None = None, *, first: int | None = None) -> Rows:
        """Return the slots whose time, or first key column, is at most `last`: the earliest first, at most `limit`.

        Args:
            first: The least time; None: any.
        """
        assert self._by or can_expire(self._table.spec.key), "this order does not begin with a time"
        self.settle()
        lower = Bound(np.empty((1, 0), np.int64) if first is None else np.array([[first]]), None, False)
        return self._found(lower, Bound(np.array([[last]]), None, True), 0, limit, False).slots

    def _found(
        self, lower: Bound, upper: Bound, skip: Rows | int, limit: Rows | int | None, descending: bool
    ) -> RangeSlots:
        rows = len(lower)
        counts = np.zeros(rows, np.int64)
        skips = np.array(np.broadcast_to(np.asarray(skip, np.int64), rows))
        limits = np.array(np.broadcast_to(np.asarray(_NO_LIMIT if limit is None else limit, np.int64), rows))
        memory = (self._places(), self._nodes.array, self._control, lower.places, upper.places, skips, limits)
        most = FOUND_AT_ONCE + 1 if rows and int(limits.max()) > FOUND_AT_ONCE else int(limits.sum())
        if most > FOUND_AT_ONCE:
            most = self._kernels.find_ranges(*memory, int(descending), counts, _NO_ROWS)
        slots = np.empty(most, np.int64)
        if most:
            slots = slots[: self._kernels.find_ranges(*memory, int(descending), counts, slots)]
        return RangeSlots(counts, slots)

    def counts(self, users: Keys, first: Sequence[pa.Array] = (), end: Sequence[pa.Array] = ()) -> Rows:
        """Return how many rows of user keys have a suffix in [first, end)."""
        self.settle()
        lower, upper = self._words.below(users, first, False), self._words.below(users, end, not end)
        rows = len(users)
        counts, zeros, limits = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.full(rows, _NO_LIMIT)
        memory = (self._places(), self._nodes.array, self._control, lower.places, upper.places, zeros, limits)
        self._kernels.find_ranges(*memory, 0, counts, _NO_ROWS)
        return counts
