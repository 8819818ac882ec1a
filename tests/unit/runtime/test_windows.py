"""Tumbling windows in complete jobs: their results and times, late records, and no change by crashes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_player import rescale
from planned_source import PlannedSource
from sealed_epochs import sealed_epoch

import holdfast as hf
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.job.status import of_run
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.time.windows import CLOCK_KEY, Tumbling
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.keygroups import key_of_group
from holdfast.state.store import Identity, StateStore
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bid:
    auction: str
    bit: int
    at: datetime


def bid(second: float, bit: int = 1, auction: str = "a") -> Bid:
    return Bid(auction, bit, at(second))


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


COLUMNS = PlannedSource(hf.Generator(Bid, lambda i: bid(i)).schema)


def app_of(
    emit: str = "close", lateness: str = "5s", late: bool = True, out_of_orderness: str = "2s", idle_after: str = "1h"
) -> hf.App:
    app = hf.App("windows", key_groups=8)
    bids = app.source(
        "bids", COLUMNS, event_time="at", out_of_orderness=out_of_orderness, idle_after=idle_after
    ).with_columns(twice=pl.col("bit") * 2)
    window = bids.key_by("auction").window(hf.tumbling("10s"), allowed_lateness=lateness)
    counted = window.agg("hot", emit=emit, n=hf.count(), bits=hf.sum("bit"), top=hf.max("bit"), low=hf.min("twice"))
    counted.sink("out", MemorySink(key=counted.upsert_key))
    if late:
        counted.late.sink("late", MemorySink())
    return app


def counts(driver: TestDriver) -> list[tuple[float, int]]:
    return [((row["window_end"] - START).total_seconds(), row["n"]) for row in driver.rows("out")]


class TestClosing:
    def test_a_window_is_emitted_when_the_watermark_reaches_its_end(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("bids", [bid(1), bid(9.5), bid(10)])
            t.watermark("bids", at(9.999999))
            t.checkpoint()
            assert t.rows("out") == []
            t.watermark("bids", at(10))
            t.checkpoint()
            assert t.rows("out") == [
                {"auction": "a", "window_start": at(0), "window_end": at(10), "n": 2, "bits": 2, "top": 1, "low": 2}
            ]

    def test_records_in_all_partitions_advance_time(self) -> None:
        with TestDriver(app_of()) as t:
            for partition in range(4):
                t.push("bids", [bid(1), bid(12)], partition)
            t.checkpoint()
            assert counts(t) == [(10, 4)]

    def test_a_partition_without_later_records_holds_time_back_until_it_is_idle(self) -> None:
        with TestDriver(app_of(idle_after="6s")) as t:
            for partition in (1, 2, 3):
                t.push("bids", [bid(1)], partition)
            t.push("bids", [bid(1), bid(12)])
            t.advance("4s")
            t.checkpoint()
            assert counts(t) == []
            t.push("bids", [bid(13)])
            t.advance("3s")
            t.checkpoint()
            assert counts(t) == [(10, 4)]

    def test_time_holds_while_all_partitions_are_idle(self) -> None:
        with TestDriver(app_of(idle_after="3s")) as t:
            for partition in range(4):
                t.push("bids", [bid(1), bid(11)], partition)
            t.advance("5s")
            t.checkpoint()
            assert counts(t) == []
            t.push("bids", [bid(12)])
            t.checkpoint()
            assert counts(t) == [(10, 4)]

    @pytest.mark.parametrize("parallelism", [1, 2, 3])
    @pytest.mark.parametrize("seed", range(6))
    def test_partitions_that_become_silent_together_close_no_window(self, seed: int, parallelism: int) -> None:
        with TestDriver(app_of(idle_after="3s"), parallelism, seed) as t:
            for partition in range(4):
                t.push("bids", [bid(1), bid(12 + 10 * partition)], partition)
            t.advance("20s")
            t.checkpoint()
            assert counts(t) == [(10, 4)]
            t.push("bids", [bid(13)], 0)
            t.push("bids", [bid(40)], 3)
            t.checkpoint()
            assert counts(t) == [(10, 4)]
            t.push("bids", [bid(50)], 0)
            t.push("bids", [bid(50)], 3)
            t.checkpoint()
            assert sorted(counts(t)) == [(10, 4), (20, 2), (30, 1), (40, 1)]

    def test_the_status_shows_silence_and_which_partitions_hold_time_back(self) -> None:
        with TestDriver(app_of(idle_after="6s")) as t:
            t.push("bids", [bid(1), bid(12)])
            t.advance("4s")
            rows = of_run(t.cluster.driver.state, "", "", None).sources
            assert [row.holds_time for row in rows] == [True] * 4
            assert all(2_000 <= (row.idle_ms or 0) <= 4_000 for row in rows)
            t.advance("1s")
            t.push("bids", [bid(13)])
            t.advance("4s")
            rows = of_run(t.cluster.driver.state, "", "", None).sources
            assert [row.holds_time for row in rows] == [True, False, False, False]

    def test_a_record_within_the_lateness_corrects_its_window(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("bids", [bid(1)])
            t.watermark("bids", at(14))
            t.checkpoint()
            t.push("bids", [bid(2), bid(3, auction="b")])
            t.checkpoint()
            assert [(row["auction"], row["n"]) for row in t.rows("out")] == [("a", 2), ("b", 1)]

    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_a_record_after_the_lateness_is_late_and_its_window_is_removed(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("bids", [bid(1, bit=4)])
            t.checkpoint()
            assert t.state("hot", (at(10), "a")) is not None
            t.watermark("bids", at(15))
            t.push("bids", [bid(2, bit=8)])
            t.checkpoint()
            assert t.rows("late") == [{"auction": "a", "bit": 8, "at": at(2), "twice": 16}]
            assert counts(t) == [(10, 1)]
            assert t.state("hot", (at(10), "a")) is None

    def test_final_emits_a_window_once_after_the_lateness(self) -> None:
        with TestDriver(app_of(emit="final")) as t:
            t.push("bids", [bid(1)])
            t.watermark("bids", at(14))
            t.push("bids", [bid(2)])
            t.checkpoint()
            assert counts(t) == []
            t.watermark("bids", at(15))
            t.checkpoint()
            assert counts(t) == [(10, 2)]

    def test_finishing_closes_every_window(self) -> None:
        with TestDriver(app_of(emit="final")) as t:
            t.push("bids", [bid(1), bid(11), bid(21)], partition=3)
            t.finish()
            assert counts(t) == [(10, 1), (20, 1), (30, 1)]

    def test_a_finish_closes_every_window(self) -> None:
        with TestDriver(app_of(emit="final")) as t:
            t.push("bids", [bid(1), bid(11)])
            t.checkpoint()
            driver = t.cluster.driver
            driver.asked("stop", {"how": "finish"}, driver.state.job.generation, driver.state.job.generation)
            while driver.outcome is None:
                t.advance("1s")
            assert driver.outcome[0] == "finished"
            assert counts(t) == [(10, 1), (20, 1)]

    def test_stopping_closes_no_window(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("bids", [bid(1), bid(11)])
            t.cluster.driver.stop()
            while t.cluster.driver.outcome is None:
                t.advance("1s")
            assert counts(t) == []

    def test_a_function_that_returns_the_event_time_unchanged_keeps_it(self) -> None:
        app = hf.App("windows", key_groups=8)
        bids = app.source("bids", COLUMNS, event_time="at", idle_after="1h")
        twice = bids.map(lambda b: Bid(b.auction, 2 * b.bit, b.at), to=Bid).union(bids.as_(Bid))
        counted = twice.key_by("auction").window(hf.tumbling("10s")).agg("hot", n=hf.count(), bits=hf.sum("bit"))
        counted.sink("out", MemorySink(key=counted.upsert_key))
        with TestDriver(app) as t:
            t.push("bids", [bid(1), bid(2)])
            t.crash(0)
            t.recover()
            t.watermark("bids", at(10))
            t.checkpoint()
            assert [(row["n"], row["bits"]) for row in t.rows("out")] == [(4, 6)]

    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_late_records_without_a_sink_are_counted(self) -> None:
        with TestDriver(app_of(late=False)) as t:
            t.watermark("bids", at(20))
            t.push("bids", [bid(1), bid(2), bid(19)])
            t.checkpoint()
            workers = t.cluster.driver.state.workers.values()
            assert sum(o.late or 0 for w in workers for o in w.heartbeat.progress.operators) == 2


class TestRunToFixedEnds:
    """`run --once`."""

    def run(
        self, records: dict[int, list[Bid]], seed: int = 0, parallelism: int = 2, taken_back: int | None = None
    ) -> TestDriver:
        t = TestDriver(app_of(), parallelism, seed)
        for partition, bids in records.items():
            rows = [asdict(each) for each in bids]
            t.sources["bids"].tables[partition] = pa.Table.from_pylist(rows, schema=COLUMNS.schema)
        ends = {p: len(records.get(p, [])) + 3 * (p == taken_back) for p in range(4)}
        t.cluster.change_rules(until={"bids": ends})
        with t:
            t.cluster.pass_time(10)
        assert t.cluster.driver.outcome == ("stopped", None)
        return t

    @pytest.mark.parametrize("parallelism", [1, 2, 3])
    @pytest.mark.parametrize("seed", range(6))
    def test_partitions_without_a_record_do_not_hold_time_back(self, seed: int, parallelism: int) -> None:
        assert counts(self.run({1: [bid(1), bid(2), bid(12)]}, seed, parallelism)) == [(10, 2)]

    @pytest.mark.parametrize("seed", range(6))
    def test_a_partition_whose_records_became_void_does_not_hold_time_back(self, seed: int) -> None:
        assert counts(self.run({1: [bid(1), bid(2), bid(12)]}, seed, taken_back=2)) == [(10, 2)]

    @pytest.mark.parametrize("seed", range(6))
    def test_a_partition_whose_end_was_reached_closes_nothing_early(self, seed: int) -> None:
        records = {0: [bid(1), bid(13)], 1: [bid(2), bid(33)], 2: [bid(3), bid(55)]}
        assert counts(self.run(records, seed)) == [(10, 3)]

    def test_nothing_is_closed_if_all_partitions_are_empty(self) -> None:
        assert counts(self.run({})) == []

    @pytest.mark.parametrize("seed", range(4))
    def test_a_sealed_source_closes_every_window(self, seed: int) -> None:
        t = TestDriver(app_of(), 2, seed)
        for partition in range(2):
            rows = [asdict(bid(1 + 20 * partition))]
            t.sources["bids"].tables[partition] = pa.Table.from_pylist(rows, schema=COLUMNS.schema)
        t.sources["bids"].over = True
        t.cluster.change_rules(until={"bids": {0: 1, 1: 1, 2: 0, 3: 0}})
        with t:
            t.cluster.pass_time(10)
        assert t.cluster.driver.outcome == ("finished", None)
        assert counts(t) == [(10, 1), (30, 1)]


class TestRestoring:
    @pytest.mark.parametrize("workers", [[0], [0, 1]])
    @pytest.mark.parametrize("seed", range(8))
    def test_a_closed_window_stays_closed_after_a_crash(self, workers: list[int], seed: int) -> None:
        """P11: also while a subtask's records come before the watermarks of the others."""
        with TestDriver(app_of(emit="final", lateness="0s"), seed=seed) as t:
            t.push("bids", [bid(1, auction=str(n)) for n in range(8)])
            t.watermark("bids", at(10))
            t.checkpoint()
            for worker in workers:
                t.crash(worker)
            t.push("bids", [bid(2, auction=str(n)) for n in range(8)], partition=1)
            t.recover()
            t.checkpoint()
            assert sorted(counts(t)) == [(10, 1)] * 8
            assert len(t.rows("late")) == 8

    def test_the_watermark_of_a_partition_is_restored(self) -> None:
        with TestDriver(app_of()) as t:
            for partition in range(4):
                t.push("bids", [bid(8)], partition)
            t.checkpoint()
            t.crash(0)
            t.crash(1)
            t.recover()
            manifest = t.cluster.driver.state.phase.last  # type: ignore[union-attr]
            assert manifest is not None
            assert {at_.watermark for at_ in manifest.positions} == {int(at(6).timestamp()) * 1_000_000}

    @pytest.mark.parametrize("parallelism", [1, 3])
    def test_a_closed_window_stays_closed_with_another_parallelism(self, parallelism: int) -> None:
        """P11: the clock moves with its key group."""
        with TestDriver(app_of(emit="final", lateness="0s")) as t:
            t.push("bids", [bid(1, auction=str(n)) for n in range(8)])
            t.watermark("bids", at(10))
            t.checkpoint()
            rescale(t, parallelism)
            t.push("bids", [bid(2, auction=str(n)) for n in range(8)], partition=1)
            t.checkpoint()
            t.finish()
            assert sorted(counts(t)) == [(10, 1)] * 8
            assert len(t.rows("late")) == 8


