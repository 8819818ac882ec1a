"""Lists: the elements of each user key in the order in which they were appended, one row per element.

The suffix of an element's key is its number. The next one is one more than that of the last element, so a list has
no row of its own; after the last element is deleted, numbers begin at 0 again.

Pure: no clock, thread or I/O.
Source: docs/decisions/0041-ordered-rows-and-timers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.state.collections.rows import OrderedRows, ranks_of, spec_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec

NUMBER = KeyType(("number",), (pa.int64(),))
"""The suffix: numbers an element within its list."""


class Popped(NamedTuple):
    """Elements that were removed, list by list."""

    counts: Rows
    """Elements per user key."""
    values: Columns


class Lists(OrderedRows):
    """The lists of one table."""

    @staticmethod
    def spec(
        operator: int, name: str, users: KeyType, columns: Sequence[ColumnSpec], *, expiring: bool = False
    ) -> TableSpec:
        """Return the table of lists by user key, whose elements have these columns."""
        return spec_of(operator, name, users, NUMBER, columns, expiring)

    def append(self, users: Keys, columns: Columns) -> Rows:
        """Append one element per row to the list of its user key, in the order of the rows; return their slots."""
        last_elements = self.find(users, limit=1, descending=True)
        following = np.zeros(len(users), np.int64)
        if last_elements.slots.size:
            numbers = self.table.key_columns(last_elements.slots)[-1]
            following[last_elements.counts == 1] = numbers.to_numpy() + 1
        slots = self.table.slots(self.keys(users, [pa.array(following + ranks_of(users))]))
        self.table.write(slots, columns)
        return slots

    def pop(self, users: Keys, limit: Rows | int) -> Popped:
        """Remove the first elements of each list, at most `limit`, and return them. Each user key once."""
        found = self.find(users, limit=limit)
        popped = Popped(found.counts, self.values(found.slots))
        self.table.delete(found.slots)
        return popped

    def clear(self, users: Keys) -> int:
        """Remove all elements of these lists; return how many. Each user key once."""
        return self.delete(users)
