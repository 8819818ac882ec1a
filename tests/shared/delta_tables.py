"""A Delta table in a folder, as tests use it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import holdfast as hf


class FolderTable:
    """A table below a folder of the test.

    Args:
        key: The key of the sink.
    """

    def __init__(self, folder: Path, key: tuple[str, ...] | None = None, **arguments: Any) -> None:
        self.path = folder / "table"
        self.sink = hf.Delta(self.path, key, **arguments)

    def load(self) -> DeltaTable:
        """Load the newest version."""
        return DeltaTable(str(self.path))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows in any order, with the columns in the order of the table; none if there is no table."""
        if not (self.path / "_delta_log").exists():
            return []
        return [tuple(row.values()) for row in self.load().to_pyarrow_table().to_pylist()]

    def back_up(self) -> Callable[[], None]:
        """Copy the table; return what puts the copy in its place."""
        copy = self.path.with_name("backup")
        shutil.copytree(self.path, copy)

        def restore() -> None:
            shutil.rmtree(self.path)
            shutil.copytree(copy, self.path)

        return restore
