"""Aggregates of the user's own over whole batches: `hf.Aggregate(..., batches=True)`.

The functions take and return record batches with one row per state, so no Python runs per row. State is the same as
that of functions per row (custom.py), column by column.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.functions.contract import AggregateFunction, CannotFold, Groups, State, StateColumn
from holdfast.runtime.functions.types import loaded, stored
from holdfast.runtime.functions.users.user_code import CORRECT_IT, ROWS, UserCode, called, state_of
from holdfast.runtime.rows.rows import WrongRow, batch_of_columns, batch_of_rows


@dataclass(frozen=True)
class BatchFunction(AggregateFunction):
    """Calls the functions with the states of all keys of a batch.

    Args:
        rows: The columns of a row.
    """

    functions: UserCode
    rows: pa.Schema

    takes_nulls: ClassVar[bool] = True

    @property
    def result(self) -> pa.DataType:
        return self.functions.gives.type

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return self.functions.columns

    def fold(self, held: State, inputs: Sequence[pa.Array], groups: Groups) -> State:
        batch, count = pa.RecordBatch.from_arrays(list(inputs), schema=self.rows), len(held[ROWS])
        states = self._states(state_of(self.functions.add, None, "", self._batch(held), batch, groups), count)
        return self._stored(states, held[ROWS] + np.bincount(groups, minlength=count))

    def combine(self, states: State, groups: Groups, count: int) -> State:
        """Merge in rounds: each takes the next state of every group that has one left."""
        input_batch, some = self._batch(states), np.flatnonzero(states[ROWS])
        order = some[np.argsort(groups[some], kind="stable")]
        of = groups[order]
        ranks = np.arange(of.size) - np.searchsorted(of, of)
        merged_batch = self._start().take(pa.array(np.zeros(count, np.int64)))
        for rank in range(int(ranks.max(initial=-1)) + 1):
            rows, targets = order[ranks == rank], of[ranks == rank]
            new = input_batch.take(pa.array(rows))
            if rank:
                held = merged_batch.take(pa.array(targets))
                new = self._states(state_of(self.functions.merge, None, "", held, new), targets.size)
            at = np.arange(count)
            at[targets] = count + np.arange(targets.size)
            merged_batch = pa.concat_batches([merged_batch, new]).take(pa.array(at))
        total = np.zeros(count, np.int64)
        np.add.at(total, groups, states[ROWS])
        return self._stored(merged_batch, total)

    def results(self, states: State) -> pa.Array:
        given, count = self._batch(states), len(states[ROWS])
        found = called(self.functions.result, None, "", given)
        return self._fitting(
            pa.schema([self.functions.gives]), {self.functions.gives.name: found}, count, "given"
        ).column(0)

    def _batch(self, states: State) -> pa.RecordBatch:
        """Return states as the user's functions take them; those of keys without rows as `init()` is."""
        schema, start = self.functions.schema, self._start()
        some = pa.array(states[ROWS] > 0)
        arrays = []
        for field, first in zip(schema, start.columns, strict=True):
            values = loaded(states[field.name], field.type)
            kept = some if field.nullable else pc.and_(some, values.is_valid())
            arrays.append(pc.if_else(kept, values, first[0]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _start(self) -> pa.RecordBatch:
        return batch_of_rows(self.functions.schema, [self.functions.start()])

    def _states(self, given: Any, count: int) -> pa.RecordBatch:
        return self._fitting(self.functions.schema, given, count, "kept")

    def _fitting(self, schema: pa.Schema, given: Any, count: int, what: str) -> pa.RecordBatch:
        try:
            if not isinstance(given, pa.RecordBatch | Mapping):
                raise WrongRow(f"{type(given).__name__} is not a pyarrow.RecordBatch")
            return batch_of_columns(schema, given, count)
        except WrongRow as wrong:
            raise CannotFold(f"cannot be {what}: {wrong.what}", CORRECT_IT, wrong.row) from wrong

    def _stored(self, states: pa.RecordBatch, rows: Any) -> State:
        some = pa.array(rows > 0)
        columns = zip(states.schema.names, states.columns, strict=True)
        return {ROWS: rows, **{name: stored(pc.if_else(some, of, pa.scalar(None, of.type))) for name, of in columns}}
