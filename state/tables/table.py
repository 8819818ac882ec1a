"""The resident table of one stateful operator: typed columns, updated a whole batch at a time.

Every key has a dense slot. *Working* columns hold the values as of the last record, *committed*
columns those as of the last completed epoch known here; lists of dirty slots show where the two
may differ. So the cost of a barrier, a commit or a rollback depends on the changes, not on the size of the table,
and a rollback reads no file.

How an operator uses it, per batch:

    slots = table.slots(keys)                          # finds or inserts, loads from the cold store
    np.add.at(table.column("count"), slots, 1)         # takes a new view for every batch
    table.touch(slots)                                 # now they exist and are dirty

Invariants
    - An absent key has default working and committed values, so a slot that was deleted, or
      created later and rolled back, is as good as new.
    - A slot is in the list of the interval in which it was touched, once.
    - Frozen values are absolute and hold everything touched since the last commit known at the
      freeze, so the next delta includes an epoch that does not complete (P8).
    - Only slots that are neither dirty, unfinished nor unapplied are evicted.
    - Expired keys are absent, and no row of a delta names them: a range covers them all (state/tables/expiry.py).

Carries out PROTOCOL P8 (merge forward), P9 (freeze commits first), P10 (roll_back).
Pure: no clock, thread or I/O of its own; for use by one thread. Frozen deltas may go to another.
Source: DESIGN section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.delta import Delta
from holdfast.state.tables.expiry import Expiries, Through, covered
from holdfast.state.tables.index import Rows
from holdfast.state.tables.slots import COMMITTED, DIRTY, ERASED, NEITHER, RECENT, UNAPPLIED, WORKING, SlotColumns
from holdfast.state.tables.spec import Columns, ColumnSpec, Loader, TableSpec
from holdfast.state.tables.unapplied import Unapplied

__all__ = ["ColumnSpec", "Columns", "Loader", "Table", "TableSpec"]

_NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Frozen:
    slots: Rows
    delta: Delta
    erased: Rows
    """Slots that only the delta's ranges cover."""


