"""JSON values to columns: what is accepted, what is refused, and that a row never depends on its neighbours."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.rows.dead_letters import Refused

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
PAIR = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.utf8())])


def column(kind: pa.DataType, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("x", kind, nullable)])


def one(lines: JsonLines, text: str | bytes | None) -> Any:
    """Return the row of one value, or why it is refused."""
    batch, refused = lines.decode([text.encode() if isinstance(text, str) else text])
    if refused:
        assert batch.num_rows == 0
        return refused[0].error
    [row] = batch.to_pylist()
    return row


def x_of(kind: pa.DataType, text: str, **more: Any) -> Any:
    row = one(JsonLines(column(kind), **more), f'{{"x": {text}}}')
    return row if isinstance(row, str) else row["x"]


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [
            (pa.int64(), "-9223372036854775808", -(2**63)),
            (pa.int32(), "7", 7),
            (pa.float64(), "1.5e3", 1500.0),
            (pa.float64(), "2", 2.0),
            (pa.bool_(), "true", True),
            (pa.utf8(), '"\\u00e4\\n\\"{}"', 'ä\n"{}'),
            (pa.binary(), '"AAH/"', b"\x00\x01\xff"),
            (pa.date32(), '"2026-11-26"', date(2026, 11, 26)),
            (pa.decimal128(12, 2), "12.5", Decimal("12.50")),
            (pa.decimal128(12, 2), '"0.25"', Decimal("0.25")),
            (pa.timestamp("us", "UTC"), '"2026-01-02T03:04:05.678901Z"', AT),
            (pa.timestamp("us", "UTC"), '"2026-01-02T05:04:05.678901+02:00"', AT),
            (pa.timestamp("us", "UTC"), '"2026-01-02T03:04:05.678901999Z"', AT),
        ],
    )
    def test_have_the_type_of_their_column(self, kind: pa.DataType, text: str, value: Any) -> None:
        assert x_of(kind, text) == value

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            *((pa.int64(), text) for text in ('"7"', "1.5", "1.0", "1e3", "true", "9223372036854775808", "[7]", "{}")),
            *((pa.float64(), text) for text in ('"1.5"', "true", "NaN", "Infinity")),
            *((pa.bool_(), text) for text in ("1", '"true"')),
            *((pa.utf8(), text) for text in ("7", "true", "{}", '"a\tb"', '"a\nb"')),
            *((pa.binary(), text) for text in ('"?"', '"AAH"', "7")),
            *((pa.date32(), text) for text in ('"26.11.2026"', '"2026-02-30"', "20000")),
            *((pa.decimal128(4, 2), text) for text in ('"1.234"', "123.45", "true")),
            (pa.timestamp("us", "UTC"), '"2026-01-02T03:04:05"'),
            (pa.timestamp("us", "UTC"), '"yesterday"'),
            (pa.timestamp("us", "UTC"), "1767323045"),
        ],
    )
    def test_json_values_of_another_type_are_refused(self, kind: pa.DataType, text: str) -> None:
        assert isinstance(x_of(kind, text), str)
        assert isinstance(one(JsonLines(column(kind)), f'{{"x": {text}}}'), str)

    @pytest.mark.parametrize(("unit", "number"), [("s", 1767323045), ("ms", 1767323045678), ("us", 1767323045678901)])
    def test_json_times_may_be_integers_since_1970(self, unit: Any, number: int) -> None:
        kind = pa.timestamp("us", "UTC")
        digits = {"s": 0, "ms": 678_000, "us": 678_901}[unit]
        assert x_of(kind, str(number), times=unit) == AT.replace(microsecond=digits)
        assert isinstance(x_of(kind, f'"{number}"', times=unit), str)
        assert isinstance(x_of(kind, str(2**62), times="s"), str)


class TestFields:
    def test_json_fields_absent_from_the_schema_are_ignored(self) -> None:
        row = one(JsonLines(PAIR), '{"more": {"a": [1, {"b": null}]}, "n": 1, "text": "a", "n2": "x"}')
        assert row == {"n": 1, "text": "a"}

    def test_missing_json_fields_are_null_or_refused(self) -> None:
        assert one(JsonLines(PAIR), '{"n": 1}') == {"n": 1, "text": None}
        assert one(JsonLines(PAIR), '{"text": "a"}') == "column 'n' is missing, which the job's schema does not allow"
        assert one(JsonLines(PAIR), "{}") == "column 'n' is missing, which the job's schema does not allow"
        assert one(JsonLines(PAIR), '{"n": null}') == "column 'n' is null, which the job's schema does not allow"

    def test_missing_json_fields_have_their_default_but_an_explicit_null_does_not(self) -> None:
        lines = JsonLines(PAIR, defaults={"n": 7, "text": "none"})
        values = [b'{"text": null}', b"{}", b'{"n": 1, "text": "a"}', b'{"n": null}']
        batch, refused = lines.decode(values)
        assert batch.to_pylist() == [{"n": 7, "text": None}, {"n": 7, "text": "none"}, {"n": 1, "text": "a"}]
        assert refused == {3: Refused("column 'n' is null, which the job's schema does not allow", "bytes", values[3])}

    def test_repeated_json_fields_are_refused(self) -> None:
        assert isinstance(one(JsonLines(PAIR), '{"n": 1, "n": 2}'), str)

    def test_ignored_json_fields_may_be_deeply_nested_unless_a_field_is_missing(self) -> None:
        nested = f'"x": {"[" * 100_000}{"]" * 100_000}'
        assert one(JsonLines(PAIR), f'{{"n": 1, "text": "a", {nested}}}') == {"n": 1, "text": "a"}
        assert one(JsonLines(PAIR), f'{{"text": "a", {nested}}}') == "it is nested too deeply"
        assert one(JsonLines(PAIR, defaults={"text": "none"}), f'{{"n": 1, {nested}}}') == "it is nested too deeply"

    @pytest.mark.parametrize("bad", [b"\x9e", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80"])
    @pytest.mark.parametrize("field", [b'"%s":0', b'"x":"%s"', b'"x":["%s"]', b'"x":{"y":"a%s"}'])
    def test_ignored_json_fields_must_be_utf8(self, field: bytes, bad: bytes) -> None:
        with pytest.raises(UnicodeDecodeError):
            (value := b'{"n":1,%s}' % (field % bad)).decode()
        assert one(JsonLines(PAIR), value) == "it is not UTF-8"

    @pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "Inf", "-NaN"])
    @pytest.mark.parametrize("field", ['"x": %s', '"x": [1, %s]', '"x": {"y": %s}'])
    def test_ignored_json_fields_must_have_no_number_outside_json(self, field: str, word: str) -> None:
        value = f'{{"n": 1, {field % word}}}'
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(value)
        assert isinstance(one(JsonLines(PAIR), value), str)

    def test_ignored_json_fields_may_contain_nan_in_text(self) -> None:
        assert one(JsonLines(PAIR), '{"n": 1, "x": ["NaN", "Infinity \u00e4"]}') == {"n": 1, "text": None}

    def test_invalid_json_fields_refuse_no_other_row(self) -> None:
        rows: list[bytes | None] = [b'{"n": 1}', b'{"n": 2, "x": NaN}', b'{"n": 3, "x": "\xff"}', b'{"n": 4}']
        batch, refused = JsonLines(PAIR).decode(rows)
        assert ([row["n"] for row in batch.to_pylist()], sorted(refused)) == ([1, 4], [1, 2])

    def test_without_a_form_in_json_are_refused_when_a_job_is_planned(self) -> None:
        for kind in (
            pa.timestamp("us"),
            pa.list_(pa.timestamp("us")),
            pa.time64("ns"),
            pa.map_(pa.int64(), pa.int64()),
        ):
            with pytest.raises(hf.ConfigError, match="which hf.JSON cannot read"):
                JsonLines(column(kind))


ORDERS = pa.schema(
    [
        pa.field("n", pa.int64(), False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("to", pa.struct([("city", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
        pa.field("prices", pa.map_(pa.string(), pa.decimal128(9, 2))),
        pa.field("open", pa.time64("us")),
    ]
)


class TestNestedFields:
    def test_are_arrays_and_objects_as_the_standard_library_writes_them(self) -> None:
        written = {"n": 1, "tags": ["ä", ""], "to": {"city": "Ulm", "extra": [1]}, "prices": {"net": "1.50", "b": 2}}
        assert one(JsonLines(ORDERS), json.dumps(written)) == {
            "n": 1,
            "tags": ["ä", ""],
            "to": {"city": "Ulm", "at": None},
            "prices": [("net", Decimal("1.50")), ("b", Decimal("2.00"))],
            "open": None,
        }

    def test_have_times_in_the_form_of_flat_ones(self) -> None:
        text = '{"n": 1, "to": {"at": "2026-01-01T00:00:00.1234567+01:00"}, "open": "09:30:00.1234567"}'
        found = one(JsonLines(ORDERS), text)
        assert not isinstance(found, str)
        assert found["to"]["at"] == datetime(2025, 12, 31, 23, 0, 0, 123456, UTC)
        assert found["open"] == time(9, 30, 0, 123456)
        found = one(JsonLines(ORDERS, "ms"), '{"n": 1, "to": {"at": 1}}')
        assert not isinstance(found, str) and found["to"]["at"] == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ('"tags": "a"', "column 'tags': Expected `array | null`, got `str`"),
            ('"tags": ["a", 1]', r"column 'tags': Expected `str | null`, got `int` - at `$[1]`"),
            ('"to": {"city": 1}', "column 'to': Expected `str | null`, got `int` - at `$.city`"),
            ('"to": {"at": "yesterday"}', "column 'to': Failed to parse string: 'yesterday'"),
            ('"prices": [["net", 1]]', "column 'prices': Expected `object | null`, got `array`"),
            ('"prices": {"net": 1.005}', "column 'prices': Rescaling Decimal value would cause data loss"),
            ('"open": "24:00:00"', "column 'open': '24:00:00' is not a time of day such as 09:30:00"),
        ],
    )
    def test_nested_json_fields_of_another_type_are_refused_with_their_path(self, value: str, why: str) -> None:
        found = one(JsonLines(ORDERS), f'{{"n": 1, {value}}}')
        assert isinstance(found, str) and found.startswith(why)

    def test_take_the_default_only_where_they_are_missing(self) -> None:
        lines = JsonLines(ORDERS, defaults={"tags": ["x"]})
        assert [
            one(lines, text)["tags"] for text in ('{"n": 1}', '{"n": 1, "tags": null}', '{"n": 1, "tags": []}')
        ] == [
            *(["x"], None, []),
        ]


DAMAGED: list[bytes | None] = [
    None,
    *(b"", b" ", b"{", b"}", b"}{", b"[]", b"7", b"null", b'"{}"', b"\xef\xbb\xbf{}", b"nonsense"),
    *(b'{"n": 1}{"n": 2}', b'{"n": 1}\n{"n": 2}', b'{"n": 1},{"n": 2}', b'{"n": 1} x', b'{"n": 1'),
    *(
        b'{"n": 1, "text": "}',
        b'{"}',
        b'{"n":',
        b"1}",
        b'{"n": 1, "text": "\xff"}',
        b'{"n": 1, "text": "\xed\xa0\x80"}',
    ),
    *(b'{"n": 1, "text": "\\ud800"}', b'{"n": 01}', b"{'n': 1}", b'{"n": 1,}', b'{"n": 1, "text": "a\nb"}'),
]
WHOLE = [
    *(b'{"n": 1}', b'{"n": 2, "text": "a"}', b' {"n": 3}\r\n', b'{\n  "n": 4,\r\n  "text": "b"\n}\n'),
    *(b'{"n": 5, "text": "}\\n{"}', b'{"n": 6, "more": {"n": "x"}}', b'{"n": 7, "text": "\\u0000"}'),
]


class TestDamage:
    @pytest.mark.parametrize("value", DAMAGED, ids=repr)
    def test_is_refused_with_its_bytes(self, value: bytes | None) -> None:
        batch, refused = JsonLines(PAIR).decode([value])
        assert batch.num_rows == 0 and batch.schema == PAIR
        assert refused == {0: Refused(refused[0].error, "bytes", value or b"")} and refused[0].error

    def test_the_refusal_of_a_tombstone_states_that_it_is_one(self) -> None:
        assert one(JsonLines(PAIR), None) == "the value is null: a tombstone, which is not a row"

    @given(st.lists(st.sampled_from([*DAMAGED, *WHOLE]), max_size=30))
    def test_changes_no_other_row(self, values: list[bytes | None]) -> None:
        lines = JsonLines(PAIR)
        batch, refused = lines.decode(values)
        alone = [lines.decode([value]) for value in values]
        assert batch.to_pylist() == [row for found, _ in alone for row in found.to_pylist()]
        assert refused == {place: gone[0] for place, (_, gone) in enumerate(alone) if gone}
        assert batch.schema == PAIR and batch.num_rows + len(refused) == len(values)

    @given(st.lists(st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1)}, optional={"text": st.text()})))
    def test_is_never_found_in_what_another_program_wrote(self, rows: list[dict[str, Any]]) -> None:
        values = [json.dumps(row, ensure_ascii=place % 2 == 0).encode() for place, row in enumerate(rows)]
        batch, refused = JsonLines(PAIR).decode(values)
        assert not refused
        assert [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()] == [
            json.loads(value) for value in values
        ]


KINDS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("price", pa.float64()),
        pa.field("sold", pa.bool_()),
        pa.field("text", pa.utf8()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
DEFAULTS = {"price": 0.5, "text": "none"}
NUMBERS = [
    *("0", "-0", "7", "-7", "127", "128", "01", "1.5", "-0.25", "0.1", "1e3", "1.", ".5", "-", "+1", "1 2", "1.5e-3"),
    *(
        "999999999999999999",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "0.30000000000000004",
    ),
    *("123456789012345.5", "0.00000000000001", "99999999999999.9", "-0.0", "NaN", "Infinity", "1_0", "0x1"),
]
OTHERS = [
    *("null", "true", "false", "nul", "tru", "True", "nulll", "[]", "{}", '{"n": 1}', "", " ", '""', '"a"', '"\u00e4"'),
    *('"\\u0041"', '"\\n"', '"a\tb"', '"a', "'a'", '"2026-01-02T03:04:05Z"', '"2026-01-02"', '"\x7f"', '"}{"'),
]
SPACES = st.sampled_from(["", "", "", " ", "\t", "\n", "\r", "  "])
NAMES = st.sampled_from(["n", "small", "price", "sold", "text", "at", "more", "", "N", "nn", "\u00e4", "\\u006e"])


@st.composite
def nearly_json(draw: st.DrawFn) -> bytes | None:
    """Draw a value that is a JSON object, or nearly one."""
    fields = draw(st.lists(st.tuples(NAMES, st.sampled_from([*NUMBERS, *OTHERS])), max_size=7))
    if draw(st.booleans()):
        fields = [("n", draw(st.sampled_from(NUMBERS[:4]))), *fields]
    between = [draw(SPACES) for _ in range(4)]
    name = [f'{between[0]}"{name}"{between[1]}:{between[2]}{value}{between[3]}' for name, value in fields]
    found = ("{" + ",".join(name) + "}").encode()
    match draw(st.integers(0, 12)):
        case 0:
            return None
        case 1:
            return found[: draw(st.integers(0, len(found)))]
        case 2:
            at = draw(st.integers(0, len(found)))
            return found[:at] + draw(st.binary(min_size=1, max_size=2)) + found[at:]
        case 3:
            return draw(SPACES).encode() + found + draw(SPACES).encode()
    return found


class TestTheCompiledParser:
    @pytest.mark.parametrize("times", ["rfc3339", "ms"])
    @settings(max_examples=60)
    @given(st.lists(nearly_json(), max_size=12))
    def test_gives_the_rows_and_refusals_of_the_other(self, times: Any, values: list[bytes | None]) -> None:
        lines = JsonLines(KINDS, times, DEFAULTS)
        batch, refused = lines.decode(values)
        expected, expected_refused = lines._any(values)
        assert batch.equals(expected) and refused == expected_refused
        assert repr(batch.to_pylist()) == repr(expected.to_pylist())  # tells -0.0 from 0.0

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))))
    def test_reads_numbers_as_the_other_does(self, rows: list[tuple[int, float]]) -> None:
        values = [b'{"n":%d,"price":%s}' % (n, repr(price).encode()) for n, price in rows]
        lines = JsonLines(KINDS)
        batch, refused = lines.decode(values)
        expected, _ = lines._any(list(values))
        assert not refused and repr(batch.to_pylist()) == repr(expected.to_pylist())

    def test_reads_a_part_of_an_array(self) -> None:
        values = pa.array([b'{"n":1}', b'{"n":2}', None, b'{"n":[]}', b'{"n":5,"more":"\\""}', b'{"n":6}'], pa.binary())
        batch, refused = JsonLines(PAIR).decode(values[1:])
        assert [row["n"] for row in batch.to_pylist()] == [2, 5, 6] and sorted(refused) == [1, 2]

    def test_reads_what_is_flat(self) -> None:
        lines = JsonLines(KINDS, "ms", DEFAULTS)
        text = b'{"n": 1, "small":-7,"price":1.25, "sold":true,"text":"\xc3\xa4}", "at":1767323045678,"more":0.5}'
        found = lines._flat(pa.array([text, b"{}", b'{"n":2,"text":"\\n"}', None], pa.binary()))
        assert found is not None and found.rows.tolist() == [0, 1], "an escape is left to the other"

    def test_is_not_used_for_columns_that_it_cannot_read(self) -> None:
        for kind in (pa.float32(), pa.decimal128(4, 2), pa.large_utf8()):
            assert JsonLines(column(kind))._flat(pa.array([b"{}"], pa.binary())) is None
        assert JsonLines(pa.schema([("\u00e4", pa.int64())]))._flat(pa.array([b"{}"], pa.binary())) is None
