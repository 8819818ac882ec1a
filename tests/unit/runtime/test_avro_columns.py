"""Avro values to columns, and columns to Avro values. The oracle is fastavro's own writer and reader, given the schemas
with their logical types: it shares with Holdfast's use of it only the encoding.
"""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.sources.kafka.avro_columns import AvroColumns, AvroMisfit, check_columns
from holdfast.sinks.kafka.avro import AvroRows
from holdfast.sinks.kafka.avro_schema import NoForm, derived
from holdfast.storage.kafka.avro import parsed

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
MICROS, MILLIS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("micros", "millis"))
DATE = {"type": "int", "logicalType": "date"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
CENTS = {"type": "fixed", "name": "Cents", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
HASH = {"type": "fixed", "name": "Hash", "size": 4}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}
UTC_TIME = pa.timestamp("us", "UTC")


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def written(schema: Any, row: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    return file.getvalue()


def decoder(schema: Any, *columns: pa.Field, **defaults: Any) -> AvroColumns:
    return AvroColumns(parsed(json.dumps(schema)), pa.schema(columns), defaults)


def decode(found: AvroColumns, values: list[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    why: dict[int, str] = {}
    batches = found.decode(values, range(len(values)), why)
    for each in batches:
        each.validate(full=True)
    return [row for each in batches for row in each.to_pylist()], why


def x_of(kind: pa.DataType, schema: Any, value: Any) -> Any:
    """Return what a column has for a value, or why it is refused."""
    whole = record(x=schema)
    rows, why = decode(decoder(whole, pa.field("x", kind)), [written(whole, {"x": value})])
    return why[0] if why else rows[0]["x"]


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "schema", "value", "column"),
        [
            (pa.int64(), "long", -(2**63), -(2**63)),
            (pa.time64("us"), {"type": "long", "logicalType": "time-micros"}, time(9, 30, 0, 1), time(9, 30, 0, 1)),
            (pa.time64("us"), {"type": "int", "logicalType": "time-millis"}, time(23, 59, 59), time(23, 59, 59)),
            (pa.int64(), "int", 2**31 - 1, 2**31 - 1),
            (pa.int16(), "int", -7, -7),
            (pa.float64(), "double", 0.1, 0.1),
            (pa.float64(), "double", float("inf"), float("inf")),
            (pa.float64(), "float", 0.5, 0.5),
            (pa.float64(), "int", 7, 7.0),
            (pa.float64(), "long", 2**53, float(2**53)),
            (pa.float32(), "float", 1.5, 1.5),
            (pa.bool_(), "boolean", True, True),
            (pa.bool_(), "boolean", False, False),
            (pa.utf8(), "string", 'ä\n"\0', 'ä\n"\0'),
            (pa.utf8(), COLOR, "GREEN", "GREEN"),
            (pa.utf8(), {"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=7)), str(uuid.UUID(int=7))),
            (pa.binary(), "bytes", b"\0\xff", b"\0\xff"),
            (pa.binary(), HASH, b"abcd", b"abcd"),
            (pa.binary(4), HASH, b"abcd", b"abcd"),
            (pa.date32(), DATE, date(1960, 2, 29), date(1960, 2, 29)),
            (UTC_TIME, MICROS, AT, AT),
            (UTC_TIME, MICROS, datetime(1900, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)),
            (UTC_TIME, MILLIS, AT, AT.replace(microsecond=678_000)),
            (pa.decimal128(12, 2), MONEY, Decimal("-1234567890.12"), Decimal("-1234567890.12")),
            (pa.decimal128(38, 4), MONEY, Decimal("0.25"), Decimal("0.2500")),
            (pa.decimal128(12, 2), CENTS, Decimal("-0.01"), Decimal("-0.01")),
            (pa.utf8(), ["null", "string"], None, None),
            (pa.utf8(), ["string", "null"], "a", "a"),
            (pa.float64(), ["null", "double"], None, None),
            (pa.bool_(), ["null", "boolean"], None, None),
            (pa.utf8(), ["null", COLOR], None, None),
            (pa.utf8(), "null", None, None),
            (pa.list_(pa.int64()), {"type": "array", "items": "long"}, [1, 2], [1, 2]),
            (pa.list_(pa.utf8()), {"type": "array", "items": ["null", "string"]}, ["a", None], ["a", None]),
            (pa.list_(pa.int64()), ["null", {"type": "array", "items": "long"}], None, None),
            (pa.list_(UTC_TIME), {"type": "array", "items": MICROS}, [AT], [AT]),
            (pa.map_(pa.utf8(), pa.float64()), {"type": "map", "values": "double"}, {"b": 1.0}, [("b", 1.0)]),
            (
                pa.struct([("name", pa.utf8()), ("x", pa.int64()), ("more", pa.date32())]),
                POINT,
                {"x": 1, "name": "a"},
                {"name": "a", "x": 1, "more": None},
            ),
            (pa.struct([("x", pa.int64())]), ["null", POINT], None, None),
        ],
    )
    def test_have_the_type_of_their_column(self, kind: pa.DataType, schema: Any, value: Any, column: Any) -> None:
        assert x_of(kind, schema, value) == column

    def test_avro_uuids_stored_as_bytes_are_text(self) -> None:
        schema = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
        known = uuid.UUID(int=2**100 + 7)
        [row], _ = decode(decoder(record(x=schema), pa.field("x", pa.utf8())), [known.bytes])
        assert row == {"x": str(known)}

    def test_avro_nan_values_are_not_null(self) -> None:
        schema = record(x=["null", "double"])
        rows, _ = decode(
            decoder(schema, pa.field("x", pa.float64())),
            [written(schema, {"x": each}) for each in (float("nan"), None)],
        )
        assert rows[0]["x"] != rows[0]["x"] and rows[1]["x"] is None

    @pytest.mark.parametrize(
        ("kind", "schema", "value", "why"),
        [
            (pa.int16(), "int", 40_000, "column 'x'"),
            (pa.uint64(), "long", -1, "column 'x'"),
            (pa.float64(), "long", 2**53 + 1, "column 'x'"),
            (pa.decimal128(4, 2), MONEY, Decimal("1234.50"), "column 'x'"),
        ],
    )
    def test_avro_values_that_do_not_fit_their_column_are_refused(
        self, kind: pa.DataType, schema: Any, value: Any, why: str
    ) -> None:
        assert why in str(x_of(kind, schema, value))


class TestFields:
    def test_avro_fields_without_a_column_are_ignored_even_if_they_are_not_text(self) -> None:
        schema = record(a="string", b=["null", "int", "string"], c={"type": "map", "values": "boolean"}, n="int")
        found = decoder(schema, pa.field("n", pa.int64()))
        values = [written(schema, {"a": "a", "b": each, "c": {"k": True}, "n": 7}) for each in (None, 1, "text")]
        assert decode(found, values) == ([{"n": 7}] * 3, {})
        assert decode(found, [values[0].replace(b"\x02a", b"\x02\xff", 1)]) == ([{"n": 7}], {})

    def test_avro_fields_absent_from_the_schema_have_their_default_or_are_null(self) -> None:
        schema = record(n="int")
        found = decoder(
            schema, pa.field("at", UTC_TIME, False), pa.field("n", pa.int64()), pa.field("t", pa.utf8()), at=AT
        )
        assert decode(found, [written(schema, {"n": 7})]) == ([{"at": AT, "n": 7, "t": None}], {})
        with pytest.raises(AvroMisfit, match="no field 'at', which may not be null and has no default"):
            decoder(schema, pa.field("at", UTC_TIME, False))

    def test_a_null_avro_field_of_a_required_column_refuses_the_record(self) -> None:
        schema = record(n=["null", "int"], t="string")
        found = decoder(schema, pa.field("n", pa.int64(), False), pa.field("t", pa.utf8(), False))
        values = [written(schema, {"n": n, "t": "a"}) for n in (1, None, 2)]
        rows, why = decode(found, values)
        assert [row["n"] for row in rows] == [1, 2]
        assert why == {1: "column 'n' is null, which the job's schema does not allow"}


class TestMisfits:
    @pytest.mark.parametrize(
        ("kind", "schema", "why"),
        [
            (pa.int64(), "string", "field 'x' is string, from which a column of type int64 cannot be read exactly"),
            (pa.int64(), "double", "field 'x' is double"),
            (pa.float32(), "double", "field 'x' is double"),
            (pa.utf8(), "bytes", "field 'x' is bytes"),
            (pa.utf8(), ["null", "int", "string"], "field 'x' is \\[null, int, string\\]"),
            (UTC_TIME, "long", "field 'x' is long"),
            (UTC_TIME, {"type": "long", "logicalType": "local-timestamp-micros"}, "local-timestamp-micros"),
            (UTC_TIME, {"type": "long", "logicalType": "timestamp-nanos"}, "timestamp-nanos"),
            (pa.date32(), "int", "field 'x' is int"),
            (pa.decimal128(12, 1), MONEY, "decimal 12, 2"),
            (pa.decimal128(12, 2), "bytes", "field 'x' is bytes"),
            (pa.binary(5), HASH, "fixed Hash"),
            (pa.list_(pa.int64()), {"type": "array", "items": "string"}, "field 'x\\[\\]' is string"),
            (pa.list_(pa.field("item", pa.int64(), False)), {"type": "array", "items": ["null", "long"]}, "'x\\[\\]'"),
            (pa.struct([pa.field("z", pa.int64(), False)]), POINT, "no field 'x.z', which may not be null"),
            (pa.struct([("x", pa.utf8())]), POINT, "field 'x.x' is int"),
        ],
    )
    def test_name_field_and_types(self, kind: pa.DataType, schema: Any, why: str) -> None:
        with pytest.raises(AvroMisfit, match=why):
            decoder(record(x=schema), pa.field("x", kind))

    def test_are_schemas_without_fields(self) -> None:
        with pytest.raises(AvroMisfit, match="it is long"):
            decoder("long", pa.field("x", pa.int64()))

    @pytest.mark.parametrize("kind", [pa.time64("ns"), pa.timestamp("us"), pa.duration("s"), pa.list_(pa.time64("ns"))])
    def test_are_columns_without_a_form_in_avro(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match="column 'x' is .*, which hf.Avro cannot read"):
            check_columns(pa.schema([("x", kind)]))


class Color(Enum):
    RED = "RED"
    GREEN = "GREEN"


@dataclass
class Point:
    x: int
    name: str | None = "home"


@dataclass
class Shape:
    id: Annotated[UUID, hf.field(alias="_id")]
    points: list[Point]
    by_name: dict[str, Point | None]
    color: Color


class TestDataclasses:
    def test_have_lists_dicts_and_dataclasses_as_fields(self) -> None:
        uuid = {"type": "string", "logicalType": "uuid"}
        maps = {"type": "map", "values": ["null", "Point"]}
        schema = record(_id=uuid, points={"type": "array", "items": POINT}, by_name=maps, color=COLOR)
        row = {
            "_id": UUID(int=10),
            "points": [{"x": 1, "name": None}],
            "by_name": {"a": {"x": 2, "name": "b"}, "n": None},
            "color": "GREEN",
        }
        found, why = decode(decoder(schema, *data_schema_of(Shape)), [written(schema, row)])
        assert why == {} and found == [
            {**row, "_id": str(UUID(int=10)), "by_name": [("a", {"x": 2, "name": "b"}), ("n", None)]}
        ]


WHOLE = record(n="long", t="string", d=["null", "double"], c=COLOR, l={"type": "array", "items": "string"}, h=HASH)
ROWS = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "t": st.text(max_size=5),
        "d": st.none() | st.floats(allow_nan=False),
        "c": st.sampled_from(["RED", "GREEN"]),
        "l": st.lists(st.text(max_size=3), max_size=3),
        "h": st.binary(min_size=4, max_size=4),
    }
)
COLUMNS = (
    *(pa.field("h", pa.binary()), pa.field("n", pa.int64()), pa.field("t", pa.utf8()), pa.field("d", pa.float64())),
    *(pa.field("c", pa.utf8()), pa.field("l", pa.list_(pa.utf8()))),
)


class TestDamage:
    @given(ROWS)
    def test_no_part_of_a_value_and_no_longer_one_is_a_value(self, row: dict[str, Any]) -> None:
        value = written(WHOLE, row)
        parts = [value[:end] for end in range(len(value))]
        rows, why = decode(decoder(WHOLE, *COLUMNS), [*parts, value + b"\0", value])
        assert rows == [row] and list(why) == list(range(len(value) + 1))

    @given(ROWS, st.data())
    def test_damage_to_one_value_changes_no_other_row(self, row: dict[str, Any], data: st.DataObject) -> None:
        value = bytearray(written(WHOLE, row))
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] ^= data.draw(st.integers(1, 255))
        found, good = decoder(WHOLE, *COLUMNS), written(WHOLE, row)
        alone, why = decode(found, [bytes(value)])
        rows, together = decode(found, [good, bytes(value), good])
        shown = [[repr(sorted(each.items())) for each in found] for found in (rows, [row, *alone, row])]  # NaN == NaN
        assert shown[0] == shown[1] and list(together.values()) == list(why.values())

    @pytest.mark.parametrize(
        ("schema", "value", "why"),
        [
            ("boolean", b"\x02", "neither true nor false"),
            (COLOR, b"\x01", "symbol is out of range"),
            (COLOR, b"\x04", "symbol is out of range"),
            ("int", b"\x80\x80\x80\x80\x20", "column 'x'"),
            (["null", "int"], b"\x04", "a branch in it is wrong"),
            ("string", b"\x01", "a length"),
            ("string", b"\x02\xff", "not UTF-8"),
            ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too early"),
            ({"type": "array", "items": "double"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too early"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 9}, b"\x64" + b"\x01" * 50, "has 50 bytes"),
        ],
    )
    def test_is_refused_with_its_reason(self, schema: Any, value: bytes, why: str) -> None:
        kinds = {"boolean": pa.bool_(), "int": pa.int64(), "string": pa.utf8()}
        kind = kinds.get(str(schema))
        if kind is None and isinstance(schema, dict):
            kind = {"enum": pa.utf8(), "array": pa.list_(pa.float64()), "bytes": pa.decimal128(9, 0)}[schema["type"]]
        _, found = decode(decoder(record(x=schema), pa.field("x", kind or pa.int64())), [value])
        assert why in found[0]


POINTS = pa.struct([pa.field("x", pa.int32(), False), pa.field("name", pa.utf8())])
TABLE = pa.schema(
    [
        pa.field("n", pa.int64(), False),
        pa.field("small", pa.int16()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64(), False),
        pa.field("b", pa.bool_()),
        pa.field("t", pa.utf8()),
        pa.field("raw", pa.binary(), False),
        pa.field("day", pa.date32()),
        pa.field("at", UTC_TIME),
        pa.field("money", pa.decimal128(20, 3)),
        pa.field("hash", pa.binary(3)),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("map", pa.map_(pa.utf8(), POINTS)),
        pa.field("points", pa.list_(pa.field("item", POINTS, False))),
        pa.field("point", POINTS),
    ]
)
_POINT = st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1), "name": st.none() | st.text(max_size=3)})
_DAYS = st.dates(date(1900, 1, 1), date(2100, 1, 1))
_TIMES = st.integers(-(2**50), 2**50).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
TABLE_ROWS = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "f": st.none() | st.floats(allow_nan=False, width=32),
        "d": st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.text(max_size=5),
        "raw": st.binary(max_size=4),
        "day": st.none() | _DAYS,
        "at": st.none() | _TIMES,
        "money": st.none() | st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        "hash": st.none() | st.binary(min_size=3, max_size=3),
        "list": st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.none() | _POINT, max_size=3),
        "points": st.none() | st.lists(_POINT, max_size=3),
        "point": st.none() | _POINT,
    }
)


