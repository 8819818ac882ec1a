"""Keyed functions: state and timers per key, in both modes, through failures, rescales and rewinds."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.operators.process.cells import VALUE, Frame, ListCell
from holdfast.runtime.plan.identity import check_against, describe_operators, differences
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.rows.state_types import shape_of, state_type
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.collections.lists import Lists
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


@dataclass
class Event:
    at: datetime
    id: str
    n: int


@dataclass
class Out:
    id: str
    n: int


@dataclass
class Seen:
    count: int
    notes: list[str] = field(default_factory=list)


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def event(second: float, id: str = "a", n: int = 0) -> dict[str, Any]:
    return {"at": at(second), "id": id, "n": n}


def app_of(process: Any, event_time: str | None = "at", **given: Any) -> hf.App:
    app = hf.App("keyed", dlq=MemorySink() if given.get("on_error") == "dlq" else None)
    source = PlannedSource(SCHEMA, Event)
    rows = app.source("rows", source, event_time=event_time, out_of_orderness="0s")
    out = rows.key_by("id").process("keyed", process, to=Out, **given)
    out.sink("out", MemorySink())
    for side in given.get("sides", ()):
        out.side(side).sink(side, MemorySink())
    return app


SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)


def out_of(t: TestDriver, sink: str = "out") -> list[tuple[str, int]]:
    return sorted((row["id"], row["n"]) for row in t.rows(sink))


class Numbered(hf.KeyedProcess[Event, Out]):
    """Every record with how many its key had before; zero is an error."""

    count = hf.Value(int)

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        n = self.count.get(0)
        self.count.set(n + 1)
        ctx.emit(Out(ctx.key, n))


class TestValues:
    def test_a_value_belongs_to_its_key_and_survives_a_crash_and_a_rewind(self) -> None:
        with TestDriver(app_of(Numbered()), parallelism=2) as t:
            t.push("rows", [event(n, f"k{n % 3}") for n in range(9)])
            first = t.checkpoint()
            assert out_of(t) == [(f"k{k}", n) for k in range(3) for n in range(3)]
            t.push("rows", [event(n, f"k{n % 3}") for n in range(9)], partition=1)
            t.crash(worker=0)
            t.recover()
            t.checkpoint()
            assert out_of(t) == [(f"k{k}", n) for k in range(3) for n in range(6)]
            t.rewind(first)
            t.checkpoint()
            assert out_of(t) == [(f"k{k}", n) for k in range(3) for n in range(6)]

    def test_a_changed_object_is_stored_by_set_only(self) -> None:
        class Noted(hf.KeyedProcess[Event, Out]):
            seen = hf.Value(Seen)

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                seen = self.seen.get(Seen(0))
                seen.count += 1
                seen.notes.append("x")
                if r.n:
                    self.seen.set(seen)
                    seen.count = 99
                ctx.emit(Out(r.id, len(self.seen.get(Seen(0)).notes)))

        with TestDriver(app_of(Noted()), parallelism=1) as t:
            t.push("rows", [event(1), event(2, n=1), event(3), event(4, n=1)])
            t.checkpoint()
            assert [n for _, n in out_of(t)] == [0, 1, 1, 2]

    def test_cleared_values_leave_no_row(self) -> None:
        class Odd(hf.KeyedProcess[Event, Out]):
            kept = hf.Value(str)

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.kept.set("x") if r.n else self.kept.clear()

        with TestDriver(app_of(Odd()), parallelism=1) as t:
            t.push("rows", [event(1, "a", 1), event(1, "b", 1), event(2, "b", 0)])
            t.checkpoint()
            assert t.state("keyed", ("a",)) is not None and t.state("keyed", ("b",)) is None

    @pytest.mark.continuous("a watermark within an epoch counts only there")
    @pytest.mark.parametrize("crashes", [False, True])
    def test_an_expired_value_is_never_seen_again(self, crashes: bool) -> None:
        class Lasting(hf.KeyedProcess[Event, Out]):
            last = hf.Value(int, ttl="10s")

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                ctx.emit(Out(r.id, self.last.get(-1)))
                self.last.set(r.n)

        with TestDriver(app_of(Lasting()), parallelism=1) as t:
            t.push("rows", [event(0, "a", 7)])
            t.checkpoint()
            t.watermark("rows", at(9.9))
            t.push("rows", [event(9.95, "a", 8)])
            t.checkpoint()
            t.watermark("rows", at(19.95))
            if crashes:
                t.checkpoint()
                t.crash()
                t.recover()
            t.push("rows", [event(19, "a", 9)])
            t.checkpoint()
            assert [n for _, n in out_of(t)] == [-1, -1, 7]


class Lasting(hf.KeyedProcess[Event, Out]):
    """Keeps numbers for ten seconds."""

    last = hf.Value(int, ttl="10s")
    some = hf.List(int, ttl="10s")
    by_name = hf.Map(str, int, ttl="10s")

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        seen = {self.last.get(-1), self.by_name.get("x", -1), *(self.some.get() or [-1])}
        for each in seen:
            ctx.emit(Out(f"{r.at:%S.%f}", each))
        if r.n:
            self.last.set(r.n)
            self.some.append(r.n)
            self.by_name.set("x", r.n)


class TestTimesToLive:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_record_sees_no_value_whose_time_is_over_wherever_the_watermark_is(self, seed: int) -> None:
        with TestDriver(app_of(Lasting()), parallelism=1, seed=seed) as t:
            t.push("rows", [event(0, n=7), event(9.999999), event(10), event(20, n=8), event(29), event(31)])
            t.checkpoint()  # other partitions are empty, so there is no watermark yet
            found = [("00.000000", -1), ("09.999999", 7), ("10.000000", -1)]
            assert out_of(t) == [*found, ("20.000000", -1), ("29.000000", 8), ("31.000000", -1)]

    @pytest.mark.parametrize("apart", [False, True])
    def test_a_record_that_fails_neither_begins_a_life_nor_prolongs_one(self, apart: bool) -> None:
        class Prolonged(Lasting):
            def on_record(self, ctx: hf.Context, r: Event) -> None:
                super().on_record(ctx, r)
                if r.n == 5:
                    raise ValueError("five")

        with TestDriver(app_of(Prolonged(), on_error="drop"), parallelism=1) as t:
            for record in (event(0, n=7), event(8, n=5), event(9), event(10), event(17)):
                t.push("rows", [record])
                if apart:
                    t.checkpoint()
            t.checkpoint()
            assert out_of(t) == [("00.000000", -1), ("09.000000", 7), ("10.000000", -1), ("17.000000", -1)]


class Queue(hf.KeyedProcess[Event, Out]):
    """Keeps the last three numbers in a list, and how often each came in a map."""

    last = hf.List(int)
    counts = hf.Map(int, int)

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.last.append(r.n)
        if len(self.last) > 3:
            old = self.last.pop_first()
            assert old is not None
            left = self.counts.get(old, 0) - 1
            self.counts.set(old, left) if left else self.counts.remove(old)
        self.counts.set(r.n, self.counts.get(r.n, 0) + 1)
        if r.n == 9:
            self.last.clear()
            self.counts.clear()
        if sum(n for _, n in self.counts.items()) != len(self.last):
            raise ValueError("the map differs from the list")
        ctx.emit(Out(r.id, sum(self.last) * 100 + len(self.counts)))


class TestCollections:
    def test_lists_and_maps_agree_with_python_over_epochs_and_a_crash(self) -> None:
        numbers = [3, 1, 3, 2, 9, 1, 1, 1, 4, 2, 2, 9, 5, 5, 1, 3]
        expected, last = [], list[int]()
        for n in numbers:
            last = [] if n == 9 else [*last, n][-3:]
            expected += [(key, sum(last) * 100 + len(set(last))) for key in ("a", "b")]
        with TestDriver(app_of(Queue()), parallelism=2) as t:
            for place, n in enumerate(numbers):
                t.push("rows", [event(place, key, n) for key in ("a", "b")])
                if place % 5 == 4:
                    t.checkpoint()
                if place == 11:
                    t.crash(worker=1)
                    t.recover()
            t.checkpoint()
            assert out_of(t) == sorted(expected)

    @pytest.mark.continuous("no job runs")
    @pytest.mark.parametrize("change", [lambda cell: cell.append(7), lambda cell: cell.pop_first()])
    def test_a_change_that_can_be_undone_copies_no_list(self, change: Callable[[ListCell], object]) -> None:
        users = KeyType(("id",), (pa.utf8(),), (False,))
        spec = Lists.spec(0, "long", users, [state_type(VALUE, int).column])
        cell = ListCell(StateTable(spec, 8), state_type(VALUE, int), "event", 0)
        cell.begin(Frame(users.encode([pa.array(["a"])]), np.zeros(1, np.int64), journal=[]))
        for n in range(20_000):
            cell.append(n)
        peaks = []
        for _ in range(5):  # the list itself grows once in a while
            tracemalloc.start()
            change(cell)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert min(peaks) < 2_000
        cell.current().undo()
        assert len(cell) == 0

    @pytest.mark.parametrize("stored", [False, True])
    def test_what_is_undone_in_a_list_was_never_there(self, stored: bool) -> None:
        class Undoing(hf.KeyedProcess[Event, Out]):
            seen = hf.List(int)

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.seen.append(r.n)
                if r.n % 3 == 0:
                    self.seen.pop_first()
                if r.n == 8:
                    self.seen.clear()
                    self.seen.append(1)
                if r.n in (4, 6, 8):
                    raise ValueError
                ctx.emit(Out(r.id, sum(self.seen) + 100 * len(self.seen)))

        with TestDriver(app_of(Undoing(), on_error="drop"), parallelism=1) as t:
            for n in range(1, 10):
                t.push("rows", [event(n, "a", n)])
                if stored:
                    t.checkpoint()
            t.checkpoint()
            lists = [[1], [1, 2], [2, 3], [2, 3, 5], [2, 3, 5, 7], [3, 5, 7, 9]]
            assert [n for _, n in out_of(t)] == [sum(each) + 100 * len(each) for each in lists]


class Session(hf.KeyedProcess[Event, Out]):
    """Counts the records of a key until none came for five seconds."""

    count = hf.Value(int)
    quiet = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.count.set(self.count.get(0) + 1)
        self.quiet.set(r.at + timedelta(seconds=5))

    @quiet.fires
    def ended(self, ctx: hf.Context) -> None:
        assert ctx.event_time is not None and ctx.watermark is not None and ctx.watermark >= ctx.event_time
        ctx.emit(Out(ctx.key, self.count.get(0)))
        self.count.clear()


class Ticking(hf.KeyedProcess[Event, Out]):
    """A timer that sets itself again, a second later, until a last time."""

    tick = hf.Timer("event")

    def __init__(self, last: int) -> None:
        self.last = last

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.tick.set(at(100))

    @tick.fires
    def again(self, ctx: hf.Context) -> None:
        assert ctx.event_time is not None
        ctx.emit(Out(ctx.key, 0))
        following = ctx.event_time + timedelta(seconds=1)
        if following <= at(min(self.last, 100_000_000)):
            self.tick.set(following)


class Alternating(hf.KeyedProcess[Event, Out]):
    """Two timers that set each other, twenty times in all; every call is numbered."""

    count = hf.Value(int)
    tick = hf.Timer("event")
    tock = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.tick.set(r.at + timedelta(seconds=1))

    @tick.fires
    def on_tick(self, ctx: hf.Context) -> None:
        self.tock.set(next_second(ctx))
        self.number(ctx)

    @tock.fires
    def on_tock(self, ctx: hf.Context) -> None:
        if self.count.get(0) < 19:
            self.tick.set(next_second(ctx))
        self.number(ctx)

    def number(self, ctx: hf.Context) -> None:
        n = self.count.get(0)
        ctx.emit(Out(ctx.key, n))
        self.count.set(n + 1)


def next_second(ctx: hf.Context) -> datetime:
    assert ctx.event_time is not None
    return ctx.event_time + timedelta(seconds=1)


class TestTimers:
    @pytest.mark.parametrize("crash", [None, "before", "after"])
    def test_a_timer_fires_once_when_the_watermark_reaches_it(self, crash: str | None) -> None:
        with TestDriver(app_of(Session()), parallelism=2) as t:
            t.push("rows", [event(n, "a") for n in range(3)] + [event(1, "b")])
            t.checkpoint()
            if crash == "before":
                t.crash()
                t.recover()
            t.watermark("rows", at(6))
            if crash == "after":
                t.crash()
                t.recover()
                t.watermark("rows", at(6))
            before = t.checkpoint()
            assert out_of(t) == [("b", 1)]
            t.push("rows", [event(6.5, "b")])
            t.finish()
            assert out_of(t) == [("a", 3), ("b", 1), ("b", 1)]
            assert before

    def test_a_rewind_lets_a_timer_fire_again_and_takes_its_row_back(self) -> None:
        with TestDriver(app_of(Session()), parallelism=1) as t:
            t.push("rows", [event(0)])
            first = t.checkpoint()
            t.push("rows", [event(3)])
            t.watermark("rows", at(60))
            t.checkpoint()
            assert out_of(t) == [("a", 2)]
            t.rewind(first)
            t.checkpoint()
            t.watermark("rows", at(61))
            t.checkpoint()
            assert out_of(t) == [("a", 2)]

    def test_timers_fire_in_the_order_of_their_times_and_handlers_may_set_others(self) -> None:
        class Chain(hf.KeyedProcess[Event, Out]):
            first = hf.Timer("event")
            second = hf.Timer("event")
            third = hf.Timer("event")

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.first.set(at(1))
                self.second.set(at(9))
                self.third.set(at(4))

            @first.fires
            def on_first(self, ctx: hf.Context) -> None:
                ctx.emit(Out(ctx.key, 1))
                self.second.set(at(2))

            @second.fires
            def on_second(self, ctx: hf.Context) -> None:
                ctx.emit(Out(ctx.key, 2))
                self.third.clear()

            @third.fires
            def on_third(self, ctx: hf.Context) -> None:
                ctx.emit(Out(ctx.key, 3))

        with TestDriver(app_of(Chain()), parallelism=1) as t:
            t.push("rows", [event(0, "a"), event(0, "b")])
            t.watermark("rows", at(10))
            t.checkpoint()
            assert [(row["id"], row["n"]) for row in t.rows("out")] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]

    def test_rounds_of_few_timers_fire_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", 2)
        self.test_timers_fire_in_the_order_of_their_times_and_handlers_may_set_others()

    @pytest.mark.parametrize("last", [103, 50_000])
    def test_at_the_end_of_the_input_timers_fire_that_handlers_set_too(self, last: int) -> None:
        """Otherwise a function with one timer, set to the next of several times, would lose all but the first."""
        with TestDriver(app_of(Ticking(last)), parallelism=1) as t:
            t.push("rows", [event(0)])
            t.watermark("rows", at(102))
            t.checkpoint()
            assert len(t.rows("out")) == 3
            t.finish()
            assert len(t.rows("out")) == last - 99

    def test_a_handler_sees_the_end_of_the_input(self) -> None:
        class UntilTheEnd(Ticking):
            def again(self, ctx: hf.Context) -> None:
                if ctx.watermark != datetime.max.replace(tzinfo=UTC):
                    super().again(ctx)

        with TestDriver(app_of(UntilTheEnd(1 << 40)), parallelism=1) as t:
            t.push("rows", [event(0)])
            t.watermark("rows", at(102))
            t.finish()
            assert len(t.rows("out")) == 3

    def test_a_key_that_fires_without_an_end_fails_the_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.process.operator.FIRED_LAST_MAX", 300)
        with TestDriver(app_of(Ticking(1 << 40)), parallelism=1) as t:
            t.push("rows", [event(0), event(0, "b")])
            with pytest.raises(hf.JobFailed, match=r"fired 300 times for the key '[ab]' after the end of the input"):
                t.finish()

    @pytest.mark.parametrize("on_error", ["fail", "drop"])
    @pytest.mark.parametrize("steps", [None, 1, 4, 9, 20, 40])
    def test_a_crash_between_rounds_repeats_nothing_and_loses_nothing(
        self, steps: int | None, on_error: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", 7)
        monkeypatch.setattr("holdfast.runtime.operators.time_slice.TURN_S", 0.0)  # one round in a turn
        with TestDriver(app_of(Alternating(), on_error=on_error), parallelism=2) as t:
            t.push("rows", [event(n % 3, f"k{n}") for n in range(12)])
            t.checkpoint()
            if steps is not None:
                t.push("rows", [event(60, "last")])
                t.cluster.clock.now += 1.1
                for _ in range(steps):
                    t.cluster.step()
                t.crash()
                t.recover()
            t.push("rows", [event(61, "last")])
            t.watermark("rows", at(60))
            t.checkpoint()
            numbered = [(row["id"], row["n"]) for row in t.rows("out") if row["id"] != "last"]
            assert sorted(numbered) == sorted((f"k{n}", i) for n in range(12) for i in range(20))

    def test_a_handler_may_not_set_a_timer_to_its_own_time(self) -> None:
        class Still(Session):
            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.quiet.set(r.at)

            def ended(self, ctx: hf.Context) -> None:
                self.quiet.set(ctx.event_time)  # type: ignore[arg-type]

        with TestDriver(app_of(Still()), parallelism=1) as t:
            t.push("rows", [event(1)])
            with pytest.raises(hf.JobFailed, match="not later"):
                t.finish()


class Fragile(hf.KeyedProcess[Event, Out]):
    """Changes everything, then fails for some numbers."""

    count = hf.Value(int)
    seen = hf.List(int)
    by = hf.Map(int, int)
    quiet = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.count.set(self.count.get(0) + 1)
        self.seen.append(r.n)
        self.by.set(r.n, self.count.get(0))
        self.quiet.set(r.at + timedelta(seconds=self.count.get(0)))
        ctx.side("odd", Out(r.id, r.n))
        ctx.emit(Out(r.id, "wrong") if r.n == 7 else Out(r.id, self.count.get(0)))  # type: ignore[arg-type]
        if r.n == 5:
            raise ValueError("five")

    @quiet.fires
    def done(self, ctx: hf.Context) -> None:
        assert sorted(self.by.items()) == sorted(zip(self.seen, range(1, len(self.seen) + 1), strict=True))
        ctx.emit(Out(ctx.key, 1000 * self.count.get(0) + len(self.seen)))


class Exhausted(hf.KeyedProcess[Event, Out]):
    """Takes the next of nothing, in a record and in a timer of the key "b"."""

    count = hf.Value(int)
    soon = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Event) -> None:
        self.count.set(self.count.get(0) + 1)
        if r.n == 5:
            next(iter(()))
        self.soon.set(r.at + timedelta(seconds=1))

    @soon.fires
    def fire(self, ctx: hf.Context) -> None:
        self.count.set(self.count.get(0) + 10)
        ctx.emit(Out(ctx.key, self.count.get(0)))
        if ctx.key == "b":
            next(iter(()))


class TestFailures:
    def test_the_end_of_a_functions_own_iterator_is_an_error_like_any_other(self) -> None:
        with TestDriver(app_of(Exhausted(), on_error="dlq"), parallelism=1) as t:
            t.push("rows", [event(0, "a", 5), event(1, "a", 1), event(2, "a", 5), event(2, "b", 1), event(3, "c", 1)])
            t.finish()
            assert out_of(t) == [("a", 11), ("c", 11)]
            assert ["raised StopIteration" in letter["error"] for letter in t.rows("dlq")] == [True] * 3

    @pytest.mark.parametrize("on_error", ["drop", "dlq"])
    @pytest.mark.parametrize("seed", range(2))
    def test_nothing_of_a_failed_record_is_kept(self, on_error: str, seed: int) -> None:
        app = app_of(Fragile(), on_error=on_error, sides={"odd": Out})
        with TestDriver(app, parallelism=2, seed=seed) as t:
            t.push("rows", [event(n, "a", n) for n in (1, 5, 2, 7, 3)])
            t.finish()
            assert out_of(t) == [("a", 1), ("a", 2), ("a", 3), ("a", 3003)]
            assert out_of(t, "odd") == [("a", 1), ("a", 2), ("a", 3)]
            if on_error == "dlq":
                letters = t.rows("dlq")
                assert [hf_row(letter) for letter in letters] == [5, 7]
                assert "raised ValueError: five" in letters[0]["error"]
                assert "emitted a wrong row: column 'n' takes int64, not str" in letters[1]["error"]

    @pytest.mark.parametrize("n", [5, 7])
    def test_by_default_the_job_fails_and_says_where(self, n: int) -> None:
        with (
            TestDriver(app_of(Fragile(), sides={"odd": Out}), parallelism=1) as t,
            pytest.raises(hf.JobFailed, match="Fragile (raised ValueError: five|emitted a wrong row)"),
        ):
            push_through(t, event(1, "a", n))

    def test_a_value_of_another_type_is_refused_when_it_is_set(self) -> None:
        class Wrong(hf.KeyedProcess[Event, Out]):
            count = hf.Value(int)

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.count.set("one")  # type: ignore[arg-type]

        with (
            TestDriver(app_of(Wrong()), parallelism=1) as t,
            pytest.raises(hf.JobFailed, match="the state takes int, not str 'one'"),
        ):
            push_through(t, event(1))

    def test_what_is_assigned_to_self_is_refused(self) -> None:
        class Careless(hf.KeyedProcess[Event, Out]):
            def __init__(self) -> None:
                self.total = 0

            def on_record(self, ctx: hf.Context, r: Event) -> None:
                self.total += 1

        with (
            TestDriver(app_of(Careless()), parallelism=1) as t,
            pytest.raises(hf.JobFailed, match="'total' was assigned to self while the job runs"),
        ):
            push_through(t, event(1))


def push_through(t: TestDriver, row: dict[str, Any]) -> None:
    t.push("rows", [row])
    t.checkpoint()


def hf_row(letter: dict[str, Any]) -> int:
    from holdfast.runtime.rows.dead_letters import decode_row

    row: int = decode_row(letter["raw"]).column("n")[0].as_py()
    return row


class Drawing(hf.KeyedProcess[Event, Out]):
    def on_record(self, ctx: hf.Context, r: Event) -> None:
        ctx.emit(Out(r.id, int(ctx.random() * 1e9)))


class TestContext:
    def test_operators_draw_different_random_numbers_for_a_key(self) -> None:
        app = hf.App("keyed", key_groups=8)
        keyed = app.source("rows", PlannedSource(SCHEMA, Event), event_time="at").key_by("id")
        for name in ("one", "other"):
            keyed.process(name, Drawing(), to=Out).sink(f"{name}-out", MemorySink())
        with TestDriver(app, parallelism=2) as t:
            t.push("rows", [event(n, f"k{n % 4}") for n in range(40)])
            t.checkpoint()
            drawn = [{row["n"] for row in t.rows(f"{name}-out")} for name in ("one", "other")]
            assert [len(each) for each in drawn] == [40, 40] and drawn[0].isdisjoint(drawn[1])

    def test_random_numbers_are_the_same_in_a_replay_and_differ_by_key_and_draw(self) -> None:
        with TestDriver(app_of(Drawing()), parallelism=2) as t:
            t.push("rows", [event(n, f"k{n % 4}") for n in range(8)])
            first = t.checkpoint()
            t.push("rows", [event(n, f"k{n % 4}") for n in range(8)])
            t.checkpoint()
            drawn = out_of(t)
            assert len({n for _, n in drawn}) == 16
            t.rewind(first)
            t.crash(worker=0)
            t.recover()
            t.checkpoint()
            assert out_of(t) == drawn


class Totals(hf.KeyedProcess[Event, Out]):
    total = hf.Value(int)

    def on_batch(self, ctx: Any, batch: pa.RecordBatch) -> None:
        running = []
        for number, n in zip(ctx.numbers.tolist(), batch.column("n").to_pylist(), strict=True):
            if n == 5:
                raise ValueError("five")
            self.total.values[number] += n  # type: ignore[attr-defined]
            self.total.present[number] = True  # type: ignore[attr-defined]
            running.append(int(self.total.values[number]))  # type: ignore[attr-defined]
        ctx.emit({"id": batch.column("id"), "n": running})


class TestBatches:
    def app(self, on_error: str = "fail") -> hf.App:
        app = hf.App("keyed")
        rows = app.source("rows", PlannedSource(SCHEMA, Event), event_time="at")
        rows.key_by("id").process_batches("keyed", Totals(), to=Out, on_error=on_error).sink("out", MemorySink())
        return app

    def test_state_is_arrays_and_survives_a_crash(self) -> None:
        with TestDriver(self.app("drop"), parallelism=2) as t:
            t.push("rows", [event(n, "ab"[n % 2], n) for n in range(6)])
            t.checkpoint()
            t.crash()
            t.recover()
            t.push("rows", [event(9, "a", 10)])
            t.checkpoint()
            assert out_of(t) == [("a", 0), ("a", 2), ("a", 6), ("a", 16), ("b", 1), ("b", 4)]

    def test_other_state_is_refused(self) -> None:
        class Listed(Totals):
            seen = hf.List(int)

        rows = hf.App("keyed").source("rows", PlannedSource(SCHEMA, Event))
        with pytest.raises(hf.ConfigError, match="seen is not a Value of bool, int or float"):
            rows.key_by("id").process_batches("keyed", Listed(), to=Out)


OPTIONAL: Any = int | None


class Alone:
    """Not a type whose values can be stored."""


def declaring(**given: Any) -> Any:
    """Return an instance of a class with these attributes."""
    kind: Any = type(hf.KeyedProcess)
    kind = kind("Declaring", (hf.KeyedProcess,), {"on_record": lambda self, ctx, r: None} | given)
    return kind()


def twice() -> Any:
    class Twice(Numbered):
        count = hf.Value(int)

    return Twice()


def in_one_class() -> Any:
    class Twice(hf.KeyedProcess[Event, Out]):
        count = hf.Value(int)
        count = hf.Value(str)  # type: ignore[arg-type]  # noqa: PIE794

        def on_record(self, ctx: hf.Context, r: Event) -> None: ...

    return Twice()


def shared() -> Any:
    value = hf.Value(int)
    return declaring(one=value, two=value)


def unnamed() -> Any:
    timer = hf.Timer("event")
    timer.fires(lambda self, ctx: None)
    return declaring(quiet=timer)


class TestRefusals:
    @pytest.mark.parametrize(
        ("process", "what"),
        [
            (Numbered, "the class Numbered is not an instance"),
            (7, "7 is not an instance"),
            (hf.KeyedProcess(), "KeyedProcess has no on_record"),
            (declaring(count=hf.Value(Alone)), "Declaring.count: Alone is not a type"),
            (declaring(count=hf.Value(Any)), "Declaring.count: Any is not a type"),
            (declaring(count=hf.Value(OPTIONAL)), "None means that there is no value"),
            (declaring(count=hf.Value(int, ttl="0s")), "ttl='0s' is not above 0"),
            (declaring(count=hf.Value(int, ttl="1s", clock="wall")), "its clock is 'wall'"),
            (declaring(by=hf.Map(float, int)), "a map key is int, str, bytes or bool"),
            (declaring(seen=[]), "Declaring.seen is a list, which all keys share"),
            (declaring(id=hf.Value(int)), "'id' is also a key column"),
            (declaring(end=hf.Value(int)), "state cannot be called so"),
            (declaring(quiet=hf.Timer("event")), "it has 0 handlers"),
            (declaring(on_record=lambda self, r: None), "on_record cannot be called with"),
            (twice(), "Twice.count: it is declared twice"),
            (in_one_class(), "Twice.count: it is declared twice"),
            (shared(), "it is the same object as 'one'"),
            (unnamed(), "its handler is <lambda>"),
        ],
    )
    def test_what_cannot_be_kept_is_refused_when_planned(self, process: Any, what: str) -> None:
        with pytest.raises(hf.ConfigError, match=what) as refused:
            app_of(process)
        assert refused.value.not_done == "the job was not planned" and refused.value.next_step

    def test_event_time_is_needed_for_timers_and_ttl(self) -> None:
        with pytest.raises(hf.ConfigError, match="Timer 'quiet' counts event time, and the stream has none"):
            app_of(Session(), event_time=None)

    def test_a_side_must_be_named(self) -> None:
        rows = hf.App("keyed").source("rows", PlannedSource(SCHEMA, Event))
        with pytest.raises(hf.ConfigError, match="the function has no sides"):
            rows.key_by("id").process("keyed", Numbered(), to=Out).side("odd")

    def test_state_cannot_be_used_outside_of_a_job(self) -> None:
        with pytest.raises(hf.ConfigError, match="no record is being handled"):
            Numbered().count.get()


@dataclass
class SeenWithMore:
    count: int
    more: int = 7


@dataclass
class SeenWithText:
    count: int
    notes: str = ""


@dataclass
class Nested:
    of: Seen


@dataclass
class NestedWithoutNotes:
    of: SeenWithMore


@dataclass
class NestedWithText:
    of: SeenWithText


class TestEvolution:
    def test_another_event_time_is_refused(self) -> None:
        """Timers and times to live are kept in it."""
        schema = SCHEMA.append(pa.field("sent", pa.timestamp("us", "UTC"), nullable=False))

        def plan(event_time: str) -> Any:
            app = hf.App("keyed")
            rows = app.source("rows", PlannedSource(schema), event_time=event_time)
            process: Any = declaring(seen=hf.Value(int))
            rows.key_by("id").process("keyed", process, to=Out).sink("out", MemorySink())
            return app.plan()

        before = describe_operators(plan("at"))
        check_against(plan("at"), before)
        with pytest.raises(hf.ConfigError, match="event time"):
            check_against(plan("sent"), before)

    def before(self, **given: Any) -> Any:
        return describe_operators(app_of(declaring(**given)).plan())

    def test_state_and_fields_with_defaults_may_be_added_and_fields_removed(self) -> None:
        before = self.before(seen=hf.Value(Seen))
        check_against(app_of(declaring(seen=hf.Value(SeenWithMore), more=hf.Map(str, int))).plan(), before)

    @pytest.mark.parametrize(
        ("now", "what"),
        [
            ({}, "no longer declares Value 'seen'"),
            ({"seen": hf.List(Seen)}, "had Value 'seen' and now has List 'seen'"),
            ({"seen": hf.Value(int)}, "had 'seen' of type Seen: Seen became int"),
            ({"seen": hf.Value(Seen, ttl="1s")}, "had 'seen' without ttl"),
        ],
    )
    def test_what_would_lose_or_misread_state_is_refused(self, now: dict[str, Any], what: str) -> None:
        with pytest.raises(hf.ConfigError, match=what):
            check_against(app_of(declaring(**now)).plan(), self.before(seen=hf.Value(Seen)))

    @pytest.mark.parametrize("state", [hf.Value, hf.List, partial(hf.Map, str), partial(hf.Value, ttl="1h")])
    def test_a_removed_field_may_only_come_back_with_its_type(self, state: Any) -> None:
        known = self.kept((), state(Nested))
        for _ in range(2):  # also after a start that removes nothing
            known = self.kept(known, state(NestedWithoutNotes))
        plan = app_of(declaring(seen=state(NestedWithoutNotes))).plan()
        assert differences(plan, {each.name: each.schema for each in known}) == []
        again = differences(app_of(declaring(seen=state(Nested))).plan(), {each.name: each.schema for each in known})
        assert [found.effect is None for found in again] == [False]  # other fields, and nothing is refused
        refused = "field 'of': field 'notes', removed earlier but still in kept values: list.str. became str"
        with pytest.raises(hf.ConfigError, match=refused):
            self.kept(known, state(NestedWithText))

    def test_a_value_that_was_given_up_leaves_no_fields(self) -> None:
        known = self.kept(self.kept((), hf.Value(Seen)), hf.Value(SeenWithMore))
        dropped = self.kept(known, hf.Value(SeenWithText), "keyed.seen")
        [field_of_seen] = [each.schema["identity"]["states"]["seen"]["types"] for each in dropped if each.id == 1]
        assert field_of_seen == [shape_of(SeenWithText)]

    def kept(self, known: Any, seen: Any, *drop_state: str) -> Any:
        """Return what the checkpoints of a run keep of its operators, as it is read back."""
        operators = with_identities(app_of(declaring(seen=seen)).plan(), known, drop_state)[1]
        return [msgspec.structs.replace(each, schema=json.loads(json.dumps(each.schema))) for each in operators]
