"""JSON values to columns: what is accepted, what is refused, and that a row never depends on its neighbours."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.rows.dead_letters import Refused
from holdfast.runtime.rows.json_lines import JsonLines

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
    def test_of_another_type_are_refused(self, kind: pa.DataType, text: str) -> None:
        assert isinstance(x_of(kind, text), str)
        assert isinstance(one(JsonLines(column(kind)), f'{{"x": {text}}}'), str)

    @pytest.mark.parametrize(("unit", "number"), [("s", 1767323045), ("ms", 1767323045678), ("us", 1767323045678901)])
    def test_of_time_may_be_integers_since_1970(self, unit: Any, number: int) -> None:
        kind = pa.timestamp("us", "UTC")
        digits = {"s": 0, "ms": 678_000, "us": 678_901}[unit]
        assert x_of(kind, str(number), times=unit) == AT.replace(microsecond=digits)
        assert isinstance(x_of(kind, f'"{number}"', times=unit), str)
        assert isinstance(x_of(kind, str(2**62), times="s"), str)


class TestFields:
    def test_that_the_schema_lacks_are_ignored(self) -> None:
        row = one(JsonLines(PAIR), '{"more": {"a": [1, {"b": null}]}, "n": 1, "text": "a", "n2": "x"}')
        assert row == {"n": 1, "text": "a"}

    def test_that_are_missing_are_null_or_refused(self) -> None:
        assert one(JsonLines(PAIR), '{"n": 1}') == {"n": 1, "text": None}
        assert one(JsonLines(PAIR), '{"text": "a"}') == "column 'n' is missing, which the job's schema does not allow"
        assert one(JsonLines(PAIR), "{}") == "column 'n' is missing, which the job's schema does not allow"
        assert one(JsonLines(PAIR), '{"n": null}') == "column 'n' is null, which the job's schema does not allow"

    def test_that_are_missing_have_their_default_and_a_null_that_is_written_does_not(self) -> None:
        lines = JsonLines(PAIR, defaults={"n": 7, "text": "none"})
        values = [b'{"text": null}', b"{}", b'{"n": 1, "text": "a"}', b'{"n": null}']
        batch, refused = lines.decode(values)
        assert batch.to_pylist() == [{"n": 7, "text": None}, {"n": 7, "text": "none"}, {"n": 1, "text": "a"}]
        assert refused == {3: Refused("column 'n' is null, which the job's schema does not allow", "bytes", values[3])}

    def test_that_are_given_twice_are_refused(self) -> None:
        assert isinstance(one(JsonLines(PAIR), '{"n": 1, "n": 2}'), str)

    def test_that_are_ignored_may_be_nested_deeply_but_nothing_is_guessed_then(self) -> None:
        nested = f'"x": {"[" * 100_000}{"]" * 100_000}'
        assert one(JsonLines(PAIR), f'{{"n": 1, "text": "a", {nested}}}') == {"n": 1, "text": "a"}
        assert one(JsonLines(PAIR), f'{{"text": "a", {nested}}}') == "it is nested too deeply"
        assert one(JsonLines(PAIR, defaults={"text": "none"}), f'{{"n": 1, {nested}}}') == "it is nested too deeply"

    def test_without_a_form_in_json_are_refused_when_a_job_is_planned(self) -> None:
        for kind in (pa.timestamp("us"), pa.list_(pa.int64()), pa.time64("us")):
            with pytest.raises(hf.ConfigError, match="which hf.JSON cannot read"):
                JsonLines(column(kind))


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

    def test_of_a_tombstone_says_that_it_is_one(self) -> None:
        assert one(JsonLines(PAIR), None) == "the value is null: a tombstone, which is no row"

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
