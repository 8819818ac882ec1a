"""The resident table of one stateful operator: a record per key, updated a whole batch at a time.

Every key has a slot, the number of its record. *Working* values are those as of the last row, *committed*
values those as of the last completed epoch known here; lists of dirty slots show where the two
may differ. So the cost of a barrier, a commit or a rollback depends on the changes, not on the size of the table,
and a rollback reads no file.

How an operator uses it, per batch:

    slots = table.slots(keys)                          # finds or inserts, loads from the cold store
    column = table.changing(slots)                     # now they exist and are dirty
    np.add.at(column("count"), slots, 1)               # takes a new view for every batch

Columns that are not plain are read with `table.read(name, slots)` and written with `table.write(slots, columns)`, as
Arrow arrays. With all of this for plain columns in one compiled pass, `slots = table.fold(keys, program, inputs)`.

Invariants
    - An absent key has default working values, so a slot that was deleted, or created later and rolled back, is
      as good as new.
    - A slot is in the list of the interval in which it was touched, once.
    - A freeze copies nothing: advance() copies its records, some at a time, and whatever changes a record copies it
      first. Only the last frozen epoch has records that are not copied; none are left when a freeze or a commit begins.
    - advance() also writes the copies of a committed epoch to the committed values, some at a time. What reads
      committed values or flags, and the next freeze, first writes the rest.
    - Frozen values are absolute and hold everything touched since the last commit known at the
      freeze, so the next delta includes an epoch that does not complete (P8).
    - A slot keeps its number until its key is dropped, which happens only to absent keys that are neither dirty,
      unfinished nor unapplied.
    - Expired keys are absent, and no row of a delta names them: a range covers them all (state/tables/expiry.py).
    - Every change of a key's presence or working values is noted in the ordered indexes (state/tables/ordered.py).

Carries out PROTOCOL P8 (merge forward), P9 (freeze commits first), P10 (roll_back).
Pure: no clock, thread or I/O of its own; for use by one thread. Frozen deltas may go to another.
Source: DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.compiled.sources import NO_SOURCES, Sources, from_row
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.delta import Delta
from holdfast.state.tables.expiry import Expiries, Through, covered
from holdfast.state.tables.frozen import Copies, FrozenDelta
from holdfast.state.tables.kernels.layout import DIRTY, Control, Flag
from holdfast.state.tables.ordered import BY_KEY, OrderedIndex
from holdfast.state.tables.placing import parts
from holdfast.state.tables.records import NO_PROGRAM, PART_ROWS_MIN, Program, Records, Side
from holdfast.state.tables.slab import PLAIN, UNLIMITED, Memory, Rows, Slab
from holdfast.state.tables.spec import Columns, ColumnSpec, Loader, TableSpec, Values
from holdfast.state.tables.unapplied import Unapplied
from holdfast.state.tables.values import scalar, taken

__all__ = ["ColumnSpec", "Columns", "Loader", "Table", "TableSpec"]

_NO_ROWS: Rows = np.empty(0, np.int64)
_KNOWN = Flag.WORKING | Flag.COMMITTED
APPLIED_BYTES_MAX = 4 << 20
"""Values of variable width in one write to the cold store, after which others get the interpreter lock."""
DIRTY_SHARE = 8
"""With more than one in this many records dirty, a scan of all records is cheaper than sorting the dirty ones."""
COPIED_AT_ONCE = 1 << 16
"""Frozen records that are looked at in one step: 1 to 3 ms."""
LISTED_COPIED = 1 << 16
"""Shorter lists of dirty slots are copied at a barrier, which keeps their memory for the next interval."""
_ROW_REACH = 4 << 16
"""Bytes that may become resident for a row whose path through a tree of keys is unknown: entry, record, and keys, and
what the system maps around each, 64 KiB by default."""
_HELD = DIRTY | Flag.UNAPPLIED | Flag.UNLOADED | Flag.PINNED
"""Flags of records that are not dropped."""


@dataclass(frozen=True, eq=False)
class _Frozen:
    """An epoch that is frozen and neither committed nor rolled back."""

    delta: FrozenDelta
    copies: Copies
    erased: Rows
    """Slots that only the delta's ranges cover."""

    @property
    def epoch(self) -> Epoch:
        return self.delta.epoch


