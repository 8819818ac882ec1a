"""Accounts (accounts.py) in a Postgres table that one writer keeps changing, in transactions that overlap."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self

import psycopg
from accounts import ACCOUNTS, NUMBER, Accounts, Changed
from postgres_server import PostgresPlace

PAUSE_S = 0.05


class Writer(Accounts):
    """Changes the accounts, in transactions of two connections that may overlap."""

    def __init__(self, place: PostgresPlace, chance: random.Random) -> None:
        super().__init__(chance)
        self.place = place
        self._in_doubt: Changed | None = None
        """What the transaction changes whose COMMIT has no answer yet."""
        self.place.ask("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)")
        self.place.ask(f"INSERT INTO accounts SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) AS i")
        self.place.ask(f"INSERT INTO accounts VALUES ({NUMBER}, 0)")
        self.dbs = list[psycopg.Connection[Any]]()
        self.connect()

    def connect(self) -> None:
        """Connect, also after the server was started again.

        A transaction whose COMMIT was not answered counts if its number is in the table.
        """
        self.close()
        ((number,),) = self.place.ask(f"SELECT balance FROM accounts WHERE id = {NUMBER}")
        if self._in_doubt is not None and self._in_doubt[NUMBER] == number:
            self.note(self._in_doubt)
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
            keys = self.chosen(4)
            first, second = self._change(self.dbs[0], keys[:2]), self._change(self.dbs[1], keys[2:])
            if self.chance.random() < 0.2:
                self.dbs[0].rollback()
                self._commit(self.dbs[1], second)
            else:
                order = [(self.dbs[0], first), (self.dbs[1], second)]
                self.chance.shuffle(order)
                for db, changed in order:
                    self._commit(db, changed)

    def _change(self, db: psycopg.Connection[Any], keys: list[int]) -> Changed:
        """Change two accounts; return what they are after it."""
        statements, changed = self.change(*keys)
        for statement, values in statements:
            db.execute(statement.encode(), values)
        return changed

    def _commit(self, db: psycopg.Connection[Any], changed: Changed) -> None:
        (statement, values), self._in_doubt = self.numbered(changed)
        db.execute(statement.encode(), values)
        db.commit()
        self.note(self._in_doubt)
        self._in_doubt = None


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
