"""The records of a table by epoch: changed since the last barrier, frozen by it, and committed.

*Working* values are those as of the last row, *committed* values those as of the last completed epoch known here; lists
of dirty slots show where the two may differ. So the cost of a barrier, a commit or a rollback depends on the changes,
not on the size of the table. A rollback reads no file.

Invariants
    - An absent key has default working values, so a slot that was deleted, or created later and rolled back, is
      as good as new.
    - A slot is in the list of the interval in which it was touched, once.
    - A freeze copies nothing: advance() copies its records, some at a time, and every change of a record copies the
      record first. Only the last frozen epoch has records that are not copied; none are left when a freeze or a commit
      begins.
    - advance() also writes the copies of a committed epoch to the committed values, some at a time. A reader of
      committed values or flags, and the next freeze, first write the rest.
    - Frozen values are absolute and hold everything touched since the last commit known at the freeze. So the next
      delta includes an epoch that does not complete (P8).

Carries out PROTOCOL P8 (merge forward), P9 (freeze commits first), P10 (roll_back).
Pure: no clock, thread or I/O of its own; for use by one thread. Frozen deltas may go to another.
Source: DESIGN section 5; docs/decisions/0043-incremental-freeze.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.compiled.sources import NO_SOURCES, Sources, from_row
from holdfast.state.tables.expiry import Expiries, Through
from holdfast.state.tables.frozen import Committing, Copying, Frozen, FrozenDelta, RecordCopies
from holdfast.state.tables.kernels.layout import DIRTY, Control, Flag
from holdfast.state.tables.placing import distinct, parts
from holdfast.state.tables.records import NO_PROGRAM, Program, Side, TableRecords
from holdfast.state.tables.slab import Memory, Rows, Slab
from holdfast.state.tables.spec import TableSpec, Values

KNOWN = Flag.WORKING | Flag.COMMITTED
DIRTY_SHARE = 8
"""With more than one in this many records dirty, a scan of all records is cheaper than sorting the dirty ones."""
COPIED_AT_ONCE = 1 << 16
"""Frozen records that are looked at in one step: 1 to 3 ms."""
LISTED_COPIED = 1 << 16
"""Shorter lists of dirty slots are copied at a barrier, which keeps their memory for the next interval."""


class EpochRecords(TableRecords):
    """Records that are changed, frozen, committed and rolled back.

    Args:
        spec: Key type and columns.
        key_group_count: Key groups of the job.
        memory: Where the records are.
    """

    def __init__(self, spec: TableSpec, key_group_count: int, *, memory: Memory) -> None:
        super().__init__(spec, memory)
        self._key_group_count = key_group_count
        self._begin(NO_EPOCH)

    def _begin(self, committed_through: Epoch) -> None:
        """Forget all epochs; there must be no records."""
        self._intervals: list[tuple[Epoch, Rows]] = []
        """The slots touched in each epoch that is neither committed nor given up."""
        self._frozen: list[Frozen] = []
        self._copying: Copying | None = None
        """None: all records of the last frozen epoch are copied."""
        self._committing: Committing | None = None
        """None: all copies of the last committed epoch are among the committed values."""
        self._expiries = Expiries()
        self.vacant = 0
        """Number of slots that committed ranges have emptied since drop_vacant()."""
        self.committed_through = committed_through

    def _note(self, slots: Rows) -> None:
        """Receives the slots whose keys' presence or working values have changed."""

    # Changing records

    def fold_at(self, slots: Rows, program: Program, inputs: Sources) -> None:
        """Fold one row into the record of each of these slots; their keys exist and are dirty then."""

        def fold(part: slice | Rows, *memory: NDArray[np.int64]) -> None:
            given, _kept = self._reordered(inputs, None if isinstance(part, slice) else part)
            given = from_row(given, part.start) if isinstance(part, slice) else given
            self._rows.fold_rows(*memory, 1, program, given, self._scratch)

        self._mark(slots, fold)

    def touch(self, slots: Rows) -> None:
        """Mark slots that are written in this batch: their keys exist and they are dirty."""
        self.fold_at(slots, NO_PROGRAM, NO_SOURCES)

    def changing(self, slots: Rows) -> Callable[[str], NDArray[Any]]:
        """Touch slots; return a function for a plain column's working values by slot, to write those of these slots.

        They are valid as those of column() are, and until the next freeze.
        """
        self.touch(slots)
        return self._writable

    def write(self, slots: Rows, columns: Mapping[str, Values]) -> None:
        """Touch slots and give them working values, as TableRecords.write does. Raises JobFailed likewise."""
        self.check_sizes(slots, columns)
        self.touch(slots)
        super().write(slots, columns)

    def delete(self, slots: Rows) -> None:
        """Make the keys absent; touching them again starts from the default values."""
        self._mark(slots, lambda part, *memory: self._slots.delete(*memory, self._defaults))

    def _mark(self, slots: Rows, change: Callable[..., None]) -> None:
        """Have a kernel change records, which lists those that were not dirty."""
        opened = int(self._control[Control.OPENED])
        self._opened.hold(opened + slots.size, opened)
        slots = np.require(slots, np.int64, ["C", "W"])  # kernels take no arrays that cannot be written
        for part in self.parts_of(slots):
            change(part, self._records.array, self._control, self._opened.array, slots[part])
        self._note(slots)

    def changed(self) -> Rows:
        """Return the slots touched or deleted since the last barrier, each once, without expired ones."""
        changed: Rows = self._opened.array[: self._control[Control.OPENED]].copy()
        return changed

    def _expire(self, slots: Rows, through: Through) -> None:
        self._keep_frozen(slots)
        self._reset(slots, Flag.WORKING, Flag.ERASED)
        self._expiries.note(slots, through)
        self._note(slots)

    def _keep_frozen(self, slots: Rows) -> None:
        """Copy those of these records that are frozen and not copied, before they change."""
        if self._copying is None:
            return
        slots = np.ascontiguousarray(slots, np.int64)
        for part in self.parts_of(slots):
            self._slots.copy_frozen(self._records.array, self._control, slots[part])

    # Barriers

    def freeze(self, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch: keep the values of all slots that became dirty since the last commit known now.

        They are copied later, by advance(), or before that by an operation that changes them.
        """
        self.copy_all()
        self.commit(committed_through)
        self.commit_all()
        assert self.committed_through >= committed_through, "a barrier commits an epoch that never froze here"
        assert epoch > max([self.committed_through, *(past for past, _ in self._intervals)]), "epochs must increase"
        touched_slots, past = self._take_opened(), [slots for _, slots in self._intervals]
        self._expiries.close(epoch)
        erased_slots, through = self._expiries.slots(), self._expiries.through()
        control = self._control
        # Those that were also touched since the previous commit, and written after it, are in a range or a row.
        control[Control.WITHOUT] = Flag.ERASED if erased_slots.size else 0
        # Without known flags, a key was created and deleted since the last commit: there is nothing to delete.
        control[Control.KNOWN] = 0 if past else KNOWN
        if erased_slots.size:
            flags = self.flags_of(erased_slots)
            erased_slots = distinct(erased_slots[(flags & Flag.ERASED) != 0])
            if not past and not (self.flags_of(erased_slots) & Flag.COMMITTED).any():
                through = None  # created and expired since the last commit
        self._intervals.append((epoch, touched_slots))
        for slots in past:  # the epochs of their copies did not complete: they are in this one too
            self._set(slots, 0, int(control[Control.DIRTY]))
        control[Control.DIRTY] ^= DIRTY
        self._begin_copying(
            epoch, distinct(np.concatenate([touched_slots, *past])) if past else touched_slots, erased_slots, through
        )

    def _take_opened(self) -> Rows:
        """Return the slots touched since the last barrier, and begin a new list."""
        count = int(self._control[Control.OPENED])
        self._control[Control.OPENED] = 0
        slots = self._opened.array[:count]
        if count < LISTED_COPIED:
            return slots.copy()
        self._opened = Slab(np.int64, memory=self._memory)
        return slots

    def _begin_copying(self, epoch: Epoch, listed: Rows, erased: Rows, through: Through | None) -> None:
        control, high = self._control, int(self._control[Control.HIGH])
        copies = RecordCopies(listed.size, self._width, self._key, self.spec.key, self._values, self._slots.gather)
        control[Control.COPIES], control[Control.COPIED_SLOTS] = copies.words.ctypes.data, copies.slots.ctypes.data
        control[Control.COPIED] = 0
        delta = FrozenDelta(self.spec, epoch, self.committed_through, self._key_group_count, copies, through)
        self._frozen.append(Frozen(delta, erased))
        self._copying = Copying(listed, high if listed.size * DIRTY_SHARE > high else 0)
        if not listed.size:
            self.copy_all()

    def delta(self, epoch: Epoch) -> FrozenDelta:
        """Return the delta frozen for this epoch; it exists until the epoch is committed or rolled back."""
        self.copy_all()
        return next(frozen.delta for frozen in self._frozen if frozen.epoch == epoch)

    def supersede(self, epoch: Epoch) -> None:
        """Drop data of epochs before a frozen one: none of them will complete, and this one has their changes."""
        if self._frozen[0].epoch < epoch:
            self._frozen = [frozen for frozen in self._frozen if frozen.epoch >= epoch]
            joined = distinct(np.concatenate([slots for past, slots in self._intervals if past <= epoch]))
            later = [(past, slots) for past, slots in self._intervals if past > epoch]
            self._intervals = [(epoch, joined), *later]

    def froze(self, epoch: Epoch) -> bool:
        """Return whether the epoch is frozen here and neither committed nor rolled back."""
        return any(frozen.epoch == epoch for frozen in self._frozen)

    @property
    def frozen_bytes(self) -> int:
        """Bytes that the epochs keep that are frozen and not committed: copies, made or still to be made, and slots."""
        kept = sum(frozen.copies.nbytes + frozen.erased.nbytes for frozen in self._frozen)
        kept += 0 if self._committing is None else self._committing.copies.nbytes
        return kept + sum(slots.nbytes for _, slots in self._intervals)

    @property
    def dirty_bytes(self) -> int:
        """Bytes that the next freeze will keep for the slots that became dirty since the last one, about."""
        opened = int(self._control[Control.OPENED])
        texts = 0 if self._bytes is None else opened * self._bytes.used // max(1, len(self))
        return opened * 8 * (self._width + 2) + texts

    # Copying and committing in steps

    @property
    def uncopied(self) -> int:
        """How many records of the last frozen epoch are still to be looked at."""
        return 0 if self._copying is None else self._copying.left

    @property
    def uncommitted(self) -> int:
        """How many records of the last committed epoch are still to be written to the committed values."""
        return 0 if self._committing is None else self._committing.left

    @property
    def unsettled(self) -> bool:
        """Whether records are still to be looked at by `advance`."""
        return self._copying is not None or self._committing is not None

    def advance(self, records_max: int) -> int:
        """Copy records of the last frozen epoch, or commit copies of the last committed one; look at this many at most.

        Returns:
            How many were looked at.
        """
        before = self.uncopied + self.uncommitted
        if self._copying is not None:
            self._copy(self._copying, records_max)
        elif self._committing is not None:
            self._commit(self._committing, records_max)
        return before - self.uncopied - self.uncommitted

    def copy_all(self) -> None:
        """Copy all records of the last frozen epoch that are not copied yet."""
        while self._copying is not None:
            self._copy(self._copying, COPIED_AT_ONCE)

    def commit_all(self) -> None:
        """Write all copies of the last committed epoch to the committed values."""
        while self._committing is not None:
            self._commit(self._committing, COPIED_AT_ONCE)

    def _copy(self, copying: Copying, records_max: int) -> None:
        first, end = copying.take(records_max)
        if copying.swept:
            for low, high in self._sweep(first, end):  # to HIGH: the table may have shrunk since the barrier
                self._keep_frozen(self._frozen_in(low, high))
        else:
            self._keep_frozen(np.sort(copying.listed[first:end]))
        self._take_out()
        if not copying.left:
            self._copying = None

    def _frozen_in(self, first: int, end: int) -> Rows:
        """Return the slots of [first, end) whose records are frozen and not copied."""
        found, frozen = np.empty(end - first, np.int64), DIRTY ^ int(self._control[Control.DIRTY])
        return found[: self._slots.scan(self._records.array, self._control, first, end, frozen, 0, found)]

    def _take_out(self) -> None:
        """Take keys and values of variable width of the copies made so far out of the arenas."""
        if self._copying is not None:
            self._frozen[-1].copies.take_out(int(self._control[Control.COPIED]), self._keys_of, self._columns)

    def _keys_move(self) -> None:
        self._take_out()

    def _commit(self, committing: Committing, records_max: int) -> None:
        copies = committing.copies
        first, end = committing.take(records_max)
        slots, words = copies.slots[first:end], copies.words[: end * self._width].reshape(end, self._width)[first:]
        known = int(KNOWN)  # the flags of a key that existed at the last commit already: they do not change
        write = not bool(((words[:, self._key] & known) == known).all())
        reached = self._records_of(slots, write=write), self._committed_of(slots, write=True)
        for part in parts(self._memory, *reached):
            memory = (self._records.array, self._committed_values.array, self._control, slots[part])
            self._slots.commit(*memory, words[part].reshape(-1))
        if not committing.left:
            self._committing = None

    # Commits and rollbacks

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
        if newest.copies.count:
            self._committing = Committing(newest.copies)
        self._frozen = [frozen for frozen in self._frozen if frozen.epoch > through]
        self._intervals = [(epoch, past) for epoch, past in self._intervals if epoch > through]
        self._expiries.commit(through)
        self.committed_through = through

    def _erase_committed(self, erased: Rows, through: Through | None) -> None:
        """Make slots absent whose ranges are committed; without ranges, their keys were never committed."""
        self._set(erased, Flag.COMMITTED | Flag.ERASED)
        self.vacant += erased.size

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
        self._intervals, self._frozen, self._copying, self._expiries = [], [], None, Expiries()
        return True

    def _dirty(self) -> Rows:
        """Return the result of changed(), sorted: records are gathered and scattered faster from front to back."""
        if int(self._control[Control.OPENED]) * DIRTY_SHARE < self._control[Control.HIGH]:
            return np.sort(self.changed())
        return self._scan(int(self._control[Control.DIRTY]))

    def _sides(self, at: int) -> Iterator[Side]:
        yield from super()._sides(at)
        self._take_out()
        committing = [] if self._committing is None else [self._committing.copies]
        for copies in (*committing, *(frozen.copies for frozen in self._frozen)):
            starts, lengths = copies.of_values(at), copies.of_values(at + 1)
            yield Side(starts, lengths, np.arange(copies.count), copies.slots[: copies.count])
