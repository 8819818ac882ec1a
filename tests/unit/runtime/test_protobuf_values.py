"""Values in Protobuf: their columns, what is refused when planned, and what is undecodable.

An encoder that shares no code with the library writes the values.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protobuf_wire import BYTES, EIGHT, VARINT, bid, framed, messages, place, tagged, varint, zigzag

import holdfast as hf
from holdfast.runtime.sources.kafka.source import KafkaSource
from holdfast.testing import TestDriver

HOST = "broker.example:9092"
FILE = messages()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOTHING: dict[str, Any] = {
    "auction": 0,
    "price": 0.0,
    "channel": "",
    "at": None,
    "age": None,
    "kind": "UNKNOWN",
    "tags": [],
    "counts": [],
    "place": None,
    "seen": [],
    "name": None,
    "raw": None,
    "wrapped": None,
    "ok": False,
    "big": 0,
    "small": 0,
}


@dataclass
class Bid:
    auction: int
    at: datetime
    age: int | None
    price: float = 0.0


def source(value: hf.Protobuf[Any]) -> KafkaSource:
    found = hf.Kafka(HOST, "bids", value).source()
    assert isinstance(found, KafkaSource)
    return found


def decoded(value: hf.Protobuf[Any], *values: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    found = source(value)
    form: KafkaSource = pickle.loads(pickle.dumps(found))  # noqa: S301 - as it reaches a worker
    assert form.coded is not None
    rows, refused = form.coded.opened(form.values).decode(values)
    assert rows.schema == found.schema and rows.validate(full=True) is None
    return rows.to_pylist(), {place: each.error for place, each in refused.items()}


def refusal(message: str, value: bytes, **given: Any) -> str:
    rows, refused = decoded(hf.Protobuf(FILE[message], **given), framed(b""), value, framed(b""))
    assert len(rows) == 2 and list(refused) == [1], "records around it are not affected"
    return refused[1]


INT64, INT32 = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
FLOAT, TEXT = st.floats(allow_nan=False), st.text(max_size=8)
PLACES = st.fixed_dictionaries({"city": TEXT, "lat": st.none() | FLOAT})
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
BIDS = st.builds(
    lambda row, who: {**row, **who},
    st.fixed_dictionaries(
        {
            "auction": INT64,
            "price": FLOAT,
            "channel": TEXT,
            "at": st.none() | MICROS,
            "age": st.none() | INT32,
            "kind": st.sampled_from(["UNKNOWN", "GOOD", "BAD"]),
            "tags": st.lists(INT64, max_size=4),
            "counts": st.dictionaries(TEXT, INT64, max_size=3).map(lambda each: sorted(each.items())),
            "place": st.none() | PLACES,
            "seen": st.lists(PLACES, max_size=3),
            "wrapped": st.none() | INT64,
            "ok": st.booleans(),
            "big": st.integers(0, (1 << 63) - 1),
            "small": INT32,
        }
    ),
    st.one_of(
        TEXT.map(lambda name: {"name": name, "raw": None}),
        st.binary(max_size=5).map(lambda raw: {"name": None, "raw": raw}),
        st.just({"name": None, "raw": None}),
    ),
)


def shown(given: dict[str, Any]) -> dict[str, Any]:
    at = given["at"]
    return {**given, "at": None if at is None else EPOCH + timedelta(microseconds=at)}


def in_order(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "counts": sorted(row["counts"])}


class Kind(Enum):
    UNKNOWN = "UNKNOWN"
    GOOD = "GOOD"


@dataclass
class Place:
    city: str
    lat: float | None


@dataclass
class Nested:
    tags: list[int]
    counts: dict[str, int]
    place: Place | None
    seen: list[Place]
    kind: Kind


class TestDataclasses:
    def test_have_lists_dicts_and_dataclasses_as_fields(self) -> None:
        row = {**NOTHING, "tags": [1, 2], "counts": [("a", 1)], "place": {"city": "Ulm", "lat": None}, "kind": "GOOD"}
        row["seen"] = [{"city": "Bonn", "lat": 1.5}]
        found, refused = decoded(hf.Protobuf(FILE["Bid"], Nested), framed(bid(row)))
        assert refused == {} and found == [{name: row[name] for name in ("tags", "counts", "place", "seen", "kind")}]

    def test_refuse_times_of_day_when_the_job_is_planned(self) -> None:
        @dataclass
        class Timed:
            channel: time

        with pytest.raises(hf.ConfigError, match="field 'channel' is string, from which a column of type time64"):
            hf.Protobuf(FILE["Bid"], Timed)


class TestRows:
    @given(rows=st.lists(BIDS, max_size=5))
    @settings(max_examples=100, deadline=None)
    def test_every_value_becomes_its_row(self, rows: list[dict[str, Any]]) -> None:
        found, refused = decoded(hf.Protobuf(FILE["Bid"]), *(framed(bid(row)) for row in rows))
        assert [in_order(row) for row in found] == [shown(row) for row in rows] and refused == {}

    def test_an_empty_message_has_the_defaults(self) -> None:
        assert decoded(hf.Protobuf(FILE["Bid"]), framed(b"")) == ([NOTHING], {})

    def test_a_later_occurrence_of_a_field_counts(self) -> None:
        twice = tagged(1, VARINT, varint(1)) + tagged(1, VARINT, varint(2))
        assert decoded(hf.Protobuf(FILE["Bid"]), framed(twice))[0][0]["auction"] == 2

    def test_packed_and_single_elements_are_read_alike(self) -> None:
        packed = tagged(7, BYTES, varint(1) + varint(-2)) + tagged(7, VARINT, varint(3))
        assert decoded(hf.Protobuf(FILE["Bid"]), framed(packed))[0][0]["tags"] == [1, -2, 3]

    def test_fields_that_the_message_lacks_are_ignored(self) -> None:
        more = tagged(1, VARINT, varint(5)) + tagged(99, BYTES, b"later")
        assert decoded(hf.Protobuf(FILE["Bid"]), framed(more))[0][0]["auction"] == 5

    def test_digits_behind_the_microseconds_are_dropped(self) -> None:
        time = tagged(1, VARINT, varint(1)) + tagged(2, VARINT, varint(1_999))
        [row] = decoded(hf.Protobuf(FILE["Bid"]), framed(tagged(4, BYTES, time)))[0]
        assert row["at"] == EPOCH + timedelta(seconds=1, microseconds=1)

    def test_a_dataclass_selects_and_orders_columns(self) -> None:
        value = hf.Protobuf(FILE["Bid"], Bid)
        assert source(value).schema.names == ["auction", "at", "age", "price"] and source(value).row_type is Bid
        given = bid({**NOTHING, "auction": 3, "at": 1_000_000, "channel": "web"})
        rows, refused = decoded(value, framed(given), framed(b""))
        assert rows == [{"auction": 3, "at": EPOCH + timedelta(seconds=1), "age": None, "price": 0.0}]
        assert refused == {1: "column 'at' is null, which the job's schema does not allow"}

    def test_values_without_a_header(self) -> None:
        value = hf.Protobuf(FILE["Place"], header="none")
        assert decoded(value, place({"city": "Bonn", "lat": 1.5}), b"")[0] == [
            {"city": "Bonn", "lat": 1.5},
            {"city": "", "lat": None},
        ]


class TestHeader:
    def test_names_the_message_by_its_indexes(self) -> None:
        data = place({"city": "Bonn", "lat": None})
        value = hf.Protobuf(FILE["Place"])
        assert (
            decoded(value, framed(data, 1), framed(data, 1, schema=1 << 31))[0] == [{"city": "Bonn", "lat": None}] * 2
        )
        inner = hf.Protobuf(FILE["Place.Inner"])
        assert decoded(inner, framed(tagged(1, VARINT, varint(4)), 1, 0))[0] == [{"n": 4}]

    def test_the_header_of_the_first_message_may_be_written_in_full(self) -> None:
        assert decoded(hf.Protobuf(FILE["Bid"]), framed(b"", 0)) == ([NOTHING], {})

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (framed(b"", 1), "it is message [1] of its file, but shop.Bid is [0]"),
            (framed(b"", 0, 2), "it is message [0, 2] of its file"),
            (b"", "does not begin with a zero byte"),
            (b"\1\0\0\0\7\0", "does not begin with a zero byte"),
            (b"\0\0\0\0\7", "does not begin with a zero byte"),
            (b"\0\0\0\0\7\x80", "are not readable"),
            (b"\0\0\0\0\7" + zigzag(2) + zigzag(0), "are not readable"),
            (b"\0\0\0\0\7" + zigzag(-1), "are not readable"),
            (b"\0\0\0\0\7" + zigzag(1) + zigzag(-1), "are not readable"),
            (b"\0\0\0\0\7" + zigzag(1_000_000), "are not readable"),
            (b"\0\0\0\0\7" + b"\xff" * 9, "are not readable"),
        ],
    )
    def test_a_header_of_another_form_is_undecodable(self, value: bytes, why: str) -> None:
        assert why in refusal("Bid", value)

    def test_a_tombstone_is_undecodable(self) -> None:
        assert "a tombstone" in decoded(hf.Protobuf(FILE["Bid"]), None)[1][0]


class TestUndecodable:
    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (tagged(1, EIGHT, bytes(8)), "field 'auction' (number 1) is not written as its type"),
            (tagged(3, VARINT, varint(5)), "field 'channel' (number 3)"),
            (tagged(4, VARINT, varint(5)), "field 'at' (number 4)"),
            (tagged(4, BYTES, tagged(1, EIGHT, bytes(8))), "field 'at.seconds'"),
            (tagged(7, EIGHT, bytes(8)), "field 'tags' (number 7)"),
            (tagged(9, BYTES, tagged(2, VARINT, varint(1))), "field 'place.lat' (number 2)"),
            (tagged(10, BYTES, b"") + tagged(10, BYTES, tagged(1, VARINT, b"\1")), "field 'seen[].city' (number 1)"),
            (tagged(13, BYTES, tagged(1, EIGHT, bytes(8))), "field 'wrapped' (number 1)"),
            (tagged(6, VARINT, varint(7)), "field 'kind' is 7, a number that enum shop.Kind does not name"),
            (tagged(15, VARINT, varint(1 << 63)), "field 'big'"),
            (tagged(4, BYTES, tagged(1, VARINT, varint(253_402_300_800))), "field 'at' is no time"),
            (tagged(4, BYTES, tagged(2, VARINT, varint(-1))), "field 'at' is no time"),
            (tagged(3, BYTES, b"\xff"), "not a message shop.Bid"),
            (b"\x08", "not a message shop.Bid"),
            (tagged(1, 7, b""), "not a message shop.Bid"),
        ],
    )
    def test_is_a_value_that_its_columns_do_not_take(self, data: bytes, why: str) -> None:
        assert why in refusal("Bid", framed(data))

    @given(row=BIDS, data=st.data())
    @settings(max_examples=50, deadline=None)
    def test_a_value_that_is_cut_off_is_refused_or_is_a_shorter_message(
        self, row: dict[str, Any], data: st.DataObject
    ) -> None:
        """Fields follow each other without an end: a cut between two of them gives a message without the later ones."""
        whole = bid(row)
        cut = data.draw(st.integers(0, len(whole)))
        rows, refused = decoded(hf.Protobuf(FILE["Bid"]), framed(whole[:cut]))
        assert len(rows) + len(refused) == 1
        if rows:
            different = {name for name, value in rows[0].items() if value != shown(row)[name]}
            assert all(_is_start(rows[0][name], shown(row)[name], NOTHING[name]) for name in different)

    def test_a_map_whose_values_have_another_type_does_not_become_defaults(self) -> None:
        entry = tagged(1, BYTES, b"a") + tagged(2, BYTES, b"text")
        rows, refused = decoded(hf.Protobuf(FILE["Bid"]), framed(tagged(8, BYTES, entry)))
        assert rows == [] and "counts" in refused[0]


def _is_start(found: Any, whole: Any, default: Any) -> bool:
    """Return whether a field is absent, or a repeated one has its first elements."""
    return found == default or (isinstance(found, list) and all(each in whole for each in found))


class TestPlanning:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: hf.Protobuf(5), "5 is not a message"),
            (lambda: hf.Protobuf(FILE["Bid"], header="kafka"), "header is 'kafka'"),  # type: ignore[arg-type]
            (lambda: hf.Protobuf(FILE["Tree"]), "left is a shop.Tree within a shop.Tree"),
            (lambda: hf.Protobuf(FILE["Empty"]), "without fields"),
            (lambda: hf.Protobuf(FILE["Held"]), "what is a google.protobuf.Any, which no column can hold"),
            (lambda: hf.Protobuf(FILE["Bid"], pa.schema([("missing", pa.int64())])), "has no field 'missing'"),
            (lambda: hf.Protobuf(FILE["Bid"], pa.schema([("auction", pa.int32())])), "'auction' is int64, from which"),
            (lambda: hf.Protobuf(FILE["Bid"], pa.schema([("price", pa.int64())])), "'price' is double, from which"),
            (lambda: hf.Protobuf(FILE["Bid"], pa.schema([("tags", pa.int64())])), "'tags' is repeated, from which"),
            (lambda: hf.Protobuf(FILE["Bid"], pa.schema([("counts", pa.utf8())])), "'counts' is a map, from which"),
            (lambda: hf.Kafka(HOST, "out", hf.Protobuf(FILE["Bid"])).sink(), "which is only read"),
        ],
    )
    def test_refuses(self, make: Callable[[], object], why: str) -> None:
        with pytest.raises(hf.ConfigError) as caught:
            make()
        assert why in caught.value.what

    def test_a_field_that_cannot_be_a_column_can_be_left_out(self) -> None:
        value = hf.Protobuf(FILE["Tree"], pa.schema([pa.field("n", pa.int64(), False)]))
        deep = tagged(2, BYTES, tagged(1, VARINT, varint(1)))
        assert decoded(value, framed(tagged(1, VARINT, varint(9)) + deep, 2))[0] == [{"n": 9}]

    def test_narrower_columns_take_what_fits_them(self) -> None:
        value = hf.Protobuf(FILE["Bid"], pa.schema([("age", pa.int32()), ("small", pa.int32())]))
        assert decoded(value, framed(tagged(5, VARINT, varint(-3))))[0] == [{"age": -3, "small": 0}]

    def test_columns_of_a_message(self) -> None:
        schema = hf.Protobuf(FILE["Bid"]).schema
        assert schema.field("place") == pa.field(
            "place", pa.struct([pa.field("city", pa.utf8(), False), pa.field("lat", pa.float64())])
        )
        assert [each.name for each in schema if not each.nullable] == [
            *("auction", "price", "channel", "kind", "tags", "counts", "seen", "ok", "big", "small")
        ]


class TestJob:
    def test_rows_are_those_of_the_dataclass(self) -> None:
        app = hf.App("bids")
        bids = app.source("bids", hf.Kafka(HOST, "bids", hf.Protobuf(FILE["Bid"], Bid)), event_time="at")
        bids.map(lambda row: Bid(row.auction + 1, row.at, row.age, row.price), to=Bid).sink("out", hf.Console())
        with TestDriver(app) as t:
            t.push("bids", [Bid(1, EPOCH, None)])
            t.checkpoint()
            assert t.rows("out") == [{"auction": 2, "at": EPOCH, "age": None, "price": 0.0}]


def test_the_encoder_knows_the_encoding() -> None:
    """The example of the specification, and a fixed double."""
    assert tagged(1, VARINT, varint(150)) == bytes.fromhex("089601")
    assert tagged(2, EIGHT, struct.pack("<d", 1.0)) == bytes.fromhex("11000000000000f03f")
