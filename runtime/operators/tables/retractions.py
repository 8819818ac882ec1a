"""The changes of a table with the rows that they replace: each takes the old row back, and adds the new one.

State holds the row of every key, of the columns that later steps read. A change of a key emits its old row with the
weight -1 and its new row with the weight 1; a delete has no new row. So sums over the rows, each times its weight, are
sums over the table.

Invariants
    - The weights of a row add up to 1 while it is in the table, and to 0 before and after.
    - A row is taken back with the values with which it was added, and after it.

Pure.
Source: docs/decisions/0068-retractions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.contract import (
    MAIN,
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.operators.differences import Found, compare_kept, compare_keys, refuse_added
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.joins.rows import KEPT, Slots
from holdfast.runtime.operators.tables.lookup import kept_fields, key_columns, last_of, state_of
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.rows.kept_columns import from_state
from holdfast.runtime.time.windows import TIME
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.keys.batch import KeyType

WEIGHT = pa.field("_weight", pa.int64(), nullable=False)
"""Last in the output: 1 for a row that is added, -1 for one that is taken back."""


@dataclass(frozen=True)
class Retractions(KeyedStep):
    """Return the changes of a table as rows that are added and taken back."""

    operator: str
    keys: tuple[str, ...]

    kind: ClassVar[str] = "retractions"
    keeps: ClassVar[str] = "the rows of a table, to take them back"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset())
        return tuple(dict.fromkeys((*self.keys, *(name for name in given.names if name in behind))))

    def made_from(self, name: str) -> str | None:
        return None if name == WEIGHT.name else name

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        key = KeyType.of(given[0].field(name) for name in self.keys)
        return (TableDraft(key, tuple(kept_fields(given[0], self.keys))),)

    def identity(self, column: Description) -> dict[str, Any]:
        kept = [column(name) for name in column.names() if name not in {*self.keys, OP_FIELD.name}]
        times = [KEPT + each["column"] for each in kept if each["type"] == str(TIME)]
        key = [column(name) for name in self.keys]
        return {"keeps": self.keeps, "key": key, "rows": kept, "times": times}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        compare_kept(found, "column of the table", before["rows"], now["rows"])
        refuse_added(found, before["rows"], now["rows"])

    def text(self) -> str:
        return f"retractions {self.operator} by {', '.join(self.keys)}: keeps one row per key"

    def open(self, ctx: OperatorContext) -> Operator:
        return RetractionsOperator(self, ctx)


class RetractionsOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Retractions, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)
        needed = ctx.needed()
        self._schema = pa.schema([field for field in ctx.placed[0].schema if field.name in needed])
        self._columns = self._table.spec.columns
        self._emptied = 0
        """Slots that lost their row since vacant ones were last dropped."""
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take changes of the table; of several with one key the last counts."""
        self.rows_in += batch.num_rows
        kind = self._table.spec.key
        slots = self._table.slots(kind.encode(key_columns(batch, self._step.keys, kind)))
        rows = last_of(slots)
        slots, batch = slots[rows], batch.take(pa.array(rows))
        known = slots[self._table.is_present(slots)]
        old = self._taken_back(known)
        deletions = deletes(batch)
        new = batch.filter(pa.array(~deletions))
        if new.num_rows:
            self._table.write(slots[~deletions], state_of(new, self._columns))
        if deletions.any():
            self._table.delete(slots[deletions])
            self._emptied += int(deletions.sum())
        self._emit([*old, *([self._with_weight(new, 1)] if new.num_rows else [])])

    def on_barrier(self) -> None:
        if drop_vacant(self._table, self._emptied):
            self._emptied = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0)

    def _taken_back(self, slots: Slots) -> list[pa.RecordBatch]:
        """Return the rows that the table has in these slots, to take them back."""
        if not slots.size:
            return []
        names = [name for name in self._schema.names if name not in self._step.keys and name != WEIGHT.name]
        kept = self._table.read_columns([KEPT + name for name in names], slots)
        columns = dict(zip(self._step.keys, self._table.key_columns(slots), strict=True))
        columns |= {name: from_state(kept[KEPT + name], self._schema.field(name).type) for name in names}
        shown = [name for name in self._schema.names if name != WEIGHT.name]
        batch = pa.RecordBatch.from_arrays([columns[name] for name in shown], names=shown)
        return [self._with_weight(batch, -1)]

    def _with_weight(self, batch: pa.RecordBatch, weight: int) -> pa.RecordBatch:
        columns = {WEIGHT.name: pa.array(np.full(batch.num_rows, weight, np.int64))}
        arrays = [columns[f.name] if f.name in columns else batch.column(f.name) for f in self._schema]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _emit(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self.rows_out += batch.num_rows
            if self._ctx.wanted():
                self._ctx.emit(batch)
