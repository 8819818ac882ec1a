"""Aggregates over a table: input in whole batches, output of the keys changed in an epoch.

No work is done per record. Rows are mapped to slots once per batch; the functions (runtime/functions) then fold
whole columns. Columns without nulls are never masked. The states of functions without compiled operations are computed
before any state of the batch changes, and written afterwards.

Values loaded into the table make a bound on its sums unknown. A rollback keeps the bound valid, because it restores
sums for which the bound held.

Invariants
    - A value that does not fit its state fails the job before any state changes; no sum wraps.
    - A key's aggregates depend only on its rows (float sums: up to rounding), not on how they were batched.
    - Every slot touched since the last barrier is emitted once at the next.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.runtime.functions.adding import TOO_LARGE, USE_FLOATS
from holdfast.runtime.functions.aggregation import BoundAggregation, state_columns
from holdfast.runtime.functions.conditions import Condition, computed, masked
from holdfast.runtime.functions.contract import CannotFold, Groups, Known, Slots, State, stacked
from holdfast.runtime.functions.ranges import Runs, empty, over_ranges
from holdfast.runtime.operators.aggregates import changes
from holdfast.runtime.operators.aggregates.pieces import calls_users, in_pieces, results_in_pieces
from holdfast.runtime.operators.contract import (
    OP_FIELD,
    ROUNDING,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.operators.differences import Found, compare_keys
from holdfast.runtime.operators.time_slice import SlicePace, TimeSlice
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.runtime.wire.vitals import FUNCTION
from holdfast.sinks.contract.target import PUT
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.records import Step
from holdfast.state.tables.slab import UNLIMITED
from holdfast.state.tables.spec import Columns, ColumnSpec
from holdfast.state.tables.table import StateTable
from holdfast.state.tables.values import concatenated, differ, sliced, taken

T = TypeVar("T")


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
        changes.compare_aggregates(found, self.aggregations, before, now, in_windows=False)

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        return changes.names(before)

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        return changes.without(before, parts)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return changes.continued(self.aggregations, before, columns)

    def depends_on_order(self) -> tuple[str, ...]:
        return order_matters(self.aggregations)

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,) if any(bound.kind.calls for bound in self.aggregations) else ()

    def text(self) -> str:
        return f"aggregate {self.operator} by {', '.join(self.keys)}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return AggregateOperator(self, ctx)


def order_matters(aggregations: Sequence[BoundAggregation]) -> tuple[str, ...]:
    """Return what of the results of aggregates depends on the order of the rows, as Step.depends_on_order does."""
    causes = []
    if any(bound.kind.calls for bound in aggregations):
        causes.append("functions of the user")
    if any(_adds_floats(bound) for bound in aggregations):
        causes.append(ROUNDING)
    return tuple(causes)


def _adds_floats(bound: BoundAggregation) -> bool:
    operations = bound.function.operations
    if operations is None:
        return bool(pa.types.is_floating(bound.result.type))
    return Do.ADD_FLOAT in operations.values()


class AggregateOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Aggregate, ctx: OperatorContext) -> None:
        self._keys, self._ctx, self._name = step.keys, ctx, step.operator
        self._schema = pa.schema([*ctx.placed[0].schema, OP_FIELD])
        self._table = ctx.table(step.operator)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job, time_slice=ctx.time_slice)
        self._taken = in_pieces(ctx, step.operator, step.aggregations, self._take)
        self._give = results_in_pieces(ctx, step.operator, step.aggregations)
        self.rows_in = self.rows_out = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._taken(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        self._folding.fold(self._table.spec.key.encode([batch.column(name) for name in self._keys]), batch)
        self.rows_in += batch.num_rows

    def on_barrier(self) -> None:
        if not self._ctx.wanted():
            return
        slots = self._table.changed()
        if slots.size:
            self._give(self._results(slots))

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._name, self.rows_in, self.rows_out, 0)

    def _results(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        for part, results in self._folding.each_piece(slots):
            arrays = [*self._table.key_columns(part), *results, pa.array(np.full(part.size, PUT, np.int8))]
            self.rows_out += part.size
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class Folding:
    """The aggregates of one table.

    Functions of the user that return results or merge are called for a few keys at a time, by a `SlicePace`, and the
    worker is marked each time. An operator asks for few results at a time, too (pieces.py).

    Args:
        operator: Named in errors, with the job.
        also: Columns of state that every row sets, besides its aggregates.
        shown: Aggregates as errors name them, where they are parts of those that the user gave.
    """

    def __init__(
        self,
        operator: str,
        aggregations: Sequence[BoundAggregation],
        table: StateTable,
        job: str | None,
        also: Sequence[str] = (),
        time_slice: TimeSlice | None = None,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        self._operator, self._table, self._job, self._shown = operator, table, job, shown or {}
        self._time_slice = time_slice or TimeSlice()
        self._paces = self._time_slice.pace(1), self._time_slice.pace(1)
        """The pace of functions that return results, and of functions that merge."""
        self._calls = calls_users(aggregations)
        self._aggregations = tuple(aggregations)
        self._conditions = tuple(dict.fromkeys(each.condition for each in aggregations if each.condition is not None))
        self._known: dict[str, Known] = {}
        """Per aggregate: the findings of its checks since the table's last load."""
        self._loads = -1
        program_aggregations = [each for each in aggregations if each.function.operations is not None]
        self._checked = [(each, _column_of(each), _State(table, each.state)) for each in program_aggregations]
        self._singly = [each for each in aggregations if each.function.operations is None]
        self._read: list[_Read] = []
        steps: list[Step] = []
        for aggregation in program_aggregations:
            operations = aggregation.function.operations or {}
            read = (_column_of(aggregation), next((do.floating for do in operations.values() if do != Do.COUNT), None))
            if read not in self._read:
                self._read.append(read)
            steps += [(do, aggregation.state[role], self._read.index(read)) for role, do in operations.items()]
        self._merging = table.merging(steps)
        self.merges = None if self._singly else {name: do.merging for do, name, _ in steps}
        """The operation that merges every column of state; None if functions without operations are among them."""
        steps += [(Do.SET, name, len(self._read) + i) for i, name in enumerate(also)]
        self._program = table.program(steps)

    def fold(self, keys: Keys, batch: pa.RecordBatch, also: Sequence[NDArray[np.int64]] = ()) -> Slots:
        """Take rows into the state of these keys, one per row; return their slots.

        Args:
            also: The values of the columns that every row sets.

        Raises:
            JobFailed: a value does not fit, a key or text is too large, or a condition cannot be computed; nothing was
                changed.
        """
        lookup = _Found(self._table, keys)
        inputs = _Inputs(batch, self._true(batch), lookup)
        if self._singly:
            lookup.slots()
        if self._loads != self._table.loads:
            self._known, self._loads = (
                {aggregation.name: Known() for aggregation, _, _ in self._checked},
                self._table.loads,
            )
        for aggregation, column, state in self._checked:
            if not aggregation.function.check(state, inputs.of(column), self._known[aggregation.name]):
                raise self._failed(aggregation, TOO_LARGE, USE_FLOATS, self._known[aggregation.name].beyond)
        state_changes = [self._changes(aggregation, inputs) for aggregation in self._singly]
        kept = [*(inputs.of(column).read(floating) for column, floating in self._read), *map(KernelInput, also)]
        if lookup.found is None:
            return self._table.fold(keys, self._program, sources_of(kept))
        self._table.fold_at(lookup.found, self._program, sources_of(kept))
        for slots, columns in state_changes:
            self._table.write(slots, columns)
        return lookup.found

    def combined(self, slots: Slots, groups: Groups, count: int) -> list[State]:
        """Return, per aggregate, the states of slots merged by group; the slots stay as they are.

        Args:
            groups: The group of every slot, 0 to count - 1.

        Raises:
            JobFailed: a merged state does not fit.
        """
        states, merged = list[State](), self._table.merged(self._merging, slots, groups, count)
        for aggregation in self._aggregations:
            if merged is not None and aggregation.function.operations is not None:
                states.append(_state_of(aggregation, merged))
                continue
            try:  # where a sum left 64 bits on the way, `combine` finds whether the whole sum fits
                states.append(self._combined(aggregation, self._held(aggregation, slots), groups, count))
            except CannotFold as error:
                first = {} if error.group is None else {error.group: int(slots[np.argmax(groups == error.group)])}
                raise self._cannot(aggregation, error, first) from error
        return states

    def values_of(self, slots: Slots, numbers: Groups, count: int) -> Columns:
        """Return the columns that operations fold, by the number of each slot; defaults for numbers without a slot.

        Args:
            numbers: The number of each slot, 0 to count - 1; each occurs once.
        """
        columns = self._table.merged(self._merging, slots, numbers, count)
        assert columns is not None, "a number has several slots"
        return columns

    def states_of(self, columns: Columns) -> list[State]:
        """Return, per aggregate, the states in columns that operations fold; all functions must have operations."""
        return [_state_of(bound, columns) for bound in self._aggregations]

    def over(self, slots: Slots, runs: Runs) -> list[State]:
        """Return, per aggregate, the merged states of runs of slots; the slots stay as they are.

        Raises:
            JobFailed: a merged state does not fit.
        """
        return [self._over(bound, self._held(bound, slots), runs) for bound in self._aggregations]

    def running(self, batch: pa.RecordBatch, own: Slots, runs: Runs) -> list[pa.Array]:
        """Return the result columns of runs of rows after the states of slots, and change nothing.

        Args:
            own: The slots; the states of the batch's rows come after theirs.

        Raises:
            JobFailed: a value does not fit, or a condition cannot be computed.
        """
        return self.results_of([self._over(bound, states, runs) for bound, states in self._behind(batch, own)])

    def together(self, batch: pa.RecordBatch, own: Slots, groups: Groups, count: int) -> list[pa.Array]:
        """Return the result columns of the states of slots and of rows merged by group, and change nothing.

        Args:
            own: The slots; the states of the batch's rows come after theirs.
            groups: The group of every state, 0 to count - 1.

        Raises:
            JobFailed: a value does not fit, or a condition cannot be computed.
        """
        combined_states = []
        for aggregation, states in self._behind(batch, own):
            try:
                combined_states.append(self._combined(aggregation, states, groups, count))
            except CannotFold as error:
                raise self._cannot(aggregation, error, None) from error
        return self.results_of(combined_states)

    def _behind(self, batch: pa.RecordBatch, own: Slots) -> Iterator[tuple[BoundAggregation, State]]:
        """Yield every aggregate with the states of slots, and then of single rows."""
        inputs = _Inputs(batch, self._true(batch), None)
        for aggregation in self._aggregations:
            slot_states = self._held(aggregation, own)
            try:
                single = inputs.single(aggregation, empty(aggregation.function, slot_states, batch.num_rows))
            except CannotFold as error:
                raise self._cannot(aggregation, error, None) from error
            yield aggregation, stacked(slot_states, single)

    def _over(self, bound: BoundAggregation, states: State, runs: Runs) -> State:
        try:
            return over_ranges(bound.function, states, runs)
        except CannotFold as error:
            raise self._cannot(bound, error, None) from error

    def forget(self) -> None:
        """Forget the results of checks on the sums in the table: an operation other than a fold wrote some."""
        self._loads = -1

    def stored(self, states: Sequence[State]) -> Columns:
        """Return merged states as columns of a table."""
        pairs = zip(self._aggregations, states, strict=True)
        return {name: values for bound, each in pairs for name, values in self._named(bound, each).items()}

    def results_of(self, states: Sequence[State]) -> list[pa.Array]:
        """Return the result columns of merged states. Raises JobFailed: a function of the user failed."""
        return [self._result(bound, each) for bound, each in zip(self._aggregations, states, strict=True)]

    def results(self, slots: Slots) -> list[pa.Array]:
        """Return the result columns of these slots.

        Raises:
            JobFailed: a function of the user failed.
        """
        return [self._result(bound, self._held(bound, slots), slots) for bound in self._aggregations]

    def each_piece(self, slots: Slots) -> Iterator[tuple[Slots, list[pa.Array]]]:
        """Yield the result columns of these slots, of as many at a time as a turn should ask for.

        Raises:
            JobFailed: a function of the user failed.
        """
        first = 0
        while first < slots.size:
            part = slots[first : first + self.at_once()]
            yield part, self.results(part)
            first += part.size

    def at_once(self, *, merged: bool = False) -> int:
        """Return for how many keys a turn should ask together: few if functions of the user are called.

        Args:
            merged: Whether states are merged before.
        """
        return min(KEYS_MAX, *(pace.rows for pace in self._paces[: 1 + merged])) if self._calls else UNLIMITED

    def _result(self, bound: BoundAggregation, states: State, slots: Slots | None = None) -> pa.Array:
        try:
            if not bound.kind.calls:
                return bound.function.results(states)
            count, function = len(next(iter(states.values()))), bound.function
            parts = self._in_pieces(
                count, self._paces[0], lambda first, end: function.results(_part(states, first, end))
            )
            return pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
        except CannotFold as error:
            raise self._cannot(bound, error, slots) from error

    def _combined(self, bound: BoundAggregation, states: State, groups: Groups, count: int) -> State:
        if not bound.kind.calls:
            return bound.function.combine(states, groups, count)
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(count + 1))

        def merged(first: int, end: int) -> State:
            rows = order[bounds[first] : bounds[end]]
            part = {role: taken(values, rows) for role, values in states.items()}
            return bound.function.combine(part, groups[rows] - first, end - first)

        parts = self._in_pieces(count, self._paces[1], merged)
        return {role: concatenated([part[role] for part in parts]) for role in states} if len(parts) > 1 else parts[0]

    def _in_pieces(self, count: int, pace: SlicePace, call: Callable[[int, int], T]) -> list[T]:
        """Call functions of the user for few groups at a time; return the results of the calls for [first, end)."""
        results, first = list[T](), 0
        while not results or first < count:
            end, began = min(first + pace.rows, count), self._time_slice.now()
            try:
                with self._time_slice.calling(self._operator, FUNCTION + self._operator):
                    results.append(call(first, end))
            except CannotFold as error:
                raise CannotFold(
                    error.what, error.next_step, None if error.group is None else error.group + first
                ) from error
            pace.took(end - first, self._time_slice.now() - began)
            first = end
        return results

    def _true(self, batch: pa.RecordBatch) -> Mapping[Condition, pa.Array]:
        if not self._conditions:
            return {}
        try:
            return computed(self._conditions, batch)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise JobFailed(
                f"a filter= of the aggregates of operator {self._operator!r} cannot be computed: {error}",
                not_done=NOT_DONE,
                next_step="make the expression take every value, for example with cast(..., strict=False); then run "
                "the job again, which resumes from the last checkpoint",
                where=Where(job=self._job, operator=self._operator),
            ) from error

    def _changes(self, bound: BoundAggregation, inputs: _Inputs) -> tuple[Slots, Columns]:
        """Return the slots whose state changes, and their new state; nothing is written yet.

        The bytes of an overwritten value stay in the arena of values, so unchanged values are not written.
        """
        rows, columns = inputs.complete(bound)
        slots = inputs.slots() if rows is None else inputs.slots()[rows]
        own = distinct(slots)
        states_before = self._held(bound, own)
        try:
            states = (
                bound.function.fold(states_before, columns, np.searchsorted(own, slots)) if own.size else states_before
            )
        except CannotFold as error:
            raise self._cannot(bound, error, own) from error
        changed_slots = np.flatnonzero(
            np.logical_or.reduce([differ(states_before[role], states[role]) for role in states_before])
        )
        new = self._named(bound, {role: taken(values, changed_slots) for role, values in states.items()})
        self._table.check_sizes(own[changed_slots], new)
        return own[changed_slots], new

    def _held(self, bound: BoundAggregation, slots: Slots) -> State:
        """Return the states of slots, a copy."""
        return {role: _values_at(self._table, name, slots) for role, name in bound.state.items()}

    def _named(self, bound: BoundAggregation, states: State) -> Columns:
        return {bound.state[role]: values for role, values in states.items()}

    def _cannot(self, bound: BoundAggregation, error: CannotFold, slots: Mapping[int, int] | Slots | None) -> JobFailed:
        """Return the failure; `slots` gives a slot of each group, None if they are in no table."""
        slot = None if error.group is None or slots is None else int(slots[error.group])
        return self._failed(bound, error.what, error.next_step, slot)

    def _failed(self, bound: BoundAggregation, what: str, next_step: str, slot: int | None = None) -> JobFailed:
        key = "" if slot is None else f" for the key {self._key_text(slot)}"
        shown = self._shown.get(bound.name, f"{bound.name} = {bound}")
        return JobFailed(
            f"aggregate {shown} of operator {self._operator!r} {what}{key}",
            not_done=NOT_DONE,
            next_step=next_step,
            where=Where(job=self._job, operator=self._operator),
        )

    def _key_text(self, slot: int) -> str:
        key = ", ".join(str(column[0].as_py()) for column in self._table.key_columns(np.array([slot])))
        return repr(key if len(key) <= KEY_SHOWN else f"{key[:KEY_SHOWN]}...")


