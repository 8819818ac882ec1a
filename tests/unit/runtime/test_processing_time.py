"""Processing time of keyed functions, in both modes: timers of the wall clock, and a `now()` that never goes back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_player import rescale
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.operators.process.operator import ProcessOperator
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
START = datetime(2026, 1, 1, tzinfo=UTC)
KEY_GROUPS = 8


@dataclass
class Order:
    id: str
    wait: int
    """Seconds."""
    at: datetime = START


@dataclass
class Out:
    id: str
    n: int


def seconds(time: datetime) -> int:
    return int((time - START).total_seconds())


class Reminder(hf.KeyedProcess[Order, Out]):
    """Emits how long it was to wait, once it has; an order that does not wait clears the timer."""

    wait = hf.Value(int)
    due = hf.Timer("processing")

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        self.wait.set(r.wait)
        self.due.set(ctx.now() + timedelta(seconds=r.wait)) if r.wait else self.due.clear()

    @due.fires
    def remind(self, ctx: hf.Context) -> None:
        assert ctx.event_time is None
        ctx.emit(Out(ctx.key, self.wait.get(-1)))


def app_of(process: Any, event_time: str | None = None, **given: Any) -> hf.App:
    app = hf.App("orders", key_groups=KEY_GROUPS, standbys=given.pop("standbys", 0), dlq=given.pop("dlq", None))
    planned = PlannedSource(hf.Generator(Order, lambda i: Order("", i)).schema, Order)
    orders = app.source("orders", planned, event_time=event_time)
    orders.key_by("id").process("remind", process, to=Out, **given).sink("out", MemorySink())
    return app


def out_of(t: TestDriver) -> list[tuple[str, int]]:
    return [(row["id"], row["n"]) for row in t.rows("out")]


def wait(t: TestDriver, duration: str) -> None:
    """Let time pass, and what it makes due be delivered."""
    t.advance(duration)
    t.advance("4s")


class TestTimers:
    def test_an_idle_job_fires_a_timer_once_the_clock_has_passed_its_time(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order("a", 60), Order("b", 20)])
            wait(t, "10s")
            assert out_of(t) == []
            wait(t, "10s")
            assert out_of(t) == [("b", 20)]
            wait(t, "40s")
            wait(t, "60s")
            assert out_of(t) == [("b", 20), ("a", 60)]

    def test_after_that_the_job_is_idle_again(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order("a", 20), Order("b", 3_600)])
            wait(t, "30s")
            assert out_of(t) == [("a", 20)]
            before = len(t.cluster.driver.state.job.completed)
            t.advance("1m")
            assert len(t.cluster.driver.state.job.completed) == before

    def test_a_timer_that_is_set_again_or_cleared_does_not_fire_at_its_former_time(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order("a", 10), Order("b", 10)])
            t.checkpoint()
            t.push("orders", [Order("a", 60), Order("b", 0)])
            wait(t, "30s")
            assert out_of(t) == []
            wait(t, "40s")
            assert out_of(t) == [("a", 60)]

    @pytest.mark.parametrize("lost", ["worker", "driver"])
    @pytest.mark.parametrize("due_before", [False, True])
    def test_it_fires_once_over_a_failure(self, lost: str, due_before: bool) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order(f"k{n}", 20) for n in range(6)])
            t.checkpoint()
            if due_before:  # it fires, and its epoch is not completed
                t.cluster.clock.now += 20
                for _ in range(25):
                    t.cluster.step()
            if lost == "worker":
                t.crash(worker=1)
                t.recover()
            else:
                rescale(t, 3)
            wait(t, "30s")
            assert sorted(out_of(t)) == [(f"k{n}", 20) for n in range(6)]

    def test_what_became_due_while_the_job_was_down_fires_when_it_is_up_again_the_earliest_first(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=1) as t:
            t.push("orders", [Order("a", 50), Order("b", 40), Order("c", 60), Order("d", 3_600)])
            t.checkpoint()
            t.crash()
            t.advance("2m")
            assert out_of(t) == []
            t.recover()
            t.checkpoint()
            assert out_of(t) == [("b", 40), ("a", 50), ("c", 60)]

    @pytest.mark.continuous("standbys follow workers that stay")
    def test_it_fires_once_where_a_standby_takes_over(self) -> None:
        with TestDriver(app_of(Reminder(), standbys=1), parallelism=2) as t:
            t.push("orders", [Order(f"k{n}", 30) for n in range(6)])
            t.checkpoint()
            t.advance("2s")
            t.crash(worker=0)
            t.recover()
            assert any(hosted.how == "promoted" for hosted in t.cluster.driver.state.workers.values())
            wait(t, "40s")
            assert sorted(out_of(t)) == [(f"k{n}", 30) for n in range(6)]

    def test_a_rewind_takes_its_row_back_and_lets_it_fire_again(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order("a", 20)])
            first = t.checkpoint()
            wait(t, "30s")
            assert out_of(t) == [("a", 20)]
            t.rewind(first)
            t.checkpoint()
            assert out_of(t) == [("a", 20)]
            wait(t, "1m")
            assert out_of(t) == [("a", 20)]

    def test_at_the_end_of_the_input_timers_that_are_not_due_do_not_fire(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2) as t:
            t.push("orders", [Order("a", 20), Order("b", 3_600)])
            wait(t, "30s")
            t.finish()
            assert out_of(t) == [("a", 20)]

    def test_a_time_that_has_passed_fires_soon(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=1) as t:
            t.push("orders", [Order("a", -60)])
            wait(t, "1s")
            assert out_of(t) == [("a", -60)]

    def test_many_that_are_due_keep_no_epoch_from_completing(self, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", 1)
        rounds, fire = list[int](), ProcessOperator.fire

        def counted(operator: ProcessOperator, clock: str, through_us: int) -> Any:
            rounds.append(through_us)
            return fire(operator, clock, through_us)

        monkeypatch.setattr(ProcessOperator, "fire", counted)
        with TestDriver(app_of(Reminder()), parallelism=1) as t:
            t.push("orders", [Order(f"k{n:03}", 20) for n in range(200)])
            before = t.checkpoint()
            t.cluster.clock.now += 30
            while t.cluster.driver.state.job.base_epoch == before:
                assert t.cluster.step()
            assert mode == "microbatch" or 0 < len(rounds) < 200
            wait(t, "1s")
            assert sorted(out_of(t)) == [(f"k{n:03}", 20) for n in range(200)]


class Chained(hf.KeyedProcess[Order, Out]):
    """Timers of each clock set the other one."""

    left = hf.Value(int)
    later = hf.Timer("event")
    soon = hf.Timer("processing")
    fresh = hf.Value(int, ttl="30s", clock="processing")

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        self.left.set(r.wait)
        self.fresh.set(7)
        self.soon.set(ctx.now() + timedelta(seconds=10))

    @soon.fires
    def of_clock(self, ctx: hf.Context) -> None:
        assert ctx.event_time is None and ctx.watermark is not None
        ctx.emit(Out("clock", self.fresh.get(-1)))
        self.later.set(ctx.watermark + timedelta(seconds=10))

    @later.fires
    def of_events(self, ctx: hf.Context) -> None:
        assert ctx.event_time is not None
        left = self.left.get(0) - 1
        self.left.set(left)
        ctx.emit(Out("event", seconds(ctx.event_time)))
        if left:
            self.soon.set(ctx.now() + timedelta(seconds=20))


class Endless(Reminder):
    """Sets its timer to the time at which it fires."""

    set_to = hf.Value(int)

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        due = ctx.now() + timedelta(seconds=r.wait)
        self.set_to.set(round(due.timestamp() * 1_000_000))
        self.due.set(due)

    def remind(self, ctx: hf.Context) -> None:
        self.due.set(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.set_to.get(0)))


class Periodic(Reminder):
    """Fires every two seconds, five times, and fails at the third."""

    def remind(self, ctx: hf.Context) -> None:
        n = self.wait.get(0)
        self.wait.set(n + 1)
        if n < 6:
            self.due.set(ctx.now() + timedelta(seconds=2))
        ctx.emit(Out(ctx.key, n))
        if n == 4:
            raise ValueError("four")


class TestHandlers:
    def test_timers_of_both_clocks_set_each_other(self) -> None:
        with TestDriver(app_of(Chained(), event_time="at"), parallelism=1) as t:
            t.push("orders", [Order("a", 2)])
            t.watermark("orders", START)
            wait(t, "10s")
            assert out_of(t) == [("clock", 7)]
            t.watermark("orders", START + timedelta(seconds=30))
            t.checkpoint()
            assert out_of(t)[1:] == [("event", 10)]
            wait(t, "60s")
            assert out_of(t)[2:] == [("clock", -1)]
            t.watermark("orders", START + timedelta(seconds=60))
            t.checkpoint()
            assert out_of(t)[3:] == [("event", 40)]

    def test_a_handler_may_not_set_a_timer_to_its_own_time(self) -> None:
        with TestDriver(app_of(Endless()), parallelism=1) as t:
            t.push("orders", [Order("a", 5)])
            with pytest.raises(hf.JobFailed, match="not later"):
                wait(t, "10s")

    @pytest.mark.parametrize("on_error", ["drop", "dlq"])
    def test_what_fails_is_undone_and_its_timer_has_fired(self, on_error: str) -> None:
        dlq = MemorySink() if on_error == "dlq" else None
        with TestDriver(app_of(Periodic(), on_error=on_error, dlq=dlq), parallelism=1) as t:
            t.push("orders", [Order("a", 2)])
            wait(t, "30s")
            assert out_of(t) == [("a", 2), ("a", 3)]
            if on_error == "dlq":
                (letter,) = t.rows("dlq")
                assert "four" in letter["error"]


class Watching(hf.KeyedProcess[Order, Out]):
    """Emits the time at which it takes an order."""

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        ctx.emit(Out(r.id, seconds(ctx.now())))


class TestNow:
    @pytest.mark.parametrize("lost", ["worker", "driver"])
    def test_it_does_not_go_back_where_another_host_has_a_clock_that_is_behind(self, lost: str) -> None:
        with TestDriver(app_of(Watching()), parallelism=2) as t:
            t.push("orders", [Order(f"k{n}", 0) for n in range(6)])
            t.checkpoint()
            (first,) = {n for _, n in out_of(t)}
            t.cluster.clock.wall_behind_s = 100
            if lost == "worker":
                t.crash(worker=0)
                t.recover()
            else:
                rescale(t, 3)
            t.push("orders", [Order(f"k{n}", 0) for n in range(6)])
            t.checkpoint()
            assert {n for _, n in out_of(t)} == {first}
            t.advance("2m")
            t.push("orders", [Order(f"k{n}", 0) for n in range(6)])
            t.advance("1s")
            t.checkpoint()
            assert all(first < n < first + 60 for _, n in out_of(t)[12:])

    def test_what_a_key_was_shown_together_with_others_counts_when_they_part(self) -> None:
        with TestDriver(app_of(Watching()), parallelism=2) as t:
            t.push("orders", [Order(f"k{n}", 0) for n in range(6)])
            t.checkpoint()
            t.advance("1m")
            t.push("orders", [Order("k0", 0)])
            t.advance("1s")
            t.checkpoint()
            latest = out_of(t)[-1][1]
            t.cluster.clock.wall_behind_s = 1_000
            for parallelism in (1, 2):
                rescale(t, parallelism)
                t.push("orders", [Order(f"k{n}", 0) for n in range(6)])
                t.checkpoint()
            assert {n for _, n in out_of(t)[7:]} == {latest}

    def test_after_a_rewind_it_is_the_time_of_the_clock_again(self) -> None:
        with TestDriver(app_of(Watching()), parallelism=1) as t:
            t.push("orders", [Order("a", 0)])
            first = t.checkpoint()
            t.cluster.clock.wall_behind_s = -3_600  # an hour ahead
            t.push("orders", [Order("a", 0)])
            t.checkpoint()
            t.cluster.clock.wall_behind_s = 0
            t.push("orders", [Order("a", 0)])
            t.checkpoint()
            begun, ahead, still = (n for _, n in out_of(t))
            assert ahead >= begun + 3_600 and still == ahead
            t.rewind(first)
            t.checkpoint()
            assert [begun <= n < begun + 600 for _, n in out_of(t)] == [True] * 3

    def test_a_clock_that_was_ahead_fires_no_timer_early(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=1) as t:
            t.push("orders", [Order("a", 60)])
            t.checkpoint()
            t.cluster.clock.wall_behind_s = -30
            t.push("orders", [Order("b", 1_000)])
            t.checkpoint()
            t.cluster.clock.wall_behind_s = 0
            t.crash()
            t.recover()
            wait(t, "20s")
            assert out_of(t) == []
            wait(t, "40s")
            assert out_of(t) == [("a", 60)]

    @pytest.mark.continuous("reads the tables of a worker")
    def test_a_function_that_does_not_ask_keeps_no_record_of_it(self) -> None:
        class Copying(hf.KeyedProcess[Order, Out]):
            def on_record(self, ctx: hf.Context, r: Order) -> None:
                ctx.emit(Out(r.id, r.wait))

        def noted(process: Any) -> int:
            with TestDriver(app_of(process), parallelism=1) as t:
                t.push("orders", [Order("a", 1)])
                t.checkpoint()
                (member,) = t.cluster.members.values()
                state, numbers = member.loop.state(), {each.name: each.id for each in t.cluster._plan.operators}
                assert state is not None
                return int(state.table(numbers["remind._now"]).present().size)

        assert (noted(Copying()), noted(Watching())) == (0, KEY_GROUPS)

    @pytest.mark.continuous("the tasks of an epoch run elsewhere")
    def test_a_task_whose_clock_is_behind_fires_what_is_due_by_that_of_the_driver(self) -> None:
        with TestDriver(app_of(Reminder()), parallelism=2, mode="microbatch") as t:
            t.push("orders", [Order("a", 20)])
            t.checkpoint()
            assert t.cluster.batches is not None
            behind = VirtualClock()
            behind.wall_behind_s = 3_600
            t.cluster.batches.jobs._clock = behind
            wait(t, "20s")
            assert out_of(t) == [("a", 20)]
            before = len(t.cluster.driver.state.job.completed)
            t.advance("1m")
            assert len(t.cluster.driver.state.job.completed) == before
