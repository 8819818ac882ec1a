"""When each aircraft was at work: its departures and arrivals in sessions, which end after three hours without one.

    python examples/rotations.py        or: holdfast run examples/rotations.py
    sqlite3 flights-demo/rotations.db "SELECT * FROM rotations ORDER BY moves DESC LIMIT 10"

The first use converts the flights of 2013 into a log. Only flights out of New York are in the data, so an aircraft that
flies on from its destination is not seen. FLIGHTS_LOG and ROTATIONS_DB are the paths of the log and the table.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("ROTATIONS_DB", "flights-demo/rotations.db")

app = hf.App("rotations")
log = hf.Log(flights_data.written(LOG), flights_data.SCHEMA)
events = app.source("events", log, event_time="event_time", out_of_orderness="20m")
moves = events.filter(pl.col("tailnum").is_not_null() & (pl.col("kind") != "cancellation"))
rotations = (
    moves.key_by("tailnum")
    .window(hf.session("3h"))
    .agg("rotations", moves=hf.count(), first_from=hf.first("origin"), last_to=hf.last("dest"))
)
rotations.sink("rotations-out", hf.SQLite(DB, table="rotations"))

if __name__ == "__main__":
    app.main()
