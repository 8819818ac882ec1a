"""The rows of a stream as those of a table: each replaces the row with its key, or deletes it.

No state: rows of one key meet in one subtask, so all readers of the table get them in one order, that of arrival.

Pure.
Source: docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.operators.contract import (
    MAIN,
    OP_FIELD,
    Needed,
    Operator,
    OperatorContext,
    Step,
    in_order,
)
from holdfast.runtime.rows.schema import columns_shown
from holdfast.sinks.contract.target import DELETE, PUT


@dataclass(frozen=True)
class Upserts(Step):
    """Return the rows as upserts by key; those that `deleted` marks delete the row of their key."""

    keys: tuple[str, ...]
    time: str | None
    """The event time, which deletes have too."""
    deleted: str | None
    """The column that marks rows which delete; it is not in the output."""

    kind: ClassVar[str] = "table"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        mark = () if self.deleted is None else (self.deleted,)
        return in_order({*needed.get(MAIN, frozenset()), *self.keys, *mark}, given)

    def depends_on_order(self) -> tuple[str, ...]:
        return ("which record of a key comes last",)

    def made_from(self, name: str) -> str:
        return name

    def text(self) -> str:
        deletes = "" if self.deleted is None else f", deletes where {self.deleted}"
        return f"table by {', '.join(self.keys)}{deletes}"

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        marks = {"event_time": self.time, "deleted": self.deleted}
        return {
            "step": self.kind,
            "key": list(self.keys),
            "columns": columns_shown(schema),
            "text": self.text(),
        } | marks

    def open(self, ctx: OperatorContext) -> Operator:
        return _UpsertsOperator(self, ctx)


class _UpsertsOperator(Operator):
    """Marks every row as a put or a delete; a delete keeps its key and its event time."""

    def __init__(self, step: Upserts, ctx: OperatorContext) -> None:
        self._step, self._ctx, needed = step, ctx, ctx.needed()
        self._schema = pa.schema([*(field for field in ctx.placed[0].schema if field.name in needed), OP_FIELD])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        step, ops, places = self._step, np.full(batch.num_rows, PUT, np.int8), None
        if step.deleted is not None:
            deleted = np.asarray(batch.column(step.deleted).fill_null(False).to_numpy(zero_copy_only=False), bool)
            ops[deleted] = DELETE
            # A null as the index gives a null of any type.
            places = pa.array(np.arange(batch.num_rows), mask=deleted) if deleted.any() else None
        kept = {*step.keys, step.time}
        arrays = [
            batch.column(name) if places is None or name in kept else batch.column(name).take(places)
            for name in self._schema.names[:-1]
        ]
        self._ctx.emit(pa.RecordBatch.from_arrays([*arrays, pa.array(ops)], schema=self._schema))


def deletes(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows of a table's batch are deletes."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(batch.column(OP_FIELD.name), DELETE).to_numpy(
        zero_copy_only=False
    )
    return found
