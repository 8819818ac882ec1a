"""The resident table of one stateful operator: typed columns, updated a whole batch at a time.

Every key has a dense slot. *Working* columns hold the values as of the last record, *committed*
columns those as of the last completed epoch known here; lists of dirty slots say where the two
may differ. So a barrier, a commit and a rollback cost what has changed, not what is there, and a
rollback reads no file.

How an operator uses it, per batch:

    slots = table.slots(keys)                          # finds or inserts, loads from the cold store
    np.add.at(table.column("count"), slots, 1)         # takes the view anew for every batch
    table.touch(slots)                                 # now they exist and are dirty

Invariants
    - An absent key has default values, working and committed, so a slot that was deleted, or
      born later and rolled back, is as good as new.
    - A slot is in the list of the interval in which it was touched, once.
    - Frozen values are absolute and hold everything touched since the last commit known at the
      freeze, so an epoch that does not complete is in the next delta by itself (P8).
    - Only slots that are neither dirty, unfinished nor unapplied are evicted.

Carries out PROTOCOL P8 (merge forward), P9 (freeze commits first), P10 (roll_back).
Pure: no clock, thread or I/O of its own; one thread uses it. Frozen deltas may go to another.
Source: DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.arena import KeyArena, KeyBatch
from holdfast.state.delta import Delta
from holdfast.state.index import Index, Rows
from holdfast.state.keys import Keys
from holdfast.state.slab import Slab
from holdfast.state.spec import Columns, ColumnSpec, Loader, TableSpec

__all__ = ["ColumnSpec", "Columns", "Loader", "Table", "TableSpec"]

_WORKING, _COMMITTED, _DIRTY, _UNAPPLIED, _RECENT = (np.uint8(1 << bit) for bit in range(5))
_NEITHER = np.uint8(255) ^ (_WORKING | _COMMITTED)
_NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Frozen:
    slots: Rows
    delta: Delta


class Table:
    """Keyed state of one operator in one worker.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
        loader: Where keys not seen yet may have a row; None if nowhere.
        keep_unapplied: Remember committed slots until `applied` says they are in the cold store.
    """

    def __init__(
        self, spec: TableSpec, key_group_count: int, loader: Loader | None = None, *, keep_unapplied: bool = False
    ) -> None:
        self.spec, self._key_group_count = spec, key_group_count
        self._keep_unapplied = keep_unapplied
        self.loads = 0
        """Grows whenever values come in that no operator wrote just now: a reset, a restore, the cold store."""
        self.reset(loader, NO_EPOCH)

    def reset(self, loader: Loader | None, committed_through: Epoch) -> None:
        """Forget everything and stand at this epoch; what `loader` reads is committed then."""
        self._loader = loader
        self._index = Index()
        self._arena = None if self.spec.key.injective else KeyArena()
        self._working = {column.name: Slab(column.dtype) for column in self.spec.columns}
        self._committed = {column.name: Slab(column.dtype) for column in self.spec.columns}
        self._flags, self._claims = Slab(np.uint8), Slab(np.int32)
        self._born = self._loaded = 0
        self._open: list[Rows] = []
        self._intervals: list[tuple[Epoch, Rows]] = []
        self._frozen: list[_Frozen] = []
        self._unapplied: list[Rows] = []
        self.committed_through = committed_through
        self.loads += 1

    def __len__(self) -> int:
        """How many slots there are, of present and absent keys."""
        return self._index.count

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

    def column(self, name: str) -> NDArray[Any]:
        """Return the working values by slot, to read and write; only until the next slots(), which may grow it."""
        return self._working[name].array[: self._index.count]

    def touch(self, slots: Rows) -> None:
        """Mark slots that were or will be written in this batch: they exist and are dirty."""
        flags = self._flags.array.take(slots)
        both = _WORKING | _DIRTY
        rows = np.flatnonzero((flags & both) != both)
        if not rows.size:
            return
        fresh, flags = slots[rows], flags[rows]
        self._flags.array[fresh] = flags | both
        self._note(fresh, flags)

    def delete(self, slots: Rows) -> None:
        """Make the keys absent; touching them again starts from the defaults."""
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = (flags | _DIRTY) & ~_WORKING
        for column in self.spec.columns:
            self._working[column.name].array[slots] = column.default
        self._note(slots, flags)

    def changed(self) -> Rows:
        """Return the slots touched or deleted since the last barrier, each once."""
        if len(self._open) > 1:
            self._open = [np.concatenate(self._open)]
        return self._open[0] if self._open else _NO_ROWS

    def is_present(self, slots: Rows) -> NDArray[np.bool_]:
        """Whether the keys exist now."""
        present: NDArray[np.bool_] = (self._flags.array.take(slots) & _WORKING) != 0
        return present

    def present(self) -> Rows:
        """Return the slots of all keys that exist now; reads the whole cold store first."""
        if self._loader is not None and not self._loader.complete:
            self._take_scanned(self._loader.scan_rest(), self._index.count)
            self._loaded = self._index.count
        return np.flatnonzero(self._flags.array[: self._index.count] & _WORKING)

    def keys_at(self, slots: Rows) -> Keys:
        """Return the keys of slots; they are copied at first use only, as the key of a slot never changes."""
        index, arena = self._index, self._arena
        canonical = None if arena is None else lambda: arena.take(slots)
        return self.spec.key.deferred(slots.size, lambda: index.hashes.take(slots), canonical)

    def key_columns(self, slots: Rows) -> list[pa.Array]:
        """Return the key columns of slots."""
        return self.spec.key.decode(self.keys_at(slots))

    # Epochs

    def freeze(self, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch: keep the values of all slots dirty since the last commit known now."""
        self.commit(committed_through)
        assert self.committed_through >= committed_through, "a barrier commits an epoch that never froze here"
        assert epoch > max([self.committed_through, *(past for past, _ in self._intervals)]), "epochs must grow"
        # In order, slots are gathered now and scattered later from front to back, 3 times faster.
        opened = np.sort(self.changed())
        self._open = []
        slots, flags = opened, (self._flags.array.take(opened) & ~_DIRTY) | _RECENT
        self._flags.array[opened] = flags
        if self._intervals:
            slots = np.sort(self._each_once(np.concatenate([opened, *(past for _, past in self._intervals)])))
            flags = self._flags.array.take(slots)
        if not self._intervals and not (known := (flags & ~_NEITHER) != 0).all():
            # Born and deleted since the last commit: there is nothing to delete anywhere.
            slots, flags = slots[known], flags[known]
        self._intervals.append((epoch, opened))
        values = {name: slab.array.take(slots) for name, slab in self._working.items()}
        puts = (flags & _WORKING) != 0
        follows, number, keys = self.committed_through, self.spec.operator, self.keys_at(slots)
        self._frozen.append(_Frozen(slots, Delta(epoch, follows, number, self._key_group_count, keys, puts, values)))

    def delta(self, epoch: Epoch) -> Delta:
        """Return the delta frozen for this epoch; it is there until the epoch is committed or rolled back."""
        return next(frozen.delta for frozen in self._frozen if frozen.delta.epoch == epoch)

    def froze(self, epoch: Epoch) -> bool:
        """Whether the epoch is frozen here and neither committed nor rolled back."""
        return any(frozen.delta.epoch == epoch for frozen in self._frozen)

    def commit(self, through: Epoch) -> None:
        """Take the values frozen for this completed epoch as committed. A hint: the next freeze says it too."""
        if through <= self.committed_through or not any(frozen.delta.epoch <= through for frozen in self._frozen):
            return
        newest = next((frozen for frozen in self._frozen if frozen.delta.epoch == through), None)
        assert newest is not None, f"epoch {through} is said to be complete, but this worker never froze it"
        slots, delta = newest.slots, newest.delta
        for name, values in delta.columns.items():
            self._committed[name].array[slots] = values
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = np.where(delta.puts, flags | _COMMITTED, flags & ~_COMMITTED)
        self._note_unapplied(slots)
        self._frozen = [frozen for frozen in self._frozen if frozen.delta.epoch > through]
        self._intervals = [(epoch, past) for epoch, past in self._intervals if epoch > through]
        self.committed_through = through

    def holds(self, base: Epoch) -> bool:
        """Whether roll_back(base) is possible."""
        return base == self.committed_through or self.froze(base)

    def roll_back(self, base: Epoch) -> bool:
        """Return to the end of the completed epoch `base` without any I/O; False if it is not held here (P10)."""
        if not self.holds(base):
            return False
        self.commit(base)
        slots = np.sort(np.concatenate([_NO_ROWS, *self._open, *(past for _, past in self._intervals)]))
        for name, slab in self._committed.items():
            self._working[name].array[slots] = slab.array.take(slots)
        flags = self._flags.array.take(slots) & ~(_DIRTY | _WORKING)
        self._flags.array[slots] = flags | np.where(flags & _COMMITTED, _WORKING, np.uint8(0))
        self._open, self._intervals, self._frozen = [], [], []
        return True

    def get_committed(self, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        columns = zip(key, self.spec.key.types, strict=True)
        keys = self.spec.key.encode([pa.array([value], kind) for value, kind in columns])
        slot = int(self._find(keys)[0])
        if 0 <= slot < self._loaded:
            if not self._flags.array[slot] & _COMMITTED:
                return None
            return {name: slab.array[slot].item() for name, slab in self._committed.items()}
        if self._loader is None:
            return None
        found, columns_read = self._loader.fetch(keys)
        return {name: values[0].item() for name, values in columns_read.items()} if found.size else None

    # Restoring, applying to the cold store, eviction

    def absorb(self, delta: Delta) -> None:
        """Write a committed delta of the changelog into working and committed values alike."""
        assert not (self._open or self._intervals), "a changelog goes into a table that runs ahead of it"
        self.loads += 1
        slots = self._place(delta.keys)
        # Keys are overwritten whole, so those not seen before need no look into the cold store.
        self._loaded = self._index.count
        flags = np.where(delta.puts, _WORKING | _COMMITTED, np.uint8(0))
        self._flags.array[slots] = (self._flags.array.take(slots) & _NEITHER) | flags
        for column in self.spec.columns:
            values = np.where(delta.puts, delta.columns[column.name], column.dtype.type(column.default))
            self._working[column.name].array[slots] = values
            self._committed[column.name].array[slots] = values
        self._note_unapplied(slots)

    @property
    def unapplied_count(self) -> int:
        """Committed slots that the cold store does not have yet."""
        return sum(slots.size for slots in self._unapplied)

    def unapplied(self, rows_max: int) -> tuple[Rows, Keys, NDArray[np.bool_], Columns]:
        """Return the next committed slots to apply: slots, keys, whether they exist, values."""
        while len(self._unapplied) > 1 and not self._unapplied[0].size:
            self._unapplied.pop(0)
        slots = self._unapplied[0][:rows_max] if self._unapplied else _NO_ROWS
        values = {name: slab.array.take(slots) for name, slab in self._committed.items()}
        return slots, self.keys_at(slots), (self._flags.array.take(slots) & _COMMITTED) != 0, values

    def applied(self, slots: Rows) -> None:
        """The slots that unapplied() returned are in the cold store."""
        assert self._unapplied[0][: slots.size] is slots or np.array_equal(self._unapplied[0][: slots.size], slots)
        self._flags.array[slots] = self._flags.array.take(slots) & ~_UNAPPLIED
        self._unapplied[0] = self._unapplied[0][slots.size :]

    def evict(self) -> int:
        """Drop clean, applied slots not written lately, and return how many; every slot changes its number.

        Call it between batches. Without a cold store only absent keys are dropped. A slot
        written since the call before stays; so a second call drops more.
        """
        count = self._index.count
        flags = self._flags.array[:count]
        keep = (flags & (_DIRTY | _UNAPPLIED | _RECENT)) != 0
        if self._loader is None:
            keep |= (flags & (_WORKING | _COMMITTED)) != 0
        for slots in (past for _, past in self._intervals):
            keep[slots] = True
        flags &= ~_RECENT
        gone = np.flatnonzero(~keep)
        if self._loader is not None:
            self._loader.forget(self.keys_at(gone[(flags[gone] & (_WORKING | _COMMITTED)) != 0]))
        if gone.size:
            self._renumber(np.flatnonzero(keep))
        return int(gone.size)

    def _renumber(self, kept: Rows) -> None:
        """Build index and columns of the kept slots only."""
        keys, flags, sides = self.keys_at(kept), self._flags.array.take(kept), (self._working, self._committed)
        values = [{name: slab.array.take(kept) for name, slab in side.items()} for side in sides]
        place = np.full(self._index.count, -1, np.int64)
        self._index, self._arena = Index(), None if self._arena is None else KeyArena()
        self._working, self._committed = ({name: Slab(array.dtype) for name, array in side.items()} for side in values)
        self._flags, self._claims, self._born = Slab(np.uint8), Slab(np.int32), 0
        slots = place[kept] = self._place(keys)
        self._loaded = kept.size
        self._flags.array[slots] = flags
        for side, arrays in zip((self._working, self._committed), values, strict=True):
            for name, array in arrays.items():
                side[name].array[slots] = array
        self._open = [place[slots] for slots in self._open]
        self._intervals = [(epoch, place[slots]) for epoch, slots in self._intervals]
        self._frozen = [_Frozen(place[frozen.slots], frozen.delta) for frozen in self._frozen]
        self._unapplied = [place[slots] for slots in self._unapplied]

    # Inner parts

    def _keyed(self, keys: Keys) -> tuple[Callable[..., Any] | None, Callable[[Rows], None] | None]:
        """Return how the index tells these keys from stored ones, and how it stores them."""
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

    def _load(self) -> None:
        """Read the rows of the slots born last from the cold store."""
        first, loader = self._loaded, self._loader
        if loader is not None and not loader.complete:
            born = np.arange(first, self._index.count)
            self._take_scanned(loader.scan_for(self.keys_at(born)), first)
            keys = self.keys_at(born)
            found, columns = loader.fetch(keys)
            self._fill(born[found], columns)
        self._loaded = self._index.count

    def _take_scanned(self, scanned: list[tuple[Keys, Columns]], first: int) -> None:
        """Fill the slots from `first` on with scanned rows; older slots know better already."""
        for keys, columns in scanned:
            slots = self._place(keys)
            fresh = np.flatnonzero(slots >= first)
            self._fill(slots[fresh], {name: values[fresh] for name, values in columns.items()})

    def _fill(self, slots: Rows, columns: Columns) -> None:
        self.loads += 1
        for name, values in columns.items():
            self._working[name].array[slots] = values
            self._committed[name].array[slots] = values
        self._flags.array[slots] = _WORKING | _COMMITTED

    def _note(self, slots: Rows, flags: NDArray[np.uint8]) -> None:
        """Add the slots that were not dirty before to the open interval."""
        clean = slots[(flags & _DIRTY) == 0]
        if clean.size:
            self._open.append(self._each_once(clean))

    def _note_unapplied(self, slots: Rows) -> None:
        if not self._keep_unapplied:
            return
        flags = self._flags.array.take(slots)
        self._flags.array[slots] = flags | _UNAPPLIED
        self._unapplied.append(slots[(flags & _UNAPPLIED) == 0])

    def _each_once(self, slots: Rows) -> Rows:
        """Drop repeated slots: every one writes its row to its slot's claim, and one of them reads it back."""
        rows = np.arange(slots.size, dtype=np.int32)
        self._claims.array[slots] = rows
        once: Rows = slots[self._claims.array.take(slots) == rows]
        return once
