"""How every aircraft and every route is doing, kept up to date while the news of flights comes in.

Two keyed aggregates side by side over one log: per tail number and per route. Every event counts in
both. A delay is that of an arrival; where nothing has arrived yet, its sum and its worst are null.
Flights that were cancelled before an aircraft was assigned have no tail number: they share the row
"unassigned".

    python examples/flights_data.py flights-demo/events     writes the log, once
    holdfast run examples/flights.py                        or: holdfast demo

FLIGHTS_LOG and FLIGHTS_DB say where the log and the results are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

import polars as pl

import holdfast as hf

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("FLIGHTS_DB", "flights-demo/flights.db")


@dataclass
class Event:
    """A departure, an arrival or a cancellation, as examples/flights_data.py writes it."""

    flight: str
    carrier: str
    tailnum: str | None
    origin: str
    dest: str
    kind: str
    event_time: datetime
    known_at: datetime
    delay_minutes: int | None


app = hf.App("flights", checkpoint_every="1s")
arrival = pl.col("kind") == "arrival"
events = app.source("events", hf.Log(LOG, Event)).select(
    "origin",
    "dest",
    tail=pl.col("tailnum").fill_null("unassigned"),
    departed=(pl.col("kind") == "departure").cast(pl.Int64),
    arrived=arrival.cast(pl.Int64),
    cancelled=(pl.col("kind") == "cancellation").cast(pl.Int64),
    delay=pl.when(arrival).then(pl.col("delay_minutes")),
)

for name, key in (("tails", ["tail"]), ("routes", ["origin", "dest"])):
    totals = events.key_by(*key).agg(
        name,
        events=hf.count(),
        departures=hf.sum("departed"),
        arrivals=hf.sum("arrived"),
        cancellations=hf.sum("cancelled"),
        delay_minutes=hf.sum("delay"),
        worst_delay=hf.max("delay"),
    )
    totals.sink(f"{name}-out", hf.SQLite(DB, table=name, key=key))

if __name__ == "__main__":
    app.main()
