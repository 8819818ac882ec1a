"""Batches as the plan says they are: other nullability, other order, and a look where nulls may not be.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.stateless import OP_FIELD, Origin
from holdfast.runtime.steps import Check, Step
from holdfast.sinks.contract import PUT

Consumer = Callable[[pa.RecordBatch], None]


def relabelling(fields: Sequence[pa.Field], consumer: Consumer) -> Consumer:
    """Return what hands batches on with exactly these fields."""
    schema = pa.schema(fields)

    def take(batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(schema):
            batch = pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
        consumer(batch)

    return take


def checking(check: Check, step: Step, needed: Collection[str], origin: Origin, consumer: Consumer) -> Consumer:
    """Return what hands on the needed columns of a Check, after a look at those that may not be null."""
    fields = [field for field in step.schema if field.name in needed]
    upsert = step.upsert_key is not None
    hand_on = relabelling([*fields, OP_FIELD] if upsert else fields, consumer)

    def take(batch: pa.RecordBatch) -> None:
        for name in check.not_null:
            nulls = batch.column(name).is_null()
            if upsert:
                nulls = pc.and_(nulls, pc.equal(batch.column(OP_FIELD.name), PUT))
            if (row := nulls.index(True).as_py()) >= 0:
                raise _null(check, name, batch.slice(row, 1), origin)
        hand_on(batch)

    return take


def _null(check: Check, name: str, row: pa.RecordBatch, origin: Origin) -> JobFailed:
    values = repr(row.to_pylist()[0])
    return JobFailed(
        f"{check.use}: column {name!r} is null, which its type does not allow; the row is {values:.200}",
        not_done="the epoch was not completed; state and output stay as of the last checkpoint",
        next_step=f"filter such rows before it, fill the null, or let {name!r} be null in the type; then run the job "
        "again, it goes on from the last checkpoint",
        where=Where(job=origin.job, operator=origin.operator, source=origin.source),
    )
