"""The resident table of one stateful operator: a record per key, updated a whole batch at a time.

Every key has a slot, the number of its record. records.py finds and inserts records, epochs.py freezes, commits and
rolls them back. This module connects them with the changelog and the ordered indexes.

How an operator uses it, per batch:

    slots = table.slots(keys)                          # finds or inserts
    column = table.changing(slots)                     # now they exist and are dirty
    np.add.at(column("count"), slots, 1)               # takes a new view for every batch

Columns that are not plain are read with `table.read(name, slots)` and written with `table.write(slots, columns)`, as
Arrow arrays. With all of this for plain columns in one compiled pass, `slots = table.fold(keys, program, inputs)`.

Invariants
    - A slot keeps its number until its key is dropped, which happens only to absent keys that are neither dirty nor
      unfinished.
    - Expired keys are absent, and no row of a delta names them: a range covers them all (state/tables/expiry.py).
    - Every change of a key's presence or working values is noted in the ordered indexes (state/tables/ordered.py).

Pure: no clock, thread or I/O of its own; for use by one thread.
Source: DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US, NO_EPOCH, Epoch
from holdfast.state.compiled.sources import Sources, Words
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.epochs import KNOWN, EpochRecords
from holdfast.state.tables.expiry import Through, covered
from holdfast.state.tables.kernels.layout import DIRTY, Control, Flag
from holdfast.state.tables.ordered import BY_KEY, OrderedIndex
from holdfast.state.tables.records import PART_ROWS_MIN, Program
from holdfast.state.tables.slab import PLAIN, UNLIMITED, Memory, Rows, TableContents
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec
from holdfast.state.tables.values import scalar

__all__ = ["ColumnSpec", "Columns", "StateTable", "TableSpec"]

VACANT_SLOTS_MIN = 16_384
"""Fewer slots without a row are not worth dropping."""
_ROW_REACH = 4 << 16
"""Bytes that may become resident for a row whose path through a tree of keys is unknown: entry, record, and keys, and
the pages that the system maps around each, 64 KiB by default."""
_HELD = DIRTY | Flag.PINNED
"""Flags of records that are not dropped."""


class StateTable(EpochRecords):
    """Keyed state of one operator in one worker.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
        memory: Where the records are.
    """

    def __init__(self, spec: TableSpec, key_group_count: int, *, memory: Memory = PLAIN) -> None:
        super().__init__(spec, key_group_count, memory=memory)
        self._orders = {by: OrderedIndex(self, by, self._places) for by in spec.orders}
        self.loads = 0
        """Grows whenever values arrive that no operator has just written: by a reset or a restore."""
        self.reset(NO_EPOCH)

    def reset(self, committed_through: Epoch) -> None:
        """Forget everything and start at this epoch."""
        if self._control[Control.HIGH]:
            self._clear()
            for order in self._orders.values():
                order.clear()
        self._begin(committed_through)
        self.loads += 1

    def stored(self) -> TableContents:
        """Return the parts of the table, as of a committed epoch."""
        assert not (self._control[Control.OPENED] or self._intervals or self._frozen), "not as of an epoch"
        self.commit_all()
        self._hold_committed()
        found = super().stored()
        return found._replace(numbers={**found.numbers, "vacant": self.vacant})

    def adopt(self, stored: TableContents, rooms: Mapping[str, NDArray[Any]], committed_through: Epoch) -> None:
        """Adopt the parts of another table of this declaration, which are complete and as of this epoch.

        Args:
            stored: Its arrays are used, not copied.
            rooms: In which room of this table's memory an array begins; those that are in none have no room to grow.
        """
        self.reset(committed_through)
        self._adopt(stored, rooms)
        self.vacant = stored.numbers["vacant"]
        for order in self._orders.values():
            order.clear()
            order.note(self._scan(Flag.WORKING))

    # Reading and writing a batch

    def slots(self, keys: Keys) -> Rows:
        """Return the slot of every key, int64; keys not seen yet get one.

        A slot stays valid until the next drop_vacant(), roll_back() included.

        Raises:
            JobFailed: a key is too large; nothing was written.
        """
        self._check_keys(keys)
        return self._take(keys, mark=False)[0]

    def fold(self, keys: Keys, program: Program, inputs: Sources) -> Rows:
        """Fold one row per key into the records of these keys, which exist and are dirty then; return their slots.

        If it raises because memory is exhausted, some rows may have been folded: roll back, do not repeat the batch.

        Args:
            program: Operations, in the order in which they read the inputs (state/tables/kernels/layout.py).
            inputs: The columns that it reads, with one row per key.

        Raises:
            JobFailed: a key is too large; nothing was written.
        """
        self._check_keys(keys)
        slots, _ = self._take(keys, mark=True, program=program, inputs=inputs)
        self._note(slots)
        return slots

    def expire(self, slots: Rows, through: Through) -> None:
        """Erase the windows that ended at or before `through` of their key group, by ranges and not key by key.

        Args:
            slots: Every present slot in the ranges, each once; the caller must have examined all present() keys.
            through: The ranges; they do not apply to key groups that are not owned.
        """
        if self.spec.ranges:
            self._expire(slots, through)
        else:
            self.delete(slots)

    def present(self) -> Rows:
        """Return the slots of all keys that exist now."""
        return self._scan(Flag.WORKING)

    def slots_used(self) -> int:
        """Return a number that all slots of keys that exist now lie below."""
        return int(self._control[Control.HIGH])

    def present_parts(self, first: int = 0, end: int = UNLIMITED) -> Iterator[Rows]:
        """Return the result of present() in parts, so that the memory read for each part may stay inside the budget.

        Args:
            first, end: Only slots in [first, end).
        """
        for low, high in self._sweep(first, end):
            found = np.empty(high - low, np.int64)
            given = self._records.array, self._control, low, high, int(Flag.WORKING), 0
            if count := self._slots.scan(*given, found):
                yield found[:count]

    def present_by_time(
        self, name: str, over: int, between: tuple[int, int], known: Sequence[int]
    ) -> Iterator[tuple[Rows, Words, tuple[int, int] | None]]:
        """Yield slots of keys that exist now, by a time in a plain column.

        Args:
            name: The column.
            over: Slots up to this time are listed.
            between: And those after the first time, up to the second.
            known: But, of the latter, none with these times.

        Returns:
            Slots; their times; the earliest and the latest time after `over`, None if there is none.
        """
        time_bounds = np.array([self._key + 1 + self._values.at[name], over, *between], np.int64)
        excluded_times = np.array(known, np.int64)
        for low, high in self._sweep():
            slots, times = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
            left = np.array([LAST_US, NEVER_US], np.int64)
            given = self._records.array, self._control, low, high, time_bounds, excluded_times
            count = self._slots.scan_times(*given, slots, times, left)
            yield slots[:count], times[:count], (int(left[0]), int(left[1])) if left[0] <= left[1] else None

    def ordered(self, by: str = BY_KEY) -> OrderedIndex:
        """Return one of the table's orders, of all keys that exist."""
        return self._orders[by]

    @property
    def batch_rows_max(self) -> int:
        """Rows that an operator may take at a time; fewer if they reach memory in no order."""
        if not self.limited or not any(order.reads_keys for order in self._orders.values()):
            return UNLIMITED
        return max(PART_ROWS_MIN, self._memory.bytes_max // _ROW_REACH)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: records, committed values, indexes, arena, lists of slots."""
        return super().nbytes + sum(order.nbytes for order in self._orders.values())

    def get_committed(self, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        self.commit_all()
        columns = zip(key, self.spec.key.types, strict=True)
        keys = self.spec.key.encode([pa.array([value], kind) for value, kind in columns])
        slots = self.find(keys)
        if slots[0] < 0 or not int(self.flags_of(slots)[0]) & Flag.COMMITTED:
            return None
        values = self._columns(self._committed_words(slots, np.ones(1, np.bool_)))
        return {name: scalar(column, 0) for name, column in values.items()}

    # Restoring

    def absorb(self, delta: OperatorDelta) -> None:
        """Write a committed delta of the changelog into both working and committed values."""
        assert not (self._control[Control.OPENED] or self._intervals), (
            "a changelog is absorbed into a table ahead of it"
        )
        self.commit_all()
        self.loads += 1
        if delta.through is not None:
            erased = self._slots_in(delta.through)
            self._erase_committed(erased, delta.through)
            self._reset(erased, KNOWN)
            self._note(erased)
        slots, _ = self._take(delta.keys, mark=False)
        deleted_rows = np.flatnonzero(~delta.puts)
        # Values come before flags: a compaction of the arena follows the committed words of records with the flag.
        self._write(slots, delta.columns, absent=deleted_rows)
        self._set(slots, 0, KNOWN)
        self._set(slots[deleted_rows], KNOWN)
        self.vacant += deleted_rows.size
        self._note(slots)

    @property
    def row_bytes(self) -> int:
        """Return how many bytes the values of a row have, about."""
        return self.spec.row_bytes + (0 if self._bytes is None else self._bytes.used // max(1, len(self)))

    def mostly_vacant(self, looked_up: int = 0) -> bool:
        """Return whether slots without a row are so many that drop_vacant() is worth its time.

        Args:
            looked_up: An upper bound on the slots that were looked up and never written.
        """
        return self.vacant + looked_up > max(VACANT_SLOTS_MIN, len(self) // 2)

    def drop_vacant(self) -> None:
        """Drop the slots whose keys are permanently absent; present ones stay."""
        self.vacant = 0
        self.commit_all()
        pinned = np.concatenate([self._expiries.slots(), *(past for _, past in self._intervals)])
        self._set(pinned, 0, Flag.PINNED)
        vacant = self._scan(0, _HELD | KNOWN)
        self._set(pinned, Flag.PINNED)
        self._free_slots(vacant)
        if vacant.size:
            self._compact_bytes()
            self._shrink()

    # Inner parts

    def _note(self, slots: Rows) -> None:
        """Let the ordered indexes compare these slots before they are next read."""
        for order in self._orders.values():
            order.note(slots)

    def _free_slots(self, slots: Rows) -> None:
        for order in self._orders.values():
            order.settle()  # absent keys leave the tree before their slots get others
        super()._free_slots(slots)

    def _slots_in(self, through: Through) -> Rows:
        """Return the existing slots in the ranges."""
        slots = self._scan(KNOWN)
        return slots[covered(self.keys_at(slots), through)]
