"""Aggregates over a table: input in whole batches, output of the keys changed in an epoch.

No work is done per record. Rows are mapped to slots once per batch; the functions (runtime/rows/aggregate_functions.py)
then fold whole columns. Columns without nulls are never masked.

Values loaded into the table make a bound on its sums unknown. A rollback keeps the bound valid, because it restores
sums for which the bound held.

Invariants
    - A sum that does not fit int64 fails the job before any state changes; it never wraps.
    - A key's aggregates depend only on its rows (float sums: up to rounding), not on how they were batched.
    - Every slot touched since the last barrier is emitted once at the next.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators import aggregate_changes
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
from holdfast.runtime.rows.aggregate_functions import AggregateFunction, Known, Slots, State
from holdfast.runtime.rows.aggregates import BoundAggregation, result_of, state_columns
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract import PUT
from holdfast.state.compiled.sources import Input, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.records import Step
from holdfast.state.tables.slab import UNLIMITED
from holdfast.state.tables.spec import ColumnSpec
from holdfast.state.tables.table import Table


@dataclass(frozen=True)
class Aggregate(KeyedStep):
    """Keep aggregates per key; at a barrier, emit the last values of the keys that changed in the epoch."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]

    kind: ClassVar[str] = "aggregate"
    keeps: ClassVar[str] = "aggregates per key"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return columns_read(self.keys, self.aggregations)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        return (TableDraft(KeyType.of(given[0].field(key) for key in self.keys), value_columns(self.aggregations)),)

    def identity(self, column: Description) -> dict[str, Any]:
        return aggregates_identity(self.keys, self.aggregations, column)

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        aggregate_changes.compare_aggregates(found, self.aggregations, before, now, in_windows=False)

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        return aggregate_changes.names(before)

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        return aggregate_changes.without(before, parts)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return aggregate_changes.continued(self.aggregations, before, columns)

    def text(self) -> str:
        return f"aggregate {self.operator} by {', '.join(self.keys)}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return AggregateOperator(self, ctx)


class AggregateOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Aggregate, ctx: OperatorContext) -> None:
        self._keys, self._ctx, self._name = step.keys, ctx, step.operator
        self._schema = pa.schema([*ctx.placed[0].schema, OP_FIELD])
        self._table = ctx.table(step.operator)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job)
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._folding.fold(self._table.spec.key.encode([batch.column(name) for name in self._keys]), batch)
        self.rows_in += batch.num_rows

    def on_barrier(self) -> None:
        if not self._ctx.wanted():
            return
        slots = self._table.changed()
        if slots.size:
            arrays = [*self._table.key_columns(slots), *self._folding.results(slots)]
            arrays.append(pa.array(np.full(slots.size, PUT, np.int8)))
            self.rows_out += slots.size
            self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._name, self.rows_in, self.rows_out, 0)


