"""Merges rows of state with aggregates by their keys, such as the slices of a window.

A table of its own finds equal keys and holds the merged aggregates; it is dropped with the results.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.runtime.operators.aggregate import Folding, value_columns
from holdfast.runtime.rows.aggregate_functions import Slots
from holdfast.runtime.rows.aggregates import BoundAggregation
from holdfast.state.tables.table import Table


class Merging:
    """Merges rows of one table.

    Args:
        operator: Named in errors, with the job.
        table: Its keys begin with the time that tells rows of one key apart.
    """

    def __init__(self, operator: str, aggregations: Sequence[BoundAggregation], table: Table, job: str | None) -> None:
        self._operator, self._aggregations, self._table, self._job = operator, aggregations, table, job
        columns = value_columns(aggregations)
        self._spec = replace(table.spec, key=table.spec.key.routed, columns=columns, past=(), orders=())

    def merged(self, rows: Slots) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the key columns and the result columns, with one row per key.

        Raises:
            JobFailed: a merged sum does not fit.
        """
        table = Table(self._spec, 1)
        folding = Folding(self._operator, self._aggregations, table, self._job)
        folding.merge(self._table.keys_at(rows).routed(), self._table, rows)
        slots = table.present()
        return table.key_columns(slots), folding.results(slots)
