"""The flights job changes five times while its events arrive, and keeps its state: compared with plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.examples import flights_data
from holdfast.sinks.memory.sink import MemorySink

FLIGHTS = 240
Event = dict[str, Any]
HOUR = timedelta(hours=1)


def schema(delay: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field("tail", pa.string(), nullable=False),
            pa.field("airport", pa.string(), nullable=False),
            pa.field("arrived", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("delay", delay),
        ]
    )


def app_of(delay: pa.DataType, tails: dict[str, Any], hours: dict[str, Any]) -> hf.App:
    app = hf.App("flights", key_groups=16)
    events = app.source("events", hf.Log("unused", schema(delay)), event_time="at", out_of_orderness="30d")
    totals = events.key_by("tail").agg("tails", **tails)
    totals.sink("tails-out", MemorySink(key=["tail"]))
    windows = events.key_by("airport").window(hf.tumbling("1h")).agg("hours", emit="final", **hours)
    windows.sink("hours-out", MemorySink())
    return app


NARROW, WIDE = pa.int32(), pa.int64()
PHASES: list[tuple[pa.DataType, dict[str, Any], dict[str, Any], list[str]]] = [
    (NARROW, {"events": hf.count(), "minutes": hf.sum("delay"), "worst": hf.max("delay")}, {"events": hf.count()}, []),
    (  # two aggregates more, and one in windows that are open
        NARROW,
        {
            "events": hf.count(),
            "minutes": hf.sum("delay"),
            "worst": hf.max("delay"),
            "arrivals": hf.sum("arrived"),
            "mean_delay": hf.mean("delay"),
        },
        {"events": hf.count(), "delays": hf.count("delay"), "mean_delay": hf.mean("delay")},
        [],
    ),
    (  # other names, another order
        NARROW,
        {
            "worst_delay": hf.max("delay").was("worst"),
            "mean_delay": hf.mean("delay"),
            "events": hf.count(),
            "arrivals": hf.sum("arrived"),
            "delay_minutes": hf.sum("delay").was("minutes"),
        },
        {"delays": hf.count("delay"), "all_events": hf.count().was("events"), "mean_delay": hf.mean("delay")},
        [],
    ),
    (  # a wider delay
        WIDE,
        {
            "worst_delay": hf.max("delay").was("worst"),
            "mean_delay": hf.mean("delay"),
            "events": hf.count(),
            "arrivals": hf.sum("arrived"),
            "delay_minutes": hf.sum("delay").was("minutes"),
        },
        {"delays": hf.count("delay"), "all_events": hf.count(), "mean_delay": hf.mean("delay")},
        [],
    ),
    (  # one aggregate less
        WIDE,
        {
            "worst_delay": hf.max("delay"),
            "mean_delay": hf.mean("delay"),
            "events": hf.count(),
            "delay_minutes": hf.sum("delay"),
        },
        {"delays": hf.count("delay"), "all_events": hf.count()},
        ["tails.arrivals", "hours.mean_delay"],
    ),
    (  # it is added again
        WIDE,
        {
            "worst_delay": hf.max("delay"),
            "events": hf.count(),
            "delay_minutes": hf.sum("delay"),
            "mean_delay": hf.mean("delay"),
            "arrivals": hf.sum("arrived"),
        },
        {"delays": hf.count("delay"), "all_events": hf.count(), "mean_delay": hf.mean("delay")},
        [],
    ),
]
TAILS_SINCE: list[dict[str, int]] = [
    {"events": 0, "minutes": 0, "worst": 0},
    {"events": 0, "minutes": 0, "worst": 0, "arrivals": 1, "mean_delay": 1},
    *[{"events": 0, "delay_minutes": 0, "worst_delay": 0, "arrivals": 1, "mean_delay": 1}] * 2,
    {"events": 0, "delay_minutes": 0, "worst_delay": 0, "mean_delay": 1},
    {"events": 0, "delay_minutes": 0, "worst_delay": 0, "mean_delay": 1, "arrivals": 5},
]
"""Per phase, the results and the phase since which each of them counts."""
HOURS_SINCE = {"all_events": 0, "delays": 1, "mean_delay": 5}


def events() -> list[Event]:
    flights, airports = flights_data.tables()
    made = flights_data.events_of(flights.head(FLIGHTS), flights_data.zones(flights, airports))
    arrival = pl.col("kind") == "arrival"
    rows = made.select(
        tail=pl.col("tailnum").fill_null("unassigned"),
        airport=pl.when(arrival).then(pl.col("dest")).otherwise(pl.col("origin")),
        arrived=arrival.cast(pl.Int64),
        at="event_time",
        delay=pl.when(arrival).then(pl.col("delay_minutes")),
    )
    return rows.to_dicts()


def result(name: str, given: Iterable[Event]) -> Any:
    """One result, as SQL defines it."""
    rows = list(given)
    delays = [row["delay"] for row in rows if row["delay"] is not None]
    match name:
        case "events" | "all_events":
            return len(rows)
        case "delays":
            return len(delays)
        case "arrivals":
            return sum(row["arrived"] for row in rows)
        case "minutes" | "delay_minutes":
            return sum(delays) if delays else None
        case "worst" | "worst_delay":
            return max(delays, default=None)
        case _:
            return pytest.approx(sum(delays) / len(delays)) if delays else None


def parts_of(given: list[Event]) -> list[list[Event]]:
    size = len(given) // len(PHASES) + 1
    return [given[first : first + size] for first in range(0, len(given), size)]


def expected_tails(parts: list[list[Event]]) -> dict[str, dict[str, Any]]:
    rows = {}
    for phase, (part, since) in enumerate(zip(parts, TAILS_SINCE, strict=True)):
        for tail in {event["tail"] for event in part}:
            seen = {
                at: [e for n in range(at, phase + 1) for e in parts[n] if e["tail"] == tail] for at in since.values()
            }
            rows[tail] = {"tail": tail} | {name: result(name, seen[at]) for name, at in since.items()}
    return rows


def expected_hours(parts: list[list[Event]]) -> dict[tuple[str, datetime], dict[str, Any]]:
    held: dict[tuple[str, datetime], list[tuple[int, Event]]] = defaultdict(list)
    for phase, part in enumerate(parts):
        for event in part:
            start = event["at"].replace(minute=0, second=0, microsecond=0)
            held[event["airport"], start + HOUR].append((phase, event))
    return {
        key: {name: result(name, (e for phase, e in rows if phase >= at)) for name, at in HOURS_SINCE.items()}
        for key, rows in held.items()
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_five_changes_keep_the_state_whose_meaning_is_unchanged(seed: int) -> None:
    parts = parts_of(events())
    with hf.testing.TestDriver(app_of(*PHASES[0][:3]), seed=seed) as t:
        for phase, part in enumerate(parts):
            if phase:
                delay, tails, hours, drop = PHASES[phase]
                t.upgrade(app_of(delay, tails, hours), drop_state=drop)
                if seed:
                    t.crash()
                    t.recover()
            for partition in range(4):
                t.push("events", [event for event in part if hash_of(event["tail"]) == partition], partition)
        t.finish()
        found = {row["tail"]: row for row in t.rows("tails-out")}
        assert found == expected_tails(parts)
        hours_found = {(row["airport"], row["window_end"]): row for row in t.rows("hours-out")}
        wanted = expected_hours(parts)
        assert {k: {n: row[n] for n in HOURS_SINCE} for k, row in hours_found.items()} == wanted
        assert any(row["mean_delay"] is None and row["delays"] for row in hours_found.values())


def hash_of(tail: str) -> int:
    return sum(map(ord, tail)) % 4
