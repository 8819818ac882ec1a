"""Aggregates over the rows that a table has now: rows come with a weight, which takes old ones back.

A group keeps sums of weights and of values times weights: the number of its rows, and per aggregate the number and the
sum of its values. Values that cannot be subtracted from a sum are kept below the group, as a part (below.py): min and
max have the number of each value, var the digits of exact sums, sums of floats the number of values that are not
finite. A group that has lost all its rows is deleted, in the output and in the state, so the next row begins with exact
zeros.

Invariants
    - A group is in the state and in the output as long as the table has rows of it.
    - Every group that changed in an epoch is emitted once at its barrier.
    - No sum of integers or decimals wraps.

Pure.
Source: docs/decisions/0068-retractions.md, docs/decisions/0096-values-below-groups.md.
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
from holdfast.runtime.functions.aggregation import BoundAggregation, bound
from holdfast.runtime.functions.conditions import computed, masked
from holdfast.runtime.functions.named import sum as sum_of
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
    part_name,
)
from holdfast.runtime.operators.differences import Found, compare_keys
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.joins.rows import Slots
from holdfast.runtime.operators.tables.below import Below, Counts, Part
from holdfast.runtime.operators.tables.counted_values import CountedValues
from holdfast.runtime.operators.tables.exact_sums import ExactSums
from holdfast.runtime.operators.tables.not_finite import NotFinite
from holdfast.runtime.operators.tables.retractions import WEIGHT
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract.target import DELETE, PUT
from holdfast.state.keys.batch import Keys, KeyType

SUMMED = ("count", "sum", "mean")
"""Aggregates whose values can be taken back from sums per group."""
PARTS: Mapping[str, type[Part]] = {"min": CountedValues, "max": CountedValues, "var": ExactSums}
"""The part that each other aggregate needs."""
ROWS = "rows"
"""The number of rows of a group, under a name that no aggregate's sums have."""
SEEN, SUM = "seen", "sum"


