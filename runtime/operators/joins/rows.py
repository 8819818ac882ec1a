"""The rows of one input of a join, kept until the clock is past all their partners.

The key of a row is (end of its bucket, its number, the join's keys). Numbers count the rows of a bucket with equal keys
from 0, and the row with number 0 holds how many there are. So a look-up of number 0 finds all of them, and most keys
cost one look-up. Only rows whose partners may be missing need to be found by time: `Due` has those in memory.

Invariants
    - Rows that are over are never returned as candidates by the operator, whether or not they left the state.
    - `Due` is a function of the rows and the clocks; it is built from them after a restore.

Pure.
Source: docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators.contract import TableDraft
from holdfast.runtime.operators.event_clock import EventClock, Times, drop_vacant
from holdfast.runtime.rows.kept_columns import kept_column, to_state
from holdfast.runtime.time.join_bounds import JoinBound
from holdfast.runtime.time.windows import TIME, WINDOW_END
from holdfast.state.collections.rows import existing
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.spec import Columns, ColumnSpec
from holdfast.state.tables.table import StateTable

ROW_NUMBER = "row_number"
"""Numbers the rows of a bucket with equal keys."""
ROWS = ColumnSpec("rows", np.dtype(np.int64))
"""In the row with number 0: how many rows of the bucket have its keys."""
MATCHED = ColumnSpec("matched", np.dtype(np.bool_), False)
"""Whether the row has joined; only of inputs whose unmatched rows are emitted."""
KEPT = "row."
"""Prefix of the columns that hold the row itself; the names of users' columns may be any."""
UNROUTED = 2
Slots = NDArray[np.int64]
_NO_SLOTS: Slots = np.empty(0, np.int64)
_ROWS_ALONE = sources_of([KernelInput(None)])
"""Sources of a program that only counts rows."""


def draft(
    given: pa.Schema, keys: Sequence[str], types: Sequence[pa.DataType], time: str, outer: bool, part: str
) -> TableDraft:
    """Return the table for the rows of an input with these columns.

    Args:
        types: Those of the keys, which are never null in the state.
        time: The column with the event time, which may be a key.
        outer: Whether unmatched rows are emitted.
    """
    fields = [pa.field(WINDOW_END, TIME, nullable=False), pa.field(ROW_NUMBER, pa.int32(), nullable=False)]
    fields += [pa.field(key, kind, nullable=False) for key, kind in zip(keys, types, strict=True)]
    rest = [field for field in given if field.name not in keys or field.name == time]
    kept = [kept_column(field, KEPT + field.name) for field in rest]
    columns = [ROWS, *([MATCHED] if outer else []), *(column for column in kept if column is not None)]
    assert len(kept) == sum(column.name.startswith(KEPT) for column in columns), "the join was not checked"
    times = tuple(KEPT + field.name for field in rest if field.type == TIME)
    return TableDraft(KeyType.of(fields, unrouted=UNROUTED), tuple(columns), part, times=times)


class Candidates(NamedTuple):
    """Rows that may join, as a range of numbers per asking row and bucket."""

    asking: Slots
    """Which row asks."""
    ends: Times
    """The bucket."""
    heads: Slots
    """The slot of number 0."""
    counts: Slots


class Due:
    """Slots in the order of the time at which they are over."""

    def __init__(self) -> None:
        self._parts: list[tuple[Times, Slots]] = []
        """Each in order; the next one is less than half as long, so every slot is merged a few times only."""

    def add(self, over: Times, slots: Slots) -> None:
        """Add slots that are not in it."""
        self._parts.append((over, slots))
        first = len(self._parts) - 1
        while first and self._parts[first - 1][0].size < 2 * sum(each.size for each, _ in self._parts[first:]):
            first -= 1
        over, slots = (np.concatenate(each) for each in zip(*self._parts[first:], strict=True))
        order = np.argsort(over, kind="stable")
        self._parts[first:] = [(over[order], slots[order])]

    def is_due(self, at_us: int) -> bool:
        """Return whether some slot is over at this time."""
        return any(over.size and over[0] <= at_us for over, _ in self._parts)

    def take(self, at_us: int, limit: int | None = None) -> Slots:
        """Remove and return the slots that are over at this time.

        Args:
            limit: Take this many, those that are over first, and all others that are over when the last of them is.
        """
        if limit is not None:
            firsts = np.sort(np.concatenate([_NO_SLOTS, *(over[:limit] for over, _ in self._parts)]))
            at_us = min(at_us, int(firsts[min(limit, firsts.size) - 1])) if firsts.size else at_us
        due_slots, left = [_NO_SLOTS], []
        for over, slots in self._parts:
            count = int(np.searchsorted(over, at_us, side="right"))
            due_slots.append(slots[:count])
            if count < slots.size:
                left.append((over[count:], slots[count:]))
        self._parts = left
        return np.concatenate(due_slots)


