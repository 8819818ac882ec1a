"""The API that users call, and refusals that name the line to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink

BIDS = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int32(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("note", pa.string(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("big", pa.uint64()),
        pa.field("paid", pa.bool_()),
        pa.field("exact", pa.decimal128(18, 2)),
    ]
)


def bids() -> tuple[hf.App, Any]:
    app = hf.App("hot")
    return app, app.source("bids", PlannedSource(BIDS))


def fields(schema: pa.Schema) -> list[tuple[str, pa.DataType, bool]]:
    return [(field.name, field.type, field.nullable) for field in schema]


class TestNames:
    @pytest.mark.parametrize("name", ["Hot", "", "-hot", "_hot", "hot auctions", "hot/x", "é", "x" * 101, 7, None])
    def test_a_malformed_or_missing_name_is_refused(self, name: Any) -> None:
        with pytest.raises(hf.ConfigError):
            hf.App(name)

    def test_a_missing_name_is_refused_with_advice(self) -> None:
        with pytest.raises(hf.ConfigError, match="has no name"):
            hf.App("hot").source(PlannedSource(BIDS), "bids")  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        "again",
        [
            lambda app, stream: app.source("bids", PlannedSource(BIDS)),
            lambda app, stream: stream.sink("bids", MemorySink()),
            lambda app, stream: stream.key_by("auction").agg("bids", n=hf.count()),
        ],
    )
    def test_a_name_can_be_used_only_once(self, again: Callable[[hf.App, Any], None]) -> None:
        app, stream = bids()
        with pytest.raises(hf.ConfigError, match="already the name of the app's source"):
            again(app, stream)

    def test_the_refusal_names_the_line_of_the_job(self) -> None:
        app, _ = bids()
        with pytest.raises(hf.ConfigError, match=r"test_dataflow.py:\d+"):
            app.source("bids", PlannedSource(BIDS))


class TestApps:
    @pytest.mark.parametrize(
        "given",
        [{"checkpoint_every": "soon"}, {"parallelism": 0}, {"key_groups": 0}, {"key_groups": 40_000}],
    )
    def test_a_value_out_of_range_is_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(hf.ConfigError):
            hf.App("hot", **given)

    def test_a_source_whose_columns_belong_to_holdfast_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="'_op' is not allowed"):
            hf.App("hot").source("bids", PlannedSource(pa.schema([("_op", pa.int8())])))

    def test_an_object_that_is_no_source_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="is not a source"):
            hf.App("hot").source("bids", "data/bids")  # type: ignore[call-overload]

    def test_an_unknown_event_time_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="no column 'at'"):
            hf.App("hot").source("bids", PlannedSource(BIDS), event_time="at")


class TestSchemas:
    def test_with_columns_replaces_in_place_and_adds_at_the_end(self) -> None:
        _, stream = bids()
        out = stream.select("auction", "price").with_columns(pl.col("auction") * 2, double=pl.col("price") * 2)
        assert fields(out.schema) == [
            ("auction", pa.int64(), True),
            ("price", pa.float64(), True),
            ("double", pa.float64(), True),
        ]

    def test_an_aggregate_gives_keys_then_results_in_order(self) -> None:
        _, stream = bids()
        out = stream.key_by("note", "auction").agg(
            "hot",
            rows=hf.count(),
            priced=hf.count("price"),
            bidders=hf.sum("bidder"),
            total=hf.sum("price"),
            first=hf.min("day"),
            top=hf.max("big"),
            low=hf.min("bidder"),
            average=hf.mean("bidder"),
        )
        assert fields(out.schema) == [
            ("note", pa.string(), False),
            ("auction", pa.int64(), False),
            ("rows", pa.int64(), False),
            ("priced", pa.int64(), False),
            ("bidders", pa.int64(), False),
            ("total", pa.float64(), True),
            ("first", pa.date32(), True),
            ("top", pa.uint64(), True),
            ("low", pa.int32(), False),
            ("average", pa.float64(), False),
        ]
        assert out.upsert_key == ("note", "auction")

    def test_a_filter_on_an_upsert_stream_makes_non_key_columns_nullable(self) -> None:
        _, stream = bids()
        out = stream.key_by("auction").agg("hot", n=hf.count()).filter(pl.col("n") > 1)
        assert fields(out.schema) == [("auction", pa.int64(), False), ("n", pa.int64(), True)]


class TestAggregates:
    @pytest.mark.parametrize(
        "given",
        [
            hf.sum("note"),
            hf.sum("paid"),
            hf.var("exact"),
            hf.sum("big"),
            hf.sum("day"),
            hf.max("paid"),
            hf.mean("note"),
            hf.mean("day"),
            hf.quantile("exact", 0.5),
            hf.var("day"),
        ],
        ids=str,
    )
    def test_a_type_that_an_aggregate_does_not_support_is_refused_with_advice(self, given: Any) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError, match="does not take"):
            stream.key_by("auction").agg("hot", x=given)

    def test_an_unknown_column_is_refused_with_the_closest_one(self) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError, match="did you mean 'price'"):
            stream.key_by("auction").agg("hot", x=hf.sum("prize"))

    @pytest.mark.parametrize("given", [{}, {"x": 1}, {"x": pl.col("price").sum()}, {"_x": hf.count()}])
    def test_an_object_that_is_no_aggregate_is_refused(self, given: Any) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError):
            stream.key_by("auction").agg("hot", **given)

    def test_an_aggregate_of_an_expression_is_refused_with_advice(self) -> None:
        with pytest.raises(hf.ConfigError, match="with_columns"):
            hf.sum(pl.col("price") * 2)  # type: ignore[arg-type]

    def test_a_result_named_like_a_key_is_refused(self) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError, match="also a key column"):
            stream.key_by("auction").agg("hot", auction=hf.count())

    def test_an_unsupported_mode_is_refused(self) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError, match="emit='hourly'"):
            stream.key_by("auction").agg("hot", emit="hourly", n=hf.count())

    def test_aggregates_over_rows_that_are_replaced_are_refused(self) -> None:
        _, stream = bids()
        counts = stream.key_by("auction").agg("hot", n=hf.count())
        with pytest.raises(hf.ConfigError, match="over replaced rows"):
            counts.key_by("n").agg("again", n2=hf.count())


class TestKeys:
    @pytest.mark.parametrize("columns", [(), ("nope",), ("price",), ("exact",), ("auction", "auction"), (1,)])
    def test_columns_that_cannot_be_a_key_are_refused(self, columns: Any) -> None:
        _, stream = bids()
        with pytest.raises(hf.ConfigError, match="key_by on stream 'bids'"):
            stream.key_by(*columns)


class TestUpsertStreams:
    def upserts(self) -> Any:
        _, stream = bids()
        return stream.key_by("auction").agg("hot", n=hf.count())

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: s.select("n"),
            lambda s: s.select("n", auction=pl.col("auction") + 1),
            lambda s: s.select("n", other="auction"),
            lambda s: s.with_columns(auction="n"),
        ],
    )
    def test_the_key_cannot_be_changed_or_dropped(self, change: Callable[[Any], Any]) -> None:
        with pytest.raises(hf.ConfigError, match="left out or changed"):
            change(self.upserts())

    @pytest.mark.parametrize("sink", [MemorySink(), MemorySink(key=["n"])])
    def test_the_sink_needs_the_same_key(self, sink: Any) -> None:
        with pytest.raises(hf.ConfigError, match=r"sink 'out' at .* does not fit its stream"):
            self.upserts().sink("out", sink)

    def test_a_refused_sink_does_not_reserve_its_name(self) -> None:
        stream = self.upserts()
        with pytest.raises(hf.ConfigError):
            stream.sink("out", MemorySink())
        stream.sink("out", MemorySink(key=["auction"]))

    def test_an_object_that_is_no_sink_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="is not a sink"):
            self.upserts().sink("out", "out.db")


RESERVED_NAMES = {
    "": "names that begin with an underscore are reserved",
    "_op": "names that begin with an underscore are reserved",
    "_holdfast_tag": "names that begin with an underscore are reserved",
    "*": "Polars reads it as a pattern for several columns",
    "^a$": "Polars reads it as a pattern for several columns",
    "a\0b": "it contains a NUL character",
}


class TestReservedColumnNames:
    @pytest.mark.parametrize(("name", "says"), RESERVED_NAMES.items())
    def test_are_refused_when_planned_wherever_a_column_gets_a_name(self, name: str, says: str) -> None:
        schema = pa.schema([pa.field(name, pa.int64(), nullable=False)])
        with pytest.raises(hf.ConfigError) as source:
            hf.App("j").source("s", PlannedSource(schema))
        stream = hf.App("j").source("s", PlannedSource(pa.schema([pa.field("v", pa.int64(), nullable=False)])))
        with pytest.raises(hf.ConfigError) as select:
            stream.with_columns(**{name: pl.col("v") + 1})
        with pytest.raises(hf.ConfigError) as function:
            stream.map(lambda row: row, to=schema)
        with pytest.raises(hf.ConfigError) as aggregate:
            counted: dict[str, Any] = {name: hf.count()}
            stream.key_by("v").agg("a", **counted)
        for refused in (source, select, function, aggregate):
            assert says in refused.value.what and repr(name) in refused.value.what
