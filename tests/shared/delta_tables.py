"""A Delta table in a folder, as tests use it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import holdfast as hf


class FolderTable:
    """A table below a folder of the test.

    What `iceberg_tables` has under the same name does the same: tests of all tables use nothing else.

    Args:
        key: The key of the sink.
    """

    kind, rival_acts = "a Delta table", ("append", "overwrite", "delete", "optimize", "vacuum")
    """What it is called; what other programs may do to it between deliveries."""

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

    def maintain(self) -> None:
        """Compact the table, and delete the files that it no longer has, as other programs do."""
        table = self.load()
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        self.load().create_checkpoint()

    def forget_history(self) -> None:
        """Delete all of the log before its checkpoint."""
        for each in (self.path / "_delta_log").glob("*.json"):
            each.unlink()

    def drop(self) -> None:
        """Delete the table."""
        shutil.rmtree(self.path)

    def append(self, rows: pa.Table, to: Any = None) -> None:
        """Append rows as another program does, to the newest version or to one that was loaded before."""
        write_deltalake(to or str(self.path), rows, mode="append")

    def act(self, kind: str, rows: pa.Table) -> None:
        """Do what another program may do to the table."""
        table = self.load()
        if kind in ("append", "overwrite"):
            write_deltalake(table, rows, mode=kind)
        else:
            {"delete": table.delete, "optimize": table.optimize.compact, "vacuum": table.vacuum}[kind]()

    def note(self, name: str) -> None:
        """Write a number under a name as no sink does."""
        forged = CommitProperties(app_transactions=[Transaction(name, -5)])
        write_deltalake(
            str(self.path), self.load().to_pyarrow_table().slice(0, 0), mode="append", commit_properties=forged
        )

    def said(self) -> list[dict[str, Any]]:
        """Return what the commits of sinks say of themselves, newest last."""
        return [each["holdfast"] for each in self.load().history()[::-1] if "holdfast" in each]

    def versions(self) -> int:
        """Return how many commits changed the table since it was created."""
        return int(self.load().version())

    def version(self) -> int:
        """Return the newest version."""
        return int(self.load().version())

    def go_back(self, version: int) -> None:
        """Make an older version the newest, as a user does by hand."""
        self.load().restore(version)

    def as_of(self, version: int) -> list[tuple[Any, ...]]:
        """Return the rows of a version, sorted."""
        found = DeltaTable(str(self.path), version=version).to_pyarrow_table().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def data_files(self) -> list[Path]:
        """Return the files of the newest version."""
        return [Path(each.removeprefix("file://")) for each in self.load().file_uris()]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows by column."""
        found: list[dict[str, Any]] = self.load().to_pyarrow_table().to_pylist()
        return found

    def restores(self) -> int:
        """Return how often an older version was made the newest."""
        return [each["operation"] for each in self.load().history()].count("RESTORE")