@dataclass(frozen=True)
class GroupAggregate(KeyedStep):
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
        for each, input_field in zip(self.aggregations, self.inputs, strict=True):
            if each.columns or each.condition is not None:
                fields.append(pa.field(f"{each.name}.{SEEN}", pa.int64(), nullable=False))
            if _has_sum(each):
                fields.append(pa.field(f"{each.name}.{SUM}", input_field.type, nullable=False))
        schema = pa.schema(fields)
        return tuple(bound(name, sum_of(name), schema, f"group {self.operator!r}") for name in schema.names)

    @cached_property
    def parts_of(self) -> Mapping[str, Part]:
        """The part of every aggregate that has one; those of the same column and condition share it."""
        shared, parts = dict[Any, Part](), dict[str, Part]()
        for each, given in zip(self.aggregations, self.inputs, strict=True):
            if (part := _part_of(each, given.type)) is not None:
                parts[each.name] = shared.setdefault((part, *_values_of(each)), part(each.name, given.type))
        return parts

    @property
    def kept_below(self) -> tuple[Part, ...]:
        """Every part, once."""
        return tuple(dict.fromkeys(self.parts_of.values()))

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return columns_read(self.keys, self.aggregations, WEIGHT.name)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        keys = [given[0].field(key) for key in self.keys]
        parts = (part.draft(keys) for part in self.kept_below)
        return (TableDraft(KeyType.of(keys), value_columns(self.sums)), *parts)

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

    def __init__(self, step: GroupAggregate, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)
        self._schema = pa.schema([*ctx.placed[0].schema, OP_FIELD])
        shown = {f"{each.name}.{part}": f"{each.name} = {each}" for each in step.aggregations for part in (SUM, SEEN)}
        self._folding = Folding(step.operator, step.sums, self._table, ctx.job, shown=shown)
        tables = {part: ctx.table(part_name(step.operator, part.name)) for part in step.kept_below}
        self._below = {part: Below(step.operator, part, table, ctx.job) for part, table in tables.items()}
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
        keys = [batch.column(name) for name in self._step.keys]
        values = self._values(batch)
        self._folding.fold(self._table.spec.key.encode(keys), self._weighed(batch, values))
        weights = batch.column(WEIGHT.name).to_numpy()
        for part, below in self._below.items():
            given = values[part.name]
            assert given is not None
            below.fold(keys, given, weights)

    def on_barrier(self) -> None:
        slots = self._table.changed()
        if not slots.size:
            return
        for below in self._below.values():
            below.settle()
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

    def _values(self, batch: pa.RecordBatch) -> dict[str, pa.Array | None]:
        """Return the values of each aggregate, null where its condition is not true; None if it counts all rows."""
        true, values_by_name = self._true(batch), dict[str, pa.Array | None]()
        for each in self._step.aggregations:
            values = batch.column(each.columns[0]) if each.columns else None
            values_by_name[each.name] = values if each.condition is None else masked(values, true[each.condition])
        return values_by_name

    def _weighed(self, batch: pa.RecordBatch, given: Mapping[str, pa.Array | None]) -> pa.RecordBatch:
        """Return the columns to sum: weights, and values times weights; a null counts nothing."""
        weights, step = batch.column(WEIGHT.name), self._step
        columns = {ROWS: weights}
        for each, field in zip(step.aggregations, step.inputs, strict=True):
            values = given[each.name]
            if values is not None:
                columns[f"{each.name}.{SEEN}"] = pc.if_else(values.is_valid(), weights, 0)
            if _has_sum(each):
                assert values is not None
                columns[f"{each.name}.{SUM}"] = self._signed(values, weights, field.type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _signed(self, values: pa.Array, weights: pa.Array, kind: pa.DataType) -> pa.Array:
        zero = pa.scalar(Decimal(0) if pa.types.is_decimal(kind) else 0, kind)
        values = values.cast(kind).fill_null(zero)
        if pa.types.is_floating(kind):
            values = pc.if_else(pc.is_finite(values), values, zero)  # the others are counted below the group
        taken = pc.less(weights, 0)
        try:
            # Others are not negated: the least integer, which has no opposite, may be added.
            return pc.if_else(taken, pc.negate_checked(pc.if_else(taken, values, zero)), values)
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
        groups = self._table.keys_at(slots)
        results = (self._result(each, sums, groups) for each in self._step.aggregations)
        kept = [pc.if_else(pa.array(empty), pa.scalar(None, result.type), result) for result in results]
        cast = [result.cast(each.result.type) for each, result in zip(self._step.aggregations, kept, strict=True)]
        ops = np.where(empty, DELETE, PUT).astype(np.int8)
        arrays = [*self._table.key_columns(slots), *cast, pa.array(ops)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _result(self, each: BoundAggregation, sums: Mapping[str, pa.Array], groups: Keys) -> pa.Array:
        """Return the result of an aggregate per group; of those without rows, anything."""
        seen_counts = sums.get(f"{each.name}.{SEEN}", sums[ROWS])
        if each.kind.name == "count":
            return seen_counts
        below = None
        if (part := self._step.parts_of.get(each.name)) is not None:
            counts: Counts = seen_counts.to_numpy(zero_copy_only=False)
            below = self._below[part].results(each.kind, groups, counts)
            if not _has_sum(each):
                return below
        result = sums[f"{each.name}.{SUM}"]
        if each.kind.name == "mean":
            result = pc.divide(result.cast(pa.float64()), seen_counts.cast(pa.float64()))
        if below is not None:
            result = pc.coalesce(below, result)
        return pc.if_else(pc.equal(seen_counts, 0), pa.scalar(None, result.type), result)


def _has_sum(each: BoundAggregation) -> bool:
    return each.kind.name in SUMMED and each.kind.name != "count"


def _part_of(each: BoundAggregation, given: pa.DataType) -> type[Part] | None:
    """Return the part that an aggregate of values of a type needs; None if sums per group are enough."""
    if _has_sum(each):
        return NotFinite if pa.types.is_floating(given) else None
    return PARTS.get(each.kind.name)


def _values_of(each: BoundAggregation) -> tuple[Any, ...]:
    """Return the column and condition that the values of an aggregate depend on."""
    return each.columns, each.condition
