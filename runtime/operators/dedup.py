"""Deduplication: pass the first row of every key, and drop its repetitions within a duration of event time.

State holds the time of every passed row by (end of its bucket, keys). Buckets are as long as `within`, so two passed
rows of a key never share a bucket, and a row is compared with at most three passed rows: those of its own bucket, the
one before and the one after. So every repetition is found, in whatever order rows arrive.

A batch is decided in rounds. Each round passes the rows that no earlier undecided row can repeat, then drops the rows
that repeat them. A few rounds suffice unless one key has many rows in a batch; the rest is decided row by row.

Invariants
    - A row is dropped if and only if an earlier row of its key passed whose time differs by less than `within`.
    - A row is late if and only if the clock of its key is at or after its time plus `within`. Every passed row that a
      row which is not late can repeat is in the state.
    - Passed rows out of reach of all rows that are not late leave the state, by one range per key group
      (docs/decisions/0015-window-expiry.md).

Pure.
Source: docs/decisions/0031-operator-kernel.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators.contract import (
    LATE_ROWS,
    MAIN,
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
from holdfast.runtime.operators.union import relabelled
from holdfast.runtime.time.windows import (
    END_COLUMN,
    TIME,
    WINDOW_END,
    Tumbling,
    event_times_held,
    micros_of,
    outside,
    span,
)
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import ColumnSpec

PASSED = ColumnSpec("passed", np.dtype(np.int64), NEVER_US)
"""The event time of the row that passed in a bucket."""
ROUNDS_MAX = 8
"""After this many rounds the rest of a batch is decided row by row."""

Rows = NDArray[np.intp]
Buckets = NDArray[np.intp]
"""Numbers of buckets in a batch, shape (3, n): per row its own bucket, the one before and the one after."""


@dataclass(frozen=True)
class Dedup(KeyedStep):
    """Pass the first row of every key, and drop its repetitions within a duration of event time."""

    operator: str
    keys: tuple[str, ...]
    time: str
    """Column with the event time."""
    within_us: int

    kind: ClassVar[str] = "dedup"
    keeps: ClassVar[str] = "the times of the first rows per key"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset()) | needed.get(LATE, frozenset())
        return tuple(dict.fromkeys((*self.keys, self.time, *(name for name in given.names if name in behind))))

    def made_from(self, name: str) -> str:
        return name

    def compared(self, port: int) -> tuple[str, ...]:
        return (self.time,)

    def times_held(self) -> tuple[int, int]:
        return event_times_held([(Tumbling(self.within_us), self.within_us)])

    def depends_on_order(self) -> tuple[str, ...]:
        return ("which record of a key comes first", LATE_ROWS)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [pa.field(WINDOW_END, TIME, nullable=False), *(given[0].field(key) for key in self.keys)]
        return TableDraft(KeyType.of(fields, unrouted=1), (END_COLUMN, PASSED)), CLOCK_TABLE

    def identity(self, column: Description) -> dict[str, Any]:
        key = [column(name) for name in self.keys]
        times = {"time": column(self.time), "within_us": self.within_us, "times": [PASSED.name]}
        return {"keeps": self.keeps, "key": key} | times

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        if typed(before["time"])[1:] != typed(now["time"])[1:]:
            was, given = columns_text([before["time"]]), columns_text([now["time"]])
            found.refuse(f"had the event time {was} and now has {given}")
        else:
            found.compare_provenance("event time", before["time"], now["time"])
        if (old := before["within_us"]) != (new := now["within_us"]):
            found.refuse(f"had within={span(old)!r} and now has {span(new)!r}")

    def text(self) -> str:
        return f"dedup {self.operator} by {', '.join(self.keys)} within {span(self.within_us)} of {self.time}"

    def open(self, ctx: OperatorContext) -> Operator:
        return DedupOperator(self, ctx)


class DedupOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Dedup, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._buckets = step, ctx, Tumbling(step.within_us)
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        schema = ctx.placed[0].schema
        self._schema = pa.schema([field for field in schema if field.name in ctx.needed()])
        self._keys = KeyType.of(schema.field(name) for name in step.keys)
        self._held = step.times_held()
        self._due = NEVER_US
        """Nothing expires before this time."""
        self._looked_up = 0
        """Slots added since vacant slots were last dropped, including those of buckets without a row."""
        self.rows_in = self.rows_out = self.dropped = self.late = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._step.time))
        if (wrong := outside(times, self._held)) is not None:
            at_us, step = int(times[wrong.argmax()]), self._step
            raise time_not_held("operator", step.operator, step.time, at_us, self._ctx.job)
        clock = self._clock.of(lambda: self._keys.encode([batch.column(name) for name in self._step.keys]))
        late = times + self._step.within_us <= clock
        if late.any():
            self.late += int(late.sum())
            if self._ctx.wanted(LATE):
                self._ctx.emit(batch.filter(pa.array(late)), LATE)
            batch, times = batch.filter(pa.array(~late)), times[~late]
        if batch.num_rows:
            self._pass(batch, times)

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; expire the rows that no later row can repeat."""
        if self._clock.advance(at_us) is None or at_us < self._due:
            return
        expired_slots, reach, self._due = list[Rows](), 2 * self._step.within_us, LAST_US
        for slots in self._table.present_parts():
            ends = self._table.values(WINDOW_END, slots)
            over = ends + reach <= self._clock.of(partial(self._table.keys_at, slots))
            expired_slots.append(slots[over])
            self._due = min(self._due, int((ends[~over] + reach).min(initial=LAST_US)))
        if sum(slots.size for slots in expired_slots):
            self._table.expire(np.concatenate(expired_slots), self._clock.expired_through(reach))

    def on_barrier(self) -> None:
        self._clock.note()
        if drop_vacant(self._table, self._looked_up):
            self._looked_up = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(
            self._step.operator, self.rows_in, self.rows_out, 0, dropped=self.dropped, late=self.late
        )

    def _pass(self, batch: pa.RecordBatch, times: Times) -> None:
        """Decide rows that are not late; emit those that pass, and keep their times."""
        size, rows_in = len(self._table), batch.num_rows
        ends = self._buckets.slices(times)
        own = self._slots(batch, ends)
        free = self._table.values(PASSED.name, own) == NEVER_US
        if not free.all():  # two rows in one bucket are never `within` apart
            batch, times, ends, own = batch.filter(pa.array(free)), times[free], ends[free], own[free]
        rows = self._decided(batch, times, ends, own)
        self._looked_up += len(self._table) - size
        self.dropped += rows_in - rows.size
        self.rows_out += rows.size
        if not rows.size:
            return
        mine = own[rows]
        self._table.touch(mine)
        self._table.write(mine, {PASSED.name: times[rows], WINDOW_END: ends[rows]})
        self._due = min(self._due, int(ends[rows].min()) + 2 * self._step.within_us)
        if self._ctx.wanted():
            given = batch if rows.size == batch.num_rows else batch.take(pa.array(rows))
            self._ctx.emit(relabelled(given, self._schema))

    def _decided(self, batch: pa.RecordBatch, times: Times, ends: Times, own: Times) -> Rows:
        """Return the numbers of the rows that pass."""
        if not times.size:
            return np.empty(0, np.intp)
        slots = [own, *(self._slots(batch, ends + move) for move in (-self._step.within_us, self._step.within_us))]
        known, numbers = np.unique(np.concatenate(slots), return_inverse=True)
        passed = self._table.values(PASSED.name, known)
        return np.flatnonzero(_passing(times, numbers.reshape(3, -1), passed, self._step.within_us))

    def _slots(self, batch: pa.RecordBatch, ends: Times) -> Times:
        columns = [pa.array(ends).view(TIME), *(batch.column(name) for name in self._step.keys)]
        return self._table.slots(self._table.spec.key.encode(columns))


