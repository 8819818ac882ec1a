"""An Iceberg table in a folder, with its catalogue in SQLite, as tests use it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots

import holdfast as hf

NAME = "shop.rows"


class FolderCatalog:
    """A catalogue with one table, below a folder of the test.

    What `delta_tables` has under the same name does the same: tests of all tables use nothing else.

    Args:
        key: The key of the sink.
    """

    kind, rival_acts = "an Iceberg table", ("append", "overwrite", "delete", "expire")
    """What it is called; what other programs may do to it between deliveries."""

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

    def maintain(self) -> None:
        """Compact the table, and expire all older snapshots, as other programs do."""
        table = self.load()
        table.overwrite(table.scan().to_arrow())
        self.expire(keep=1)

    def forget_history(self) -> None:
        """Expire all snapshots but the newest."""
        self.expire(keep=1)

    def expire(self, keep: int) -> None:
        """Expire all but the newest snapshots."""
        loaded = self.load()
        lineage = sorted(loaded.snapshots(), key=lambda each: each.sequence_number or 0)
        with ExpireSnapshots(Transaction(loaded, autocommit=True)) as expiring:
            expiring.by_ids([each.snapshot_id for each in lineage[:-keep]])

    def drop(self) -> None:
        """Drop the table from its catalogue."""
        self.load().catalog.drop_table(NAME)

    def append(self, rows: pa.Table, to: Any = None) -> None:
        """Append rows as another program does, to the newest version or to one that was loaded before."""
        (to or self.load()).append(rows)

    def act(self, kind: str, rows: pa.Table) -> None:
        """Do what another program may do to the table."""
        table = self.load()
        if kind in ("append", "overwrite"):
            getattr(table, kind)(rows)
        elif kind == "delete":
            table.delete()
        else:
            table.append(rows)
            self.expire(keep=1)

    def note(self, name: str) -> None:
        """Write under a name what no sink does."""
        with self.load().transaction() as transaction:
            transaction.set_properties({name: "many"})

    def said(self) -> list[dict[str, Any]]:
        """Return what the commits of sinks say of themselves, newest last."""
        summaries = [each.summary for each in self.load().snapshots()]
        said = [None if each is None else each.additional_properties.get("holdfast") for each in summaries]
        return [json.loads(each) for each in said if each is not None]

    def versions(self) -> int:
        """Return how many commits changed the table since it was created."""
        return len(self.load().snapshots())

    def version(self) -> int:
        """Return the newest snapshot."""
        snapshot = self.load().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def go_back(self, version: int) -> None:
        """Make an older snapshot the newest, as a user does by hand."""
        self.load().manage_snapshots().set_current_snapshot(version).commit()

    def as_of(self, version: int) -> list[tuple[Any, ...]]:
        """Return the rows of a snapshot, sorted."""
        found = self.load().scan(snapshot_id=version).to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def data_files(self) -> list[Path]:
        """Return the files of the newest snapshot."""
        return [Path(each.file.file_path.removeprefix("file://")) for each in self.load().scan().plan_files()]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows by column."""
        found: list[dict[str, Any]] = self.load().scan().to_arrow().to_pylist()
        return found

    def restores(self) -> int:
        """Return how often a snapshot followed one that was not the newest."""
        parents = [each.parent_snapshot_id for each in self.load().snapshots()]
        return len(parents) - len(set(parents))