class TestRows:
    @given(st.lists(TABLE_ROWS, max_size=4))
    def test_rows_written_by_an_avro_sink_are_read_back_by_the_library_and_a_source(
        self, rows: list[dict[str, Any]]
    ) -> None:
        listed = [{**row, "map": None if row["map"] is None else list(row["map"].items())} for row in rows]
        batch = pa.RecordBatch.from_pylist(listed, TABLE)
        avsc = derived(TABLE, "Row")
        values = [value for value in AvroRows(avsc).encode(batch) if value is not None]
        library = fastavro.parse_schema(json.loads(avsc))
        assert [fastavro.schemaless_reader(io.BytesIO(each), library, None) for each in values] == rows
        found, why = decode(AvroColumns(parsed(avsc), TABLE, {}), values)
        assert found == listed and not why

    def test_the_avro_values_of_a_sliced_batch_are_those_of_its_rows(self) -> None:
        rows = [{"l": [n], "m": [("k", n)], "s": {"n": n}, "d": float(n)} for n in range(4)]
        kinds = {"l": pa.list_(pa.int64()), "m": pa.map_(pa.utf8(), pa.int64()), "s": pa.struct([("n", pa.int64())])}
        schema = pa.schema([*kinds.items(), ("d", pa.float64())])
        whole = AvroRows(derived(schema, "Row")).encode(pa.RecordBatch.from_pylist(rows, schema))
        part = pa.RecordBatch.from_pylist(rows, schema).slice(1, 2)
        assert AvroRows(derived(schema, "Row")).encode(part) == whole[1:3]

    def test_take_the_forms_of_a_schema_that_is_given(self) -> None:
        schema = record(
            color=COLOR, at=MILLIS, n="long", hash=HASH, cents=CENTS, share=["double", "null"], more=["string", "null"]
        )
        columns = pa.schema(
            [
                *(pa.field("share", pa.float32()), pa.field("n", pa.int32(), False)),
                *(pa.field("color", pa.utf8(), False), pa.field("at", UTC_TIME, False), pa.field("more", pa.utf8())),
                *(pa.field("hash", pa.binary(), False), pa.field("cents", pa.decimal128(8, 1), False)),
            ]
        )
        row = {
            "share": 0.5,
            "n": 7,
            "color": "GREEN",
            "at": AT,
            "more": None,
            "hash": b"abcd",
            "cents": Decimal("-2.5"),
        }
        rows = AvroRows(json.dumps(schema))
        rows.check("topic", columns, ())
        [value] = rows.encode(pa.RecordBatch.from_pylist([row], columns))
        expected = {**row, "at": AT.replace(microsecond=678_000), "cents": Decimal("-2.50")}
        assert value == written(schema, expected)

    @pytest.mark.parametrize(
        ("schema", "column", "why"),
        [
            (
                record(x="int"),
                pa.field("x", pa.int64(), False),
                "the column 'x' has type int64, which does not become int",
            ),
            (record(x="long"), pa.field("x", pa.int64()), "the column 'x' may be null, but its field is long"),
            (record(x="long", y="long"), pa.field("x", pa.int64(), False), "a field 'y', but there is no such column"),
            (record(y="long"), pa.field("x", pa.int64(), False), "the column 'x' is not in the schema"),
            (record(x="float"), pa.field("x", pa.float64(), False), "does not become float"),
            (record(x=MONEY), pa.field("x", pa.decimal128(13, 2), False), "decimal 12, 2"),
            (record(x=MONEY), pa.field("x", pa.decimal128(12, 3), False), "decimal 12, 2"),
            (record(x="string"), pa.field("x", pa.time64("us"), False), "time64"),
            ("long", pa.field("x", pa.int64(), False), "it is long"),
            ({"type": "map"}, pa.field("x", pa.int64(), False), "lacks 'values'"),
        ],
    )
    def test_rows_that_do_not_fit_an_avro_schema_are_refused_at_planning(
        self, schema: Any, column: pa.Field, why: str
    ) -> None:
        with pytest.raises(ConfigError, match=why):
            AvroRows(json.dumps(schema)).check("topic", pa.schema([column]), ())

    @pytest.mark.parametrize(
        ("schema", "kind", "value", "why"),
        [
            (COLOR, pa.utf8(), "BLUE", "'BLUE', which is not a symbol of the enum Color"),
            (HASH, pa.binary(), b"abc", "3 bytes, but Hash has 4"),
            ({**CENTS, "size": 5, "precision": 11}, pa.decimal128(11, 2), Decimal(10**9 - 1), None),
        ],
    )
    def test_rows_that_cannot_be_encoded_are_refused_before_staging(
        self, schema: Any, kind: pa.DataType, value: Any, why: str | None
    ) -> None:
        rows = AvroRows(json.dumps(record(x=["null", schema])))
        batch = pa.RecordBatch.from_pylist([{"x": value}], pa.schema([("x", kind)]))
        if why is None:
            rows.accept("topic", batch)
        else:
            with pytest.raises(ConfigError, match=why):
                rows.accept("topic", batch)
            with pytest.raises(NoForm):
                rows.encode(batch)

    def test_with_names_that_avro_does_not_have_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="the column 'größe' is no name in Avro"):
            derived(pa.schema([("größe", pa.int64())]), "Row")
        with pytest.raises(ConfigError, match="Row_x has type uint64"):
            derived(pa.schema([("x", pa.uint64())]), "Row")

    def test_equal_columns_give_equal_schemas(self) -> None:
        assert derived(TABLE, "Row") == derived(pa.schema(list(TABLE)), "Row")
