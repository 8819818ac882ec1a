"""The state of every operator forgets what is over: its rows, and the slots that its workers had for them.

Each job gets other keys in every round, and event time or deletes end those of the round before. However many rounds
there were, no row is left in the end, and no more slots than one round needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import count_window_jobs
import early_jobs
import foreign_jobs
import grouped_jobs
import hopping_jobs
import lookup_jobs
import pattern_jobs
import pyarrow as pa
import pytest
import search_jobs
import session_jobs
import sliding_jobs
from lookup_jobs import at, never
from planned_source import PlannedSource
from running_jobs import row as running_row
from state_sizes import few_slots, sizes_of

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

KEYS, ROUNDS, ROUND_S = 12, 8, 1_000
"""Keys of a round; rounds; by how much event time advances in each, which is more than any job waits."""
SLOTS_MAX = 4 * KEYS
"""What an epoch has emptied is free once the next one is committed, and until then there are as many new ones. A worker
that goes back to a checkpoint does not know how many slots are empty, so it drops them a round later."""
Feed = Callable[[TestDriver, list[str], float], None]
"""Pushes records of these keys at a second."""


class Job(NamedTuple):
    """A job, what a round pushes, and what deletes it again, where time alone does not."""

    app: hf.App
    feed: Feed
    ends: Feed | None = None


def timed(app: hf.App, record: Callable[[str, datetime], Any], *sources: str) -> Job:
    """Return a job that forgets by event time; each key has a record in every source."""

    def feed(t: TestDriver, keys: list[str], second: float) -> None:
        for source in sources or ("rows",):
            t.push(source, [record(key, at(second)) for key in keys])

    return Job(app, feed)


def visit(key: str, time: datetime) -> dict[str, Any]:
    return {"k": key, "v": 1, "word": key, "at": time}


@dataclass
class Given:
    k: str
    at: datetime


class Brief(hf.KeyedProcess[Given, Given]):
    """State of every kind that lives for a second, or until a timer fires."""

    one = hf.Value(int, ttl="1s")
    some = hf.List(int, ttl="1s")
    named = hf.Map(str, int, ttl="1s")
    count = hf.Value(int)
    listed = hf.List(int)
    mapped = hf.Map(str, int)
    soon = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Given) -> None:
        for value in (self.one, self.count):
            value.set(1)
        for items in (self.some, self.listed):
            items.append(1)
        for entries in (self.named, self.mapped):
            entries.set(r.k, 1)
        self.soon.set(r.at + timedelta(seconds=1))

    @soon.fires
    def clears(self, ctx: hf.Context) -> None:
        self.count.clear()
        self.listed.clear()
        self.mapped.clear()


def process() -> hf.App:
    app = hf.App("brief", key_groups=8)
    schema = pa.schema([pa.field("k", pa.string(), False), pa.field("at", lookup_jobs.TIME, False)])
    rows = app.source("rows", PlannedSource(schema, Given), event_time="at", idle_after="1h")
    rows.key_by("k").process("brief", Brief(), to=Given).sink("out", MemorySink())
    return app


def join(how: str, bounded: bool) -> hf.App:
    app = hf.App("pairs", key_groups=8)
    schema = pa.schema([pa.field("k", pa.string(), False), pa.field("at", lookup_jobs.TIME, False)])
    left, right = (app.source(side, never(schema), event_time="at", idle_after="1h") for side in ("left", "right"))
    within, window = (hf.between("-4s", "6s"), None) if bounded else (None, hf.tumbling("5s"))
    left.join("pairs", right, on="k", how=how, within=within, window=window).sink("out", MemorySink())
    return app


def tables(how: str) -> hf.App:
    app = hf.App("both", key_groups=8)
    left, right = (app.table(side, never(TABLE), key="k", deleted="gone") for side in ("left", "right"))
    left.select("k").join("both", right, on="k", how=how).sink("out", MemorySink(key=["k"]))
    return app


TABLE = pa.schema([pa.field("k", pa.string(), False), pa.field("v", pa.int64()), pa.field("gone", pa.bool_(), False)])


def dedup() -> hf.App:
    app = hf.App("unique", key_groups=8)
    rows = app.source("rows", never(session_jobs.SCHEMA), event_time="at", idle_after="1h")
    rows.key_by("k").dedup("unique", within="10s").sink("out", MemorySink())
    return app


def windows(window: Any, **given: Any) -> hf.App:
    app = hf.App("windows", key_groups=8)
    rows = app.source("rows", never(session_jobs.SCHEMA), event_time="at", idle_after="1h")
    found = rows.key_by("k").window(window).agg("windows", n=hf.count(), first=hf.min("word"), **given)
    found.sink("out", MemorySink(key=found.upsert_key))
    return app


def changing(app: hf.App, *sources: tuple[str, Callable[[str, bool], dict[str, Any]]]) -> Job:
    """Return a job whose tables forget what is deleted; each source has its changes, by key and whether they delete."""

    def feed(gone: bool) -> Feed:
        def push(t: TestDriver, keys: list[str], second: float) -> None:
            for source, change in sources:
                t.push(source, [change(key, gone) for key in keys])

        return push

    return Job(app, feed(False), feed(True))


def number_of(key: str) -> int:
    return int(key.replace("-", ""))


def counted(t: TestDriver, keys: list[str], second: float) -> None:
    """Fill windows of two records."""
    t.push("rows", [running_row(key, number_of(key), 1, 1) for key in keys for _ in range(2)])


def searched(key: str, gone: bool) -> dict[str, Any]:
    return search_jobs.query(number_of(key), None if gone else (key, None, None, None, None))


def changed(key: str, gone: bool) -> dict[str, Any]:
    return {"k": key, "v": None if gone else 1, "gone": gone}


def grouped(key: str, gone: bool) -> dict[str, Any]:
    return grouped_jobs.change(number_of(key), None if gone else (key, 1))


def ordered(key: str, gone: bool) -> dict[str, Any]:
    number = number_of(key)
    return foreign_jobs.no_order(number) if gone else foreign_jobs.order(number, key, 1)


def bought(key: str, gone: bool) -> dict[str, Any]:
    return foreign_jobs.customer(key, None if gone else 1)


def versioned(t: TestDriver, keys: list[str], second: float) -> None:
    """Change a table for a second, and look it up."""
    t.push("rates", [lookup_jobs.rate(key, second + after, 1 - after or None) for key in keys for after in (0, 1)])
    t.push("orders", [lookup_jobs.order(1, key, second) for key in keys])


def rated(key: str, gone: bool) -> dict[str, Any]:
    return lookup_jobs.rate(key, 0, None if gone else 1)


JOBS: dict[str, Callable[[], Job]] = {
    "tumbling windows": lambda: timed(windows(hf.tumbling("10s")), visit),
    "windows that are corrected": lambda: timed(hopping_jobs.app_of(10, 10, "close", 5), visit),
    "hopping windows": lambda: timed(hopping_jobs.app_of(), visit),
    "windows that are held": lambda: timed(hopping_jobs.app_of(10, 2, "final", 5, compiled=True), visit),
    "windows that are shown early": lambda: timed(early_jobs.app_of(10, 2, 1), visit),
    "sessions": lambda: timed(session_jobs.app_of(), visit),
    "sliding windows": lambda: timed(sliding_jobs.app_of(), visit),
    "count windows": lambda: Job(count_window_jobs.app_of(2), counted),
    "dedup": lambda: timed(dedup(), visit),
    "patterns": lambda: timed(pattern_jobs.app_of(), lambda key, time: pattern_jobs.Event(1, key, "a", 1, time)),
    "processes": lambda: timed(process(), Given),
    **{
        f"{how} join {'within bounds' if bounded else 'in windows'}": lambda how=how, bounded=bounded: timed(  # type: ignore[misc]
            join(how, bounded), lambda key, time: {"k": key, "at": time}, "left", "right"
        )
        for how in ("inner", "full")
        for bounded in (False, True)
    },
    "searches": lambda: changing(search_jobs.app_of(), ("queries", searched)),
    "groups of a table": lambda: changing(grouped_jobs.app_of(), ("customers", grouped)),
    "joined tables": lambda: changing(tables("full"), ("left", changed), ("right", changed)),
    "foreign keys": lambda: changing(foreign_jobs.app_of("left"), ("orders", ordered), ("customers", bought)),
    "look-ups of versions": lambda: Job(lookup_jobs.app_of(), versioned),
    "look-ups of the latest": lambda: changing(lookup_jobs.app_of("latest"), ("rates", rated)),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("restored", [False, True], ids=["in one run", "restored"])
def test_state_has_no_row_and_few_slots_however_many_keys_there_were(job: str, restored: bool) -> None:
    app, feed, ends = JOBS[job]()
    timed = ends is None and job != "count windows"
    with few_slots(), TestDriver(app, 2) as t:
        if timed:
            for source in t.sources:
                t.watermark(source, at(-1_000_000))  # only the test moves time
        for number in range(ROUNDS):
            keys, second = [f"{number}-{key}" for key in range(KEYS)], number * ROUND_S
            feed(t, keys, second)
            t.checkpoint()
            if restored and number in (2, 5):
                t.crash()
                t.recover()
            if ends is not None:
                ends(t, keys, second)
            if timed:
                for source in t.sources:
                    t.watermark(source, at(second + ROUND_S - 1))
            t.checkpoint()
        for _ in range(3):
            t.checkpoint()  # slots of rows that an epoch has deleted are free once it is committed
        rows, slots = sizes_of(t)
        assert not +rows, "rows stay that nothing needs"
        assert max(slots.values()) <= SLOTS_MAX, f"slots stay: {slots}"
