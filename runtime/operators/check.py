"""Check a stream against a dataclass or schema: bring columns into its order, and fail at nulls that it forbids.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.contract import MAIN, OP_FIELD, Needed, Operator, OperatorContext, Step, in_order
from holdfast.runtime.operators.union import relabelled
from holdfast.runtime.rows.expressions import Use
from holdfast.runtime.rows.nested.fields import FieldType
from holdfast.runtime.rows.schema import columns_shown, limited
from holdfast.sinks.contract.target import PUT
from holdfast.storage.held_values import row_shown


@dataclass(frozen=True, eq=False)
class SchemaCheck(Step):
    """Return the columns of this schema, in its order; fail if one of `not_null` is null."""

    not_null: tuple[str, ...]
    use: Use
    to: type | None = None
    """The dataclass whose fields have to allow the values."""

    kind: ClassVar[str] = "check"
    row_wise: ClassVar[bool] = True

    @property
    def one_to_one(self) -> bool:
        return True

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return in_order(needed.get(MAIN, frozenset()) | set(self.not_null) | set(limited(self.to, given)), given)

    def made_from(self, name: str) -> str:
        return name

    def text(self) -> str:
        return "check" + (f" {', '.join(self.not_null)} for nulls" if self.not_null else " columns")

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        return {"step": "check", "not_null": list(self.not_null), "columns": columns_shown(schema), "text": "as_"}

    def open(self, ctx: OperatorContext) -> Operator:
        return _CheckOperator(self, ctx)


class _CheckOperator(Operator):
    """Passes on the needed columns after checking those that allow no null."""

    def __init__(self, check: SchemaCheck, ctx: OperatorContext) -> None:
        self._check, self._ctx = check, ctx
        placed, needed = ctx.placed[0], ctx.needed()
        self._upsert = placed.upsert_key is not None
        fields = [field for field in placed.schema if field.name in needed]
        self._limited = limited(check.to, pa.schema(fields))
        self._schema = pa.schema([*fields, OP_FIELD] if self._upsert else fields)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        for name in self._check.not_null:
            nulls = batch.column(name).is_null()
            if self._upsert:
                nulls = pc.and_(nulls, pc.equal(batch.column(OP_FIELD.name), PUT))
            if (row := nulls.index(True).as_py()) >= 0:
                raise self._null(name, batch.slice(row, 1))
        for name, kind in self._limited.items():
            column = kind.normal(batch.column(name))
            wrong = kind.wrong(column)
            if wrong is not None and self._upsert:
                wrong = wrong & pc.equal(batch.column(OP_FIELD.name), PUT).to_numpy(zero_copy_only=False)
            if wrong is not None and wrong.any():
                raise self._not_allowed(name, kind, column, batch, int(wrong.argmax()))
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), column)
        self._ctx.emit(relabelled(batch, self._schema))

    def _not_allowed(self, name: str, kind: FieldType, column: pa.Array, batch: pa.RecordBatch, row: int) -> JobFailed:
        unfit, origin = kind.reason(column[row].as_py()), self._ctx.origin
        assert unfit is not None, "what is wrong has a reason"
        return JobFailed(
            f"{self._check.use}: {unfit.of(name)}; the row is {row_shown(batch, row)}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f"filter such rows before it, or let {name!r} have such values in the type; then run the job "
            "again, which resumes from the last checkpoint",
            where=Where(job=origin.job, operator=origin.operator, source=origin.source),
        )

    def _null(self, name: str, row: pa.RecordBatch) -> JobFailed:
        values, origin = repr(row.to_pylist()[0]), self._ctx.origin
        return JobFailed(
            f"{self._check.use}: column {name!r} is null, which its type does not allow; the row is {values:.200}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f"filter such rows before it, fill the null, or let {name!r} be null in the type; then run the "
            "job again, which resumes from the last checkpoint",
            where=Where(job=origin.job, operator=origin.operator, source=origin.source),
        )