class TestRefusals:
    def test_a_stream_without_event_time_is_refused(self) -> None:
        bids = hf.App("x").source("bids", COLUMNS)
        with pytest.raises(hf.ConfigError, match="has no event time"):
            bids.key_by("auction").window(hf.tumbling("1s"))

    def test_a_function_that_returns_rows_without_the_event_time_is_refused(self) -> None:
        bids = hf.App("x").source("bids", COLUMNS, event_time="at")
        bare = bids.map(lambda b: (b.auction,), to=pa.schema([pa.field("auction", pa.string(), nullable=False)]))
        with pytest.raises(hf.ConfigError, match="has no event time"):
            bare.key_by("auction").window(hf.tumbling("1s"))

    def test_an_event_time_changed_by_a_step_is_refused(self) -> None:
        bids = hf.App("x").source("bids", COLUMNS, event_time="at")
        moved = bids.with_columns(at=pl.col("at") + pl.duration(seconds=1))
        with pytest.raises(hf.ConfigError, match="has no event time"):
            moved.key_by("auction").window(hf.tumbling("1s"))

    def test_an_event_time_that_was_only_renamed_is_accepted(self) -> None:
        bids = hf.App("x").source("bids", COLUMNS, event_time="at").select("auction", when=pl.col("at"))
        assert bids.key_by("auction").window(hf.tumbling("1s")).grouping.time == "when"

    def test_an_upsert_stream_is_refused(self) -> None:
        counted = hf.App("x").source("bids", COLUMNS, event_time="at").key_by("auction").agg("n", last=hf.max("at"))
        with pytest.raises(hf.ConfigError, match="replaces rows by auction"):
            counted.key_by("auction").window(hf.tumbling("1s"))

    @pytest.mark.parametrize(("size", "offset"), [("0s", "0s"), ("10s", "10s"), ("10s", "11s")])
    def test_invalid_sizes_and_offsets_are_refused(self, size: str, offset: str) -> None:
        with pytest.raises(hf.ConfigError, match="the size must be above 0"):
            hf.tumbling(size, offset)

    def test_late_records_of_a_stream_without_windows_are_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="not the result of a window"):
            _ = hf.App("x").source("bids", COLUMNS).late

    def test_state_of_other_windows_is_refused(self) -> None:
        before = describe_operators(app_of(lateness="5s").plan())
        check_against(app_of(lateness="5s").plan(), before)
        with pytest.raises(hf.ConfigError, match="would reopen"):
            check_against(app_of(lateness="6s").plan(), before)


