"""Keyed functions of whole batches: state is NumPy arrays with one element per key of the batch.

The function gets the number of the key of every row and, per value, one array by these numbers, which it changes in
place; it can be compiled, with Numba for example. The arrays are copies, so a failed call leaves no trace.

Invariants
    - Nothing is written before the function has returned and its rows fit.
    - A key that has neither value nor had one gets no row.

Pure, as far as the user's function is.
Source: docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import is_failure
from holdfast.runtime.functions.users.keyed_process import bound_to, declared_by
from holdfast.runtime.operators.contract import BATCHES, Description, Operator, OperatorContext, TableDraft
from holdfast.runtime.operators.differences import Found, compare_keys
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.process.changes import compare_states
from holdfast.runtime.operators.process.step import FunctionStep
from holdfast.runtime.rows.dead_letters import DeadLetter, encode_row, reported
from holdfast.runtime.rows.failing import NOT_THE_ROWS_FAULT, raised
from holdfast.runtime.rows.rows import WrongRow, batch_of_columns
from holdfast.runtime.rows.state_types import state_type
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.runtime.wire.vitals import FUNCTION
from holdfast.state.keys.batch import KeyType

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProcessBatches(FunctionStep):
    """Call a keyed function with batches of records."""

    kind: ClassVar[str] = "process_batches"
    keeps: ClassVar[str] = "the state of a keyed function of batches"
    shown: ClassVar[str] = "process batches"

    def depends_on_order(self) -> tuple[str, ...]:
        return (*super().depends_on_order(), BATCHES)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        columns = [state_type(name, value.type).column for name, value in declared_by(self.process).values.items()]
        return (TableDraft(KeyType.of(given[0].field(key) for key in self.keys), tuple(columns)),)

    def identity(self, column: Description) -> dict[str, Any]:
        return {"keeps": self.keeps, "key": [column(name) for name in self.keys], "states": self.states()}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        compare_states(found, before, now)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return {name: name for name in columns if name in before["states"]}

    def open(self, ctx: OperatorContext) -> Operator:
        return ProcessBatchesOperator(self, ctx)


class BatchValue:
    """`hf.Value` of a function of batches."""

    values: NDArray[Any]
    """By number of the key; 0 for a key without a value."""
    present: NDArray[np.bool_]
    """Whether the key has a value."""


class BatchContext:
    """The `ctx` of a function of batches."""

    def __init__(self) -> None:
        self.numbers: Rows = np.empty(0, np.int64)
        """The number of every row's key."""
        self.keys = 0
        """How many keys the batch has."""
        self._emitted: list[Any] = []

    def emit(self, columns: Any) -> None:
        """Emit rows of `to`: a pyarrow.RecordBatch, or a dict of equally long columns."""
        self._emitted.append(columns)

    def taken(self) -> list[Any]:
        """Return the rows emitted since the last call."""
        emitted, self._emitted = self._emitted, []
        return emitted


class ProcessBatchesOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: ProcessBatches, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._gives = step, ctx, ctx.placed[0].schema
        self.name, self.mark = step.operator, FUNCTION + step.operator
        self._table, self._pace = ctx.table(step.operator), ctx.time_slice.pace()
        self._kinds = {name: value.type for name, value in declared_by(step.process).values.items()}
        self._values = {name: BatchValue() for name in self._kinds}
        self._function, self._context = bound_to(step.process, self._values), BatchContext()
        self._looked_up = 0
        self.rows_in = self.rows_out = self.dropped = self.dlq = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.defer(self, batch, self._left_out)

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Handle rows from row `at` on; return their number and the rows emitted for them."""
        piece = batch.slice(at, self._pace.rows).select(self._step.columns)
        began = self._ctx.time_slice.now()
        outputs = self._handled(piece)
        self._pace.took(piece.num_rows, self._ctx.time_slice.now() - began)
        self.rows_in += piece.num_rows
        self.rows_out += sum(each.num_rows for each in outputs)
        return piece.num_rows, outputs

    def on_barrier(self) -> None:
        if drop_vacant(self._table, self._looked_up):
            self._looked_up = 0

    def progress(self) -> OperatorProgress:
        dlq = self.dlq if self._step.on_error == "dlq" else None
        return OperatorProgress(self.name, self.rows_in, self.rows_out, 0, dropped=self.dropped, dlq=dlq)

    def _handled(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        cause: BaseException
        try:
            return self._called(piece)
        except NOT_THE_ROWS_FAULT:
            raise
        except WrongRow as wrong:
            did, cause = f"emitted wrong rows: {wrong.what}", wrong
        except BaseException as error:
            if not is_failure(error):
                raise
            did, cause = raised(error, type(self._step.process).on_batch, __file__), error
        if piece.num_rows == 1 or self._step.on_error == "fail":
            self._leave_out(piece, did, cause)
            return []
        half = piece.num_rows // 2
        return [*self._handled(piece.slice(0, half)), *self._handled(piece.slice(half))]

    def _called(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Call the function, write the state, and return the emitted rows."""
        self._context.taken()
        size = len(self._table)
        slots = self._table.slots(self._table.spec.key.encode([piece.column(name) for name in self._step.keys]))
        self._looked_up += len(self._table) - size
        key_slots, self._context.numbers = np.unique(slots, return_inverse=True)
        self._context.keys = key_slots.size
        for name, value in self._values.items():
            self._load(value, self._table.read(name, key_slots), self._kinds[name])
        self._function.on_batch(self._context, piece)
        given = [self._fitting(columns) for columns in self._context.taken()]
        self._store(key_slots)
        return [batch for batch in given if batch.num_rows]

    def _load(self, value: BatchValue, stored: pa.Array, kind: type) -> None:
        value.present = stored.is_valid().to_numpy(zero_copy_only=False).copy()
        value.values = stored.fill_null(kind(0)).to_numpy(zero_copy_only=False).copy()

    def _store(self, slots: Rows) -> None:
        columns, present = {}, np.zeros(slots.size, bool)
        for name, value in self._values.items():
            if value.values.shape != slots.shape or value.present.shape != slots.shape:
                raise WrongRow(f"{name!r} has {value.values.size} values for {slots.size} keys")
            columns[name] = pa.array(value.values, mask=~value.present).cast(state_type(name, self._kinds[name]).arrow)
            present |= value.present
        gone = slots[~present]
        if gone.size:
            self._table.delete(gone)
            kept = pa.array(present)
            slots, columns = slots[present], {name: array.filter(kept) for name, array in columns.items()}
        if slots.size:
            self._table.touch(slots)
            self._table.write(slots, columns)

    def _fitting(self, columns: Any) -> pa.RecordBatch:
        if isinstance(columns, pa.RecordBatch):
            return batch_of_columns(self._gives, columns, columns.num_rows)
        if not isinstance(columns, Mapping):
            raise WrongRow(f"{type(columns).__name__} is neither a pyarrow.RecordBatch nor a dict of columns")
        return batch_of_columns(self._gives, columns, len(next(iter(columns.values()), ())))

    def _left_out(self, batch: pa.RecordBatch, row: int, base: int, did: str) -> None:
        """Leave a row out that is not given to the function."""
        self.rows_in += 1
        self._leave_out(batch.slice(row, 1).select(self._step.columns), did, None)

    def _leave_out(self, piece: pa.RecordBatch, did: str, cause: BaseException | None) -> None:
        step = self._step
        if step.on_error == "drop":
            self.dropped += 1
            return
        if step.on_error == "dlq":
            raw, error = encode_row(piece), reported(step.described(did))
            self._ctx.dead_letter(DeadLetter(self.name, self._ctx.origin.source, None, None, error, "row", raw))
            self.dlq += 1
            return
        raise step.failure(did, self._ctx.job) from cause
