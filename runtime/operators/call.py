"""Python functions over the rows of a stream.

The function is called row by row; all other work is done for many rows together. A batch is processed in pieces of at
most `PIECE_ROWS`, so that a function that returns many rows for one does not fill the memory. A piece is interrupted
when the turn is over; `backlog.py` resumes it. For `map_batches`, `SlicePace` sets the number of rows in a piece.

With on_error="fail" the first failure ends the job; the epoch is never completed, so state and output stay as they
were. With on_error="drop" a row whose call fails is left out and counted, and so is a returned row that does not fit
the columns. `map_batches` finds these rows by calling the function again with halves of the batch. With on_error="dlq"
the input row becomes a dead letter, and none of the rows returned for it are emitted.

Invariants
    - Rows leave in the order of the rows that they were computed from.
    - The output has exactly the columns of the plan: no other type, no null in a column that allows none.
    - Which rows are dropped or become dead letters depends on the rows, never on how they were batched.

Pure, as far as the user's function is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import accumulate, chain, islice
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import JobFailed, Where, is_failure
from holdfast.runtime.operators.contract import BATCHES, Function, Operator, OperatorContext, Step
from holdfast.runtime.operators.time_slice import LOOK_AFTER_MAX
from holdfast.runtime.rows.dead_letters import DeadLetter, Form, OnError, encode_row, reported
from holdfast.runtime.rows.expressions import Use, narrowed
from holdfast.runtime.rows.failing import NOT_THE_ROWS_FAULT, raised
from holdfast.runtime.rows.forms import code_hash, code_of, name_of
from holdfast.runtime.rows.row_types import RowMaker
from holdfast.runtime.rows.rows import WrongRow, batch_of_columns, batch_of_rows
from holdfast.runtime.rows.schema import columns_shown, limited
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.runtime.wire.vitals import FUNCTION

PIECE_ROWS = 4_096

How = Literal["map", "flat_map", "filter", "map_batches"]


@dataclass(frozen=True, eq=False)
class Call(Step):
    """Call a Python function with every row, or (`map_batches`) with every batch. Append streams only."""

    how: How
    function: Callable[[Any], Any]
    row_type: type | None
    """The class of the rows passed to the function; None is `hf.Row`."""
    on_error: OnError
    operator: str
    """The name under which rows are counted; unlike an aggregate's name, it identifies no stored state."""
    use: Use
    to: type | None = None
    """The dataclass that the returned rows are to fit."""

    kind: ClassVar[str] = "call"
    row_wise: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.operator

    @property
    def counted_as(self) -> str:
        return "function" if self.how == "map" else "filter"

    @property
    def one_to_one(self) -> bool:
        return self.how == "map" and self.on_error == "fail"

    def handed_on(self, name: str) -> str | None:
        return name if self.how == "filter" else None

    def text(self) -> str:
        called = f"{self.how} {name_of(self.function)}"
        return called if self.on_error == "fail" else f"{called}, on error: {self.on_error}"

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        function_name = name_of(self.function)
        return {
            "step": self.how,
            "function": function_name,
            "code": code_hash(self.function),
            "on_error": self.on_error,
            "columns": columns_shown(schema),
            "text": f"{self.how} {function_name}",
        }

    def code(self) -> list[str]:
        return [self.on_error, code_of(self.function)]

    def depends_on_order(self) -> tuple[str, ...]:
        return (BATCHES,) if self.how == "map_batches" else ()

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,)

    def leaves_out(self) -> bool:
        return self.on_error != "fail"

    def rebound(self, other: Callable[[Function], Function]) -> Call:
        return replace(self, function=other(self.function))

    def open(self, ctx: OperatorContext) -> Operator:
        return FunctionOperator(self, ctx)


