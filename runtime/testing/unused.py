"""Event time of the partitions that a test has not used: they follow the others.

A source of the TestDriver has four partitions, and a test pushes to one as a rule. In production the three others would
be idle after a while; a test, in which no time passes, would see no window close.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.plan.model import Plan, SourceSpec
from holdfast.runtime.rows.dead_letters import Letters
from holdfast.runtime.time.event_times import times_of
from holdfast.runtime.worker.intake import Intake


def followed_us(plan: Plan, spec: SourceSpec, tables: Sequence[pa.Table], told: Sequence[int | None]) -> int | None:
    """Return the lowest watermark of the partitions in use; None if the time of one is unknown.

    Args:
        tables: The records of each of these partitions.
        told: The watermark that the test set last, per partition.
    """
    intake = Intake(
        replace(spec, on_error="drop"), plan.fragments[spec.fragment].schema, Letters(), plan.event_times_held()
    )
    watermarks_us = list[int]()
    for table, at_us in zip(tables, told, strict=True):
        times_us = [at_us] if at_us is not None else []
        for batch in table.combine_chunks().to_batches():
            times_us += _through(spec, intake.take(batch, Arrival())[0])
        if not times_us:
            return None
        watermarks_us.append(max(times_us))
    return min(watermarks_us, default=None)


def _through(spec: SourceSpec, rows: pa.RecordBatch) -> list[int]:
    """Return the watermark after these records; none if no record gives one."""
    if spec.watermark is not None:
        newest = pc.max(times_of(spec.watermark, rows, spec.name, None)).value
        return [] if newest is None else [newest]
    newest = pc.max(rows.column(spec.event_time)).value
    return [] if newest is None else [newest - spec.out_of_orderness_us]
