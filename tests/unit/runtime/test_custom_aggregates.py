"""Aggregates of the user's own: state by field, errors with key and row, evolution, sessions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from merged_states import merge_states
from planned_source import PlannedSource
from stored_state import store_of, stored

import holdfast as hf
from holdfast.checkpoint.manifest import OperatorState
from holdfast.runtime.functions.aggregation import bound
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.runtime.plan.identity import describe_operators, differences
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable, TableSpec
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@dataclass
class Spread:
    low: int | None = None
    high: int | None = None
    names: str = ""


def add(state: Spread, row: Any) -> Spread:
    if row.v is None:
        return state
    if row.v == 13:
        raise ValueError("thirteen")
    state.low = row.v if state.low is None else min(state.low, row.v)
    state.high = row.v if state.high is None else max(state.high, row.v)
    state.names = "".join(sorted(state.names + "abc"[row.v % 3]))
    return state


def merge(one: Spread, other: Spread) -> Spread:
    lows = [each.low for each in (one, other) if each.low is not None]
    highs = [each.high for each in (one, other) if each.high is not None]
    return Spread(min(lows, default=None), max(highs, default=None), "".join(sorted(one.names + other.names)))


def spread(state: Spread) -> str | None:
    return None if state.low is None else f"{state.low}..{state.high} {state.names}"


SPREAD = hf.Aggregate(Spread, add, merge, spread)


def add_batch(states: pa.RecordBatch, rows: pa.RecordBatch, groups: Any) -> pa.RecordBatch:
    """Do what `add` does, with Polars."""
    values = pl.DataFrame(
        {"group": groups, "v": rows.column("v").to_pylist()}, schema={"group": pl.Int64, "v": pl.Int64}
    )
    new = values.drop_nulls("v").group_by("group").agg(low=pl.col("v").min(), high=pl.col("v").max(), all=pl.col("v"))
    found = pl.DataFrame({"group": range(states.num_rows)}, schema={"group": pl.Int64}).join(
        new, "group", "left", maintain_order="left"
    )
    names = ["".join("abc"[v % 3] for v in each or ()) for each in found["all"].to_list()]
    columns = {"low": found["low"].to_arrow(), "high": found["high"].to_arrow(), "names": names}
    return merge_batches(states, pa.RecordBatch.from_pydict(columns, schema=states.schema))


def merge_batches(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    pairs = zip(one.column("names").to_pylist(), other.column("names").to_pylist(), strict=True)
    columns = {
        "low": pc.min_element_wise(one.column("low"), other.column("low")),
        "high": pc.max_element_wise(one.column("high"), other.column("high")),
        "names": ["".join(sorted(a + b)) for a, b in pairs],
    }
    return pa.RecordBatch.from_pydict(columns, schema=one.schema)


def spread_batch(states: pa.RecordBatch) -> pa.Array:
    return pa.array([spread(Spread(**row)) for row in states.to_pylist()], pa.string())


IN_BATCHES = hf.Aggregate(Spread, add_batch, merge_batches, spread_batch, to=pa.string(), batches=True)
FORMS = pytest.mark.parametrize("own", [SPREAD, IN_BATCHES], ids=["rows", "batches"])


def wanted(values: list[int | None]) -> str | None:
    some = [value for value in values if value is not None]
    return f"{min(some)}..{max(some)} {''.join(sorted('abc'[v % 3] for v in some))}" if some else None


def job(mode: str = "continuous", own: Any = SPREAD, alone: bool = False) -> hf.App:
    app = hf.App("own", key_groups=8, mode=mode)
    rows = app.source("rows", PlannedSource(SCHEMA), event_time="at", idle_after="1h").key_by("k")
    positive = hf.Aggregate(Spread, add, merge, spread, filter=pl.col("v") > 0, columns=["v"])
    aggregates = {"own": own} if alone else {"own": own, "n": hf.count(), "positive": positive}
    rows.agg("totals", **aggregates).sink("totals_out", MemorySink(key=["k"]))
    rows.window(hf.tumbling("10s")).agg("windows", **aggregates).sink("windows_out", MemorySink())
    return app


def row(number: int) -> dict[str, Any]:
    return {"k": number % 3, "v": None if number % 5 == 0 else number % 12 - 3, "at": START + timedelta(seconds=number)}


ROWS = [row(number) for number in range(40)]


def check(rows: list[dict[str, Any]], pushed: list[dict[str, Any]]) -> None:
    for found in rows:
        own = [
            r["v"]
            for r in pushed
            if r["k"] == found["k"]
            and found.get("window_start", r["at"]) <= r["at"] < found.get("window_end", r["at"] + timedelta(1))
        ]
        assert (found["own"], found["n"]) == (wanted(own), len(own))
        assert found["positive"] == wanted([v for v in own if v is not None and v > 0])


class TestState:
    @pytest.mark.parametrize(("mode", "own"), [("continuous", IN_BATCHES), ("microbatch", SPREAD)])
    def test_survives_crashes_and_rewinds(self, mode: str, own: Any) -> None:
        with TestDriver(job(mode, own), parallelism=2) as t:
            t.push("rows", ROWS[:20])
            kept = t.checkpoint()
            t.push("rows", ROWS[20:])
            t.checkpoint()
            t.rewind(kept)
            t.crash()
            t.recover()
            t.finish()
            assert len(t.rows("totals_out")) == 3 and len(t.rows("windows_out")) == 12
            check(t.rows("totals_out"), ROWS)
            check(t.rows("windows_out"), ROWS)

    def test_is_shown_field_by_field_beside_the_results_of_others(self) -> None:
        with TestDriver(job()) as t:
            t.push("rows", ROWS)
            t.checkpoint()
            read = reading_of(stored(store_of(t)), "totals")
            own = ["own.(rows)", "own.low", "own.high", "own.names"]
            assert read.view.schema.names[:6] == ["k", *own, "n"]
            shown = {r["k"]: (r["own.(rows)"], r["n"]) for batch in read.batches() for r in batch.to_pylist()}
            assert shown == {0: (14, 14), 1: (13, 13), 2: (13, 13)}

    @FORMS
    def test_states_of_sessions_are_merged_by_the_function(self, own: Any) -> None:
        of = bound("x", own, SCHEMA, "a test")
        key = KeyType(("k",), (pa.int64(),))
        table = StateTable(TableSpec(1, "kept", key, value_columns([of])), 1)
        folding = Folding("kept", [of], table, "job")
        folding.fold(key.encode([pa.array([0, 1, 2, 1])]), pa.RecordBatch.from_pylist(ROWS[1:5], schema=SCHEMA))
        slots = table.slots(key.encode([pa.array([0, 1, 2])]))
        merge_states(table, folding, slots[1:], np.array([slots[0], slots[0]]))
        [found] = folding.results(slots[:1])
        assert found.to_pylist() == [wanted([r["v"] for r in ROWS[1:5]])]


def plan_of(own: Any) -> Any:
    app = hf.App("evolving")
    rows = app.source("rows", PlannedSource(SCHEMA), event_time="at")
    rows.key_by("k").agg("totals", own=own).sink("out", MemorySink(key=["k"]))
    return app.plan()


def said(before: Any, now: Any) -> list[tuple[str, str | None]]:
    found = differences(plan_of(now), describe_operators(plan_of(before)))
    return [(each.what.removeprefix("operator 'totals' "), each.effect) for each in found]


@dataclass
class Wider:
    low: int | None = None
    high: int | None = None
    names: str = ""
    rows: int = 7


def stating(**fields: tuple[Any, Any]) -> Any:
    """Return an aggregate whose state has a number and these fields, each as (type, default)."""
    given = [("n", int, 0), *((name, kind, default) for name, (kind, default) in fields.items())]
    state: Any = make_dataclass("Stating", [(name, kind, field(default=default)) for name, kind, default in given])
    return hf.Aggregate(state, lambda state, row: state, lambda one, other: one, lambda state: state.n, to=int)


@dataclass(frozen=True)
class Sum:
    rows: int = 0
    total: int = 0


NOTHING = Sum()


def summed(one: Sum, other: Sum) -> Sum:
    return Sum(one.rows + other.rows, one.total + other.total)


class TestSharedInit:
    def test_keys_keep_their_own_states(self) -> None:
        def add_row(state: Sum, row: Any) -> Sum:
            return replace(state, rows=state.rows + 1, total=state.total + row.v)

        own = hf.Aggregate(lambda: NOTHING, add_row, summed, lambda state: f"{state.rows}: {state.total}", to=str)
        with TestDriver(job(own=own, alone=True)) as t:
            for batch in ([(1, 10), (2, 100)], [(1, 1), (2, 1)], [(3, 5)]):
                t.push("rows", [{"k": k, "v": v, "at": START} for k, v in batch])
                t.checkpoint()
            assert {row["k"]: row["own"] for row in t.rows("totals_out")} == {1: "2: 11", 2: "2: 101", 3: "1: 5"}
        assert NOTHING == Sum()

    def test_merged_states_are_those_of_their_keys(self) -> None:
        own = bound("own", hf.Aggregate(lambda: NOTHING, summed, summed, lambda s: s.total, to=int), SCHEMA, "a test")
        states = {name: np.array([1, 1, 1, 0]) for name in ("(rows)", "rows")} | {"total": np.array([10, 100, 1, 0])}
        merged = own.function.combine(states, np.array([0, 1, 0, 2]), 3)
        assert own.function.results(merged).to_pylist() == [11, 100, 0]
        assert NOTHING == Sum()


class TestEvolution:
    def test_other_code_is_reported_and_continues(self) -> None:
        assert said(SPREAD, SPREAD) == []
        [(what, effect)] = said(SPREAD, hf.Aggregate(Spread, lambda state, row: state, merge, spread))
        assert what == "runs other code for aggregate 'own'" and effect is not None

    def test_a_field_may_be_added_and_begins_as_init_has_it(self) -> None:
        before, now = plan_of(SPREAD), plan_of(hf.Aggregate(Wider, add, merge, spread))
        described = json.loads(json.dumps(describe_operators(before)))
        known = [OperatorState(o.name, o.id, described[o.name]) for o in before.operators]
        plan, _ = with_identities(now, known, ())
        late = {column.name: column.late for column in plan.operator("totals").table.columns}
        assert late["own.rows"] and not late["own.low"]
        of = bound("own", hf.Aggregate(Wider, add, merge, spread), SCHEMA, "a test")
        kept = {
            "(rows)": np.array([3, 0]),
            "low": pa.array([1, None], pa.int64()),
            "high": pa.array([2, None], pa.int64()),
        }
        kept |= {"names": pa.array(["ab", None], pa.large_utf8()), "rows": pa.array([None, None], pa.int64())}
        assert of.function._instances(kept) == [Wider(1, 2, "ab", 7), Wider()]  # type: ignore[attr-defined]
        in_batches = hf.Aggregate(Wider, add_batch, merge_batches, spread_batch, to=pa.string(), batches=True)
        of = bound("own", in_batches, SCHEMA, "a test")
        [first, second] = of.function._batch(kept).to_pylist()  # type: ignore[attr-defined]
        assert (Wider(**first), Wider(**second)) == (Wider(1, 2, "ab", 7), Wider())

    def test_fields_that_come_and_go_are_reported(self) -> None:
        wider = hf.Aggregate(Wider, add, merge, spread)
        assert said(SPREAD, wider) == [
            ("has new fields in the state of aggregate 'own': rows", "they begin as init() has them")
        ]
        assert said(wider, SPREAD) == [
            ("no longer has the fields rows in the state of aggregate 'own'", "their values are not read")
        ]

    @pytest.mark.parametrize(
        ("field", "what"),
        [
            (
                (datetime, START),
                "had the field 'x' in the state of aggregate 'own' of type int64 and now has it as time",
            ),
            ((str, ""), "of type int64 and now has it as string"),
            (
                (int | None, 5),
                "allows null in the field 'x' in the state of aggregate 'own' now, which init() sets to 5",
            ),
        ],
    )
    def test_a_field_whose_kept_values_would_be_misread_is_refused(self, field: Any, what: str) -> None:
        [(refused, effect)] = said(stating(x=(int, 0)), stating(x=field))
        assert what in refused and effect is None

    def test_a_decimal_of_another_scale_is_refused(self) -> None:
        prices = [Annotated[Decimal, pa.decimal128(10, scale)] for scale in (2, 4)]
        [(refused, effect)] = said(*(stating(x=(price, Decimal(0))) for price in prices))
        assert "of type decimal128(10, 2) and now has it as decimal128(10, 4)" in refused and effect is None

    def test_a_field_that_could_be_null_may_not_forbid_it(self) -> None:
        [(refused, effect)] = said(stating(x=(int | None, 0)), stating(x=(int, 0)))
        assert "which could be null and now cannot" in refused and effect is None

    def test_a_field_may_allow_null_if_it_begins_as_null(self) -> None:
        assert [effect for _, effect in said(stating(x=(int, 0)), stating(x=(int | None, None)))] == [
            "the kept state is read unchanged; where it has no value yet, it is null",
            "a key that has a value keeps it; all others begin as init() has it now",
        ]

    def test_a_new_field_that_may_be_null_has_to_begin_as_null(self) -> None:
        [(refused, effect)] = said(stating(), stating(x=(int | None, 5)))
        assert "has the new field 'x'" in refused and "init() sets to 5" in refused and effect is None
        assert said(stating(), stating(x=(int | None, None)))[0][1] == "they begin as init() has them"

    def test_another_value_in_init_is_reported(self) -> None:
        assert said(stating(x=(int, 5)), stating(x=(int, 6))) == [
            (
                "sets the field 'x' in the state of aggregate 'own' to 6 in init(), which set it to 5",
                "a key that has a value keeps it; all others begin as init() has it now",
            )
        ]


class TestErrors:
    def failing(self, own: Any) -> str:
        with TestDriver(job(own=own, alone=True)) as t, pytest.raises(hf.JobFailed) as failed:
            t.push("rows", [ROWS[1], {"k": 2, "v": 13, "at": START}])
            t.checkpoint()
        return failed.value.what

    def test_an_aggregate_error_names_function_operator_key_row_and_line(self) -> None:
        what = self.failing(SPREAD)
        assert "aggregate own = Aggregate() of operator 'totals' failed: add raised ValueError: thirteen at" in what
        assert "test_custom_aggregates.py:" in what and "for the row Row(k=2, v=13" in what
        assert what.endswith("for the key '2'")

    def test_a_forgotten_return_is_named(self) -> None:
        assert "returned None, not a state" in self.failing(hf.Aggregate(Spread, lambda s, r: None, merge, spread))

    def test_a_state_that_does_not_fit_is_named(self) -> None:
        wrong = hf.Aggregate(Spread, lambda s, r: Spread("low"), merge, spread)  # type: ignore[arg-type]
        assert "cannot be kept: column 'low' takes int64, not str 'low'" in self.failing(wrong)

    def test_a_result_that_does_not_fit_is_named(self) -> None:
        wrong = hf.Aggregate(Spread, lambda s, r: s, merge, lambda s: 1.5, to=str)
        assert "cannot be given: column 'result' takes string, not float 1.5" in self.failing(wrong)

    def test_a_batch_that_does_not_fit_is_named(self) -> None:
        wrong = hf.Aggregate(Spread, lambda s, r, g: s.slice(1), merge_batches, spread_batch, to=str, batches=True)
        assert "cannot be kept: column 'low' has 1 values instead of 2" in self.failing(wrong)
        wrong = hf.Aggregate(Spread, add_batch, merge_batches, lambda s: 5, to=str, batches=True)
        assert "cannot be given: column 'result'" in self.failing(wrong)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: hf.Aggregate(Spread, add, merge), "result is missing"),
            (lambda: hf.Aggregate(Spread, add, merge, 5), "result is 5, which is not a function"),  # type: ignore[arg-type]
            (
                lambda: hf.Aggregate(int, add, merge, spread),
                r"init\(\) returns 0, which is not an instance of a dataclass",
            ),
            (lambda: hf.Aggregate(Spread, add, merge, lambda s: 1), "the type of what lambda returns is not known"),
            (lambda: plan_of(hf.Aggregate(Spread, add, merge, spread, columns=["w"])), "there is no column 'w'"),
        ],
    )
    def test_wrong_arguments_are_refused(self, call: Any, message: str) -> None:
        with pytest.raises(hf.ConfigError, match=message):
            call()
