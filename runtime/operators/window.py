"""Aggregates per window and key: input in whole batches, output of a window's rows when event time has passed it.

Rows of state are keyed by (window end, keys); aggregate.py folds them. The clock of a key group (event_clock.py) is
the watermark up to which its windows are closed. A closed window never opens again (P11).

Windows that are due are found by a scan over all rows, but only when event time passes the earliest due time.

Invariants
    - A record is late if and only if the end of its window plus the lateness is not after the clock.
    - A row is deleted when the clock reaches the end of its window plus the lateness; `final` emits it then. One range
      per key group deletes any number of rows (docs/design/0015-window-expiry.md).
    - `close` emits a row when the clock reaches the end of its window, and again whenever a later batch changes it.
    - The clock of every owned key group is in the state before the barrier's freeze.

Pure.
Source: docs/design/0006-watermarks.md; PROTOCOL P11; DESIGN section 5 (keys of windows).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators import aggregate_changes
from holdfast.runtime.operators.aggregate import (
    Folding,
    aggregates_identity,
    aggregates_text,
    columns_read,
    in_pieces,
    value_columns,
)
from holdfast.runtime.operators.contract import (
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_keys, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, drop_vacant, time_not_held
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.rows.aggregates.aggregation import BoundAggregation
from holdfast.runtime.rows.aggregates.contract import Slots
from holdfast.runtime.rows.windows import (
    END_COLUMN,
    TIME,
    WINDOW_END,
    Windows,
    event_times_held,
    micros_of,
    outside,
    span,
    window_text,
)
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract import PUT
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.placing import distinct


@dataclass(frozen=True)
class WindowAggregate(KeyedStep):
    """Keep aggregates per window and key, and emit them when event time has passed the window."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]
    time: str
    """Column with the event time."""
    window: Windows
    lateness_us: int
    emit: str
    """`close` or `final`."""

    kind: ClassVar[str] = "windowaggregate"
    keeps: ClassVar[str] = "aggregates per window and key"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        read = columns_read(self.keys, self.aggregations, self.time)
        return tuple(dict.fromkeys((*read, *given.names))) if LATE in needed else read

    def times_held(self) -> tuple[int, int]:
        return event_times_held([(self.window, self.lateness_us)])

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [pa.field(WINDOW_END, TIME, nullable=False), *(given[0].field(key) for key in self.keys)]
        text = f"{self.window}, allowed_lateness={self.lateness_us}us, emit={self.emit}"
        columns = (END_COLUMN, *value_columns(self.aggregations))
        return (
            TableDraft(KeyType.of(fields, unrouted=1), columns, window=text),
            CLOCK_TABLE,
        )

    def identity(self, column: Description) -> dict[str, Any]:
        window = self.window.identity() | {
            "time": column(self.time),
            "lateness_us": self.lateness_us,
            "emit": self.emit,
        }
        return aggregates_identity(self.keys, self.aggregations, column) | {"window": window}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        aggregate_changes.compare_aggregates(found, self.aggregations, before, now, in_windows=True)
        _compare_windows(found, before["window"], now["window"])

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        return aggregate_changes.names(before)

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        return aggregate_changes.without(before, parts)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return aggregate_changes.continued(self.aggregations, before, columns)

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,) if any(bound.kind.calls for bound in self.aggregations) else ()

    def text(self) -> str:
        window = f"{self.window.shown()} of {self.time}, lateness {span(self.lateness_us)}, emit {self.emit}"
        keys = ", ".join(self.keys)
        return f"aggregate {self.operator} by {keys} over {window}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return WindowOperator(self, ctx)


