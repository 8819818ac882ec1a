"""Where the tests of a contract have the tables of a SQL sink: a file, or a schema of a server."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from other_dialect import OtherTable

from holdfast.sinks.sqlite.sink import SQLite


class SqlPlace(Protocol):
    """A place that is empty at first."""

    def sink(self, table: str, key: tuple[str, ...] | None, delivery: str = "transactional") -> Any:
        """Return a sink for a table of this name."""

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""

    def back_up(self) -> Callable[[], None]:
        """Copy all tables; return what restores them from the copy."""


@dataclass(frozen=True)
class FilePlace:
    """A file of SQLite, which the dialect of the sink's class reads in its own way."""

    made: type[SQLite | OtherTable]
    path: Path

    def sink(self, table: str, key: tuple[str, ...] | None, delivery: str = "transactional") -> Any:
        return self.made(self.path, table, key, delivery)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(os.fspath(self.path))) as db, db:
            return db.execute(sql).fetchall()

    def back_up(self) -> Callable[[], None]:
        backup = self.path.with_suffix(".backup")
        _copy(self.path, backup)
        return lambda: _copy(backup, self.path)


def _copy(source: Path, to: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(to)) as new:
        old.backup(new)


def place_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> SqlPlace:
    """Return the place of a kind of target, whose first word is the database: "sqlite", "other idempotent"."""
    places: dict[str, Callable[[], SqlPlace]] = {
        "sqlite": lambda: FilePlace(SQLite, folder / "out.db"),
        "other": lambda: FilePlace(OtherTable, folder / "out.db"),
        "postgres": lambda: request.getfixturevalue("postgres").place(),
    }
    return places[kind.split()[0]]()


def delivery_of(kind: str) -> str:
    """Return how a kind of target is written."""
    return "idempotent" if kind.endswith("idempotent") else "transactional"