def _passing(times: Times, buckets: Buckets, passed: Times, within_us: int) -> NDArray[np.bool_]:
    """Return which rows pass, as if each were decided in its turn.

    Args:
        buckets: Bucket of every row.
        passed: Time of the passed row per bucket, NEVER_US if none; updated, except by the row-by-row part.
    """
    passes, pending = np.zeros(times.size, bool), np.arange(times.size)
    for _ in range(ROUNDS_MAX):
        at, near = times[pending], passed[buckets[:, pending]]
        pending = pending[~((near > at - within_us) & (near < at + within_us)).any(axis=0)]
        if not pending.size:
            return passes
        first = np.full(passed.size, times.size)
        first[buckets[0, pending[::-1]]] = pending[::-1]
        now = pending[(first[buckets[:, pending]] >= pending).all(axis=0)]
        passes[now], passed[buckets[0, now]] = True, times[now]
        pending = pending[~passes[pending]]
    _decide_singly(times, buckets, passed, within_us, pending, passes)
    return passes


def _decide_singly(
    times: Times, buckets: Buckets, passed: Times, within_us: int, pending: Rows, passes: NDArray[np.bool_]
) -> None:
    bucket_times = passed.tolist()
    rows = zip(pending.tolist(), times[pending].tolist(), buckets[:, pending].T.tolist(), strict=True)
    for row, at, (own, before, behind) in rows:
        if not any(at - within_us < bucket_times[bucket] < at + within_us for bucket in (own, before, behind)):
            passes[row], bucket_times[own] = True, at
