"""Jobs that search events by standing queries, steps for them, and what every event must find, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import job_player
import pyarrow as pa
import state_sizes
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

EVENTS = pa.schema(
    [
        pa.field("n", pa.int64(), False),
        pa.field("shop", pa.string()),
        pa.field("kind", pa.large_string()),
        pa.field("amount", pa.float64()),
        pa.field("at", pa.int32()),
    ]
)
QUERIES = pa.schema(
    [
        pa.field("id", pa.string(), False),
        pa.field("where", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("least", pa.float64()),
        pa.field("most", pa.float64()),
        pa.field("before", pa.int32()),
        pa.field("gone", pa.bool_(), False),
    ]
)
SHOPS = ["a", "a", "a\x00", "b", None]
TERMS = {"amount": ("least", "most"), "kind": "kind", "at": (None, "before")}
Query = tuple[str | None, str | None, float | None, float | None, int | None]
Event = tuple[str | None, str | None, float | None, int | None]


def app_of(closed: str = "both") -> hf.App:
    app = hf.App("alerts", key_groups=8)
    events = app.source("events", never(EVENTS))
    queries = app.table("queries", never(QUERIES), key="id", deleted="gone")
    found = events.search("found", queries, on=[("shop", "where")], terms=TERMS, closed=closed)
    found.select("n", "id", "kind", "kind_right", "before").sink("out", MemorySink())
    return app


def query(number: int, given: Query | None) -> dict[str, Any]:
    """Return a change of a query; without its terms it is deleted."""
    where, kind, least, most, before = given or (None,) * 5
    terms = {"kind": kind, "least": least, "most": most, "before": before}
    return {"id": f"q{number}", "where": where, **terms, "gone": given is None}


def satisfies(event: Event, query: Query, closed: str) -> bool:
    shop, kind, amount, at = event
    where, same, least, most, before = query
    if shop is None or shop != where:
        return False
    if same is not None and kind != same:
        return False
    if least is not None and (
        amount is None or not (amount >= least if closed in ("both", "left") else amount > least)
    ):
        return False
    if most is not None and (amount is None or not (amount <= most if closed in ("both", "right") else amount < most)):
        return False
    return before is None or (at is not None and (at <= before if closed in ("both", "right") else at < before))


@dataclass
class Oracle:
    """The queries as they stand, and what events have found."""

    closed: str = "both"
    queries: dict[int, Query] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    found: list[tuple[int, str]] = field(default_factory=list)

    def change(self, number: int, given: Query | None) -> None:
        self.queries.pop(number, None)
        self.queries |= {} if given is None else {number: given}

    def take(self, event: Event) -> int:
        number = len(self.events)
        self.events.append(event)
        self.found += [(number, f"q{q}") for q, each in self.queries.items() if satisfies(event, each, self.closed)]
        return number


NUMBERS = st.integers(0, 3)
BOUNDS = st.one_of(st.none(), NUMBERS.map(float))
KINDS = st.sampled_from(["x", "y", None, None])
GIVEN = st.tuples(st.sampled_from(SHOPS), KINDS, BOUNDS, BOUNDS, st.one_of(st.none(), NUMBERS))
TAKEN = st.tuples(st.sampled_from(SHOPS), KINDS, BOUNDS, st.one_of(st.none(), NUMBERS))
CHANGES = st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), GIVEN, GIVEN, GIVEN)), min_size=1, max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("queries"), CHANGES),
    st.tuples(st.just("events"), st.integers(0, 2), st.lists(TAKEN, min_size=1, max_size=8)),
    st.tuples(st.just("events"), st.integers(0, 2), st.lists(TAKEN, min_size=1, max_size=8)),
    *job_player.FAILURES,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare what the events found at the end; a checkpoint after each step settles which queries an event sees."""

    def push_queries(changes: list[tuple[int, Query | None]]) -> None:
        for number, given in changes:
            t.push("queries", [query(number, given)], number % 3)
            oracle.change(number, given)

    def push_events(partition: int, rows: list[Event]) -> None:
        taken = [dict(zip(EVENTS.names, (oracle.take(each), *each), strict=True)) for each in rows]
        t.push("events", taken, partition)

    job_player.play(t, steps, {"queries": push_queries, "events": push_events})
    t.finish()
    assert sorted((row["n"], row["id"]) for row in t.rows("out")) == sorted(oracle.found)
    placed = sum(where is not None for where, *_ in oracle.queries.values())
    state_sizes.check(t, {"found-queries": len(oracle.queries), "found": placed})
