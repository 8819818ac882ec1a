"""Running aggregates per key: one row per record, with the aggregates after it.

The state is that of aggregate.py, so a job may change between `emit="changes"` and `emit="each"`. The rows of a batch
are put after the held state of their keys, and the result of a row is the merge of all up to it
(functions/ranges.py): no work is done per record.

Invariants
    - The rows of a key are emitted in the order in which they arrived; each counts itself and all before it.
    - A record is emitted in the epoch that takes it into the state.

Pure.
Source: docs/decisions/0072-running-and-sliding-aggregates.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.ranges import Runs
from holdfast.runtime.operators.aggregates.aggregate import Aggregate, Folding, aggregates_text
from holdfast.runtime.operators.contract import KEY_ORDER, Needed, Operator, OperatorContext
from holdfast.runtime.wire.messages import OperatorProgress

PIECE_ROWS = 16_384
"""Rows whose states are merged together; a state may be some KiB."""


@dataclass(frozen=True)
class RunningAggregate(Aggregate):
    """Keep aggregates per key; emit them after every record."""

    kept: tuple[str, ...] = ()
    """Further columns of the record that are in the result."""

    kind: ClassVar[str] = "runningaggregate"

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().reads(port, given, needed), *self.kept)))

    def made_from(self, name: str) -> str | None:
        return name if name in self.kept else None

    def depends_on_order(self) -> tuple[str, ...]:
        return (KEY_ORDER,)

    def text(self) -> str:
        by = ", ".join(self.keys)
        return f"aggregate {self.operator} by {by} after each record: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return RunningOperator(self, ctx)


class RunningOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: RunningAggregate, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._schema = step, ctx, ctx.placed[0].schema
        self._table = ctx.table(step.operator)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job)
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        for first in range(0, batch.num_rows, PIECE_ROWS):
            self._take(batch.slice(first, PIECE_ROWS))

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Emit the results of rows, and take them into the state.

        Raises:
            JobFailed: a value does not fit.
        """
        columns = [batch.column(name) for name in self._step.keys]
        keys = self._table.spec.key.encode(columns)
        results: Sequence[pa.Array] = ()
        if self._ctx.wanted():
            own, numbers = np.unique(self._table.slots(keys), return_inverse=True)
            results = self._folding.running(batch, own, Runs.behind(numbers, own.size))
        self._folding.fold(keys, batch)
        self.rows_in += batch.num_rows
        if self._ctx.wanted():
            arrays = [*columns, *(batch.column(name) for name in self._step.kept), *results]
            self.rows_out += batch.num_rows
            self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
