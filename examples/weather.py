"""Every departure with the weather at its airport as of that time: a stream that looks up rows of a table.

    python examples/weather.py          or: holdfast run examples/weather.py
    sqlite3 flights-demo/weather.db "SELECT visib, count(*) FROM departures GROUP BY visib"

The weather is an observation per airport and hour; some are missing, and then the one before counts. The first use
converts the flights of 2013 into a log. FLIGHTS_LOG and WEATHER_DB are the paths of the log and the table.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import holdfast as hf
from holdfast.examples import flights_data

LOG = os.environ.get("FLIGHTS_LOG", "flights-demo/events")
DB = os.environ.get("WEATHER_DB", "flights-demo/weather.db")
WEATHER = flights_data.weather()
COLUMNS = pa.schema(
    [pa.field("origin", pa.string(), False), pa.field("observed", flights_data.INSTANT, False)]
    + [pa.field(name, pa.float64()) for name in ("temp", "wind_speed", "visib")]
)


def observations(indices: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return these rows of the weather, which is in order of time."""
    rows: dict[str, Any] = WEATHER[indices.tolist()].to_dict(as_series=False)
    return rows


app = hf.App("weather")
log = hf.Log(flights_data.written(LOG), flights_data.SCHEMA)
events = app.source("events", log, event_time="event_time", out_of_orderness="20m")
source = hf.Generator(COLUMNS, observations, count=WEATHER.height, vectorised=True)
weather = app.table("weather", source, key="origin", event_time="observed")
departures = events.filter(pl.col("kind") == "departure").select("flight", "event_time", "origin")
known = departures.lookup("known", weather, on="origin", how="left")
known.sink("departures-out", hf.SQLite(DB, table="departures"))

if __name__ == "__main__":
    app.main()
