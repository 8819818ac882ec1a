"""Aggregates over the rows that a table has now: rows come with a weight, which takes old ones back.

What is kept are sums of weights and of values times weights, so it needs no rows: the number of rows of a group, and
per aggregate the number and the sum of its values. A group whose rows are all gone is deleted, in the output and in the
state, so the next row begins with exact zeros.

Invariants
    - A group is in the state and in the output as long as the table has rows of it.
    - Every group that changed in an epoch is emitted once at its barrier.
    - No sum of integers or decimals wraps.

Pure.
Source: docs/design/0068-retractions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.aggregates.aggregate import (
    NOT_DONE,
    Folding,
    aggregates_identity,
    aggregates_text,
    columns_read,
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
from holdfast.runtime.operators.differences import Found, compare_keys
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.joins.rows import Slots
from holdfast.runtime.operators.tables.retractions import WEIGHT
from holdfast.runtime.rows.aggregates.aggregation import BoundAggregation, bound
from holdfast.runtime.rows.aggregates.conditions import computed, masked
from holdfast.runtime.rows.aggregates.named import sum as sum_of
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract import DELETE, PUT
from holdfast.state.keys.batch import KeyType

INVERTIBLE = ("count", "sum", "mean")
"""Aggregates whose values can be taken back without the rows."""
ROWS = "rows"
"""The number of rows of a group, under a name that no aggregate's sums have."""
SEEN, SUM = "seen", "sum"


@dataclass(frozen=True)
class Group(KeyedStep):
    """Keep aggregates over the rows of a table per group."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]
    inputs: tuple[pa.Field, ...]
    """The column of each aggregate, WEIGHT for one that counts rows."""

    kind: ClassVar[str] = "group"
    keeps: ClassVar[str] = "aggregates over the rows of a table"

    @cached_property
    def sums(self) -> tuple[BoundAggregation, ...]:
        """The sums that it keeps."""
        fields = [pa.field(ROWS, pa.int64(), nullable=False)]
        for each, given in zip(self.aggregations, self.inputs, strict=True):
            if each.columns or each.condition is not None:
                fields.append(pa.field(f"{each.name}.{SEEN}", pa.int64(), nullable=False))
            if each.kind.name != "count":
                fields.append(pa.field(f"{each.name}.{SUM}", given.type, nullable=False))
        schema = pa.schema(fields)
        return tuple(bound(name, sum_of(name), schema, f"group {self.operator!r}") for name in schema.names)

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return columns_read(self.keys, self.aggregations, WEIGHT.name)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        return (TableDraft(KeyType.of(given[0].field(key) for key in self.keys), value_columns(self.sums)),)

    def identity(self, column: Description) -> dict[str, Any]:
        described = aggregates_identity(self.keys, self.aggregations, column)
        return {"keeps": self.keeps, "key": described["key"], "over": described["aggregates"]}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        if before["over"] != now["over"]:
            found.refuse("has other aggregates than before, or from other columns")

    def text(self) -> str:
        return f"group {self.operator} by {', '.join(self.keys)}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return GroupOperator(self, ctx)


class GroupOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Group, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)
        self._schema = pa.schema([*ctx.placed[0].schema, OP_FIELD])
        self._folding = Folding(step.operator, step.sums, self._table, ctx.job)
        self._conditions = tuple(dict.fromkeys(a.condition for a in step.aggregations if a.condition is not None))
        self._emptied = 0
        """Slots that lost their row since vacant ones were last dropped."""
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take rows that are added and taken back.

        Raises:
            JobFailed: a sum does not fit, or a condition cannot be computed.
        """
        self.rows_in += batch.num_rows
        keys = self._table.spec.key.encode([batch.column(name) for name in self._step.keys])
        self._folding.fold(keys, self._weighed(batch))

    def on_barrier(self) -> None:
        slots = self._table.changed()
        if not slots.size:
            return
        rows = self._table.values(f"{ROWS}.{SUM}", slots)
        assert (rows >= 0).all(), "a row was taken back that was not added"
        empty = rows == 0
        if self._ctx.wanted():
            self.rows_out += slots.size
            self._ctx.emit(self._given(slots, empty))
        self._table.delete(slots[empty])
        self._emptied += int(empty.sum())
        if drop_vacant(self._table, self._emptied):
            self._emptied = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0)

    def _weighed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to sum: weights, and values times weights; a null counts nothing."""
        weights, step = batch.column(WEIGHT.name), self._step
        true = self._true(batch)
        columns = {ROWS: weights}
        for each, given in zip(step.aggregations, step.inputs, strict=True):
            values = batch.column(each.columns[0]) if each.columns else None
            if each.condition is not None:
                values = masked(values, true[each.condition])
            if values is not None:
                columns[f"{each.name}.{SEEN}"] = pc.if_else(values.is_valid(), weights, 0)
            if each.kind.name != "count":
                assert values is not None
                columns[f"{each.name}.{SUM}"] = self._signed(values, weights, given.type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _signed(self, values: pa.Array, weights: pa.Array, kind: pa.DataType) -> pa.Array:
        values = values.cast(kind).fill_null(pa.scalar(Decimal(0) if pa.types.is_decimal(kind) else 0, kind))
        taken = pc.less(weights, 0)
        try:
            return pc.if_else(taken, pc.negate_checked(values), values)
        except pa.ArrowInvalid as error:
            raise JobFailed(
                f"operator {self._step.operator!r} cannot take a value back: {error}",
                not_done=NOT_DONE,
                next_step="sum floats instead, cast with pl.Float64, under a new operator name",
                where=Where(job=self._ctx.job, operator=self._step.operator),
            ) from error

    def _true(self, batch: pa.RecordBatch) -> Mapping[Any, pa.Array]:
        if not self._conditions:
            return {}
        try:
            return computed(self._conditions, batch)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise JobFailed(
                f"a filter= of the aggregates of operator {self._step.operator!r} cannot be computed: {error}",
                not_done=NOT_DONE,
                next_step="make the expression take every value, for example with cast(..., strict=False); then run "
                "the job again, which resumes from the last checkpoint",
                where=Where(job=self._ctx.job, operator=self._step.operator),
            ) from error

    def _given(self, slots: Slots, empty: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.RecordBatch:
        """Return the groups; those without rows as deletes."""
        sums = dict(zip((each.name for each in self._step.sums), self._folding.results(slots), strict=True))
        gone = pa.array(empty)
        arrays = []
        for each in self._step.aggregations:
            seen = sums.get(f"{each.name}.{SEEN}", sums[ROWS])
            result = seen if each.kind.name == "count" else sums[f"{each.name}.{SUM}"]
            if each.kind.name == "mean":
                result = pc.divide(result.cast(pa.float64()), seen.cast(pa.float64()))
            hidden = gone if each.kind.name == "count" else pc.or_(gone, pc.equal(seen, 0))
            arrays.append(pc.if_else(hidden, pa.scalar(None, result.type), result).cast(each.result.type))
        ops = np.where(empty, DELETE, PUT).astype(np.int8)
        arrays = [*self._table.key_columns(slots), *arrays, pa.array(ops)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
