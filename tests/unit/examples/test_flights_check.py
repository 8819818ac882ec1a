"""The check of the flights job under faults counts lost and duplicated records."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.examples import flights_oracle
from holdfast.examples.flights_check import out_of_order, totals
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects


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
    def test_correct_tables_pass(self, db: Path) -> None:
        assert [(found.passed, found.lost, found.duplicated) for found in totals(db)] == [(True, 0, 0)] * 2

    def test_a_lost_and_a_duplicated_record_are_counted(self, db: Path) -> None:
        with closing(sqlite3.connect(db)) as database, database:
            database.execute("UPDATE tails SET events = events - 1 WHERE rowid = 1")
            database.execute("UPDATE routes SET events = events + 2 WHERE rowid = 1")
        assert [(found.passed, found.lost, found.duplicated) for found in totals(db)] == [(False, 1, 0), (False, 0, 2)]


HOURS = pa.schema([pa.field("airport", pa.string()), pa.field("window_end", pa.timestamp("us", "UTC"))])


def hours(folder: Path, *epochs: dict[int, list[tuple[str, int]]]) -> int | None:
    """Write a commit per epoch, with airports and hours by partition; return how many are out of order."""
    store = open_objects(str(folder))
    create_log(store, HOURS, 2)
    writer = LogWriter(store)
    for epoch, given in enumerate(epochs, 1):
        rows = {
            partition: [{"airport": at, "window_end": datetime(2013, 1, 1, hour, tzinfo=UTC)} for at, hour in each]
            for partition, each in given.items()
        }
        tables = {partition: pa.Table.from_pylist(each, HOURS) for partition, each in rows.items()}
        writer.append_tagged(tables, "j/s/0", Tag(Timeline(1), Epoch(epoch)))
    return out_of_order(folder)


class TestOutOfOrder:
    def test_only_hours_of_the_same_airport_must_be_in_order(self, tmp_path: Path) -> None:
        assert hours(tmp_path, {0: [("JFK", 5)]}, {1: [("EWR", 3), ("JFK", 7)], 0: [("JFK", 6)]}) == 0

    def test_an_hour_after_a_later_one_of_its_airport_is_counted(self, tmp_path: Path) -> None:
        assert hours(tmp_path, {0: [("JFK", 5), ("EWR", 1)]}, {1: [("JFK", 4)], 0: [("EWR", 2)]}) == 1
