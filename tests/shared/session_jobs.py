"""Jobs with session windows, steps for them, and what the sessions hold, in plain Python."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import pyarrow as pa
from hypothesis import strategies as st

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def row(k: str, second: float, v: int, word: str | None = None) -> dict[str, Any]:
    return {"k": k, "v": v, "word": word, "at": at(second)}


def app_of(gap: int = 5, lateness: int = 0, emit: str = "final") -> hf.App:
    app = hf.App("visits", key_groups=8)
    generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
    rows = app.source("rows", generator, event_time="at", idle_after="1h")
    window = rows.key_by("k").window(hf.session(f"{gap}s"), allowed_lateness=f"{lateness}s")
    more = {"mean": hf.mean("v"), "first": hf.min("word")}
    counted = window.agg("visits", emit=emit, n=hf.count(), total=hf.sum("v"), top=hf.max("v"), **more)
    counted.sink("out", MemorySink(key=counted.upsert_key))
    counted.late.sink("late", MemorySink())
    return app


@dataclass
class Oracle:
    """Sessions per key, one record after another.

    A record exactly the gap after another one is in its session, and a record at the watermark is in time. So a session
    takes records until the watermark has passed its end plus the lateness.
    """

    gap: int
    lateness: int
    clock: float = -1e9
    open: dict[str, list[tuple[float, float, list[dict[str, Any]]]]] = field(default_factory=lambda: defaultdict(list))
    given: dict[tuple[str, datetime, datetime], tuple[Any, ...]] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> None:
        second = (record["at"] - START).total_seconds()
        sessions = self.open[record["k"]]
        touching = [each for each in sessions if each[0] <= second + self.gap and second <= each[1]]
        first = min([second, *(each[0] for each in touching)])
        end = max([second + self.gap, *(each[1] for each in touching)])
        if end + self.lateness < self.clock:
            self.late.append(record["v"])
            return
        rows = [record, *(one for each in touching for one in each[2])]
        self.open[record["k"]] = [each for each in sessions if each not in touching] + [(first, end, rows)]

    def advance(self, second: float) -> None:
        self.clock = max(self.clock, second)
        for key, sessions in self.open.items():
            for first, end, rows in [each for each in sessions if each[1] + self.lateness < self.clock]:
                values = [each["v"] for each in rows]
                words = [each["word"] for each in rows if each["word"] is not None]
                totals = len(rows), sum(values), max(values), sum(values) / len(values), min(words, default=None)
                self.given[key, at(first), at(end)] = totals
            self.open[key] = [each for each in sessions if each[1] + self.lateness >= self.clock]


def given_rows(t: TestDriver) -> dict[tuple[str, datetime, datetime], tuple[Any, ...]]:
    rows = t.rows("out")
    found = {
        (each["k"], each["window_start"], each["window_end"]): tuple(
            each[name] for name in ("n", "total", "top", "mean", "first")
        )
        for each in rows
    }
    assert len(found) == len(rows), "a session was given twice"
    return found


STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(0, 2),  # the fourth partition has no records, so only the test advances time
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(-30, 70), st.sampled_from([None, "x", "y", "zz"])),
            min_size=1,
            max_size=8,
        ),
    ),
    st.tuples(st.just("watermark"), st.integers(-20, 70)),
    *job_player.FAILURES,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare the sessions with those of the oracle after every step."""
    numbers = itertools.count()

    def push(partition: int, given: list[tuple[str, float, str | None]]) -> None:
        rows = [row(k, second, next(numbers), word) for k, second, word in given]
        over = oracle.clock - oracle.gap - oracle.lateness
        alone = [each for each in rows if (each["at"] - START).total_seconds() <= over]
        # Whether these are late depends on the records before them, so they come one by one.
        for group in [[each for each in rows if each not in alone], *([each] for each in alone)]:
            if group:
                t.push("rows", group, partition)
                t.checkpoint()
            for each in group:
                oracle.take(each)

    def check() -> None:
        assert given_rows(t) == oracle.given

    watermark = job_player.timing(t, at, oracle.advance)
    job_player.play(t, steps, {"push": push, "watermark": watermark}, check)


def again() -> hf.App:
    """Return a job with windows over the results of windows, which are final three seconds after their end."""
    app = hf.App("again", key_groups=8)
    generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
    rows = app.source("rows", generator, event_time="at", idle_after="1h")
    window = rows.key_by("k").window(hf.tumbling("10s"), allowed_lateness="3s")
    counted = window.agg("first", emit="final", n=hf.count())
    second = counted.window(hf.tumbling("20s")).agg("second", n=hf.sum("n"))
    second.sink("out", MemorySink())
    second.late.sink("late", MemorySink())
    return app