class TestTumbling:
    @pytest.mark.continuous("it runs no job")
    @given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.data())
    def test_a_time_is_in_exactly_one_aligned_window(self, time: int, size: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, size - 1))
        end = int(Tumbling(size, offset).slices(np.array([time]))[0])
        assert end - size <= time < end
        assert (end - offset) % size == 0


@dataclass
class Input:
    """What a test pushed, and what must be so of each record; plain Python, no code of the runtime."""

    lateness: float
    bids: dict[int, Bid]
    surely_in: set[int]
    surely_late: set[int]
    newest: dict[int, float]
    mark: float = -math.inf
    committed_mark: float = -math.inf

    def take(self, bids: Iterable[Bid], partition: int, out_of_orderness: float) -> None:
        for each in bids:
            bit, second = each.bit, (each.at - START).total_seconds()
            over = (second // 10 + 1) * 10 + self.lateness
            self.bids[bit] = each
            if over > max(self.newest.get(partition, -math.inf) - out_of_orderness, self.mark):
                self.surely_in.add(bit)
            if over <= self.committed_mark:
                self.surely_late.add(bit)
            self.newest[partition] = max(self.newest.get(partition, -math.inf), second)

    def windows(self, without: set[int]) -> dict[tuple[str, datetime], tuple[int, int, int, int]]:
        groups: dict[tuple[str, datetime], list[int]] = defaultdict(list)
        for bit, each in self.bids.items():
            if bit not in without:
                end = at(((each.at - START).total_seconds() // 10 + 1) * 10)
                groups[each.auction, end].append(bit)
        return {key: (len(bits), sum(bits), max(bits), 2 * min(bits)) for key, bits in groups.items()}


STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(0, 3),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 60)), min_size=1, max_size=6),
    ),
    st.tuples(st.just("watermark"), st.integers(0, 60)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("driver")),
)


