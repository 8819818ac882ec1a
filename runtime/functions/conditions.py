"""The `filter=` of an aggregate: a condition of a row, and the values that a batch has where it is true.

A row for which the condition is false or null counts as if its value were null. Conditions are checked as those of
`.filter(...)` are, and computed once per batch.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.rows.expressions import predicate_of
from holdfast.runtime.rows.forms import form_of
from holdfast.runtime.rows.frames import never_single

TEXT_LENGTH_MAX = 200


@dataclass(frozen=True)
class Condition:
    """A condition, compared by its normal form."""

    form: str
    """JSON."""
    expr: pl.Expr = field(compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(dict.fromkeys(self.expr.meta.root_names()))

    def __str__(self) -> str:
        text = str(self.expr)
        return text if len(text) <= TEXT_LENGTH_MAX else text[: TEXT_LENGTH_MAX - 3] + "..."


def condition_of(given: Any, schema: pa.Schema, where: str) -> Condition | None:
    """Return the condition that a user gave, checked.

    Raises:
        ConfigError: not an expression of one row that is true or false.
    """
    if given is None:
        return None
    expr = predicate_of(given, schema, where)
    return Condition(json.dumps(form_of(expr), sort_keys=True), expr)


def computed(conditions: Sequence[Condition], batch: pa.RecordBatch) -> Mapping[Condition, pa.Array]:
    """Return for every condition the rows for which it is true, as booleans without nulls.

    Raises:
        polars.exceptions.PolarsError: a condition cannot be computed.
    """
    columns = dict.fromkeys(name for each in conditions for name in each.columns) or batch.schema.names[:1]
    frame = pl.from_arrow(batch.select(list(columns)))
    assert isinstance(frame, pl.DataFrame)
    exprs = [each.expr.fill_null(False).alias(f"_{at}") for at, each in enumerate(conditions)]
    found = never_single(frame).with_columns(exprs).head(batch.num_rows)  # fills constants to the length of the frame
    return {each: pa.array(found.get_column(f"_{at}").to_numpy()) for at, each in enumerate(conditions)}


def masked(column: pa.Array | None, true: pa.Array) -> pa.Array:
    """Return a column that is null where the condition is not true; without a column, any values."""
    if column is None:
        return pa.array(np.zeros(len(true), np.bool_), mask=~true.to_numpy(zero_copy_only=False))
    return pc.if_else(true, column, pa.scalar(None, column.type))
