"""Rows as records: keys, values, tombstones, and the rows and columns that are refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.formats.json_lines import JsonLines, Times
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.json_values.rows import keys_of
from holdfast.sinks.kafka.encoding import RECORD_OVERHEAD, Encoding, JsonValues, RawValues, Values
from holdfast.sinks.kafka.target import Records, listed

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("small", pa.uint8()),
        pa.field("real", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field('te"xt %s', pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(12, 2)),
    ]
)
AT = datetime(2026, 1, 31, 9, 30, 0, 7, UTC)
ROWS: list[tuple[Any, ...]] = [
    (1, 255, 0.1 + 0.2, True, 'a"b\\c\n\r\t\x00ä😀\u2028', AT, date(2026, 1, 31), b"\x00\xff", Decimal("12.30")),
    (-(2**63), 0, -0.0, False, "", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), date(1, 1, 1), b"", Decimal(-1)),
    (2**63 - 1, None, 1e300, None, None, None, None, None, None),
    (None, 7, 5e-324, None, "{}", datetime(9999, 12, 31, tzinfo=UTC), date(9999, 12, 31), b"%", Decimal("0.01")),
]


def batch(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def encoding(key: tuple[str, ...] = (), values: Values | None = None, record_max: int = 1_000_000) -> Encoding:
    return Encoding("topic t", values or JsonValues(), key, record_max)


def pairs(records: Records) -> tuple[object, object]:
    """Return keys and values."""
    return listed(records.keys or ()), listed(records.values)


class TestJson:
    def test_a_value_has_all_columns_in_their_order(self) -> None:
        [value] = JsonValues().encode(batch(ROWS[0]))
        assert value is not None
        assert list(json.loads(value).items()) == [
            ("n", 1),
            ("small", 255),
            ("real", 0.1 + 0.2),
            ("flag", True),
            ('te"xt %s', 'a"b\\c\n\r\t\x00ä😀\u2028'),
            ("at", "2026-01-31T09:30:00.000007Z"),
            ("day", "2026-01-31"),
            ("raw", "AP8="),
            ("price", "12.30"),
        ]

    def test_null_is_written(self) -> None:
        [value] = JsonValues().encode(batch(ROWS[2]))
        assert value is not None
        assert json.loads(value) == dict.fromkeys(SCHEMA.names) | {"n": 2**63 - 1, "real": 1e300}

    @pytest.mark.parametrize("time", ["rfc3339", "us"])
    def test_the_source_reads_what_the_sink_writes(self, time: Times) -> None:
        rows = batch(*ROWS)
        values = JsonValues(time).encode(rows)
        assert all(value is not None and b"\n" not in value for value in values)
        decoded, refused = JsonLines(SCHEMA, time).decode(values)
        assert not refused and decoded.to_pylist() == rows.to_pylist()

    @pytest.mark.parametrize(("time", "expected"), [("s", [1769851800, -1]), ("ms", [1769851800000, -1])])
    def test_times_can_be_numbers(self, time: Times, expected: list[int]) -> None:
        values = JsonValues(time).encode(batch(*ROWS[:2]))
        assert [json.loads(value or b"")["at"] for value in values] == expected

    def test_a_batch_without_rows_has_no_values(self) -> None:
        assert JsonValues().encode(batch(ROWS[0]).slice(0, 0)) == []

    def test_a_slice_is_encoded_alone(self) -> None:
        whole = JsonValues().encode(batch(*ROWS))
        assert JsonValues().encode(batch(*ROWS).slice(1, 2)) == whole[1:3]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_real_number_without_a_form_is_refused(self, value: float) -> None:
        schema = pa.schema([pa.field("real", pa.float64())])
        encoding().accept(batch((1.5,), (None,), schema=schema))
        with pytest.raises(ConfigError, match="'real' holds NaN or an infinity"):
            encoding().accept(batch((1.5,), (value,), schema=schema))

    @pytest.mark.parametrize(
        "kind", [pa.list_(pa.duration("s")), pa.timestamp("us"), pa.duration("s"), pa.time64("ns")]
    )
    def test_a_column_without_a_form_is_refused(self, kind: pa.DataType) -> None:
        JsonValues().check("topic t", SCHEMA, ())
        with pytest.raises(ConfigError, match="the column 'x' has type"):
            JsonValues().check("topic t", pa.schema([pa.field("x", kind)]), ())


class TestRaw:
    VALUES = pa.schema([pa.field("user", pa.string()), pa.field("value", pa.binary())])

    def test_the_column_is_the_value(self) -> None:
        rows = batch(("a", b"\x00"), ("b", None), schema=self.VALUES)
        found = encoding(("user",), RawValues()).records(rows)
        assert pairs(found) == ([b"a", b"b"], [b"\x00", None])

    def test_other_columns_are_refused(self) -> None:
        RawValues().check("topic t", self.VALUES, ("user",))
        for schema, key in (
            (self.VALUES, ()),
            (self.VALUES.remove(1), ("user",)),
            (pa.schema({"value": pa.int64()}), ()),
        ):
            with pytest.raises(ConfigError, match="raw values need a column 'value'"):
                RawValues().check("topic t", schema, key)


class TestKeys:
    def test_one_column_of_text_or_bytes_is_the_key_as_it_is(self) -> None:
        assert keys_of(batch(*ROWS), ('te"xt %s',))[1:3] == [b"", None]
        assert keys_of(batch(*ROWS), ("raw",)) == [b"\x00\xff", b"", None, b"%"]

    def test_one_column_of_another_type_is_a_json_value(self) -> None:
        assert keys_of(batch(*ROWS), ("n",)) == [b"1", b"-9223372036854775808", b"9223372036854775807", None]
        assert keys_of(batch(ROWS[0]), ("day",)) == [b'"2026-01-31"']
        assert keys_of(batch(ROWS[0]), ("flag",)) == [b"true"]

    def test_several_columns_are_a_json_object_in_the_order_of_the_key(self) -> None:
        assert keys_of(batch(ROWS[0], ROWS[2]), ("flag", "n")) == [
            b'{"flag":true,"n":1}',
            b'{"flag":null,"n":9223372036854775807}',
        ]

    def test_equal_rows_of_the_key_have_equal_keys_in_any_batch(self) -> None:
        whole = keys_of(batch(*ROWS), ("n", "real"))
        assert [keys_of(batch(row), ("n", "real"))[0] for row in ROWS] == whole


class TestChanges:
    CHANGES = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string()), pa.field(OP, pa.int8())])

    def test_a_delete_is_a_tombstone(self) -> None:
        rows = batch((1, "ann", PUT), (2, None, DELETE), schema=self.CHANGES)
        found = encoding(("user",)).records(rows)
        assert pairs(found) == ([b"1", b"2"], [b'{"user":1,"name":"ann"}', None])

    def test_deletes_alone_are_tombstones(self) -> None:
        rows = batch((1, None, DELETE), (2, "x", DELETE), schema=self.CHANGES)
        assert pairs(encoding(("user",)).records(rows)) == ([b"1", b"2"], [None, None])

    def test_a_change_without_a_key_is_refused(self) -> None:
        rows = batch((None, "ann", PUT), schema=self.CHANGES)
        for refuse in (encoding(("user",)).records, encoding(("user",)).accept):
            with pytest.raises(ConfigError, match="1 rows have no value in the key column 'user'"):
                refuse(rows)

    def test_a_stream_that_only_adds_may_lack_keys(self) -> None:
        rows = batch((1, "ann"), (None, "bea"), schema=self.CHANGES.remove(2))
        encoding(("user",)).accept(rows)
        assert pairs(encoding(("user",)).records(rows))[0] == [b"1", None]


class TestSize:
    TEXT = pa.schema([pa.field("text", pa.string())])

    @pytest.mark.parametrize("text", ["x", "\x00", "ä", '"'])
    def test_a_row_is_refused_exactly_if_its_record_is_too_large(self, text: str) -> None:
        [value] = JsonValues().encode(batch((text * 5_000,), schema=self.TEXT))
        size = len(value or b"") + RECORD_OVERHEAD
        rows = batch((text,), (text * 5_000,), schema=self.TEXT)
        encoding(record_max=size).accept(rows)
        with pytest.raises(ConfigError, match="as a record, the limit is"):
            encoding(record_max=size - 1).accept(rows)

    def test_the_key_counts(self) -> None:
        rows = batch(("x" * 5_000,), schema=self.TEXT)
        encoding(record_max=7_000).accept(rows)
        with pytest.raises(ConfigError, match="as a record"):
            encoding(("text",), record_max=7_000).accept(rows)

    def test_a_deleted_row_is_not_encoded(self) -> None:
        schema = self.TEXT.append(pa.field("real", pa.float64())).append(pa.field(OP, pa.int8()))
        encoding(("text",)).accept(batch(("a", float("nan"), DELETE), schema=schema))