def play(t: TestDriver, steps: list[Any], seen: Input) -> None:
    for step in steps:
        match step:
            case ("push", partition, rows) if len(seen.bids) < 55:
                bids = [Bid(key, 1 << (len(seen.bids) + n), at(second)) for n, (key, second) in enumerate(rows)]
                seen.take(bids, partition, out_of_orderness=2)
                t.push("bids", bids, partition)
            case ("watermark", second):
                t.watermark("bids", at(second))
                seen.mark = max(seen.mark, second)
            case ("checkpoint",):
                t.checkpoint()
                seen.committed_mark = seen.mark
            case ("crash", worker):
                t.crash(worker)
                t.recover()
            case ("driver",):
                t.cluster.replace_driver()
                t.advance("1s")


def by_window(rows: list[dict[str, Any]]) -> Mapping[tuple[str, datetime], tuple[int, int, int, int]]:
    found: dict[tuple[str, datetime], tuple[int, int, int, int]] = {}
    for row in rows:
        assert row["window_end"] - row["window_start"] == timedelta(seconds=10)
        key = row["auction"], row["window_end"]
        assert key not in found, "a window was given twice"
        found[key] = row["n"], row["bits"], row["top"], row["low"]
    return found


class TestAgainstAnOracle:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(STEPS, min_size=3, max_size=14),
        st.sampled_from(["close", "final"]),
        st.sampled_from([0, 5, 12]),
        st.integers(1, 3),
        st.integers(0, 2**16),
    )
    def test_every_record_is_in_its_window_or_late_and_never_both(
        self, steps: list[Any], emit: str, lateness: int, parallelism: int, seed: int
    ) -> None:
        seen = Input(lateness, {}, set(), set(), {})
        steps = [s if s[0] != "crash" else ("crash", s[1] % parallelism) for s in steps]
        with TestDriver(app_of(emit, f"{lateness}s"), parallelism, seed) as t:
            t.watermark("bids", at(-1_000_000))  # partitions without records hold time, as in the oracle
            play(t, steps, seen)
            t.finish()
            late = [row["bit"] for row in t.rows("late")]
            assert len(set(late)) == len(late), "a record is late twice"
            assert by_window(t.rows("out")) == seen.windows(without=set(late))
            assert not seen.surely_in & set(late)
            assert seen.surely_late <= set(late)
            state_sizes.check(t, {})


