"""Accounts in a table of any database, which one writer keeps changing: every transaction has a number, in the table.

The writer transfers, splits, merges, renames keys and rolls back. Each transaction keeps the total, and writes its
number into a row of the table. So a test knows the table as of each number: whatever copies the table has to show
exactly one of these states.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from capture_process import CaptureProcess, capturing
from captured_tables import tables
from patience import Patience

from holdfast.ports import ObjectStore
from holdfast.storage.log.log import read_meta
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects

ACCOUNTS = 40
NUMBER = 0
"""The key of the row with the number of the newest transaction, which counts in no total."""
TOTAL = 100 * ACCOUNTS
POLL_S = 0.2
Model = dict[int, int]
Changed = dict[int, int | None]
"""What accounts are after a transaction, None for one that is gone."""
Statement = tuple[str, tuple[int, ...]]
"""With `%s` for each value."""


class Accounts(ABC):
    """The accounts as they are, and as they were."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now: Model = dict.fromkeys(range(1, ACCOUNTS + 1), 100) | {NUMBER: 0}
        self.history: list[Model] = [dict(self.now)]
        """By number of the transaction."""
        self.next_key = ACCOUNTS + 1

    @abstractmethod
    def write(self, transactions: int) -> None:
        """Commit so many transactions, and roll some back."""

    def chosen(self, count: int) -> list[int]:
        """Return so many accounts."""
        return self.chance.sample(sorted(set(self.now) - {NUMBER}), count)

    def change(self, one: int, other: int) -> tuple[list[Statement], Changed]:
        """Return statements that change two accounts, and what the accounts are after them."""
        total, amount = self.now[one] + self.now[other], self.chance.randrange(-50, 50)
        kind = self.chance.choice(["transfer", "transfer", "split", "merge", "rename"])
        add, delete = "UPDATE accounts SET balance = balance + %s WHERE id = %s", "DELETE FROM accounts WHERE id = %s"
        if kind == "transfer":
            changed: Changed = {one: self.now[one] - amount, other: self.now[other] + amount}
            return [(add, (-amount, one)), (add, (amount, other))], changed
        if kind == "merge" and len(self.now) > ACCOUNTS // 2:
            statements = [(delete, (one,)), ("UPDATE accounts SET balance = %s WHERE id = %s", (total, other))]
            return statements, {one: None, other: total}
        key, self.next_key = self.next_key, self.next_key + 1
        if kind == "rename":
            return [("UPDATE accounts SET id = %s WHERE id = %s", (key, one))], {one: None, key: self.now[one]}
        statements = [(add, (-amount, one)), ("INSERT INTO accounts VALUES (%s, %s)", (key, amount))]
        return statements, {one: self.now[one] - amount, key: amount}

    def numbered(self, changed: Changed) -> tuple[Statement, Changed]:
        """Return the statement that writes the number of the next transaction, and all that it changes."""
        number = self.now[NUMBER] + 1
        return ("UPDATE accounts SET balance = %s WHERE id = %s", (number, NUMBER)), {**changed, NUMBER: number}

    def note(self, changed: Changed) -> None:
        """Note a transaction that was committed."""
        for key, balance in changed.items():
            if balance is None:
                del self.now[key]
            else:
                self.now[key] = balance
        self.history.append(dict(self.now))


def number_in(store: ObjectStore) -> int | None:
    """Return the number of the newest transaction in a log of the accounts; None: it has none yet."""
    if read_meta(store) is None:
        return None
    rows: list[dict[str, Any]] = [row for part in read_table(store) for row in part.rows.to_pylist()]
    return next((row["balance"] for row in rows if row["id"] == NUMBER), None)


def check(folder: Path, accounts: Accounts, writer: str) -> list[int]:
    """Check the log at each of its commits; return the numbers of the transactions that they end with."""
    store, numbers, positions = LocalObjects(folder / "log"), list[int](), list[int]()
    if read_meta(store) is None:
        return []
    for position, rows in tables(store, writer):
        table = {key: row["balance"] for key, row in rows.items()}
        assert sum(table.values()) - table[NUMBER] == TOTAL
        assert table == accounts.history[table[NUMBER]]
        numbers.append(table[NUMBER])
        positions.append(position)
    assert numbers == sorted(numbers) and positions == sorted(set(positions))
    return numbers


def wait_for(folder: Path, accounts: Accounts, process: CaptureProcess, writer: str) -> None:
    """Wait until the log has all transactions."""
    store = LocalObjects(folder / "log")
    patience = Patience(process.process.pid)
    while not patience.over:
        process.let_run(POLL_S)
        if number_in(store) == accounts.now[NUMBER]:
            assert check(folder, accounts, writer)[-1] == accounts.now[NUMBER]
            return
    raise AssertionError("the log does not get all transactions")


def play_kills(folder: Path, accounts: Accounts, writer: str, rounds: int, chance: random.Random) -> None:
    """Kill processes that capture at any moment, and compare the log after each; the last one catches up."""
    for number in range(rounds):
        with capturing(folder, folder / "job.py") as process:
            accounts.write(20)
            process.event("snapshot" if number == 0 else "streaming")
            for _ in range(chance.randrange(1, 6)):
                accounts.write(20)
                process.let_run(chance.uniform(0, 0.1))
            process.kill()
        check(folder, accounts, writer)
    with capturing(folder, folder / "job.py") as process:
        accounts.write(20)
        wait_for(folder, accounts, process, writer)
        assert process.stop()["event"] == "stopped"


def play_takeover(folder: Path, accounts: Accounts, writer: str) -> None:
    """Start a second process that captures: it waits until the first one is killed."""
    with capturing(folder, folder / "job.py") as one:
        one.event("streaming")
        with capturing(folder, folder / "job.py") as two:
            assert "another process captures" in two.event("waiting")["reason"]
            accounts.write(20)
            one.kill()
            accounts.write(20)
            wait_for(folder, accounts, two, writer)
            two.stop()
