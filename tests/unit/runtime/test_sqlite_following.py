"""What a log has of a SQLite table, whatever transactions, crashes and lost replies come in which order."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from captured_tables import Rows, tables

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.capture.sessions import StopRequest
from holdfast.runtime.capture.sqlite import outbox
from holdfast.runtime.capture.sqlite.process import Capture
from holdfast.runtime.sources.sqlite.table import WRITER
from holdfast.storage.objects import MemoryObjects

NUMBER = -7
"""The key of the row with the number of the newest transaction."""
STEPS = 200
TABLES = {
    "rowid": "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, n INTEGER)",
    "without rowid": "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT COLLATE NOCASE UNIQUE, n INTEGER) WITHOUT ROWID",
    "strict, another key": "CREATE TABLE t (id INT NOT NULL, u TEXT UNIQUE, n INT, PRIMARY KEY (id, n)) STRICT",
    "no unique column": "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT, n INTEGER)",
    "partial index": "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT, n INTEGER)",
    "unique by REPLACE": "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE ON CONFLICT REPLACE, n INTEGER)",
}
TOUCH = """CREATE TRIGGER touch_{0} AFTER {0} ON t WHEN NEW.u NOT LIKE '%+' AND NEW.id > 3
BEGIN UPDATE t SET u = u || '+' WHERE id = NEW.id; END"""


class Crash(BaseException):
    """The end of a process at any moment."""


class Writer:
    """A program that writes the table: one transaction after the other, of any kind of statements."""

    def __init__(self, path: Path, kind: str, chance: random.Random) -> None:
        self.chance, self.number = chance, 0
        self.db = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.db.execute(f"PRAGMA journal_mode = {chance.choice(['DELETE', 'WAL'])}")
        self.db.execute(f"PRAGMA recursive_triggers = {chance.choice(['ON', 'OFF'])}")
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute(TABLES[kind])
        if kind == "partial index":
            self.db.execute("CREATE UNIQUE INDEX i ON t (u) WHERE n > 2")
        if chance.random() < 0.5:
            for when in ("INSERT", "UPDATE"):
                self.db.execute(TOUCH.format(when))
        self.composite = "PRIMARY KEY (id, n)" in TABLES[kind]
        self.history: list[Rows] = []
        self.write()

    def write(self) -> None:
        """Commit a transaction, or roll it back; do nothing if another program has the file."""
        with contextlib.suppress(sqlite3.OperationalError):  # a lock, or an upsert without a unique column
            self.db.execute("BEGIN IMMEDIATE")
            for _ in range(self.chance.randrange(5)):
                with contextlib.suppress(sqlite3.IntegrityError):
                    self.db.execute(*self._statement())
            if self.chance.random() < 0.2:
                self.db.execute("ROLLBACK")
            else:
                self._commit()
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def _commit(self) -> None:
        self.db.execute("DELETE FROM t WHERE id = ?", (NUMBER,))
        self.db.execute("INSERT INTO t VALUES (?, NULL, ?)", (NUMBER, self.number + 1))
        self.db.execute("COMMIT")
        self.number += 1
        self.history.append(self.rows())

    def rows(self) -> Rows:
        """Return the table."""
        found = self.db.execute("SELECT id, u, n FROM t ORDER BY id, n")
        return {self._key(row): {"id": row[0], "u": row[1], "n": row[2]} for row in found.fetchall()}

    def _key(self, row: tuple[Any, ...]) -> Any:
        return (row[0], row[2]) if self.composite else row[0]

    def _statement(self) -> tuple[str, tuple[Any, ...]]:
        key, other, n = (self.chance.randrange(8) for _ in range(3))
        u = self.chance.choice([None, *"abcAB"])
        policy = self.chance.choice(["", "OR REPLACE", "OR IGNORE", "OR FAIL"])
        kinds: list[tuple[str, tuple[Any, ...]]] = [
            (f"INSERT {policy} INTO t VALUES (?, ?, ?)", (key, u, n)),
            (f"INSERT {policy} INTO t VALUES (?, ?, ?), (?, ?, ?)", (key, u, n, other, "a", n)),
            (f"UPDATE {policy} t SET u = ?, n = n + 1 WHERE id IN (?, ?)", (u, key, other)),
            (f"UPDATE {policy} t SET id = ? WHERE id = ?", (other, key)),
            ("INSERT INTO t VALUES (?, ?, ?) ON CONFLICT (u) DO UPDATE SET n = excluded.n", (key, u, n)),
            ("DELETE FROM t WHERE id = ?", (key,)),
        ]
        if self.chance.random() < 0.05:
            return "DELETE FROM t", ()
        return self.chance.choice(kinds)


class Fate(StopRequest):
    """Decides before and after each step what happens; it also is the request to stop."""

    def __init__(self, writer: Writer, chance: random.Random) -> None:
        super().__init__()
        self.writer, self.chance, self.left, self.calm = writer, chance, STEPS, False
        self.crashes = self.lost = 0

    def step(self) -> None:
        """Pass a moment in which the process may end."""
        if self.calm:
            return
        self.left -= 1
        if self.chance.random() < 0.5:
            self.writer.write()
        if self.chance.random() < 0.15:
            self.crashes += 1
            raise Crash

    def loses(self) -> bool:
        """Return whether a reply is lost."""
        lost = not self.calm and self.chance.random() < 0.1
        self.lost += lost
        return lost

    def is_set(self) -> bool:
        self.step()
        return super().is_set()

    def wait(self, seconds: float) -> None:
        self.step()


class Store(MemoryObjects):
    """Objects whose writes may be the last act of a process, or be answered by nothing."""

    fate: Fate

    def create(self, path: str, data: bytes) -> None:
        self.fate.step()
        if self.fate.loses():
            if self.fate.chance.random() < 0.5:
                super().create(path, data)
            raise Unavailable("the reply was lost", next_step="wait")
        super().create(path, data)
        self.fate.step()


class CalmStop(StopRequest):
    """The request to stop, which is made once the database has nothing left."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.left = path, 200

    def is_set(self) -> bool:
        self.left -= 1
        assert self.left > 0, "the log does not get all changes"
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            found = outbox.registered(db, "t")
            return found is not None and found.confirmed > 1 and outbox.is_idle(db, "t", found.confirmed)


