"""Presents the rows of a pattern to its functions, and turns a match into rows.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.patterns.automaton import Partial, PatternRow, PatternStage
from holdfast.runtime.operators.patterns.kept import Slots, StoredRows
from holdfast.runtime.rows.row_types import RowMaker, row_class
from holdfast.runtime.time.windows import TIME


class ColumnOrigin(NamedTuple):
    """A column of the result: one of the row that a stage took; of its first row, if no stage is named."""

    stage: int | None
    column: str


@dataclass(frozen=True)
class MatchResult:
    """How a match becomes a row: by columns, or by a function of the rows."""

    columns: tuple[ColumnOrigin | None, ...]
    """Per column of the result; None: the event time of the match. Empty if a function returns the row."""
    select: Callable[[Any], Any] | None
    to: type | None = None
    """The dataclass that the function's rows are to fit."""


class Complete(NamedTuple):
    """A complete match."""

    match: Partial
    at_us: int
    """The time of its last row; if its end is that of `within`, that time."""


class SeenRows:
    """Rows of one piece of work as Python functions see them."""

    def __init__(
        self,
        rows: StoredRows,
        columns: Sequence[str],
        given: pa.Schema,
        kind: type | None,
        stages: Sequence[PatternStage],
    ) -> None:
        self._rows, self._columns = rows, columns
        self._maker = RowMaker(pa.schema([given.field(name) for name in columns]), kind)
        self._matches = row_class(tuple(stage.name for stage in stages))
        self._single = [stage.most == 1 for stage in stages]
        self._seen: dict[int, Any] = {}

    def clear(self) -> None:
        """Forget all rows: other rows may get their slots."""
        self._seen.clear()

    def make(self, slots: Iterable[int]) -> None:
        """Make rows, those that were not made yet."""
        new = np.array(sorted(set(slots) - self._seen.keys()), np.int64)
        if new.size:
            made = self._maker.rows(self._rows.read(self._columns, new))
            self._seen.update(zip(new.tolist(), made, strict=True))

    def row(self, row: PatternRow) -> Any:
        """Return a row that was made, or make it."""
        if row.slot not in self._seen:
            self.make([row.slot])
        return self._seen[row.slot]

    def matches(self, partial: Partial) -> Any:
        """Return the rows of a partial match by stage: a row or None; of a stage with `times`, a tuple of rows."""
        rows_by_stage: list[list[Any]] = [[] for _ in self._single]
        for row, stage in zip(partial.rows, partial.stages, strict=True):
            rows_by_stage[stage].append(self.row(row))
        return self._matches(
            (mine[0] if mine else None) if single else tuple(mine)
            for mine, single in zip(rows_by_stage, self._single, strict=True)
        )


def batch_of_columns(
    result: MatchResult, rows: StoredRows, complete: Sequence[Complete], schema: pa.Schema
) -> pa.RecordBatch:
    """Return matches as rows of these columns."""
    slots: dict[int | None, Slots] = {}
    for stage in {origin.stage for origin in result.columns if origin is not None}:
        places = (0 if stage is None else each.match.stages.index(stage) for each in complete)
        found = (each.match.rows[place].slot for each, place in zip(complete, places, strict=True))
        slots[stage] = np.fromiter(found, np.int64, len(complete))
    batches_by_stage = {
        stage: rows.read([t.column for t in result.columns if t is not None and t.stage == stage], mine)
        for stage, mine in slots.items()
    }
    at_us = pa.array([each.at_us for each in complete], pa.int64()).view(TIME)
    arrays = [
        at_us if origin is None else batches_by_stage[origin.stage].column(origin.column) for origin in result.columns
    ]
    typed = [a if a.type == field.type else a.cast(field.type) for a, field in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)
