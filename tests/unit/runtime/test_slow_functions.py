"""Slow Python functions, which move the virtual clock: time slices stay short, a stop takes effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import JobFailed
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.operators.aggregates.aggregate import KEYS_MAX
from holdfast.runtime.operators.time_slice import LONG_S, ROWS_FIRST, SlicePace
from holdfast.runtime.processes.host import WorkerSession, WorkerTask
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.time.windows import Hopping
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.mailbox import Mailbox
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import TestDriver

HEARTBEAT_S = 0.5
TURN_MAX_S = 0.5


@dataclass
class Row:
    k: int
    at: int = 0


def numbers(count: int, first: int = 0) -> hf.Generator:
    def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
        return {"k": i + first, "at": i}

    return hf.Generator(Row, rows, count=count, vectorised=True)


def task(played: Played) -> WorkerTask:
    return WorkerTask(played.plan, "root", ("here", 1), make_credentials(False), resolve(hf.App("slow")))


class Played:
    """A job, by default on one worker, whose functions take virtual time; heartbeats go out between turns."""

    def __init__(
        self,
        build: Callable[[hf.App, Callable[[float], None]], Stream],
        sources: tuple[str, ...] = ("s",),
        workers: int = 1,
    ) -> None:
        app = hf.App("slow", checkpoint_every="1s")
        self.epochs = 0
        stream = build(app, self.takes)
        self.sink = MemorySink(key=stream.upsert_key)
        self.sink.prepare(stream.schema, stream.upsert_key)
        stream.sink("out", self.sink)
        self.plan = app.plan()
        self.cluster = Cluster(self.plan, workers, 0, MemoryObjects(), 1.0, dict.fromkeys(sources, (0,)))
        self.longest = 0.0
        self.cluster.begin()

    def takes(self, seconds: float) -> None:
        self.cluster.clock.now += seconds

    def run(self, seconds: float) -> Played:
        """Let the job run for so much virtual time, or until it is over."""
        clock, driver = self.cluster.clock, self.cluster.driver
        end, beat = clock.now + seconds, clock.now
        while clock.now < end and driver.outcome is None:
            began = clock.now
            worked = self.cluster.step()
            self.longest = max(self.longest, clock.now - began)
            if not worked or clock.now - beat > HEARTBEAT_S:
                clock.now, beat = max(clock.now, min(end, beat + HEARTBEAT_S)), clock.now
                for member in list(self.cluster.members.values()):
                    member.loop.beat()
        return self

    def completed(self) -> int:
        return len(self.cluster.driver.state.job.completed)

    def keys(self) -> list[int]:
        return [row["k"] for row in self.sink.rows()]


def slow_map(seconds: float, count: int = 400_000) -> Callable[[hf.App, Callable[[float], None]], Stream]:
    def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
        def fn(row: Row) -> Row:
            takes(seconds)
            return row

        return app.source("s", numbers(count)).map(fn, to=Row)

    return build


class TestSlowFunctionOfASource:
    def test_keeps_time_slices_short_and_epochs_at_their_interval(self) -> None:
        played = Played(slow_map(0.0025)).run(20)
        assert played.longest < TURN_MAX_S
        assert played.completed() >= 15
        assert not played.cluster.driver.state.restarts
        assert played.keys() == list(range(len(played.keys()))) != []

    def test_does_not_delay_a_stop(self) -> None:
        played = Played(slow_map(0.0025)).run(5)
        asked = played.cluster.clock.now
        played.cluster.driver.stop()
        played.run(20)
        assert (played.cluster.driver.outcome or ("",))[0] == "stopped"
        assert played.cluster.clock.now - asked < 1.0

    def test_with_one_second_per_row_gets_one_row_per_time_slice(self) -> None:
        played = Played(slow_map(1.0, count=60)).run(600)
        assert played.keys() == list(range(60))
        assert played.completed() >= 8

    def test_a_function_that_becomes_slow_within_a_batch_does_not_block_the_worker(self) -> None:
        """First few rows reach the function, then all: a batch is more than one time slice can process."""

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def fn(row: Row) -> Row:
                takes(0.01)
                return row

            read = app.source("s", numbers(170_000))
            return read.filter(pl.col("k") >= 150_000).map(fn, to=Row).filter(pl.col("k") % 1_000 == 0)

        played = Played(build).run(2_000)
        assert played.longest < TURN_MAX_S
        assert not played.cluster.driver.state.restarts
        assert played.keys() == list(range(150_000, 170_000, 1_000))

    def test_in_map_batches_gets_as_many_rows_as_it_can_process(self) -> None:
        sizes: list[int] = []

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
                takes(0.0025 * batch.num_rows)
                sizes.append(batch.num_rows)
                return batch

            return app.source("s", numbers(400_000)).map_batches(fn, to=Row)

        played = Played(build).run(20)
        assert played.completed() >= 15
        assert max(sizes) <= 2 * ROWS_FIRST
        assert played.keys() == list(range(len(played.keys()))) != []


class TestSlowFunctionAfterChannels:
    def test_a_slow_function_after_a_union_keeps_time_slices_short(self) -> None:
        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def fn(row: Row) -> Row:
                takes(0.0025)
                return row

            left, right = app.source("s", numbers(70_000)), app.source("t", numbers(70_000, 1_000_000))
            return left.union(right).map(fn, to=Row)

        played = Played(build, ("s", "t")).run(20)
        assert played.longest < TURN_MAX_S

        played.run(1_000)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert sorted(played.keys()) == [*range(70_000), *range(1_000_000, 1_070_000)]

    def test_a_slow_function_after_windows_that_close_together_keeps_time_slices_short(self) -> None:
        """One watermark closes all windows; it is forwarded only after the function's results for them."""

        @dataclass
        class Count:
            k: int
            n: int

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def fn(row: hf.Row) -> Count:
                takes(0.0025)
                return Count(row.k, row.n)

            source = hf.Generator(Timed, rows, count=4_000, vectorised=True)
            counts = app.source("s", source, event_time="at").key_by("k").window(hf.tumbling("10s"))
            return counts.agg("counts", emit="final", n=hf.count()).map(fn, to=Count)

        played = Played(build).run(100)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < TURN_MAX_S
        assert sorted(played.keys()) == list(range(4_000))


