"""`holdfast capture` of a Postgres table as a process: killed at any moment, beside another one, over a server's crash.

One writer changes accounts: transfers, splits, merges, keys that change, rollbacks, transactions that overlap. Each
transaction keeps the total, and its number is in a row of the table. So the test knows the table as of each number, and
each commit of the log has to show exactly one of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from captured_tables import tables, tag_lsn
from postgres_server import LOGICAL, PostgresPlace, PostgresServer, running

from holdfast.runtime.capture.postgres.messages import lsn_of
from holdfast.storage.log.log import read_meta
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.thorough

JOB = """
import holdfast as hf

app = hf.App("accounts")
source = hf.PostgresChanges({dsn!r}, {table!r}, hf.Log("log", partitions=2))
app.table("accounts", source, key="id").to_changes().sink("out", hf.Log("out"))
"""
ACCOUNTS = 40
NUMBER = 0
"""The key of the row with the number of the newest transaction, which counts in no total."""
WITHIN_S = 60
POLL_S = 0.2
Model = dict[int, int]


class Process:
    """A process of `holdfast capture`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "capture", "job.py", "--json"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)

    def event(self, *kinds: str) -> dict[str, Any]:
        """Return the next event of one of these kinds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] in kinds:
                return found
        raise AssertionError("the process ended early")

    def let_run(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the process ended early: {self.process.wait(seconds)}")

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(WITHIN_S) == -signal.SIGKILL

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        last = self.event("stopped")
        assert self.process.wait(WITHIN_S) == 0
        return last

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WITHIN_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def capturing(folder: Path) -> Iterator[Process]:
    process = Process(folder)
    try:
        yield process
    finally:
        process.close()


@dataclass
class Writer:
    """Changes the accounts, in transactions of two connections that may overlap."""

    place: PostgresPlace
    chance: random.Random
    now: Model = field(default_factory=dict)
    history: list[Model] = field(default_factory=list)
    """By number of the transaction."""

    def __post_init__(self) -> None:
        self.place.ask("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)")
        self.place.ask(f"INSERT INTO accounts SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) AS i")
        self.place.ask(f"INSERT INTO accounts VALUES ({NUMBER}, 0)")
        self.now = dict.fromkeys(range(1, ACCOUNTS + 1), 100) | {NUMBER: 0}
        self.history = [dict(self.now)]
        self.next_key = ACCOUNTS + 1
        self.connect()

    def connect(self) -> None:
        """Connect, also after the server was started again."""
        options = f"-csearch_path={self.place.schema}"
        self.dbs = [psycopg.connect(self.place.dsn, options=options) for _ in range(2)]

    def write(self, transactions: int) -> None:
        """Commit so many rounds of two transactions, of which the first may be rolled back."""
        for _ in range(transactions):
            keys = self.chance.sample(sorted(set(self.now) - {NUMBER}), 4)
            first, second = self.change(self.dbs[0], keys[:2]), self.change(self.dbs[1], keys[2:])
            if self.chance.random() < 0.2:
                self.dbs[0].rollback()
                self.commit(self.dbs[1], second)
            else:
                order = [(self.dbs[0], first), (self.dbs[1], second)]
                self.chance.shuffle(order)
                for db, changed in order:
                    self.commit(db, changed)

    def change(self, db: psycopg.Connection[Any], keys: list[int]) -> dict[int, int | None]:
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

    def commit(self, db: psycopg.Connection[Any], changed: dict[int, int | None]) -> None:
        number = self.now[NUMBER] + 1
        db.execute("UPDATE accounts SET balance = %s WHERE id = %s", (number, NUMBER))
        db.commit()
        for key, balance in {**changed, NUMBER: number}.items():
            if balance is None:
                del self.now[key]
            else:
                self.now[key] = balance
        self.history.append(dict(self.now))


def check(folder: Path, writer: Writer) -> list[int]:
    """Check the log at each of its commits; return the numbers of the transactions that they end with."""
    store, numbers, positions = LocalObjects(folder / "log"), list[int](), list[int]()
    if read_meta(store) is None:
        return []
    for position, rows in tables(store):
        table = {key: row["balance"] for key, row in rows.items()}
        assert sum(table.values()) - table[NUMBER] == 100 * ACCOUNTS
        assert table == writer.history[table[NUMBER]]
        numbers.append(table[NUMBER])
        positions.append(position)
    assert numbers == sorted(numbers) and positions == sorted(set(positions))
    return numbers


def newest(store: LocalObjects) -> int | None:
    """Return the number of the newest transaction in the log."""
    rows = [row for part in read_table(store) for row in part.rows.to_pylist()]
    return next((row["balance"] for row in rows if row["id"] == NUMBER), None)


def wait_for(folder: Path, writer: Writer, process: Process) -> None:
    """Wait until the log has all transactions."""
    store = LocalObjects(folder / "log")
    for _ in range(int(WITHIN_S / POLL_S)):
        process.let_run(POLL_S)
        if read_meta(store) is not None and newest(store) == writer.now[NUMBER]:
            assert check(folder, writer)[-1] == writer.now[NUMBER]
            return
    raise AssertionError("the log does not get all transactions")


def prepared(folder: Path, place: PostgresPlace, seed: int) -> Writer:
    """Write the job; return the writer."""
    (folder / "job.py").write_text(JOB.format(dsn=place.dsn, table=f"{place.schema}.accounts"))
    return Writer(place, random.Random(seed))


@pytest.fixture
def place(logical_postgres: PostgresServer) -> Iterator[PostgresPlace]:
    """An empty schema, whose slots are dropped in the end."""
    place = logical_postgres.place()
    yield place
    place.ask("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
    place.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 2), pytest.param(1, 12, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_killed_at_any_moment_it_shows_the_table_as_of_one_transaction(
    tmp_path: Path, place: PostgresPlace, seed: int, rounds: int
) -> None:
    writer, chance = prepared(tmp_path, place, seed), random.Random(seed)
    for number in range(rounds):
        with capturing(tmp_path) as process:
            writer.write(20)
            process.event("snapshot" if number == 0 else "streaming")
            for _ in range(chance.randrange(1, 6)):
                writer.write(20)
                process.let_run(chance.uniform(0, 0.1))
            process.kill()
        check(tmp_path, writer)
    with capturing(tmp_path) as process:
        writer.write(20)
        wait_for(tmp_path, writer, process)
        assert process.stop()["event"] == "stopped"
    ((behind,),) = place.ask("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    assert lsn_of(behind) <= tag_lsn(LocalObjects(tmp_path / "log"))


def test_a_second_process_waits_and_takes_over(tmp_path: Path, place: PostgresPlace) -> None:
    writer = prepared(tmp_path, place, 2)
    with capturing(tmp_path) as one:
        one.event("streaming")
        with capturing(tmp_path) as two:
            assert "another process captures" in two.event("waiting")["reason"]
            writer.write(20)
            one.kill()
            writer.write(20)
            wait_for(tmp_path, writer, two)
            two.stop()


def test_goes_on_after_a_server_that_shuts_down_or_crashes(tmp_path: Path) -> None:
    with running(extra=LOGICAL) as server:
        place = server.place()
        writer = prepared(tmp_path, place, 3)
        with capturing(tmp_path) as process:
            process.event("streaming")
            for end in (server.shut_down, server.stop):
                writer.write(20)
                end()
                server.start()
                writer.connect()
                writer.write(20)
                wait_for(tmp_path, writer, process)
            process.stop()
