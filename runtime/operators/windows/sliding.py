"""Aggregates over the time before each record: every record has its own window, which ends with it.

A row of state has the aggregates of the records of a key that have one event time, which are in the same windows. It is
keyed by (keys, event time); rows are indexed by key, so the rows of a window are found, and by their times, so event
time finds the records that it has passed. Their windows are merged from the rows as they are due (functions/ranges.py).

Invariants
    - A record is late if and only if its event time lies before the clock of its key.
    - A record is emitted once, when the clock passes its event time: no other record of its window can come any longer.
    - A row is deleted when the clock reaches its event time plus the size: every window with it has been emitted.

Pure.
Source: docs/decisions/0072-running-and-sliding-aggregates.md; PROTOCOL P11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.adding import CountKind
from holdfast.runtime.functions.aggregation import BoundAggregation, rebound
from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.functions.ranges import Runs
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.runtime.operators.contract import Description, Operator, OperatorContext, TableDraft
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, time_not_held
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.operators.windows.merging import grouped
from holdfast.runtime.operators.windows.window import WindowAggregate
from holdfast.runtime.time.windows import END_COLUMN, TIME, WINDOW_END, micros_of, outside
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.collections.rows import OrderedRows, drop_absent
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.ordered import BY_KEY

RECORDS = rebound("_records", CountKind(), [], filtered=False)
"""How many records a row has; no aggregate of a user can have its name."""
PIECE_ROWS = 16_384
"""Records whose windows are merged together."""
MERGED_ROWS = 1 << 20
"""Rows that are merged together, if they are of several windows."""


@dataclass(frozen=True)
class SlidingAggregate(WindowAggregate):
    """Keep aggregates per event time and key, and emit those of the time before each record."""

    kind: ClassVar[str] = "slidingaggregate"

    @property
    def folded(self) -> tuple[BoundAggregation, ...]:
        """Aggregations that a row of state holds."""
        return (*self.aggregations, RECORDS)

    def delay_us(self) -> int:
        """The event time of a result is the end of its window, which the clock is just passing."""
        return 0

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [*(given[0].field(key) for key in self.keys), pa.field(WINDOW_END, TIME, nullable=False)]
        columns = (END_COLUMN, *value_columns(self.folded))
        return TableDraft(KeyType.of(fields, suffix=1), columns, orders=(BY_KEY, WINDOW_END)), CLOCK_TABLE

    def identity(self, column: Description) -> dict[str, Any]:
        return super().identity(column) | {"suffix": 1}

    def open(self, ctx: OperatorContext) -> Operator:
        return SlidingOperator(self, ctx)


class SlidingOperator(Operator):
    """One sliding operator on one subtask."""

    def __init__(self, step: SlidingAggregate, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._schema = step, ctx, ctx.placed[0].schema
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        self._rows, self._size_us = OrderedRows(self._table), step.window.size_us
        self._folding = Folding(step.operator, step.folded, self._table, ctx.job, (WINDOW_END,))
        self._merging = Folding(step.operator, step.aggregations, self._table, ctx.job)
        self._held = step.times_held()
        self.rows_in = self.rows_out = self.late = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take rows; emit late ones.

        Raises:
            JobFailed: a sum does not fit, or no window can hold an event time (which then comes from a function).
        """
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._step.time))
        if (wrong := outside(times, self._held)) is not None:
            at_us, step = int(times[wrong.argmax()]), self._step
            raise time_not_held("windows of operator", step.operator, step.time, at_us, self._ctx.job)
        keys = self._table.spec.key.routed.encode([batch.column(name) for name in self._step.keys])
        late = times < self._clock.of(lambda: keys)
        if late.any():
            self._set_late_apart(batch, late)
            batch, keys, times = batch.filter(pa.array(~late)), keys.take(np.flatnonzero(~late)), times[~late]
        if times.size:
            self._folding.fold(self._rows.keys(keys, [pa.array(times).view(TIME)]), batch, (times,))

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit the records that it has passed, delete rows that no window needs."""
        old = self._clock.advance(at_us)
        if old is None:
            return
        passed = int(self._clock.expired_through(0).max()) - 1
        self._give(self._between(int(np.min(old)), passed, old))
        over = self._table.ordered(WINDOW_END).through(int(self._clock.expired_through(self._size_us).max()))
        clock = self._clock.of(lambda: self._table.keys_at(over))
        over = over[self._table.values(WINDOW_END, over) + self._size_us <= clock]
        if over.size:
            self._table.delete(over)

    def on_barrier(self) -> None:
        self._clock.note()
        drop_absent(self._table)

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, late=self.late)

    def _between(self, first: int, last: int, old: Times | int) -> Slots:
        """Return the rows that the clock has passed since it was `old`, in the order of their times.

        Args:
            first, last: The least and the largest time that such a row can have.
        """
        slots = self._table.ordered(WINDOW_END).through(last, first=first)
        if isinstance(old, np.ndarray) and slots.size:
            keys, times = self._table.keys_at(slots), self._table.values(WINDOW_END, slots)
            slots = slots[(self._clock.at(old, keys) <= times) & (times < self._clock.of(lambda: keys))]
        return slots

    def _give(self, due: Slots) -> None:
        """Emit the records of rows, in the order of their times."""
        for first in range(0, due.size, PIECE_ROWS):
            self._give_piece(due[first : first + PIECE_ROWS])

    def _give_piece(self, due: Slots) -> None:
        """Emit the records of rows, half of them at a time if their windows have too many rows."""
        owners, users = grouped(self._table.keys_at(due).routed())
        ends = self._table.values(WINDOW_END, due)
        first, last = np.full(len(users), ends.max()), np.full(len(users), ends.min())
        np.minimum.at(first, owners, ends)
        np.maximum.at(last, owners, ends)
        bounds = [pa.array(each + 1).view(TIME) for each in (first - self._size_us, last)]
        if due.size > 1 and self._table.ordered().counts(users, bounds[:1], bounds[1:]).sum() > MERGED_ROWS:
            self._give_piece(due[: due.size // 2])
            self._give_piece(due[due.size // 2 :])
            return
        found = self._rows.find(users, bounds[:1], bounds[1:])
        runs = windows_of(found.counts, self._table.values(WINDOW_END, found.slots), owners, ends, self._size_us)
        self._emit(due, ends, self._merging.results_of(self._merging.over(found.slots, runs)))

    def _emit(self, due: Slots, ends: Times, results: list[pa.Array]) -> None:
        """Emit a result per record; records of one key and time have the same."""
        starts, ends_at = (pa.array(each).view(TIME) for each in (ends - self._size_us, ends))
        arrays = [*self._table.key_columns(due)[:-1], starts, ends_at, *results]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        records = self._table.values(RECORDS.state["count"], due)
        if (records > 1).any():
            batch = batch.take(pa.array(np.repeat(np.arange(due.size), records)))
        self.rows_out += batch.num_rows
        self._ctx.emit(batch)

    def _set_late_apart(self, batch: pa.RecordBatch, late: NDArray[np.bool_]) -> None:
        """Emit or count the late records."""
        self.late += int(late.sum())
        if self._ctx.wanted(LATE):
            self._ctx.emit(batch.filter(pa.array(late)), LATE)


def windows_of(counts: Slots, times: Times, owners: Slots, ends: Times, size_us: int) -> Runs:
    """Return the rows of windows: of an owner, those with a time after the end less the size, up to the end.

    Args:
        counts: How many rows each owner has; all of one owner's, in the order of their times, and then the next one's.
        times: Times of all rows.
        owners, ends: The owner and the end of each window; a row of the owner has this time.
    """
    whose, known = np.repeat(np.arange(counts.size), counts), np.unique(times)
    places = whose * known.size + np.searchsorted(known, times)  # ascending, and below the square of the rows
    last = np.searchsorted(places, owners * known.size + np.searchsorted(known, ends))
    first = np.searchsorted(places, owners * known.size + np.searchsorted(known, ends - size_us, "right"))
    return Runs(np.arange(times.size), np.cumsum(counts)[whose], first, last)