@dataclass
class Timed:
    k: int
    at: datetime


class Chains(hf.KeyedProcess[Timed, Row]):
    """Per key, a timer that sets itself again so many times."""

    count = hf.Value(int)
    tick = hf.Timer("event")

    def __init__(self, takes: Callable[[], None], times: int) -> None:
        self.takes, self.times = takes, times

    def on_record(self, ctx: hf.Context, r: Timed) -> None:
        self.tick.set(r.at + timedelta(seconds=1))

    @tick.fires
    def again(self, ctx: hf.Context) -> None:
        assert ctx.event_time is not None
        self.takes()
        n = self.count.get(0) + 1
        self.count.set(n)
        if n < self.times:
            self.tick.set(ctx.event_time + timedelta(seconds=1))
        else:
            ctx.emit(Row(ctx.key, n))


class TestTimersOfAKeyedFunction:
    @pytest.mark.parametrize(
        ("keys", "times", "seconds"), [(3_000, 1, 0.0025), (1, 100_000, 0.0001), (50, 20, 0.03), (3, 10, 1.0)]
    )
    def test_slow_timers_made_due_by_one_watermark_keep_time_slices_short(
        self, keys: int, times: int, seconds: float
    ) -> None:
        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            source = hf.Generator(Timed, rows, count=keys, vectorised=True)
            chains = Chains(lambda: takes(seconds), times)
            return app.source("s", source, event_time="at").key_by("k").process("chains", chains, to=Row)

        played = Played(build).run(keys * times * seconds + 20)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < max(TURN_MAX_S, 2 * seconds)
        assert not played.cluster.driver.state.restarts
        assert sorted((row["k"], row["at"]) for row in played.sink.rows()) == [(k, times) for k in range(keys)]

    def test_records_that_become_slow_within_a_piece_keep_time_slices_short(self) -> None:
        class Slower(Chains):
            def on_record(self, ctx: hf.Context, r: Timed) -> None:
                if r.k >= 150_000:
                    self.takes()
                ctx.emit(Row(r.k))

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            source = hf.Generator(Timed, rows, count=152_000, vectorised=True)
            slower = Slower(lambda: takes(0.01), 0)
            return app.source("s", source, event_time="at").key_by("k").process("slower", slower, to=Row)

        played = Played(build).run(200)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < TURN_MAX_S
        assert played.keys() == list(range(152_000))


