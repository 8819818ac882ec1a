"""An Iceberg table in a folder, with its catalogue in SQLite, as tests use it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import holdfast as hf

NAME = "shop.rows"


class FolderCatalog:
    """A catalogue with one table, below a folder of the test.

    Args:
        key: The key of the sink.
    """

    def __init__(self, folder: Path, key: tuple[str, ...] | None = None, **arguments: Any) -> None:
        self.path = folder / "lake"
        self.url = f"sqlite:///{self.path}/catalog.db"
        self.sink = hf.Iceberg(NAME, self.url, self.path, key, **arguments)

    def load(self) -> Table:
        """Load the newest version, as another program does; the caller may commit to it."""
        return SqlCatalog("default", uri=self.url, warehouse=f"file://{self.path}").load_table(NAME)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows in any order, with the columns in the order of the table; none if there is no table."""
        if not (self.path / "catalog.db").exists():
            return []
        table = self.load()
        found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
        table.catalog.close()
        return found

    def back_up(self) -> Callable[[], None]:
        """Copy catalogue and warehouse; return what puts the copy in their place."""
        copy = self.path.with_name("backup")
        shutil.copytree(self.path, copy)

        def restore() -> None:
            shutil.rmtree(self.path)
            shutil.copytree(copy, self.path)

        return restore
