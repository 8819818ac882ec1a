"""Event times and watermarks that a source computes from its records, by an oracle in plain Python."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import polars as pl
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.plan.shape_changes import changes_of
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

START = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        *(pa.field(name, TIME) for name in ("event_at", "sent_at", "received_at", "mark")),
    ]
)
PARTITIONS = 4
Seconds = int | None


def at(second: Seconds) -> datetime | None:
    return None if second is None else START + timedelta(seconds=second)


def row(k: str, v: int, event: Seconds, sent: Seconds, received: Seconds, mark: Seconds = None) -> dict[str, Any]:
    return dict(zip(SCHEMA.names, (k, v, at(event), at(sent), at(received), at(mark)), strict=True))


def marker(second: int) -> dict[str, Any]:
    return row("", 0, second, None, None, second)


def app_of(event_time: Any = None, watermark: Any = "mark", lateness: int = 0) -> hf.App:
    app = hf.App("clocks", key_groups=8)
    time = hf.device_clock("event_at", "sent_at", "received_at") if event_time is None else event_time
    generator = hf.Generator(SCHEMA, lambda i: ("a", i, at(i), at(i), at(i), None), count=0)
    rows = app.source("rows", generator, event_time=time, watermark=watermark, idle_after="1h", on_error="drop")
    events = rows.filter(pl.col("mark").is_null())
    window = events.key_by("k").window(hf.tumbling("10s"), allowed_lateness=f"{lateness}s")
    counted = window.agg("tens", emit="final", n=hf.count(), total=hf.sum("v"))
    counted.sink("out", MemorySink())
    counted.late.sink("late", MemorySink())
    return app


def corrected(event: Seconds, sent: Seconds, received: Seconds) -> Seconds:
    if event is None or received is None:
        return event
    return min(event, received) if sent is None else received - max(0, sent - event)


@dataclass
class Oracle:
    """Windows of ten seconds, one record after another; time is what markers say of all partitions."""

    lateness: int
    marks: dict[int, int] = field(default_factory=dict)
    held: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    late: list[int] = field(default_factory=list)

    @property
    def clock(self) -> float:
        return min(self.marks.values()) if len(self.marks) == PARTITIONS else float("-inf")

    def take(self, k: str, v: int, event: Seconds, sent: Seconds, received: Seconds) -> None:
        if (time := corrected(event, sent, received)) is None:
            return
        end = time - time % 10 + 10
        if end + self.lateness <= self.clock:
            self.late.append(v)
        else:
            self.held[k, end].append(v)

    def given(self, clock: float) -> dict[tuple[str, datetime | None], tuple[int, int]]:
        due = {each: rows for each, rows in self.held.items() if each[1] + self.lateness <= clock}
        return {(k, at(end)): (len(rows), sum(rows)) for (k, end), rows in due.items()}


def found(t: TestDriver) -> dict[tuple[str, datetime | None], tuple[int, int]]:
    rows = t.rows("out")
    assert len({(each["k"], each["window_end"]) for each in rows}) == len(rows), "a window was given twice"
    return {(each["k"], each["window_end"]): (each["n"], each["total"]) for each in rows}


SECOND = st.one_of(st.none(), st.integers(-30, 60))
STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(0, PARTITIONS - 1),
        st.lists(st.tuples(st.sampled_from("abc"), SECOND, SECOND, SECOND), min_size=1, max_size=8),
    ),
    st.tuples(st.just("mark"), st.sets(st.integers(0, PARTITIONS - 1), min_size=1), st.integers(-20, 60)),
    st.tuples(st.just("mark"), st.just(set(range(PARTITIONS))), st.integers(-20, 60)),
    *job_player.FAILURES,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare the windows with those of the oracle after every step."""
    numbers = itertools.count()

    def push(partition: int, given: list[tuple[Any, ...]]) -> None:
        records = [(k, next(numbers), *times) for k, *times in given]
        t.push("rows", [row(*each) for each in records], partition)
        for each in records:
            oracle.take(*each)

    def mark(partitions: set[int], second: int) -> None:
        for partition in partitions:
            t.push("rows", [marker(second)], partition)
            oracle.marks[partition] = max(second, oracle.marks.get(partition, second))

    def check() -> None:
        assert found(t) == oracle.given(oracle.clock)

    job_player.play(t, steps, {"push": push, "mark": mark}, check)