class TestFunctionsOfAPattern:
    @pytest.mark.parametrize("silence", [True, False])
    def test_slow_pattern_functions_called_by_one_watermark_keep_time_slices_short(self, silence: bool) -> None:
        """At the end of the input, all rows are due, and all partial matches over."""

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def select(m: hf.Row) -> Row:
                takes(0.0025)
                return Row(m.a.k)

            source = hf.Generator(Timed, rows, count=3_000, vectorised=True)
            pattern = hf.pattern("a").not_followed_by("b", pl.col("k") < 0) if silence else hf.pattern("a")
            timed = app.source("s", source, event_time="at")
            return timed.match("found", pattern.within("1h"), key="k", to=Row, select=select)

        played = Played(build).run(100)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < TURN_MAX_S
        assert sorted(played.keys()) == list(range(3_000))


class TestFastFunction:
    def test_gets_batches_of_the_size_that_is_read(self) -> None:
        sizes: list[int] = []

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
                takes(batch.num_rows * 5e-7)
                sizes.append(batch.num_rows)
                return batch

            return app.source("s", numbers(1_000_000)).map_batches(fn, to=Row)

        Played(build).run(100)
        assert max(sizes) == 65_536
        assert len(sizes) < 40


class TestADeadLetter:
    def test_a_dead_letter_of_a_slow_function_names_the_records_own_offset(self) -> None:
        app = hf.App("slow")

        def fn(row: Row) -> Row:
            t.cluster.clock.now += 0.03
            if row.k == 47:
                raise ValueError("47")
            return row

        s = app.source("s", hf.Log("/nowhere/s", Row))
        s.map(lambda row: row, to=Row).map(fn, to=Row).sink("out", hf.SQLite("unused.db", "out"))
        with TestDriver(app, parallelism=1) as t, pytest.raises(JobFailed, match="at offset 47 of partition 0"):
            t.push("s", [Row(n) for n in range(60)])


@dataclass
class Total:
    n: int = 0


def added(state: Total, row: hf.Row) -> Total:
    return Total(state.n + 1)


