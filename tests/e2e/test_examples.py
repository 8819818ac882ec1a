"""The examples as a user runs them, on Spark: one command each, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import patience
import polars as pl
import pytest
from running import IN_BOTH_MODES_SLOWLY

from holdfast.examples import dead_letters, flights_data
from holdfast.examples.word_count import LINES
from holdfast.runtime.inspect.logframe import log

EXAMPLES = Path(__file__).parents[2] / "examples"
HOLDFAST = ["-m", "holdfast.runtime.cli.main", "run"]
SOME_FLIGHTS = 2_000

SCRIPT = """
import os
from dataclasses import dataclass

import holdfast as hf
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects
import pyarrow as pa

COLUMNS = pa.schema([pa.field("shop", pa.string(), nullable=False)])

@dataclass
class Sale:
    shop: str

def north_only(sale: Sale) -> bool:
    if sale.shop != "north":
        os._exit(3)
    return True

create_log(open_objects("sales"), COLUMNS, 1)
writer = LogWriter(open_objects("sales"))
app, rows = hf.App("totals"), hf.Collect()
sales = app.source("sales", hf.Log("sales", Sale))
totals = sales.filter(north_only).key_by("shop").agg("totals", sales=hf.count())
totals.sink("printed", hf.Console())
totals.sink("kept", rows)
for more in (1, 2):
    writer.append({0: pa.table({"shop": ["north"] * more}, COLUMNS)})
    app.run(once=True, parallelism=more, progress="none")
    print(rows.frame().rows())
writer.append({0: pa.table({"shop": ["south"]}, COLUMNS)})
try:
    app.run(once=True, progress="none")
except hf.JobFailed as error:
    print("refused:", error.what.partition(":")[0])
"""


def done(folder: Path, *command: str, **environment: str) -> str:
    """Run a command in a folder; return its stderr."""
    variables = {**os.environ, "TMPDIR": str(folder), **environment}
    status, out, errors = patience.run([sys.executable, *command], folder, " ".join(command), variables)
    assert status == 0, out + errors
    return errors


def rows(db: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def some_flights(folder: Path) -> pl.DataFrame:
    """Write the log of some flights where the examples look for it; return its events."""
    flights, airports = flights_data.tables()
    events = flights_data.events_of(flights.head(SOME_FLIGHTS), flights_data.zones(flights, airports))
    flights_data.write_log(str(folder / "flights-demo" / "events"), events)
    return events


@pytest.mark.e2e
@IN_BOTH_MODES_SLOWLY
@pytest.mark.usefixtures("mode")
class TestExamples:
    def test_word_count_runs_with_python(self, tmp_path: Path) -> None:
        said = done(tmp_path, str(EXAMPLES / "word_count.py"))
        assert f"{len(LINES):,} records" in said
        assert rows(tmp_path / "words.db", "SELECT count(*) > 3000, max(n) > 1000 FROM words") == [(1, 1)]

    def test_last_seen_runs_with_holdfast_run(self, tmp_path: Path) -> None:
        events = some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "last_seen.py"))
        flown = events.filter(events["tailnum"].is_not_null(), events["kind"] != "cancellation")
        found = rows(tmp_path / "flights-demo" / "seen.db", "SELECT count(*), sum(events) FROM seen")
        assert found == [(flown["tailnum"].n_unique(), flown.height)]

    @pytest.mark.slow
    def test_every_flown_event_is_in_one_rotation(self, tmp_path: Path) -> None:
        events = some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "rotations.py"))
        flown = events.filter(events["tailnum"].is_not_null(), events["kind"] != "cancellation")
        assert rows(tmp_path / "flights-demo/rotations.db", "SELECT sum(moves) FROM rotations") == [(flown.height,)]

    @pytest.mark.slow
    def test_every_departure_is_in_an_hour_of_the_top_routes(self, tmp_path: Path) -> None:
        events = some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "top_routes.py"))
        hours = log(tmp_path / "flights-demo/top-routes").collect()
        assert hours["flights"].sum() == (events["kind"] == "departure").sum() > 0
        assert hours["routes"].list.len().max() == 3

    @pytest.mark.slow
    def test_connections_are_missed_after_late_arrivals(self, tmp_path: Path) -> None:
        some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "missed_connections.py"))
        query = "SELECT count(*) > 0, min(arrival_delay_minutes) >= 60, min(next_delay_minutes) >= 15 FROM missed"
        assert rows(tmp_path / "flights-demo/missed.db", query) == [(1, 1, 1)]

    @pytest.mark.slow
    def test_the_fleets_of_all_carriers_are_counted(self, tmp_path: Path) -> None:
        events = some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "fleets.py"))
        flown = events.filter(events["tailnum"].is_not_null(), events["kind"] != "cancellation")
        aircraft = flown.select("carrier", "tailnum").n_unique()
        assert rows(tmp_path / "flights-demo/fleets.db", "SELECT sum(aircraft) FROM fleets") == [(aircraft,)]

    def test_every_departure_gets_its_weather(self, tmp_path: Path) -> None:
        events = some_flights(tmp_path)
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "weather.py"))
        found = rows(tmp_path / "flights-demo/weather.db", "SELECT count(*), count(temp) FROM departures")
        departures = (events["kind"] == "departure").sum()
        assert found == [(departures, departures)]

    def test_a_script_can_run_a_job_twice_and_read_its_rows(self, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text(SCRIPT)
        variables = {**os.environ, "TMPDIR": str(tmp_path), "HOLDFAST_RESTART_FAILURES_MAX": "0", "HOLDFAST_LOCAL": "0"}
        status, out, errors = patience.run([sys.executable, "script.py"], tmp_path, "the script", variables)
        assert status == 0, out + errors
        assert out.splitlines() == [
            "printed: shop=north sales=1",
            "[('north', 1)]",
            "printed: shop=north sales=3",
            "[('north', 3)]",
            "refused: job 'totals' failed",
        ]
        assert "incubator" not in errors
        [place] = re.findall("Spark's own log is in (.+)", errors)
        assert "Python worker exited" in Path(place).read_text(), "the JVM is that of the first run"

    def test_the_job_of_a_new_project_writes_its_hours(self, tmp_path: Path) -> None:
        done(tmp_path, *HOLDFAST[:2], "new", "sales")
        done(tmp_path / "sales", *HOLDFAST, "job.py", "--once")
        found = rows(tmp_path / "sales/sales.db", "SELECT count(*), count(DISTINCT shop), sum(sales) FROM hours")
        sold = [line for line in (tmp_path / "sales/data/sales.jsonl").read_text().splitlines() if "T13:" not in line]
        assert found == [(12, 3, len(sold))]

    def test_dead_letters_are_listed_after_the_run(self, tmp_path: Path) -> None:
        done(tmp_path, *HOLDFAST, str(EXAMPLES / "dead_letters.py"))
        [(flown,)] = rows(tmp_path / "carriers.db", "SELECT sum(flights) FROM carriers")
        command = [sys.executable, *HOLDFAST[:2], "dlq", "list", "dead-letters", "--json"]
        listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(listed.stdout)["total"] == len(dead_letters.LINES) - flown > 0