NOT_DONE = "the epoch was not completed; state and output stay as of the last checkpoint"
KEYS_MAX = 1_024
"""Keys for which functions of the user are asked together at most, as they may become slow after many fast calls."""
KEY_SHOWN = 60
"""Characters of a key in messages."""
_Column = tuple[str | None, Condition | None]
"""A column of a batch, or none, where a condition is true."""
_Read = tuple[_Column, bool | None]
"""A column that a program reads, and whether as floats; None: only which values are null."""


def _column_of(bound: BoundAggregation) -> _Column:
    """Return the column that a function with operations reads."""
    return (bound.columns[0] if bound.columns else None), bound.condition


def _values_at(table: StateTable, name: str, slots: Slots) -> Any:
    """Return the values of a column at slots, a copy."""
    if not table.spec.column(name).plain:
        return table.read(name, slots)
    return table.values(name, slots) if table.limited else table.column(name)[slots]


def _part(states: State, first: int, end: int) -> State:
    """Return the states of groups [first, end), not copied."""
    return {role: sliced(values, first, end) for role, values in states.items()}


def _state_of(bound: BoundAggregation, columns: Columns) -> State:
    return {role: columns[name] for role, name in bound.state.items()}


class _Swapped:
    """A plain column of a table that is larger than its memory: it is read by slots, and never as a whole."""

    size = UNLIMITED

    def __init__(self, table: StateTable, name: str) -> None:
        self._table, self._name = table, name

    def __getitem__(self, slots: Slots) -> NDArray[Any]:
        return self._table.values(self._name, slots)


