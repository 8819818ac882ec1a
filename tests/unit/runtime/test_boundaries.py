"""The table of boundaries in docs/guide/event-time.md: which side of each one a row of exactly that time is on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
US = 0.000001


@dataclass
class Row:
    k: str
    n: int
    at: datetime


@dataclass
class Found:
    k: str


class Reminder(hf.KeyedProcess[Row, Found]):
    """Set a timer ten seconds after each row."""

    due = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        self.due.set(r.at + timedelta(seconds=10))

    @due.fires
    def fire(self, ctx: hf.Context) -> None:
        ctx.emit(Found("fired"))


class Seen(hf.KeyedProcess[Row, Found]):
    """Emit a row if the first one of its key is still known."""

    seen = hf.Value(bool, ttl="10s")

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        if self.seen.get():
            ctx.emit(Found(r.k))
        else:
            self.seen.set(True)


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def never(i: int) -> Row:
    raise AssertionError("it has no rows")


def app_of(step: Callable[[Stream, Stream], Stream], *, late: bool = True) -> hf.App:
    app = hf.App("bounds", key_groups=8)
    left, right = (
        app.source(name, hf.Generator(Row, never, count=0), event_time="at", idle_after="1h")
        for name in ("rows", "others")
    )
    given = step(left, right)
    given.sink("out", MemorySink(key=given.upsert_key))
    if late:
        given.late.sink("late", MemorySink())
    return app


def play(app: hf.App, steps: list[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """Return how many rows of the result, and late ones, there are after each step."""
    counts, sinks = list[tuple[int, int]](), {sink.name for sink in app.plan().sinks}
    with TestDriver(app, 2) as t:
        for name, second in steps:
            if name == "watermark":
                for source in ("rows", "others"):
                    t.watermark(source, at(second))
            else:
                t.push(name, [Row("a", 1, at(second))])
            t.checkpoint()
            counts.append((len(t.rows("out")), len(t.rows("late")) if "late" in sinks else 0))
    return counts


def window(windows: Any, **lateness: str) -> Callable[[Stream, Stream], Stream]:
    return lambda rows, others: (
        rows.union(others).key_by("k").window(windows, **lateness).agg("w", emit="final", n=hf.count())
    )


class TestBoundaries:
    def test_a_window_is_over_when_the_watermark_reaches_its_end(self) -> None:
        steps = [("rows", 9), ("watermark", 10 - US), ("watermark", 10), ("rows", 10 - US), ("rows", 10)]
        assert play(app_of(window(hf.tumbling("10s"))), steps) == [(0, 0), (0, 0), (1, 0), (1, 1), (1, 1)]

    def test_lateness_ends_when_the_watermark_reaches_it(self) -> None:
        steps = [("watermark", 12), ("rows", 9), ("watermark", 13), ("rows", 9)]
        given = play(app_of(window(hf.tumbling("10s"), allowed_lateness="3s")), steps)
        assert given == [(0, 0), (0, 0), (1, 0), (1, 1)]

    def test_a_session_is_over_when_the_watermark_has_passed_its_end(self) -> None:
        steps = [("rows", 0), ("watermark", 10), ("rows", 10), ("watermark", 20), ("watermark", 20 + US), ("rows", 10)]
        expected = [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (1, 1)]
        assert play(app_of(window(hf.session("10s"))), steps) == expected

    def test_a_sliding_window_is_over_when_the_watermark_has_passed_its_row(self) -> None:
        def step(rows: Stream, others: Stream) -> Stream:
            return rows.union(others).key_by("k").window(hf.sliding("10s")).agg("w", n=hf.count())

        with TestDriver(app_of(step), 2) as t:
            t.push("rows", [Row("a", 1, at(0)), Row("a", 2, at(10))])
            for source in ("rows", "others"):
                t.watermark(source, at(10))
            t.push("rows", [Row("a", 3, at(10))])
            t.finish()
            assert sorted((row["window_end"], row["n"]) for row in t.rows("out")) == [(at(0), 1), *[(at(10), 2)] * 2]

    def test_a_repetition_differs_by_less_than_within(self) -> None:
        def step(rows: Stream, others: Stream) -> Stream:
            return rows.union(others).key_by("k").dedup("w", within="10s")

        steps = [("rows", 0), ("rows", 10 - US), ("rows", 10), ("watermark", 30), ("rows", 20 + US), ("rows", 20)]
        assert play(app_of(step), steps) == [(1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 1)]

    def test_both_bounds_of_a_join_belong_to_it(self) -> None:
        def step(rows: Stream, others: Stream) -> Stream:
            return rows.join("w", others, on="k", within=hf.between("0s", "10s"), how="left")

        steps = [("rows", 0), ("watermark", 10), ("others", 10), ("others", 10 + US), ("watermark", 30), ("rows", 20)]
        expected = [(0, 0), (0, 0), (1, 0), (1, 0), (1, 0), (1, 0)]
        assert play(app_of(step), [*steps, ("rows", 20 - US)]) == [*expected, (1, 1)]

    def test_the_last_row_of_a_pattern_comes_before_the_end_of_within(self) -> None:
        def step(rows: Stream, others: Stream) -> Stream:
            pair = hf.pattern("one", pl.col("n") > 0).followed_by("two", pl.col("n") > 0).within("10s")
            return rows.union(others).match("w", pair, key="k", to=Found, select=lambda m: Found(m.two.k))

        within = [("rows", 0), ("rows", 10 - US), ("watermark", 10 - US), ("watermark", 10), ("rows", 10 - US)]
        apart = [("rows", 0), ("rows", 10), ("watermark", 20)]
        assert play(app_of(step), within)[-3:] == [(0, 0), (1, 0), (1, 1)]
        assert play(app_of(step), apart)[-1] == (0, 0)

    def test_a_version_of_a_table_is_valid_from_its_own_time_to_the_next(self) -> None:
        app = hf.App("bounds", key_groups=8)
        rows, table = hf.Generator(Row, never, count=0), hf.Generator(Row, never, count=0)
        left = app.source("rows", rows, event_time="at", idle_after="1h")
        versions = app.table("versions", table, key="k", event_time="at", idle_after="1h")
        left.lookup("w", versions, on="k").sink("out", MemorySink())
        with TestDriver(app, 2) as t:
            t.push("versions", [Row("a", 1, at(0))])
            t.push("rows", [Row("a", 0, at(10 - US)), Row("a", 0, at(10))])
            for source in ("rows", "versions"):
                t.watermark(source, at(10))
            t.checkpoint()
            assert [row["n_right"] for row in t.rows("out")] == [1]
            t.push("versions", [Row("a", 2, at(10))])
            t.finish()
            assert [row["n_right"] for row in t.rows("out")] == [1, 2]

    def test_a_timer_fires_when_the_watermark_reaches_it(self) -> None:
        steps = [("rows", 0), ("watermark", 10 - US), ("watermark", 10)]
        app = app_of(lambda rows, others: rows.union(others).key_by("k").process("w", Reminder(), to=Found), late=False)
        assert [out for out, _ in play(app, steps)] == [0, 0, 1]

    def test_a_value_is_gone_for_a_row_of_the_time_at_which_it_expires(self) -> None:
        app = app_of(lambda rows, others: rows.union(others).key_by("k").process("w", Seen(), to=Found), late=False)
        assert [out for out, _ in play(app, [("rows", 0), ("rows", 10 - US), ("rows", 10)])] == [0, 1, 1]
