"""Event times and watermarks that a source computes from the columns of its records.

Both are row-wise expressions, checked like any other (expressions.py), so they do not depend on how records fell into
batches. An event time becomes a column of the stream. A watermark is read and forgotten: null means that a record gives
no watermark.

Pure.
Source: docs/decisions/0071-watermarks-of-records.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError, JobFailed, Where
from holdfast.runtime.rows.expressions import ProjectedColumn, columns_of
from holdfast.runtime.rows.frames import never_single
from holdfast.runtime.time.windows import TIME

EVENT_TIME = "event_time"
"""The column of `hf.device_clock`, unless `.alias(...)` names another."""


@checked("hf.device_clock", '("event_at", "sent_at", "received_at")')
def device_clock(event: str, sent: str, received: str) -> pl.Expr:
    """Return an event time that does not depend on whether a device's clock is right: for `event_time=` of a source.

    `received - (sent - event)`: the age that the event had when the device sent it, by the device's clock alone, before
    the time at which a server received it. An offset of the device's clock, however large and in either direction,
    cancels out; the time in transit is taken for zero. The column is called "event_time"; `.alias(...)` renames it.

    An event after `sent` cannot be: its age counts as zero, so the result never lies after `received`. Without `sent`,
    the result is `event`, or `received` if that is earlier; without `received` it is `event`. Without `event` there is
    no event time, and the record is undecodable.

    Args:
        event, sent: Columns with the times at which an event happened and was sent, by the clock of the device.
        received: Column with the time at which it was received, by the clock of a server.

    Source: Snowplow, "Improving Snowplow's understanding of time", 2015 (`derived_tstamp`).
    """
    at, gone, come = pl.col(event), pl.col(sent), pl.col(received)
    early = pl.when(come < at).then(come).otherwise(at)
    corrected = pl.when(gone < at).then(come).otherwise(come - (gone - at))
    known = pl.when(come.is_null() | at.is_null()).then(at).when(gone.is_null()).then(early).otherwise(corrected)
    return known.alias(EVENT_TIME)


def computed_time(expr: pl.Expr, schema: pa.Schema, where: str) -> ProjectedColumn:
    """Return the column of an event time that is computed from the columns of a source.

    Raises:
        ConfigError: it is not row-wise, no point in time, or has the name of another column.
    """
    column = _column(columns_of((expr,), {}, schema, f"{where}: event_time"), where, EVENT_TIME)
    if column.name in schema.names:
        raise ConfigError(
            f"{where}: the event time `{expr}` would be called {column.name!r}, which is a column of the source",
            not_done="the job was not planned",
            next_step='name it with .alias("at")',
        )
    return ProjectedColumn(column.name, column.expr, pa.field(column.name, TIME, nullable=False), None)


def watermark_of(given: str | pl.Expr, schema: pa.Schema, where: str) -> ProjectedColumn:
    """Return the watermarks of records.

    Args:
        schema: The columns of the stream, a computed event time among them.

    Raises:
        ConfigError: it is not row-wise, or no point in time.
    """
    return _column(columns_of((), {"watermark": given}, schema, f"{where}: watermark"), where, "watermark")


def times_of(column: ProjectedColumn, batch: pa.RecordBatch, source: str, job: str | None) -> pa.Array:
    """Return the times of every record of a batch, as timestamp[us, UTC].

    Raises:
        JobFailed: the expression cannot be computed.
    """
    frame = pl.from_arrow(batch.select(sorted(set(column.expr.meta.root_names()))))
    assert isinstance(frame, pl.DataFrame)
    try:
        times = never_single(frame).select(column.expr.alias(column.name)).to_series().head(batch.num_rows)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise JobFailed(
            f"source {source!r}: {column.name} = {column.expr.meta.undo_aliases()} cannot be computed: {error}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step="make the expression take every value (for example cast(..., strict=False)); then run the job "
            "again, which resumes from the last checkpoint",
            where=Where(job=job, source=source),
        ) from error
    return times.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(TIME)


def _column(columns: Sequence[ProjectedColumn], where: str, role: str) -> ProjectedColumn:
    (column,) = columns
    fault = None
    if column.field.type != TIME:
        fault = f"is {column.field.type}, not timestamp[us, UTC]"
    elif not column.expr.meta.root_names():
        fault = "reads no column"
    if fault is not None:
        raise ConfigError(
            f"{where}: {role} = `{column.expr.meta.undo_aliases()}` {fault}",
            not_done="the job was not planned",
            next_step='write an expression of points in time in UTC, for example pl.col("at") - pl.duration(seconds=5)',
        )
    return column
