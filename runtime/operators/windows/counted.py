"""Aggregates per key over every n records: emitted with the n-th one, and begun again.

The state of a key is its aggregates since the last complete window and their number of records. The rows of a batch are
numbered per key from there; the number determines the window of each row. The windows that are complete are merged
together, held states and rows alike; the other rows are folded into the state. No work is done per record.

Invariants
    - Records of a key count in the order in which they arrive, each in one window.
    - A window is emitted in the epoch that takes its last record, in the order of these records.
    - A key whose windows are all complete has no row of state.

Pure.
Source: docs/decisions/0073-count-windows.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.aggregation import BoundAggregation
from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.functions.ranges import Runs
from holdfast.runtime.operators.aggregates.aggregate import Folding, aggregates_text, value_columns
from holdfast.runtime.operators.aggregates.running import PIECE_ROWS, RunningAggregate
from holdfast.runtime.operators.contract import Description, Operator, OperatorContext, TableDraft
from holdfast.runtime.operators.differences import Found
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.windows.sliding import RECORDS
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.keys.batch import KeyType


@dataclass(frozen=True)
class CountedAggregate(RunningAggregate):
    """Keep aggregates per key; emit them with every n-th record, and begin again."""

    size: int = 1
    """The records of a window."""

    kind: ClassVar[str] = "countedaggregate"
    keeps: ClassVar[str] = "aggregates per key since its last complete window"

    @property
    def folded(self) -> tuple[BoundAggregation, ...]:
        """Aggregations that a row of state holds."""
        return (*self.aggregations, RECORDS)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        return (TableDraft(KeyType.of(given[0].field(key) for key in self.keys), value_columns(self.folded)),)

    def identity(self, column: Description) -> dict[str, Any]:
        return super().identity(column) | {"keeps": self.keeps, "size": self.size}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        super().compare(found, before, now)
        if before["size"] != now["size"]:
            found.refuse(f"had windows of {before['size']:,} records and now has windows of {now['size']:,}")

    def text(self) -> str:
        over = f"over every {self.size:,} records"
        return f"aggregate {self.operator} by {', '.join(self.keys)} {over}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return CountedOperator(self, ctx)


class CountedOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: CountedAggregate, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._schema = step, ctx, ctx.placed[0].schema
        self._table = ctx.table(step.operator)
        self._folding = Folding(step.operator, step.folded, self._table, ctx.job)
        self._merging = Folding(step.operator, step.aggregations, self._table, ctx.job)
        self._looked_up = 0
        """Slots without state that were added since vacant slots were last dropped, at most."""
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        for first in range(0, batch.num_rows, PIECE_ROWS):
            self._take(batch.slice(first, PIECE_ROWS))

    def on_barrier(self) -> None:
        if drop_vacant(self._table, self._looked_up):
            self._looked_up = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Emit the windows that rows complete, and take the other rows into the state.

        Raises:
            JobFailed: a value does not fit.
        """
        self.rows_in += batch.num_rows
        keys = self._table.spec.key.encode([batch.column(name) for name in self._step.keys])
        own, numbers = np.unique(self._table.slots(keys), return_inverse=True)
        record_counts = self._table.values(RECORDS.state["count"], own)
        windows = windows_of(numbers, record_counts, self._step.size)
        if windows.last.size:
            self._emit(batch, own, windows)
            left = np.ones(batch.num_rows, bool)
            left[windows.rows] = False
            self._begin_again(own[windows.held], record_counts[windows.held])
            batch, keys = batch.filter(pa.array(left)), keys.take(np.flatnonzero(left))
        if batch.num_rows:
            self._folding.fold(keys, batch)

    def _emit(self, batch: pa.RecordBatch, own: Slots, windows: CompleteWindows) -> None:
        if not self._ctx.wanted():
            return
        last = batch.take(pa.array(windows.last))
        groups = np.concatenate([windows.of_held, windows.of_rows])
        rows = batch.take(pa.array(windows.rows))
        results = self._merging.together(rows, own[windows.held], groups, windows.last.size)
        arrays = [*(last.column(name) for name in (*self._step.keys, *self._step.kept)), *results]
        self.rows_out += last.num_rows
        self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _begin_again(self, slots: Slots, held: Slots) -> None:
        """Delete the states of keys, those of them that have one."""
        present = held > 0
        self._looked_up += int(slots.size - present.sum())
        if present.any():
            self._table.delete(slots[present])


class CompleteWindows(NamedTuple):
    """The windows that the rows of a batch complete, numbered in the order of their last rows."""

    last: Slots
    """The row that completes each window."""
    held: Slots
    """The numbers of the keys whose state is in one of them."""
    of_held: Slots
    """The window of each such state."""
    rows: Slots
    """The rows that are in one of them."""
    of_rows: Slots
    """The window of each such row."""


def windows_of(numbers: Slots, held: Slots, size: int) -> CompleteWindows:
    """Return the windows that rows complete.

    Args:
        numbers: The number of each row's key, 0 to the number of keys - 1, all of which occur.
        held: How many records of an incomplete window each key has, below the size.
    """
    runs = Runs.behind(numbers, held.size)
    places = held[numbers] + runs.last - runs.first - 1  # each row's, from the start of its key's incomplete window
    complete = (held + np.bincount(numbers, minlength=held.size)) // size
    first, window = np.cumsum(complete) - complete, places // size
    last = np.flatnonzero(places % size == size - 1)
    by_arrival = np.empty(last.size, np.int64)
    by_arrival[first[numbers[last]] + window[last]] = np.arange(last.size)
    keys, rows = np.flatnonzero(complete), np.flatnonzero(window < complete[numbers])
    return CompleteWindows(last, keys, by_arrival[first[keys]], rows, by_arrival[first[numbers[rows]] + window[rows]])
