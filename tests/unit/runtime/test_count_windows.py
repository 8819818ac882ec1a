"""Count windows: in complete jobs, by the oracles of the functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import state_sizes
from count_window_jobs import Oracle, app_of, check, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_jobs import SCHEMA, row

import holdfast as hf
from holdfast.runtime.operators.windows import counted
from holdfast.runtime.operators.windows.counted import windows_of
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(0, 2),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(-9, 9)), st.integers(0, 5)),
            min_size=1,
            max_size=20,
        ),
    ),
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("driver")),
    st.tuples(st.just("parallelism"), st.integers(1, 3)),
)


def rows_of(app: hf.App, **time: Any) -> hf.Stream:
    return app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), **time)


def every(size: int) -> Any:
    return hf.all_time(hf.count_of(size))


class TestCountWindows:
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=2, max_size=10), st.integers(1, 7), st.integers(0, 2**16))
    def test_every_n_records_of_a_key_have_one_result(self, steps: list[Any], size: int, seed: int) -> None:
        oracle = Oracle(size)
        with TestDriver(app_of(size), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            check(t, oracle)
            state_sizes.check(t, {"counted": sum(len(rows) % size > 0 for rows in oracle.records.values())})

    def test_pieces_of_a_batch_are_one_sequence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counted, "PIECE_ROWS", 7)
        oracle = Oracle(5)
        with TestDriver(app_of(5), 1) as t:
            play(t, [("push", 0, [("ab"[i % 3 == 0], i % 9, i % 4) for i in range(60)]), ("crash", 0)], oracle)

    def test_a_rewind_takes_rows_back_and_gives_them_again(self) -> None:
        oracle = Oracle(4)
        with TestDriver(app_of(4), 2) as t:
            play(t, [("push", 0, [("a", i % 9, i % 3) for i in range(50)])], oracle)
            base = t.checkpoint()
            before = t.rows("out")
            assert len(before) == 12
            play(t, [("push", 0, [("a", -(i % 9), i % 3) for i in range(50)])], oracle)
            t.checkpoint()
            t.rewind(base)
            assert t.rows("out") == before
            t.checkpoint()
            check(t, oracle)

    def test_a_key_without_records_in_a_window_has_no_state(self) -> None:
        app = hf.App("none", key_groups=8)
        rows_of(app, event_time="at").key_by("k").window(every(3)).agg("all", n=hf.count()).sink("out", MemorySink())
        with TestDriver(app, 1) as t:
            t.push("rows", [row("abc"[i % 3], i, 0, 0) for i in range(11)])  # 4 of a and b, 3 of c
            t.checkpoint()
            assert [t.state("all", key) is not None for key in "abc"] == [True, True, False]
            t.push("rows", [row("a", i, 0, 0) for i in range(11, 13)])
            t.checkpoint()
            assert t.state("all", "a") is None
            assert [each["n"] for each in t.rows("out")] == [3] * 4

    def test_a_sum_of_one_window_that_does_not_fit_fails_the_job(self) -> None:
        app = hf.App("large")
        rows_of(app, event_time="at").key_by("k").window(every(2)).agg("all", v=hf.sum("v")).sink("out", MemorySink())
        with TestDriver(app, 1) as t:
            large = 2**63 - 1
            t.push("rows", [row("a", 0, large, 0), row("a", 1, 0, 0), row("a", 2, large, 0), row("a", 3, -5, 0)])
            t.checkpoint()
            assert [each["v"] for each in t.rows("out")] == [large, large - 5]
            with pytest.raises(hf.JobFailed, match="does not fit into 64 bits"):
                t.push("rows", [row("a", 4, large, 0), row("a", 5, 1, 0)])
                t.checkpoint()

    def test_results_can_be_put_into_windows(self) -> None:
        app = hf.App("windows", key_groups=8)
        result = (
            rows_of(app, event_time="at", idle_after="1h").key_by("k").window(every(4)).agg("fours", n=hf.max("id"))
        )
        assert result.schema.names == ["k", "at", "n"] and result.upsert_key is None
        result.key_by("k").window(hf.tumbling("10s")).agg("most", n=hf.count(), last=hf.max("n")).sink(
            "out", MemorySink()
        )
        with TestDriver(app) as t:
            t.push("rows", [row("a", i, None, 0) for i in range(25)])
            t.finish()
            assert [(each["n"], each["last"]) for each in t.rows("out")] == [(2, 7), (3, 19), (1, 23)]

    def test_windows_of_all_rows_need_neither_key_nor_event_time(self) -> None:
        app = hf.App("all")
        result = rows_of(app).window(every(10)).agg("tens", n=hf.count(), last=hf.max("id"))
        assert result.schema.names == ["n", "last"]
        result.sink("out", MemorySink())
        with TestDriver(app, 2) as t:
            t.push("rows", [row("abc"[i % 3], i, None, 0) for i in range(25)])
            t.finish()
            assert [(each["n"], each["last"]) for each in t.rows("out")] == [(10, 9), (10, 19)]

    @pytest.mark.continuous("it runs no job")
    def test_windows_are_numbered_in_the_order_of_their_last_rows(self) -> None:
        numbers, held = np.array([0, 1, 1, 0, 1, 0, 1, 2]), np.array([2, 0, 1])
        found = windows_of(numbers, held, 3)
        assert found.last.tolist() == [0, 4]
        assert (found.held.tolist(), found.of_held.tolist()) == ([0, 1], [0, 1])
        assert (found.rows.tolist(), found.of_rows.tolist()) == ([0, 1, 2, 4], [0, 1, 1, 1])


@pytest.mark.continuous("it runs no job")
class TestRefusals:
    @pytest.mark.parametrize(
        ("use", "what", "next_step"),
        [
            (lambda: hf.all_time(100), "is not a trigger", "hf.count_of(100)"),  # type: ignore[arg-type]
            (lambda: hf.all_time("1m"), "is not a trigger", "hf.tumbling"),  # type: ignore[arg-type]
            (lambda: hf.count_of(0), "an int from 1 to", "hf.count_of(100)"),
            (lambda: hf.count_of(True), "an int from 1 to", "hf.count_of(100)"),
            (lambda: hf.count_of("1m"), "an int from 1 to", "hf.count_of(100)"),  # type: ignore[arg-type]
        ],
    )
    def test_other_triggers(self, use: Callable[[], object], what: str, next_step: str) -> None:
        with pytest.raises(hf.ConfigError, match=what) as refusal:
            use()
        assert next_step in refusal.value.next_step and refusal.value.not_done == "the job was not planned"

    def test_lateness_and_late_records(self) -> None:
        keyed = rows_of(hf.App("no"), event_time="at").key_by("k")
        with pytest.raises(hf.ConfigError, match="no record is late"):
            keyed.window(every(3), allowed_lateness="1m")
        with pytest.raises(hf.ConfigError, match="no record is late"):
            _ = keyed.window(every(3)).agg("all", n=hf.count()).late

    def test_streams_that_replace_rows_and_joins(self) -> None:
        keyed = rows_of(hf.App("no"), event_time="at").key_by("k")
        with pytest.raises(hf.ConfigError, match="windows over replaced rows"):
            keyed.agg("all", n=hf.count()).key_by("k").window(every(3))
        rows = rows_of(hf.App("joined"), event_time="at")
        with pytest.raises(hf.ConfigError, match="is not a window"):
            rows.join("pairs", rows, on="k", window=every(3))

    @pytest.mark.parametrize(("name", "what"), [("k", "'k' is already a column"), ("at", "'at' is already a column")])
    def test_names_of_the_result(self, name: str, what: str) -> None:
        windows = rows_of(hf.App("no"), event_time="at").key_by("k").window(every(3))
        with pytest.raises(hf.ConfigError, match=what):
            windows.agg("all", emit="final", **{name: hf.count()})
        with pytest.raises(hf.ConfigError, match="emit='each' is unknown"):
            windows.agg("all", emit="each", n=hf.count())

    def test_aggregates_of_the_user(self) -> None:
        @dataclass
        class Seen:
            n: int = 0

        def result(state: Seen) -> int:
            return state.n

        own = hf.Aggregate(Seen, lambda state, row: state, lambda one, other: one, result, to=int)
        with pytest.raises(hf.ConfigError, match="would be called many times") as refusal:
            rows_of(hf.App("no")).key_by("k").window(every(3)).agg("all", n=own)
        assert "keyed function" in refusal.value.next_step

    def test_another_size_and_other_aggregates_for_kept_state(self) -> None:
        def described(windowed: Callable[[Any], Any]) -> Any:
            app = hf.App("kept")
            stream = windowed(rows_of(app, event_time="at").key_by("k"))
            stream.sink("out", MemorySink(key=stream.upsert_key))
            return app.plan()

        three = described(lambda keyed: keyed.window(every(3)).agg("all", n=hf.count()))
        four = described(lambda keyed: keyed.window(every(4)).agg("all", n=hf.count()))
        plain = described(lambda keyed: keyed.agg("all", n=hf.count()))
        check_against(three, describe_operators(three))
        with pytest.raises(hf.ConfigError, match="had windows of 3 records and now has windows of 4"):
            check_against(four, describe_operators(three))
        for now, before in ((three, plain), (plain, three)):
            with pytest.raises(hf.ConfigError, match="kept aggregates per key"):
                check_against(now, describe_operators(before))