class KeptRows:
    """The rows of one input, in its table."""

    def __init__(self, table: StateTable, bound: JoinBound, port: int, time: str, outer: bool) -> None:
        self.table, self.outer = table, outer
        self._bound, self._port, self._time = bound, port, KEPT + time
        self._columns = [column for column in table.spec.columns if column.name.startswith(KEPT)]
        self._counting = table.program([(Do.COUNT, ROWS.name, 0)])
        self._due: Due | None = None
        self._over = Due()
        """Rows that were due and have not left the state, by the time at which their bucket does; if `outer`."""
        self._expires_us = NEVER_US
        """No bucket leaves the state before this time; unless `outer`."""
        self._looked_up = 0
        """Slots added since vacant slots were last dropped that have no row."""

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the join's keys in the state."""
        return self.table.spec.key.types[UNROUTED:]

    # Rows that arrive

    def keep(self, batch: pa.RecordBatch, keys: Sequence[pa.Array], ends: Times, over: Times) -> Slots:
        """Keep rows that are not over; return their slots."""
        heads = self._slots(ends, np.zeros(ends.size, np.int32), keys)
        numbers = self.table.values(ROWS.name, heads) + ranks(heads)
        slots, further = heads, np.flatnonzero(numbers)
        if further.size:
            slots = heads.copy()
            slots[further] = self._slots(ends[further], numbers[further].astype(np.int32), _taken(keys, further))
        self.table.write(slots, {c.name: to_state(batch.column(c.name.removeprefix(KEPT)), c) for c in self._columns})
        self.table.fold_at(heads, self._counting, _ROWS_ALONE)
        self._expires_us = min(self._expires_us, int(ends.min()) + self._bound.after_us(self._port))
        if self._due is not None:
            self._due.add(over, slots)
        return slots

    # Rows that may join

    def candidates(self, asking: Slots, keys: Sequence[pa.Array], ends: Times) -> Candidates:
        """Return the rows of these buckets with these keys, one bucket per asking row."""
        heads, rows = self._existing(ends, np.zeros(ends.size, np.int32), keys)
        heads = heads[rows]
        return Candidates(asking[rows], ends[rows], heads, self.table.values(ROWS.name, heads))

    def numbered(self, ends: Times, numbers: Slots, keys: Sequence[pa.Array]) -> Slots:
        """Return the slots of rows, which exist."""
        slots, rows = self._existing(ends, numbers.astype(np.int32), keys)
        assert rows.size == slots.size, "a bucket lacks a row that it counts"
        return slots

    def times(self, slots: Slots) -> Times:
        """Return the event times of rows."""
        times: Times = self.table.values(self._time, slots)
        return times

    def over(self, slots: Slots) -> Times:
        """Return when rows are over."""
        over: Times = self._bound.over(self._port, self.times(slots), self.table.leading_at(slots))
        return over

    def read(self, names: Sequence[str], slots: Slots) -> Columns:
        """Return columns of rows, by the names of the input's columns, as state has them."""
        found = self.table.read_columns([KEPT + name for name in names], slots)
        return {name.removeprefix(KEPT): values for name, values in found.items()}

    def matched(self, slots: Slots) -> None:
        """Note that rows have joined."""
        fresh = distinct(slots[~self.table.values(MATCHED.name, slots)])
        if fresh.size:
            self.table.changing(fresh)(MATCHED.name)[fresh] = True

    # Rows that are over

    def find_due(self, clock: EventClock) -> None:
        """Find the rows that are not over, if unmatched ones are emitted. Call it before the clock advances.

        It looks at all rows, once after a start or a restore.
        """
        if not self.outer or self._due is not None:
            return
        self._due = Due()
        for slots in self.table.present_parts():
            over = self.over(slots)
            waiting = over > clock.of(lambda at=slots: self.table.keys_at(at))  # type: ignore[misc]
            self._due.add(over[waiting], slots[waiting])
            self._note_over(slots[~waiting])

    def is_due(self, at_us: int) -> bool:
        """Return whether some row is over at this time that `unmatched` has not looked at."""
        return self._due is not None and self._due.is_due(at_us)

    def unmatched(self, at_us: int, limit: int | None = None) -> Slots:
        """Return the rows that are over at this time and have not joined, in the order of time, bucket, number, key.

        Args:
            limit: Look at this many rows, those that are over first, and at others that are over at the time of the
                last.
        """
        if self._due is None or not (slots := self._due.take(at_us, limit)).size:
            return _NO_SLOTS
        keys, lone = self.table.keys_at(slots), np.flatnonzero(~self.table.values(MATCHED.name, slots))
        self._over.add(keys.leading() + self._bound.after_us(self._port), slots)
        slots = slots[lone][keys.take(lone).order(np.zeros(lone.size, np.uint16))]
        ordered: Slots = slots[np.argsort(self.times(slots), kind="stable")]
        return ordered

    def expire(self, clock: EventClock, at_us: int) -> None:
        """Let the buckets leave the state whose rows are all over; event time has reached `at_us`.

        If `outer`, it looks only at rows that were due since buckets last left; else at all rows if any leaves.
        """
        slots = self._leaving(clock) if self.outer else self._found_leaving(clock, at_us)
        if slots.size:
            self.table.expire(slots, clock.expired_through(self._bound.after_us(self._port)))
        if drop_vacant(self.table, self._looked_up):
            self._looked_up = 0

    def _note_over(self, slots: Slots) -> None:
        if slots.size:
            self._over.add(self._leave_at(slots), slots)

    def _leave_at(self, slots: Slots) -> Times:
        """Return when the buckets of rows leave the state."""
        return self.table.leading_at(slots) + self._bound.after_us(self._port)

    def _leaving(self, clock: EventClock) -> Slots:
        slots = self._over.take(int(clock.expired_through(0).max()))
        at = clock.of(lambda: self.table.keys_at(slots))
        if isinstance(at, np.ndarray):  # the clocks of key groups differ for a while after a restore
            gone = self._leave_at(slots) <= at
            self._note_over(slots[~gone])
            slots = slots[gone]
        return slots

    def _found_leaving(self, clock: EventClock, at_us: int) -> Slots:
        if at_us < self._expires_us:
            return _NO_SLOTS
        leaving_slots, self._expires_us = [_NO_SLOTS], LAST_US
        for slots in self.table.present_parts():
            leaves = self._leave_at(slots)
            gone = leaves <= clock.of(lambda at=slots: self.table.keys_at(at))  # type: ignore[misc]
            leaving_slots.append(slots[gone])
            self._expires_us = min(self._expires_us, int(leaves[~gone].min(initial=LAST_US)))
        return np.concatenate(leaving_slots)

    # Keys

    def _slots(self, ends: Times, numbers: NDArray[np.int32], keys: Sequence[pa.Array]) -> Slots:
        columns = [pa.array(ends).view(TIME), pa.array(numbers), *keys]
        return self.table.slots(self.table.spec.key.encode(columns))

    def _existing(
        self, ends: Times, numbers: NDArray[np.int32], keys: Sequence[pa.Array]
    ) -> tuple[Slots, NDArray[np.intp]]:
        """Return the slots of keys, and which of them have a row."""
        columns, size = [pa.array(ends).view(TIME), pa.array(numbers), *keys], len(self.table)
        slots = existing(self.table, self.table.spec.key.encode(columns))
        self._looked_up += len(self.table) - size
        return slots, np.flatnonzero(slots >= 0)


def ranks(slots: Slots) -> Slots:
    """Return how many earlier rows have the same slot, per row."""
    ranks = np.zeros(slots.size, np.int64)
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if starts.size < slots.size:
        ranks[order] = np.arange(slots.size) - np.repeat(starts, np.diff(np.append(starts, slots.size)))
    return ranks


def _taken(keys: Sequence[pa.Array], rows: NDArray[np.intp]) -> list[pa.Array]:
    return [column.take(pa.array(rows)) for column in keys]
