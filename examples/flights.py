"""Current figures per aircraft, route and airport, updated while events of flights arrive.

Three keyed aggregates side by side over one log. Per tail number and per route: totals so far, in SQLite. Per airport:
its events and the delays of its arrivals in every hour of event time, emitted once the hour is over, to SQLite and to a
log. Events arrive up to twenty minutes late, in no order; an hour waits two (one of the watermark, one of lateness).
Later events go to a separate log, and none is dropped silently. Events at airports missing from the list
of airports are also copied to another log.

Delays are those of arrivals; before the first arrival, their sum, mean and extremes are null. Flights that
were cancelled before an aircraft was assigned have no tail number: they share the row "unassigned".

    python examples/flights.py      or: holdfast run examples/flights.py; holdfast demo also kills a worker and checks

The first use converts the flights of 2013 into a log.
FLIGHTS_LOG, FLIGHTS_DB and FLIGHTS_OUT are the paths of the log, the tables and the folder of the other outputs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("FLIGHTS_DB", "flights-demo/flights.db")
OUT = os.environ.get("FLIGHTS_OUT", "flights-demo/out")


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
log = hf.Log(flights_data.written(LOG), Event)
events = app.source("events", log, event_time="event_time", out_of_orderness="1m").select(
    "flight",
    "kind",
    "event_time",
    "origin",
    "dest",
    airport=pl.when(arrival).then(pl.col("dest")).otherwise(pl.col("origin")),
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

at_airports = events.select("flight", "kind", "event_time", "airport", "delay")
hours = (
    at_airports.key_by("airport")
    .window(hf.tumbling("1h"), allowed_lateness="1m")
    .agg(
        "hours",
        emit="final",
        events=hf.count(),
        delays=hf.count("delay"),
        delay_minutes=hf.sum("delay"),
        least_delay=hf.min("delay"),
        worst_delay=hf.max("delay"),
        mean_delay=hf.mean("delay"),
    )
)
hours.sink("hours-out", hf.SQLite(DB, table="hours"))
hours.sink("hours-log", hf.Log(f"{OUT}/hours"))
hours.late.sink("late-log", hf.Log(f"{OUT}/late"))

known = pl.col("airport").is_in(flights_data.airports()["faa"].to_list())
at_airports.filter(~known).sink("unknown-airports", hf.Log(f"{OUT}/unknown-airports"))

if __name__ == "__main__":
    app.main()
