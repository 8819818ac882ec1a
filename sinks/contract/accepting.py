"""Refuses rows before they are staged, and recognises conversion errors, by which a target refuses rows later.

Each sink checks the limits of its target. Values that no column may hold are checked here, for all sinks. Each refusal
shows a row. An error that the code of a sink did not expect, such as an overflow in a client library, is a refusal too:
the next attempt would end alike, so a job that repeats it never gets any further.

Pure, as far as the sinks are.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError, is_failure
from holdfast.model import Tag
from holdfast.sinks.contract.phrases import LAST_DELIVERED, NO_ROW
from holdfast.sinks.contract.sink import Sink
from holdfast.storage.held_values import check_held, row_shown

CONVERSION: tuple[type[BaseException], ...] = (
    *(ArithmeticError, TypeError, ValueError, pa.ArrowNotImplementedError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""Errors that libraries raise for a value that they cannot convert."""

SHOWN_MAX = 500


def accept(sink: Sink, batch: pa.RecordBatch) -> None:
    """Refuse rows that the target can never take.

    Raises:
        ConfigError: names the sink, the column and a row.
    """
    check_held(sink.where, batch)
    error = _refusal(sink, batch)
    if error is None:
        return
    if isinstance(error, HoldfastError):
        if type(error) is ConfigError and (row := _first_refused(sink, batch)) is not None:
            error.what += f"; the first such row is {row_shown(row, 0)}"
        raise error
    row = _first_refused(sink, batch)
    shown = "" if row is None else f"; the row is {row_shown(row, 0)}"
    raise ConfigError(
        f"{sink.where}: a value cannot be converted for the target: {_named(error)}{shown}",
        not_done="the rows were not written",
        next_step="cast the column before the sink, or drop such rows with .filter(...)",
    ) from error


def undeliverable(sink: Sink, tag: Tag, batches: Iterable[pa.RecordBatch], error: BaseException) -> ConfigError:
    """Return the error for rows of a completed epoch that the target's library cannot convert."""
    detail = ""
    for batch in batches:
        try:
            accept(sink, batch)
        except ConfigError as refusal:
            detail = f" ({refusal.what})"
            break
        except HoldfastError:
            break
    return ConfigError(
        f"{sink.where}: a value of epoch {tag.epoch} cannot be converted for the target: {_named(error)}{detail}",
        not_done=NO_ROW,
        next_step="correct the job so that it drops or converts such values, and leave these rows behind with "
        f"{LAST_DELIVERED}",
    )


def _refusal(sink: Sink, batch: pa.RecordBatch) -> BaseException | None:
    try:
        sink.accept(batch)
    except MemoryError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        return error
    return None


def _first_refused(sink: Sink, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return the first row that is refused when checked alone; None if there is none."""
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        first = batch.slice(0, half)
        if _refusal(sink, first) is not None:
            batch = first
        elif _refusal(sink, rest := batch.slice(half)) is not None:
            batch = rest
        else:
            return None
    return batch if batch.num_rows else None


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:SHOWN_MAX]
