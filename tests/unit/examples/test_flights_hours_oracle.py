"""The oracle of the hours accepts the right outputs and finds every way in which a row can be wrong, late or lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from holdfast.examples import flights_data, flights_hours_oracle
from holdfast.examples.flights_hours_oracle import EVENT, HOUR, RESULTS, hours_of, in_log_order, verify
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

pytestmark = pytest.mark.thorough

AIRPORTS = pl.DataFrame({"faa": ["EWR", "LAX"], "tzone": ["America/New_York", "America/Los_Angeles"]})
FLIGHTS = 3_000


def flights() -> pl.DataFrame:
    """Flights from Newark through most of a day of March, three a minute, to Los Angeles and to San Juan."""
    n = pl.int_range(FLIGHTS)
    minute = n // 3 % 1_260
    clock = minute // 60 * 100 + minute % 60
    later = minute + 180
    arrives = later % 1_440 // 60 * 100 + later % 60
    return pl.select(
        year=2013,
        month=3,
        day=1,
        sched_dep_time=clock,
        dep_time=clock,
        dep_delay=0,
        arr_time=arrives,
        arr_delay=n % 41 - 20,
        carrier=pl.lit("UA"),
        flight=n,
        tailnum=pl.lit("N1"),
        origin=pl.lit("EWR"),
        dest=pl.when(n % 5 == 0).then(pl.lit("SJU")).otherwise(pl.lit("LAX")),
    )


@dataclass
class Outputs:
    """What a job could have written, to be damaged."""

    db: Path
    out: Path
    events: pl.DataFrame
    late: pl.DataFrame

    def differences(self) -> list[str]:
        return verify(self.db, self.out, flights(), AIRPORTS).differences

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.db, isolation_level=None)) as connection:
            assert connection.execute(statement).rowcount > 0

    def append(self, log: str, rows: pl.DataFrame) -> None:
        writer = LogWriter(open_objects(str(self.out / log)))
        writer.append({0: rows.to_arrow().cast(writer.meta.schema)})


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[Outputs]:
    """What is right: two records that could be late are, and every other one is in its hour."""
    events = in_log_order(flights_hours_oracle.events_of(flights(), AIRPORTS))
    end = pl.col("event_time").dt.truncate("1h") + pl.duration(hours=1)
    waited = flights_hours_oracle.OUT_OF_ORDERNESS + flights_hours_oracle.LATENESS
    late = events.filter(end + waited <= pl.col("newest_before")).head(2)
    hours = hours_of(events.join(late, on=["flight", "kind"], how="anti"))
    found = Outputs(tmp_path / "flights.db", tmp_path / "out", events, late)
    strangers = events.filter(pl.col("airport") == "SJU").select(EVENT)
    for name, rows in (("late", late.select(EVENT)), ("hours", hours), ("unknown-airports", strangers)):
        create_log(open_objects(str(found.out / name)), columns_of(rows))
        found.append(name, rows)
    texts = pl.col("window_start", "window_end").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    with closing(sqlite3.connect(found.db, isolation_level=None)) as connection:
        connection.execute(f"CREATE TABLE hours ({', '.join(HOUR + RESULTS)})")
        marks = ", ".join("?" * len(HOUR + RESULTS))
        connection.executemany(f"INSERT INTO hours VALUES ({marks})", hours.with_columns(texts).rows())
    yield found


def columns_of(rows: pl.DataFrame) -> pa.Schema:
    """The columns as Holdfast types them: plain texts."""
    given = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    return pa.schema([(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type) for f in given])


class TestVerdict:
    def test_correct_outputs_have_no_differences(self, outputs: Outputs) -> None:
        verdict = verify(outputs.db, outputs.out, flights(), AIRPORTS)
        assert verdict.differences == []
        assert (verdict.events, verdict.rows["late"], verdict.rows["unknown-airports"]) == (6_000, 2, 600)

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            ("DELETE FROM hours WHERE rowid = 1", "missing"),
            ("INSERT INTO hours SELECT * FROM hours WHERE rowid = 1", "should not be there"),
            ("UPDATE hours SET events = events + 1 WHERE rowid = 1", "missing"),
            ("UPDATE hours SET mean_delay = mean_delay + 0.001 WHERE mean_delay > 0", "missing"),
            ("UPDATE hours SET least_delay = 0 WHERE least_delay IS NULL", "missing"),
            ("UPDATE hours SET window_end = '2013-03-01T05:00:00.000000Z' WHERE rowid = 1", "missing"),
        ],
    )
    def test_one_wrong_hour_is_found(self, outputs: Outputs, damage: str, says: str) -> None:
        outputs.sql(damage)
        assert any(says in line for line in outputs.differences())

    def test_a_record_that_is_both_late_and_in_its_hour_is_found(self, outputs: Outputs) -> None:
        outputs.append("late", outputs.late.head(1).select(EVENT))
        assert any(line.startswith("late") for line in outputs.differences())

    def test_a_record_missing_from_every_output_is_found(self, outputs: Outputs) -> None:
        outputs.sql("UPDATE hours SET events = events - 1 WHERE rowid = 1")
        assert outputs.differences()

    def test_a_record_that_cannot_have_been_late_is_found(self, outputs: Outputs) -> None:
        first = outputs.events.filter(pl.col("newest_before").is_null()).head(1)
        outputs.append("late", first.select(EVENT))
        assert any("its hour was not over" in line for line in outputs.differences())

    def test_a_late_record_that_differs_from_the_data_is_found(self, outputs: Outputs) -> None:
        outputs.append("late", outputs.late.head(1).select(EVENT).with_columns(delay=pl.lit(999, pl.Int64)))
        assert any("999" in line for line in outputs.differences())

    def test_a_missing_or_duplicated_unknown_airport_is_found(self, outputs: Outputs) -> None:
        outputs.append("unknown-airports", outputs.events.filter(pl.col("airport") == "SJU").head(1).select(EVENT))
        assert any("unknown airports" in line for line in outputs.differences())


class TestTheWheel:
    def test_the_oracle_derives_the_events_of_the_log_independently_in_order(self) -> None:
        tables = flights_data.tables()
        events = flights_data.events_of(tables[0], flights_data.zones(*tables))
        mine = in_log_order(flights_hours_oracle.events_of(tables[0], tables[1]))
        assert mine["flight", "kind", "event_time"].equals(events["flight", "kind", "event_time"])
        assert mine["partition"].equals(flights_data.partition_of(events), check_names=False)