class Folding:
    """The aggregates of one table.

    Args:
        operator: Named in errors, with the job.
        also: Columns of state that every row sets, besides its aggregates.
    """

    def __init__(
        self,
        operator: str,
        aggregations: Sequence[BoundAggregation],
        table: Table,
        job: str | None,
        also: Sequence[str] = (),
    ) -> None:
        self._operator, self._table, self._job = operator, table, job
        self._parts: list[tuple[BoundAggregation, AggregateFunction, State]] = [
            (bound, bound.function, _State(table, bound.state)) for bound in aggregations
        ]
        self._columns = dict.fromkeys(bound.column for bound in aggregations)
        self._known: dict[str, Known] = {}
        """Per aggregate: the findings of its checks since the table's last load."""
        self._loads = -1
        self._read: list[_Read] = []
        steps: list[Step] = []
        self._singly: list[tuple[BoundAggregation, AggregateFunction, State]] = []
        """Functions without operations."""
        for part in self._parts:
            bound, function = part[:2]
            operations = function.operations({r: table.spec.column(name).dtype for r, name in bound.state.items()})
            if operations is None:
                self._singly.append(part)
                continue
            read = (bound.column, next((do.floating for do in operations.values() if do != Do.COUNT), None))
            if read not in self._read:
                self._read.append(read)
            steps += [(do, bound.state[role], self._read.index(read)) for role, do in operations.items()]
        merging = [(Do.ADD_INT if do == Do.COUNT else do, name, i) for i, (do, name, _) in enumerate(steps)]
        self._merged = [(name, np.dtype(np.float64 if do.floating else np.int64)) for do, name, _ in merging]
        """Columns of state that are merged by the operation that folds values, counts by addition; their types then."""
        self._merging = table.program(merging)
        steps += [(Do.SET, name, len(self._read) + i) for i, name in enumerate(also)]
        self._program = table.program(steps)

    def fold(self, keys: Keys, batch: pa.RecordBatch, also: Sequence[NDArray[np.int64]] = ()) -> Slots:
        """Take rows into the state of these keys, one per row; return their slots.

        Args:
            also: The values of the columns that every row sets.

        Raises:
            JobFailed: a sum does not fit, or a key or text is too large; nothing was changed.
        """
        found = _Found(self._table, keys)
        inputs = {name: _Input(None if name is None else batch.column(name), found) for name in self._columns}
        if self._singly or not self._table.complete:
            found.slots()  # rows loaded for new keys belong to what is checked
        if self._loads != self._table.loads:
            self._known, self._loads = {bound.value: Known() for bound, _, _ in self._parts}, self._table.loads
        for bound, function, state in self._parts:
            if not function.check(state, inputs[bound.column], self._known[bound.value]):
                raise self._too_large(bound)
        kept = [*(inputs[name].read(floating) for name, floating in self._read), *map(Input, also)]
        if found.found is None:
            return self._table.fold(keys, self._program, sources_of(kept))
        self._table.fold_at(found.found, self._program, sources_of(kept))
        for bound, function, state in self._singly:
            function.fold(state, inputs[bound.column])
        return found.found

    def merge(self, keys: Keys, other: Table, rows: Slots) -> None:
        """Merge rows of another table with these aggregates into this one, which is empty; one key per row.

        Raises:
            JobFailed: a sum does not fit, or a key or text is too large.
        """
        found = _Found(self._table, keys)
        if self._singly:
            found.slots()
        states = {bound.value: _Rows(other, bound.state, rows) for bound, _, _ in self._parts}
        for bound, function, state in self._parts:
            if not function.check(state, _Merged(found, bound.kind, states[bound.value]), Known(0)):
                raise self._too_large(bound)
        kept = [Input(other.values(name, rows).astype(dtype, copy=False)) for name, dtype in self._merged]
        if found.found is None:
            self._table.fold(keys, self._merging, sources_of(kept))
            return
        self._table.fold_at(found.found, self._merging, sources_of(kept))
        for bound, function, state in self._singly:
            function.merge(state, found.found, states[bound.value])

    def results(self, slots: Slots) -> list[pa.Array]:
        """Return the result columns of these slots."""
        return [result_of(bound, state, slots) for bound, _, state in self._parts]

    def _too_large(self, bound: BoundAggregation) -> JobFailed:
        return JobFailed(
            f"aggregate {bound.result.name} = {bound.kind}({bound.column!r}) of operator {self._operator!r} "
            "does not fit into 64 bits",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f'sum floats instead, with .with_columns({bound.column}=pl.col("{bound.column}")'
            ".cast(pl.Float64)) and a new operator name, or use a larger unit",
            where=Where(job=self._job, operator=self._operator),
        )


_Read = tuple[str | None, bool | None]
"""A column that a program reads, and whether as floats; None: only which values are null."""


class _Text:
    """A column of text or bytes of a table."""

    def __init__(self, table: Table, name: str) -> None:
        self._table, self._name = table, name

    def take(self, slots: pa.Array) -> pa.Array:
        return self._table.read(self._name, slots.to_numpy())

    def write(self, slots: Slots, values: pa.Array) -> None:
        self._table.write(slots, {self._name: values})

    def check(self, slots: Slots, values: pa.Array) -> None:
        self._table.check_sizes(slots, {self._name: values})


class _Swapped:
    """A plain column of a table that is larger than its memory: it is read by slots, and never as a whole."""

    size = UNLIMITED

    def __init__(self, table: Table, name: str) -> None:
        self._table, self._name, self.dtype = table, name, np.dtype(table.spec.column(name).dtype)

    def __getitem__(self, slots: Slots) -> NDArray[Any]:
        return self._table.values(self._name, slots)

    def take(self, slots: pa.Array) -> NDArray[Any]:
        return self[slots.to_numpy()]

    def check(self, slots: Slots, values: pa.Array) -> None:
        """Refuse nothing: values of fixed width always fit."""


