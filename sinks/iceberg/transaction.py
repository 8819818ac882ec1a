"""A transaction of pyiceberg that looks at the table's metadata without a copy each time.

The metadata lists all snapshots, and the library copies all of it, deeply, at each of twenty looks in one commit. That
took nine tenths of a commit to a table of 200 snapshots.

Invariants
    - The result of `table_metadata` never changes: the library builds each later state as another object.
"""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class OneCopy(Transaction):
    """A transaction that copies the metadata once for each staged change."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._seen: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with all that is staged."""
        if self._seen is None or self._seen[0] is not self._updates:
            self._seen = self._updates, super().table_metadata
        return self._seen[1]
