"""The first, the last and the number of events of every aircraft, updated while events of flights arrive.

Events arrive up to twenty minutes late, so the latest record is not the latest event: the table keeps the extremes of
event time. delivery="idempotent" gives every row the tag of the epoch that wrote it, in the column _holdfast_tag. So
only a newer row replaces a row, even if a delivery is late or repeated.

    python examples/last_seen.py        or: holdfast run examples/last_seen.py
    sqlite3 flights-demo/seen.db "SELECT tail, last_seen FROM seen ORDER BY last_seen LIMIT 10"

The first use converts the flights of 2013 into a log. FLIGHTS_LOG and SEEN_DB are the paths of the log and the table.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("SEEN_DB", "flights-demo/seen.db")

app = hf.App("last-seen")
events = app.source("events", hf.Log(flights_data.written(LOG), flights_data.SCHEMA))
moved = events.filter(pl.col("tailnum").is_not_null() & (pl.col("kind") != "cancellation"))
seen = (
    moved.select("event_time", tail="tailnum")
    .key_by("tail")
    .agg("seen", first_seen=hf.min("event_time"), last_seen=hf.max("event_time"), events=hf.count())
)
seen.sink("seen-out", hf.SQLite(DB, table="seen", key=["tail"], delivery="idempotent"))

if __name__ == "__main__":
    app.main()