class FunctionOperator(Operator):
    """Calls the function; its owner lets it work on its rows piece by piece."""

    def __init__(self, call: Call, ctx: OperatorContext) -> None:
        self._call, self._given, self._gives = call, ctx.given, ctx.placed[0].schema
        self._ctx, self._origin, self._arrival, self._time_slice = ctx, ctx.origin, ctx.arrival, ctx.time_slice
        self._limited = limited(call.to, self._gives)
        self._rows = None if call.how == "map_batches" else RowMaker(ctx.given, call.row_type)
        self._function = self._listed if call.how == "flat_map" else call.function
        self._piece_rows, self._pace = PIECE_ROWS, ctx.time_slice.pace()
        self._at = self._base = 0
        """Where the current piece begins in its batch, and the batch in the fragment's input."""
        self._batch: pa.RecordBatch | None = None
        """The current batch."""
        self.name, self.mark = call.operator, FUNCTION + call.operator
        self.rows_in = self.rows_out = self.dropped = self.dlq = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.defer(self, batch, self._left_out)

    def progress(self) -> OperatorProgress:
        """Return the counts of rows taken, emitted and left out since the deployment."""
        dlq = self.dlq if self._call.on_error == "dlq" else None
        return OperatorProgress(self.name, self.rows_in, self.rows_out, 0, dropped=self.dropped, dlq=dlq)

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Process rows from row `at`; return how many, at least one, and their results.

        Args:
            base: The number of row 0 among the fragment's input records, if rows and records correspond.

        Raises:
            JobFailed: the function raised an error or returned an unfit value, and on_error is "fail".
        """
        self._batch, self._at, self._base = batch, at, base
        row_count, parts = self._whole() if self._rows is None else self._piece()
        parts = [part for part in parts if part.num_rows]
        self.rows_in += row_count
        self.rows_out += sum(part.num_rows for part in parts)
        return row_count, parts

    def _whole(self) -> tuple[int, list[pa.RecordBatch]]:
        assert self._batch is not None
        piece = self._batch.slice(self._at, self._pace.rows)
        given = pa.RecordBatch.from_arrays([piece.column(name) for name in self._given.names], schema=self._given)
        began = self._time_slice.now()
        parts = self._mapped_whole(given, 0)
        self._pace.took(piece.num_rows, self._time_slice.now() - began)
        return piece.num_rows, parts

    def _piece(self) -> tuple[int, list[pa.RecordBatch]]:
        assert self._batch is not None
        piece = self._batch.slice(self._at, self._piece_rows)
        results, numbers, row_count = self._called(piece)
        # Make few rows for a slow function: rows left over would have to be made again in the next turn.
        self._piece_rows = min(2 * self._piece_rows, PIECE_ROWS) if row_count == piece.num_rows else row_count
        match self._call.how:
            case "filter":
                return row_count, [self._kept(piece.slice(0, row_count), results, numbers)]
            case "map" | "flat_map" if self._call.on_error == "dlq":
                given = results if self._call.how == "flat_map" else [[result] for result in results]
                return row_count, self._all_fitting(given, numbers)
            case "flat_map":
                bounds = list(accumulate(map(len, results)))
                return row_count, self._fitting(list(chain.from_iterable(results)), bounds)
            case _:
                return row_count, self._fitting(results, None)

    def _called(self, piece: pa.RecordBatch) -> tuple[list[Any], Sequence[int], int]:
        """Return the function's results, the rows of the piece they are for, and how many rows were processed."""
        function, results, left_out = self._function, list[Any](), set[int]()
        look = 1
        made, number, before, over = iter(self._made(piece, left_out)), -1, -2, False
        while number != before and not over:
            before = number
            for number, row in islice(made, look):
                try:
                    results.append(function(row))
                except NOT_THE_ROWS_FAULT:
                    raise
                except WrongRow as wrong:
                    self._drop_or_fail(1, number, f"returned {wrong.what}", wrong)
                    left_out.add(number)
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    self._drop_or_fail(1, number, raised(error, self._call.function, __file__), error)
                    left_out.add(number)
            over, look = self._time_slice.overdue(), min(2 * look, LOOK_AFTER_MAX)
        # If nothing more was made, the last rows are among those left out.
        done = piece.num_rows if number == before else number + 1
        return results, [n for n in range(done) if n not in left_out] if left_out else range(done), done

    def _made(self, piece: pa.RecordBatch, left_out: set[int]) -> Iterable[tuple[int, Any]]:
        """Make the rows; an error of the dataclass counts as an error of the function."""
        assert self._rows is not None
        try:
            return enumerate(list(self._rows.rows(piece)))
        except NOT_THE_ROWS_FAULT:
            raise
        except BaseException as error:  # one by one, to find the row at fault
            if not is_failure(error):
                raise
            return self._made_singly(piece, left_out)

    def _made_singly(self, piece: pa.RecordBatch, left_out: set[int]) -> Iterator[tuple[int, Any]]:
        assert self._rows is not None
        for number in range(piece.num_rows):
            try:
                row = next(self._rows.rows(piece.slice(number, 1)))
            except NOT_THE_ROWS_FAULT:
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                self._drop_or_fail(
                    1, number, f"was not called: making its row {raised(error, self._call.function, __file__)}", error
                )
                left_out.add(number)
            else:
                yield number, row

    def _listed(self, row: Any) -> list[Any]:
        given = self._call.function(row)
        if isinstance(given, str | bytes | Mapping) or is_dataclass(given) or not isinstance(given, Iterable):
            raise WrongRow(f"{_short(given)}, not a list of rows")
        return given if isinstance(given, list) else list(given)

    def _kept(self, piece: pa.RecordBatch, results: list[Any], numbers: Sequence[int]) -> pa.RecordBatch:
        keep = np.zeros(piece.num_rows, bool)
        for number, passes in zip(numbers, results, strict=True):
            if isinstance(passes, bool | np.bool_):
                keep[number] = passes
            else:
                self._drop_or_fail(1, number, f"returned {_short(passes)}, not True or False")
        return piece.filter(pa.array(keep))

    def _fitting(self, results: list[Any], bounds: list[int] | None) -> list[pa.RecordBatch]:
        """Return the results as batches, halved until the ones that do not fit are left out."""
        try:
            return [batch_of_rows(self._gives, results, self._call.to)]
        except WrongRow as wrong:
            if len(results) == 1 or self._call.on_error == "fail":
                number = wrong.row if bounds is None or wrong.row is None else bisect_right(bounds, wrong.row)
                self._drop_or_fail(1, number, f"returned a wrong row: {wrong.what}", wrong)
                return []
        half = len(results) // 2
        return [*self._fitting(results[:half], None), *self._fitting(results[half:], None)]

    def _all_fitting(self, given: list[list[Any]], numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Return the results as batches, without those of a row if any of its results does not fit."""
        try:
            return [batch_of_rows(self._gives, list(chain.from_iterable(given)), self._call.to)]
        except WrongRow as wrong:
            if len(given) == 1:
                self._drop_or_fail(1, numbers[0], f"returned a wrong row: {wrong.what}", wrong)
                return []
        half = len(given) // 2
        return [*self._all_fitting(given[:half], numbers[:half]), *self._all_fitting(given[half:], numbers[half:])]

    def _mapped_whole(self, batch: pa.RecordBatch, first: int) -> list[pa.RecordBatch]:
        cause: BaseException
        try:
            return [self._as_planned(self._call.function(batch))]
        except NOT_THE_ROWS_FAULT:
            raise
        except WrongRow as wrong:
            did, cause = f"returned a wrong batch: {wrong.what}", wrong
        except BaseException as error:
            if not is_failure(error):
                raise
            did, cause = raised(error, self._call.function, __file__), error
        if batch.num_rows == 1 or self._call.on_error == "fail":
            self._drop_or_fail(batch.num_rows, first if batch.num_rows == 1 else None, did, cause)
            return []
        half = batch.num_rows // 2
        return [*self._mapped_whole(batch.slice(0, half), first), *self._mapped_whole(batch.slice(half), first + half)]

    def _as_planned(self, given: object) -> pa.RecordBatch:
        """Return the batch with the planned columns in order; only the width of offsets may differ."""
        if isinstance(given, pa.Table):
            given = pa.RecordBatch.from_arrays(
                [column.combine_chunks() for column in given.columns], names=given.schema.names
            )
        if not isinstance(given, pa.RecordBatch):
            raise WrongRow(f"{_short(given)} is not a pyarrow.RecordBatch")
        for field in self._gives:
            at = given.schema.get_all_field_indices(field.name)
            if len(at) == 1 and narrowed(given.schema.field(at[0]).type) != narrowed(field.type):
                raise WrongRow(f"column {field.name!r} takes {field.type}, not {given.schema.field(at[0]).type}")
            if len(at) > 1:
                raise WrongRow(f"column {field.name!r} occurs twice")
        return self._allowed(batch_of_columns(self._gives, given, given.num_rows))

    def _allowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch whose values the fields of the dataclass allow. Raises WrongRow."""
        for name, kind in self._limited.items():
            if (found := kind.wrong(column := kind.normal(batch.column(name)))) is not None:
                row = int(found.argmax())
                unfit = kind.reason(column[row].as_py())
                assert unfit is not None, "what is wrong has a reason"
                raise WrongRow(unfit.of(name), column=name, row=row)
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), column)
        return batch

    # Failures

    def _left_out(self, batch: pa.RecordBatch, row: int, base: int, did: str) -> None:
        """Leave a row out that is not given to the function."""
        self._batch, self._at, self._base = batch, row, base
        self.rows_in += 1
        self._drop_or_fail(1, 0, did)

    def _drop_or_fail(self, rows: int, number: int | None, did: str, cause: BaseException | None = None) -> None:
        if self._call.on_error == "drop":
            self.dropped += rows
            return
        call, at = self._call, self._arrival
        first = at.offset_of(self._base + self._at + number) if number is not None and self._ctx.aligned else None
        if call.on_error == "dlq":
            assert rows == 1 and number is not None and self._batch is not None
            row = encode_row(self._batch.select(self._given.names), self._at + number)
            error = reported(f"{call.use}: {name_of(call.function)} {did}")
            form: Form = "record" if self._ctx.untouched else "row"
            letter = DeadLetter(call.operator, self._origin.source, at.partition, first, error, form, row)
            self._ctx.dead_letter(letter)
            self.dlq += 1
            return
        location = ""
        if first is not None:
            location = f", for the record at offset {first} of partition {at.partition}"
        elif at.offset is not None and at.following is not None:
            location = f", for a record of partition {at.partition}, offsets {at.offset} to {at.following - 1}"
        place = Where(self._origin.job, call.operator, None, self._origin.source, at.partition, first)
        raise JobFailed(
            f"{call.use}: {name_of(call.function)} {did}{location}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step='correct the function, or leave such rows out with on_error="dlq" or on_error="drop"; then run '
            "the job again, which resumes from the last checkpoint",
            where=place,
        ) from cause


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
