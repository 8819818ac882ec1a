"""Jobs that look orders up in a table of rates, steps for them, and what every order must find, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import pyarrow as pa
import state_sizes
from hypothesis import strategies as st

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema(
    [pa.field("n", pa.int64(), False), pa.field("country", pa.string()), pa.field("at", TIME, nullable=False)]
)
RATES = pa.schema(
    [
        pa.field("code", pa.string(), nullable=False),
        pa.field("rate", pa.decimal128(5, 2)),
        pa.field("since", TIME, nullable=False),
        pa.field("gone", pa.bool_(), nullable=False),
    ]
)
CODES = ["at", "be", "ch", None]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def order(n: int, country: str | None, second: float) -> dict[str, Any]:
    return {"n": n, "country": country, "at": at(second)}


def rate(code: str, second: float, percent: int | None) -> dict[str, Any]:
    """Return a change of the table; without a percentage it deletes."""
    return {"code": code, "rate": percent, "since": at(second), "gone": percent is None}


def never(schema: pa.Schema) -> hf.Generator[Any]:
    return hf.Generator(schema, lambda i: (), count=0)


def app_of(as_of: str = "event_time", how: str = "left") -> hf.App:
    app = hf.App("taxes", key_groups=8)
    time = {"out_of_orderness": "1h", "idle_after": "1h"}  # only the test advances it
    orders = app.source("orders", never(ORDERS), event_time="at", **time)
    rates = app.table("rates", never(RATES), key="code", event_time="since", deleted="gone", **time)
    taxed = orders.lookup("taxed", rates, on=[("country", "code")], as_of=as_of, how=how)
    taxed.sink("out", MemorySink())
    if as_of == "event_time":
        taxed.late.sink("late", MemorySink())
    rates.sink("rates-out", MemorySink(key=["code"]))
    return app


@dataclass
class Oracle:
    """Every order and every change of the table; all of them arrive in time."""

    how: str = "left"
    clock: float = 0
    orders: list[tuple[int, str | None, float]] = field(default_factory=list)
    rates: dict[str, list[tuple[float, int | None]]] = field(default_factory=lambda: defaultdict(list))

    def found(self, country: str | None, second: float) -> int | None:
        """Return the rate of a country at a time: of the last change by then, of several the last to arrive."""
        past = [(since, i, percent) for i, (since, percent) in enumerate(self.rates[country or ""]) if since <= second]
        return max(past, default=(0.0, 0, None), key=lambda each: each[:2])[2]

    def expected(self) -> list[tuple[int, int | None]]:
        """Return number and rate of the orders that are due."""
        due = [each for each in self.orders if each[2] < self.clock or each[1] is None]
        found = [(n, None if country is None else self.found(country, second)) for n, country, second in due]
        return sorted(each for each in found if self.how == "left" or each[1] is not None)

    def table(self) -> dict[str, int]:
        """Return the table as it stands: by the last change of each key to arrive."""
        last = {code: changes[-1][1] for code, changes in self.rates.items() if changes}
        return {code: percent for code, percent in last.items() if percent is not None}


def given(t: TestDriver) -> list[tuple[int, int | None]]:
    return sorted((row["n"], None if row["rate"] is None else int(row["rate"])) for row in t.rows("out"))


SECONDS = st.integers(0, 12)
PERCENT = st.one_of(st.none(), st.integers(1, 99))
STEPS = st.one_of(
    st.tuples(
        st.just("orders"),
        st.integers(0, 2),
        st.lists(st.tuples(st.sampled_from(CODES), SECONDS), min_size=1, max_size=6),
    ),
    st.tuples(st.just("rates"), st.integers(0, 2), st.lists(st.tuples(SECONDS, PERCENT), min_size=1, max_size=4)),
    st.tuples(st.just("watermark"), st.integers(1, 6)),
    *job_player.FAILURES,
    job_player.REWIND,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare what the orders found at the end.

    Times of rows are those of the clock or later, in any order; the clock is that of the test.
    """

    def push_orders(partition: int, rows: list[tuple[str | None, int]]) -> None:
        taken = [(len(oracle.orders) + i, code, oracle.clock + after) for i, (code, after) in enumerate(rows)]
        oracle.orders += taken
        t.push("orders", [order(*each) for each in taken], partition)

    def push_rates(number: int, changes: list[tuple[int, int | None]]) -> None:
        changed = [(oracle.clock + after, percent) for after, percent in changes]
        oracle.rates[CODES[number] or ""] += changed
        t.push("rates", [rate(CODES[number] or "", *each) for each in changed], number)

    def watermark(seconds: int) -> None:
        oracle.clock += seconds
        t.watermark("orders", at(oracle.clock))
        t.watermark("rates", at(oracle.clock))

    job_player.play(t, steps, {"orders": push_orders, "rates": push_rates, "watermark": watermark})
    t.finish()
    oracle.clock = float("inf")
    assert given(t) == oracle.expected()
    assert t.rows("late") == []
    assert {row["code"]: int(row["rate"]) for row in t.rows("rates-out")} == oracle.table()
    state_sizes.check(t, {})