class Table(SlotColumns):
    """Keyed state of one operator in one worker.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
        loader: Loads the rows of keys not seen yet; None if there are none to load.
        keep_unapplied: Remember committed slots until `applied` reports them as written to the cold store.
    """

    def __init__(
        self, spec: TableSpec, key_group_count: int, loader: Loader | None = None, *, keep_unapplied: bool = False
    ) -> None:
        super().__init__(spec)
        self._key_group_count, self._keep_unapplied = key_group_count, keep_unapplied
        self.loads = 0
        """Grows whenever values arrive that no operator has just written: by a reset, a restore or the cold store."""
        self.reset(loader, NO_EPOCH)

    def reset(self, loader: Loader | None, committed_through: Epoch) -> None:
        """Forget everything and start at this epoch; rows that `loader` reads are committed."""
        if len(self):
            self._clear()
        self._loader, self._loaded = loader, 0
        self._open: list[Rows] = []
        self._intervals: list[tuple[Epoch, Rows]] = []
        self._frozen: list[_Frozen] = []
        self._expiries, self._unapplied = Expiries(), Unapplied()
        self.vacant = 0
        """Number of slots that committed ranges have emptied since drop_vacant()."""
        self.committed_through = committed_through
        self.loads += 1

    @property
    def nbytes(self) -> int:
        """Bytes in use by the slots, roughly: values twice, hash, entry, flags, stored key."""
        return self._index.count * (2 * self.spec.row_bytes + 24) + (self._arena.nbytes if self._arena else 0)

    # Reading and writing a batch

    def slots(self, keys: Keys) -> Rows:
        """Return the slot of every key, int64; keys not seen yet get one and are loaded.

        A slot stays valid until the next evict(), roll_back() included. If loading raises,
        nothing was written and the call may be repeated.
        """
        slots = self._place(keys)
        if self._loaded < self._index.count:
            self._load()
        return slots

    def touch(self, slots: Rows) -> None:
        """Mark slots that were or will be written in this batch: their keys exist and they are dirty."""
        flags = self._flags.array.take(slots)
        both = WORKING | DIRTY
        rows = np.flatnonzero((flags & both) != both)
        if not rows.size:
            return
        fresh, flags = slots[rows], flags[rows]
        self._flags.array[fresh] = (flags | both) & ~ERASED
        self._note(fresh, flags)

    def delete(self, slots: Rows) -> None:
        """Make the keys absent; touching them again starts from the default values."""
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = (flags | DIRTY) & ~(WORKING | ERASED)
        self._empty(self._working, slots)
        self._note(slots, flags)

    def expire(self, slots: Rows, through: Through) -> None:
        """Erase the windows that ended at or before `through` of their key group, by ranges and not key by key.

        Args:
            slots: Every present slot in the ranges, each once; the caller must have examined all present() keys.
            through: The ranges; they do not apply to key groups that are not owned.
        """
        assert self._loader is None or self._loader.complete, "expiring keys must be in the table"
        self._flags.array[slots] = (self._flags.array.take(slots) & ~WORKING) | ERASED
        self._empty(self._working, slots)
        self._expiries.note(slots, through)

    def changed(self) -> Rows:
        """Return the slots touched or deleted since the last barrier, each once, without expired ones."""
        if len(self._open) > 1:
            self._open = [np.concatenate(self._open)]
        return self._open[0] if self._open else _NO_ROWS

    def present(self) -> Rows:
        """Return the slots of all keys that exist now; reads the whole cold store first."""
        if self._loader is not None and not self._loader.complete:
            self._take_scanned(self._loader.scan_rest(), self._index.count)
            self._loaded = self._index.count
        return np.flatnonzero(self._flags.array[: self._index.count] & WORKING)

    # Epochs

    def freeze(self, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch: keep the values of all slots that became dirty since the last commit known now."""
        self.commit(committed_through)
        assert self.committed_through >= committed_through, "a barrier commits an epoch that never froze here"
        assert epoch > max([self.committed_through, *(past for past, _ in self._intervals)]), "epochs must increase"
        # Sorted slots are gathered now and scattered later from front to back, which is 3 times faster.
        opened = np.sort(self.changed())
        self._open = []
        slots, flags = opened, (self._flags.array.take(opened) & ~DIRTY) | RECENT
        self._flags.array[opened] = flags
        self._expiries.close(epoch)
        if self._intervals:
            slots = np.sort(self._each_once(np.concatenate([opened, *(past for _, past in self._intervals)])))
            flags = self._flags.array.take(slots)
        if not self._intervals and not (known := (flags & ~NEITHER) != 0).all():
            # Created and deleted since the last commit: there is nothing to delete anywhere.
            slots, flags = slots[known], flags[known]
        erased, through = self._expiries.slots(), self._expiries.through()
        if erased.size:
            # Also touched since the previous commit, and written after it: the ranges or the row suffice.
            erased = self._each_once(erased[(self._flags.array.take(erased) & ERASED) != 0])
            rows = np.flatnonzero((flags & ERASED) == 0)
            slots, flags = slots[rows], flags[rows]
            if not self._intervals and not (self._flags.array.take(erased) & COMMITTED).any():
                through = None  # created and expired since the last commit
        self._intervals.append((epoch, opened))
        values = {name: slab.array.take(slots) for name, slab in self._working.items()}
        puts = (flags & WORKING) != 0
        follows, number, keys = self.committed_through, self.spec.operator, self.keys_at(slots)
        delta = Delta(epoch, follows, number, self._key_group_count, keys, puts, values, through)
        self._frozen.append(_Frozen(slots, delta, erased))

    def delta(self, epoch: Epoch) -> Delta:
        """Return the delta frozen for this epoch; it exists until the epoch is committed or rolled back."""
        return next(frozen.delta for frozen in self._frozen if frozen.delta.epoch == epoch)

    def froze(self, epoch: Epoch) -> bool:
        """Return whether the epoch is frozen here and neither committed nor rolled back."""
        return any(frozen.delta.epoch == epoch for frozen in self._frozen)

    def commit(self, through: Epoch) -> None:
        """Treat the values frozen for this completed epoch as committed. A hint: the next freeze repeats it."""
        if through <= self.committed_through or not any(frozen.delta.epoch <= through for frozen in self._frozen):
            return
        newest = next((frozen for frozen in self._frozen if frozen.delta.epoch == through), None)
        assert newest is not None, f"epoch {through} is reported complete, but this worker never froze it"
        slots, delta = newest.slots, newest.delta
        self._erase_committed(newest.erased, delta.through)
        for name, values in delta.columns.items():
            self._committed[name].array[slots] = values
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = np.where(delta.puts, flags | COMMITTED, flags & ~COMMITTED)
        self._note_unapplied(slots)
        self._frozen = [frozen for frozen in self._frozen if frozen.delta.epoch > through]
        self._intervals = [(epoch, past) for epoch, past in self._intervals if epoch > through]
        self._expiries.commit(through)
        self.committed_through = through

    def holds(self, base: Epoch) -> bool:
        """Return whether roll_back(base) is possible."""
        return base == self.committed_through or self.froze(base)

    def roll_back(self, base: Epoch) -> bool:
        """Return to the end of the completed epoch `base` without any I/O; False if it is not held here (P10)."""
        if not self.holds(base):
            return False
        self.commit(base)
        slots = np.sort(np.concatenate([self._expiries.slots(), *self._open, *(past for _, past in self._intervals)]))
        for name, slab in self._committed.items():
            self._working[name].array[slots] = slab.array.take(slots)
        flags = self._flags.array.take(slots) & ~(DIRTY | WORKING | ERASED)
        self._flags.array[slots] = flags | np.where(flags & COMMITTED, WORKING, np.uint8(0))
        self._open, self._intervals, self._frozen, self._expiries = [], [], [], Expiries()
        return True

    def get_committed(self, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        columns = zip(key, self.spec.key.types, strict=True)
        keys = self.spec.key.encode([pa.array([value], kind) for value, kind in columns])
        slot = int(self._find(keys)[0])
        if 0 <= slot < self._loaded:
            if not self._flags.array[slot] & COMMITTED:
                return None
            return {name: slab.array[slot].item() for name, slab in self._committed.items()}
        if self._loader is None:
            return None
        erased = self._unapplied.through
        if erased is not None and covered(keys, erased).any():
            return None
        found, columns_read = self._loader.fetch(keys)
        return {name: values[0].item() for name, values in columns_read.items()} if found.size else None

    # Restoring, applying to the cold store, eviction

    def absorb(self, delta: Delta) -> None:
        """Write a committed delta of the changelog into both working and committed values."""
        assert not (self._open or self._intervals), "a changelog is absorbed into a table that runs ahead of it"
        self.loads += 1
        if delta.through is not None:
            erased = self._slots_in(delta.through)
            self._erase_committed(erased, delta.through)
            self._empty(self._working, erased)
            self._flags.array[erased] &= ~WORKING
        slots = self._place(delta.keys)
        # Keys are overwritten whole, so those not seen before need no look-up in the cold store.
        self._loaded = self._index.count
        flags = np.where(delta.puts, WORKING | COMMITTED, np.uint8(0))
        self._flags.array[slots] = (self._flags.array.take(slots) & NEITHER) | flags
        for column in self.spec.columns:
            values = np.where(delta.puts, delta.columns[column.name], column.dtype.type(column.default))
            self._working[column.name].array[slots] = values
            self._committed[column.name].array[slots] = values
        self._note_unapplied(slots)

    @property
    def unapplied_count(self) -> int:
        """Return how many committed slots the cold store does not have yet."""
        return self._unapplied.count

    @property
    def unapplied_ranges(self) -> Through | None:
        """Return the ranges that the cold store must erase before it takes any more slots."""
        return self._unapplied.through

    @property
    def behind(self) -> bool:
        """Return whether the cold store lacks anything."""
        return self._unapplied.count > 0 or self._unapplied.through is not None

    def unapplied(self, rows_max: int) -> tuple[Rows, Keys, NDArray[np.bool_], Columns]:
        """Return the next committed slots to apply: slots, keys, whether they exist, values."""
        assert self._unapplied.through is None, "ranges go first"
        slots = self._unapplied.next(rows_max)
        values = {name: slab.array.take(slots) for name, slab in self._committed.items()}
        return slots, self.keys_at(slots), (self._flags.array.take(slots) & COMMITTED) != 0, values

    def applied_ranges(self) -> None:
        """Note that the unapplied ranges were erased in the cold store."""
        self._unapplied.through = None

    def applied(self, slots: Rows) -> None:
        """Note that the slots that unapplied() returned are in the cold store."""
        self._unapplied.done(slots)
        self._flags.array[slots] = self._flags.array.take(slots) & ~UNAPPLIED

    def evict(self) -> int:
        """Drop clean, applied slots that were not written recently, and return how many; every slot number changes.

        Call it between batches. Without a cold store only absent keys are dropped. A slot
        written since the previous call stays, so a second call drops more.
        """
        count = self._index.count
        flags = self._flags.array[:count]
        keep = (flags & (DIRTY | UNAPPLIED | RECENT)) != 0
        if self._loader is None:
            keep |= (flags & (WORKING | COMMITTED)) != 0
        for slots in (self._expiries.slots(), *(past for _, past in self._intervals)):
            keep[slots] = True
        flags &= ~RECENT
        gone = np.flatnonzero(~keep)
        if self._loader is not None:
            self._loader.forget(self.keys_at(gone[(flags[gone] & (WORKING | COMMITTED)) != 0]))
        if gone.size:
            self._renumber(np.flatnonzero(keep))
        return int(gone.size)

    def drop_vacant(self) -> None:
        """Drop the slots whose keys are permanently absent; present ones stay, so nothing must be loaded again."""
        keep = (self._flags.array[: self._index.count] & (DIRTY | UNAPPLIED | WORKING | COMMITTED)) != 0
        for slots in (self._expiries.slots(), *(past for _, past in self._intervals)):
            keep[slots] = True
        self.vacant = 0
        self._renumber(np.flatnonzero(keep))

    def _renumber(self, kept: Rows) -> None:
        """Rebuild index and columns with the kept slots only."""
        keys, flags, sides = self.keys_at(kept), self._flags.array.take(kept), (self._working, self._committed)
        values = [{name: slab.array.take(kept) for name, slab in side.items()} for side in sides]
        place = np.full(self._index.count, -1, np.int64)
        self._clear()
        slots = place[kept] = self._place(keys)
        self._loaded = kept.size
        self._flags.array[slots] = flags
        for side, arrays in zip((self._working, self._committed), values, strict=True):
            for name, array in arrays.items():
                side[name].array[slots] = array
        self._open = [place[slots] for slots in self._open]
        self._intervals = [(epoch, place[slots]) for epoch, slots in self._intervals]
        self._frozen = [_Frozen(place[each.slots], each.delta, place[each.erased]) for each in self._frozen]
        self._expiries.renumber(place)
        self._unapplied.renumber(place)

    # Inner parts

    def _load(self) -> None:
        """Read the rows of the newest slots from the cold store."""
        first, loader = self._loaded, self._loader
        if loader is not None and not loader.complete:
            born = np.arange(first, self._index.count)
            self._take_scanned(loader.scan_for(self.keys_at(born)), first)
            keys = self.keys_at(born)
            found, columns = loader.fetch(keys)
            self._fill(born[found], columns)
        self._loaded = self._index.count

    def _take_scanned(self, scanned: list[tuple[Keys, Columns]], first: int) -> None:
        """Fill the slots from `first` on with scanned rows; older slots hold newer values."""
        for keys, columns in scanned:
            slots = self._place(keys)
            fresh = np.flatnonzero(slots >= first)
            self._fill(slots[fresh], {name: values[fresh] for name, values in columns.items()})

    def _fill(self, slots: Rows, columns: Columns) -> None:
        self.loads += 1
        if self._unapplied.through is not None:
            rows = np.flatnonzero(~covered(self.keys_at(slots), self._unapplied.through))
            slots, columns = slots[rows], {name: values[rows] for name, values in columns.items()}
        for name, values in columns.items():
            self._working[name].array[slots] = values
            self._committed[name].array[slots] = values
        self._flags.array[slots] = WORKING | COMMITTED

    def _note(self, slots: Rows, flags: NDArray[np.uint8]) -> None:
        """Add the slots that were not dirty before to the open interval."""
        clean = slots[(flags & DIRTY) == 0]
        if clean.size:
            self._open.append(self._each_once(clean))

    def _note_unapplied(self, slots: Rows) -> None:
        if not self._keep_unapplied:
            return
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = flags | UNAPPLIED
        self._unapplied.note(slots[(flags & UNAPPLIED) == 0])

    def _erase_committed(self, erased: Rows, through: Through | None) -> None:
        """Make slots absent whose ranges are committed; without ranges, their keys were never committed."""
        flags = self._flags.array.take(erased) & ~(COMMITTED | ERASED)
        self._flags.array[erased] = flags
        self._empty(self._committed, erased)
        self.vacant += erased.size
        if through is not None and self._keep_unapplied:
            self._flags.array[erased] = flags & ~UNAPPLIED  # the range erases them there too
            self._unapplied.keep((self._flags.array[: self._index.count] & UNAPPLIED) != 0)
            self._unapplied.erase(through)
