"""Every registered aggregate in a job: through crashes, rewinds and rescaling, in windows, in readers of the state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import aggregate_oracles as oracles
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from job_player import rescale
from planned_source import PlannedSource
from stored_state import store_of, stored

import holdfast as hf
from holdfast.runtime.functions.aggregation import bound
from holdfast.runtime.functions.contract import CannotFold
from holdfast.runtime.functions.decimals import DecimalSum
from holdfast.runtime.functions.registry import KINDS
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.runtime.plan.identity import describe_operators, differences
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable, TableSpec
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("by", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
POSITIVE: Any = {"filter": pl.col("v") > 0}
CALLS = oracles.CALLS | {f"{name}_if": lambda name=name: oracles.CALLS[name](**POSITIVE) for name in oracles.CALLS}


def job(mode: str = "continuous") -> hf.App:
    app = hf.App("all", key_groups=8, mode=mode)
    rows = app.source("rows", PlannedSource(SCHEMA), event_time="at", idle_after="1h").key_by("k")
    aggregates = {name: call() for name, call in CALLS.items()}
    rows.agg("totals", **aggregates).sink("totals_out", MemorySink(key=["k"]))
    rows.window(hf.tumbling("10s")).agg("windows", emit="final", **aggregates).sink("windows_out", MemorySink())
    return app


def row(number: int) -> dict[str, Any]:
    value = None if number % 5 == 0 else number * 7 % 11 - 3
    by = None if number % 7 == 0 else "abc"[number % 3] * (number % 4 + 1)
    return {"k": number % 3, "v": value, "by": by, "at": START + timedelta(seconds=number % 25)}


ROWS = [row(number) for number in range(60)]


def by_order(kind: pa.DataType, values: list[float]) -> dict[str, Any]:
    """Return the aggregates of floats that arrive in this order, each in an epoch of its own."""
    app = hf.App("zeros", key_groups=8)
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("x", kind), pa.field("n", pa.int64())])
    rows = app.source("rows", PlannedSource(schema)).key_by("k")
    names: dict[str, Any] = {
        "low": hf.min("x"),
        "high": hf.max("x"),
        "first": hf.first("x", by="n"),
        "last": hf.last("x", by="n"),
    }
    more: dict[str, Any] = {"top": hf.top("x", 1, by="n"), "by_zero": hf.first("n", by="x"), "sum": hf.sum("x")}
    rows.agg("totals", **names, **more).sink("out", MemorySink(key=["k"]))
    with TestDriver(app, parallelism=1) as t:
        for number, value in enumerate(values):
            t.push("rows", [{"k": 1, "x": value, "n": 7}], partition=number)
            t.checkpoint()
        return t.rows("out")[0]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_zeros_of_both_signs_are_one_value_in_every_order(kind: pa.DataType) -> None:
    found = [by_order(kind, values) for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0], [0.0])]
    assert {repr(sorted(each.items())) for each in found} == {repr(sorted(found[3].items()))}


def check(found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    for name in CALLS:
        function = name.removesuffix("_if")
        needs_by = function in ("first", "last", "top")
        counted = [
            (r["v"], r["by"])
            for r in rows
            if r["v"] is not None and not (needs_by and r["by"] is None) and (r["v"] > 0 or function == name)
        ]
        wanted = oracles.expected(function, counted)
        assert oracles.same(function, found[name], wanted), (name, found[name], wanted)


def check_totals(rows: list[dict[str, Any]], pushed: list[dict[str, Any]]) -> None:
    assert {found["k"] for found in rows} == {each["k"] for each in pushed}
    for found in rows:
        check(found, [each for each in pushed if each["k"] == found["k"]])


class TestEveryAggregate:
    @pytest.mark.parametrize(("mode", "seed"), [("continuous", 0), ("microbatch", 1)])
    def test_survives_crashes_rewinds_and_rescaling(self, mode: str, seed: int) -> None:
        with TestDriver(job(mode), parallelism=2, seed=seed) as t:
            t.watermark("rows", START - timedelta(days=1))  # only the end moves time
            t.push("rows", ROWS[:20])
            kept = t.checkpoint()
            t.push("rows", ROWS[20:40])
            t.crash()
            t.recover()
            t.checkpoint()
            check_totals(t.rows("totals_out"), ROWS[:40])
            t.rewind(kept)
            t.checkpoint()
            rescale(t, 3)
            t.advance("1s")
            t.push("rows", ROWS[40:])
            t.finish()
            check_totals(t.rows("totals_out"), ROWS)
            windows = t.rows("windows_out")
            assert len(windows) == 9
            for found in windows:
                inside = [r for r in ROWS if found["window_start"] <= r["at"] < found["window_end"]]
                check(found, [each for each in inside if each["k"] == found["k"]])

    def test_is_shown_by_its_value_to_readers_of_the_state(self) -> None:
        with TestDriver(job()) as t:
            t.push("rows", ROWS)
            t.checkpoint()
            read = reading_of(stored(store_of(t)), "totals")
            assert read.view.schema.names == ["k", *CALLS]
            check_totals([each for batch in read.batches() for each in batch.to_pylist()], ROWS)
            read = reading_of(stored(store_of(t)), "windows")
            for found in (each for batch in read.batches() for each in batch.to_pylist()):
                inside = [r for r in ROWS if found["window_start"] <= r["at"] < found["window_end"]]
                check(found, [each for each in inside if each["k"] == found["k"]])

    def test_a_changed_function_parameter_or_filter_is_refused(self) -> None:
        for name in KINDS:
            assert said(oracles.CALLS[name](), oracles.CALLS[name]()) == []
            [(_, effect)] = said(oracles.CALLS[name](), oracles.CALLS[name](**POSITIVE))
            assert effect is None
        [(what, effect)] = said(hf.quantile("v", 0.5), hf.quantile("v", 0.6))
        assert "as quantile('v', q=0.5) and now has it as quantile('v', q=0.6)" in what and effect is None
        assert said(hf.first("v"), hf.first("v", by="by"))[0][1] is None


def plan_of(aggregate: Any, column: str = "v", schema: pa.Schema = SCHEMA) -> Any:
    app = hf.App("changed")
    rows = app.source("rows", PlannedSource(schema), event_time="at")
    if column != "v":
        rows = rows.with_columns(pl.col("v").alias(column))
    rows.key_by("k").agg("totals", x=aggregate).sink("out", MemorySink(key=["k"]))
    return app.plan()


def takes_times(name: str) -> bool:
    """Return whether a function takes points in time."""
    inputs = [pa.field("v", pa.timestamp("s")), pa.field("by", pa.string())]
    return oracles.CALLS[name]().kind.over(inputs, True) is not None


def said(before: Any, now: Any, column: str = "v") -> list[tuple[str, str | None]]:
    found = differences(plan_of(now, column), describe_operators(plan_of(before)))
    return [(each.what.removeprefix("operator 'totals' "), each.effect) for each in found]


class TestTypes:
    @pytest.mark.parametrize("name", sorted(KINDS))
    def test_values_kept_as_they_are_are_not_read_as_another_type(self, name: str) -> None:
        """Seconds and milliseconds have equal words, and so do their sets, sketches and lists."""
        plans = [
            plan_of(oracles.CALLS[name](), schema=SCHEMA.set(1, pa.field("v", pa.int64())).set(2, pa.field("by", kind)))
            for kind in (pa.timestamp("s"), pa.timestamp("ms"))
        ]
        effects = [each.effect for each in differences(plans[1], describe_operators(plans[0]))]
        assert effects == ([None] if name in ("first", "last", "top") else [])
        if not takes_times(name):
            return
        plans = [
            plan_of(oracles.CALLS[name](), schema=SCHEMA.set(1, pa.field("v", kind)))
            for kind in (pa.timestamp("s"), pa.timestamp("ms"))
        ]
        effects = [each.effect for each in differences(plans[1], describe_operators(plans[0]))]
        assert (None in effects) == (name != "count")


class TestFilters:
    def test_another_condition_is_refused(self) -> None:
        before, now = hf.count(filter=pl.col("v") > 0), hf.count(filter=pl.col("v") > 1)
        [(what, effect)] = said(before, now)
        assert effect is None and "with a different expression than before" in what and "filter= of" in what

    def test_a_renamed_column_in_a_condition_is_the_same_column(self) -> None:
        before, now = hf.count(filter=pl.col("v") > 0), hf.count(filter=pl.col("value") > 0)
        assert said(before, now, column="value") == []

    def test_a_version_without_filters_takes_a_filtered_aggregate_for_another_function(self) -> None:
        [kept] = describe_operators(plan_of(hf.sum("v", **POSITIVE)))["totals"]["identity"]["aggregates"]
        assert kept["function"] == "sum where" not in KINDS

    def test_a_condition_over_several_rows_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"filter= of x: .*looks at more than one row"):
            plan_of(hf.count(filter=pl.col("v") > pl.col("v").mean()))

    def test_a_condition_over_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"filter= of x"):
            plan_of(hf.count(filter=pl.col("w") > 0))

    def test_a_constant_condition_holds_for_every_row_or_none(self) -> None:
        app = hf.App("constant")
        rows = app.source("rows", PlannedSource(SCHEMA)).key_by("k")
        stream = rows.agg("totals", all=hf.count(filter=pl.lit(True)), none=hf.sum("v", filter=pl.lit(False)))
        stream.sink("out", MemorySink(key=["k"]))
        with TestDriver(app) as t:
            t.push("rows", ROWS[:6])
            t.checkpoint()
            assert sorted((r["k"], r["all"], r["none"]) for r in t.rows("out")) == [
                (0, 2, None),
                (1, 2, None),
                (2, 2, None),
            ]


@pytest.fixture
def prices() -> hf.App:
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("p", pa.decimal128(38, 2), nullable=False)]
    app = hf.App("prices")
    rows = app.source("rows", PlannedSource(pa.schema(fields)))
    rows.key_by("k").agg("totals", total=hf.sum("p"), mean=hf.mean("p")).sink("out", MemorySink(key=["k"]))
    return app


class TestErrors:
    def test_a_decimal_sum_beyond_38_digits_fails_and_names_the_key(self, prices: hf.App) -> None:
        largest = Decimal(f"{'9' * 36}.99")
        with TestDriver(prices) as t:
            t.push(
                "rows", [{"k": 1, "p": largest}, {"k": 2, "p": Decimal("0.01")}, {"k": 2, "p": largest.copy_negate()}]
            )
            t.checkpoint()
            assert {r["k"]: r["total"] for r in t.rows("out")} == {1: largest, 2: Decimal(f"-{'9' * 36}.98")}
            with pytest.raises(
                hf.JobFailed, match=r"total = sum\('p'\) .* does not fit into 38 digits for the key '1'"
            ):
                t.push("rows", [{"k": 2, "p": Decimal("0.01")}, {"k": 1, "p": Decimal("0.01")}])

    @pytest.mark.parametrize("sign", ["", "-"])
    def test_decimal_sums_of_exactly_38_digits_fit(self, sign: str) -> None:
        kind = pa.decimal128(38, 0)
        largest, one = Decimal(f"{sign}{'9' * 38}"), Decimal(f"{sign}1")
        total = DecimalSum(kind)
        held = total.partial([pa.array([largest], kind)], np.array([0]), 1)
        assert total.results(held).to_pylist() == [largest]
        with pytest.raises(CannotFold, match="38 digits"):
            total.fold(held, [pa.array([one], kind)], np.array([0]))
        less = total.fold(held, [pa.array([one.copy_negate()], kind)], np.array([0]))
        assert total.results(less).to_pylist() == [Decimal(f"{sign}{'9' * 37}8")]

    def test_a_list_longer_than_its_limit_fails_and_names_the_key(self) -> None:
        app = hf.App("lists")
        rows = app.source("rows", PlannedSource(SCHEMA)).key_by("k")
        rows.agg("lists", all=hf.collect("v", max=2)).sink("out", MemorySink(key=["k"]))
        with (
            TestDriver(app) as t,
            pytest.raises(
                hf.JobFailed, match=r"all = collect\('v', max=2\) .* has more than max=2 values for the key '1'"
            ),
        ):
            t.push("rows", [ROWS[1], ROWS[4], ROWS[7]])

    def test_a_batch_that_does_not_fit_one_aggregate_changes_none(self) -> None:
        schema = SCHEMA.remove(3).remove(2)
        several = [("n", hf.count()), ("low", hf.min("v")), ("set", hf.distinct("v")), ("all", hf.collect("v", max=2))]
        bounds = [bound(name, each, schema, "a test") for name, each in several]
        key = KeyType(("k",), (pa.int64(),))
        table = StateTable(TableSpec(1, "kept", key, value_columns(bounds)), 1)
        folding = Folding("kept", bounds, table, "job")
        good = pa.RecordBatch.from_pydict({"k": [1, 2], "v": [5, 6]}, schema=schema)
        unfit = pa.RecordBatch.from_pydict({"k": [2, 1, 1], "v": [1, 2, 3]}, schema=schema)
        slots = folding.fold(key.encode([good.column("k")]), good)
        with pytest.raises(hf.JobFailed, match=r"max=2 values for the key '1'"):
            folding.fold(key.encode([unfit.column("k")]), unfit)
        found = [array.to_pylist() for array in folding.results(slots)]
        assert found == [[1, 1], [5, 6], [1, 1], [[5], [6]]]

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: hf.var("v", ddof=2), "ddof is neither 0 nor 1"),
            (lambda: hf.top("v", 0), "k is not between 1 and 10,000"),
            (lambda: hf.collect("v", max=0), "max is not between 1 and 1,000,000"),
            (lambda: hf.quantile("v", 1.5), "q is not between 0 and 1"),
            (lambda: hf.last("v", by=3), "an aggregate takes the name of a column"),  # type: ignore[arg-type]
            (lambda: plan_of(hf.first("v", by="w")), "there is no column 'w'"),
        ],
    )
    def test_wrong_arguments_are_refused(self, call: Any, message: str) -> None:
        with pytest.raises(hf.ConfigError, match=message):
            call()

    def test_first_without_by_needs_an_event_time(self) -> None:
        app = hf.App("timeless")
        with pytest.raises(hf.ConfigError, match=r"first\('v'\) has no by=, and the stream has no event time"):
            app.source("rows", PlannedSource(SCHEMA)).key_by("k").agg("totals", x=hf.first("v"))
