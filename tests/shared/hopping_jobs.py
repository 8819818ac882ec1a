"""Jobs with hopping windows, steps for them, and what the windows hold, in plain Python."""

from __future__ import annotations

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

START = datetime(2026, 3, 28, 21, tzinfo=UTC)
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


def app_of(
    size: int = 10,
    every: int = 2,
    emit: Any = "close",
    lateness: int = 0,
    *,
    compiled: bool = False,
    out_of_orderness: str = "0s",
) -> hf.App:
    """Return the app.

    Args:
        compiled: Only with aggregates that compiled operations fold, of which closed slices are held.
        out_of_orderness: "1h": only the test advances time. Else a replay after a rewind, which may read some records
            of a partition before others, may find these late.
    """
    app = hf.App("slices", key_groups=8)
    generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
    rows = app.source("rows", generator, event_time="at", idle_after="1h", out_of_orderness=out_of_orderness)
    window = rows.key_by("k").window(hf.hopping(f"{size}s", every=f"{every}s"), allowed_lateness=f"{lateness}s")
    counted = window.agg(
        "hot",
        emit=emit,
        n=hf.count(),
        total=hf.sum("v"),
        top=hf.max("v"),
        mean=hf.mean("v"),
        words=hf.count("word"),
        **({} if compiled else {"first": hf.min("word")}),
    )
    counted.sink("out", MemorySink(key=counted.upsert_key))
    counted.late.sink("late", MemorySink())
    return app


def row(k: str, second: float, v: int, word: str | None = None) -> dict[str, Any]:
    return {"k": k, "v": v, "word": word, "at": at(second)}


@dataclass
class Oracle:
    """Which windows hold which records, in plain Python; time is what the test last set it to."""

    size: int
    every: int
    emit: str
    lateness: int
    clock: float = -1e9
    compiled: bool = False
    held: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    late: list[int] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> None:
        second = (record["at"] - START).total_seconds()
        ends = [end for end in range(-400, 800) if end % self.every == 0 and end - self.size <= second < end]
        still = [end for end in ends if end + self.lateness > self.clock]
        if not still:
            self.late.append(record["v"])
        for end in still:
            self.held[record["k"], end].append(record)

    def advance(self, second: float) -> None:
        self.clock = max(self.clock, second)

    def rows(self, through: float | None = None) -> dict[tuple[str, datetime], tuple[Any, ...]]:
        """Return what was emitted by now."""
        wait = self.lateness if self.emit == "final" else 0
        found = {}
        for (k, end), rows in self.held.items():
            if end + wait <= (self.clock if through is None else through):
                found[k, at(end)] = self.result(end, rows)
        return found

    def result(self, end: int, rows: list[dict[str, Any]]) -> tuple[Any, ...]:
        """Return what a window has that ends at this second and holds these records."""
        values = [each["v"] for each in rows]
        words = [each["word"] for each in rows if each["word"] is not None]
        mean, first = sum(values) / len(values), None if self.compiled else min(words, default=None)
        return at(end - self.size), len(rows), sum(values), max(values), mean, len(words), first


def given_rows(t: TestDriver) -> dict[tuple[str, datetime], tuple[Any, ...]]:
    found: dict[tuple[str, datetime], tuple[Any, ...]] = {}
    for each in t.rows("out"):
        key = each["k"], each["window_end"]
        assert key not in found, "a window was given twice"
        found[key] = result_in(each)
    return found


def result_in(given: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a row says of its window."""
    return tuple(given.get(name) for name in ("window_start", "n", "total", "top", "mean", "words", "first"))


STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(0, 2),  # the fourth partition has no records, so only the test advances time
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(-30, 70), st.sampled_from([None, "x", "y", "zz"])),
            min_size=1,
            max_size=6,
        ),
    ),
    st.tuples(st.just("watermark"), st.integers(-20, 70)),
    *job_player.FAILURES,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare the results with those of the oracle after every step."""

    def check() -> None:
        assert given_rows(t) == oracle.rows()

    own = job_player.timed(t, lambda number, k, second, word: row(k, second, number, word), at, oracle)
    job_player.play(t, steps, own, check)