class _State(Mapping[str, Any]):
    """The columns of state behind one aggregate, by role; each access takes a new view."""

    def __init__(self, table: Table, names: Mapping[str, str]) -> None:
        self._table, self._names = table, names

    def __getitem__(self, role: str) -> Any:
        name, table = self._names[role], self._table
        if not table.spec.column(name).plain:
            return _Text(table, name)
        return _Swapped(table, name) if table.limited else table.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Rows(Mapping[str, Any]):
    """The state of rows of a table behind one aggregate, by role."""

    def __init__(self, table: Table, names: Mapping[str, str], rows: Slots) -> None:
        self._table, self._names, self._rows = table, names, rows

    def __getitem__(self, role: str) -> Any:
        name = self._names[role]
        read = self._table.values if self._table.spec.column(name).plain else self._table.read
        return read(name, self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Found:
    """The slots of a batch, looked up only if a function asks for them before the fold."""

    def __init__(self, table: Table, keys: Keys) -> None:
        self._table, self._keys = table, keys
        self.found: Slots | None = None

    def slots(self) -> Slots:
        if self.found is None:
            self.found = self._table.slots(self._keys)
        return self.found


@dataclass(frozen=True)
class _Merged:
    """State that is merged, as values to check."""

    found: _Found
    role: str
    """Of the running value."""
    rows: _Rows

    @property
    def slots(self) -> Slots:
        return self.found.slots()

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        values: NDArray[Any] = self.rows[self.role]
        return values.astype(dtype, copy=False)

    def texts(self) -> pa.Array:
        """Return the values as they are."""
        return self.rows[self.role]


class _Input:
    """One column of a batch without its nulls, and the slots of the rows that are left; without a column, all rows."""

    def __init__(self, column: pa.Array | None, found: _Found) -> None:
        self._column, self._found = column, found
        self._rows: NDArray[np.int64] | None = None
        self._whole: dict[np.dtype[Any], NDArray[Any]] = {}
        if column is not None and column.null_count:
            self._rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))

    @property
    def slots(self) -> Slots:
        slots = self._found.slots()
        return slots if self._rows is None else slots[self._rows]

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        values = self._values(dtype)
        return values if self._rows is None else values[self._rows]

    def texts(self) -> pa.Array:
        """Return the values as they are."""
        assert self._column is not None
        return self._column if self._rows is None else self._column.take(pa.array(self._rows))

    def read(self, floating: bool | None) -> Input:
        """Return the column as kernels read it."""
        if floating is None:
            return Input(None, self._column)
        return Input(self._values(np.dtype(np.float64 if floating else np.int64)), self._column)

    def _values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values of all rows as this type; nulls have arbitrary ones."""
        if dtype not in self._whole:
            assert self._column is not None
            values = _numbers(self._column)
            # Integers wrap: a word of uint64 keeps its bits.
            self._whole[dtype] = values.astype(dtype, copy=False)
        return self._whole[dtype]


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return the values of a fixed-width column without a copy; nulls have arbitrary values."""
    kind = column.type
    dtype = np.dtype(f"i{kind.bit_width // 8}") if pa.types.is_temporal(kind) else np.dtype(kind.to_pandas_dtype())
    values: NDArray[Any] = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return values


# Shared with windows


def columns_read(keys: Sequence[str], aggregations: Sequence[BoundAggregation], *more: str) -> tuple[str, ...]:
    """Return the columns that aggregates read, each once: keys, others, inputs."""
    inputs = (bound.column for bound in aggregations if bound.column is not None)
    return tuple(dict.fromkeys((*keys, *more, *inputs)))


def value_columns(aggregations: Sequence[BoundAggregation]) -> tuple[ColumnSpec, ...]:
    """Return the columns of state behind aggregates."""
    return tuple(column for bound in aggregations for column in state_columns(bound))


def aggregates_text(aggregations: Sequence[BoundAggregation]) -> str:
    """Return aggregates as text for plans."""
    return ", ".join(f"{bound.result.name} = {bound.kind}({bound.column or ''})" for bound in aggregations)


def aggregates_identity(
    keys: Sequence[str], aggregations: Sequence[BoundAggregation], column: Description
) -> dict[str, Any]:
    """Return the identity of aggregates per key."""

    def aggregate(bound: BoundAggregation) -> dict[str, Any]:
        shown = {"name": bound.result.name, "function": bound.kind, "result": str(bound.result.type)}
        return shown | {"input": None if bound.column is None else column(bound.column)}

    return {"key": [column(name) for name in keys], "aggregates": [aggregate(bound) for bound in aggregations]}
