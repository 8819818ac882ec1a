"""Patterns in complete jobs: matches and late rows, by an oracle that backtracks in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_player import rescale
from pattern_jobs import PATTERNS, Event, Oracle, app_of, at, given_rows, play

import holdfast as hf
from holdfast.runtime.operators.patterns.automaton import Automaton
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
SKIPS = ["past_last", "to_next", "none"]
EVENTS = st.tuples(st.sampled_from("xy"), st.sampled_from("aabbcd"), st.integers(0, 5), st.integers(-5, 40))
STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2), st.lists(EVENTS, min_size=1, max_size=9)),
    st.tuples(st.just("push"), st.integers(0, 2), st.lists(EVENTS, min_size=1, max_size=9)),
    st.tuples(st.just("watermark"), st.integers(-5, 45)),
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("driver")),
    st.tuples(st.just("parallelism"), st.integers(1, 3)),
)


class TestMatches:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(STEPS, min_size=3, max_size=10),
        st.sampled_from(sorted(PATTERNS)),
        st.sampled_from(SKIPS),
        st.integers(0, 2**16),
    )
    def test_matches_are_what_backtracking_finds(self, steps: list[Any], name: str, skip: str, seed: int) -> None:
        oracle = Oracle(PATTERNS[name], skip, 10)
        with TestDriver(app_of(name, skip), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            oracle.advance(1e9)
            assert given_rows(t) == oracle.matches()
            assert sorted(each["id"] for each in t.rows("late")) == sorted(oracle.late)
            state_sizes.check(t, {})

    def test_a_rewind_takes_matches_back_and_gives_them_again(self) -> None:
        oracle = Oracle(PATTERNS["some"], "past_last", 10)
        events = [Event(i, "xy"[i % 2], "abbbcd"[i * 7 % 6], i, at(i)) for i in range(40)]
        with TestDriver(app_of("some"), 2) as t:
            t.push("rows", events[:24])
            t.watermark("rows", at(20))
            base = t.checkpoint()
            before = given_rows(t)
            assert before
            t.push("rows", events[24:], partition=1)
            t.watermark("rows", at(39))
            t.checkpoint()
            assert len(given_rows(t)) > len(before)
            t.rewind(base)
            assert given_rows(t) == before
            t.checkpoint()
            for each in events:
                oracle.take(each)
            t.finish()
            oracle.advance(1e9)
            assert given_rows(t) == oracle.matches()


RUNS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2), st.lists(EVENTS, min_size=1, max_size=9)),
    st.tuples(st.just("push"), st.integers(0, 2), st.lists(EVENTS, min_size=1, max_size=9)),
    st.tuples(st.just("checkpoint"), st.just(0), st.just([])),
    st.tuples(st.just("crash"), st.integers(0, 60), st.just([])),
    st.tuples(st.just("driver"), st.integers(1, 3), st.just([])),
    st.tuples(st.just("rewind"), st.integers(0, 2), st.just([])),
)


def run(t: TestDriver, step: tuple[str, int, list[Any]], pushed: list[Event], epochs: list[int]) -> None:
    """Carry out a step; crashes come in the middle of epochs. The times of all rows differ."""
    match step:
        case ("push", partition, given):
            first = len(pushed)
            made = [Event(first + i, u, k, n, at(s + (first + i) / 1e4)) for i, (u, k, n, s) in enumerate(given)]
            pushed += made
            t.push("rows", made, partition)
        case ("checkpoint", _, _):
            epochs.append(t.checkpoint())
        case ("crash" | "driver" as fault, number, _):
            t.cluster.clock.now += 1.1
            for _ in range(number if fault == "crash" else 20):
                t.cluster.step()
            if fault == "crash":
                t.crash(number % len(t.cluster.rules.key_ranges))
                t.recover()
            else:
                rescale(t, number)
                t.advance("1s")
        case ("rewind", back, _) if epochs:
            t.rewind(epochs[-1 - back % len(epochs)])
            epochs.clear()


class TestFaults:
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(RUNS, min_size=4, max_size=9),
        st.sampled_from(sorted(PATTERNS)),
        st.sampled_from(SKIPS),
        st.integers(0, 2**16),
    )
    def test_every_match_is_emitted_once_whatever_fails(
        self, steps: list[Any], name: str, skip: str, seed: int
    ) -> None:
        pushed, epochs, oracle = list[Event](), list[int](), Oracle(PATTERNS[name], skip, 10)
        with TestDriver(app_of(name, skip, out_of_orderness="2s"), 2, seed) as t:
            for step in steps:
                run(t, step, pushed, epochs)
            t.finish()
            late = {each["id"] for each in t.rows("late")}
            for each in pushed:
                if each.id not in late:
                    oracle.take(each)
            oracle.advance(1e9)
            assert given_rows(t) == oracle.matches()
            state_sizes.check(t, {})
            assert kept_rows(t, pushed) == [] and kept_partials(t) == 0


def kept_rows(t: TestDriver, events: list[Event]) -> list[int]:
    """Return the ids of the rows in the state, whose times differ."""
    rows = next(each for each in app_of().plan().operators if each.name == "found.rows")
    t._operators["found.rows"] = rows  # the driver shows the table with an operator's name only
    return [each.id for each in events if t.state("found.rows", (each.user, each.at, 0)) is not None]


def kept_partials(t: TestDriver, users: str = "xy") -> int:
    """Return how many partial matches are in the state."""
    return sum(t.state("found", (user, number)) is not None for user in users for number in range(16))


def push(t: TestDriver, *rows: tuple[str, str, int, float]) -> list[Event]:
    events = [Event(round(1e4 * second), user, kind, amount, at(second)) for user, kind, amount, second in rows]
    t.push("rows", events)
    return events


class TestState:
    def test_nothing_is_kept_beyond_within(self) -> None:
        with TestDriver(app_of("relaxed", within=10), 2) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
            events = push(t, *(("x", "a", 0, n) for n in range(5)), ("x", "b", 0, 4.5), ("y", "d", 0, 4))
            t.checkpoint()
            assert kept_partials(t) == 0 and len(kept_rows(t, events)) == 6  # "d" meets no condition
            t.watermark("rows", at(9.9))
            t.checkpoint()
            assert kept_partials(t) == 5 and len(kept_rows(t, events)) == 6
            t.watermark("rows", at(10))
            t.checkpoint()
            assert kept_partials(t) == 4 and kept_rows(t, events) == [each.id for each in events[1:6]]
            t.watermark("rows", at(14))
            t.checkpoint()
            assert kept_partials(t) == 0 and kept_rows(t, events) == []

    def test_rows_that_can_break_a_neighbourhood_are_kept_until_the_watermark(self) -> None:
        with TestDriver(app_of("strict"), 2) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
            events = push(t, ("x", "a", 0, 1), ("x", "d", 0, 2), ("x", "b", 0, 3), ("x", "c", 0, 4))
            t.checkpoint()
            assert len(kept_rows(t, events)) == 4
            t.watermark("rows", at(5))
            t.checkpoint()
            assert kept_rows(t, events) == [] and t.rows("out") == []

    def test_a_match_lets_go_of_its_rows(self) -> None:
        with TestDriver(app_of("relaxed"), 2) as t:
            events = push(t, ("x", "a", 0, 1), ("x", "b", 0, 2), ("x", "c", 0, 3))
            t.watermark("rows", at(4))
            t.checkpoint()
            assert given_rows(t) == [("x", "a:10000 b:20000 c:30000")]
            assert kept_rows(t, events) == [] and kept_partials(t) == 0

    def test_a_partial_match_that_begins_replaces_none_although_earlier_ones_are_over(self) -> None:
        with TestDriver(app_of("relaxed", "none", within=10), 2) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
            push(t, ("x", "a", 0, 0), ("x", "a", 0, 8))
            t.watermark("rows", at(9))
            t.checkpoint()
            assert kept_partials(t) == 2
            t.watermark("rows", at(10))
            t.checkpoint()
            push(t, ("x", "a", 0, 11), ("x", "b", 0, 12), ("x", "c", 0, 13))
            t.watermark("rows", at(12))
            t.checkpoint()
            assert kept_partials(t) == 2
            t.finish()
            assert given_rows(t) == [("x", "a:110000 b:120000 c:130000"), ("x", "a:80000 b:120000 c:130000")]


class TestTime:
    def test_silence_is_known_when_the_watermark_reaches_the_end_of_within(self) -> None:
        with TestDriver(app_of("silence", within=10), 2) as t:
            push(t, ("x", "a", 0, 0), ("x", "b", 0, 2), ("y", "a", 0, 0), ("y", "b", 0, 2), ("y", "c", 0, 9.9))
            t.watermark("rows", at(9.999))
            t.checkpoint()
            assert given_rows(t) == []
            t.watermark("rows", at(10))
            t.checkpoint()
            assert given_rows(t) == [("x", "a:0 b:20000")]

    def test_rows_are_taken_in_the_order_of_their_times(self) -> None:
        with TestDriver(app_of("strict"), 2) as t:
            push(t, ("x", "c", 0, 3), ("x", "a", 0, 1), ("x", "b", 0, 2))
            t.finish()
            assert given_rows(t) == [("x", "a:10000 b:20000 c:30000")]

    def test_a_row_behind_the_watermark_is_late(self) -> None:
        with TestDriver(app_of("relaxed"), 2) as t:
            push(t, ("x", "a", 0, 1))
            t.watermark("rows", at(5))
            t.checkpoint()
            push(t, ("x", "b", 0, 4.9), ("x", "b", 0, 5), ("x", "c", 0, 6))
            t.finish()
            assert [each["id"] for each in t.rows("late")] == [49_000]
            assert given_rows(t) == [("x", "a:10000 b:50000 c:60000")]


@dataclass
class Named:
    user: str
    a_id: int
    b_amount: int
    at: datetime


@dataclass
class Count:
    n: int
    at: datetime


def named_app(*, within: str = "10s", **more: Any) -> hf.App:
    app = hf.App("named", key_groups=8, dlq=MemorySink() if more.get("on_error") == "dlq" else None)
    columns = pa.schema(
        [
            pa.field("user", pa.string()),
            *(pa.field(name, pa.int64(), nullable=False) for name in ("id", "amount")),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    given = hf.Generator(columns, lambda i: ("a", i, i, at(i)), count=0)
    rows = app.source("rows", given, event_time="at", idle_after="1h")
    pattern = more.pop("pattern", None) or hf.pattern("a", pl.col("amount") == 1).followed_by(
        "b", lambda r, m: 10 // r.amount > m.a.amount
    )
    to = more.pop("to", pa.schema([columns.field("user"), *list(named_columns()), columns.field("at")]))
    found = rows.match("found", pattern.within(within), key="user", to=to, **more)
    found.sink("out", MemorySink())
    found.late.sink("late", MemorySink())
    if "at" in found.schema.names:
        found.window(hf.tumbling("10s")).agg("counted", n=hf.count()).sink("windows", MemorySink())
    return app


def named_columns() -> list[pa.Field]:
    return [pa.field("a_id", pa.int64(), nullable=False), pa.field("b_amount", pa.int64(), nullable=False)]


def record(user: str | None, number: int, amount: int, second: float) -> dict[str, Any]:
    return {"user": user, "id": number, "amount": amount, "at": at(second)}


class TestResults:
    def test_fields_are_named_after_steps_and_columns(self) -> None:
        with TestDriver(named_app(), 2) as t:
            t.push("rows", [record("x", 7, 1, 1), record("x", 8, 5, 3), record(None, 9, 1, 2), record(None, 1, 2, 4)])
            t.finish()
            found = sorted(t.rows("out"), key=lambda each: each["at"])
            assert [tuple(each.values()) for each in found] == [("x", 7, 5, at(3)), (None, 9, 2, at(4))]
            assert [each["n"] for each in t.rows("windows")] == [2]

    def test_event_time_of_selected_rows_may_be_that_of_any_row(self) -> None:
        select = lambda m: Count(m.b.id, m.a.at)
        with TestDriver(named_app(to=Count, select=select, within="30s"), 2) as t:
            for second in (0, 25, 50):
                t.push("rows", [record("x", second, 1, second), record("x", second + 1, 5, second + 20)])
                t.watermark("rows", at(second + 21))
                t.checkpoint()
            t.finish()
            assert [each["n"] for each in sorted(t.rows("windows"), key=lambda each: each["window_end"])] == [1, 1, 1]

    @pytest.mark.parametrize("on_error", ["drop", "dlq"])
    def test_a_row_that_fails_is_as_if_it_had_not_come(self, on_error: str) -> None:
        with TestDriver(named_app(on_error=on_error), 2) as t:
            t.push("rows", [record("x", 1, 1, 1), record("x", 2, 0, 2), record("x", 3, 5, 3)])
            t.finish()
            assert [(each["a_id"], each["b_amount"]) for each in t.rows("out")] == [(1, 5)]
            if on_error == "dlq":
                (letter,) = t.rows("dlq")
                assert "ZeroDivisionError" in letter["error"] and letter["operator"] == "found"
                assert decode_row(letter["raw"]).to_pylist() == [record("x", 2, 0, 2)]

    def test_a_row_that_fails_ends_the_job_otherwise(self) -> None:
        with TestDriver(named_app(), 2) as t, pytest.raises(hf.JobFailed, match="ZeroDivisionError") as failed:
            t.push("rows", [record("x", 1, 1, 1), record("x", 2, 0, 2)])
            t.finish()
        assert "on_error" in failed.value.next_step

    def test_a_match_of_which_no_row_can_be_made_is_left_out(self) -> None:
        of_no_number: Any = "even"
        select = lambda m: Count(m.b.id if m.b.id % 2 else of_no_number, m.b.at)
        with TestDriver(named_app(to=Count, select=select, on_error="drop"), 2) as t:
            t.push("rows", [record(user, number, 1, 1) for number, user in enumerate("xy")])
            t.push("rows", [record(user, number, 5, 2) for number, user in enumerate("xy")])
            t.finish()
            assert [each["n"] for each in t.rows("out")] == [1]


ALL = hf.pattern("a").times(1, 9).followed_by("b", pl.col("amount") == 5)


class TestLimitOfPartialMatches:
    """Each row begins two partial matches and continues others in both ways, so rows of a key lead to 2, 5, 9, ..."""

    def app(self, limit: int, on_error: str = "fail") -> hf.App:
        return named_app(
            pattern=ALL, to=Count, select=last_of_match, skip="none", on_error=on_error, partial_matches_max=limit
        )

    def test_a_row_that_leads_beyond_it_ends_the_job(self) -> None:
        with TestDriver(self.app(8), 2) as t, pytest.raises(hf.JobFailed) as failed:
            t.push("rows", [record("x", number, 1, number) for number in range(3)])
            t.finish()
        assert "operator 'found' would have more than 8 partial matches of the key 'x'" in str(failed.value)
        for remedy in ("narrower", ".times", ".within", "skip", "raise partial_matches_max", 'on_error="dlq"'):
            assert remedy in failed.value.next_step

    def test_as_many_as_allowed_are_kept(self) -> None:
        with TestDriver(self.app(9), 2) as t:
            t.push("rows", [record("x", number, 1, number) for number in range(3)])
            t.push("rows", [record("y", number, 1, number) for number in range(3)])
            t.watermark("rows", at(5))
            t.checkpoint()
            assert kept_partials(t) == 18

    @pytest.mark.parametrize("on_error", ["drop", "dlq"])
    @pytest.mark.parametrize("rows_per_batch", [1, 3, 12])
    def test_a_row_that_leads_beyond_it_is_as_if_it_had_not_come(self, on_error: str, rows_per_batch: int) -> None:
        rows = [record("x", number, 5 if number in (4, 5) else 1, 2 * number) for number in range(12)]
        with TestDriver(self.app(5, on_error), 2) as t:
            for first in range(0, 12, rows_per_batch):
                t.push("rows", rows[first : first + rows_per_batch])
                t.watermark("rows", at(2 * (first + rows_per_batch) - 1))
                t.checkpoint()
            t.finish()
            found, letters = matches_left(rows, limit=5)
            assert sorted(each["n"] for each in t.rows("out")) == found
            if on_error == "dlq":
                given = [decode_row(each["raw"]).to_pylist()[0]["id"] for each in t.rows("dlq")]
                assert sorted(given) == letters != []
                assert all("more than 5 partial matches" in each["error"] for each in t.rows("dlq"))


def last_of_match(m: Any) -> Count:
    return Count(100 * m.b.id + len(m.a), m.b.at)


def matches_left(rows: list[dict[str, Any]], limit: int) -> tuple[list[int], list[int]]:
    """Return numbers of matches of ALL within 10 s, and the rows left out.

    In (first row, rows taken, whether it waits for the second step) for each partial match.
    """
    alive, found, left_out = list[tuple[Any, int, bool]](), list[int](), list[int]()
    for row in rows:
        alive = [each for each in alive if (row["at"] - each[0]).total_seconds() < 10]
        after, complete = list[tuple[Any, int, bool]](), list[int]()
        for first, count, waits in [*alive, (row["at"], 0, False)]:
            if not waits:
                after += [(first, count + 1, False)] * (count < 8) + [(first, count + 1, True)]
            elif row["amount"] == 5:
                complete.append(100 * row["id"] + count)
            else:
                after.append((first, count, True))
        if len(after) > max(limit, len(alive)):
            left_out.append(row["id"])
        else:
            alive, found = after, found + complete
    return sorted(found), left_out


class TestWhoseFaultItIs:
    @pytest.mark.parametrize("on_error", ["drop", "dlq"])
    def test_a_defect_of_the_automaton_ends_the_job(self, on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(Automaton, "_take", broken)
        with TestDriver(named_app(on_error=on_error), 2) as t, pytest.raises(Exception, match="a defect"):
            t.push("rows", [record("x", 1, 1, 1)])
            t.finish()

    def test_an_answer_without_a_truth_value_is_of_a_row(self) -> None:
        pattern = hf.pattern("a", pl.col("amount") == 1).followed_by("b", lambda r: np.arange(r.amount) >= 0)
        with TestDriver(named_app(pattern=pattern, on_error="drop"), 2) as t:
            t.push("rows", [record("x", 1, 1, 1), record("x", 2, 5, 2), record("x", 3, 1, 3)])
            t.finish()
            assert [(each["a_id"], each["b_amount"]) for each in t.rows("out")] == [(1, 1)]


@pytest.mark.continuous("it runs no job")
class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"to": Named, "select": 5}, "is not a function"),
            ({"to": pa.schema([("b_nothing", pa.int64())])}, "the event time or <step>_<column>"),
            ({"to": pa.schema([("a_id", pa.int32())])}, "'a_id' of the result is int32"),
            ({"to": Named}, "'user' of the result is string, and 'user' is string or null"),
            ({"to": Count, "select": len, "skip": "most"}, "skip='most' is unknown"),
            ({"on_error": "dlq"}, "no dead letter queue"),
            ({"partial_matches_max": 0}, "partial_matches_max=0 is not an integer from 1 to 1,000,000"),
            ({"partial_matches_max": 1_000_001}, "is not an integer from 1"),
            ({"partial_matches_max": 10.0}, "is not an integer from 1"),
            ({"partial_matches_max": True}, "is not an integer from 1"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, given: dict[str, Any], says: str) -> None:
        app = hf.App("refused")
        rows = named_stream(app)
        to = given.pop("to", pa.schema(named_columns()))
        with pytest.raises(hf.ConfigError, match=says):
            rows.match("found", hf.pattern("a").followed_by("b").within("1s"), key="user", to=to, **given)

    def test_a_pattern_without_within_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="nothing bounds the pattern in time") as found:
            named_stream(hf.App("refused")).match("found", hf.pattern("a").then("b"), key="user", to=Count)
        assert ".within" in found.value.next_step

    @pytest.mark.parametrize(
        "build",
        [
            lambda: hf.pattern("a").followed_by("a"),
            lambda: hf.pattern("_a"),
            lambda: hf.pattern("a", 5),  # type: ignore[arg-type]
            lambda: hf.pattern("a", lambda r, m, x: True),
            lambda: hf.pattern("a").not_followed_by("b").times(2),
            lambda: hf.pattern("a").not_followed_by("b").then("c"),
            lambda: hf.pattern("a").times(0),
            lambda: hf.pattern("a").times(3, 2),
            lambda: hf.pattern("a").within("0s"),
        ],
    )
    def test_a_pattern_that_makes_no_sense_is_refused(self, build: Any) -> None:
        with pytest.raises(hf.ConfigError, match=r"at test_patterns.py") as found:
            build()
        assert found.value.next_step

    def test_an_expression_that_was_not_computed_for_rows_that_wait_is_refused(self) -> None:
        is_five, five = pl.col("amount") == 5, lambda r: r.amount == 5

        def plan_of(*where: Any) -> Any:
            return named_app(pattern=hf.pattern("a", pl.col("amount") == 1).followed_by("b", *where)).plan()

        with pytest.raises(hf.ConfigError, match="had no expression in the condition of step 'b' and now has one"):
            check_against(plan_of(is_five), describe_operators(plan_of(five)))
        check_against(plan_of(five), describe_operators(plan_of(is_five)))
        check_against(plan_of(is_five, five), describe_operators(plan_of(is_five)))

    def test_state_of_another_pattern_is_refused(self) -> None:
        before = describe_operators(app_of("relaxed").plan())
        check_against(app_of("relaxed", skip="none").plan(), before)
        check_against(named_app(partial_matches_max=7).plan(), describe_operators(named_app().plan()))
        with pytest.raises(hf.ConfigError, match="had a pattern of other steps"):
            check_against(app_of("strict").plan(), before)
        with pytest.raises(hf.ConfigError, match="had within='10s' and now has '11s'"):
            check_against(app_of("relaxed", within=11).plan(), before)


def named_stream(app: hf.App) -> Any:
    columns = named_app().plan().edges[0].schema
    return app.source("rows", hf.Generator(columns, lambda i: None, count=0), event_time="at")
