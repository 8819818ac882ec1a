"""Aggregates per session and key: windows that grow with their records, merge, and close after a gap without any.

A row of state is keyed by (keys, start of the session), with its end beside the aggregates. Rows are indexed by key, so
a batch finds the sessions of its keys, and by their ends, so event time finds those that are over
(docs/decisions/0041-ordered-rows-and-timers.md).

A batch is merged with the known sessions of its keys as a whole: intervals of one key that touch become one session. If
a session gets another start, or several become one, their aggregates are merged into a new row.

Invariants
    - Two sessions of a key are farther apart than the gap.
    - A session is over when the clock of its key has passed its end plus the lateness. A clock that has only reached it
      is not enough: a record of that time is exactly the gap apart, in time, and belongs to the session.
    - A session is emitted once, when it is over, and then deleted.
    - A record is late if and only if the session that it would be in is over.

Pure.
Source: docs/decisions/0063-sessions.md; PROTOCOL P11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.runtime.operators.aggregates.pieces import in_pieces, results_in_pieces
from holdfast.runtime.operators.contract import Description, Operator, OperatorContext, TableDraft
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, time_not_held
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.operators.windows.merging import grouped, merged_states
from holdfast.runtime.operators.windows.window import WindowAggregate
from holdfast.runtime.time.windows import END_COLUMN, TIME, WINDOW_END, WINDOW_START, micros_of, outside
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.collections.rows import OrderedRows, drop_absent
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.spec import ColumnSpec

START_COLUMN = ColumnSpec("session_start", np.dtype(np.int64))
"""The start of the session, repeated beside the values so that it need not be decoded."""


@dataclass(frozen=True)
class SessionAggregate(WindowAggregate):
    """Keep aggregates per session and key, and emit them when event time has passed the session."""

    kind: ClassVar[str] = "sessionaggregate"

    def delay_us(self) -> int:
        """A session may have started at any time; its end is the result's event time."""
        return self.lateness_us

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [*(given[0].field(key) for key in self.keys), pa.field(WINDOW_START, TIME, nullable=False)]
        columns = (START_COLUMN, END_COLUMN, *value_columns(self.aggregations))
        return TableDraft(KeyType.of(fields, suffix=1), columns, orders=(BY_KEY, WINDOW_END)), CLOCK_TABLE

    def identity(self, column: Description) -> dict[str, Any]:
        return super().identity(column) | {"suffix": 1}

    def open(self, ctx: OperatorContext) -> Operator:
        return SessionOperator(self, ctx)


class MergedSessions(NamedTuple):
    """Intervals of a batch, merged: one row per session."""

    of: NDArray[np.int64]
    """The session of every interval."""
    owners: NDArray[np.int64]
    starts: Times
    ends: Times


