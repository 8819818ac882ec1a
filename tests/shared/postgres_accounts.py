"""Accounts in a Postgres table that one writer keeps changing: every transaction has a number, which is in the table.

The writer transfers, splits, merges, renames keys and rolls back, in transactions that overlap. Each transaction keeps
the total, and writes its number into a row of the table. So a test knows the table as of each number: whatever copies
the table has to show exactly one of these states.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from postgres_server import PostgresPlace

from holdfast.ports import ObjectStore
from holdfast.storage.log.log import read_meta
from holdfast.storage.log.table import read_table

ACCOUNTS = 40
NUMBER = 0
"""The key of the row with the number of the newest transaction, which counts in no total."""
TOTAL = 100 * ACCOUNTS
PAUSE_S = 0.05
Model = dict[int, int]


@dataclass
class Writer:
    """Changes the accounts, in transactions of two connections that may overlap."""

    place: PostgresPlace
    chance: random.Random
    now: Model = field(default_factory=dict)
    history: list[Model] = field(default_factory=list)
    """By number of the transaction."""
    _in_doubt: dict[int, int | None] | None = None
    """What the transaction changes whose COMMIT has no answer yet."""

    def __post_init__(self) -> None:
        self.place.ask("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)")
        self.place.ask(f"INSERT INTO accounts SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) AS i")
        self.place.ask(f"INSERT INTO accounts VALUES ({NUMBER}, 0)")
        self.now = dict.fromkeys(range(1, ACCOUNTS + 1), 100) | {NUMBER: 0}
        self.history = [dict(self.now)]
        self.next_key = ACCOUNTS + 1
        self.dbs = list[psycopg.Connection[Any]]()
        self.connect()

    def connect(self) -> None:
        """Connect, also after the server was started again.

        A transaction whose COMMIT was not answered counts if its number is in the table.
        """
        self.close()
        ((number,),) = self.place.ask(f"SELECT balance FROM accounts WHERE id = {NUMBER}")
        if self._in_doubt is not None and self._in_doubt[NUMBER] == number:
            self._note(self._in_doubt)
        self._in_doubt = None
        assert number == self.now[NUMBER], "the server has lost a transaction, or has one that nobody committed"
        options = f"-csearch_path={self.place.schema}"
        for _ in range(2):
            self.dbs.append(psycopg.connect(self.place.dsn, options=options))

    def close(self) -> None:
        """Close the connections."""
        while self.dbs:
            self.dbs.pop().close()

    def write(self, transactions: int) -> None:
        """Commit so many rounds of two transactions, of which the first may be rolled back."""
        for _ in range(transactions):
            keys = self.chance.sample(sorted(set(self.now) - {NUMBER}), 4)
            first, second = self._change(self.dbs[0], keys[:2]), self._change(self.dbs[1], keys[2:])
            if self.chance.random() < 0.2:
                self.dbs[0].rollback()
                self._commit(self.dbs[1], second)
            else:
                order = [(self.dbs[0], first), (self.dbs[1], second)]
                self.chance.shuffle(order)
                for db, changed in order:
                    self._commit(db, changed)

    def _change(self, db: psycopg.Connection[Any], keys: list[int]) -> dict[int, int | None]:
        """Change two accounts; return what they are after it, None for one that is gone."""
        one, other = keys
        total, amount = self.now[one] + self.now[other], self.chance.randrange(-50, 50)
        kind = self.chance.choice(["transfer", "transfer", "split", "merge", "rename"])
        if kind == "transfer":
            db.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, one))
            db.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, other))
            return {one: self.now[one] - amount, other: self.now[other] + amount}
        if kind == "merge" and len(self.now) > ACCOUNTS // 2:
            db.execute("DELETE FROM accounts WHERE id = %s", (one,))
            db.execute("UPDATE accounts SET balance = %s WHERE id = %s", (total, other))
            return {one: None, other: total}
        key, self.next_key = self.next_key, self.next_key + 1
        if kind == "rename":
            db.execute("UPDATE accounts SET id = %s WHERE id = %s", (key, one))
            return {one: None, key: self.now[one]}
        db.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, one))
        db.execute("INSERT INTO accounts VALUES (%s, %s)", (key, amount))
        return {one: self.now[one] - amount, key: amount}

    def _commit(self, db: psycopg.Connection[Any], changed: dict[int, int | None]) -> None:
        number = self.now[NUMBER] + 1
        db.execute("UPDATE accounts SET balance = %s WHERE id = %s", (number, NUMBER))
        self._in_doubt = {**changed, NUMBER: number}
        db.commit()
        self._note(self._in_doubt)
        self._in_doubt = None

    def _note(self, changed: dict[int, int | None]) -> None:
        for key, balance in changed.items():
            if balance is None:
                del self.now[key]
            else:
                self.now[key] = balance
        self.history.append(dict(self.now))


class Writing:
    """Lets a writer write by itself, over ends of the server, while the block lasts or until it is stopped."""

    def __init__(self, writer: Writer) -> None:
        self.lost = 0
        """How often the server was lost."""
        self._writer, self._connected, self._stopped = writer, True, threading.Event()
        self._thread = threading.Thread(target=self._run, name="writing")

    def stop(self) -> None:
        """Write no more; find out what became of the last transaction. The server has to run."""
        self._end()
        if not self._connected:
            self._writer.connect()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._writer.close()

    def _end(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            try:
                if not self._connected:
                    self._writer.connect()
                    self._connected = True
                self._writer.write(1)
            except psycopg.OperationalError:
                self.lost += self._connected
                self._connected = False


def number_in(store: ObjectStore) -> int | None:
    """Return the number of the newest transaction in a log of the accounts; None: it has none yet."""
    if read_meta(store) is None:
        return None
    rows = [row for part in read_table(store) for row in part.rows.to_pylist()]
    return next((row["balance"] for row in rows if row["id"] == NUMBER), None)
