"""Consecutive filters and projections as one Polars call.

A chain takes an Arrow batch, passes to Polars only the columns that later steps need, and returns an Arrow batch with
the types decided at plan time. Columns that are only passed on stay in Arrow. Without a filter, these are all such
columns; with one, those of variable width, from which the remaining rows are taken (for numbers Polars is faster). A
chain that neither filters nor computes makes no Polars call at all.

In an upsert stream a filter turns rows that do not pass into deletes. Every column of a delete is null, except the key
and the event time.

Invariants
    - The output rows depend on the input rows, never on how these were batched.
    - Types and order of the output columns are those of the plan, whatever the data.
    - A row that a filter dropped cannot make a later step fail.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.arithmetic import NeedsQuery
from holdfast.runtime.operators.contract import (
    MAIN,
    OP_FIELD,
    Needed,
    Operator,
    OperatorContext,
    Placed,
    RowOrigin,
    Step,
    in_order,
)
from holdfast.runtime.operators.direct import ROWS_MAX, Direct, StepForm, direct
from holdfast.runtime.rows.expressions import ProjectedColumn, Use
from holdfast.runtime.rows.forms import Form, form_of
from holdfast.runtime.rows.frames import twice
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.storage.held_values import may_be_unheld, row_shown, unheld, why

TEXT_LENGTH_MAX = 200
"""Longest text of an expression in the shape of a plan."""
ROW = "_row"
"""Number of a row in the input batch; selects the remaining rows of columns that stayed in Arrow."""

_IS_PUT = pl.col(OP) == PUT
_AS_WRITTEN = pl.QueryOptFlags.none()
"""Polars' optimizer joins filters with `&`, so that a later one also sees, and may fail on, rows that an earlier one
drops. Unused columns are already left out, so the optimizer would gain nothing."""


@dataclass(frozen=True, eq=False)
class Filter(Step):
    """Keep the rows for which the predicate is true. In an upsert stream the others become deletes."""

    predicate: pl.Expr
    use: Use
    time: str | None = None
    """The event time of an upsert stream, which deletes keep."""

    kind: ClassVar[str] = "filter"
    row_wise: ClassVar[bool] = True

    def fuses_with(self, following: Step) -> bool:
        return isinstance(following, Filter | Project)

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return in_order(needed.get(MAIN, frozenset()) | set(self.predicate.meta.root_names()), given)

    def made_from(self, name: str) -> str:
        return name

    def text(self) -> str:
        return f"filter {self.predicate}"

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        return {"step": "filter", "form": form_of(self.predicate), "text": _shortened(self.text())}

    def open(self, ctx: OperatorContext) -> Operator:
        return _ChainOperator(ctx)


@dataclass(frozen=True, eq=False)
class Project(Step):
    """Return exactly these columns, in order."""

    columns: tuple[ProjectedColumn, ...]
    use: Use

    kind: ClassVar[str] = "project"
    row_wise: ClassVar[bool] = True

    @property
    def one_to_one(self) -> bool:
        return True

    def fuses_with(self, following: Step) -> bool:
        return isinstance(following, Filter | Project)

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset())
        used = [column.expr.meta.root_names() for column in self.columns if column.name in behind]
        return in_order((name for names in used for name in names), given)

    def made_from(self, name: str) -> str | pl.Expr:
        column = next(each for each in self.columns if each.name == name)
        return column.expr if column.passes is None else column.passes

    def text(self) -> str:
        column_texts = [
            column.name if column.passes == column.name else f"{column.name} = {column.expr.meta.undo_aliases()}"
            for column in self.columns
        ]
        return "select " + ", ".join(column_texts)

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        expressions = [f"{c.name} = {c.expr.meta.undo_aliases()}" for c in self.columns if c.passes != c.name]
        forms: dict[str, Form] = {
            c.name: {"column": c.passes} if c.passes is not None else {"expr": form_of(c.expr)} for c in self.columns
        }
        names = ", ".join(expressions) or ", ".join(forms)
        return {"step": "select", "columns": forms, "text": _shortened(f"select {names}")}

    def open(self, ctx: OperatorContext) -> Operator:
        return _ChainOperator(ctx)


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else text[: TEXT_LENGTH_MAX - 3] + "..."


class _ChainOperator(Operator):
    """Runs the filters and projections that were opened together."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx, self._chain = ctx, Chain(ctx.placed, ctx.needed(), ctx.given, ctx.origin)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        result = self._chain.run(batch)
        if result is not None:
            self._ctx.emit(result)


