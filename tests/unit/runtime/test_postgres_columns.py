"""Columns of Postgres as columns of Arrow."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.sources.postgres.columns import PgColumn, arrow_type, row_fields, values_of

NUMERIC_10_2 = ((10 << 16) | 2) + 4
CASES: list[tuple[int, int, list[str], list[Any]]] = [
    (16, -1, ["t", "f"], [True, False]),
    (17, -1, ["\\x", "\\x00ff"], [b"", b"\x00\xff"]),
    (21, -1, ["-32768"], [-32768]),
    (23, -1, ["2147483647"], [2147483647]),
    (20, -1, ["-9223372036854775808"], [-(2**63)]),
    (25, -1, ["", "ä😀\n"], ["", "ä😀\n"]),
    (700, -1, ["0.1", "Infinity", "1e-45"], [0.10000000149011612, math.inf, 1.401298464324817e-45]),
    (701, -1, ["0.30000000000000004", "-Infinity", "1e-07", "-0"], [0.1 + 0.2, -math.inf, 1e-07, -0.0]),
    (1082, -1, ["2026-01-31", "0001-01-01", "9999-12-31"], [date(2026, 1, 31), date.min, date.max]),
    (
        1114,
        -1,
        ["2026-01-31 09:30:00.000007", "2026-01-31 09:30:00"],
        [datetime(2026, 1, 31, 9, 30, 0, 7), datetime(2026, 1, 31, 9, 30)],
    ),
    (1184, -1, ["2026-01-31 09:30:00.5+00"], [datetime(2026, 1, 31, 9, 30, 0, 500_000, UTC)]),
    (1700, NUMERIC_10_2, ["12345678.90", "-0.01"], [Decimal("12345678.90"), Decimal("-0.01")]),
    (2950, -1, ["6f9b0f6e-0000-4000-8000-000000000001"], ["6f9b0f6e-0000-4000-8000-000000000001"]),
    (3802, -1, ['{"a": [1, 2]}'], ['{"a": [1, 2]}']),
]


def column(oid: int, typmod: int = -1) -> PgColumn:
    return PgColumn("c", oid, typmod, "the type")


@pytest.mark.parametrize(("oid", "typmod", "texts", "expected"), CASES, ids=[str(case[0]) for case in CASES])
def test_values_are_those_that_the_server_wrote(oid: int, typmod: int, texts: list[str], expected: list[Any]) -> None:
    values = values_of("table t", pa.array([*texts, None], pa.utf8()), column(oid, typmod))
    assert values.type == arrow_type(column(oid, typmod))
    assert values.to_pylist() == [*expected, None]


def test_no_number_is_read_as_one() -> None:
    (value,) = values_of("table t", pa.array(["NaN"]), column(701)).to_pylist()
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("oid", "typmod", "text"),
    [
        (1082, -1, "infinity"),
        (1082, -1, "0044-03-15 BC"),
        (1114, -1, "-infinity"),
        (1184, -1, "infinity"),
        (1184, -1, "0044-03-15 00:00:00+00 BC"),
        (1184, -1, "10000-01-01 00:00:00+00"),
        (1700, NUMERIC_10_2, "NaN"),
    ],
)
def test_values_that_no_column_can_hold_are_refused_without_repeating_them(oid: int, typmod: int, text: str) -> None:
    with pytest.raises(ConfigError, match="'c' has a value that") as refused:
        values_of("table t", pa.array([text]), column(oid, typmod))
    assert text not in refused.value.what


def numeric(digits: int, scale: int) -> int:
    """Return the type modifier, as make_numeric_typmod of the server does."""
    return ((digits << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("typmod", "kind", "text"),
    [
        (numeric(38, 38), pa.decimal128(38, 38), "0." + "9" * 38),
        (numeric(3, 5), pa.decimal128(5, 5), "0.00999"),
        (numeric(5, -2), pa.decimal128(7, 0), "9999900"),
        (numeric(38, -1), pa.utf8(), "9" * 38 + "0"),
        (numeric(39, 2), pa.utf8(), "9" * 37 + ".99"),
        (numeric(2, 39), pa.utf8(), "0." + "0" * 37 + "99"),
        (-1, pa.utf8(), "NaN"),
        (-1, pa.utf8(), "1.500"),
    ],
)
def test_a_numeric_has_the_digits_of_its_values_or_is_text(typmod: int, kind: pa.DataType, text: str) -> None:
    [value] = values_of("table t", pa.array([text]), column(1700, typmod))
    assert value.type == kind and Decimal(str(value.as_py())).compare_total(Decimal(text)) == 0


@pytest.mark.parametrize("oid", [1007, 1186, 1083, 1266, 869, 790, 142, 3904, 26, 600])
def test_a_value_of_any_other_type_keeps_its_text(oid: int) -> None:
    assert values_of("table t", pa.array(["{1,NULL}", None]), column(oid)).to_pylist() == ["{1,NULL}", None]


def test_a_domain_is_what_it_is_made_of() -> None:
    euros = PgColumn("c", 99_999, -1, "euros", (1700, NUMERIC_10_2))
    assert values_of("table t", pa.array(["1.50"]), euros).to_pylist() == [Decimal("1.50")]
    assert euros.shape == ("c", 99_999, -1)


def test_keys_are_never_null_and_other_columns_may_be() -> None:
    fields = row_fields((PgColumn("id", 23, -1), PgColumn("mood", 99_999, -1, "mood")), ("id",))
    assert fields == pa.schema([pa.field("id", pa.int64(), False), pa.field("mood", pa.utf8())])