class WindowOperator(Operator):
    """One window operator on one subtask."""

    def __init__(self, step: WindowAggregate, ctx: OperatorContext) -> None:
        placed = ctx.placed[0]
        self._step, self._ctx, self._upsert = step, ctx, placed.upsert_key is not None
        self._schema = pa.schema([*placed.schema, OP_FIELD] if self._upsert else placed.schema)
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job, also=(WINDOW_END,))
        self._taken = in_pieces(ctx, step.operator, step.aggregations, self._take)
        self._keys = KeyType.of(placed.schema.field(name) for name in step.keys)
        self.rows_in = self.rows_out = self.late = 0
        self._due = NEVER_US
        """Nothing is due before this time."""
        self._held = step.times_held()

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._taken(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Take rows into their windows; emit late rows, and the rows of already closed windows that changed.

        Raises:
            JobFailed: a value does not fit, or no window can hold an event time (which then comes from a function).
        """
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._step.time))
        if (wrong := outside(times, self._held)) is not None:
            at_us, step = int(times[wrong.argmax()]), self._step
            raise time_not_held("windows of operator", step.operator, step.time, at_us, self._ctx.job)
        rows, ends = self._step.window.assign(times)
        given = batch
        if rows is not None:
            batch = batch.take(pa.array(rows))
        clock = self._clock.of(lambda: self._keys.encode([batch.column(name) for name in self._step.keys]))
        late = ends + self._step.lateness_us <= clock
        if late.any():
            self._set_late_apart(given, rows, late)
            batch, ends = batch.filter(pa.array(~late)), ends[~late]
            clock = clock[~late] if isinstance(clock, np.ndarray) else clock
            if batch.num_rows == 0:
                return
        columns = [pa.array(ends).view(TIME), *(batch.column(name) for name in self._step.keys)]
        slots = self._folding.fold(self._table.spec.key.encode(columns), batch, (ends,))
        self._note_due(slots, ends, clock)

    def _note_due(self, slots: Slots, ends: Times, clock: Times | np.int64) -> None:
        """Note when the windows of a batch are due; emit those that are already closed."""
        if self._step.emit == "final":
            self._due = min(self._due, int(ends.min()) + self._step.lateness_us)
            return
        closed = ends <= clock
        if not closed.all():
            self._due = min(self._due, int(ends[~closed].min()))
        if closed.any():
            self._due = min(self._due, int(ends[closed].min()) + self._step.lateness_us)
            self._give_rows(distinct(slots[closed]))

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit and delete the windows that are due."""
        old = self._clock.advance(at_us)
        if old is not None and at_us >= self._due:
            self._close(old)

    def on_barrier(self) -> None:
        self._clock.note()
        drop_vacant(self._table)

    def _set_late_apart(self, batch: pa.RecordBatch, rows: Times | None, late: NDArray[np.bool_]) -> None:
        """Emit or count the late records. A record in several windows is late if it is late for all of them.

        Args:
            rows: The record number of every pair of record and window; None: each record is one pair.
        """
        if rows is not None:
            taken = np.zeros(batch.num_rows, bool)
            taken[rows[~late]] = True
            late = ~taken
        self.late += int(late.sum())
        if self._ctx.wanted(LATE) and late.any():
            self._ctx.emit(batch.filter(pa.array(late)), LATE)

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, late=self.late)

    def _close(self, old: Times | int) -> None:
        """Emit the rows that became due after the clock `old`, delete those that are over, find the next due time."""
        due, due_ends, over, self._due = list[Slots](), list[Times](), list[Slots](), LAST_US
        for slots in self._table.present_parts():
            ends = self._table.values(WINDOW_END, slots)
            is_due, is_over = self._due_and_over(slots, ends, old)
            due.append(slots[is_due])
            due_ends.append(ends[is_due])
            over.append(slots[is_over])
        if sum(slots.size for slots in due):
            self._give_rows(np.concatenate(due)[np.argsort(np.concatenate(due_ends), kind="stable")])
        if sum(slots.size for slots in over):
            self._table.expire(np.concatenate(over), self._clock.expired_through(self._step.lateness_us))

    def _due_and_over(self, slots: Slots, ends: Times, old: Times | int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which windows became due after the clock `old`, and which are over; note when the others are due."""
        now = self._clock.of(lambda: self._table.keys_at(slots))
        before: Times | int = old
        if isinstance(old, np.ndarray):
            before = self._clock.at(old, self._table.keys_at(slots))
        over = ends + self._step.lateness_us <= now
        due = over if self._step.emit == "final" else (ends > before) & (ends <= now)
        left, closed = ends[~over], (ends <= now)[~over]
        next_due = np.where(closed | (self._step.emit == "final"), left + self._step.lateness_us, left)
        self._due = min(self._due, int(next_due.min(initial=LAST_US)))
        return due, over

    def _give_rows(self, slots: Slots) -> None:
        ends, *keys = self._table.key_columns(slots)
        starts = pa.array(self._table.values(WINDOW_END, slots) - self._step.window.size_us).view(TIME)
        arrays = [*keys, starts, ends, *self._folding.results(slots)]
        if self._upsert:
            arrays.append(pa.array(np.full(slots.size, PUT, np.int8)))
        self.rows_out += slots.size
        self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _compare_windows(found: Found, before: Any, now: Any) -> None:
    if _windows(before) != _windows(now):
        found.refuse(f"had the windows {window_text(before)} and now has {window_text(now)}")
        return
    if typed(before["time"])[1:] != typed(now["time"])[1:]:
        found.refuse(f"had the event time {columns_text([before['time']])} and now has {columns_text([now['time']])}")
    else:
        found.compare_provenance("event time", before["time"], now["time"])
    if before["emit"] != now["emit"]:
        found.refuse(
            f"had emit={before['emit']!r} and now has emit={now['emit']!r}",
            "; windows with results already emitted would be emitted again, or never",
        )
    old, new = before["lateness_us"], now["lateness_us"]
    if new > old:
        found.refuse(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "; windows that are already closed would reopen without their earlier rows",
        )
    elif new < old:
        found.allow(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "windows that are over by the new lateness close when event time next advances, and take no more rows",
        )


def _windows(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the windows themselves are."""
    return {part: value for part, value in identity.items() if part not in ("time", "lateness_us", "emit")}
