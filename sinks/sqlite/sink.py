"""`hf.SQLite`: a table in a SQLite file as a sink. sinks/sql writes it, in the words of dialect.py.

Source: DESIGN section 7; API.md (sinks).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.sinks.sql.sink import TableSink
from holdfast.sinks.sqlite.dialect import SQLiteDialect
from holdfast.storage.paths import refuse_password
from holdfast.traits import Library, SinkTraits


@dataclass(frozen=True, init=False)
class SQLite(TableSink):
    """A table in a SQLite file; created, file and table, if missing, else checked.

    Args:
        path: The file, on a disk that every worker sees. Relative to the working directory.
        table: The table.
        key: The columns of the primary key; a row replaces the one with its key. Without it,
            rows are only added.
        delivery: "transactional": the rows of an epoch become visible in one transaction, after its checkpoint.
            "idempotent": so too, and a key changes only by a newer tag than the one its row carries in the column
            `_holdfast_tag`; needs a key. Where no shuffle lies between source and sink, and the source is partitioned
            by columns of the key, rows are written immediately, before the commit; `holdfast plan` shows which applies.
    """

    path: str
    table: str
    key: tuple[str, ...] | None
    delivery: str
    library: ClassVar[Library] = Library(name="sqlite", version=sqlite3.sqlite_version)

    @checked("hf.SQLite", '("out.db", table="hot", key=["auction"])')
    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        key: Iterable[str] | None = None,
        delivery: str = "transactional",
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise ConfigError(
                f"hf.SQLite: {os.fspath(path)!r} is not a file; results have to outlive the process",
                next_step="give the path of a file; a test reads results with hf.testing.TestDriver",
            )
        refuse_password(os.fspath(path), "the path of hf.SQLite")
        key = (key,) if isinstance(key, str) else key
        object.__setattr__(self, "path", os.path.abspath(path))
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "key", None if key is None else tuple(key))
        object.__setattr__(self, "delivery", delivery)

    @classmethod
    def example(cls) -> SQLite:
        """Return a table that has every trait; see sources/listed.py."""
        return cls("out.db", "hot", key=["auction"], delivery="idempotent")

    @property
    def dialect(self) -> SQLiteDialect:
        return SQLiteDialect(self.path)

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"SQLite {self.path}, table {self.table!r}"

    @property
    def traits(self) -> SinkTraits:
        return self.traits_of("SQLite", {"path": self.path, "table": self.table}, (self.path,))