class TestASlowAggregateOfTheUser:
    """`result` and `merge` run at a barrier or watermark, for many keys: a few of them in each turn."""

    def app(
        self, window: hf.Windows | None, keys: int, takes: Callable[[float], None], slow: str
    ) -> Callable[[hf.App, Callable[[float], None]], Stream]:
        """Return a job with two rows per key, 5 s apart."""

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            at = pa.array(i // keys * 5_000_000).cast(pa.timestamp("us", "UTC"))
            return {"k": i % keys, "at": at}

        def merge(one: Total, other: Total) -> Total:
            takes(0.0025 if slow == "merge" else 0.0)
            return Total(one.n + other.n)

        def result(state: Total) -> int:
            takes(0.0025 if slow == "result" else 0.0)
            return state.n

        def build(app: hf.App, _: Callable[[float], None]) -> Stream:
            source = hf.Generator(Timed, rows, count=2 * keys, vectorised=True)
            keyed = app.source("s", source, event_time="at").key_by("k")
            grouped = keyed if window is None else keyed.window(window)
            kinds = {} if window is None else {"emit": "final"}
            return grouped.agg("own", n=hf.Aggregate(Total, added, merge, result), **kinds)  # type: ignore[arg-type]

        return build

    @pytest.mark.parametrize(
        ("window", "slow"),
        [
            (None, "result"),
            (hf.tumbling("20s"), "result"),
            (hf.hopping("20s", every="5s"), "result"),
            (hf.hopping("20s", every="5s"), "merge"),
            (hf.session("10s"), "result"),
        ],
    )
    def test_keeps_time_slices_short(self, window: hf.Windows | None, slow: str) -> None:
        keys = 2_000
        played = Played(self.app(window, keys, lambda seconds: played.takes(seconds), slow))
        played.run(200)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        # The first windows have one slice, so merging looks cheap at first.
        assert played.longest < TURN_MAX_S + (KEYS_MAX * 0.0025 if slow == "merge" else 0.0)
        assert not played.cluster.driver.state.restarts
        found = [(row["k"], row["n"]) for row in played.sink.rows()]
        if isinstance(window, Hopping):
            assert Counter(found) == Counter({(k, 2): 3 for k in range(keys)} | {(k, 1): 2 for k in range(keys)})
        else:
            assert sorted(found) == [(k, 2) for k in range(keys)]

    @pytest.mark.parametrize("window", [None, hf.tumbling("20s"), hf.hopping("20s", every="5s"), hf.session("10s")])
    def test_whose_worker_is_lost_between_two_turns_gives_every_result_once(self, window: hf.Windows | None) -> None:
        keys, called = 300, [0]

        def takes(seconds: float) -> None:
            called[0] += 1
            played.takes(seconds)

        played = Played(self.app(window, keys, takes, "result"))
        while called[0] < keys // 2:
            played.cluster.step()
            played.cluster.clock.now += 0.01
            for member in played.cluster.members.values():
                member.loop.beat()
        (worker,) = played.cluster.members
        assert played.sink.rows() == []
        played.cluster.crash(worker)
        played.run(200)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert len(played.cluster.driver.state.restarts) == 1
        found = Counter((row["k"], row["n"]) for row in played.sink.rows())
        if isinstance(window, Hopping):
            assert found == Counter({(k, 2): 3 for k in range(keys)} | {(k, 1): 2 for k in range(keys)})
        else:
            assert found == Counter({(k, 2): 1 for k in range(keys)})

    def test_behind_several_channels_gives_the_results_of_every_epoch(self) -> None:
        """Barriers arrive one by one; rows of the next epoch wait behind them until the last result."""

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i % 400, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def read(row: Timed) -> Timed:
                takes(0.0005)
                return row

            def result(state: Total) -> int:
                takes(0.0025)
                return state.n

            source = hf.Generator(Timed, rows, count=20_000, vectorised=True)
            own = hf.Aggregate(Total, added, lambda one, other: Total(one.n + other.n), result)
            return app.source("s", source).map(read, to=Timed).key_by("k").agg("own", n=own)

        played = Played(build, workers=2).run(300)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < TURN_MAX_S and played.completed() >= 5
        assert not played.cluster.driver.state.restarts
        assert sorted((row["k"], row["n"]) for row in played.sink.rows()) == [(k, 50) for k in range(400)]

    def test_an_aggregate_that_becomes_slow_limits_the_keys_per_turn(self) -> None:
        calls = [0]

        def takes(_: float) -> None:
            calls[0] += 1
            played.takes(0.001 if calls[0] > 15_000 else 0.0)

        played = Played(self.app(None, 20_000, takes, "result"))
        played.run(200)
        assert (played.cluster.driver.outcome or ("",))[0] == "finished"
        assert played.longest < KEYS_MAX * 0.001 + TURN_MAX_S

    @pytest.mark.parametrize("window", [None, hf.tumbling("10s"), hf.hopping("10s", every="5s"), hf.session("10s")])
    def test_is_named_and_no_hang_while_its_calls_return(self, window: hf.Windows | None) -> None:
        reported: list[m.FromWorker] = []
        longest = [0.0]

        def result(state: Total) -> int:
            member = next(iter(played.cluster.members.values()))
            session = WorkerSession(task(played), member.loop, Mailbox(), played.cluster.clock)
            longest[0] = max(longest[0], played.cluster.clock.now - member.loop.advanced_at)
            played.takes(3)
            session.show_life(reported.append)
            return state.n

        def rows(i: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, object]:
            return {"k": i, "at": pa.array(i).cast(pa.timestamp("us", "UTC"))}

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            source = hf.Generator(Timed, rows, count=100, vectorised=True)
            keyed = app.source("s", source, event_time="at").key_by("k")
            grouped = keyed if window is None else keyed.window(window)
            kinds = {} if window is None else {"emit": "final"}
            n = hf.Aggregate(Total, added, lambda one, other: Total(one.n + other.n), result)
            return grouped.agg("own", n=n, **kinds)  # type: ignore[arg-type]

        played = Played(build)
        for _ in range(2_000):
            if len(reported) >= 100:
                break
            played.cluster.step()
            for member in played.cluster.members.values():
                member.loop.beat()
        assert len(reported) >= 100 and all(isinstance(each, m.Heartbeat) for each in reported)
        assert longest[0] < 120  # a call that takes longer counts as hung
        assert reported[-1].progress.held_by[-1:] == ("function: own",)  # type: ignore[union-attr]


class TestAFunctionThatHangs:
    def test_is_named_in_heartbeats_and_in_the_failure_after_which_nothing_follows(self) -> None:
        reported: list[m.FromWorker] = []

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def wait(row: Row) -> Row:
                (member,) = played.cluster.members.values()
                session = WorkerSession(task(played), member.loop, Mailbox(), played.cluster.clock)
                for seconds in (1, 2, 118, 1):
                    takes(seconds)
                    session.show_life(reported.append)  # as the thread does that shows signs of life
                return row

            return app.source("s", numbers(1)).map(wait, to=Row)

        played = Played(build)
        while not reported:
            played.cluster.step()
        alive, busy, failed = reported
        assert isinstance(alive, m.Heartbeat) and alive.progress.held_by == ()
        assert isinstance(busy, m.Heartbeat) and busy.progress.held_by == ("function: map wait",)
        assert isinstance(failed, m.Failed) and not failed.permanent
        assert "the Python function of step 'map wait', for one row or batch, for 121 s" in failed.error.what


class TestPace:
    def played(self, seconds: Callable[[int], float], turns: int = 40, pace: SlicePace | None = None) -> SlicePace:
        pace = pace or SlicePace()
        for _ in range(turns):
            pace.took(pace.rows, seconds(pace.rows))
        return pace

    def test_gives_as_many_rows_as_are_processed_in_a_short_time(self) -> None:
        assert self.played(lambda rows: rows * 0.0025).rows * 0.0025 <= LONG_S

    def test_gives_few_rows_when_they_become_slow(self) -> None:
        fast = self.played(lambda rows: rows * 1e-6)
        assert fast.rows > 30_000
        assert self.played(lambda rows: rows * 0.03, pace=fast).rows <= 8

    def test_gives_many_rows_when_they_become_fast_again(self) -> None:
        slow = self.played(lambda rows: rows * 1.0)
        assert slow.rows == 1
        assert self.played(lambda rows: rows * 1e-6, pace=slow).rows > 30_000

    def test_is_not_lowered_by_a_fixed_cost_per_call(self) -> None:
        pace = self.played(lambda rows: 0.5 + rows * 1e-5)
        assert pace.rows >= 16_384

    def test_is_not_lowered_by_a_short_batch_at_the_end_of_a_log(self) -> None:
        pace = self.played(lambda rows: rows * 1e-6)
        before = pace.rows
        pace.took(3, 0.0001)
        assert pace.rows == before
