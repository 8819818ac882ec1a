"""The difference between the states of an operator at two checkpoints.

Keys are compared by their stored state, so a key whose result looks the same may have changed: a mean with one more
value, for example. Both sides must have the same columns.

Source: docs/decisions/0037-state-inspection.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from holdfast.errors import ConfigError, Where
from holdfast.runtime.inspect.reading import StateReading, gathered
from holdfast.runtime.inspect.view import View
from holdfast.state.blocks import StateRows
from holdfast.state.merged import Chained, Changed, compared


def schema_of(view: View) -> pa.Schema:
    """Return the columns of a difference: change, key, before, after."""
    keys = pa.struct([view.schema.field(name) for name in view.keys])
    values = pa.struct([view.schema.field(name).with_nullable(True) for name in view.values])
    return pa.schema(
        [
            pa.field("change", pa.string(), nullable=False),
            pa.field("key", keys, nullable=False),
            pa.field("before", values),
            pa.field("after", values),
        ]
    )


def differences(before: StateReading, after: StateReading) -> Iterator[pa.RecordBatch]:
    """Yield the keys that were added, removed or changed, each once, in the columns of `schema_of`.

    Raises:
        ConfigError: the operator has other columns in the second state than in the first.
    """
    view = after.view
    if before.view.schema != view.schema:
        raise ConfigError(
            f"operator {view.name!r} has other columns at epoch {before.at.epoch} than at epoch {after.at.epoch}",
            not_done="nothing was compared",
            next_step="compare two epochs of the same version of the operator, or read both with holdfast state scan",
            where=Where(job=after.at.job, operator=view.name),
        )
    return gathered(_shown(view, each) for each in compared(Chained(before.rows()), Chained(after.rows())))


def _shown(view: View, part: Changed) -> pa.RecordBatch:
    rows = part.after if part.after is not None else part.before
    assert rows is not None
    schema, shown = schema_of(view), view.table(rows)
    key = pa.StructArray.from_arrays([shown.column(name) for name in view.keys], fields=list(schema.field("key").type))
    change = pa.array([part.change] * len(rows), pa.string())
    sides = [_values(view, schema.field(name).type, side, len(rows)) for name, side in _sides(part)]
    return pa.RecordBatch.from_arrays([change, key, *sides], schema=schema)


def _sides(part: Changed) -> chain[tuple[str, StateRows | None]]:
    return chain((("before", part.before),), (("after", part.after),))


def _values(view: View, kind: pa.StructType, rows: StateRows | None, count: int) -> pa.Array:
    if rows is None:
        return pa.nulls(count, kind)
    shown = view.table(rows)
    arrays = [shown.column(name) for name in view.values]
    if not arrays:  # a set of keys
        return pa.array([{}] * count, kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind))