class TestTimesOfRecords:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=14), st.sampled_from([0, 15]), st.integers(0, 2**16))
    def test_windows_hold_what_the_oracle_finds(self, steps: list[Any], lateness: int, seed: int) -> None:
        oracle = Oracle(lateness)
        with TestDriver(app_of(lateness=lateness), 2, seed) as t:
            t.watermark("rows", START - timedelta(days=9))  # an empty partition holds time, as in the oracle
            play(t, steps, oracle)
            t.finish()
            assert found(t) == oracle.given(float("inf"))
            assert sorted(each["v"] for each in t.rows("late")) == sorted(oracle.late)
            state_sizes.check(t, {})

    def test_a_marker_closes_windows_and_other_records_do_not(self) -> None:
        with TestDriver(app_of()) as t:
            for partition in range(PARTITIONS):
                t.push("rows", [row("a", 1, 3, None, None), row("a", 2, 90, None, None)], partition)
            t.checkpoint()
            assert t.rows("out") == []
            for partition in range(PARTITIONS):
                t.push("rows", [marker(10)], partition)
            t.checkpoint()
            assert found(t) == {("a", at(10)): (4, 4)}

    def test_a_lower_marker_does_not_take_time_back(self) -> None:
        with TestDriver(app_of()) as t:
            for second in (50, 5):
                for partition in range(PARTITIONS):
                    t.push("rows", [marker(second)], partition)
                t.checkpoint()
            t.push("rows", [row("a", 7, 20, None, None)])
            t.finish()
            assert [each["v"] for each in t.rows("late")] == [7]

    def test_a_marker_beyond_every_date_ends_no_input(self) -> None:
        beyond = {**marker(0), "mark": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)}
        app = app_of(watermark=pl.col("mark") + pl.duration(days=400_000))
        with TestDriver(app) as t:
            t.push("rows", [row("a", 1, 3, None, None)])
            t.checkpoint()
            for partition in range(PARTITIONS):
                t.push("rows", [beyond], partition)
            t.checkpoint()
            assert found(t) == {("a", at(10)): (1, 1)}
            t.push("rows", [row("a", 2, 3, None, None)])
            t.finish()
            assert [each["v"] for each in t.rows("late")] == [2]

    def test_an_expression_is_a_bound_per_record(self) -> None:
        app = app_of(
            event_time=pl.coalesce("event_at", "sent_at").alias("at"), watermark=pl.col("at") - pl.duration(seconds=5)
        )
        with TestDriver(app, 1) as t:
            for partition in range(PARTITIONS):
                t.push("rows", [row("a", 1, None, 3, None), row("a", 1, 14, None, None)], partition)
            t.checkpoint()
            assert t.rows("out") == []
            for partition in range(PARTITIONS):
                t.push("rows", [row("a", 1, None, 15, None)], partition)
            t.checkpoint()
            assert found(t) == {("a", at(10)): (4, 4)}

    def test_a_rewind_takes_time_back(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 1, 3, 5, 6)])
            base = t.checkpoint()
            for partition in range(PARTITIONS):
                t.push("rows", [marker(30)], partition)
            t.checkpoint()
            assert found(t) == {("a", at(10)): (1, 1)}
            t.rewind(base)
            assert t.rows("out") == []
            t.checkpoint()
            t.finish()
            assert found(t) == {("a", at(10)): (1, 1)}

    def test_rows_without_an_event_time_are_dead_letters_that_can_be_decoded(self) -> None:
        app = hf.App("letters", dlq=MemorySink())
        time = hf.device_clock("event_at", "sent_at", "received_at").alias("at")
        rows = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time=time)
        assert rows.schema.names == [*SCHEMA.names, "at"]
        rows.sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rows", [row("a", 1, None, 5, 6), row("a", 2, 9, 5, 6), row("a", 3, 4, 5, 66)])
            t.checkpoint()
            assert [(each["v"], each["at"]) for each in t.rows("out")] == [(2, at(6)), (3, at(65))]
            (letter,) = t.rows("dlq")
            assert letter["error"] == "the event time 'at' is null: a column that it is computed from is"
            raw = pa.ipc.open_stream(letter["raw"]).read_all()
            assert raw.schema.names == SCHEMA.names and raw["v"].to_pylist() == [1]


class TestRefusals:
    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"event_time": pl.col("event_at").max().alias("at")}, "more than one row"),
            ({"event_time": pl.col("v").alias("at")}, "is int64, not timestamp"),
            ({"event_time": pl.coalesce("event_at", "sent_at")}, "is a column of the source"),
            ({"event_time": pl.lit(START).alias("at")}, "reads no column"),
            ({"event_time": pl.col("event_at")}, "may be null"),
            ({"event_time": hf.device_clock("event_at", "sent_at", "no")}, "there is no column 'no'"),
            ({"watermark": pl.col("mark").shift(1)}, "more than one row"),
            ({"watermark": "v"}, "is int64, not timestamp"),
            ({"watermark": "marks"}, "there is no column 'marks'"),
        ],
    )
    def test_what_is_no_time_of_a_record_is_refused(self, arguments: dict[str, Any], what: str) -> None:
        with pytest.raises(hf.ConfigError, match=what):
            app_of(**arguments)

    @pytest.mark.continuous("it runs no job")
    def test_a_watermark_needs_an_event_time_and_no_other_bound(self) -> None:
        source = hf.Generator(SCHEMA, lambda i: None, count=0)
        with pytest.raises(hf.ConfigError, match="without an event time moves nothing"):
            hf.App("a").source("rows", source, watermark="mark")
        with pytest.raises(hf.ConfigError, match="out_of_orderness='1s' without an event time does nothing"):
            hf.App("a").source("rows", source, out_of_orderness="1s")
        time = hf.device_clock("event_at", "sent_at", "received_at")
        with pytest.raises(hf.ConfigError, match="two ways to say") as refusal:
            hf.App("a").source("rows", source, event_time=time, watermark="mark", out_of_orderness="1s")
        assert "pl.duration" in refusal.value.next_step

    @pytest.mark.continuous("it runs no job")
    def test_windows_over_another_event_time_are_refused(self) -> None:
        before = describe_operators(app_of().plan())
        check_against(app_of().plan(), before)
        other = hf.device_clock("sent_at", "event_at", "received_at")
        with pytest.raises(hf.ConfigError, match="event time"):
            check_against(app_of(event_time=other).plan(), before)

    @pytest.mark.continuous("it runs no job")
    def test_the_plan_shows_another_watermark(self) -> None:
        one, other = (shape_of(app_of(watermark=each).plan()) for each in ("mark", pl.col("mark").dt.truncate("1s")))
        assert [each.what for each in changes_of(one, one, [])] == []
        (change,) = changes_of(one, other, [])
        assert change.what.startswith("had watermark = ") and "truncate" in change.what
