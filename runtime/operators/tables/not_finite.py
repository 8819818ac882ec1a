"""Values of a sum of floats that are not finite: how many rows of each group have NaN, infinity and minus infinity.

Taken into a sum of doubles, such a value would never leave it. So the sum is over the other values, and these are
counted below the group: while there are some, they are the result.

Pure.
Source: docs/decisions/0096-values-below-groups.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.contract import Kind
from holdfast.runtime.operators.tables.below import Counts, Entries, Part
from holdfast.state.collections.rows import OrderedRows
from holdfast.state.keys.batch import Keys

ROWS = "rows"
_NAN, _INFINITE, _MINUS_INFINITE = range(3)
"""The rows below a group; part of the format."""


@dataclass(frozen=True)
class NotFinite(Part):
    """How many rows of a group have each value that is not finite."""

    columns: ClassVar[tuple[str, ...]] = (ROWS,)

    @property
    def suffix(self) -> tuple[pa.DataType, ...]:
        return (pa.int16(),)

    def entries(self, values: pa.Array) -> Entries:
        numbers = values.to_numpy(zero_copy_only=False)
        found = np.flatnonzero(~np.isfinite(numbers))
        given = numbers[found]
        which = np.where(np.isnan(given), _NAN, np.where(given > 0, _INFINITE, _MINUS_INFINITE))
        return Entries(found, [pa.array(which.astype(np.int16))], [np.ones(found.size, np.int64)])

    def results(self, kind: Kind, rows: OrderedRows, groups: Keys, seen: Counts) -> pa.Array:
        """Return the sum, and the mean, of groups with such values; null for the others."""
        group_rows = rows.find(groups)
        which = rows.table.key_columns(group_rows.slots)[-1].to_numpy(zero_copy_only=False)
        has = np.zeros((3, len(groups)), bool)
        has[which, np.repeat(np.arange(len(groups)), group_rows.counts)] = (
            rows.table.values(self.column(ROWS), group_rows.slots) > 0
        )
        undefined = has[_NAN] | (has[_INFINITE] & has[_MINUS_INFINITE])
        results = np.where(undefined, np.nan, np.where(has[_INFINITE], np.inf, -np.inf))
        return pa.array(results, mask=~has.any(axis=0), from_pandas=False)
