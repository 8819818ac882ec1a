"""Changes of a table as records of a changelog: which keys are put and deleted, column by column.

A change of the key is the delete of the old key and the put of the new one. A long value that an update left as it was
is taken from the old row, which is sent whole with REPLICA IDENTITY FULL.

Invariants
    - Records are in the order of the changes; so of one key, the last record is its row.
    - A record that deletes has nothing but its key.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.capture.postgres.messages import Absent, Change, Delete, Insert, Row
from holdfast.runtime.sources.postgres.columns import values_of
from holdfast.runtime.sources.postgres.table import SourceTable
from holdfast.storage.log.changelog import puts_and_deletes

_ROW_BYTES = 16
"""Bytes that a record counts besides its values."""


class Changes:
    """Records that were collected, not yet converted."""

    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._keys = [[column.name for column in table.columns].index(name) for name in table.key]
        self._columns: list[list[bytes | None]] = [[] for _ in table.columns]
        self._deleted: list[bool] = []
        self.size = 0
        """Bytes, roughly."""

    def __len__(self) -> int:
        return len(self._deleted)

    def add(self, change: Change, order: Sequence[int]) -> None:
        """Add the records of a change.

        Args:
            order: For each column of the table, where the change has it.

        Raises:
            ConfigError: the change lacks a value.
        """
        match change:
            case Insert(new=new):
                self._put(self._filled(new, None, order))
            case Delete(old=old):
                self._delete(self._filled(old, None, order))
            case _:
                new_row = self._filled(change.new, change.old, order)
                if change.old is not None:
                    old_row = [change.old[at] for at in order]
                    if any(old_row[at] != new_row[at] for at in self._keys):
                        self._delete(self._filled(change.old, None, order))
                self._put(new_row)

    def extend(self, other: Changes) -> None:
        """Add the records of another collection, after these."""
        for mine, others in zip(self._columns, other._columns, strict=True):
            mine += others
        self._deleted += other._deleted
        self.size += other.size

    def records(self) -> pa.Table:
        """Return the records, with the columns of the log.

        Raises:
            ConfigError: a value cannot be held by its column.
        """
        table = self._table
        arrays = [
            values_of(table.where, pa.array(texts, pa.binary()).cast(pa.utf8()), column)
            for column, texts in zip(table.columns, self._columns, strict=True)
        ]
        rows = pa.Table.from_arrays(arrays, names=[column.name for column in table.columns])
        return puts_and_deletes(rows, pa.chunked_array([pa.array(self._deleted, pa.bool_())]), table.key)

    def _filled(self, row: Row, old: Row | None, order: Sequence[int]) -> list[bytes | None]:
        """Return the values in the order of the table, with those that were not sent from the old row."""
        values: list[bytes | None] = []
        for at in order:
            value = row[at]
            if value is Absent.UNCHANGED and old is not None:
                value = old[at]
            if value is Absent.UNCHANGED:
                raise self._lacking()
            values.append(value)
        return values

    def _put(self, row: Sequence[bytes | None]) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
            self.size += len(value) if value is not None else 0
        self._deleted.append(False)
        self.size += _ROW_BYTES

    def _delete(self, row: Sequence[bytes | None]) -> None:
        key = set(self._keys)
        self._put([value if at in key else None for at, value in enumerate(row)])
        self._deleted[-1] = True

    def _lacking(self) -> ConfigError:
        table = self._table
        return ConfigError(
            f"{table.where}: an update was sent without a long value that it did not change",
            not_done="no change from this transaction on was captured",
            next_step=f'run on the server: ALTER TABLE "{table.schema}"."{table.name}" REPLICA IDENTITY FULL; then '
            "capture the table into another log, as this change remains in the stream",
        )