class TestTheEnd:
    @pytest.mark.parametrize("seed", range(6))
    def test_state_is_that_of_the_last_epoch_even_if_it_had_no_output(self, seed: int) -> None:
        with TestDriver(app_of("close", "5s"), 1, seed) as t:
            t.watermark("bids", at(60))
            t.push("bids", [Bid("a", 1, at(50))])
            t.checkpoint()
            t.finish()
            assert t.state("hot", (at(60), "a")) is None


class TestRestoredState:
    """Windows that a store has restored are found, closed and deleted."""

    def test_restored_windows_close_once(self) -> None:
        segments = list[bytes]()
        first = Bare(segments)
        first.fragment.on_batch(first.rows([bid(n % 30, auction=str(n)) for n in range(300)]))
        first.fragment.on_watermark(us(10))
        first.close(1)
        again = Bare(segments, Epoch(1))
        again.fragment.on_batch(again.rows([bid(5), bid(25)]))
        again.fragment.on_watermark(us(30))
        assert first.rows_out() == 100
        assert again.rows_out() == 201
        assert again.late() == 1
        again.close(2, committed=1)
        restored = Bare(segments, Epoch(2))
        assert restored.state.table(restored.operator).present().size == 0

    def test_slots_of_deleted_windows_are_dropped(self) -> None:
        run = Bare([])
        one = run.rows([bid(0, auction=str(n)) for n in range(1_000)])
        place = one.schema.get_field_index("at")
        for number in range(40):
            times = pa.array([at(10 * number)] * 1_000, one.schema.field(place).type)
            run.fragment.on_batch(one.set_column(place, one.schema.field(place), times))
            run.fragment.on_watermark(us(10 * number))
            run.close(number + 1, committed=number)
        assert run.rows_out() == 39_000
        assert len(run.state.table(run.operator)) < 25_000