class SessionOperator(Operator):
    """One session operator on one subtask."""

    def __init__(self, step: SessionAggregate, ctx: OperatorContext) -> None:
        schema = ctx.placed[0].schema
        self._step, self._ctx, self._schema = step, ctx, schema
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        self._rows = OrderedRows(self._table)
        also = (START_COLUMN.name, WINDOW_END)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job, also, ctx.time_slice)
        self._taken = in_pieces(ctx, step.operator, step.aggregations, self._take)
        self._give = results_in_pieces(ctx, step.operator, step.aggregations)
        self._held = step.times_held()
        self._reach_us = step.lateness_us + 1
        """From the end of a session to the first clock at which it is over."""
        self.rows_in = self.rows_out = self.late = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._taken(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Take rows into the sessions of their keys; emit late rows.

        Raises:
            JobFailed: a sum does not fit, or no session can hold an event time (which then comes from a function).
        """
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._step.time))
        if (wrong := outside(times, self._held)) is not None:
            at_us, step = int(times[wrong.argmax()]), self._step
            raise time_not_held("sessions of operator", step.operator, step.time, at_us, self._ctx.job)
        keys = self._table.spec.key.routed.encode([batch.column(name) for name in self._step.keys])
        owners, users = grouped(keys)
        known_slots, known_owners = self._known(users, owners, times)
        sessions = self._merged(owners, times, known_slots, known_owners)
        late = self._late(users, sessions)
        rows = sessions.of[: times.size]
        if late.any():
            self._set_late_apart(batch, late[rows])
            batch, keys = batch.filter(pa.array(~late[rows])), keys.take(np.flatnonzero(~late[rows]))
            rows = rows[~late[rows]]
            if not rows.size:
                return
        grown = sessions.of[times.size :]
        self._move(users, sessions, grown[~late[grown]], known_slots[~late[grown]])
        starts, ends = sessions.starts[rows], sessions.ends[rows]
        self._folding.fold(self._rows.keys(keys, [pa.array(starts).view(TIME)]), batch, (starts, ends))

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit and delete the sessions that are over."""
        if self._clock.advance(at_us) is None:
            return
        slots = self._table.ordered(WINDOW_END).through(int(self._clock.expired_through(self._reach_us).max()))
        if not slots.size:
            return
        clock = self._clock.of(lambda: self._table.keys_at(slots))
        over = slots[self._table.values(WINDOW_END, slots) + self._reach_us <= clock]
        if over.size:
            self._give(self._closed(over))

    def on_barrier(self) -> None:
        self._clock.note()
        drop_absent(self._table)

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, late=self.late)

    def _known(self, users: Keys, owners: Slots, times: Times) -> tuple[Slots, Slots]:
        """Return the sessions that records of each user key may touch, and whose they are.

        They begin in the time of these records, or are the last one before: sessions of a key do not overlap.
        """
        first, last = np.full(len(users), LAST_US), np.full(len(users), NEVER_US)
        np.minimum.at(first, owners, times)
        np.maximum.at(last, owners, times)
        first_at, end_at = (pa.array(each).view(TIME) for each in (first, last + self._step.window.size_us + 1))
        before = self._rows.find(users, (), [first_at], limit=1, descending=True)
        within = self._rows.find(users, [first_at], [end_at])
        numbers = np.arange(len(users))
        found = [(each.slots, np.repeat(numbers, each.counts)) for each in (before, within)]
        slots, whose = (np.concatenate(each) for each in zip(*found, strict=True))
        return slots, whose

    def _merged(self, owners: Slots, times: Times, known: Slots, known_owners: Slots) -> MergedSessions:
        """Merge the records of a batch, and then the known sessions, where they touch."""
        starts = np.concatenate([times, self._table.values(START_COLUMN.name, known)])
        ends = np.concatenate([self._step.window.slices(times), self._table.values(WINDOW_END, known)])
        return merged(np.concatenate([owners, known_owners]), starts, ends)

    def _late(self, users: Keys, sessions: MergedSessions) -> NDArray[np.bool_]:
        """Return which sessions are over: those of late records alone."""
        clock = self._clock.of(lambda: users.take(sessions.owners))
        late: NDArray[np.bool_] = sessions.ends + self._reach_us <= clock
        return late

    def _move(self, users: Keys, sessions: MergedSessions, grown: Slots, known: Slots) -> None:
        """Merge known sessions into one row each if they became one, or have another start.

        Args:
            grown: The session that each known one is in now.
            known: Their slots.
        """
        several = np.bincount(grown, minlength=sessions.starts.size)[grown] > 1
        moved = several | (self._table.values(START_COLUMN.name, known) != sessions.starts[grown])
        if not moved.any():
            return
        old, into = known[moved], grown[moved]
        starts = pa.array(sessions.starts[into]).view(TIME)
        keys, columns = merged_states(self._folding, self._rows.keys(users.take(sessions.owners[into]), [starts]), old)
        self._table.delete(old)
        self._folding.forget()
        self._table.write(self._table.slots(keys), columns)  # a record of the batch is in each, which sets the bounds

    def _set_late_apart(self, batch: pa.RecordBatch, late: NDArray[np.bool_]) -> None:
        """Emit or count the late records."""
        self.late += int(late.sum())
        if self._ctx.wanted(LATE):
            self._ctx.emit(batch.filter(pa.array(late)), LATE)

    def _closed(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Yield sessions; delete them after the last one."""
        for part, results in self._folding.each_piece(slots):
            *keys, starts = self._table.key_columns(part)
            ends = pa.array(self._table.values(WINDOW_END, part)).view(TIME)
            self.rows_out += part.size
            yield pa.RecordBatch.from_arrays([*keys, starts, ends, *results], schema=self._schema)
        self._table.delete(slots)


def merged(owners: NDArray[np.int64], starts: Times, ends: Times) -> MergedSessions:
    """Merge the intervals of each owner that touch or overlap."""
    order = np.lexsort((starts, owners))
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(ends.size, np.int64)
    rank[by_end] = np.arange(ends.size)
    # The largest end so far of the same owner: owners ascend, so ranks of earlier owners are smaller.
    farthest = np.maximum.accumulate(owners[order] * ends.size + rank[order])
    farthest_ends = ends[by_end[farthest % ends.size]]
    begins = np.ones(ends.size, bool)
    begins[1:] = (owners[order][1:] != owners[order][:-1]) | (starts[order][1:] > farthest_ends[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], ends.size) - 1
    of = np.empty(ends.size, np.int64)
    of[order] = np.cumsum(begins) - 1
    return MergedSessions(of, owners[order][first], starts[order][first], farthest_ends[last])
