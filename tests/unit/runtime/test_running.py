"""Running aggregates, one row per record: in complete jobs, by the oracles of the functions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_jobs import SCHEMA, app_of, check, play, row

import holdfast as hf
from holdfast.runtime.functions.adding import SumKind
from holdfast.runtime.functions.ranges import Runs, over_ranges
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


class TestEach:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=2, max_size=10), st.integers(0, 2**16))
    def test_every_record_has_the_aggregates_up_to_it(self, steps: list[Any], seed: int) -> None:
        records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with TestDriver(app_of(keep="id"), 2, seed) as t:
            play(t, steps, records)
            t.finish()
            check(t, records)
            state_sizes.check(t, {"totals": len(records)})

    def test_a_rewind_takes_rows_back_and_gives_them_again(self) -> None:
        records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with TestDriver(app_of(keep="id"), 2) as t:
            play(t, [("push", 0, [("a", i % 9, i % 3) for i in range(50)])], records)
            base = t.checkpoint()
            before = t.rows("out")
            play(t, [("push", 0, [("a", -(i % 9), i % 3) for i in range(50)])], records)
            t.checkpoint()
            t.rewind(base)
            assert t.rows("out") == before
            t.checkpoint()
            check(t, records)

    def test_sums_that_fit_only_in_the_end_fail_the_job(self) -> None:
        refused = pytest.raises(hf.JobFailed, match="does not fit into 64 bits")
        with TestDriver(app_of(keep="id"), 1) as t, refused:
            t.push("rows", [row("a", 0, 2**63 - 1, 0), row("a", 1, 1, 0), row("a", 2, -5, 0)])
            t.checkpoint()

    def test_results_with_the_event_time_can_be_put_into_windows(self) -> None:
        app = hf.App("windows", key_groups=8)
        rows = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at", idle_after="1h")
        running = rows.key_by("k").agg("totals", emit="each", keep=["id", "at"], n=hf.count())
        assert running.schema.names == ["k", "id", "at", "n"] and running.upsert_key is None
        running.window(hf.tumbling("10s")).agg("most", n=hf.max("n")).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rows", [row("a", i, None, 0) for i in range(25)])
            t.finish()
            assert [each["n"] for each in t.rows("out")] == [10, 20, 25]

    @pytest.mark.continuous("it runs no job")
    def test_a_job_may_change_between_each_and_changes(self) -> None:
        each, changes = app_of(keep="id").plan(), app_of("changes").plan()
        check_against(each, describe_operators(changes))
        check_against(changes, describe_operators(each))

    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"emit": "final"}, "is for windows"),
            ({"emit": "all"}, "is unknown"),
            ({"emit": "changes", "keep": "id"}, "is for one row per record"),
            ({"emit": "each", "keep": "ids"}, "there is no column 'ids'"),
            ({"emit": "each", "keep": "n"}, "there is no column 'n'"),
            ({"emit": "each", "keep": hf.count()}, "names no columns"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arguments: dict[str, Any], what: str) -> None:
        rows = hf.App("no").source("rows", hf.Generator(SCHEMA, lambda i: None, count=0))
        with pytest.raises(hf.ConfigError, match=what):
            rows.key_by("k").agg("totals", **arguments, n=hf.count())

    @pytest.mark.continuous("it runs no job")
    def test_aggregates_of_the_user_are_refused(self) -> None:
        @dataclass
        class Seen:
            n: int = 0

        def result(state: Seen) -> int:
            return state.n

        own = hf.Aggregate(Seen, lambda state, row: state, lambda one, other: one, result, to=int)
        rows = hf.App("no").source("rows", hf.Generator(SCHEMA, lambda i: None, count=0))
        with pytest.raises(hf.ConfigError, match="would be called many times") as refusal:
            rows.key_by("k").agg("totals", emit="each", n=own)
        assert "keyed function" in refusal.value.next_step


class TestRanges:
    @pytest.mark.continuous("it runs no job")
    @given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=20), min_size=1, max_size=6), st.data())
    def test_every_range_is_merged_once_and_of_one_key_only(self, keys: list[list[int]], data: Any) -> None:
        function = SumKind().over([pa.field("v", pa.int64())], False)
        assert function is not None
        values = np.array([v for rows in keys for v in rows])
        ends = np.concatenate([np.full(len(rows), sum(map(len, keys[: i + 1]))) for i, rows in enumerate(keys)])
        first = np.array(data.draw(st.lists(st.integers(0, values.size - 1), min_size=1, max_size=20)))
        last = np.array([data.draw(st.integers(int(at), int(ends[at]) - 1)) for at in first])
        found = over_ranges(function, {"sum": values}, Runs(np.arange(values.size), ends, first, last))
        assert found["sum"].tolist() == [int(values[a : b + 1].sum()) for a, b in zip(first, last, strict=True)]