class TestDueWindows:
    """Due windows are searched only when time passes the earliest one: it must never be forgotten."""

    def run(self, emit: str, lateness: str = "0s") -> Bare:
        run = Bare([], Epoch(0), emit, lateness)
        run.fragment.on_watermark(us(0))  # from here on it is known that nothing is due
        return run

    @pytest.mark.parametrize("emit", ["close", "final"])
    @pytest.mark.parametrize("order", [[5, 25, 15], [25, 5, 15], [15, 25, 5]])
    def test_every_window_closes_on_time_in_whatever_order_they_began(self, emit: str, order: list[int]) -> None:
        run = self.run(emit)
        for second in order:
            run.fragment.on_batch(run.rows([bid(second)]))
        given = []
        for second in (9, 10, 19, 20, 29, 30):
            run.fragment.on_watermark(us(second))
            given.append(run.rows_out())
        assert given == [0, 1, 1, 2, 2, 3]

    def test_a_final_window_waits_only_for_its_own_lateness(self) -> None:
        run = self.run("final", "5s")
        run.fragment.on_batch(run.rows([bid(5)]))
        run.fragment.on_batch(run.rows([bid(25)]))
        for second, rows in ((14, 0), (15, 1), (34, 1), (35, 2)):
            run.fragment.on_watermark(us(second))
            assert run.rows_out() == rows

    def test_a_corrected_window_does_not_keep_an_earlier_one_in_state(self) -> None:
        run = self.run("close", "20s")
        run.fragment.on_batch(run.rows([bid(5), bid(15)]))
        run.fragment.on_watermark(us(22))
        run.fragment.on_batch(run.rows([bid(16)]))
        run.fragment.on_watermark(us(32))
        assert run.state.table(run.operator).present().size == 1
        run.fragment.on_watermark(us(42))
        assert run.state.table(run.operator).present().size == 0

    def test_a_new_window_does_not_keep_a_closed_one_in_state(self) -> None:
        run = self.run("close", "5s")
        run.fragment.on_batch(run.rows([bid(5)]))
        run.fragment.on_watermark(us(12))
        run.fragment.on_batch(run.rows([bid(95)]))
        run.fragment.on_watermark(us(16))
        assert run.state.table(run.operator).present().size == 1


class TestEmittedWindows:
    def run(self, lateness: str, segments: list[bytes] | None = None) -> Bare:
        run = Bare([] if segments is None else segments, Epoch(0), "close", lateness)
        run.fragment.on_watermark(us(0))
        return run

    def test_a_window_emitted_at_its_end_is_not_emitted_with_the_next(self) -> None:
        run = self.run("60s")
        run.fragment.on_batch(run.rows([bid(5), bid(15)]))
        given = []
        for second in (10, 20, 21):
            run.fragment.on_watermark(us(second))
            given.append(run.rows_out())
        assert given == [1, 2, 2]

    def test_a_correction_by_several_records_of_a_batch_is_emitted_once(self) -> None:
        run = self.run("60s")
        run.fragment.on_batch(run.rows([bid(5), bid(5, auction="b")]))
        run.fragment.on_watermark(us(12))
        run.fragment.on_batch(run.rows([bid(6), bid(7), bid(8, auction="b"), bid(9)]))
        assert run.rows_out() == 2 + 2

    def test_a_closed_window_within_its_lateness_is_in_the_stored_state(self) -> None:
        segments = list[bytes]()
        run = self.run("5s", segments)
        run.fragment.on_batch(run.rows([bid(5), bid(15)]))
        for epoch in (1, 2):
            run.close(epoch, committed=epoch - 1)
            run.fragment.on_watermark(us(21))  # the first window expires, the second one does not
        again = Bare(segments, Epoch(2), "close", "5s")
        assert again.state.table(again.operator).present().size == 1


