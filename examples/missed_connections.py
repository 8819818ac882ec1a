"""Aircraft that missed their connection: one arrives an hour late, and its next flight leaves late or is cancelled.

    python examples/missed_connections.py       or: holdfast run examples/missed_connections.py
    sqlite3 flights-demo/missed.db "SELECT next_origin, count(*) FROM missed GROUP BY next_origin"

The first use converts the flights of 2013 into a log. Only flights out of New York are in the data: between the late
arrival and the next flight, the aircraft flew back, which is not seen; so the two belong together only if they are less
than twelve hours apart. Other reasons may have kept the next flight, such as the weather. FLIGHTS_LOG and MISSED_DB are
the paths of the log and the table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("MISSED_DB", "flights-demo/missed.db")
LATE_ARRIVAL, LATE_DEPARTURE = 60, 15
"""Minutes."""


@dataclass
class Missed:
    tailnum: str | None
    arrival_flight: str
    arrival_delay_minutes: int | None
    next_flight: str
    next_origin: str
    next_delay_minutes: int | None
    """None: it was cancelled."""
    event_time: datetime


app = hf.App("missed-connections")
log = hf.Log(flights_data.written(LOG), flights_data.SCHEMA)
events = app.source("events", log, event_time="event_time", out_of_orderness="20m")
known = events.filter(pl.col("tailnum").is_not_null())
kind, delay = pl.col("kind"), pl.col("delay_minutes")
missed = (
    hf.pattern("arrival", kind == "arrival", delay >= LATE_ARRIVAL)
    .then("next", (kind == "cancellation") | ((kind == "departure") & (delay >= LATE_DEPARTURE)))
    .within("12h")
)
known.match("missed", missed, key="tailnum", to=Missed).sink("missed-out", hf.SQLite(DB, table="missed"))

if __name__ == "__main__":
    app.main()
