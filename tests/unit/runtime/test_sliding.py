"""Sliding windows, one before each record: results and late records in complete jobs, by an oracle in plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_jobs import SCHEMA, STEPS, at, row
from sliding_jobs import Oracle, app_of, given_rows, play

import holdfast as hf
from holdfast.runtime.operators.windows import sliding
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


class TestSliding:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=14), st.sampled_from([1, 10, 45]), st.integers(0, 2**16))
    def test_every_record_has_what_the_oracle_finds(self, steps: list[Any], size: int, seed: int) -> None:
        oracle = Oracle(size)
        with TestDriver(app_of(size), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            assert given_rows(t) == oracle.rows(through=1e9)
            assert sorted(each["v"] for each in t.rows("late")) == sorted(oracle.late)
            state_sizes.check(t, {})

    def test_a_window_excludes_its_start_and_includes_its_end(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 0, 1), row("a", 0.000001, 2), row("a", 10, 4), row("a", 10, 8), row("b", 10, 16)])
            t.finish()
            found = Counter((each["k"], each["window_end"], each["total"]) for each in t.rows("out"))
            assert found == {
                ("a", at(0), 1): 1, ("a", at(0.000001), 3): 1, ("a", at(10), 14): 2, ("b", at(10), 16): 1
            }  # fmt: skip

    def test_records_come_in_the_order_of_event_time_and_once_it_has_passed(self) -> None:
        with TestDriver(app_of(), 1) as t:
            t.push("rows", [row("a", 8, 1), row("a", 3, 2), row("b", 5, 3)])
            t.watermark("rows", at(8))
            t.checkpoint()
            assert [each["window_end"] for each in t.rows("out")] == [at(3), at(5)]
            t.push("rows", [row("a", 8, 4), row("b", 7.9, 5)])
            t.watermark("rows", at(8.1))
            t.checkpoint()
            assert [each["n"] for each in t.rows("out")] == [1, 1, 3, 3]
            assert [each["v"] for each in t.rows("late")] == [5]

    def test_state_is_kept_for_as_long_as_a_window_needs_it(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 0, 1)])
            for second, kept in ((9, True), (9.9, True), (10, False)):
                t.watermark("rows", at(second))
                t.checkpoint()
                assert (t.state("before", ("a", at(0))) is not None) == kept

    def test_windows_with_many_rows_are_merged_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sliding, "MERGED_ROWS", 50)
        monkeypatch.setattr(sliding, "PIECE_ROWS", 30)
        oracle, rows = Oracle(40), [row("ab"[i % 2], i % 97, i) for i in range(300)]
        with TestDriver(app_of(40), 2) as t:
            t.push("rows", rows)
            for each in rows:
                oracle.take(each)
            t.finish()
            assert given_rows(t) == oracle.rows(through=1e9)

    def test_a_rewind_takes_rows_back_and_gives_them_again(self) -> None:
        oracle, rows = Oracle(10), [row("ab"[i % 2], (i * 7) % 97, i) for i in range(60)]
        with TestDriver(app_of(), 2) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
            t.push("rows", rows[:40])
            for each in rows[:40]:
                oracle.take(each)
            t.checkpoint()
            t.watermark("rows", at(30))
            oracle.advance(30)
            base = t.checkpoint()
            assert given_rows(t) == oracle.rows()
            before = given_rows(t)
            late = [each for each in rows[40:] if each["at"] < at(30)]
            t.push("rows", [*late, *(each for each in rows[40:] if each not in late)], partition=1)
            t.watermark("rows", at(60))
            t.checkpoint()
            assert given_rows(t) != before
            t.rewind(base)
            assert given_rows(t) == before
            t.checkpoint()
            for each in rows[40:]:
                oracle.take(each)
            t.finish()
            assert given_rows(t) == oracle.rows(through=1e9)

    def test_windows_of_all_keys_and_windows_over_results(self) -> None:
        app = hf.App("all", key_groups=8)
        generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
        rows = app.source("rows", generator, event_time="at", idle_after="1h")
        before = rows.window(hf.sliding("5s")).agg("before", n=hf.count())
        again = before.window(hf.tumbling("10s")).agg("again", records=hf.count(), most=hf.max("n"))
        again.sink("out", MemorySink())
        again.late.sink("late", MemorySink())
        with TestDriver(app) as t:
            for second in range(0, 40, 4):
                t.push("rows", [row("abcd"[i], second + i, i) for i in range(4)], partition=second % 3)
                t.watermark("rows", at(second + 4))
                t.checkpoint()
            t.finish()
            assert [(each["records"], each["most"]) for each in t.rows("out")] == [(10, 5)] * 4
            assert t.rows("late") == []


class TestRefusals:
    @pytest.mark.continuous("it runs no job")
    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="the size must be above 0"):
            hf.sliding("0s")
        with pytest.raises(hf.ConfigError, match="no row takes these back") as refusal:
            app_of(allowed_lateness="1s")
        assert "out_of_orderness" in refusal.value.next_step
        rows = hf.App("no").source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at")
        with pytest.raises(hf.ConfigError, match="never in the same"):
            rows.join("both", rows, on="k", window=hf.sliding("5s"))

    @pytest.mark.continuous("it runs no job")
    def test_state_of_another_size_is_refused(self) -> None:
        before = describe_operators(app_of(5).plan())
        check_against(app_of(5).plan(), before)
        with pytest.raises(hf.ConfigError, match=r"had the windows sliding\(5s\) and now has sliding\(6s\)"):
            check_against(app_of(6).plan(), before)


class TestWindows:
    @pytest.mark.continuous("it runs no job")
    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(-40, 40)), min_size=1, max_size=40, unique=True),
        st.integers(1, 30),
    )
    def test_a_window_has_the_rows_of_its_owner_up_to_its_end(self, rows: list[tuple[int, int]], size: int) -> None:
        rows = sorted(rows)
        owners, times = (np.array(each, np.int64) for each in zip(*rows, strict=True))
        runs = sliding.windows_of(np.bincount(owners, minlength=4), times, owners, times, size)
        for (owner, end), first, last in zip(rows, runs.first, runs.last, strict=True):
            wanted = [each for each in rows if each[0] == owner and end - size < each[1] <= end]
            assert rows[first : last + 1] == wanted
