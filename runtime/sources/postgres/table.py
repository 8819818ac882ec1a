"""A Postgres table, as it is captured.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.sources.postgres.columns import PgColumn, row_fields

WRITER = "postgres"
"""The name of the tag of a capture, in its log."""
DEFAULT, FULL = "d", "f"
"""How catalogue and stream write a REPLICA IDENTITY: old rows are sent as their primary key, or whole."""


@dataclass(frozen=True)
class SourceTable:
    """A table, as it is captured."""

    schema: str
    name: str
    oid: int
    columns: tuple[PgColumn, ...]
    """Without generated ones."""
    key: tuple[str, ...]
    """The primary key."""
    full: bool
    """Whether old rows are sent with all their values (REPLICA IDENTITY FULL)."""
    partial: bool = False
    """Whether it has more columns than those that are captured."""

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"table {self.schema}.{self.name}"

    def rows(self) -> pa.Schema:
        """Return the columns of its rows."""
        return row_fields(self.columns, self.key)