def shown(store: MemoryObjects, composite: bool) -> list[Rows]:
    """Return the table as of each commit of the log."""
    key = (lambda row: (row["id"], row["n"])) if composite else (lambda row: row["id"])
    return [rows for _, rows in tables(store, WRITER, key)]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("seed", range(2))
def test_each_commit_of_the_log_equals_the_table_as_of_one_transaction(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{kind} {seed}")
    monkeypatch.setattr(outbox, "PIECE_ROWS", chance.choice([1, 3, 20_000]))
    monkeypatch.setattr(outbox, "REMOVED_ROWS", chance.choice([1, 3, 20_000]))
    path, store = tmp_path / "a.db", Store()
    writer = Writer(path, kind, chance)
    store.fate = fate = Fate(writer, chance)
    of = hf.SQLiteChanges(path, "t", hf.Log("memory/log", partitions=2)).capturing
    while fate.left > 0:
        with contextlib.suppress(Crash, Unavailable):
            Capture(of, store, lambda _: None, fate).run()
    fate.calm = True
    writer.write()
    Capture(of, store, lambda _: None, CalmStop(path)).run()
    states = shown(store, writer.composite)
    places = [writer.history.index(rows) for rows in states]
    assert places == sorted(places)
    assert states[-1] == writer.rows()
    assert fate.crashes > 5 and fate.lost > 0 and len(set(places)) > 3
    ((left,),) = writer.db.execute('SELECT count(*) FROM "_holdfast_changes_t"')
    assert left == 0