class _Uncopied:
    """Which records of the last frozen epoch are to be looked at, and how far that has come.

    Args:
        listed: Their slots, in any order; a slot may be there twice.
        swept: All slots below this one are looked at instead, if that is cheaper; 0: the listed ones.
    """

    def __init__(self, listed: Rows, swept: int) -> None:
        self.listed, self.swept, self.at = listed, swept, 0

    @property
    def left(self) -> int:
        """How many slots are left to be looked at."""
        return (self.swept or self.listed.size) - self.at


class Table(Records):
    """Keyed state of one operator in one worker.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
        loader: Loads the rows of keys not seen yet; None if there are none to load.
        keep_unapplied: Remember committed slots until `applied` reports them as written to the cold store.
        memory: Where the records are.
    """

    def __init__(
        self,
        spec: TableSpec,
        key_group_count: int,
        loader: Loader | None = None,
        *,
        keep_unapplied: bool = False,
        memory: Memory = PLAIN,
    ) -> None:
        super().__init__(spec, memory)
        self._orders = {by: OrderedIndex(self, by, self._places) for by in spec.orders}
        self._key_group_count, self._keep_unapplied = key_group_count, keep_unapplied
        self.loads = 0
        """Grows whenever values arrive that no operator has just written: by a reset, a restore or the cold store."""
        self.reset(loader, NO_EPOCH)

    def reset(self, loader: Loader | None, committed_through: Epoch) -> None:
        """Forget everything and start at this epoch; rows that `loader` reads are committed."""
        if self._control[Control.HIGH]:
            self._clear()
            for order in self._orders.values():
                order.clear()
        self._loader = loader
        self._unloaded = _NO_ROWS
        """Slots of new records whose values the cold store has not been asked for."""
        self._intervals: list[tuple[Epoch, Rows]] = []
        self._frozen: list[_Frozen] = []
        self._uncopied: _Uncopied | None = None
        """Of the last frozen epoch; None: all records are copied."""
        self._uncommitted: Copies | None = None
        """Of the last committed epoch; None: they are all among the committed values."""
        self._committed_at = 0
        """How many of them are."""
        self._expiries, self._unapplied = Expiries(), Unapplied()
        self.vacant = 0
        """Number of slots that committed ranges have emptied since drop_vacant()."""
        self.committed_through = committed_through
        self.loads += 1

    @property
    def complete(self) -> bool:
        """Return whether every key is in the table, so that a new one need not be looked up in the cold store."""
        return self._loader is None or (self._loader.complete and not self._unloaded.size)

    # Reading and writing a batch

    def slots(self, keys: Keys) -> Rows:
        """Return the slot of every key, int64; keys not seen yet get one and are loaded.

        A slot stays valid until the next drop_vacant(), roll_back() included. If loading raises,
        nothing was written and the call may be repeated.

        Raises:
            JobFailed: a key is too large; nothing was written.
        """
        self._check_keys(keys)
        loader = self._loader
        if loader is None or self.complete:
            return self._take(keys, mark=False)[0]
        slots, born = self._take(keys, mark=False, born=True)
        if born.size:
            self._set(born, 0, Flag.UNLOADED)
            self._unloaded = np.concatenate([self._unloaded, born])
        if self._unloaded.size:
            self._load(loader)
        return slots

    def fold(self, keys: Keys, program: Program, inputs: Sources) -> Rows:
        """Fold one row per key into the records of these keys, which exist and are dirty then; return their slots.

        The table must be complete; if it is not, call slots() and fold_at(). If it raises, for want of memory, some
        rows may have been folded: roll back, do not repeat the batch.

        Args:
            program: Operations, in the order in which they read the inputs (state/tables/kernels/layout.py).
            inputs: The columns that it reads, with one row per key.

        Raises:
            JobFailed: a key is too large; nothing was written.
        """
        self._check_keys(keys)
        assert self.complete, "new keys must be loaded first"
        slots, _ = self._take(keys, mark=True, program=program, inputs=inputs)
        self._note(slots)
        return slots

    def fold_at(self, slots: Rows, program: Program, inputs: Sources) -> None:
        """Fold one row into the record of each of these slots; their keys exist and are dirty then."""
        opened = int(self._control[Control.OPENED])
        self._opened.hold(opened + slots.size, opened)
        memory, slots = (self._records.array, self._control, self._opened.array), np.ascontiguousarray(slots, np.int64)
        for part in self.parts_of(slots):
            given, _kept = self._reordered(inputs, None if isinstance(part, slice) else part)
            given = from_row(given, part.start) if isinstance(part, slice) else given
            self._rows.fold_rows(*memory, slots[part], 1, program, given, self._scratch)
        self._note(slots)

    def touch(self, slots: Rows) -> None:
        """Mark slots that are written in this batch: their keys exist and they are dirty."""
        self.fold_at(slots, NO_PROGRAM, NO_SOURCES)

    def changing(self, slots: Rows) -> Callable[[str], NDArray[Any]]:
        """Touch slots; return what returns the working values of a plain column by slot, to write those of these slots.

        They are valid as those of column() are, and until the next freeze.
        """
        self.touch(slots)
        return self._writable

    def write(self, slots: Rows, columns: Mapping[str, Values]) -> None:
        """Give slots working values, as Records.write does; they must be touched too, before or after."""
        self._keep_frozen(slots)
        super().write(slots, columns)

    def delete(self, slots: Rows) -> None:
        """Make the keys absent; touching them again starts from the default values."""
        opened = int(self._control[Control.OPENED])
        self._opened.hold(opened + slots.size, opened)
        self._keep_frozen(slots)
        memory, slots = (self._records.array, self._control, self._opened.array), np.ascontiguousarray(slots, np.int64)
        for part in self.parts_of(slots):
            self._slots.delete(*memory, slots[part], self._defaults)
        self._note(slots)

    def expire(self, slots: Rows, through: Through) -> None:
        """Erase the windows that ended at or before `through` of their key group, by ranges and not key by key.

        Args:
            slots: Every present slot in the ranges, each once; the caller must have examined all present() keys.
            through: The ranges; they do not apply to key groups that are not owned.
        """
        assert self._loader is None or self._loader.complete, "expiring keys must be in the table"
        self._keep_frozen(slots)
        self._reset(slots, Flag.WORKING, Flag.ERASED)
        self._expiries.note(slots, through)
        self._note(slots)

    def changed(self) -> Rows:
        """Return the slots touched or deleted since the last barrier, each once, without expired ones."""
        changed: Rows = self._opened.array[: self._control[Control.OPENED]].copy()
        return changed

    def present(self) -> Rows:
        """Return the slots of all keys that exist now; reads the whole cold store first."""
        self._load_rest()
        return self._scan(Flag.WORKING)

    def present_parts(self) -> Iterator[Rows]:
        """Return what present() returns, in parts, so that what is read of each part may stay inside the budget."""
        self._load_rest()
        for first, end in self._sweep():
            found = np.empty(end - first, np.int64)
            given = self._records.array, self._control, first, end, int(Flag.WORKING), 0
            if count := self._slots.scan(*given, found):
                yield found[:count]

    def _load_rest(self) -> None:
        if self._loader is not None and not self._loader.complete:
            self._take_scanned(self._loader.scan_rest())
            self._loaded_all()

    def ordered(self, by: str = BY_KEY) -> OrderedIndex:
        """Return one of the table's orders, of all keys that exist; reads the whole cold store first."""
        self._load_rest()
        return self._orders[by]

    @property
    def batch_rows_max(self) -> int:
        """Rows that an operator may take at a time; fewer if what they reach in memory is in no order."""
        if not self.limited or not any(order.reads_keys for order in self._orders.values()):
            return UNLIMITED
        return max(PART_ROWS_MIN, self._memory.bytes_max // _ROW_REACH)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: records, committed values, indexes, arena, lists of slots."""
        return super().nbytes + sum(order.nbytes for order in self._orders.values())

    # Epochs

    def freeze(self, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch: keep the values of all slots that became dirty since the last commit known now.

        They are copied later, by advance(), and until then by whatever changes them.
        """
        self.copy_all()
        self.commit(committed_through)
        self.commit_all()
        assert self.committed_through >= committed_through, "a barrier commits an epoch that never froze here"
        assert epoch > max([self.committed_through, *(past for past, _ in self._intervals)]), "epochs must increase"
        opened, past = self._take_opened(), [slots for _, slots in self._intervals]
        self._expiries.close(epoch)
        erased, through = self._expiries.slots(), self._expiries.through()
        control = self._control
        # Those that were also touched since the previous commit, and written after it, are in a range or a row.
        control[Control.WITHOUT] = Flag.ERASED if erased.size else 0
        # Without known flags, a key was created and deleted since the last commit: there is nothing to delete.
        control[Control.KNOWN] = 0 if past else _KNOWN
        if erased.size:
            flags = self.flags_of(erased)
            erased = np.unique(erased[(flags & Flag.ERASED) != 0])
            if not past and not (self.flags_of(erased) & Flag.COMMITTED).any():
                through = None  # created and expired since the last commit
        self._intervals.append((epoch, opened))
        for slots in past:  # the epochs of their copies did not complete: they are in this one too
            self._set(slots, 0, int(control[Control.DIRTY]))
        control[Control.DIRTY] ^= DIRTY
        self._begin_copying(epoch, np.unique(np.concatenate([opened, *past])) if past else opened, erased, through)

    def _take_opened(self) -> Rows:
        """Return the slots touched since the last barrier, and begin a new list."""
        count = int(self._control[Control.OPENED])
        self._control[Control.OPENED] = 0
        listed = self._opened.array[:count]
        if count < LISTED_COPIED:
            return listed.copy()
        self._opened = Slab(np.int64, memory=self._memory)
        return listed

    def _begin_copying(self, epoch: Epoch, listed: Rows, erased: Rows, through: Through | None) -> None:
        control, high = self._control, int(self._control[Control.HIGH])
        copies = Copies(listed.size, self._width, self._key, self.spec.key, self._values, self._slots.gather)
        control[Control.COPIES], control[Control.COPIED_SLOTS] = copies.words.ctypes.data, copies.slots.ctypes.data
        control[Control.COPIED] = 0
        names = {column.name: column.name for column in self.spec.columns}
        follows, number = self.committed_through, self.spec.operator
        delta = FrozenDelta(epoch, follows, number, self._key_group_count, copies, through, names)
        self._frozen.append(_Frozen(delta, copies, erased))
        self._uncopied = _Uncopied(listed, high if listed.size * DIRTY_SHARE > high else 0)
        if not listed.size:
            self.copy_all()

    @property
    def uncopied(self) -> int:
        """How many records of the last frozen epoch are still to be looked at."""
        return 0 if self._uncopied is None else self._uncopied.left

    @property
    def uncommitted(self) -> int:
        """How many records of the last committed epoch are still to be written to the committed values."""
        return 0 if self._uncommitted is None else self._uncommitted.count - self._committed_at

    def advance(self, records_max: int) -> int:
        """Copy records of the last frozen epoch, or commit copies of the last committed one; look at so many at most.

        Returns:
            How many were looked at.
        """
        before = self.uncopied + self.uncommitted
        if self._uncopied is not None:
            self._copy(self._uncopied, records_max)
        elif self._uncommitted is not None:
            self._commit(self._uncommitted, records_max)
        return before - self.uncopied - self.uncommitted

    def _copy(self, todo: _Uncopied, records_max: int) -> None:
        first, end = todo.at, todo.at + min(todo.left, records_max)
        if todo.swept:
            for low, high in self._sweep(first, end):  # to HIGH: the table may have shrunk since the barrier
                self._keep_frozen(self._frozen_in(low, high))
        else:
            self._keep_frozen(np.sort(todo.listed[first:end]))
        todo.at = end
        self._take_out()
        if not todo.left:
            self._uncopied = None

    def copy_all(self) -> None:
        """Copy all records of the last frozen epoch that are not copied yet."""
        while self._uncopied is not None:
            self._copy(self._uncopied, COPIED_AT_ONCE)

    def commit_all(self) -> None:
        """Write all copies of the last committed epoch to the committed values."""
        while self._uncommitted is not None:
            self._commit(self._uncommitted, COPIED_AT_ONCE)

    def _commit(self, copies: Copies, records_max: int) -> None:
        first, keep = self._committed_at, int(self._keep_unapplied)
        end = min(first + records_max, copies.count)
        slots, words = copies.slots[first:end], copies.words[: end * self._width].reshape(end, self._width)[first:]
        known = int(_KNOWN)  # the flags of a key that existed at the last commit already: they do not change
        write = bool(keep) or not bool(((words[:, self._key] & known) == known).all())
        reached = self._records_of(slots, write=write), self._committed_of(slots, write=True)
        for part in parts(self._memory, *reached):
            fresh = np.empty(slots[part].size if keep else 0, np.int64)
            memory = (self._records.array, self._committed_values.array, self._control, slots[part])
            count = self._slots.commit(*memory, words[part].reshape(-1), keep, fresh)
            self._unapplied.note(fresh[:count])
        self._committed_at = end
        if self._committed_at == copies.count:
            self._uncommitted = None

    def _frozen_in(self, first: int, end: int) -> Rows:
        """Return the slots of [first, end) whose records are frozen and not copied."""
        found, frozen = np.empty(end - first, np.int64), DIRTY ^ int(self._control[Control.DIRTY])
        return found[: self._slots.scan(self._records.array, self._control, first, end, frozen, 0, found)]

    def _take_out(self) -> None:
        """Take keys and values of variable width of the copies made so far out of the arenas."""
        if self._uncopied is not None:
            self._frozen[-1].copies.take_out(int(self._control[Control.COPIED]), self._keys_of, self._columns)

    def _keys_move(self) -> None:
        self._take_out()

    def _keep_frozen(self, slots: Rows) -> None:
        """Copy those of these records that are frozen and not copied, before they change."""
        if self._uncopied is None:
            return
        slots = np.ascontiguousarray(slots, np.int64)
        for part in self.parts_of(slots):
            self._slots.copy_frozen(self._records.array, self._control, slots[part])

    def _dirty(self) -> Rows:
        """Return what changed() returns, sorted: records are gathered and scattered faster from front to back."""
        if int(self._control[Control.OPENED]) * DIRTY_SHARE < self._control[Control.HIGH]:
            return np.sort(self.changed())
        return self._scan(int(self._control[Control.DIRTY]))

    def delta(self, epoch: Epoch) -> Delta:
        """Return the delta frozen for this epoch; it exists until the epoch is committed or rolled back."""
        self.copy_all()
        return next(frozen.delta for frozen in self._frozen if frozen.epoch == epoch)

    def supersede(self, epoch: Epoch) -> None:
        """Drop what the epochs before a frozen one keep: none of them will complete, and this one has their changes."""
        if self._frozen[0].epoch < epoch:
            self._frozen = [frozen for frozen in self._frozen if frozen.epoch >= epoch]
            joined = np.unique(np.concatenate([slots for past, slots in self._intervals if past <= epoch]))
            later = [(past, slots) for past, slots in self._intervals if past > epoch]
            self._intervals = [(epoch, joined), *later]

    @property
    def frozen_bytes(self) -> int:
        """Bytes that the epochs keep that are frozen and not committed: copies, made or still to be made, and slots."""
        kept = sum(frozen.copies.nbytes + frozen.erased.nbytes for frozen in self._frozen)
        kept += 0 if self._uncommitted is None else self._uncommitted.nbytes
        return kept + sum(slots.nbytes for _, slots in self._intervals)

    @property
    def dirty_bytes(self) -> int:
        """Bytes that the next freeze will keep for the slots that became dirty since the last one, about."""
        opened = int(self._control[Control.OPENED])
        texts = 0 if self._bytes is None else opened * self._bytes.used // max(1, len(self))
        return opened * 8 * (self._width + 2) + texts

    def froze(self, epoch: Epoch) -> bool:
        """Return whether the epoch is frozen here and neither committed nor rolled back."""
        return any(frozen.epoch == epoch for frozen in self._frozen)

    def commit(self, through: Epoch) -> None:
        """Treat the values frozen for this completed epoch as committed. A hint: the next freeze repeats it.

        They are written to the committed values later, by advance(), or when those are needed.
        """
        if through <= self.committed_through or not any(frozen.epoch <= through for frozen in self._frozen):
            return
        self.copy_all()
        self.commit_all()
        newest = next((frozen for frozen in self._frozen if frozen.epoch == through), None)
        assert newest is not None, f"epoch {through} is reported complete, but this worker never froze it"
        self._erase_committed(newest.erased, newest.delta.through)
        self._hold_committed()
        self._uncommitted, self._committed_at = newest.copies, 0
        self._frozen = [frozen for frozen in self._frozen if frozen.epoch > through]
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
        self.commit_all()
        past = [slots for _, slots in self._intervals]
        slots = np.concatenate([self._expiries.slots(), self._dirty(), *past])
        self._hold_committed()
        memory = (self._records.array, self._committed_values.array, self._control, self._defaults)
        reached = self._records_of(slots, write=True), self._committed_of(slots, write=False)
        for part in parts(self._memory, *reached):
            self._slots.roll_back(*memory, slots[part])
        self._note(slots)
        self._control[Control.OPENED] = 0
        self._intervals, self._frozen, self._uncopied, self._expiries = [], [], None, Expiries()
        return True

    def get_committed(self, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        self.commit_all()
        columns = zip(key, self.spec.key.types, strict=True)
        keys = self.spec.key.encode([pa.array([value], kind) for value, kind in columns])
        slots = self.find(keys)
        state = int(self.flags_of(slots)[0]) if slots[0] >= 0 else int(Flag.UNLOADED)
        if not state & Flag.UNLOADED:
            if not state & Flag.COMMITTED:
                return None
            values = self._columns(self._committed_words(slots, np.ones(1, np.bool_)))
            return {name: scalar(column, 0) for name, column in values.items()}
        if self._loader is None:
            return None
        erased = self._unapplied.through
        if erased is not None and covered(keys, erased).any():
            return None
        found, columns_read = self._loader.fetch(keys)
        return {name: scalar(values, 0) for name, values in columns_read.items()} if found.size else None

    # Restoring, applying to the cold store

    def absorb(self, delta: Delta) -> None:
        """Write a committed delta of the changelog into both working and committed values."""
        assert not (self._control[Control.OPENED] or self._intervals), (
            "a changelog is absorbed into a table ahead of it"
        )
        self.commit_all()
        self.loads += 1
        if delta.through is not None:
            erased = self._slots_in(delta.through)
            self._erase_committed(erased, delta.through)
            self._reset(erased, _KNOWN)
            self._note(erased)
        # Keys are overwritten whole, so those not seen before need no look-up in the cold store.
        slots, _ = self._take(delta.keys, mark=False)
        gone = np.flatnonzero(~delta.puts)
        # Values come before flags: a compaction of the arena follows the committed words of records with the flag.
        self._write(slots, delta.columns, absent=gone)
        self._set(slots, Flag.UNLOADED, _KNOWN)
        self._set(slots[gone], _KNOWN)
        self._note(slots)
        self._note_unapplied(slots)

    @property
    def row_bytes(self) -> int:
        """Return how many bytes the values of a row have, about."""
        return self.spec.row_bytes + (0 if self._bytes is None else self._bytes.used // max(1, len(self)))

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
        return self._unapplied.count > 0 or self._unapplied.through is not None or self.uncommitted > 0

    def unapplied(self, rows_max: int) -> tuple[Rows, Keys, NDArray[np.bool_], Columns]:
        """Return the next committed slots to apply: slots, keys, whether they exist, values.

        Their values have about APPLIED_BYTES_MAX bytes at most, or belong to one slot.
        """
        assert self._unapplied.through is None, "ranges go first"
        self.commit_all()
        slots = self._unapplied.next(rows_max)
        exist = (self.flags_of(slots) & Flag.COMMITTED) != 0
        words = self._committed_words(slots, exist)
        if self._values.varying and slots.size:
            sizes = np.cumsum(np.sum([words[at + 1] for at in self._values.varying], axis=0))
            count = max(1, int(np.searchsorted(sizes, APPLIED_BYTES_MAX, side="right")))
            slots, exist, words = slots[:count], exist[:count], np.ascontiguousarray(words[:, :count])
        return slots, self.keys_at(slots), exist, self._columns(words)

    def applied_ranges(self) -> None:
        """Note that the unapplied ranges were erased in the cold store."""
        self._unapplied.through = None

    def applied(self, slots: Rows) -> None:
        """Note that the slots that unapplied() returned are in the cold store."""
        self._unapplied.done(slots)
        self._set(slots, Flag.UNAPPLIED)

    def drop_vacant(self) -> None:
        """Drop the slots whose keys are permanently absent; present ones stay, so nothing must be loaded again."""
        self.vacant = 0
        self.commit_all()
        pinned = np.concatenate([self._expiries.slots(), *(past for _, past in self._intervals)])
        self._set(pinned, 0, Flag.PINNED)
        vacant = self._scan(0, _HELD | _KNOWN)
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

    def _sides(self, at: int) -> Iterator[Side]:
        yield from super()._sides(at)
        self._take_out()
        uncommitted = [] if self._uncommitted is None else [self._uncommitted]
        for copies in (*uncommitted, *(frozen.copies for frozen in self._frozen)):
            starts, lengths = copies.of_values(at), copies.of_values(at + 1)
            yield Side(starts, lengths, np.arange(copies.count), copies.slots[: copies.count])

    def _load(self, loader: Loader) -> None:
        """Read the rows of new slots from the cold store."""
        keys = self.keys_at(self._unloaded)
        self._take_scanned(loader.scan_for(keys))
        found, columns = loader.fetch(keys)
        self._fill(self._unloaded[found], columns)
        self._loaded_all()

    def _loaded_all(self) -> None:
        self._set(self._unloaded, Flag.UNLOADED)
        self._unloaded = _NO_ROWS

    def _take_scanned(self, scanned: Iterable[tuple[Keys, Columns]]) -> None:
        """Fill new and unloaded slots with scanned rows, one key group at a time; others hold newer values."""
        for keys, columns in scanned:
            slots, born = self._take(keys, mark=False, born=True)
            self._set(born, 0, Flag.UNLOADED)
            fresh = np.flatnonzero(self.flags_of(slots) & Flag.UNLOADED)
            self._fill(slots[fresh], {name: taken(values, fresh) for name, values in columns.items()})
            self._set(slots, Flag.UNLOADED)

    def _fill(self, slots: Rows, columns: Columns) -> None:
        self.loads += 1
        if self._unapplied.through is not None:
            rows = np.flatnonzero(~covered(self.keys_at(slots), self._unapplied.through))
            slots, columns = slots[rows], {name: taken(values, rows) for name, values in columns.items()}
        self._write(slots, columns)
        self._set(slots, Flag.UNLOADED, _KNOWN)
        self._note(slots)

    def _slots_in(self, through: Through) -> Rows:
        """Return the existing slots in the ranges."""
        slots = self._scan(_KNOWN)
        return slots[covered(self.keys_at(slots), through)]

    def _note_unapplied(self, slots: Rows) -> None:
        if not self._keep_unapplied:
            return
        fresh = slots[(self.flags_of(slots) & Flag.UNAPPLIED) == 0]
        self._set(fresh, 0, Flag.UNAPPLIED)
        self._unapplied.note(fresh)

    def _erase_committed(self, erased: Rows, through: Through | None) -> None:
        """Make slots absent whose ranges are committed; without ranges, their keys were never committed."""
        self._set(erased, Flag.COMMITTED | Flag.ERASED)
        self.vacant += erased.size
        if through is not None and self._keep_unapplied:
            self._set(erased, Flag.UNAPPLIED)  # the range erases them there too
            self._unapplied.keep(lambda slots: (self.flags_of(slots) & Flag.UNAPPLIED) != 0)
            self._unapplied.erase(through)
