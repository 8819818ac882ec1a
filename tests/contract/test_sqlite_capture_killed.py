"""`holdfast capture` of a SQLite table as a process: killed at any moment, and beside another one.

One writer changes accounts, in transactions that have numbers (accounts.py). So the test knows the table as of each
number, and each commit of the log has to show exactly one of them.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from accounts import Accounts, play_kills, play_takeover

from holdfast.runtime.sources.sqlite.table import WRITER

pytestmark = pytest.mark.thorough

JOB = """
import holdfast as hf

app = hf.App("accounts")
source = hf.SQLiteChanges("a.db", "accounts", hf.Log("log", partitions=2))
app.table("accounts", source, key="id").to_changes().sink("out", hf.Log("out"))
"""
BUSY_S = 30.0


class Writer(Accounts):
    """Changes the accounts of a file."""

    def __init__(self, folder: Path, chance: random.Random, journal: str) -> None:
        super().__init__(chance)
        (folder / "job.py").write_text(JOB)
        self.db = sqlite3.connect(folder / "a.db", isolation_level=None, timeout=BUSY_S)
        self.db.execute(f"PRAGMA journal_mode = {journal}")
        self.db.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT")
        self.db.executemany("INSERT INTO accounts VALUES (?, ?)", self.now.items())

    def write(self, transactions: int) -> None:
        """Commit so many transactions, and roll some back."""
        for _ in range(transactions):
            self.db.execute("BEGIN IMMEDIATE")
            statements, changed = self.change(*self.chosen(2))
            number, changed = self.numbered(changed)
            for statement, values in (*statements, number):
                self.db.execute(statement.replace("%s", "?"), values)
            if self.chance.random() < 0.1:
                self.db.execute("ROLLBACK")
            else:
                self.db.execute("COMMIT")
                self.note(changed)


@pytest.mark.parametrize(
    ("journal", "rounds"),
    [("WAL", 2), ("DELETE", 2), pytest.param("WAL", 20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_killed_at_any_moment_it_shows_the_table_as_of_one_transaction(
    tmp_path: Path, journal: str, rounds: int
) -> None:
    chance = random.Random(f"{journal} {rounds}")
    writer = Writer(tmp_path, chance, journal)
    play_kills(tmp_path, writer, WRITER, rounds, chance)


def test_a_second_process_waits_and_takes_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path, random.Random(2), "WAL")
    play_takeover(tmp_path, writer, WRITER)
