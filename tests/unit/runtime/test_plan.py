"""How an app becomes fragments and edges, and how operators keep their identity."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource
from pyspark import cloudpickle

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.operators.aggregates.aggregate import Aggregate
from holdfast.runtime.operators.chain import Filter, Project
from holdfast.runtime.operators.contract import INPUT
from holdfast.runtime.operators.exchange import Exchange
from holdfast.runtime.operators.sink import SinkStep
from holdfast.runtime.plan.compiler import (
    Plan,
    assign_operator_ids,
    check_against,
    describe,
    describe_operators,
    render,
    with_operator_ids,
)
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.memory.sink import MemorySink
from holdfast.traits import SinkTraits

BIDS = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


@dataclass(frozen=True)
class Anywhere(Sink):
    """A sink that takes everything and can be shipped."""

    key: tuple[str, ...] | None = None
    where = "anywhere"
    traits = SinkTraits(kind="Anywhere", local_paths=())

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Take everything."""

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Nothing to create."""

    def open(self, job_uuid: str, writer: Any, claim: Any = None) -> Any:
        raise AssertionError("planning opens nothing")


def plan_of(build: Callable[[hf.App, Any], None]) -> Plan:
    app = hf.App("hot")
    build(app, app.source("bids", PlannedSource(BIDS)))
    return app.plan()


def shape(plan: Plan) -> list[list[tuple[int, str]]]:
    """Per fragment, per step: its input and its kind."""
    return [[(step.input, type(step.step).__name__) for step in fragment.steps] for fragment in plan.fragments]


def pass_through(app: hf.App, stream: Any) -> None:
    stream.filter(pl.col("price") > 0).select("auction", "price").sink("out", Anywhere())


def counted(app: hf.App, stream: Any) -> None:
    stream.key_by("auction").agg("counts", n=hf.count(), total=hf.sum("price")).sink("out", Anywhere(("auction",)))


class TestFragments:
    def test_steps_without_a_shuffle_are_one_fragment(self) -> None:
        plan = plan_of(pass_through)
        assert shape(plan) == [[(INPUT, "Filter"), (0, "Project"), (1, "SinkStep")]]
        assert plan.edges == () and plan.operators == ()

    def test_an_aggregate_begins_a_fragment_after_an_exchange_on_its_key(self) -> None:
        plan = plan_of(counted)
        assert shape(plan) == [[(INPUT, "Exchange")], [(INPUT, "Aggregate"), (0, "SinkStep")]]
        (edge,) = plan.edges
        assert (edge.from_fragment, edge.to_fragment, edge.key) == (0, 1, ("auction",))
        assert plan.fragments[1].input_edges == (edge.index,) and plan.fragments[1].source is None

    def test_an_edge_carries_only_columns_that_are_read_after_it(self) -> None:
        plan = plan_of(counted)
        assert plan.edges[0].schema.names == ["auction", "price"]
        assert plan.fragments[0].steps[0].step == Exchange(0, ("auction", "price"))

    def test_streams_keyed_alike_share_an_edge(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            counted(app, stream)
            stream.key_by("auction").agg("bidders", last=hf.max("bidder"))

        plan = plan_of(build)
        assert shape(plan)[1] == [(INPUT, "Aggregate"), (0, "SinkStep"), (INPUT, "Aggregate")]
        assert [edge.schema.names for edge in plan.edges] == [["auction", "price", "bidder"]]

    def test_streams_keyed_differently_do_not_share_an_edge(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            counted(app, stream)
            stream.key_by("bidder").agg("bidders", n=hf.count())

        assert [(e.from_fragment, e.to_fragment, e.key) for e in plan_of(build).edges] == [
            (0, 1, ("auction",)),
            (0, 2, ("bidder",)),
        ]

    def test_common_first_steps_of_several_streams_are_computed_once(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            positive = stream.filter(pl.col("price") > 0)
            positive.sink("raw", Anywhere())
            positive.select("auction").sink("ids", Anywhere())
            positive.sink("again", Anywhere())

        assert shape(plan_of(build)) == [
            [(INPUT, "Filter"), (0, "SinkStep"), (0, "Project"), (2, "SinkStep"), (0, "SinkStep")]
        ]

    def test_fragments_with_sources_come_first(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            counted(app, stream)
            app.source("more", PlannedSource(BIDS)).sink("copy", Anywhere())

        plan = plan_of(build)
        assert [fragment.source for fragment in plan.fragments] == ["bids", "more", None]
        assert [(spec.name, spec.fragment) for spec in plan.sinks] == [("out", 2), ("copy", 1)]

    def test_steps_without_a_sink_are_left_out(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            pass_through(app, stream)
            stream.with_columns(x=pl.col("price") * 2)

        assert shape(plan_of(build)) == shape(plan_of(pass_through))

    def test_operators_with_state_are_kept_even_without_a_sink(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            pass_through(app, stream)
            stream.key_by("auction").agg("counts", n=hf.count())

        assert [operator.name for operator in plan_of(build).operators] == ["counts"]

    def test_a_sink_is_described_by_its_stream(self) -> None:
        (sink,) = plan_of(counted).sinks
        assert (sink.schema.names, sink.upsert_key) == (["auction", "n", "total"], ("auction",))


class TestRefusals:
    def test_an_app_without_a_sink_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="has no sink"):
            plan_of(lambda app, stream: None)

    def test_a_source_without_a_sink_is_refused(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            pass_through(app, stream)
            app.source("more", PlannedSource(BIDS)).filter(pl.col("price") > 0)

        with pytest.raises(hf.ConfigError, match="source 'more' of app 'hot' leads to no sink"):
            plan_of(build)

    @pytest.mark.parametrize(
        ("column", "fault"),
        [
            (pa.field("at", pa.timestamp("us"), nullable=False), "has no time zone"),
            (pa.field("at", pa.timestamp("us", "UTC")), "may be null"),
            (pa.field("at", pa.timestamp("ms", "UTC"), nullable=False), "is timestamp"),
            (pa.field("at", pa.int64(), nullable=False), "is int64"),
        ],
    )
    def test_an_event_time_that_is_not_a_timestamp_is_refused(self, column: pa.Field, fault: str) -> None:
        with pytest.raises(hf.ConfigError, match=f"the event time 'at' {fault}"):
            hf.App("hot").source("bids", PlannedSource(pa.schema([column])), event_time="at")


class TestShipping:
    def test_a_plan_is_unpickled_unchanged(self) -> None:
        plan = plan_of(counted)
        arrived = cloudpickle.loads(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]
        assert describe(arrived) == describe(plan)

    def test_the_same_code_gives_the_same_plan(self) -> None:
        first, again = plan_of(counted), plan_of(counted)
        assert again is not first
        assert describe(again) == describe(first)


class TestDescriptions:
    def test_a_description_survives_json(self) -> None:
        described = describe(plan_of(counted))
        assert json.loads(json.dumps(described)) == described

    def test_the_text_shows_every_step_below_its_input(self) -> None:
        assert render(plan_of(counted)) == (
            "hot: 2 fragments, 128 key groups\n"
            "\n"
            "fragment 0: source bids (auction: int64, bidder: int64, price: double?, note: string?)\n"
            "  exchange to edge 0 -> (auction: int64, price: double?)\n"
            "\n"
            "fragment 1: edge 0 from fragment 0, by auction (auction: int64, price: double?)\n"
            "  aggregate counts by auction: n = count(), total = sum('price') "
            "-> (auction: int64, n: int64, total: double?) upsert by auction\n"
            "    sink out -> (auction: int64, n: int64, total: double?) upsert by auction"
        )

    def test_one_fragment_is_singular_and_durations_are_written_as_in_the_code(self) -> None:
        assert render(plan_of(pass_through)).startswith("hot: 1 fragment, 128 key groups\n")
        app = hf.App("hot")
        at = pa.schema([*BIDS, pa.field("at", pa.timestamp("us", "UTC"), nullable=False)])
        windows = (
            app.source("bids", PlannedSource(at), event_time="at")
            .key_by("auction")
            .window(hf.tumbling("1h", offset="15m"), allowed_lateness="90s")
        )
        windows.agg("counts", n=hf.count()).sink("out", Anywhere(("auction", "window_end")))
        assert "over tumbling(1h, offset=15m) of at, lateness 90s, emit close" in render(app.plan())

    def test_every_kind_of_step_has_a_text(self) -> None:
        def build(app: hf.App, stream: Any) -> None:
            pass_through(app, stream)
            counted_again = stream.with_columns(x=pl.col("price") * 2).key_by("auction").agg("counts", n=hf.count())
            counted_again.sink("counted", Anywhere(("auction",)))

        plan = plan_of(build)
        kinds = {type(step.step) for fragment in plan.fragments for step in fragment.steps}
        assert kinds == {Filter, Project, SinkStep, Exchange, Aggregate}
        assert "select auction, bidder, price, note, x = " in render(plan)


class TestOperatorIds:
    def test_ids_are_assigned_in_order(self) -> None:
        assert assign_operator_ids(["a", "b"], {}) == {"a": 1, "b": 2}

    def test_known_operators_keep_their_ids_in_any_order(self) -> None:
        assert assign_operator_ids(["new", "b", "a"], {"a": 1, "b": 2}) == {"a": 1, "b": 2, "new": 3}

    def test_an_id_is_never_reused(self) -> None:
        assert assign_operator_ids(["new"], {"gone": 7}) == {"gone": 7, "new": 8}

    def test_running_out_of_ids_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="no number left"):
            assign_operator_ids(["new"], {"last": 0xFFFE})

    def test_a_plan_adopts_known_ids(self) -> None:
        (operator,) = with_operator_ids(plan_of(counted), {"gone": 1, "counts": 5}).operators
        assert (operator.id, operator.table.operator) == (5, 5)


class TestStateOverCodeChanges:
    def change(self, keys: list[str], **aggregates: Any) -> Plan:
        return plan_of(
            lambda app, stream: stream.key_by(*keys).agg("counts", **aggregates).sink("out", Anywhere(tuple(keys)))
        )

    def test_the_same_state_is_accepted(self) -> None:
        previous = json.loads(json.dumps(describe_operators(plan_of(counted))))
        check_against(plan_of(counted), previous)

    def test_new_operators_are_accepted(self) -> None:
        check_against(plan_of(counted), {})

    def test_another_key_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"had the key \(auction: int64\) and now has \(bidder: int64\)"):
            check_against(
                self.change(["bidder"], n=hf.count(), total=hf.sum("price")), describe_operators(plan_of(counted))
            )

    @pytest.mark.parametrize(
        "aggregates",
        [{"n": hf.count()}, {"n": hf.count(), "total": hf.max("price")}, {"n": hf.count(), "total": hf.sum("bidder")}],
    )
    def test_other_aggregates_are_refused(self, aggregates: dict[str, Any]) -> None:
        with pytest.raises(hf.ConfigError, match="so it cannot read its state|so its state would be lost"):
            check_against(self.change(["auction"], **aggregates), describe_operators(plan_of(counted)))


class TestBuiltInSinks:
    def test_a_sink_in_memory_fits_an_append_stream(self) -> None:
        plan_of(lambda app, stream: stream.sink("out", MemorySink()))


class TestColumnsThatCannotBeShuffled:
    def test_an_enum_that_crosses_a_shuffle_is_refused_when_the_job_is_planned(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("e", pa.string(), nullable=False)])
        app = hf.App("enums")
        rows = app.source("rows", hf.Generator(schema, lambda i: (i, "a"), count=1))
        typed = rows.with_columns(e=pl.col("e").cast(pl.Enum(["a", "b"])))
        typed.key_by("k").agg("counts", n=hf.count("e")).sink("out", hf.SQLite("unused.db", table="t", key=["k"]))
        with pytest.raises(ConfigError, match="'e' is an Enum"):
            app.plan()
