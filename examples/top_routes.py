"""The three busiest routes of every hour: departures per route and hour, and a window over these results.

    python examples/top_routes.py       or: holdfast run examples/top_routes.py
    python -c 'import holdfast as hf; print(hf.log("flights-demo/top-routes").collect())'

The first use converts the flights of 2013 into a log. Routes with equally many departures are in reverse alphabetical
order. FLIGHTS_LOG and ROUTES_LOG are the paths of both logs.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
OUT = os.environ.get("ROUTES_LOG", "flights-demo/top-routes")

app = hf.App("top-routes")
log = hf.Log(flights_data.written(LOG), flights_data.SCHEMA)
events = app.source("events", log, event_time="event_time", out_of_orderness="20m")
departures = events.filter(pl.col("kind") == "departure")
routes = departures.select("event_time", route=pl.concat_str("origin", "dest", separator="-"))
hours = routes.key_by("route").window(hf.tumbling("1h")).agg("hours", flights=hf.count())
best = hours.window(hf.tumbling("1h")).agg("best", routes=hf.top("route", 3, by="flights"), flights=hf.sum("flights"))
best.sink("best-out", hf.Log(OUT))

if __name__ == "__main__":
    app.main()
