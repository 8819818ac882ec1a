"""Work of operators whose aggregates call functions of the user, in pieces: each may be slow, so turns end between two.

Rows are taken in pieces as a `SlicePace` learns. Results, of an epoch or of windows that are due, are made piece by
piece by a generator, which a turn resumes where the last one left it. Until it has ended, its fragment takes nothing
else. So the state of the keys that are left does not change, and barrier or watermark follow the last result.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.functions.aggregation import BoundAggregation
from holdfast.runtime.operators.contract import ROUNDS, OperatorContext
from holdfast.runtime.operators.time_slice import SlicePace, TimeSlice
from holdfast.runtime.wire.vitals import FUNCTION

Take = Callable[[pa.RecordBatch], None]
Give = Callable[[Iterator[pa.RecordBatch]], None]


def calls_users(aggregations: Sequence[BoundAggregation]) -> bool:
    """Return whether some aggregates call functions of the user."""
    return any(bound.kind.calls for bound in aggregations)


def in_pieces(ctx: OperatorContext, operator: str, aggregations: Sequence[BoundAggregation], take: Take) -> Take:
    """Return the function for an operator's batches: in pieces, over several turns, if it calls users' functions."""
    if not calls_users(aggregations):
        return take
    work = _Taking(operator, FUNCTION + operator, take, ctx.time_slice, ctx.time_slice.pace())
    return lambda batch: ctx.defer(work, batch)


def results_in_pieces(ctx: OperatorContext, operator: str, aggregations: Sequence[BoundAggregation]) -> Give:
    """Return the function that emits the results of an iterator: over several turns if it calls the user's functions.

    The iterator may delete state after its last result: it is always used up before the fragment takes anything else.
    """
    if calls_users(aggregations):
        return lambda results: ctx.defer(_Giving(operator, FUNCTION + operator, results), ROUNDS)

    def give(results: Iterator[pa.RecordBatch]) -> None:
        for each in results:
            ctx.emit(each)

    return give


@dataclass
class _Taking:
    """Work on the batches of an operator."""

    name: str
    mark: str
    take: Take
    time_slice: TimeSlice
    pace: SlicePace

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Take some rows, as many as the pace allows; see Work."""
        piece, began = batch.slice(at, self.pace.rows), self.time_slice.now()
        self.take(piece)
        self.pace.took(piece.num_rows, self.time_slice.now() - began)
        return piece.num_rows, []


@dataclass
class _Giving:
    """Work on results, one piece of an iterator after another."""

    name: str
    mark: str
    results: Iterator[pa.RecordBatch]

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Make the next results; see Work."""
        made = next(self.results, None)
        return (batch.num_rows - at, []) if made is None else (1, [made])
