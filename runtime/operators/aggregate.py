"""Aggregates over a table: a whole batch at a time in, the changed keys of an epoch out.

Nothing here is done per record. Rows are mapped to slots once per batch; NumPy's unbuffered `ufunc.at` then folds every
value into its slot, also when a key occurs many times in one batch. It is fast only if value and state have exactly the
same type, so values are converted first. Columns without nulls are never masked.

Sums of integers are checked before they change anything. A bound on the largest sum of all keys is kept and raised by
every batch; while it stays inside int64 nothing can overflow. Values that come into the table from elsewhere make it
unknown; then, or when it is reached, the sums of the batch's keys are looked at, and only if these do not settle it is
every key's new sum computed exactly. A rollback leaves the bound true: it brings back sums that it held for.

Invariants
    - A sum that does not fit int64 fails the job before any state changed; it never wraps.
    - What a key's aggregates are depends on its rows alone (float sums: up to rounding), not on how they were batched.
    - Every slot touched since the last barrier is emitted once at the next.

Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.runtime.aggregates import BoundAggregation
from holdfast.runtime.operators.stateless import OP_FIELD
from holdfast.runtime.steps import Aggregate
from holdfast.sinks.contract import PUT
from holdfast.state.keys import Keys
from holdfast.state.table import Table

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
STOCK_ROWS_MAX = 16
"""Slots per row of a batch up to which all sums are looked at to bound them."""
_CERTAINLY_FITS = float(1 << 62)
"""Sums whose float approximation stays below this cannot be beyond int64."""

Slots = NDArray[np.int64]


class AggregateOperator:
    """One operator on one subtask.

    Args:
        aggregate: What to keep.
        schema: What comes out: the keys, then the results.
        table: The operator's state.
        job: Named in errors.
    """

    def __init__(self, aggregate: Aggregate, schema: pa.Schema, table: Table, job: str | None) -> None:
        self._aggregate, self._table, self._job = aggregate, table, job
        self._schema = pa.schema([*schema, OP_FIELD])
        self.name = aggregate.operator
        self.rows_in = self.rows_out = 0
        self._bounds: dict[str, tuple[int, int]] = {}
        """By state column: the table's `loads` and a bound on the largest absolute sum."""
        self.reads = frozenset(aggregate.keys) | {
            bound.column for bound in aggregate.aggregations if bound.column is not None
        }
        """The columns of the input that the operator needs."""

    def update(self, batch: pa.RecordBatch) -> None:
        """Take rows into the state.

        Raises:
            JobFailed: a sum does not fit.
        """
        if batch.num_rows == 0:
            return
        self.fold(self._table.spec.key.encode([batch.column(name) for name in self._aggregate.keys]), batch)

    def fold(self, keys: Keys, batch: pa.RecordBatch) -> Slots:
        """Take rows into the state of these keys, one per row; return their slots.

        Raises:
            JobFailed: a sum does not fit.
        """
        slots = self._table.slots(keys)
        columns = {bound.column for bound in self._aggregate.aggregations if bound.column is not None}
        inputs = {name: _Input(batch.column(name), slots) for name in columns}
        for bound in self._aggregate.aggregations:
            if bound.kind == "sum" and bound.column is not None and pa.types.is_int64(bound.result.type):
                self._refuse_overflow(bound, inputs[bound.column])
        self._table.touch(slots)
        for bound in self._aggregate.aggregations:
            if bound.column is None:
                np.add.at(self._table.column(bound.value), slots, 1)
            else:
                self._fold(bound, inputs[bound.column])
        self.rows_in += batch.num_rows
        return slots

    def changes(self) -> pa.RecordBatch | None:
        """Return keys and results of every key changed since the last barrier; None if there is none."""
        slots = self._table.changed()
        if slots.size == 0:
            return None
        arrays = [*self._table.key_columns(slots), *self.results(slots)]
        arrays.append(pa.array(np.full(slots.size, PUT, np.int8)))
        self.rows_out += slots.size
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def results(self, slots: Slots) -> list[pa.Array]:
        """Return the result columns of these slots."""
        return [self._result(bound, slots) for bound in self._aggregate.aggregations]

    def _fold(self, bound: BoundAggregation, given: _Input) -> None:
        column, slots = self._table.column(bound.value), given.slots
        if bound.seen is not None:
            np.add.at(self._table.column(bound.seen), slots, 1)
        match bound.kind:
            case "count":
                np.add.at(column, slots, 1)
            case "sum" | "mean":
                np.add.at(column, slots, given.values(column.dtype))
            case "min":
                (np.fmin if column.dtype.kind == "f" else np.minimum).at(column, slots, given.values(column.dtype))
            case "max":
                (np.fmax if column.dtype.kind == "f" else np.maximum).at(column, slots, given.values(column.dtype))

    def _refuse_overflow(self, bound: BoundAggregation, given: _Input) -> None:
        values, slots = given.values(np.dtype(np.int64)), given.slots
        if slots.size == 0:
            return
        growth = slots.size * _largest(values)
        loads, bound_before = self._bounds.get(bound.value, (-1, 0))
        if loads == self._table.loads and bound_before + growth <= INT64_MAX:
            self._bounds[bound.value] = loads, bound_before + growth
            return
        sums = self._table.column(bound.value)[slots]
        if _largest(sums) + growth <= INT64_MAX:
            self._raise_bound(bound.value, growth, slots.size)
            return
        if not _all_fit(slots, sums, values):
            raise JobFailed(
                f"aggregate {bound.result.name} = sum({bound.column!r}) of operator {self._aggregate.operator!r} "
                "is larger than 64 bits can hold",
                not_done="the epoch was not completed; state and output stay as of the last checkpoint",
                next_step=f'sum floats instead, with .with_columns({bound.column}=pl.col("{bound.column}")'
                ".cast(pl.Float64)) and a new operator name, or use a larger unit",
                where=Where(job=self._job, operator=self._aggregate.operator),
            )

    def _raise_bound(self, name: str, growth: int, rows: int) -> None:
        """Take stock of all sums, unless there are so many that looking at a batch's each time is cheaper."""
        sums = self._table.column(name)
        if sums.size <= STOCK_ROWS_MAX * rows:
            self._bounds[name] = self._table.loads, _largest(sums) + growth

    def _result(self, bound: BoundAggregation, slots: Slots) -> pa.Array:
        values = self._table.column(bound.value)[slots]
        null: NDArray[np.bool_] | None = None
        if bound.seen is not None:
            seen = self._table.column(bound.seen)[slots]
            null = seen == 0 if bound.result.nullable else None
            if bound.kind == "mean":
                values = values / np.maximum(seen, 1)
        kind = bound.result.type
        array = pa.array(values, mask=null)
        return array if array.type == kind else array.view(kind)


