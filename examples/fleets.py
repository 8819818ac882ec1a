"""How many aircraft each carrier used in a month: counted exactly, and estimated from 4 KiB of state at most.

    python examples/fleets.py           or: holdfast run examples/fleets.py
    sqlite3 flights-demo/fleets.db "SELECT carrier, window_start, aircraft, about FROM fleets"

The first use converts the flights of 2013 into a log. A month begins at midnight in New York. FLIGHTS_LOG and FLEETS_DB
are the paths of the log and the table.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("FLEETS_DB", "flights-demo/fleets.db")

app = hf.App("fleets")
log = hf.Log(flights_data.written(LOG), flights_data.SCHEMA)
events = app.source("events", log, event_time="event_time", out_of_orderness="20m")
months = events.key_by("carrier").window(hf.calendar("month", tz="America/New_York"))
flown = pl.col("kind") != "cancellation"
fleets = months.agg(
    "fleets",
    aircraft=hf.distinct("tailnum", filter=flown),
    about=hf.approx_distinct("tailnum", filter=flown),
)
fleets.sink("fleets-out", hf.SQLite(DB, table="fleets"))

if __name__ == "__main__":
    app.main()
