"""Which changes of a job's code its state survives, and how each one is named before the start."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.checkpoint.manifest import OperatorState
from holdfast.runtime.plan import identity
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.identity import check_against, describe_operators, differences
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.shape import chain_of, shape_of
from holdfast.sinks.memory.sink import MemorySink

UTC = pa.timestamp("us", "UTC")
ORDERS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("k2", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("u", pa.int64(), nullable=False),
        pa.field("at", UTC, nullable=False),
        pa.field("seen", UTC, nullable=False),
    ]
)
Build = Callable[[Any], Any]


def nullable(*names: str, schema: pa.Schema = ORDERS) -> pa.Schema:
    return pa.schema([f.with_nullable(True) if f.name in names else f for f in schema])


def plan_of(build: Build, schema: pa.Schema = ORDERS, event_time: str = "at") -> Plan:
    app = hf.App("orders")
    stream = build(app.source("orders", PlannedSource(schema), event_time=event_time))
    stream.sink("out", MemorySink(key=stream.upsert_key))
    return app.plan()


def sums(column: str = "v", *keys: str) -> Build:
    return lambda stream: stream.key_by(*(keys or ("k",))).agg("totals", total=hf.sum(column))


def kept(plan: Plan) -> Any:
    """What a checkpoint keeps, as JSON."""
    return json.loads(json.dumps(describe_operators(plan)))


def refusal(before: Plan, now: Plan) -> str:
    with pytest.raises(hf.ConfigError) as refused:
        check_against(now, kept(before))
    assert "--drop-state totals" in refused.value.next_step
    return refused.value.what


def allowed(before: Plan, now: Plan) -> list[str]:
    check_against(now, kept(before))
    return [each.what for each in differences(now, kept(before))]


class TestInputOfAnAggregate:
    def test_another_column_of_the_same_type_is_refused(self) -> None:
        what = refusal(plan_of(sums("v")), plan_of(sums("u")))
        assert "input of aggregate 'total' the column 'v' and now has the column 'u'" in what

    def test_another_column_under_the_same_name_is_refused(self) -> None:
        def renamed(column: str) -> Build:
            return lambda stream: sums("x")(stream.with_columns(x=pl.col(column)))

        assert "called 'x'" in refusal(plan_of(renamed("v")), plan_of(renamed("u")))

    def test_the_same_column_under_another_name_is_accepted(self) -> None:
        assert allowed(plan_of(sums("v")), plan_of(lambda s: sums("x")(s.with_columns(x=pl.col("v"))))) == []

    def test_another_expression_is_refused(self) -> None:
        def scaled(by: float) -> Build:
            return lambda stream: sums("x")(stream.with_columns(x=pl.col("v") * by))

        assert allowed(plan_of(scaled(100)), plan_of(scaled(100))) == []
        what = refusal(plan_of(scaled(100)), plan_of(scaled(1_000)))
        assert "computes 'x', the input of aggregate 'total', with a different expression than before" in what

    def test_a_column_that_is_now_computed_is_refused(self) -> None:
        schema, doubled = nullable("v"), lambda s: sums("v")(s.with_columns(v=pl.col("v") * 2))
        what = refusal(plan_of(sums("v"), schema), plan_of(doubled, schema))
        assert "the column 'v' and now has 'v', which an expression computes" in what

    def test_numbers_without_a_json_form_differ(self) -> None:
        def filled(value: float) -> Build:
            return lambda stream: sums("x")(stream.with_columns(x=pl.col("v").fill_null(1) * pl.lit(value)))

        refusal(plan_of(filled(float("nan"))), plan_of(filled(float("inf"))))

    def test_an_expression_over_several_steps_equals_the_single_expression(self) -> None:
        one = plan_of(lambda s: sums("x")(s.with_columns(x=(pl.col("v") + 1) * 2)))
        two = plan_of(
            lambda s: sums("x")(
                s.with_columns(y=pl.col("v") + 1).filter(pl.col("u") > 0).with_columns(x=pl.col("y") * 2)
            )
        )
        assert allowed(one, two) == []

    @pytest.mark.parametrize(
        "second",
        [
            pl.sum_horizontal(pl.col("x") * by for by in range(100)),
            pl.col("x").fill_null(float("nan")).cast(pl.Float64),
        ],
        ids=["long", "nan"],
    )
    def test_the_inputs_of_an_expression_kept_as_a_hash_are_compared_too(self, second: pl.Expr) -> None:
        def computed(by: float, other: int) -> Build:
            return lambda stream: sums("y")(
                stream.with_columns(x=pl.col("v") * by, z=pl.col("u") * other).with_columns(y=second)
            )

        assert "'y', the input of aggregate 'total', with a different expression" in refusal(
            plan_of(computed(2.0, 1)), plan_of(computed(3.0, 1))
        )
        assert allowed(plan_of(computed(2.0, 1)), plan_of(computed(2.0, 5))) == []

    def test_an_expression_serialised_by_another_polars_is_not_known_to_differ(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scaled(by: int) -> Build:
            return lambda stream: sums("x")(stream.with_columns(x=pl.col("v") * by))

        before = plan_of(scaled(2))
        with monkeypatch.context() as patched:
            patched.setattr(identity, "POLARS", "0.1")
            older = kept(before)
        assert differences(before, older) == []
        check_against(plan_of(scaled(3)), older)
        (found,) = differences(plan_of(scaled(3)), older)
        assert "may have another input" in found.what and found.effect is not None

    def test_another_function_over_the_same_column_is_refused(self) -> None:
        highest = plan_of(lambda s: s.key_by("k").agg("totals", total=hf.max("v")))
        assert "sum('v') and now has it as max('v')" in refusal(plan_of(sums("v")), highest)

    def test_another_type_of_the_same_width_in_a_state_column_is_refused(self) -> None:
        def first(column: str) -> Build:
            return lambda stream: stream.key_by("k").agg("totals", total=hf.min(column))

        times = pa.schema([pa.field("v", UTC, nullable=False) if f.name == "v" else f for f in ORDERS])
        assert "of type int64 and now has it as timestamp" in refusal(plan_of(first("v")), plan_of(first("v"), times))

    def test_a_wider_input_of_the_same_sum_is_accepted_and_reported(self) -> None:
        small = pa.schema([pa.field("v", pa.int32(), nullable=False) if f.name == "v" else f for f in ORDERS])
        (what,) = allowed(plan_of(sums("v"), small), plan_of(sums("v")))
        assert "over (v: int32) and now has it over (v: int64)" in what

    def test_an_input_that_became_nullable_is_refused(self) -> None:
        what = refusal(plan_of(sums("v")), plan_of(sums("v"), nullable("v")))
        assert "over (v: int64) and now has it over (v: int64 or null)" in what

    def test_a_count_of_rows_and_a_count_of_values_differ(self) -> None:
        rows, values = (lambda s, c=c: s.key_by("k").agg("totals", n=hf.count(*c)) for c in ((), ("v",)))
        for before, now in ((rows, values), (values, rows)):
            schema = nullable("v")
            assert "aggregate 'n' as count(" in refusal(plan_of(before, schema), plan_of(now, schema))

    def test_a_count_accepts_a_column_that_became_nullable(self) -> None:
        counted: Build = lambda s: s.key_by("k").agg("totals", total=hf.count("v"))
        (what,) = allowed(plan_of(counted), plan_of(counted, nullable("v")))
        assert "or null" in what


class TestTheKey:
    def test_a_key_that_became_nullable_is_refused(self) -> None:
        what = refusal(plan_of(sums("v")), plan_of(sums("v"), nullable("k")))
        assert "had the key (k: int64) and now has (k: int64 or null)" in what

    def test_another_column_under_the_name_of_the_key_is_refused(self) -> None:
        what = refusal(plan_of(sums("v")), plan_of(lambda s: sums("v")(s.with_columns(k=pl.col("k2")))))
        assert "key column the column 'k' and now has the column 'k2', called 'k'" in what


def windows(window: Any, lateness: str = "0s", emit: str = "close") -> Build:
    return lambda s: s.key_by("k").window(window, allowed_lateness=lateness).agg("totals", emit=emit, n=hf.count())


class TestWindows:
    HOUR = hf.tumbling("1h")

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            (windows(hf.tumbling("2h")), r"the windows tumbling\(1h\) and now has tumbling\(2h\)"),
            (windows(hf.tumbling("1h", offset="15m")), r"now has tumbling\(1h, offset=15m\)"),
            (windows(hf.tumbling("1h"), emit="final"), "emit='close' and now has emit='final'"),
            (windows(hf.tumbling("1h"), lateness="5m"), "allowed_lateness 0s and now has 5m"),
        ],
    )
    def test_a_change_that_would_reopen_a_closed_window_is_refused(self, other: Build, says: str) -> None:
        with pytest.raises(hf.ConfigError, match=says):
            check_against(plan_of(other), kept(plan_of(windows(self.HOUR))))

    def test_another_event_time_is_refused(self) -> None:
        what = refusal(plan_of(windows(self.HOUR)), plan_of(windows(self.HOUR), event_time="seen"))
        assert "event time the column 'at' and now has the column 'seen'" in what

    def test_an_event_time_of_another_type_is_refused(self) -> None:
        now = plan_of(windows(self.HOUR))
        before = kept(now)
        before["totals"]["identity"]["window"]["time"]["type"] = "timestamp[ms, tz=UTC]"
        with pytest.raises(hf.ConfigError, match=r"event time \(at: timestamp\[ms, tz=UTC\]\) and now has"):
            check_against(now, before)

    def test_reduced_lateness_is_accepted_and_reported(self) -> None:
        before, now = plan_of(windows(self.HOUR, "10m", "final")), plan_of(windows(self.HOUR, "5m", "final"))
        assert allowed(before, now) == ["operator 'totals' had allowed_lateness 10m and now has 5m"]

    def test_aggregates_with_and_without_windows_differ(self) -> None:
        assert "per window and key" in refusal(plan_of(sums("v")), plan_of(windows(self.HOUR)))
        assert "per window and key" in refusal(plan_of(windows(self.HOUR)), plan_of(sums("v")))


class TestColumnsOfTheState:
    def test_are_compared_even_if_the_identity_is_equal(self) -> None:
        """A version may keep another state for the same aggregate."""
        now = plan_of(sums("v"))
        before = kept(now)
        before["totals"]["columns"][0][1] = "float64"
        with pytest.raises(hf.ConfigError, match="had the state column"):
            check_against(now, before)


class TestTheShape:
    def test_the_shape_of_a_union_does_not_depend_on_the_order_of_its_streams(self) -> None:
        def chain(build: Build) -> Any:
            return chain_of(shape_of(plan_of(build)), "out")

        low: Build = lambda s: s.filter(pl.col("v") < 7)
        high: Build = lambda s: s.filter(pl.col("v") > 8)
        assert chain(lambda s: low(s).union(high(s))) == chain(lambda s: high(s).union(low(s)))
        assert chain(lambda s: low(s).union(high(s))) != chain(lambda s: low(s).union(low(s)))


def states(plan: Plan) -> list[OperatorState]:
    described = kept(plan)
    return [OperatorState(o.name, o.id, described[o.name]) for o in plan.operators]


class TestDroppedState:
    def test_a_changed_operator_starts_empty_under_a_new_number(self) -> None:
        plan, operators = with_identities(plan_of(sums("u")), states(plan_of(sums("v"))), ["totals"])
        assert [(o.name, o.id, o.dropped) for o in operators] == [("totals", 1, True), ("totals", 2, False)]
        assert plan.operator("totals").id == 2

    def test_the_number_of_dropped_state_is_never_reused(self) -> None:
        _, once = with_identities(plan_of(sums("u")), states(plan_of(sums("v"))), ["totals"])
        _, twice = with_identities(plan_of(sums("v")), once, ["totals#2"])
        assert [(o.id, o.dropped) for o in twice] == [(1, True), (2, True), (3, False)]

    def test_the_clock_of_windows_is_kept_for_windows_of_another_size(self) -> None:
        _, operators = with_identities(
            plan_of(windows(hf.tumbling("2h"))), states(plan_of(windows(hf.tumbling("1h")))), ["totals"]
        )
        assert [(o.name, o.id, o.dropped) for o in operators] == [
            ("totals", 1, True),
            ("totals", 3, False),
            ("totals.clock", 2, False),
        ]

    def test_the_clock_is_dropped_with_a_removed_operator(self) -> None:
        other = plan_of(lambda s: s.key_by("k").agg("others", n=hf.count()))
        before = states(plan_of(windows(hf.tumbling("1h"))))
        with pytest.raises(hf.ConfigError, match="state is kept for totals, which") as refused:
            with_identities(other, before, [])
        assert "--drop-state totals" in refused.value.next_step and "clock" not in refused.value.next_step
        _, operators = with_identities(other, before, ["totals"])
        assert [(o.name, o.dropped) for o in operators] == [("totals", True), ("totals.clock", True), ("others", False)]


class TestCheckpointsOfOlderVersions:
    def older(self, plan: Plan) -> dict[str, Any]:
        return {
            name: {part: said for part, said in each.items() if part != "identity"} for name, each in kept(plan).items()
        }

    def test_are_accepted_and_the_unknown_operators_reported(self) -> None:
        before = self.older(plan_of(sums("v")))
        check_against(plan_of(sums("u")), before)
        assert identity.not_known(plan_of(sums("u")), before) == ["totals"]
        assert identity.not_known(plan_of(sums("u")), kept(plan_of(sums("v")))) == []

    def test_are_compared_as_far_as_their_identity_is_known(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"had the key \(k: int64\) and now has \(k2: int64\)"):
            check_against(plan_of(sums("v", "k2")), self.older(plan_of(sums("v"))))
        with pytest.raises(hf.ConfigError, match="had the windows"):
            check_against(plan_of(windows(hf.tumbling("2h"))), self.older(plan_of(windows(hf.tumbling("1h")))))
