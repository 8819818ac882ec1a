"""Look rows up in a table as it is now: each gets the table's row that arrived last.

The state is the table, one row per key. The match of a row depends on which of the two inputs was read first, so
another run may find another one. Rows that were committed or delivered are not looked up again.

Invariants
    - A row is emitted or dropped when it arrives; no row waits.
    - The event time of the table holds nothing back.

Pure.
Source: docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.contract import Operator, OperatorContext, TableDraft
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.joins.rows import Slots
from holdfast.runtime.operators.tables.lookup import (
    ROWS,
    TABLE,
    Lookup,
    Results,
    kept_fields,
    key_columns,
    last_of,
    null_keys,
    state_of,
)
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.collections.rows import existing
from holdfast.state.keys.batch import KeyType


@dataclass(frozen=True)
class LatestLookup(Lookup):
    """Add the columns of the row that the table has now."""

    kind: ClassVar[str] = "lookup"
    keeps: ClassVar[str] = "the rows of a table"

    def timed(self, port: int) -> bool:
        return port == ROWS

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [given[TABLE].field(key).with_nullable(False) for key in self.table_keys]
        return (TableDraft(KeyType.of(fields), tuple(kept_fields(given[TABLE], self.table_keys))),)

    def text(self) -> str:
        state = f"keeps one row per {', '.join(self.table_keys)} of the table"
        return f"lookup {self.operator} by {', '.join(self.keys)}, {self.how}, latest: {state}"

    def open(self, ctx: OperatorContext) -> Operator:
        return LatestOperator(self, ctx)


class LatestOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: LatestLookup, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)
        self._results = Results(step, ctx.placed[0].schema, ctx.needed())
        self._columns = self._table.spec.columns
        self._looked_up = 0
        """Slots without a row that were added since vacant ones were last dropped, at most."""
        self.rows_in = self.rows_out = self.dropped = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self.rows_in += batch.num_rows
        nulls = null_keys(batch, self._step.keyed_by(port))
        if port == TABLE:
            if nulls.any():
                self.dropped += int(nulls.sum())
                batch = batch.filter(pa.array(~nulls))
            self._replace(batch)
        else:
            self._look_up(batch, nulls)

    def on_barrier(self) -> None:
        if drop_vacant(self._table, self._looked_up):
            self._looked_up = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, dropped=self.dropped)

    def _replace(self, batch: pa.RecordBatch) -> None:
        """Take changes of the table; of several with one key the last counts."""
        kind = self._table.spec.key
        slots = self._table.slots(kind.encode(key_columns(batch, self._step.table_keys, kind)))
        rows = last_of(slots)
        deletions = deletes(batch)[rows]
        put = rows[~deletions]
        if put.size:
            self._table.write(slots[put], state_of(batch.take(pa.array(put)), self._columns))
        if deletions.any():
            self._table.delete(slots[rows[deletions]])
            self._looked_up += int(deletions.sum())

    def _look_up(self, batch: pa.RecordBatch, nulls: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        slots: Slots = np.full(batch.num_rows, -1)
        asking = np.flatnonzero(~nulls)
        if asking.size:
            kind, size = self._table.spec.key, len(self._table)
            asked = batch if asking.size == batch.num_rows else batch.take(pa.array(asking))
            slots[asking] = existing(self._table, kind.encode(key_columns(asked, self._step.keys, kind)))
            self._looked_up += len(self._table) - size
        if self._step.how == "inner" and (missing := slots < 0).any():
            self.dropped += int(missing.sum())
            batch, slots = batch.filter(pa.array(~missing)), slots[~missing]
        self.rows_out += slots.size
        if slots.size and self._ctx.wanted():
            self._ctx.emit(self._results.of(batch, self._table, slots))
