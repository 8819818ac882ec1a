"""The changes of a table as facts: every put and every delete is a row with a mark, as in a changelog.

Pure.
Source: docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.runtime.operators.contract import MAIN, Needed, Operator, OperatorContext, Step, in_order
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.rows.schema import columns_shown


@dataclass(frozen=True)
class TableChanges(Step):
    """Return the changes of a table as rows that are never replaced."""

    mark: str
    """The column of the output that is true if the row was deleted."""

    kind: ClassVar[str] = "changes"

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return in_order(needed.get(MAIN, frozenset()), given)

    def made_from(self, name: str) -> str | None:
        return None if name == self.mark else name

    def text(self) -> str:
        return "changes as rows"

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        return {"step": self.kind, "columns": columns_shown(schema), "text": self.text()}

    def open(self, ctx: OperatorContext) -> Operator:
        return _ChangesOperator(self, ctx)


class _ChangesOperator(Operator):
    def __init__(self, step: TableChanges, ctx: OperatorContext) -> None:
        needed = ctx.needed()
        self._mark, self._ctx = step.mark, ctx
        self._schema = pa.schema([field for field in ctx.placed[0].schema if field.name in needed])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        marks = pa.array(deletes(batch))
        arrays = [marks if name == self._mark else batch.column(name) for name in self._schema.names]
        self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
