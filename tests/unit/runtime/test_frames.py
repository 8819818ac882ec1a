"""Expressions outside of chains also have the same values for a row that is alone as for one of many."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from holdfast.runtime.functions.conditions import computed, condition_of
from holdfast.runtime.time.event_times import computed_time, times_of

SCHEMA = pa.schema([("k", pa.int64())])
BATCH = pa.record_batch({"k": range(20)}, SCHEMA)
WHOLE = (pl.col("k") / 10 // 0.1).cast(pl.Int64)
"""6 for a 7 that is alone, without the care that is taken."""


def of_condition(batch: pa.RecordBatch) -> list[Any]:
    condition = condition_of(WHOLE > 6, SCHEMA, "here")
    assert condition is not None
    found: list[Any] = computed([condition], batch)[condition].to_pylist()
    return found


def of_event_time(batch: pa.RecordBatch) -> list[Any]:
    column = computed_time(pl.lit(datetime(2026, 1, 1, tzinfo=UTC)) + pl.duration(days=WHOLE), SCHEMA, "here")
    found: list[Any] = times_of(column, batch, "rows", None).to_pylist()
    return found


@pytest.mark.parametrize("values_of", [of_condition, of_event_time])
def test_a_row_has_the_same_value_alone_and_among_others(values_of: Callable[[pa.RecordBatch], list[Any]]) -> None:
    alone = [value for row in range(len(BATCH)) for value in values_of(BATCH.slice(row, 1))]
    assert alone == values_of(BATCH)
