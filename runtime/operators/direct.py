"""Filters and projections of simple expressions, run on a small batch without a query engine.

A chain has a direct form if all its expressions have one: see `arithmetic`. `run` raises `NeedsQuery` for a batch that
only Polars computes; the chain then computes this batch as it computes large ones.

Invariants
    - The output is that of the chain's queries, bit for bit, but for the sign and payload of NaN.

Pure.
Source: docs/decisions/0134-small-batches-without-a-query.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.runtime.operators.arithmetic import Columns, Compiled, as_array, compiled

ROWS_MAX = 65_536
"""Rows up to which a batch is computed directly; from there on a query takes no longer."""


@dataclass(frozen=True)
class _Filter:
    predicate: Compiled
    after: tuple[str, ...]
    """Columns that are needed after it."""
    reads: frozenset[str]

    def apply(self, columns: Columns) -> Columns | None:
        row_mask = self.predicate.compute(columns)
        count = int(np.count_nonzero(row_mask))
        if count == len(row_mask):
            return columns
        if not count:
            return None
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self.after], names=list(self.after))
        return dict(zip(self.after, rows.filter(pa.array(row_mask)).columns, strict=True))


@dataclass(frozen=True)
class _Project:
    sources: Mapping[str, str | Compiled]
    """For each column that comes out, the column that it is, or the function that computes it."""
    reads: frozenset[str]

    def apply(self, columns: Columns) -> Columns | None:
        return {
            name: columns[source] if isinstance(source, str) else as_array(source.compute(columns), source.kind)
            for name, source in self.sources.items()
        }


@dataclass(frozen=True)
class Direct:
    """Consecutive steps in their direct form."""

    steps: tuple[_Filter | _Project, ...]
    schema: pa.Schema

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the output rows, None if there are none. Raises NeedsQuery."""
        columns: Columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        with np.errstate(all="ignore"):
            for step in self.steps:
                following = step.apply(columns)
                if following is None:
                    return None
                columns = following
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


StepForm = pl.Expr | Mapping[str, str | pl.Expr]
"""A filter's predicate, or for each column of a projection the column that it is, or its expression."""


def direct(forms: Sequence[StepForm], schemas: Sequence[pa.Schema], out: pa.Schema) -> Direct | None:
    """Return the direct form of consecutive steps; None if one of them has none.

    Args:
        schemas: The columns that the first step reads, and those that each step returns.
        out: The columns that are needed after the last.
    """
    steps: list[_Filter | _Project] = []
    names = list(out.names)
    if not names:
        return None  # no column would carry the number of rows
    for at in reversed(range(len(forms))):
        form = forms[at]
        step = (
            _filter(form, schemas[at], names)
            if isinstance(form, pl.Expr)
            else _project(form, schemas[at], schemas[at + 1], names)
        )
        if step is None:
            return None
        steps.append(step)
        names = sorted(step.reads)
    return Direct(tuple(reversed(steps)), out)


def _filter(predicate: pl.Expr, schema: pa.Schema, needed: Sequence[str]) -> _Filter | None:
    function = compiled(predicate, schema)
    if function is None or function.kind != pa.bool_():
        return None
    return _Filter(function, tuple(needed), frozenset({*needed, *predicate.meta.root_names()}))


def _project(
    columns: Mapping[str, str | pl.Expr], schema: pa.Schema, after: pa.Schema, needed: Sequence[str]
) -> _Project | None:
    sources: dict[str, str | Compiled] = {}
    reads: set[str] = set()
    for name in needed:
        source = columns[name]
        if isinstance(source, str):
            sources[name] = source
            reads.add(source)
            continue
        function = compiled(source, schema)
        if function is None or function.kind != after.field(name).type or function.kind == pa.string():
            return None
        sources[name] = function
        reads.update(source.meta.root_names())
    return _Project(sources, frozenset(reads))