class _State(Mapping[str, Any]):
    """The plain columns of state behind one aggregate, by role; each access takes a new view."""

    def __init__(self, table: StateTable, names: Mapping[str, str]) -> None:
        self._table, self._names = table, names

    def __getitem__(self, role: str) -> Any:
        name, table = self._names[role], self._table
        return _Swapped(table, name) if table.limited else table.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Found:
    """The slots of a batch, looked up only if a function asks for them before the fold."""

    def __init__(self, table: StateTable, keys: Keys) -> None:
        self._table, self._keys = table, keys
        self.found: Slots | None = None

    def slots(self) -> Slots:
        if self.found is None:
            self.found = self._table.slots(self._keys)
        return self.found


class _Inputs:
    """The columns of a batch as aggregates read them."""

    def __init__(self, batch: pa.RecordBatch, true: Mapping[Condition, pa.Array], found: _Found | None) -> None:
        self._batch, self._true, self._found = batch, true, found
        self._inputs: dict[_Column, _Input] = {}

    def of(self, column: _Column) -> _Input:
        """Return one column where its condition is true."""
        if column not in self._inputs:
            self._inputs[column] = _Input(self._array(column), self._found)
        return self._inputs[column]

    def complete(self, bound: BoundAggregation) -> tuple[NDArray[np.int64] | None, list[pa.Array]]:
        """Return the rows in which an aggregate has all of its inputs, None for all rows; and its inputs there."""
        if bound.function.takes_nulls:
            return self._true_rows(bound)
        arrays = [self._array((bound.columns[0], bound.condition)), *map(self._batch.column, bound.columns[1:])]
        if not any(array.null_count for array in arrays):
            return None, arrays
        valid = np.logical_and.reduce([array.is_valid().to_numpy(zero_copy_only=False) for array in arrays])
        rows = np.flatnonzero(valid)
        return rows, [array.take(pa.array(rows)) for array in arrays]

    def _true_rows(self, bound: BoundAggregation) -> tuple[NDArray[np.int64] | None, list[pa.Array]]:
        arrays = [self._batch.column(name) for name in bound.columns]
        if bound.condition is None:
            return None, arrays
        rows = np.flatnonzero(self._true[bound.condition].to_numpy(zero_copy_only=False))
        return rows, [array.take(pa.array(rows)) for array in arrays]

    def single(self, bound: BoundAggregation, states: State) -> State:
        """Return the state of every row alone, given as many states without any value."""
        operations = bound.function.operations
        if operations is None:
            rows, columns = self.complete(bound)
            rows = np.arange(self._batch.num_rows) if rows is None else rows
            return bound.function.fold(states, columns, rows) if rows.size else states
        given = self.of(_column_of(bound))
        return {role: given.single(do, states[role]) for role, do in operations.items()}

    def slots(self) -> Slots:
        """Return the slot of every row."""
        assert self._found is not None
        return self._found.slots()

    def _array(self, column: _Column) -> pa.Array | None:
        name, condition = column
        array = None if name is None else self._batch.column(name)
        return array if condition is None else masked(array, self._true[condition])


