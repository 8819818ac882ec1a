"""Several streams with the same columns as one. Between them there is no order.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.runtime.operators.contract import MAIN, Needed, Operator, OperatorContext, Step, in_order
from holdfast.runtime.rows.expressions import Use


@dataclass(frozen=True, eq=False)
class Union(Step):
    """Return the rows of all inputs, which may be those of edges without key."""

    use: Use

    kind: ClassVar[str] = "union"
    merges: ClassVar[bool] = True

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return in_order(needed.get(MAIN, ()), given)

    def text(self) -> str:
        return "union"

    def open(self, ctx: OperatorContext) -> Operator:
        return _UnionOperator(ctx)


class _UnionOperator(Operator):
    """Sets the nullability of the union's columns in all rows."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        needed = ctx.needed()
        self._schema = pa.schema([field for field in ctx.placed[0].schema if field.name in needed])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.emit(relabelled(batch, self._schema))


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly these fields; it has their columns."""
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
