"""Python functions over the rows of a stream.

The function is called row by row; around the calls everything is done for many rows at once. A batch is taken in pieces
of at most `PIECE_ROWS`, so that a function that gives many rows for one does not fill the memory, and a piece is left
off when the turn is over; `backlog.py` sees to the rest. For `map_batches` pieces have as many rows as `Pace` says.

With on_error="fail" the first failure ends the job; the epoch is never completed, so state and output stay as they
were. With on_error="drop" a row whose call fails is left out, a row that was given and does not fit the columns is left
out, and both are counted. `map_batches` finds these rows by calling the function again with halves of the batch. With
on_error="dlq" the row that entered becomes a dead letter as a whole: nothing that was given for it goes on.

Invariants
    - Rows leave in the order of the rows that they were computed from.
    - What leaves has exactly the columns of the plan: no other type, no null where none may be.
    - Which rows are dropped, or become dead letters, follows from the rows, never from how they fell into batches.

Pure, as far as the user's function is.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import HoldfastError, JobFailed, Where, is_failure
from holdfast.runtime.dead_letters import DeadLetter, Form, Letters, encode_row, told
from holdfast.runtime.expressions import narrowed
from holdfast.runtime.functions import file_of, name_of
from holdfast.runtime.messages import OperatorProgress
from holdfast.runtime.operators.stateless import Origin
from holdfast.runtime.rows import WrongRow, batch_of_columns, batch_of_rows
from holdfast.runtime.rowtypes import RowMaker
from holdfast.runtime.steps import Call
from holdfast.runtime.turns import Turn
from holdfast.runtime.vitals import FUNCTION

PIECE_ROWS = 4_096
LOOK_AFTER_MAX = 64
"""Whether the turn is over is looked at after 1, 2, 4, ... more rows, and at least after so many: after each it would
cost a fast function a tenth."""
_NOT_THE_ROWS_FAULT = (HoldfastError, MemoryError)
"""All else that `is_failure` is, also what is no Exception: sys.exit, and panics of native code (Polars, RocksDB)."""


@dataclass
class Arrival:
    """The records of a source that are in the fragment just now, as far as known."""

    partition: int | None = None
    offset: int | None = None
    """Of the first record."""
    following: int | None = None
    """The offset after the last."""
    contiguous: bool = False
    """Record i of the batch has the offset `offset + i`."""
    offsets: NDArray[np.int64] | None = None
    """The offset of every record, where some were left out between them."""

    def take(self, other: Arrival) -> None:
        """Become equal to another."""
        self.partition, self.offset = other.partition, other.offset
        self.following, self.contiguous, self.offsets = other.following, other.contiguous, other.offsets

    def offset_of(self, row: int) -> int | None:
        """Return the offset of the record of this number, None if it is not known."""
        if self.offsets is not None:
            return int(self.offsets[row])
        return self.offset + row if self.contiguous and self.offset is not None else None


class FunctionOperator:
    """One function step of a fragment.

    Args:
        given: Columns that enter.
        gives: Columns that leave.
        arrival: What is in the fragment; kept up to date by it.
        one_to_one: Row i that enters is record i of the arrival.
        letters: Where dead letters go, and what their `raw` then is.
        turn: Says when to leave off.
    """

    def __init__(
        self,
        call: Call,
        given: pa.Schema,
        gives: pa.Schema,
        origin: Origin,
        arrival: Arrival,
        one_to_one: bool,
        letters: tuple[Letters, Form],
        turn: Turn,
    ) -> None:
        self._call, self._given, self._gives = call, given, gives
        self._origin, self._arrival, self._one_to_one, self._letters = origin, arrival, one_to_one, letters
        self._rows = None if call.how == "map_batches" else RowMaker(given, call.row_type)
        self._function = self._listed if call.how == "flat_map" else call.function
        self._turn, self._piece_rows, self._pace = turn, PIECE_ROWS, turn.pace()
        self._at = self._base = 0
        """Where the piece that is worked on begins in its batch, and the batch in what entered the fragment."""
        self._batch: pa.RecordBatch | None = None
        """The batch that is worked on."""
        self.name, self.mark = call.operator, FUNCTION + call.operator
        self.rows_in = self.rows_out = self.dropped = self.dlq = 0

    def progress(self) -> OperatorProgress:
        """Return what was taken, given and left out since the deployment."""
        dlq = self.dlq if self._call.on_error == "dlq" else None
        return OperatorProgress(self.name, self.rows_in, self.rows_out, 0, dropped=self.dropped, dlq=dlq)

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Work on rows from the row `at` on; return how many, at least one, and what comes out for them.

        Args:
            base: Of what entered the fragment, row 0 of the batch is this record, if they correspond.

        Raises:
            JobFailed: the function raised, or what it gave does not fit, and on_error is "fail".
        """
        self._batch, self._at, self._base = batch, at, base
        done, parts = self._whole() if self._rows is None else self._piece()
        parts = [part for part in parts if part.num_rows]
        self.rows_in += done
        self.rows_out += sum(part.num_rows for part in parts)
        return done, parts

    def _whole(self) -> tuple[int, list[pa.RecordBatch]]:
        assert self._batch is not None
        piece = self._batch.slice(self._at, self._pace.rows)
        given = pa.RecordBatch.from_arrays([piece.column(name) for name in self._given.names], schema=self._given)
        began = self._turn.now()
        parts = self._mapped_whole(given, 0)
        self._pace.took(piece.num_rows, self._turn.now() - began)
        return piece.num_rows, parts

    def _piece(self) -> tuple[int, list[pa.RecordBatch]]:
        assert self._batch is not None
        piece = self._batch.slice(self._at, self._piece_rows)
        results, numbers, done = self._called(piece)
        # Of a slow function few rows are made at once: all others would have to be made again for the next turn.
        self._piece_rows = min(2 * self._piece_rows, PIECE_ROWS) if done == piece.num_rows else done
        match self._call.how:
            case "filter":
                return done, [self._kept(piece.slice(0, done), results, numbers)]
            case "map" | "flat_map" if self._call.on_error == "dlq":
                given = results if self._call.how == "flat_map" else [[result] for result in results]
                return done, self._all_fitting(given, numbers)
            case "flat_map":
                bounds = list(accumulate(map(len, results)))
                return done, self._fitting(list(chain.from_iterable(results)), bounds)
            case _:
                return done, self._fitting(results, None)

    def _called(self, piece: pa.RecordBatch) -> tuple[list[Any], Sequence[int], int]:
        """Return what the function gave, for which rows of the piece, and how many rows were done."""
        function, results, left_out = self._function, list[Any](), set[int]()
        look = 1
        made, number, before, over = iter(self._made(piece, left_out)), -1, -2, False
        while number != before and not over:
            before = number
            for number, row in islice(made, look):
                try:
                    results.append(function(row))
                except _NOT_THE_ROWS_FAULT:
                    raise
                except WrongRow as wrong:
                    self._drop_or_fail(1, number, f"gave {wrong.what}", wrong)
                    left_out.add(number)
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    self._drop_or_fail(1, number, self._told(error), error)
                    left_out.add(number)
            over, look = self._turn.overdue(), min(2 * look, LOOK_AFTER_MAX)
        # If nothing more was made, the last rows are among those left out.
        done = piece.num_rows if number == before else number + 1
        return results, [n for n in range(done) if n not in left_out] if left_out else range(done), done

    def _made(self, piece: pa.RecordBatch, left_out: set[int]) -> Iterable[tuple[int, Any]]:
        """Make the rows; a dataclass that refuses its values fails as the function would."""
        assert self._rows is not None
        try:
            return enumerate(list(self._rows.rows(piece)))
        except _NOT_THE_ROWS_FAULT:
            raise
        except BaseException as error:  # one by one, to find the row at fault
            if not is_failure(error):
                raise
            return self._made_singly(piece, left_out)

    def _made_singly(self, piece: pa.RecordBatch, left_out: set[int]) -> Iterator[tuple[int, Any]]:
        assert self._rows is not None
        made = self._rows.rows(piece)
        for number in range(piece.num_rows):
            try:
                row = next(made)
            except _NOT_THE_ROWS_FAULT:
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                self._drop_or_fail(1, number, f"was not called: making its row {self._told(error)}", error)
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
                self._drop_or_fail(1, number, f"gave {_short(passes)}, not True or False")
        return piece.filter(pa.array(keep))

    def _fitting(self, results: list[Any], bounds: list[int] | None) -> list[pa.RecordBatch]:
        """Return the results as batches, halved as often as it takes to leave out the ones that do not fit."""
        try:
            return [batch_of_rows(self._gives, results)]
        except WrongRow as wrong:
            if len(results) == 1 or self._call.on_error == "fail":
                number = wrong.row if bounds is None or wrong.row is None else bisect_right(bounds, wrong.row)
                self._drop_or_fail(1, number, f"gave a wrong row: {wrong.what}", wrong)
                return []
        half = len(results) // 2
        return [*self._fitting(results[:half], None), *self._fitting(results[half:], None)]

    def _all_fitting(self, given: list[list[Any]], numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Return what was given for each row as batches; a row of which anything does not fit gives nothing."""
        try:
            return [batch_of_rows(self._gives, list(chain.from_iterable(given)))]
        except WrongRow as wrong:
            if len(given) == 1:
                self._drop_or_fail(1, numbers[0], f"gave a wrong row: {wrong.what}", wrong)
                return []
        half = len(given) // 2
        return [*self._all_fitting(given[:half], numbers[:half]), *self._all_fitting(given[half:], numbers[half:])]

    def _mapped_whole(self, batch: pa.RecordBatch, first: int) -> list[pa.RecordBatch]:
        cause: BaseException
        try:
            return [self._as_planned(self._call.function(batch))]
        except _NOT_THE_ROWS_FAULT:
            raise
        except WrongRow as wrong:
            did, cause = f"gave a wrong batch: {wrong.what}", wrong
        except BaseException as error:
            if not is_failure(error):
                raise
            did, cause = self._told(error), error
        if batch.num_rows == 1 or self._call.on_error == "fail":
            self._drop_or_fail(batch.num_rows, first if batch.num_rows == 1 else None, did, cause)
            return []
        half = batch.num_rows // 2
        return [*self._mapped_whole(batch.slice(0, half), first), *self._mapped_whole(batch.slice(half), first + half)]

    def _as_planned(self, given: object) -> pa.RecordBatch:
        """Return the batch with the planned columns in their order; only the width of offsets may differ."""
        if isinstance(given, pa.Table):
            given = pa.RecordBatch.from_arrays(
                [column.combine_chunks() for column in given.columns], names=given.schema.names
            )
        if not isinstance(given, pa.RecordBatch):
            raise WrongRow(f"{_short(given)} is no pyarrow.RecordBatch")
        for field in self._gives:
            at = given.schema.get_all_field_indices(field.name)
            if len(at) == 1 and narrowed(given.schema.field(at[0]).type) != narrowed(field.type):
                raise WrongRow(f"column {field.name!r} takes {field.type}, not {given.schema.field(at[0]).type}")
            if len(at) > 1:
                raise WrongRow(f"column {field.name!r} is there twice")
        return batch_of_columns(self._gives, given, given.num_rows)

    # Failures

    def _drop_or_fail(self, rows: int, number: int | None, did: str, cause: BaseException | None = None) -> None:
        if self._call.on_error == "drop":
            self.dropped += rows
            return
        call, at = self._call, self._arrival
        first = at.offset_of(self._base + self._at + number) if number is not None and self._one_to_one else None
        if call.on_error == "dlq":
            assert rows == 1 and number is not None and self._batch is not None
            row = encode_row(self._batch.select(self._given.names), self._at + number)
            error = told(f"{call.use}: {name_of(call.function)} {did}")
            letters, form = self._letters
            letters.add(DeadLetter(call.operator, self._origin.source, at.partition, first, error, form, row))
            self.dlq += 1
            return
        found = ""
        if first is not None:
            found = f", for the record at offset {first} of partition {at.partition}"
        elif at.offset is not None and at.following is not None:
            found = f", for a record of partition {at.partition}, offsets {at.offset} to {at.following - 1}"
        place = Where(self._origin.job, call.operator, None, self._origin.source, at.partition, first)
        raise JobFailed(
            f"{call.use}: {name_of(call.function)} {did}{found}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step='correct the function, or go on without such rows by on_error="dlq" or on_error="drop", then run '
            "the job again; it goes on from the last checkpoint",
            where=place,
        ) from cause

    def _told(self, error: BaseException) -> str:
        """Say what was raised, and at which line of the user's code."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        own = file_of(self._call.function)
        frame = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
        where = "" if frame is None else f" at {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
        where += f" `{frame.line}`" if frame is not None and frame.line else ""
        shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"raised {shown:.300}{where}"


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