@dataclass(frozen=True, eq=False)
class _Stage:
    """One step, compiled to a function on a frame with at least the columns that the step reads."""

    use: Use
    apply: Callable[[pl.LazyFrame], pl.LazyFrame]


class Chain:
    """Consecutive filters and projections of one stream.

    Args:
        steps: Each but the first reads the one before it.
        wanted: The columns that are needed after the last step, without `_op`.
        schema: The input stream, without `_op`.
    """

    def __init__(self, steps: Sequence[Placed], wanted: Collection[str], schema: pa.Schema, origin: RowOrigin) -> None:
        assert steps
        self._origin = origin
        upsert = steps[-1].upsert_key is not None
        fields = [field for field in steps[-1].schema if field.name in wanted]
        self._schema = pa.schema([*fields, OP_FIELD] if upsert else fields)
        self._filters = any(isinstance(each.step, Filter) for each in steps)
        passes = _passes(steps, schema, upsert)
        filters = [at for at, each in enumerate(steps, 1) if isinstance(each.step, Filter) and not upsert]
        self._was_single = (len(filters) > 1, any(at < len(steps) for at in filters))
        """Whether a step may have seen a single row, if no row or one is left; see `frames`."""
        self._passed = {name: passes[name] for name in self._schema.names if name in passes}
        self._computed = [name for name in self._schema.names if name not in passes]
        marker_columns = (OP,) if upsert else (ROW,) if self._filters and self._passed else ()
        computed_names = [name for name in self._computed if name != OP]
        needed = [name for name in self._schema.names if name != OP]
        self._stages, live = _compiled(steps, computed_names, needed, schema, marker_columns)
        self._numbered = ROW in marker_columns
        self._uses = [each.step.use for each in steps if isinstance(each.step, Project)]
        self._timed = [name for name in computed_names if may_be_unheld(self._schema.field(name).type)]
        self._takes = [name for name in schema.names if name in live] + ([OP] if upsert else [])
        queries = bool(self._computed) or self._filters
        self._direct = _direct(steps, schema, self._schema) if queries and not upsert else None

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the output rows; None if there are none.

        Raises:
            JobFailed: an expression cannot be computed for a row.
        """
        if batch.num_rows == 0:
            return None
        if self._direct is not None and batch.num_rows <= ROWS_MAX:
            with suppress(NeedsQuery):
                return self._direct.run(batch)
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
        result = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for name in self._timed:
            if (wrong := unheld(result.column(name))) is not None:
                raise self._unheld(result, name, int(wrong.argmax()))
        return result

    def _unheld(self, result: pa.RecordBatch, name: str, row: int) -> JobFailed:
        return self._cannot(
            self._uses[-1],
            f"{why(name, result.column(name)[row])}; the row is {row_shown(result, row)}",
        )

    def _compute(self, batch: pa.RecordBatch) -> pl.DataFrame:
        frame = pl.DataFrame([pl.Series(name, batch.column(name)) for name in self._takes])
        try:
            output_frame = self._queried(frame) if frame.height > 1 else None
            if output_frame is None or (output_frame.height <= 1 and self._was_single[output_frame.height]):
                output_frame = self._queried(twice(frame))
                output_frame = output_frame.head(output_frame.height // 2)
            return output_frame
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._failed(frame, error) from error

    def _queried(self, frame: pl.DataFrame) -> pl.DataFrame:
        lazy = self._started(frame)
        for stage in self._stages:
            lazy = stage.apply(lazy)
        wanted = [*self._computed, ROW] if self._numbered else self._computed
        return lazy.select(wanted).collect(engine="in-memory", optimizations=_AS_WRITTEN)

    def _started(self, frame: pl.DataFrame) -> pl.LazyFrame:
        return frame.lazy().with_row_index(ROW) if self._numbered else frame.lazy()

    def _failed(self, frame: pl.DataFrame, error: BaseException) -> JobFailed:
        """Run step by step to find the one that fails, and return an error with its place in the job's code."""
        use = self._stages[-1].use
        frame = self._started(frame).collect(engine="in-memory")
        for stage in self._stages:
            try:
                frame = stage.apply(frame.lazy()).collect(engine="in-memory", optimizations=_AS_WRITTEN)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as found:
                use, error = stage.use, found
                break
        return self._cannot(use, error)

    def _cannot(self, use: Use, error: object) -> JobFailed:
        origin = self._origin
        return JobFailed(
            f"{use} cannot be computed: {error}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step="make the expression take every value (for example cast(..., strict=False), or a filter before "
            "it); then run the job again, which resumes from the last checkpoint",
            where=Where(job=origin.job, operator=origin.operator, source=origin.source),
        )


def _direct(steps: Sequence[Placed], schema: pa.Schema, out: pa.Schema) -> Direct | None:
    forms: list[StepForm] = []
    for each in steps:
        step = each.step
        assert isinstance(step, Filter | Project)
        if isinstance(step, Filter):
            forms.append(step.predicate)
        else:
            forms.append({c.name: c.expr if c.passes is None else c.passes for c in step.columns})
    return direct(forms, [schema, *(each.schema for each in steps)], out)


def _arrow(frame: pl.DataFrame | None, field: pa.Field) -> pa.Array:
    assert frame is not None
    array = frame.get_column(field.name).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    if array.type == field.type:
        return array
    return array.cast(field.type, safe=not pa.types.is_time(field.type))  # Polars' times of day have nanoseconds


def _taken(column: pa.Array, rows: pa.Array | None) -> pa.Array:
    return column if rows is None else column.take(rows)


def _passes(steps: Sequence[Placed], schema: pa.Schema, upsert: bool) -> dict[str, str]:
    """Return the input column behind every output column that stays in Arrow."""
    passes = {name: name for name in schema.names}
    filters = False
    for each in steps:
        if isinstance(each.step, Project):
            passes = {
                column.name: passes[column.passes]
                for column in each.step.columns
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
    steps: Sequence[Placed],
    computed: Collection[str],
    needed: Collection[str],
    schema: pa.Schema,
    carried: tuple[str, ...],
) -> tuple[list[_Stage], frozenset[str]]:
    """Compile the steps back to front, so that each computes only used columns; return them and their input columns.

    Args:
        computed: Columns that come out and do not stay in Arrow.
        needed: All columns that come out.
        carried: Internal columns that pass through every step.
    """
    stages: list[_Stage] = []
    live, needed = frozenset(computed), frozenset(needed)
    inputs = [schema, *(each.schema for each in steps[:-1])]
    for each, before in zip(reversed(steps), reversed(inputs), strict=True):
        step = each.step
        assert isinstance(step, Filter | Project)
        if isinstance(step, Filter):
            stages.append(_Stage(step.use, _filter(step, each.upsert_key, live, followed=bool(stages))))
        else:
            stages.append(_Stage(step.use, _project(step, each.upsert_key, live, carried)))
        # Only columns that the whole chain reads certainly exist, also as the column that carries the number of rows.
        there = step.reads(0, before, {MAIN: needed})
        live = frozenset(step.reads(0, pa.schema([before.field(name) for name in there]), {MAIN: live}))
        needed = frozenset(there)
    return stages[::-1], live


def _filter(
    step: Filter, upsert_key: tuple[str, ...] | None, live: frozenset[str], followed: bool
) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    if upsert_key is None:
        if not followed:
            return lambda lazy: lazy.filter(step.predicate)
        # Threads filter pieces of a large frame, and a piece with one row would be computed as if it were alone.
        return lambda lazy: lazy.filter(step.predicate).map_batches(pl.DataFrame.rechunk, validate_output_schema=False)
    op = pl.when(_IS_PUT & step.predicate.fill_null(False)).then(PUT).otherwise(DELETE).cast(pl.Int8).alias(OP)
    cleared = [pl.when(_IS_PUT).then(pl.col(name)).alias(name) for name in sorted(live - {*upsert_key, step.time})]
    return lambda lazy: lazy.with_columns(op).with_columns(cleared)


def _project(
    step: Project, upsert_key: tuple[str, ...] | None, live: frozenset[str], carried: tuple[str, ...]
) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    columns = [column for column in step.columns if column.name in live]
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
