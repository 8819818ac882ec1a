"""Sessions in complete jobs: results and late records, by an oracle in plain Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.operators.session import merged
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.sinks.memory import MemorySink
from holdfast.state.keys.keygroups import range_of
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

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
    """Sessions per key, one record after another."""

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
        if end + self.lateness <= self.clock:
            self.late.append(record["v"])
            return
        rows = [record, *(one for each in touching for one in each[2])]
        self.open[record["k"]] = [each for each in sessions if each not in touching] + [(first, end, rows)]

    def advance(self, second: float) -> None:
        self.clock = max(self.clock, second)
        for key, sessions in self.open.items():
            for first, end, rows in [each for each in sessions if each[1] + self.lateness <= self.clock]:
                values = [each["v"] for each in rows]
                words = [each["word"] for each in rows if each["word"] is not None]
                totals = len(rows), sum(values), max(values), sum(values) / len(values), min(words, default=None)
                self.given[key, at(first), at(end)] = totals
            self.open[key] = [each for each in sessions if each[1] + self.lateness > self.clock]


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
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("driver")),
    st.tuples(st.just("parallelism"), st.integers(1, 3)),
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Carry out steps, each in an epoch of its own, so that it is known which records time has overtaken."""
    number = 0
    for step in steps:
        match step:
            case ("push", partition, given):
                rows = [row(k, second, number + i, word) for i, (k, second, word) in enumerate(given)]
                number += len(rows)
                over = oracle.clock - oracle.gap - oracle.lateness
                alone = [each for each in rows if (each["at"] - START).total_seconds() <= over]
                # Whether these are late depends on the records before them, so they come one by one.
                for group in [[each for each in rows if each not in alone], *([each] for each in alone)]:
                    if group:
                        t.push("rows", group, partition)
                        t.checkpoint()
                    for each in group:
                        oracle.take(each)
            case ("watermark", second):
                t.watermark("rows", at(second))
                oracle.advance(second)
            case ("crash", worker):
                t.crash(worker % len(t.cluster.rules.key_ranges))
                t.recover()
            case ("driver",):
                t.cluster.replace_driver()
            case ("parallelism", count):
                ranges = tuple(range_of(i, count, 8) for i in range(count))
                t.cluster.rules = replace(t.cluster.rules, key_ranges=ranges)
                t.cluster.replace_driver()
        t.checkpoint()
        assert given_rows(t) == oracle.given


class TestSessions:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=12), st.sampled_from([0, 4, 25]), st.integers(0, 2**16))
    def test_sessions_hold_what_the_oracle_finds(self, steps: list[Any], lateness: int, seed: int) -> None:
        oracle = Oracle(5, lateness)
        with TestDriver(app_of(5, lateness), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            oracle.advance(1e9)
            assert given_rows(t) == oracle.given
            assert sorted(each["v"] for each in t.rows("late")) == sorted(oracle.late)

    def test_a_record_between_two_sessions_makes_them_one(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 0, 1), row("a", 8, 2)])
            t.checkpoint()
            assert t.state("visits", ("a", at(0))) is not None and t.state("visits", ("a", at(8))) is not None
            t.push("rows", [row("a", 4, 3)])
            t.checkpoint()
            assert t.state("visits", ("a", at(8))) is None
            t.finish()
            assert {each: found[0] for each, found in given_rows(t).items()} == {("a", at(0), at(13)): 3}
            assert t.state("visits", ("a", at(0))) is None

    def test_records_exactly_the_gap_apart_are_in_one_session(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 0, 1), row("a", 5, 2), row("a", 10.000001, 3)])
            t.finish()
            assert {found[0] for found in given_rows(t).values()} == {2, 1}

    def test_a_record_that_is_over_alone_may_belong_to_an_open_session(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 7, 1)])
            t.watermark("rows", at(9))
            t.checkpoint()
            t.push("rows", [row("a", 3, 2), row("b", 3, 3)])
            t.checkpoint()
            assert [each["v"] for each in t.rows("late")] == [3]
            t.finish()
            assert {each: found[0] for each, found in given_rows(t).items()} == {("a", at(3), at(12)): 2}

    def test_sums_of_sessions_that_became_one_never_wrap(self) -> None:
        large = 2 * 10**18
        with TestDriver(app_of(lateness=1_000), 1) as t:
            t.push("rows", [row("a", 8 * number, large) for number in range(4)])
            t.checkpoint()
            t.push("rows", [row("a", 8 * number + 4, 1) for number in range(3)])
            t.checkpoint()
            with pytest.raises(hf.JobFailed, match="does not fit into 64 bits"):
                t.push("rows", [row("a", 5, large)])
                t.checkpoint()

    def test_a_rewind_takes_sessions_back_and_gives_them_again(self) -> None:
        oracle, rows = Oracle(5, 1_000), [row("ab"[i % 2], (i * 7) % 97, i) for i in range(40)]
        with TestDriver(app_of(lateness=1_000), 2) as t:
            t.push("rows", [row("c", -2_000, 0), *rows[:20]])
            t.watermark("rows", at(-900))
            base = t.checkpoint()
            before = given_rows(t)
            assert list(before) == [("c", at(-2_000), at(-1_995))]
            t.push("rows", [row("c", -1_850, 1), *rows[20:]], partition=1)
            t.watermark("rows", at(-800))
            t.checkpoint()
            assert len(given_rows(t)) == 2
            t.rewind(base)
            assert given_rows(t) == before
            t.checkpoint()
            for each in [row("c", -2_000, 0), row("c", -1_850, 1), *rows]:
                oracle.take(each)
            t.finish()
            oracle.advance(1e9)
            assert given_rows(t) == oracle.given


class TestRefusals:
    @pytest.mark.continuous("it runs no job")
    def test_corrections_of_sessions_are_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="no row takes it back") as found:
            app_of(lateness=5, emit="close")
        assert "final" in found.value.next_step

    @pytest.mark.continuous("it runs no job")
    def test_a_gap_of_nothing_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="the gap must be above 0"):
            hf.session("0s")

    @pytest.mark.continuous("it runs no job")
    def test_state_of_another_gap_is_refused(self) -> None:
        before = describe_operators(app_of(5).plan())
        check_against(app_of(5).plan(), before)
        with pytest.raises(hf.ConfigError, match=r"had the windows session\(5s\) and now has session\(6s\)"):
            check_against(app_of(6).plan(), before)


class TestMerged:
    @pytest.mark.continuous("it runs no job")
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=40))
    def test_intervals_that_touch_become_one(self, given: list[tuple[int, int, int]]) -> None:
        owners, starts, lengths = (np.array(each, np.int64) for each in zip(*given, strict=True))
        found = merged(owners, starts, starts + lengths)
        points = {
            owner: {2 * p for o, s, n in given if o == owner for p in range(s, s + n + 1)}
            | {2 * p + 1 for o, s, n in given if o == owner for p in range(s, s + n)}
            for owner in set(owners.tolist())
        }
        for each, (owner, start, length) in enumerate(given):
            session = found.of[each]
            begin, end = 2 * start, 2 * (start + length)
            while begin - 1 in points[owner]:
                begin -= 1
            while end + 1 in points[owner]:
                end += 1
            assert (found.owners[session], 2 * found.starts[session], 2 * found.ends[session]) == (owner, begin, end)
