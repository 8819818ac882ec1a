"""Sessions in complete jobs: results and late records, by an oracle in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_jobs import STEPS, Oracle, app_of, at, given_rows, play, row

import holdfast as hf
from holdfast.runtime.operators.windows.session import merged
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


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
            state_sizes.check(t, {})

    def test_a_record_between_two_sessions_makes_them_one(self) -> None:
        with TestDriver(app_of()) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
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

    @pytest.mark.parametrize("seconds", [(5, 0), (0, 5), (0, 10, 5), (5, 10, 0)])
    def test_records_exactly_the_gap_apart_are_in_one_session_whichever_epoch_brings_them(
        self, seconds: tuple[int, ...]
    ) -> None:
        with TestDriver(app_of()) as t:
            t.watermark("rows", at(-1_000))  # only the test moves time
            for number, second in enumerate(seconds):
                t.push("rows", [row("a", second, number)])
                t.checkpoint()
            t.finish()
            assert {each: found[0] for each, found in given_rows(t).items()} == {
                ("a", at(0), at(max(seconds) + 5)): len(seconds)
            }

    def test_a_record_at_the_watermark_belongs_to_the_session_that_ends_there(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 0, 1)])
            t.watermark("rows", at(5))
            t.checkpoint()
            assert given_rows(t) == {}
            t.push("rows", [row("a", 5, 2)])
            t.watermark("rows", at(10))
            t.checkpoint()
            assert given_rows(t) == {}
            t.watermark("rows", at(10.000001))
            t.checkpoint()
            assert {each: found[0] for each, found in given_rows(t).items()} == {("a", at(0), at(10)): 2}
            assert t.rows("late") == []

    def test_a_record_is_late_once_the_watermark_has_passed_its_own_end(self) -> None:
        with TestDriver(app_of(lateness=3)) as t:
            t.watermark("rows", at(8))
            t.push("rows", [row("a", 0, 1)])
            t.watermark("rows", at(8.000001))
            t.push("rows", [row("b", 0, 2), row("c", 0.000001, 3)])
            t.finish()
            assert {each[0] for each in given_rows(t)} == {"a", "c"}
            assert [each["v"] for each in t.rows("late")] == [2]

    @pytest.mark.parametrize("seed", range(3))
    def test_input_in_order_of_one_partition_makes_the_same_sessions_for_every_batch(self, seed: int) -> None:
        with TestDriver(app_of(10), 2, seed) as t:
            for partition in (1, 2, 3):
                t.push("rows", [row("z", 60, 0)], partition)
            t.push("rows", [row("a", 0, 1), *(row(f"b{i}", 10, 1) for i in range(30)), row("a", 10, 2)])
            t.finish()
            sessions = {each: found[0] for each, found in given_rows(t).items() if each[0] == "a"}
            assert (sessions, t.rows("late")) == ({("a", at(0), at(20)): 2}, [])

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
            t.push("rows", [row("a", 8 * number, large) for number in range(5)])
            t.checkpoint()
            for number in range(3):  # each bridge makes the first session longer
                t.push("rows", [row("a", 8 * number + 4, 1)])
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
