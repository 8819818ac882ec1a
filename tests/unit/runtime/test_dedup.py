"""Repetitions are dropped within a length of event time, in any order, across failures, rescales and rewinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from planned_source import PlannedSource
from sealed_epochs import sealed_epoch

import holdfast as hf
from holdfast.model import NEVER_US, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators import dedup
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.plan.compiler import Plan, describe
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.routing import Router
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.keygroups import range_of
from holdfast.state.store import Identity, StateStore
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("id", pa.string()),
        pa.field("note", pa.int64(), nullable=False),
        pa.field("unused", pa.int64()),
    ]
)
WITHIN_S = 10


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def us(second: float) -> int:
    return int(at(second).timestamp() * 1_000_000)


def row(second: float, id: str | None = "a", note: int = 0) -> dict[str, Any]:
    return {"at": at(second), "id": id, "note": note, "unused": None}


def app_of(
    within: str = "10s", late: bool = True, event_time: str | None = "at", out_of_orderness: str = "0s"
) -> hf.App:
    app = hf.App("unique")
    rows = app.source("rows", PlannedSource(SCHEMA), event_time=event_time, out_of_orderness=out_of_orderness)
    unique = rows.key_by("id").dedup("unique", within=within)
    unique.select("at", "id", "note").sink("out", MemorySink())
    if late:
        unique.late.select("at", "id").sink("late", MemorySink())
    return app


def passed(t: TestDriver) -> list[float]:
    return sorted((each["at"] - at(0)).total_seconds() for each in t.rows("out"))


class TestPassedRows:
    def after(self, *seconds: float) -> list[float]:
        with TestDriver(app_of()) as t:
            for second in seconds:
                t.push("rows", [row(second)])
            t.checkpoint()
            return passed(t)

    def test_only_the_first_of_equal_rows(self) -> None:
        assert self.after(5, 5, 5) == [5]

    def test_a_row_within_the_interval_is_dropped_and_one_at_its_end_passes(self) -> None:
        assert self.after(0, 9.999999, 10, 19.999999, 20) == [0, 10, 20]

    def test_a_dropped_row_does_not_extend_the_interval(self) -> None:
        assert self.after(0, 9, 18) == [0, 18]

    def test_an_earlier_row_that_arrives_later_is_a_repetition_only_within(self) -> None:
        assert self.after(30, 20.000001, 20, 10.000001, 29) == [20, 30]

    def test_keys_are_independent_and_null_is_a_key(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row(0, id, note) for note in range(3) for id in ("a", "b", None)])
            t.checkpoint()
            assert sorted((each["id"] or "", each["note"]) for each in t.rows("out")) == [("", 0), ("a", 0), ("b", 0)]

    def test_rows_pass_unchanged_and_keep_event_time_and_columns(self) -> None:
        app = hf.App("then")
        unique = app.source("rows", PlannedSource(SCHEMA), event_time="at").key_by("id").dedup("unique", within="10s")
        assert unique.schema == SCHEMA and unique.upsert_key is None
        unique.key_by("id").window(hf.tumbling("1m")).agg("counts", n=hf.count()).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rows", [row(1), row(2), row(12), row(12), row(50)])
            t.finish()
            assert [each["n"] for each in t.rows("out")] == [3]


class TestLateRows:
    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_a_row_behind_the_watermark_by_within_is_late(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row(0, "first")])
            t.watermark("rows", at(30))
            t.push("rows", [row(20, "x"), row(20.000001, "y"), row(20.000001, "y")])
            t.checkpoint()
            assert [each["id"] for each in t.rows("late")] == ["x"]
            assert sorted(each["id"] for each in t.rows("out")) == ["first", "y"]

    def test_a_row_that_is_not_late_is_still_compared_with_earlier_rows(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row(11.5)])
            t.watermark("rows", at(31))
            t.push("rows", [row(21.4)])
            t.checkpoint()
            assert passed(t) == [11.5] and t.rows("late") == []


class TestFailures:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_crash_and_a_rewind_do_not_change_which_rows_pass(self, seed: int) -> None:
        with TestDriver(app_of(), parallelism=3, seed=seed) as t:
            t.push("rows", [row(n % 7, f"k{n % 20}", n) for n in range(100)])
            first = t.checkpoint()
            t.push("rows", [row(5, f"k{n}", n) for n in range(30)], partition=1)
            t.crash(worker=seed)
            t.recover()
            t.push("rows", [row(6, f"k{n}", n) for n in range(30)], partition=2)
            t.checkpoint()
            assert sorted(each["id"] for each in t.rows("out")) == sorted(f"k{n}" for n in range(30))
            t.rewind(first)
            t.checkpoint()
            assert sorted(each["id"] for each in t.rows("out")) == sorted(f"k{n}" for n in range(30))

    def test_state_is_removed_when_no_repetition_is_possible_any_more(self) -> None:
        end = at(10)
        with TestDriver(app_of(), parallelism=1) as t:
            t.push("rows", [row(3)])
            t.checkpoint()
            assert t.state("unique", (end, "a")) == {"window_end": us(10), "passed": us(3)}
            t.watermark("rows", at(29.9))
            t.checkpoint()
            assert t.state("unique", (end, "a")) is not None
            t.watermark("rows", at(30))
            t.checkpoint()
            assert t.state("unique", (end, "a")) is None


class Subtask:
    """The fragment after the shuffle on the key groups of one subtask, with real state."""

    def __init__(self, plan: Plan, segments: list[bytes], base: Epoch, number: int = 0, parallelism: int = 1) -> None:
        identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
        owned = range_of(number, parallelism, plan.key_groups)
        tables = [operator.table for operator in plan.operators]
        self.state, self.operators = StateStore(identity, tables, plan.key_groups, owned), plan.operators
        self._segments = segments
        if base:
            self.state.restore(base, segments)
        named = {operator.name: self.state.table(operator.id) for operator in plan.operators}
        self.table, self.out = named["unique"], list[dict[str, Any]]()
        groups = KeyGroups(plan.key_groups, *owned)
        self.fragment = FragmentRuntime(plan.fragments[1], named, self._send, self._write, key_groups=groups)

    def close(self, epoch: int) -> None:
        self.fragment.on_barrier()
        for operator in self.operators:
            self.state.freeze(operator.id, Epoch(epoch), Epoch(epoch - 1))
        self._segments.append(sealed_epoch(self.state, epoch))
        self.state.commit(Epoch(epoch))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        self.out += [each | {"sink": sink} for each in batch.to_pylist()]


class TestState:
    def rows(self, plan: Plan, rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(list(rows), SCHEMA).select(plan.edges[0].schema.names)

    def test_state_moves_with_its_keys_when_the_parallelism_changes(self) -> None:
        plan, segments = app_of().plan(), list[bytes]()
        one = Subtask(plan, segments, Epoch(0))
        one.fragment.on_batch(self.rows(plan, (row(1, f"k{n}") for n in range(50))))
        one.fragment.on_watermark(us(5))
        one.close(1)
        halves = [Subtask(plan, segments, Epoch(1), number, 2) for number in range(2)]
        again = self.rows(plan, [*(row(2, f"k{n}") for n in range(60)), row(-5, "late")])
        for receiver, rows in Router(plan.edges[0], 2, plan.key_groups).split(again):
            halves[receiver].fragment.on_batch(rows)
        out = [each for half in halves for each in half.out]
        assert sorted(each["id"] for each in out) == sorted(["late", *(f"k{n}" for n in range(50, 60))])
        assert [each["sink"] for each in out if each["id"] == "late"] == ["late"]

    def test_looking_for_repetitions_leaves_no_slots_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.state.tables.table.VACANT_SLOTS_MIN", 4)
        plan = app_of().plan()
        one = Subtask(plan, [], Epoch(0))
        one.fragment.on_batch(self.rows(plan, (row(1, f"k{n}") for n in range(10))))
        assert len(one.table) == 30
        one.close(1)
        assert len(one.table) == 10
        one.fragment.on_batch(self.rows(plan, (row(2, f"k{n}") for n in range(10))))
        assert len(one.out) == 10


@dataclass
class Oracle:
    """One row after the other, against all that passed."""

    passed: list[int]

    def passes(self, time: int, within: int) -> bool:
        if any(abs(time - each) < within for each in self.passed):
            return False
        self.passed.append(time)
        return True


class TestDeciding:
    @pytest.mark.continuous("it runs no job")
    @given(
        st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=40), max_size=4),
        st.integers(1, 12),
        st.sampled_from([1, 8]),
    )
    @settings(max_examples=150, deadline=None)
    def test_rounds_decide_the_same_as_row_by_row_processing(
        self, batches: list[list[tuple[int, int]]], within: int, rounds: int
    ) -> None:
        oracles, kept = {key: Oracle([]) for key in range(3)}, dict[tuple[int, int], int]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dedup, "ROUNDS_MAX", rounds)
            for batch in batches:
                keys, times = (np.array(each, np.int64) for each in zip(*batch, strict=True))
                cells = [(k, int(t) // within + move) for move in (0, -1, 1) for k, t in zip(keys, times, strict=True)]
                known = sorted(set(cells))
                numbers = np.array([known.index(each) for each in cells]).reshape(3, -1)
                state = np.array([kept.get(each, NEVER_US) for each in known], np.int64)
                passes = dedup._passing(times, numbers, state, within)
                assert passes.tolist() == [oracles[k].passes(t, within) for k, t in batch]
                for number, does in enumerate(passes.tolist()):
                    if does:
                        kept[cells[number]] = int(times[number])


PUSHES = st.lists(st.tuples(st.sampled_from(["a", "a", "b", None]), st.integers(0, 45)), min_size=1, max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("push"), PUSHES),
    st.tuples(st.just("push"), PUSHES),
    st.tuples(st.just("watermark"), st.integers(1, 40)),
    *job_player.FAILURES,
    job_player.REWIND,
)


class TestRandomJobs:
    """Rows are as old as event time or newer, so none is late; those of a key are in one partition, so in an order.

    Only the test advances event time, also after a rewind: partitions without records are told their last time then,
    while others are read again.
    """

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=4, max_size=12), st.integers(0, 2**16))
    @example(
        [
            ("push", [("a", 24)]),
            ("push", [("a", 0), ("a", 0), ("a", 10), ("a", 0)]),
            ("watermark", 10),
            ("push", [("a", 0)]),
            ("rewind", 3),
        ],
        0,
    )
    def test_rows_pass_as_one_by_one_and_the_state_forgets_those_without_a_possible_repetition(
        self, steps: list[Any], seed: int
    ) -> None:
        """docs/guide/event-time.md: times of repetitions differ by less than `within`, and a row of time `t` is late
        when the watermark reaches `t` + `within`. So after a row of `p`, none that repeats it is taken once the
        watermark has reached `p` + 2 `within`.
        """
        oracles, clock = {key: Oracle([]) for key in ("a", "b", None)}, 0
        with TestDriver(app_of(out_of_orderness="1h"), 2, seed) as t:

            def push(given: list[tuple[str | None, int]]) -> None:
                for key, after in given:
                    t.push("rows", [row(clock + after, key)], 0 if key is None else ord(key) % 3)
                    oracles[key].passes(clock + after, WITHIN_S)

            def watermark(seconds: int) -> None:
                nonlocal clock
                clock += seconds
                t.watermark("rows", at(clock))

            def check() -> None:
                assert passed(t) == sorted(second for each in oracles.values() for second in each.passed)
                cells = {
                    (key, second // WITHIN_S)  # the state is in windows as long as `within`: TestDriver.state
                    for key, each in oracles.items()
                    for second in each.passed
                }
                rows = state_sizes.sizes_of(t).rows["unique"]
                assert rows == sum((cell + 1) * WITHIN_S + 2 * WITHIN_S > clock for _, cell in cells)

            t.watermark("rows", at(0))
            job_player.play(t, steps, {"push": push, "watermark": watermark}, check)
            t.finish()
            assert passed(t) == sorted(second for each in oracles.values() for second in each.passed)
            assert t.rows("late") == []
            state_sizes.check(t, {})


class TestPlans:
    def test_only_needed_columns_are_sent(self) -> None:
        plan = app_of(late=False).plan()
        assert plan.edges[0].schema.names == ["id", "at", "note"]
        assert describe(plan)["fragments"][1]["steps"][0]["text"] == "dedup unique by id within 10s of at"

    def test_another_within_or_key_is_refused_and_the_same_code_is_accepted(self) -> None:
        before = describe_operators(app_of().plan())
        check_against(app_of().plan(), before)
        with pytest.raises(hf.ConfigError, match="had within='10s' and now has '20s', so it cannot read its state"):
            check_against(app_of("20s").plan(), before)

    def test_state_of_an_aggregate_of_the_same_name_is_refused(self) -> None:
        app = hf.App("unique")
        counted = app.source("rows", PlannedSource(SCHEMA)).key_by("id").agg("unique", n=hf.count())
        counted.sink("out", MemorySink(key=["id"]))
        with pytest.raises(hf.ConfigError, match="kept aggregates per key and now keeps the times of the first rows"):
            check_against(app_of().plan(), describe_operators(app.plan()))
        with pytest.raises(hf.ConfigError, match="kept the times of the first rows per key and now keeps aggregates"):
            check_against(app.plan(), describe_operators(app_of().plan()))

    def test_dropped_and_late_rows_are_counted(self) -> None:
        plan = app_of().plan()
        one = Subtask(plan, [], Epoch(0))
        one.fragment.on_watermark(us(20))
        batch = pa.RecordBatch.from_pylist([row(25), row(26), row(5)], SCHEMA).select(plan.edges[0].schema.names)
        one.fragment.on_batch(batch)
        (reported,) = one.fragment.progress()
        assert (reported.rows_in, reported.rows_out, reported.dropped, reported.late) == (3, 1, 1, 1)


class TestRefusals:
    def test_a_stream_without_event_time_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="has no event time"):
            app_of(event_time=None)

    @pytest.mark.parametrize("within", ["0s", "-1s", "sometimes", None, "999999d"])
    def test_an_invalid_duration_is_refused(self, within: Any) -> None:
        with pytest.raises(hf.ConfigError, match="within"):
            app_of(within)

    def test_an_upsert_stream_is_refused(self) -> None:
        app = hf.App("unique")
        counts = app.source("rows", PlannedSource(SCHEMA), event_time="at").key_by("id").agg("n", n=hf.count())
        with pytest.raises(hf.ConfigError, match="one row per key already"):
            counts.filter(pl.col("n") > 1).key_by("id").dedup("unique", within="1s")