class _Input:
    """One column of a batch without its nulls, and the slots of the rows that are left; without a column, all rows."""

    def __init__(self, column: pa.Array | None, found: _Found | None) -> None:
        self._column, self._found = column, found
        self._rows: NDArray[np.int64] | None = None
        self._whole: dict[np.dtype[Any], NDArray[Any]] = {}
        if column is not None and column.null_count:
            self._rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))

    @property
    def slots(self) -> Slots:
        assert self._found is not None
        slots = self._found.slots()
        return slots if self._rows is None else slots[self._rows]

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        values = self._values(dtype)
        return values if self._rows is None else values[self._rows]

    def single(self, do: Do, states: NDArray[Any]) -> NDArray[Any]:
        """Return one column of the states of single rows, given as many states without any value."""
        rows = slice(None) if self._rows is None else self._rows
        single = states.copy()
        single[rows] = 1 if do == Do.COUNT else self.values(np.dtype(np.float64 if do.floating else np.int64))
        return single

    def read(self, floating: bool | None) -> KernelInput:
        """Return the column as kernels read it."""
        if floating is None:
            return KernelInput(None, self._column)
        return KernelInput(self._values(np.dtype(np.float64 if floating else np.int64)), self._column)

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
    return tuple(dict.fromkeys((*keys, *more, *(name for bound in aggregations for name in bound.reads))))


def value_columns(aggregations: Sequence[BoundAggregation]) -> tuple[ColumnSpec, ...]:
    """Return the columns of state behind aggregates."""
    return tuple(column for bound in aggregations for column in state_columns(bound))


def aggregates_text(aggregations: Sequence[BoundAggregation]) -> str:
    """Return aggregates as text for plans."""
    return ", ".join(f"{bound.name} = {bound}" for bound in aggregations)


def aggregates_identity(
    keys: Sequence[str], aggregations: Sequence[BoundAggregation], column: Description
) -> dict[str, Any]:
    """Return the identity of aggregates per key."""
    return {
        "key": [column(name) for name in keys],
        "aggregates": [changes.described(bound, column) for bound in aggregations],
    }
