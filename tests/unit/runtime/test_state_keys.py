"""The key that a user types, as the key of a row."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.inspect.keys import parsed
from holdfast.state.keys.batch import KeyType

KINDS: dict[pa.DataType, tuple[str, Any]] = {
    pa.int64(): ("-17", -17),
    pa.uint64(): ("18446744073709551615", (1 << 64) - 1),
    pa.bool_(): ("true", True),
    pa.utf8(): ("null", "null"),
    pa.date32(): ("2026-03-01", date(2026, 3, 1)),
    pa.timestamp("us", "UTC"): ("2026-03-01T02:00:00+02:00", datetime(2026, 3, 1, tzinfo=UTC)),
    pa.timestamp("ms"): ("2026-03-01T00:00:00", datetime(2026, 3, 1)),
    pa.binary(): (base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
}


def value(text: str, kind: pa.DataType, nullable: bool = False) -> Any:
    key = KeyType(("k",), (kind,), (nullable,))
    [column] = key.decode(parsed(text, key))
    return column.to_pylist()[0]


class TestValues:
    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_every_type_has_a_text_form(self, kind: pa.DataType) -> None:
        text, expected = KINDS[kind]
        assert value(text, kind) == expected
        assert value(f'["{text}"]', kind) == expected

    def test_json_numbers_and_booleans_are_values_too(self) -> None:
        assert (value("[17]", pa.int32()), value("[false]", pa.bool_())) == (17, False)

    def test_null_can_be_given_only_in_a_list(self) -> None:
        assert value("[null]", pa.utf8(), nullable=True) is None
        assert value("null", pa.utf8(), nullable=True) == "null"

    @given(st.text(min_size=1).filter(lambda text: not text.startswith("[")))
    def test_a_string_key_is_given_verbatim(self, text: str) -> None:
        assert value(text, pa.utf8()) == text

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("", pa.int64()),
            ("1_000", pa.int64()),
            (" 1", pa.int64()),
            ("1.0", pa.int64()),
            ("[1.0]", pa.int64()),
            ("[true]", pa.int64()),
            ("128", pa.int8()),
            ("-1", pa.uint8()),
            ("1", pa.bool_()),
            ("[1]", pa.bool_()),
            ("True", pa.bool_()),
            ("[[]]", pa.utf8()),
            ("[1]", pa.utf8()),
            ("yesterday", pa.date32()),
            ("2026-03-01T00:00:00", pa.timestamp("us", "UTC")),
            ("2026-03-01T00:00:00Z", pa.timestamp("us")),
            ("?", pa.binary()),
        ],
        ids=str,
    )
    def test_a_value_that_does_not_fit_is_refused_with_the_type_of_the_key(self, text: str, kind: pa.DataType) -> None:
        with pytest.raises(hf.ConfigError) as refused:
            value(text, kind)
        assert f"the key is (k: {kind})" in refused.value.next_step