class _Input:
    """One column of a batch without its nulls, and the slots of the rows that are left."""

    def __init__(self, column: pa.Array, slots: Slots) -> None:
        self._column = column
        self._rows: NDArray[np.int64] | None = None
        self._values: dict[np.dtype[Any], NDArray[Any]] = {}
        self.slots = slots
        if column.null_count:
            self._rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            self.slots = slots[self._rows]

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values as this type; times as the integers behind them."""
        if dtype not in self._values:
            values = _numbers(self._column)
            if self._rows is not None:
                values = values[self._rows]
            self._values[dtype] = values.astype(dtype, copy=False)
        return self._values[dtype]


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return the values of a fixed-width column without a copy; anything stands where it is null."""
    kind = column.type
    dtype = np.dtype(f"i{kind.bit_width // 8}") if pa.types.is_temporal(kind) else np.dtype(kind.to_pandas_dtype())
    values: NDArray[Any] = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return values


def _largest(values: NDArray[np.int64]) -> int:
    """Return the largest absolute value, exactly."""
    return max(-int(values.min()), int(values.max()))


def _all_fit(slots: Slots, sums: NDArray[np.int64], values: NDArray[np.int64]) -> bool:
    """Whether every slot's new sum fits int64, exactly: halves are summed apart, where nothing can overflow."""
    _, first, group = np.unique(slots, return_index=True, return_inverse=True)
    high, low = np.zeros(first.size, np.int64), np.zeros(first.size, np.int64)
    np.add.at(high, group, values >> 32)
    np.add.at(low, group, values & 0xFFFF_FFFF)
    before = sums[first]
    about = before.astype(np.float64) + high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
    return all(
        INT64_MIN <= int(before[at]) + (int(high[at]) << 32) + int(low[at]) <= INT64_MAX
        for at in np.flatnonzero(np.abs(about) >= _CERTAINLY_FITS)
    )
