"""Early results of windows: by an oracle, over failures, rescaling and rewinds; when they are due; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hopping_jobs
import pytest
from early_jobs import STEPS, app_of, finish, play, watched
from hopping_jobs import SCHEMA, Oracle, at, given_rows, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_player import rescale

import holdfast as hf
from holdfast.model import NEVER_US
from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.runtime.operators.windows import early, marked, window
from holdfast.runtime.operators.windows.early import EarlyResults, EarlySchedule
from holdfast.runtime.operators.windows.marked import MarkedRows
from holdfast.runtime.plan.compiler import render
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.table import StateTable
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


@dataclass
class Digits:
    most: int = 0


def longer(state: Digits, row: Any) -> Digits:
    return Digits(max(state.most, len(str(row.v))))


LONGEST = hf.Aggregate(Digits, longer, lambda one, other: Digits(max(one.most, other.most)), lambda s: s.most, to=int)


def ns(t: TestDriver) -> dict[tuple[str, Any], int]:
    """Return the number of records in the visible result of every window."""
    return {window: found[1] for window, found in given_rows(t).items()}


def wait(t: TestDriver, seconds: float) -> None:
    """Let time pass, and what it makes due be delivered."""
    t.advance(f"{round(1_000 * seconds)}ms")
    t.advance("2s")


def completed(t: TestDriver) -> int:
    return len(t.cluster.driver.state.job.completed)


def dropping(table: StateTable, looked_up: int = 0) -> bool:
    """Drop slots without a row at every barrier, so that others get their numbers."""
    table.drop_vacant()
    return True


class TestAgainstPlainPython:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(STEPS, min_size=3, max_size=12),
        st.sampled_from([(10, 10, 3, 0), (10, 2, 5, 0), (12, 3, 2, 1_000), (10, 10, 7, 1_000)]),
        st.sampled_from([1, 4_096]),
        st.booleans(),
        st.integers(0, 2**16),
    )
    def test_nothing_is_lost_and_what_is_shown_was_so(
        self, steps: list[Any], shape: tuple[int, int, int, int], round_rows: int, drops: bool, seed: int
    ) -> None:
        size, every, interval, lateness = shape
        oracle = Oracle(size, every, "close", lateness)
        with pytest.MonkeyPatch.context() as patched, TestDriver(app_of(size, every, interval, lateness), 2, seed) as t:
            for module, limit in ((early, "ROUND_ROWS"), (marked, "SCANNED_AT_ONCE"), (marked, "GROUPED_AT_ONCE")):
                patched.setattr(module, limit, round_rows)
            if drops:
                patched.setattr(window, "drop_vacant", dropping)
            with watched(t, oracle, interval) as watch:
                play(t, steps, watch, seed % 40)
                finish(t, watch, interval)
            assert t.rows("late") == []


class TestWhenResultsAreShown:
    def test_an_open_window_is_shown_once_the_interval_is_over_and_closed_at_its_end(self) -> None:
        with TestDriver(app_of(10, 10, 5), 2) as t:
            t.push("rows", [row("a", 1, 7), row("a", 2, 8)])
            t.checkpoint()
            assert t.rows("out") == []
            wait(t, 5)
            assert ns(t) == {("a", at(10)): 2}
            t.push("rows", [row("a", 3, 9)])
            t.watermark("rows", at(10))
            t.checkpoint()
            assert ns(t) == {("a", at(10)): 3}

    def test_only_windows_that_have_changed_are_shown_again(self) -> None:
        oracle = Oracle(10, 10, "close", 0)
        with TestDriver(app_of(10, 10, 5), 2) as t, watched(t, oracle, 5) as watch:
            play(t, [("push", [("a", 1, None), ("b", 1, None)]), ("wait", 9_000), ("push", [("a", 2, None)])], watch)
            play(t, [("wait", 9_000)], watch)
            assert watch.given == {("a", at(10)): [1, 2], ("b", at(10)): [1]}

    def test_a_window_that_was_shown_is_confirmed_when_it_closes(self) -> None:
        oracle = Oracle(10, 10, "close", 0)
        with TestDriver(app_of(10, 10, 5), 2) as t, watched(t, oracle, 5) as watch:
            play(t, [("push", [("a", 1, None)]), ("wait", 9_000), ("watermark", 10)], watch)
            assert watch.given == {("a", at(10)): [1, 1]}

    def test_an_idle_job_is_not_woken_when_there_is_nothing_to_show(self) -> None:
        with TestDriver(app_of(10, 2, 5), 2) as t:
            t.push("rows", [row("a", 1, 7)])
            wait(t, 10)
            assert len(ns(t)) == 5
            before = completed(t)
            t.advance("5m")
            assert completed(t) == before

    def test_records_that_come_late_for_a_closed_window_wake_nothing(self) -> None:
        with TestDriver(app_of(10, 10, 5, lateness=60), 2) as t:
            t.watermark("rows", at(10))
            t.push("rows", [row("a", 1, 7)])
            t.checkpoint()
            assert ns(t) == {("a", at(10)): 1}
            before = completed(t)
            t.advance("5m")
            assert completed(t) == before

    def test_a_record_far_in_the_future_costs_no_look_up_of_what_lies_between(self) -> None:
        with TestDriver(app_of(10, 2, 5), 1) as t:
            t.push("rows", [row("a", 1, 7), row("a", 60 * 60 * 24 * 365 * 100, 8)])
            wait(t, 10)
            assert sorted(ns(t).values()) == [1] * 10

    @pytest.mark.parametrize("lost", ["worker", "driver"])
    def test_a_change_that_was_not_shown_is_shown_after_a_failure(self, lost: str) -> None:
        with TestDriver(app_of(10, 10, 20), 2) as t:
            t.push("rows", [row(k, 1, 7) for k in "abc"])
            t.checkpoint()
            if lost == "worker":
                t.crash(worker=1)
                t.recover()
            else:
                rescale(t, 3)
            assert ns(t) == {}
            wait(t, 40)
            assert ns(t) == {(k, at(10)): 1 for k in "abc"}

    def test_a_rewind_takes_early_results_back_and_shows_them_again(self) -> None:
        with TestDriver(app_of(10, 10, 5), 2) as t:
            t.push("rows", [row("a", 1, 7)])
            base = t.checkpoint()
            wait(t, 10)
            t.push("rows", [row("a", 2, 8)])
            wait(t, 10)
            assert ns(t) == {("a", at(10)): 2}
            t.rewind(base)
            wait(t, 20)
            assert ns(t) == {("a", at(10)): 2}

    @pytest.mark.parametrize("behind_s", [3_600, -3_600])
    def test_a_clock_that_is_set_back_or_forward_keeps_no_window_from_being_shown(self, behind_s: int) -> None:
        with TestDriver(app_of(10, 10, 5), 2) as t:
            t.push("rows", [row("a", 1, 7)])
            wait(t, 10)
            for n in (2, 3):
                t.cluster.clock.wall_behind_s = behind_s if n == 2 else 0
                t.crash(0)
                t.recover()
                t.push("rows", [row("a", 1, 7)])
                wait(t, 15)
                assert ns(t) == {("a", at(10)): n}

    def test_functions_of_the_user_give_early_results(self) -> None:
        app = hf.App("longest", key_groups=8)
        rows = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at", idle_after="1h")
        windows = rows.key_by("k").window(hf.hopping("10s", every="5s"))
        longest = windows.agg("longest", emit=hf.every("5s"), digits=LONGEST)
        longest.sink("out", MemorySink(key=longest.upsert_key))
        with TestDriver(app, 2) as t:
            t.push("rows", [row(k, second, 10**second) for k in "abc" for second in (1, 7)])
            wait(t, 10)
            found = {(each["k"], each["window_end"]): each["digits"] for each in t.rows("out")}
            assert found == {(k, at(end)): digits for k in "abc" for end, digits in ((5, 2), (10, 8), (15, 8))}

    def test_rounds_keep_no_epoch_from_completing(self, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        monkeypatch.setattr(early, "ROUND_ROWS", 1)
        rounds, take = list[int](), MarkedRows.take

        def counted(found: MarkedRows, rows: int) -> Any:
            rounds.append(rows)
            return take(found, 1)

        monkeypatch.setattr(MarkedRows, "take", counted)
        with TestDriver(app_of(10, 10, 20), 1) as t:
            t.push("rows", [row(f"k{n:03}", 1, n) for n in range(200)])
            before = t.checkpoint()
            t.cluster.clock.now += 40
            while t.cluster.driver.state.job.base_epoch == before:
                assert t.cluster.step()
            assert mode == "microbatch" or 0 < len(rounds) < 200
            wait(t, 1)
            assert ns(t) == {(f"k{n:03}", at(10)): 1 for n in range(200)}


class TestBounds:
    @pytest.mark.parametrize("every", [10, 2])
    def test_a_turn_looks_at_a_part_of_the_state(self, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
        monkeypatch.setattr(marked, "SCANNED_AT_ONCE", 16)
        monkeypatch.setattr(marked, "GROUPED_AT_ONCE", 1)
        turns, take, values, keys_at = list[int](), MarkedRows.take, StateTable.values, StateTable.keys_at

        def turn(found: MarkedRows, rows: int) -> Any:
            turns.append(0)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(StateTable, "values", looking(values, lambda name, slots: slots))
                patched.setattr(StateTable, "keys_at", looking(keys_at, lambda slots: slots))
                return take(found, rows)

        def looking(method: Any, slots_of: Any) -> Any:
            def looked(table: StateTable, *given: Any) -> Any:
                turns[-1] = max(turns[-1], slots_of(*given).size)
                return method(table, *given)

            return looked

        monkeypatch.setattr(MarkedRows, "take", turn)
        with TestDriver(app_of(10, every, 5), 1) as t:
            t.push("rows", [row(f"k{n:03}", 1, n) for n in range(200)])
            wait(t, 5)
            assert ns(t) == {(f"k{n:03}", at(end)): 1 for n in range(200) for end in range(every, 11, every) if end > 1}
        assert max(turns) <= (16 if every == 10 else 60), "a key group of the eight has at most 60 of the keys"
        assert len(turns) >= 200 // 16

    def test_a_round_merges_no_more_rows_than_one_key_has_or_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "MERGED_AT_ONCE", 800)
        rounds, take, combined = list[int](), EarlyResults.take_round, Folding.combined

        def counted(results: EarlyResults, *given: Any) -> Any:
            rounds.append(0)
            return take(results, *given)

        def merging(folding: Folding, rows: Any, *given: Any) -> Any:
            if rounds:
                rounds[-1] += rows.size
            return combined(folding, rows, *given)

        with TestDriver(app_of(20, 1, 5), 1) as t:
            keys = [f"k{n}" for n in range(10)]
            t.push("rows", [row(k, second, 1) for k in keys for second in range(20)])
            wait(t, 10)
            monkeypatch.setattr(EarlyResults, "take_round", counted)
            monkeypatch.setattr(Folding, "combined", merging)
            t.push("rows", [row(k, 19, 1) for k in keys])
            wait(t, 10)
            assert {ns(t)[k, at(20)] for k in keys} == {21}
        assert 0 < max(rounds) <= 800


@pytest.mark.continuous("it runs no job")
class TestSchedule:
    def test_a_round_is_due_at_the_first_multiple_of_the_interval_after_a_change(self) -> None:
        schedule = EarlySchedule(10)
        assert schedule.due_us() is None and not schedule.look(1_000)
        schedule.changed(1_003)
        schedule.changed(1_008)
        assert schedule.due_us() == 1_010
        assert [schedule.look(at_us) for at_us in (1_009, 1_010)] == [False, True]

    def test_a_round_is_an_interval_after_the_last_one(self) -> None:
        schedule = EarlySchedule(10, since_us=1_003)
        schedule.begin()
        schedule.show(1_014)
        schedule.changed(1_014)
        schedule.end()
        assert schedule.due_us() == 1_024

    def test_a_pass_goes_on_at_once_and_is_in_the_state_until_its_end(self) -> None:
        schedule = EarlySchedule(10, since_us=1_003)
        schedule.begin()
        schedule.show(1_010)
        schedule.changed(1_011)
        assert schedule.look(1_011) and schedule.times == (1_010, 1_003)
        schedule.end()
        assert schedule.times == (1_010, 1_011)

    def test_what_a_pass_that_was_given_up_has_left_is_shown_by_the_next(self) -> None:
        schedule = EarlySchedule(10, since_us=1_003)
        schedule.begin()
        schedule.show(1_010)
        schedule.give_up()
        assert schedule.times == (1_010, 1_003)
        assert schedule.due_us() == 1_020

    def test_times_of_a_clock_that_was_ahead_are_forgotten(self) -> None:
        schedule = EarlySchedule(10, shown_us=5_000, since_us=5_003)
        assert not schedule.look(1_001)
        assert (schedule.times, schedule.due_us()) == ((1_001, 1_001), 1_011)
        underway = EarlySchedule(10, since_us=5_003)
        underway.begin()
        assert underway.look(1_001)

    def test_without_a_change_nothing_is_due(self) -> None:
        schedule = EarlySchedule(10, since_us=1_003)
        schedule.begin()
        schedule.show(1_010)
        schedule.end()
        assert schedule.due_us() is None and not schedule.look(10_000)
        assert schedule.times == (1_010, NEVER_US)


def windowed(over: Any, emit: Any, lateness: str = "0s") -> Any:
    rows = hf.App("no").source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at")
    return rows.key_by("k").window(over, allowed_lateness=lateness).agg("all", emit=emit, n=hf.count())


@pytest.mark.continuous("it runs no job")
class TestPlans:
    @pytest.mark.parametrize("lateness", ["0s", "5s"])
    def test_results_replace_each_other_by_key_and_window(self, lateness: str) -> None:
        found = windowed(hf.tumbling("10s"), hf.every("5s"), lateness)
        assert found.upsert_key == ("k", "window_end")
        with pytest.raises(hf.ConfigError, match="key"):
            found.sink("out", MemorySink())

    def test_a_window_over_results_that_replace_each_other_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="windows over replaced rows"):
            windowed(hf.tumbling("10s"), hf.every("5s")).window(hf.tumbling("1m"))

    def test_the_plan_names_the_interval(self) -> None:
        assert "lateness 0s, emit every 5s: n = count()" in render(app_of(10, 2, 5).plan())

    @pytest.mark.parametrize(
        ("use", "what", "next_step"),
        [
            (lambda: hf.every(1_000), "a number without a unit", "hf.count_of(100)"),  # type: ignore[arg-type]
            (lambda: hf.every("0s"), "above 0", 'hf.every("10s")'),
            (lambda: hf.every("soon"), "a duration such as", ""),
            (lambda: windowed(hf.session("5s"), hf.every("5s")), "gets another end", 'emit="final"'),
            (lambda: windowed(hf.sliding("5s"), hf.every("5s")), "is emitted once", 'emit="each"'),
            (lambda: windowed(hf.all_time(hf.count_of(3)), hf.every("5s")), "with its last record", "changes"),
            (lambda: windowed(hf.tumbling("5s"), "early"), "is unknown", 'hf.every("10s")'),
        ],
    )
    def test_refusals(self, use: Callable[[], object], what: str, next_step: str) -> None:
        with pytest.raises(hf.ConfigError, match=what) as refusal:
            use()
        assert next_step in refusal.value.next_step

    def test_aggregates_without_windows_are_emitted_each_epoch(self) -> None:
        rows = hf.App("no").source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at")
        with pytest.raises(hf.ConfigError, match=r"emit=hf\.every\(\.\.\.\) is for windows"):
            rows.key_by("k").agg("all", emit=hf.every("5s"), n=hf.count())  # type: ignore[arg-type]

    def test_the_interval_may_change_and_the_kind_of_emission_may_not(self) -> None:
        before = describe_operators(app_of(10, 2, 5).plan())
        check_against(app_of(10, 2, 60).plan(), before)
        with pytest.raises(hf.ConfigError, match="had emit='every' and now has emit='close'"):
            check_against(hopping_jobs.app_of(10, 2).plan(), before)
        with pytest.raises(hf.ConfigError, match="had emit='close' and now has emit='every'"):
            check_against(app_of(10, 2, 5).plan(), describe_operators(hopping_jobs.app_of(10, 2).plan()))
