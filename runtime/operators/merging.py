"""Merges rows of state with aggregates by their keys: the slices of a window, sessions that became one.

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
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.spec import Columns
from holdfast.state.tables.table import Table


class Merging:
    """Merges rows of one table.

    Args:
        operator: Named in errors, with the job.
        table: A time in its keys tells rows of one user key apart.
    """

    def __init__(self, operator: str, aggregations: Sequence[BoundAggregation], table: Table, job: str | None) -> None:
        self._operator, self._aggregations, self._table, self._job = operator, aggregations, table, job
        self._columns = value_columns(aggregations)

    def merged(self, rows: Slots) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the key columns and the result columns, with one row per key, whatever times are in the keys.

        Raises:
            JobFailed: a merged sum does not fit.
        """
        keys = self._table.keys_at(rows).routed()
        table, folding = self._merge(keys, rows)
        slots = table.present()
        return table.key_columns(slots), folding.results(slots)

    def states(self, keys: Keys, rows: Slots) -> tuple[Keys, Columns]:
        """Return the merged state of rows by other keys, one for each: the distinct keys, and the columns of state.

        Raises:
            JobFailed: a merged sum does not fit.
        """
        table, _ = self._merge(keys, rows)
        slots = table.present()
        columns = {c.name: table.values(c.name, slots) if c.plain else table.read(c.name, slots) for c in self._columns}
        return table.keys_at(slots), columns

    def _merge(self, keys: Keys, rows: Slots) -> tuple[Table, Folding]:
        spec = replace(self._table.spec, key=keys.type, columns=self._columns, past=(), orders=())
        table = Table(spec, 1)
        folding = Folding(self._operator, self._aggregations, table, self._job)
        folding.merge(keys, self._table, rows)
        return table, folding