class TestClockOfWindows:
    """P11: the clock of one or of all key groups never decreases."""

    def late_after(self, run: Bare, second: float) -> int:
        run.fragment.on_batch(run.rows([bid(second, auction=str(n)) for n in range(64)]))
        return run.late()

    def test_an_older_watermark_changes_nothing(self) -> None:
        run = Bare([])
        run.fragment.on_watermark(us(30))
        run.fragment.on_watermark(us(10))
        assert self.late_after(run, 22) == 64

    def test_a_key_group_ahead_of_the_others_keeps_its_clock(self) -> None:
        """As after a change of parallelism."""
        ahead = Bare([], Epoch(0), clocks={group: us(30) for group in (0, 1, 2, 3)})
        behind = Bare([], Epoch(0), clocks={group: us(10) for group in (0, 1, 2, 3)})
        for run in (ahead, behind):
            run.fragment.on_watermark(us(15))
        late = self.late_after(ahead, 22)
        assert 0 < late < 64
        assert self.late_after(behind, 22) == 0

    def test_the_stored_clock_is_the_effective_one(self) -> None:
        run = Bare([], Epoch(0), clocks={group: us(30) for group in (0, 1, 2, 3)})
        run.fragment.on_watermark(us(15))
        run.close(1)
        assert run.clocks() == [us(30)] * 4 + [us(15)] * 4


def us(second: float) -> int:
    return int(at(second).timestamp() * 1_000_000)


class Bare:
    """The fragment after the shuffle with real state, without a driver.

    Args:
        segments: Of the epochs up to `base`, from which it is restored; it adds its own.
    """

    def __init__(
        self,
        segments: list[bytes],
        base: Epoch = NO_EPOCH,
        emit: str = "close",
        lateness: str = "0s",
        clocks: Mapping[int, int] | None = None,
    ) -> None:
        plan = app_of(emit, lateness, late=False).plan()
        identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
        tables = [operator.table for operator in plan.operators]
        self.state = StateStore(identity, tables, plan.key_groups, (0, plan.key_groups))
        self._segments = segments
        if base:
            self.state.restore(base, segments)
        self.schema, self.operators = plan.edges[0].schema, plan.operators
        self.operator = plan.operator("hot").id
        named = {operator.name: self.state.table(operator.id) for operator in plan.operators}
        groups = KeyGroups(plan.key_groups, 0, plan.key_groups)
        self._clock = named["hot.clock"]
        self._clock_keys = CLOCK_KEY.from_ints(key_of_group(np.arange(plan.key_groups), plan.key_groups))
        for group, at_us in (clocks or {}).items():
            slots = self._clock.slots(self._clock_keys)
            self._clock.changing(slots[group : group + 1])("at")[slots[group]] = at_us
        self.fragment = FragmentRuntime(plan.fragments[1], named, self._send, self._write, key_groups=groups)

    def rows(self, bids: list[Bid]) -> pa.RecordBatch:
        rows = [asdict(each) | {"twice": 2 * each.bit} for each in bids]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def close(self, epoch: int, committed: int = 0) -> None:
        self.fragment.on_barrier()
        for operator in self.operators:
            self.state.freeze(operator.id, Epoch(epoch), Epoch(committed))
        self._segments.append(sealed_epoch(self.state, epoch))
        self.state.commit(Epoch(epoch))

    def clocks(self) -> list[int]:
        found: list[int] = self._clock.column("at")[self._clock.slots(self._clock_keys)].tolist()
        return found

    def rows_out(self) -> int:
        return next(each.rows_out for each in self.fragment.progress() if each.name == "hot")

    def late(self) -> int:
        late = next(each.late for each in self.fragment.progress() if each.name == "hot")
        assert late is not None
        return late

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing is behind the windows but a sink")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        assert sink == "out" and batch.num_rows > 0
