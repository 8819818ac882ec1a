"""Changes of an operator's aggregates that its state survives: accepted, refused, and how they are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.checkpoint.manifest import OperatorState, decode, encode
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.identity import describe_operators, differences
from holdfast.runtime.plan.kept_state import lost_since, with_identities
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.spec import ColumnSpec
from holdfast.storage.objects import LocalObjects

FIELDS = [("k", pa.int32()), ("v", pa.int32()), ("u", pa.int64()), ("f", pa.float32())]
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in FIELDS])
TIMED = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC"), nullable=False))


def widened(**types: pa.DataType) -> pa.Schema:
    return pa.schema([f.with_type(types.get(f.name, f.type)) for f in TIMED])


def plan_of(schema: pa.Schema = TIMED, window: Any = None, **aggregates: Any) -> Plan:
    app = hf.App("evolving")
    keyed = app.source("orders", PlannedSource(schema), event_time="at").key_by("k")
    stream = keyed.agg("totals", **aggregates) if window is None else keyed.window(window).agg("totals", **aggregates)
    stream.sink("out", MemorySink(key=stream.upsert_key))
    return app.plan()


def states(plan: Plan) -> list[OperatorState]:
    """What a checkpoint of this plan keeps, as JSON."""
    described = json.loads(json.dumps(describe_operators(plan)))
    return [OperatorState(o.name, o.id, described[o.name]) for o in plan.operators]


def evolved(*plans: Plan, drop: Sequence[str] = ()) -> Plan:
    """The last of these plans, each started from a checkpoint of the one before; `drop` belongs to the last start."""
    known: Sequence[OperatorState] = ()
    for plan in plans:
        plan, known = with_identities(plan, known, drop if plan is plans[-1] else ())
        known = [OperatorState(o.name, o.id, json.loads(json.dumps(o.schema)), o.dropped) for o in known]
    return plan


def ids(plan: Plan) -> dict[str, str]:
    return {column.name: column.id for column in plan.operator("totals").table.columns}


def said(before: Plan, now: Plan) -> list[tuple[str, str | None]]:
    found = differences(now, {each.name: each.schema for each in states(before)})
    return [(each.what.removeprefix("operator 'totals' "), each.effect) for each in found]


def refusal(*plans: Plan, drop: Sequence[str] = ()) -> hf.ConfigError:
    with pytest.raises(hf.ConfigError) as refused:
        evolved(*plans, drop=drop)
    return refused.value


N, TOTAL = plan_of(n=hf.count()), plan_of(n=hf.count(), total=hf.sum("v"))


class TestAddedAggregate:
    def test_starts_from_now_as_the_plan_shows(self) -> None:
        ((what, effect),) = said(N, TOTAL)
        assert what == "has the new aggregate 'total' = sum('v')"
        assert effect is not None and "starts from now" in effect
        plan = evolved(N, TOTAL)
        assert [column.late for column in plan.operator("totals").table.columns] == [False, True]

    def test_to_windows_may_be_a_count_or_null(self) -> None:
        window, maybe = hf.tumbling("1h"), TIMED.set(1, TIMED.field("v").with_nullable(True))
        before = plan_of(maybe, window, n=hf.count())
        ((_, effect),) = said(before, plan_of(maybe, window, n=hf.count(), m=hf.count("v")))
        assert effect is not None and "windows that are open" in effect
        evolved(before, plan_of(maybe, window, n=hf.count(), low=hf.min("v")))

    @pytest.mark.parametrize("function", [hf.sum, hf.min, hf.max, hf.mean])
    def test_to_windows_that_cannot_be_null_is_refused(self, function: Any) -> None:
        window = hf.tumbling("1h")
        error = refusal(plan_of(window=window, n=hf.count()), plan_of(window=window, n=hf.count(), x=function("v")))
        assert "operator 'totals' has the new aggregate 'x'" in error.what and "cannot be null" in error.what

    def test_to_windows_is_accepted_with_the_flag_that_the_refusal_names(self) -> None:
        def built(**aggregates: Any) -> Plan:
            app = hf.App("evolving")
            rows = app.source("orders", PlannedSource(TIMED), event_time="at")
            rows = rows.with_columns(v=pl.coalesce(pl.col("v")))
            stream = rows.key_by("k").window(hf.tumbling("1h")).agg("totals", **aggregates)
            stream.sink("out", MemorySink(key=stream.upsert_key))
            return app.plan()

        assert built(low=hf.min("v")).sinks[0].schema.field("low").nullable
        evolved(built(n=hf.count()), built(n=hf.count(), low=hf.min("v")))


class TestRemovedAggregate:
    def test_is_refused_and_both_alternatives_are_named(self) -> None:
        error = refusal(TOTAL, N)
        assert "operator 'totals' no longer has the aggregate 'total' = sum('v')" in error.what
        assert "NEW=hf.sum('v').was('total')" in error.next_step and "--drop-state totals.total" in error.next_step

    def test_is_accepted_once_its_state_is_dropped(self) -> None:
        plan = evolved(TOTAL, N, drop=["totals.total"])
        assert ids(plan) == {"n.count": "n.count"} and plan.operator("totals").table.past == ("total.sum",)

    def test_a_removed_aggregate_that_is_added_again_does_not_read_its_old_state(self) -> None:
        known = with_identities(TOTAL, (), ())[1]
        known = with_identities(N, known, ["totals.total"])[1]
        plan, known = with_identities(TOTAL, known, ())
        assert ids(plan)["total.sum"] == "total.sum#2"
        known = with_identities(N, known, ["totals.total"])[1]
        assert ids(with_identities(TOTAL, known, ())[0])["total.sum"] == "total.sum#3"

    def test_must_exist_in_the_checkpoint_to_be_dropped(self) -> None:
        error = refusal(TOTAL, N, drop=["totals.totle"])
        assert "no state is kept for totals.totle" in error.what
        assert "totals has state for n, total" in error.next_step

    def test_can_be_dropped_with_its_whole_operator(self) -> None:
        assert evolved(TOTAL, N, drop=["totals"]).operator("totals").id == 2


class TestRenamedAggregate:
    def test_keeps_its_state_by_its_id(self) -> None:
        now = plan_of(n=hf.count(), turnover=hf.sum("v").was("total"))
        assert ("has the aggregate 'total' under the name 'turnover' now", "its state is kept") in said(TOTAL, now)
        assert ids(evolved(TOTAL, now)) == {"n.count": "n.count", "turnover.sum": "total.sum"}

    def test_may_keep_its_was_clause(self) -> None:
        now = plan_of(n=hf.count(), turnover=hf.sum("v").was("total"))
        assert ids(evolved(TOTAL, now, now))["turnover.sum"] == "total.sum"
        assert said(evolved(TOTAL, now), now) == []

    def test_renamed_twice_keeps_its_state(self) -> None:
        first, second = plan_of(a=hf.count()), plan_of(b=hf.count().was("a"))
        third = plan_of(c=hf.count().was("b"), a=hf.count())
        assert ids(evolved(first, second, third)) == {"c.count": "a.count", "a.count": "a.count#2"}

    def test_keeps_its_count_of_values_too(self) -> None:
        now = plan_of(average=hf.mean("v").was("m"))
        assert ids(evolved(plan_of(m=hf.mean("v")), now)) == {"average.mean": "m.mean", "average.seen": "m.seen"}

    def test_without_a_was_clause_is_refused(self) -> None:
        error = refusal(TOTAL, plan_of(n=hf.count(), turnover=hf.sum("v")))
        assert "no longer has the aggregate 'total'" in error.what

    def test_must_be_otherwise_unchanged(self) -> None:
        error = refusal(TOTAL, plan_of(n=hf.count(), turnover=hf.max("v").was("total")))
        assert "had aggregate 'turnover' as sum('v') and now has it as max('v')" in error.what
        assert "--drop-state totals.total" in error.next_step

    @pytest.mark.parametrize(
        "aggregates",
        [{"n": hf.count(), "m": hf.count().was("n")}, {"a": hf.count().was("n"), "b": hf.count().was("n")}],
    )
    def test_must_claim_a_name_that_is_not_in_use(self, aggregates: Any) -> None:
        with pytest.raises(hf.ConfigError, match="continues the state of 'n'"):
            plan_of(**aggregates)
        with pytest.raises(hf.ConfigError, match="continues the state of 'n'"):
            plan_of(window=hf.tumbling("1h"), **aggregates)


class TestChangedAggregate:
    @pytest.mark.parametrize("changed", [hf.max("v"), hf.sum("u"), hf.count()])
    def test_is_refused_until_its_state_is_dropped(self, changed: Any) -> None:
        now = plan_of(n=hf.count(), total=changed)
        assert "--drop-state totals.total" in refusal(TOTAL, now).next_step
        found = ids(evolved(TOTAL, now, drop=["totals.total"]))
        assert found["n.count"] == "n.count" and "total.sum" not in found.values()

    def test_in_order_only_keeps_the_state_of_each(self) -> None:
        now = plan_of(total=hf.sum("v"), n=hf.count())
        ((what, _),) = said(TOTAL, now)
        assert what == "had the aggregates in the order n, total and now has total, n"
        assert ids(evolved(TOTAL, now)) == {"total.sum": "total.sum", "n.count": "n.count"}


class TestWiderType:
    @pytest.mark.parametrize(("column", "wide"), [("v", pa.int64()), ("f", pa.float64())])
    def test_an_extreme_of_a_wider_type_keeps_its_state(self, column: str, wide: pa.DataType) -> None:
        before = plan_of(low=hf.min(column), high=hf.max(column))
        now = plan_of(widened(**{column: wide}), low=hf.min(column), high=hf.max(column))
        assert (
            f"had aggregate 'low' of type {SCHEMA.field(column).type} and now has it as {wide}" in said(before, now)[0]
        )
        assert ids(evolved(before, now)) == {"low.min": "low.min", "high.max": "high.max"}

    @pytest.mark.parametrize(("column", "other"), [("u", pa.int32()), ("v", pa.float64()), ("v", pa.uint64())])
    def test_an_extreme_of_another_kind_of_type_is_refused(self, column: str, other: pa.DataType) -> None:
        now = plan_of(widened(**{column: other}), low=hf.min(column))
        assert "had aggregate 'low' of type" in refusal(plan_of(low=hf.min(column)), now).what

    def test_a_key_of_a_wider_type_keeps_the_state(self) -> None:
        before, now = plan_of(n=hf.count()), plan_of(widened(k=pa.int64()), n=hf.count())
        assert "had the key (k: int32) and now has (k: int64)" in said(before, now)[0]
        evolved(before, now)
        assert "had the key" in refusal(now, before).what
        assert "had the key" in refusal(before, plan_of(widened(k=pa.uint64()), n=hf.count())).what

    def test_is_refused_if_the_state_does_not_distinguish_a_default_from_a_value(self) -> None:
        first, added = plan_of(n=hf.count()), plan_of(n=hf.count(), low=hf.min("v"))
        now = plan_of(widened(v=pa.int64()), n=hf.count(), low=hf.min("v"))
        assert "does not distinguish a value from no value" in refusal(first, added, now).what
        evolved(added, now)  # since the first checkpoint, every key has a value


class TestAColumnThatIsNotPlain:
    """Columns of state behind what an identity accepts, given to the plan by hand: aggregates fix theirs."""

    NOTE, BLOB = ColumnSpec("m.max", pa.utf8(), nullable=True), ColumnSpec("m.max", pa.binary(), nullable=True)
    TEXT, INT = ColumnSpec("m.max", pa.utf8()), ColumnSpec("m.max", np.dtype(np.int32))
    NULLABLE, WIDE = (ColumnSpec("m.max", np.dtype(kind), nullable=True) for kind in (np.int32, np.int64))

    def of(self, column: ColumnSpec) -> Plan:
        plan = plan_of(m=hf.max("v"))
        [operator] = plan.operators
        return replace(plan, operators=(replace(operator, table=replace(operator.table, columns=(column,))),))

    @pytest.mark.parametrize("change", [(INT, NULLABLE), (INT, WIDE), (TEXT, NOTE)], ids=str)
    def test_may_become_nullable_and_plan_names_it(self, change: tuple[ColumnSpec, ColumnSpec]) -> None:
        before, now = change
        assert said(self.of(before), self.of(now)) == [
            (
                f"had the state column 'm.max': {before.type_name} and now has 'm.max': {now.type_name}",
                "the kept state is read unchanged",
            )
        ]

    @pytest.mark.parametrize(
        "change", [(NULLABLE, INT), (NOTE, TEXT), (NOTE, BLOB), (NOTE, NULLABLE), (INT, NOTE)], ids=str
    )
    def test_does_not_change_otherwise(self, change: tuple[ColumnSpec, ColumnSpec]) -> None:
        before, now = change
        [(what, effect)] = said(self.of(before), self.of(now))
        assert effect is None and f"{before.type_name} and now has 'm.max': {now.type_name}" in what

    def test_makes_a_manifest_that_earlier_versions_refuse(self) -> None:
        assert [version_of(self.of(column)) for column in (self.INT, self.NULLABLE, self.TEXT)] == [1, 3, 3]


def version_of(plan: Plan) -> int:
    """The version of a manifest that records the state of a plan."""
    repository = Repository(LocalObjects(str(Path(__file__).parents[2] / "formats" / "checkpoint_v1")))
    job = repository.read_log()
    assert job is not None
    kept = repository.load_manifest(next(iter(job.completed)).body.manifest)
    data = encode(msgspec.structs.replace(kept, operators=tuple(states(plan))))
    assert decode(data, next(iter(job.completed)).body.manifest).operators == tuple(states(plan))
    version = json.loads(data)["v"]
    assert isinstance(version, int)
    return version


class TestRewindOfARunningJob:
    def test_is_possible_across_an_addition_but_not_across_a_removal(self) -> None:
        first = with_identities(TOTAL, (), ())[1]
        added = with_identities(plan_of(n=hf.count(), total=hf.sum("v"), m=hf.count()), first, ())[1]
        removed = with_identities(N, first, ["totals.total"])[1]
        assert lost_since(first, added) is None
        assert lost_since(first, removed) == "operator 'totals' has dropped, with total.sum, a part of"
        assert lost_since(removed, removed) is None
