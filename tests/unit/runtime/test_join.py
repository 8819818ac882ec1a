"""Joins of two streams: which rows join, what is emitted when; failures, rescales and rewinds change no result."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.checkpoint.manifest import OperatorState
from holdfast.model import LAST_US, NEVER_US, Generation, JobUuid, Timeline, Watermark, WorkerId
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.operators.joins.rows import Due
from holdfast.runtime.operators.time_slice import TimeSlice
from holdfast.runtime.plan.compiler import Plan, describe
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.rows.kept_columns import from_state, kept_column, to_state
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

TIME = pa.timestamp("us", "UTC")
SHOWN = pa.schema([pa.field("at", TIME, False), pa.field("ad", pa.int64()), pa.field("site", pa.string())])
CLICKED = pa.schema([pa.field("at", TIME, False), pa.field("ad", pa.int64()), pa.field("user", pa.int64(), False)])
HOWS = ("inner", "left", "right", "full")


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def us(second: float) -> int:
    return int(at(second).timestamp() * 1_000_000)


def shown(second: float, ad: int | None = 1) -> dict[str, Any]:
    return {"at": at(second), "ad": ad, "site": f"site {ad}"}


def clicked(second: float, ad: int | None = 1, user: int = 7) -> dict[str, Any]:
    return {"at": at(second), "ad": ad, "user": user}


def app_of(
    how: str = "inner", within: Any = None, window: Any = None, columns: tuple[str, ...] = (), **named: Any
) -> hf.App:
    app = hf.App("ads")
    left = app.source("shown", PlannedSource(SHOWN), event_time="at", out_of_orderness="0s")
    right = app.source("clicked", PlannedSource(CLICKED), event_time="at", out_of_orderness="0s")
    within = hf.between("0s", "10s") if within is None and window is None else within
    joined = left.join("clicks", right, on="ad", within=within, window=window, how=how, **named)
    (joined.select(*columns) if columns else joined).sink("out", MemorySink())
    joined.late.sink("late", MemorySink())
    return app


Pair = tuple[float | None, float | None]
"""The seconds of both rows of a pair, None for a missing one."""


def pairs(rows: Iterable[dict[str, Any]]) -> list[Pair]:
    def seconds(time: datetime | None) -> float | None:
        return None if time is None else (time - at(0)).total_seconds()

    return ordered((seconds(row["at"]), seconds(row["at_right"])) for row in rows)


def ordered(found: Iterable[Pair]) -> list[Pair]:
    return sorted(found, key=lambda pair: [-1.0 if each is None else each for each in pair])


class TestPairs:
    def joined(self, left: list[float], right: list[float], **named: Any) -> list[Pair]:
        with TestDriver(app_of(**named)) as t:
            t.push("shown", [shown(each) for each in left])
            t.push("clicked", [clicked(each) for each in right])
            t.finish()
            return pairs(t.rows("out"))

    def test_both_bounds_are_inclusive(self) -> None:
        assert self.joined([10], [9.999999, 10, 20, 20.000001]) == [(10, 10), (10, 20)]

    def test_bounds_may_lie_before_the_left_row_or_apart_from_it(self) -> None:
        around, apart = hf.between("-2s", "2s"), hf.between("5s", "6s")
        assert self.joined([10], [7.9, 8, 12, 12.1], within=around) == [(10, 8), (10, 12)]
        assert self.joined([10], [10, 14.9, 15, 16, 16.1], within=apart) == [(10, 15), (10, 16)]
        assert self.joined([10], [3, 4, 5, 6], within=hf.between("-6s", "-5s")) == [(10, 4), (10, 5)]

    def test_rows_of_one_window_join_and_the_result_names_it(self) -> None:
        assert self.joined([0, 9, 10], [5, 10], window=hf.tumbling("10s")) == [(0, 5), (9, 5), (10, 10)]
        with TestDriver(app_of(window=hf.tumbling("10s"))) as t:
            t.push("shown", [shown(12)])
            t.push("clicked", [clicked(17)])
            t.checkpoint()
            [row] = t.rows("out")
            assert (row["window_start"], row["window_end"]) == (at(10), at(20))

    @pytest.mark.parametrize("how", HOWS)
    def test_unmatched_rows_are_those_that_how_names(self, how: str) -> None:
        found = self.joined([0, 50], [5, 90], how=how)
        left, right = [(50.0, None)] * (how in ("left", "full")), [(None, 90.0)] * (how in ("right", "full"))
        assert found == [*right, (0, 5), *left]

    def test_null_keys_join_nothing(self) -> None:
        for how in HOWS:
            with TestDriver(app_of(how)) as t:
                t.push("shown", [shown(0, None)])
                t.push("clicked", [clicked(0, None)])
                t.checkpoint()
                left, right = [(0.0, None)] * (how in ("left", "full")), [(None, 0.0)] * (how in ("right", "full"))
                assert pairs(t.rows("out")) == [*right, *left]

    def test_a_stream_joins_itself(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at", out_of_orderness="0s")
        rows.join("near", rows, on="ad", within=hf.between("0s", "5s")).sink("out", MemorySink())
        with TestDriver(app, parallelism=3) as t:
            t.push("shown", [shown(0), shown(5), shown(11), shown(5, 2)])
            t.finish()
            assert pairs(t.rows("out")) == [(0, 0), (0, 5), (5, 5), (5, 5), (11, 11)]

    def test_the_event_time_may_be_a_key(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at", out_of_orderness="0s")
        same = rows.join("same", rows.select("at", "ad"), on=["ad", "at"], within=hf.between("0s", "1s"), how="left")
        same.sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("shown", [shown(0), shown(1), shown(2, None)])
            t.finish()
            assert sorted((row["ad"] or 0, row["at"]) for row in t.rows("out")) == [(0, at(2)), (1, at(0)), (1, at(1))]

    def test_a_suffix_distinguishes_columns_of_both_streams(self) -> None:
        app = app_of(suffix="_click", columns=("ad", "at_click", "user"))
        with TestDriver(app) as t:
            t.push("shown", [shown(0)])
            t.push("clicked", [clicked(1)])
            t.checkpoint()
            assert t.rows("out") == [{"ad": 1, "at_click": at(1), "user": 7}]

    def test_the_result_has_event_time_that_no_later_window_finds_late(self) -> None:
        for how, column in (("inner", "at"), ("left", "at"), ("right", "at_right")):
            app = hf.App("ads")
            left = app.source("shown", PlannedSource(SHOWN), event_time="at", out_of_orderness="0s")
            right = app.source("clicked", PlannedSource(CLICKED), event_time="at", out_of_orderness="0s")
            joined = left.join("clicks", right, on="ad", within=hf.between("-6s", "10s"), how=how)
            counted = joined.key_by("ad").window(hf.tumbling("1s")).agg("counted", emit="final", n=hf.count())
            counted.sink("out", MemorySink())
            counted.late.select(column).sink("late", MemorySink())
            with TestDriver(app) as t:
                for second in range(0, 24, 3):
                    t.push("shown", [shown(second)])
                    t.push("clicked", [clicked(second), clicked(second, 2)])
                    t.watermark("shown", at(second))
                    t.watermark("clicked", at(second))
                t.finish()
                assert t.rows("late") == []
                joined_pairs = [(a, b) for a in range(0, 24, 3) for b in range(0, 24, 3) if -6 <= b - a <= 10]
                assert sum(row["n"] for row in t.rows("out")) == len(joined_pairs) + (8 if how == "right" else 0)


class TestTime:
    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_an_unmatched_row_is_emitted_when_no_partner_can_come_and_once(self) -> None:
        with TestDriver(app_of("left")) as t:
            t.push("shown", [shown(5)])
            for second, count in ((15, 0), (15.000001, 1), (40, 1)):
                t.watermark("shown", at(second))
                t.watermark("clicked", at(second))
                t.checkpoint()
                assert len(t.rows("out")) == count
            t.finish()
            assert pairs(t.rows("out")) == [(5, None)]

    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_a_row_is_late_when_the_clock_is_past_its_partners(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("shown", [shown(5), shown(9)])
            t.watermark("shown", at(20))
            t.watermark("clicked", at(20))
            t.push("shown", [shown(9.999999, 2), shown(10, 3)])
            t.push("clicked", [clicked(19, 1, 1), clicked(20, 3, 2)])
            t.checkpoint()
            late = [(row["ad"], row["at"], row["at_right"], row["user"]) for row in t.rows("late")]
            assert sorted(late) == [(1, None, at(19), 1), (2, at(9.999999), None, None)]
            assert pairs(t.rows("out")) == [(10, 20)]

    def test_rows_leave_the_state_when_their_bucket_is_over(self) -> None:
        with TestDriver(app_of(), parallelism=1) as t:
            t.push("shown", [shown(3)])
            t.checkpoint()
            key = (at(10), 0, 1)
            assert t.state("clicks", key) == {"rows": 1, "row.at": us(3), "row.site": "site 1"}
            for second, exists in ((19.9, True), (20, False)):
                t.watermark("shown", at(second))
                t.watermark("clicked", at(second))
                t.checkpoint()
                t.checkpoint()
                assert (t.state("clicks", key) is not None) is exists


class TestFailures:
    @pytest.mark.parametrize("how", HOWS)
    @pytest.mark.parametrize("bound", [{"within": hf.between("-4s", "6s")}, {"window": hf.tumbling("10s")}])
    def test_crashes_and_rewinds_change_no_result(self, how: str, bound: dict[str, Any]) -> None:
        rng = np.random.default_rng(HOWS.index(how))
        left = [
            (float(second), int(ad))
            for second, ad in zip(rng.integers(0, 60, 90), rng.integers(0, 12, 90), strict=True)
        ]
        right = [
            (float(second), int(ad))
            for second, ad in zip(rng.integers(0, 60, 70), rng.integers(0, 14, 70), strict=True)
        ]
        with TestDriver(app_of(how, **bound), parallelism=3, seed=len(how)) as t:
            for source in ("shown", "clicked"):
                t.watermark(source, at(-1_000))  # only the end moves time
            epochs = []
            for part in range(3):
                t.push("shown", [shown(*row) for row in left[part::3]], partition=part)
                t.push("clicked", [clicked(*row) for row in right[part::3]], partition=part)
                epochs.append(t.checkpoint())
                t.crash(worker=part)
                t.recover()
            t.rewind(epochs[1])
            t.crash()
            t.recover()
            t.finish()
            assert t.rows("late") == []
            assert pairs(t.rows("out")) == self.expected(how, bound, left, right)

    def expected(self, how: str, bound: dict[str, Any], left: Any, right: Any) -> list[Pair]:
        def fits(a: float, b: float) -> bool:
            return -4 <= b - a <= 6 if "within" in bound else a // 10 == b // 10

        found = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a[1] == b[1] and fits(a[0], b[0])]
        alone = [(left[i][0], None) for i in {*range(len(left))} - {i for i, _ in found} if how in ("left", "full")]
        others = [(None, right[j][0]) for j in {*range(len(right))} - {j for _, j in found} if how in ("right", "full")]
        every = [*[(left[i][0], right[j][0]) for i, j in found], *alone, *others]
        return ordered(every)


class Join:
    """The join's fragment without a driver."""

    def __init__(self, plan: Plan, time_slice: TimeSlice | None = None) -> None:
        identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
        tables = [operator.table for operator in plan.operators]
        self.state = StateStore(identity, tables, plan.key_groups, (0, plan.key_groups))
        named = {operator.name: self.state.table(operator.id) for operator in plan.operators}
        groups, self.batches, self.plan = KeyGroups(plan.key_groups, 0, plan.key_groups), list[pa.RecordBatch](), plan
        self.fragment = FragmentRuntime(
            plan.fragments[2], named, self._send, self._write, key_groups=groups, time_slice=time_slice
        )

    def take(self, port: int, rows: list[dict[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(rows, (SHOWN, CLICKED)[port])
        self.fragment.on_batch(batch.select(self.plan.edges[port].schema.names), port=port)

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        if sink == "out":
            self.batches.append(batch)


class Ticking:
    """A clock that moves on whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.06
        return self.now

    def time(self) -> float:
        return self.now


@pytest.mark.continuous("these tests have no driver")
class TestHotKeys:
    def test_a_turn_makes_a_bounded_number_of_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.joins.join.CANDIDATES_MAX", 10)
        monkeypatch.setattr("holdfast.runtime.operators.joins.join.PIECE_ROWS", 20)
        monkeypatch.setattr("holdfast.runtime.operators.backlog.OUTPUT_ROWS", 1)
        join = Join(app_of().plan(), TimeSlice(Ticking()))  # type: ignore[arg-type]
        join.take(0, [shown(1) for _ in range(95)])
        join.take(1, [clicked(2), clicked(3)])
        turns = 1
        while join.fragment.backlog:
            made = sum(batch.num_rows for batch in join.batches)
            join.fragment.backlog.go_on()
            assert sum(batch.num_rows for batch in join.batches) - made <= 40
            turns += 1
        assert turns >= 5 and max(batch.num_rows for batch in join.batches) <= 30
        assert sum(batch.num_rows for batch in join.batches) == 190

    def test_unmatched_rows_are_emitted_in_pieces_in_the_order_of_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.joins.join.PIECE_ROWS", 8)
        monkeypatch.setattr("holdfast.runtime.operators.backlog.OUTPUT_ROWS", 1)
        join = Join(app_of("left").plan())
        for first in (30, 10, 0, 20):
            join.take(0, [shown(first + n % 10, n) for n in range(10)])
        join.fragment.on_watermark(LAST_US)
        assert [batch.num_rows for batch in join.batches] == [8] * 5
        times = [each for batch in join.batches for each in batch.column("at").to_pylist()]
        assert times == sorted(times) and len(times) == 40


@pytest.mark.continuous("these tests have no driver")
class TestParts:
    def test_slots_are_due_in_order_whatever_the_order_of_additions(self) -> None:
        due, rng, added = Due(), np.random.default_rng(1), np.empty(0, np.int64)
        taken = []
        for number in range(200):
            over = rng.integers(0, 1_000, rng.integers(1, 30)) + 5 * number
            due.add(over, over * 1_000)
            added = np.concatenate([added, over])
            taken.append(due.take(4 * number))
            assert taken[-1].size == 0 or taken[-1].max() <= 4_000 * number
        assert sorted(np.concatenate([*taken, due.take(1 << 60)]).tolist()) == sorted((added * 1_000).tolist())
        assert due.take(1 << 60).size == 0

    def test_some_slots_are_taken_in_order_with_all_that_are_due_at_the_time_of_the_last(self) -> None:
        due, over = Due(), np.random.default_rng(2).integers(0, 50, 400)
        for part in np.array_split(np.arange(400), 9):
            due.add(over[part], part)
        left = np.sort(over)
        while due.is_due(40):
            last = min(40, int(left[min(29, left.size - 1)]))
            assert np.sort(over[due.take(40, 30)]).tolist() == left[left <= last].tolist()
            left = left[left > last]
        assert left.min() == 41 and np.sort(over[due.take(99, 1_000)]).tolist() == left.tolist()
        assert not due.is_due(1 << 60)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.int8(), [-1, 0, 127]),
            (pa.uint64(), [0, 1 << 63, (1 << 64) - 1]),
            (pa.float32(), [0.5, float("inf"), -0.0]),
            (pa.float64(), [0.1, 1e300, -2.0]),
            (pa.bool_(), [True, False, True]),
            (pa.date32(), [date(1960, 1, 1), date(2026, 2, 3), date(1970, 1, 1)]),
            (pa.timestamp("ns"), [datetime(1960, 1, 1), datetime(2026, 1, 1), datetime(1970, 1, 1)]),
            (pa.duration("ms"), [timedelta(1), timedelta(0), timedelta(-1)]),
            (pa.decimal128(20, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("123456789012345678.99")]),
            (pa.string(), ["", "a\x00b", "ß"]),
            (pa.large_binary(), [b"", b"\x00", b"xyz"]),
            (pa.binary(2), [b"ab", b"\x00\x00", b"zz"]),
        ],
        ids=str,
    )
    def test_state_keeps_the_values_of_every_flat_type(self, kind: pa.DataType, values: list[Any]) -> None:
        for nullable in (False, True):
            given = pa.array([values[0], *([None] if nullable else []), *values], kind)[1:]
            column = kept_column(pa.field("v", kind, nullable), "row.v")
            assert column is not None
            assert from_state(to_state(given, column), kind).equals(given)

    def test_state_keeps_nested_columns_but_those_whose_parts_python_cannot_hold(self) -> None:
        kind = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.map_(pa.string(), pa.time64("us")))])
        given = pa.array([{"a": [1.5, None], "b": [("x", time(9)), ("y", None)]}, None, {"a": [], "b": None}], kind)
        column = kept_column(pa.field("v", kind), "row.v")
        assert column is not None
        assert from_state(to_state(given, column), kind).equals(given)
        for other in (pa.list_(pa.timestamp("ns")), pa.map_(pa.int64(), pa.int64()), pa.struct([("a", pa.null())])):
            assert kept_column(pa.field("v", other), "row.v") is None

    def test_event_time_leaves_as_much_later_as_rows_may_be_older(self) -> None:
        for how, delay_s in (("inner", 10), ("left", 10), ("right", 3), ("full", 10)):
            join = Join(app_of(how, hf.between("-3s", "10s")).plan())
            leaving = join.fragment.leaving(Watermark(us(30), quiet=True))
            assert leaving == Watermark(us(30 - delay_s), quiet=True)
            for end in (NEVER_US, LAST_US):
                assert join.fragment.leaving(Watermark(end)) == Watermark(end)

    def test_every_row_is_counted(self) -> None:
        join = Join(app_of("left").plan())
        join.fragment.on_watermark(us(20))
        join.take(0, [shown(21), shown(22, None), shown(1)])
        join.take(1, [clicked(22), clicked(23, None), clicked(2)])
        (counts,) = join.fragment.progress()
        assert (counts.rows_in, counts.rows_out, counts.late, counts.dropped) == (6, 2, 2, 1)


@pytest.mark.continuous("these tests run no job")
class TestPlans:
    def test_only_needed_columns_are_sent_and_kept(self) -> None:
        app = hf.App("ads")
        left = app.source("shown", PlannedSource(SHOWN), event_time="at")
        right = app.source("clicked", PlannedSource(CLICKED), event_time="at")
        joined = left.join("clicks", right, on="ad", within=hf.between("0s", "10s"))
        joined.select("ad", "user").sink("out", MemorySink())
        plan = app.plan()
        assert [edge.schema.names for edge in plan.edges] == [["ad", "at"], ["ad", "at", "user"]]
        assert [column.name for column in plan.operator("clicks").table.columns] == ["rows", "row.at"]
        text = describe(plan)["fragments"][2]["steps"][0]["text"]
        assert text == "join clicks by ad, inner: between 0s and 10s"

    def test_sources_that_are_joined_keep_together_in_event_time(self) -> None:
        assert set(app_of().plan().read_together().values()) == {0}

    def test_the_same_code_is_accepted_and_other_joins_are_refused(self) -> None:
        before = describe_operators(app_of().plan())
        check_against(app_of().plan(), before)
        for message, app in {
            "joined rows between 0s and 10s and now joins rows between -1s and 10s": app_of(
                within=hf.between("-1s", "10s")
            ),
            "joined rows between 0s and 10s and now joins rows in the same tumbling": app_of(window=hf.tumbling("10s")),
            "was how='inner' and now is how='left'": app_of("left"),
        }.items():
            with pytest.raises(hf.ConfigError, match=message):
                check_against(app.plan(), before)

    @pytest.mark.parametrize(
        ("was", "now", "what"),
        [
            (
                pa.decimal128(10, 2),
                pa.decimal128(12, 4),
                "column .x: decimal128.10, 2. or null. and now has .x: decimal128.12",
            ),
            (
                pa.timestamp("us", "UTC"),
                pa.timestamp("ms", "UTC"),
                "column .x: timestamp.us, tz=UTC. or null. and now has",
            ),
            (pa.time64("us"), pa.timestamp("us"), "column .x: time64.us. or null. and now has .x: timestamp"),
        ],
    )
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_kept_column_of_another_type_is_refused(self, was: Any, now: Any, what: str, side: str) -> None:
        before = describe_operators(self.keeping(was, side))
        check_against(self.keeping(was, side), before)
        with pytest.raises(hf.ConfigError, match=f"had the {side} {what}"):
            check_against(self.keeping(now, side), before)

    def test_a_kept_column_from_another_column_is_refused(self) -> None:
        before = describe_operators(self.keeping(pa.int64(), "left", "p"))
        with pytest.raises(
            hf.ConfigError, match="had as left column the column 'p', called 'x' and now has the column"
        ):
            check_against(self.keeping(pa.int64(), "left", "q"), before)

    def test_windows_that_overlap_too_much_are_refused(self) -> None:
        app_of(window=hf.hopping("100s", every="1s")).plan()
        with pytest.raises(hf.ConfigError, match="puts a row into 101 windows, and a join keeps it in each"):
            app_of(window=hf.hopping("101s", every="1s"))

    def keeping(self, kind: pa.DataType, side: str, of: str = "p") -> Plan:
        """Return the plan of a join that keeps a column `x` of this type, which is the column `of` of a source."""
        app = hf.App("ads")
        plain = pa.schema([pa.field("at", TIME, False), pa.field("ad", pa.int64())])
        more = plain.append(pa.field("p", kind)).append(pa.field("q", kind))
        schemas = (more, plain) if side == "left" else (plain, more)
        left, right = (
            app.source(name, PlannedSource(schema), event_time="at")
            for name, schema in zip(("shown", "clicked"), schemas, strict=True)
        )
        if side == "left":
            left = left.with_columns(x=pl.col(of)).select("at", "ad", "x")
        else:
            right = right.with_columns(x=pl.col(of)).select("at", "ad", "x")
        left.join("clicks", right, on="ad", within=hf.between("0s", "10s")).sink("out", MemorySink())
        return app.plan()

    def test_state_without_a_column_that_is_now_needed_is_refused(self) -> None:
        fewer, more = (self.selecting(*columns) for columns in (("ad", "at_right"), ("ad", "at_right", "user", "site")))
        for before, now in ((fewer, more), (more, fewer)):
            with pytest.raises(hf.ConfigError, match="state column") as refused:
                check_against(now, describe_operators(before))
            assert "--drop-state clicks" in refused.value.next_step and "clicks.right" not in refused.value.next_step

    def selecting(self, *columns: str) -> Plan:
        app = hf.App("ads")
        left = app.source("shown", PlannedSource(SHOWN), event_time="at")
        right = app.source("clicked", PlannedSource(CLICKED), event_time="at")
        joined = left.join("clicks", right, on="ad", within=hf.between("0s", "10s"))
        joined.select(*columns).sink("out", MemorySink())
        return app.plan()

    def test_checkpoints_describe_the_state_as_documented(self) -> None:
        described = describe_operators(app_of("left").plan())
        key = [["window_end", "timestamp[us, tz=UTC]"], ["row_number", "int32"], ["ad", "int64"]]
        left = [["rows", "int64"], ["matched", "bool"], ["row.at", "int64"], ["row.site", "large_string?"]]
        assert described["clicks"]["key"] == key and described["clicks"]["columns"] == left
        identity = described["clicks"]["identity"]
        bound = {"kind": "between", "lower_us": 0, "upper_us": 10_000_000, "bucket_us": 10_000_000}
        assert (identity["keeps"], identity["bound"]) == ("the rows of two streams that may still join", bound)
        right = [["rows", "int64"], ["row.at", "int64"], ["row.user", "int64"]]
        number = described["clicks.right"]["id"]
        kept = {"id": number, "key": key, "columns": right, "unrouted": 2, "times": ["row.at"]}
        assert described["clicks.right"] == kept

    def test_readers_of_the_state_show_the_rows_of_both_streams(self) -> None:
        described = describe_operators(app_of("full").plan())
        left, right = (
            view_of(OperatorState(name, 1, described[name])).schema.names for name in ("clicks", "clicks.right")
        )
        assert left == ["window_end", "row_number", "ad", "rows", "matched", "row.at", "row.site"]
        assert right == ["window_end", "row_number", "ad", "rows", "matched", "row.at", "row.user"]
        for name in ("clicks", "clicks.right"):
            view = view_of(OperatorState(name, 1, described[name]))
            assert view.routed.names == ("ad",) and view.schema.field("row.at").type == TIME


@pytest.mark.continuous("these tests run no job")
class TestRefusals:
    def test_a_join_without_a_bound_is_refused(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at")
        with pytest.raises(hf.ConfigError, match="nothing bounds the state") as refused:
            rows.join("near", rows, on="ad")
        assert "hf.between" in refused.value.next_step
        with pytest.raises(hf.ConfigError, match="both within= and window="):
            rows.join("near", rows, on="ad", within=hf.between("0s", "1s"), window=hf.tumbling("1s"))
        with pytest.raises(hf.ConfigError, match="'1h' is not a bound"):
            rows.join("near", rows, on="ad", within="1h")  # type: ignore[arg-type]

    @pytest.mark.parametrize("bounds", [("1s", "0s"), ("soon", "1s"), ("0s", "999999d"), (None, "1s")])
    def test_invalid_bounds_are_refused(self, bounds: Any) -> None:
        with pytest.raises(hf.ConfigError, match="hf.between|between\\("):
            hf.between(*bounds)

    def test_an_upsert_stream_is_refused_on_either_side(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at")
        counts = rows.key_by("ad").agg("n", n=hf.count())
        for left, right, side in ((counts, rows, "left"), (rows, counts, "right")):
            with pytest.raises(hf.ConfigError, match=f"the {side} stream 'n' replaces rows by ad"):
                left.join("near", right, on="ad", within=hf.between("0s", "1s"))

    def test_streams_without_event_time_or_equal_keys_are_refused(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at")
        untimed = app.source("untimed", PlannedSource(SHOWN))
        text = rows.with_columns(ad=pl.col("ad").cast(pl.String))
        within = hf.between("0s", "1s")
        with pytest.raises(hf.ConfigError, match="the right stream 'untimed' has no event time"):
            rows.join("near", untimed, on="ad", within=within)
        with pytest.raises(hf.ConfigError, match="'ad' is int64 on the left and"):
            rows.join("near", text, on="ad", within=within)
        with pytest.raises(hf.ConfigError, match="'nothing'"):
            rows.join("near", rows, on="nothing", within=within)
        with pytest.raises(hf.ConfigError, match="names no columns"):
            rows.join("near", rows, on=[], within=within)
        with pytest.raises(hf.ConfigError, match="how='outer' is unknown"):
            rows.join("near", rows, on="ad", within=within, how="outer")
        with pytest.raises(hf.ConfigError, match="two columns 'at_right'"):
            renamed = rows.select("ad", "at", at_right="site")
            renamed.join("near", rows, on="ad", within=within)
        with pytest.raises(hf.ConfigError, match="is not a stream of this app"):
            rows.join("near", None, on="ad", within=within)  # type: ignore[arg-type]

    def test_a_full_join_has_no_event_time(self) -> None:
        app = hf.App("ads")
        rows = app.source("shown", PlannedSource(SHOWN), event_time="at")
        joined = rows.join("near", rows, on="ad", within=hf.between("0s", "1s"), how="full")
        with pytest.raises(hf.ConfigError, match="has no event time"):
            joined.key_by("ad").window(hf.tumbling("1s"))
