"""Keyed functions against an oracle: any input, any split, any failure, rescaling and rewind give the same answer.

A record carries one bit, so a sum of bits names the very records that a result holds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import keyed_jobs
import pytest
import state_sizes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from job_player import rescale, rows_of
from planned_source import PlannedSource

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
SIZE_S, OUT_OF_ORDERNESS_S, KEY_GROUPS = 10, 2, 8


@dataclass
class Reading:
    bit: int
    city: str
    at: datetime


@dataclass
class Sum:
    city: str
    end: int
    bits: int


def seconds(at: datetime) -> float:
    return (at - START).total_seconds()


class Buckets(hf.KeyedProcess[Reading, Sum]):
    """Sums of bits per bucket of ten seconds; a bucket is emitted once, and fails for records at a full minute."""

    sums = hf.Map(int, int)
    taken = hf.Value(int)
    order = hf.List(int)
    due = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Reading) -> None:
        end = int(seconds(r.at) // SIZE_S + 1) * SIZE_S
        self.taken.set(self.taken.get(0) + r.bit)
        self.order.append(r.bit)
        if ctx.watermark is not None and START + timedelta(seconds=end) <= ctx.watermark:
            ctx.side("late", Sum(r.city, end, r.bit))
        else:
            self.sums.set(end, self.sums.get(end, 0) + r.bit)
            self.due.set(START + timedelta(seconds=self.sums.items()[0][0]))
        if refused(r):
            raise ValueError("a full minute")

    @due.fires
    def emit(self, ctx: hf.Context) -> None:
        end, bits = self.sums.items()[0]
        ctx.emit(Sum(ctx.key, end, bits))
        self.sums.remove(end)
        if sum(self.order) != self.taken.get():
            raise ValueError("the list differs from the value")
        if following := self.sums.items():
            self.due.set(START + timedelta(seconds=following[0][0]))


def refused(reading: Reading) -> bool:
    return seconds(reading.at) % 60 == 0


def app_of() -> hf.App:
    app = hf.App("random", key_groups=KEY_GROUPS)
    columns = PlannedSource(hf.Generator(Reading, lambda i: Reading(i, "", START)).schema, Reading)
    late_by = f"{OUT_OF_ORDERNESS_S}s"
    source = app.source("readings", columns, event_time="at", out_of_orderness=late_by, idle_after="1h")
    out = source.key_by("city").process("sums", Buckets(), to=Sum, sides={"late": Sum}, on_error="drop")
    out.sink("out", MemorySink())
    out.side("late").sink("late", MemorySink())
    return app


@dataclass
class Pushed:
    all: list[Reading] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    def sums(self, late: int) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = defaultdict(int)
        for each in self.all:
            if not refused(each) and not each.bit & late:
                end = START + SIZE_S * timedelta(seconds=seconds(each.at) // SIZE_S + 1)
                found[each.city, round(seconds(end))] += each.bit
        return dict(found)


RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 70)), min_size=1, max_size=8)
PUSHES = st.tuples(st.just("push"), st.integers(0, 2), RECORDS)
STEPS = st.one_of(
    PUSHES,
    PUSHES,
    st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 2), st.integers(0, 60)),
    st.tuples(st.just("driver"), st.integers(1, 3), st.integers(0, 60)),
    st.tuples(st.just("rewind"), st.integers(0, 2), st.just(0)),
)


def play(t: TestDriver, step: tuple[str, int, Any], pushed: Pushed) -> None:
    match step:
        case ("push", partition, records):
            first = len(pushed.all)
            made = [Reading(1 << first + n, c, START + timedelta(seconds=s)) for n, (c, s) in enumerate(records)]
            made = made[: max(0, 60 - first)]
            pushed.all += made
            t.push("readings", made, partition)
        case ("checkpoint", _, _):
            pushed.epochs.append(t.checkpoint())
        case ("crash", worker, steps):
            interrupt(t, steps)
            t.crash(worker % len(t.cluster.rules.key_ranges))
            t.recover()
        case ("driver", parallelism, steps):
            interrupt(t, steps)
            rescale(t, parallelism)
            t.advance("1s")
        case ("rewind", back, _) if pushed.epochs:
            t.rewind(pushed.epochs[-1 - back % len(pushed.epochs)])
            pushed.epochs.clear()


def interrupt(t: TestDriver, steps: int) -> None:
    """Let an epoch be due, and stop somewhere on the way to its end."""
    t.cluster.clock.now += 1.1
    for _ in range(steps):
        t.cluster.step()


class TestEveryKindOfState:
    @pytest.mark.parametrize("mode", ["continuous", "microbatch"])
    @settings(max_examples=60, deadline=None)
    @example([("watermark", 0), ("driver",), ("watermark", 5), ("push", 0, [("a", 0)])], 1, 0, 2)
    @given(
        st.lists(keyed_jobs.STEPS, min_size=4, max_size=10),
        st.integers(1, 3),
        st.integers(0, 2**16),
        st.sampled_from([2, 16_384]),
    )
    def test_does_what_plain_python_does(
        self, mode: str, steps: list[Any], parallelism: int, seed: int, round_timers: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", round_timers)
            with TestDriver(keyed_jobs.app_of(), parallelism, seed, mode) as t:
                oracle = keyed_jobs.Oracle()
                keyed_jobs.play(t, steps, oracle, lambda t: interrupt(t, seed % 40), mode)
                t.finish()
                oracle.advance(1e9)
                assert rows_of(t, "out") == +oracle.out
                assert rows_of(t, "odd") == +oracle.odd
                state_sizes.check(t, {"account": len(oracle.kept)})


class TestRandomJobs:
    @pytest.mark.parametrize("mode", ["continuous", "microbatch"])
    @settings(max_examples=60, deadline=None)
    @given(st.lists(STEPS, min_size=4, max_size=10), st.integers(1, 3), st.integers(0, 2**16))
    def test_every_record_is_in_one_result_or_late_or_dropped(
        self, mode: str, steps: list[Any], parallelism: int, seed: int
    ) -> None:
        pushed = Pushed()
        with TestDriver(app_of(), parallelism, seed, mode) as t:
            for step in steps:
                play(t, step, pushed)
            t.finish()
            late = [row["bits"] for row in t.rows("late")]
            assert len(late) == len(set(late))
            out = [((row["city"], row["end"]), row["bits"]) for row in t.rows("out")]
            assert len(out) == len(dict(out)) and dict(out) == pushed.sums(sum(late))
            for city in "abc":
                mine = [each.bit for each in pushed.all if each.city == city and not refused(each)]
                kept = t.state("sums", (city,))
                assert (0 if kept is None else kept["taken"]) == sum(mine)
            taken = [each.city for each in pushed.all if not refused(each)]
            state_sizes.check(t, {"sums": len(set(taken)), "sums.order": len(taken)})
