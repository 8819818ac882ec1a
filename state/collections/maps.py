"""Maps: the entries of each user key in the order of their map keys, one row per entry.

Pure: no clock, thread or I/O.
Source: docs/decisions/0041-ordered-rows-and-timers.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.state.collections.rows import OrderedRows, existing, spec_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec


class Maps(OrderedRows):
    """The maps of one table. A map key is one value per column of the suffix."""

    @staticmethod
    def spec(
        operator: int,
        name: str,
        users: KeyType,
        map_key: KeyType,
        columns: Sequence[ColumnSpec],
        *,
        expiring: bool = False,
    ) -> TableSpec:
        """Return the table of maps by user key."""
        return spec_of(operator, name, users, map_key, columns, expiring)

    def put(self, users: Keys, map_keys: Sequence[pa.Array], columns: Columns) -> Rows:
        """Write one entry per row, return their slots. A map key may occur more than once: its last row counts."""
        slots = self.table.slots(self.keys(users, map_keys))
        self.table.write(slots, columns)
        return slots

    def get(self, users: Keys, map_keys: Sequence[pa.Array]) -> Rows:
        """Return the slot of one entry per row, -1 for those that do not exist."""
        return existing(self.table, self.keys(users, map_keys))

    def remove(self, users: Keys, map_keys: Sequence[pa.Array]) -> int:
        """Remove one entry per row; return how many existed."""
        slots = distinct(self.get(users, map_keys))
        slots = slots[slots >= 0]
        self.table.delete(slots)
        return int(slots.size)

    def map_keys(self, slots: Rows) -> list[pa.Array]:
        """Return the map keys of entries."""
        columns: list[pa.Array] = self.table.key_columns(slots)[self.table.spec.key.routed_part.stop :]
        return columns
