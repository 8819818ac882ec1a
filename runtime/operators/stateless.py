"""Filters and projections that follow each other, as one Polars call.

A chain takes an Arrow batch, hands Polars only the columns that are wanted behind it, and gives an Arrow batch back
with the types settled at plan time. Columns that merely pass stay in Arrow: all of them without a filter, and with one
those of variable width, of which the rows that are left are taken (for numbers Polars is the faster way). A chain that
neither filters nor computes makes no Polars call at all.

In an upsert stream a filter turns rows that do not pass into deletes, and every column of a delete that is not part of
the key is null.

Invariants
    - The rows that come out depend on the rows that go in, never on how these were batched.
    - Types and order of the columns that come out are those of the plan, whatever the data.
    - A row that a filter dropped cannot make a later step fail.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from holdfast.errors import JobFailed, Where
from holdfast.runtime.expressions import Use
from holdfast.runtime.steps import Filter, Project, Step
from holdfast.sinks.contract import DELETE, OP, PUT

OP_FIELD = pa.field(OP, pa.int8(), nullable=False)
ROW = "_row"
"""Number of a row in the batch that came in, while columns that stayed in Arrow wait for what is left."""

_IS_PUT = pl.col(OP) == PUT
_AS_WRITTEN = pl.QueryOptFlags.none()
"""Polars' optimizer joins filters with `&`, so that a later one also sees, and may fail on, rows that an earlier one
drops. Columns that nobody reads are left out here already, so it would bring nothing."""


@dataclass(frozen=True)
class Origin:
    """Whose rows these are; errors name it."""

    job: str | None = None
    source: str | None = None
    operator: str | None = None


@dataclass(frozen=True, eq=False)
class _Stage:
    """One step, compiled: what it does to a frame that holds at least the columns it reads."""

    use: Use
    apply: Callable[[pl.LazyFrame], pl.LazyFrame]


class Chain:
    """Consecutive filters and projections of one stream.

    Args:
        steps: Each but the first reads the one before it.
        wanted: The columns that are needed behind the last one, without `_op`.
        schema: The stream that goes in, without `_op`.
    """

    def __init__(self, steps: Sequence[Step], wanted: Collection[str], schema: pa.Schema, origin: Origin) -> None:
        assert steps
        self._origin = origin
        upsert = steps[-1].upsert_key is not None
        fields = [field for field in steps[-1].schema if field.name in wanted]
        self._schema = pa.schema([*fields, OP_FIELD] if upsert else fields)
        self._filters = any(isinstance(step.kind, Filter) for step in steps)
        passes = _passes(steps, schema, upsert)
        self._passed = {name: passes[name] for name in self._schema.names if name in passes}
        self._computed = [name for name in self._schema.names if name not in passes]
        carried = (OP,) if upsert else (ROW,) if self._filters and self._passed else ()
        self._stages, live = _compiled(steps, [name for name in self._computed if name != OP], schema, carried)
        self._numbered = ROW in carried
        self._takes = [name for name in schema.names if name in live] + ([OP] if upsert else [])
        self.reads = frozenset(live) | (frozenset(self._passed.values()) - {OP})
        """The columns of the input that the chain needs, without `_op`."""

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the rows that come out; None if there are none.

        Raises:
            JobFailed: an expression cannot be computed for some row.
        """
        if batch.num_rows == 0:
            return None
        frame = self._compute(batch) if self._computed or self._filters else None
        if frame is not None and frame.height == 0:
            return None
        left = frame.get_column(ROW).to_arrow() if frame is not None and self._numbered else None
        if left is not None and len(left) == batch.num_rows:
            left = None
        arrays = [
            _taken(batch.column(self._passed[field.name]), left) if field.name in self._passed else _arrow(frame, field)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _compute(self, batch: pa.RecordBatch) -> pl.DataFrame:
        frame = pl.from_arrow(batch.select(self._takes))
        assert isinstance(frame, pl.DataFrame)
        try:
            lazy = self._started(frame)
            for stage in self._stages:
                lazy = stage.apply(lazy)
            wanted = [*self._computed, ROW] if self._numbered else self._computed
            return lazy.select(wanted).collect(optimizations=_AS_WRITTEN)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._failed(frame, error) from error

    def _started(self, frame: pl.DataFrame) -> pl.LazyFrame:
        return frame.lazy().with_row_index(ROW) if self._numbered else frame.lazy()

    def _failed(self, frame: pl.DataFrame, error: BaseException) -> JobFailed:
        """Run step by step to find the one that fails, and say where it stands in the job's code."""
        use = self._stages[-1].use
        frame = self._started(frame).collect()
        for stage in self._stages:
            try:
                frame = stage.apply(frame.lazy()).collect(optimizations=_AS_WRITTEN)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as found:
                use, error = stage.use, found
                break
        origin = self._origin
        return JobFailed(
            f"{use} cannot be computed: {error}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step="make the expression take every value (for example cast(..., strict=False), or a filter before "
            "it), then run the job again; it goes on from the last checkpoint",
            where=Where(job=origin.job, operator=origin.operator, source=origin.source),
        )


def _arrow(frame: pl.DataFrame | None, field: pa.Field) -> pa.Array:
    assert frame is not None
    array = frame.get_column(field.name).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    return array if array.type == field.type else array.cast(field.type)


def _taken(column: pa.Array, rows: pa.Array | None) -> pa.Array:
    return column if rows is None else column.take(rows)


def _passes(steps: Sequence[Step], schema: pa.Schema, upsert: bool) -> dict[str, str]:
    """Return the input column behind every output column that stays in Arrow."""
    passes = {name: name for name in schema.names}
    filters = False
    for step in steps:
        if isinstance(step.kind, Project):
            passes = {
                column.name: passes[column.passes]
                for column in step.kind.columns
                if column.passes is not None and column.passes in passes
            }
        else:
            filters = True
    if filters and upsert:
        return {}  # Deletes clear columns.
    if filters:
        return {name: source for name, source in passes.items() if not _fixed_width(schema.field(source).type)}
    return passes | ({OP: OP} if upsert else {})


def _fixed_width(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind))


def _compiled(
    steps: Sequence[Step], wanted: Sequence[str], schema: pa.Schema, carried: tuple[str, ...]
) -> tuple[list[_Stage], set[str]]:
    """Compile the steps back to front, so that each computes only what is used; return them and what they read.

    Args:
        carried: Columns that are not the user's and go along through every step.
    """
    stages: list[_Stage] = []
    live = set(wanted)
    inputs = [schema, *(step.schema for step in steps[:-1])]
    for step, before in zip(reversed(steps), reversed(inputs), strict=True):
        assert isinstance(step.kind, Filter | Project)
        if isinstance(step.kind, Filter):
            stages.append(_Stage(step.kind.use, _filter(step.kind, step.upsert_key, frozenset(live))))
            live |= set(step.kind.predicate.meta.root_names())
        else:
            stages.append(_Stage(step.kind.use, _project(step.kind, step.upsert_key, frozenset(live), carried)))
            used = [column.expr.meta.root_names() for column in step.kind.columns if column.name in live]
            live = {name for names in used for name in names}
        if not live:
            live = {before.names[0]}  # A frame without columns has no rows, and constants would have none to fill.
    return stages[::-1], live


def _filter(
    kind: Filter, upsert_key: tuple[str, ...] | None, live: frozenset[str]
) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    if upsert_key is None:
        return lambda lazy: lazy.filter(kind.predicate)
    op = pl.when(_IS_PUT & kind.predicate.fill_null(False)).then(PUT).otherwise(DELETE).cast(pl.Int8).alias(OP)
    cleared = [pl.when(_IS_PUT).then(pl.col(name)).alias(name) for name in sorted(live - set(upsert_key))]
    return lambda lazy: lazy.with_columns(op).with_columns(cleared)


def _project(
    kind: Project, upsert_key: tuple[str, ...] | None, live: frozenset[str], carried: tuple[str, ...]
) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    columns = [column for column in kind.columns if column.name in live]
    if upsert_key is None:
        exprs = [column.expr.alias(column.name) for column in columns]
    else:
        exprs = [
            column.expr if column.passes is not None else pl.when(_IS_PUT).then(column.expr).alias(column.name)
            for column in columns
        ]
    names = [*(column.name for column in columns), *carried]
    # with_columns fills constants to the length of the frame, which select alone would not.
    return lambda lazy: lazy.with_columns(exprs).select(names)
