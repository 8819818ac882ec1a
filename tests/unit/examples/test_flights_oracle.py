"""The oracle accepts the right tables and finds every way in which one row can be wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from holdfast.examples.flights_oracle import RESULTS, TABLES, verify

DATA = pl.DataFrame(
    {
        "dep_time": [500, 600, 700, None],
        "arr_time": [800, 900, None, None],
        "arr_delay": [10, -4, None, None],
        "tailnum": ["N1", "N1", "N2", None],
        "origin": ["EWR", "EWR", "JFK", "JFK"],
        "dest": ["LAX", "LAX", "BOS", "BOS"],
    }
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """Both tables as they must be for DATA, written out by hand."""
    path = tmp_path / "flights.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as c:
        for table, key in TABLES.items():
            columns = ", ".join((*key, *RESULTS))
            c.execute(f"CREATE TABLE {table} ({columns})")
        c.execute("INSERT INTO tails VALUES ('N1', 4, 2, 2, 0, 6, 10)")
        c.execute("INSERT INTO tails VALUES ('N2', 1, 1, 0, 0, NULL, NULL), ('unassigned', 1, 0, 0, 1, NULL, NULL)")
        c.execute("INSERT INTO routes VALUES ('EWR', 'LAX', 4, 2, 2, 0, 6, 10), ('JFK', 'BOS', 2, 1, 0, 1, NULL, NULL)")
        yield path, c


class TestVerdict:
    def test_correct_tables_have_no_differences(self, db: tuple[Path, sqlite3.Connection]) -> None:
        verdict = verify(db[0], DATA)
        assert verdict.differences == []
        assert (verdict.events, verdict.rows) == (6, {"tails": 3, "routes": 2})

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            ("DELETE FROM tails WHERE tail = 'N2'", "missing"),
            ("INSERT INTO routes VALUES ('JFK', 'LAX', 1, 1, 0, 0, NULL, NULL)", "should not exist"),
            ("UPDATE tails SET events = 5 WHERE tail = 'N1'", "should be"),
            ("UPDATE routes SET delay_minutes = 0 WHERE origin = 'JFK'", "should be"),
            ("UPDATE routes SET worst_delay = 11 WHERE origin = 'EWR'", "should be"),
            ("UPDATE tails SET tail = NULL WHERE tail = 'unassigned'", "should not exist"),
        ],
    )
    def test_one_wrong_row_is_found(self, db: tuple[Path, sqlite3.Connection], damage: str, says: str) -> None:
        path, connection = db
        connection.execute(damage)
        assert any(says in line for line in verify(path, DATA).differences)

    def test_a_duplicated_row_is_found(self, db: tuple[Path, sqlite3.Connection]) -> None:
        path, connection = db
        connection.execute("INSERT INTO tails SELECT * FROM tails WHERE tail = 'N1'")
        assert verify(path, DATA).differences == ["tails ('N1',): 2 rows, should be one"]
