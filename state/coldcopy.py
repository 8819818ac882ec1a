"""The cold store as a lagging copy of the tables' committed values.

Applying is lazy and coalesced: a pass writes the newest committed value of every key that was
committed since it was last written, in small batches, each of which holds the interpreter lock
for 1-3 ms at most.

Invariants
    - The store is at the marker's `applied` epoch, or between `applied` and `applying`. The marker
      moves to `applying` before the first value of that epoch is written, even if a commit
      arrives in the middle of a pass.
    - Ranges are erased before any row that was committed with or after them is written.
    - A marker whose epoch's manifest hash is unknown is written again once the hash is known; until then the store
      cannot be a base.
    - Values are absolute, so applying again after a kill, or restoring over a partly applied
      store, ends in the same state.
    - The marker first gives up key groups and operators that are not part of the base; then their rows are removed,
      and only then is anything applied. The marker claims them again at the end of a pass.

Carries out PROTOCOL P14, P15.
Reads and writes through the KeyValue port; no other I/O, clock or thread.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.model import NO_EPOCH, Cut, Epoch, JobUuid, Timeline
from holdfast.ports import KeyValue
from holdfast.state.cold import ColdRows, row_keys, row_ranges, row_values, scope
from holdfast.state.marker import Declared, Marker, overlap, read_marker, write_marker
from holdfast.state.tables.spec import TableSpec
from holdfast.state.tables.table import Table

NOTHING = (0, 0)
_EMPTY = Cut(NO_EPOCH, "")
FLUSH_AFTER_PASSES = 128
"""A kill leaves the state as of the last flush; by itself, a store with few writes would flush only after hours."""
SCANS_MAX = 64
"""Key groups searched for foreign rows in one step."""


class ColdCopy:
    """The cold store of one worker; nothing in it is valid until adopt().

    Args:
        store: The local store.
        declared: Operators that have a table, with the hashes of their declarations.
        key_group_count: Key groups of the job.
        owned: Key groups [first, end) of the worker.
    """

    def __init__(self, store: KeyValue, declared: Declared, key_group_count: int, owned: tuple[int, int]) -> None:
        self._applied = _EMPTY
        self.based = NOTHING
        self.epochs_behind = 0
        self._store, self._declared, self._count, self._owned = store, declared, key_group_count, owned
        self._operators = tuple(declared)
        self._valid: tuple[int, ...] = ()
        self._found = read_marker(store)
        self._written: Marker | None = None
        self._unflushed = 0
        self._foreign = self._foreign_groups()

    @property
    def applied(self) -> Epoch:
        """The epoch up to which the store has everything."""
        return self._applied.epoch

    def adopt(self, job_uuid: JobUuid, applied: Epoch, epoch: Epoch, key_groups: tuple[int, int]) -> None:
        """Use the store as of `applied` as the base for restoring `epoch`."""
        marker = self._found
        assert marker is not None and marker.job_uuid == job_uuid
        assert marker.applied == applied and marker.applying <= epoch, "this local state is not usable as a base"
        self._applied = marker.cuts[0]
        mine = overlap(marker.key_groups, self._owned)
        self.based = NOTHING if mine is None else overlap(mine, key_groups) or NOTHING
        self._valid = tuple(operator for operator in self._operators if operator in marker.operators)
        self._foreign = self._foreign_groups()

    def loader(self, spec: TableSpec) -> ColdRows:
        """Return the loader through which a table reads its rows."""
        readable = self.based if spec.operator in self._valid else NOTHING
        return ColdRows(spec, self._store, self._count, readable)

    def step(
        self, job_uuid: JobUuid, timeline: Timeline, committed: Cut, tables: Collection[Table], keys_max: int
    ) -> bool:
        """Do the next small piece of work; return whether there is more."""
        if self._foreign:
            self._remove_foreign(job_uuid, timeline, keys_max)
            return True
        pending = next((table for table in tables if table.behind), None)
        if pending is None and self._written is not None and self._written.cuts[0] == committed:
            return False
        if self._written is None or self._written.cuts[1] != committed:
            self._mark(job_uuid, timeline, self._applied, committed)
        if pending is not None:
            self._write_rows(pending, keys_max)
        if any(table.behind for table in tables):
            return True
        self._applied, self.based, self._valid, self.epochs_behind = committed, self._owned, self._operators, 0
        self._mark(job_uuid, timeline, committed, committed)
        self._unflushed += 1
        if self._unflushed >= FLUSH_AFTER_PASSES:
            self._unflushed = 0
            self._store.flush(wait=False)
        return False

    def _write_rows(self, table: Table, keys_max: int) -> None:
        if table.unapplied_ranges is not None:
            self._store.erase(row_ranges(table.spec.operator, table.unapplied_ranges))
            table.applied_ranges()
            return
        slots, keys, exist, columns = table.unapplied(keys_max)
        stored = row_keys(table.spec.operator, keys, keys.key_groups(self._count))
        values = row_values(table.spec, columns, len(slots))
        present = exist.tolist()
        puts = [(key, value) for key, value, put in zip(stored, values, present, strict=True) if put]
        self._store.write(puts, [key for key, put in zip(stored, present, strict=True) if not put])
        table.applied(slots)

    def _foreign_groups(self) -> list[tuple[int, int]]:
        """Return (operator, key group) of all rows that may exist without being part of the base."""
        if self._found is None:
            return []
        first, end = self.based
        return [
            (operator, group)
            for operator in sorted({*self._found.touched, *self._operators})
            for group in range(self._count)
            if operator not in self._valid or not first <= group < end
        ]

    def _remove_foreign(self, job_uuid: JobUuid, timeline: Timeline, keys_max: int) -> None:
        """Remove the next rows that are not part of the base, after the marker has given them up."""
        assert self._found is not None
        if self._written is None:
            applying = self._applied if self.based == NOTHING else max(self._applied, self._found.cuts[1])
            self._mark(job_uuid, timeline, self._applied, applying, self._found.touched)
        removed: list[bytes] = []
        cleared = 0
        for place in self._foreign[-SCANS_MAX:][::-1]:
            rows = self._store.scan(*scope(*place), keys_max - len(removed) + 1)
            part = rows[: keys_max - len(removed)]
            removed.extend(key for key, _ in part)
            if len(part) < len(rows):
                break
            cleared += 1
        if removed:
            self._store.write([], removed)
        # Only after the write: a refused write is repeated with the same rows.
        del self._foreign[len(self._foreign) - cleared :]

    def _mark(
        self, job_uuid: JobUuid, timeline: Timeline, applied: Cut, applying: Cut, touched: tuple[int, ...] = ()
    ) -> None:
        operators = tuple(sorted({*touched, *self._operators}))
        marker = Marker(
            job_uuid,
            timeline,
            applied.epoch,
            applying.epoch,
            self.based,
            self._valid,
            operators,
            applied_manifest=applied.manifest,
            applying_manifest=applying.manifest,
            declared={operator: self._declared[operator] for operator in self._valid},
        )
        write_marker(self._store, marker)
        self._written = marker
