"""The check of the flights job under faults counts what is lost and what was counted twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.examples import flights_oracle
from holdfast.examples.flights_check import totals


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """The tables as they must be."""
    data = flights_oracle.flights()
    with closing(sqlite3.connect(tmp_path / "flights.db")) as database, database:
        for table, key in flights_oracle.TABLES.items():
            columns = (*key, *flights_oracle.RESULTS)
            database.execute(f"CREATE TABLE {table}({', '.join(columns)})")
            rows = [(*of, *row) for of, row in flights_oracle.expected(data, key).items()]
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
    return tmp_path / "flights.db"


class TestTotals:
    def test_right_tables_are_right(self, db: Path) -> None:
        assert [(found.passed, found.lost, found.duplicated) for found in totals(db)] == [(True, 0, 0)] * 2

    def test_a_record_that_was_lost_and_one_that_counts_twice_are_counted(self, db: Path) -> None:
        with closing(sqlite3.connect(db)) as database, database:
            database.execute("UPDATE tails SET events = events - 1 WHERE rowid = 1")
            database.execute("UPDATE routes SET events = events + 2 WHERE rowid = 1")
        assert [(found.passed, found.lost, found.duplicated) for found in totals(db)] == [(False, 1, 0), (False, 0, 2)]
