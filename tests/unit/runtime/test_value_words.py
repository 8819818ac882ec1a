"""Values as words of a key: they sort as the values do, and give them back; for every type."""

from __future__ import annotations

from datetime import UTC, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.operators.tables.counted_values import values_of, words_of

INTEGERS = {kind: st.integers(low, high) for kind, low, high in [
    (pa.int8(), -(2**7), 2**7 - 1), (pa.int32(), -(2**31), 2**31 - 1), (pa.int64(), -(2**63), 2**63 - 1),
    (pa.uint8(), 0, 2**8 - 1), (pa.uint64(), 0, 2**64 - 1),
]}  # fmt: skip
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Context(prec=38).scaleb(Decimal(n), -9))
DURATIONS = st.timedeltas(timedelta(days=-400), timedelta(days=400))
TYPES = INTEGERS | {
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 9): DECIMALS,
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.duration("us"): DURATIONS,
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.string(): st.text(),
    pa.large_binary(): st.binary(),
}


class TestWords:
    @pytest.mark.parametrize("kind", TYPES, ids=str)
    def test_words_sort_as_their_values_do_and_give_them_back(self, kind: pa.DataType) -> None:
        @settings(max_examples=40, deadline=None)
        @given(st.lists(TYPES[kind], max_size=6))
        def check(values: list[Any]) -> None:
            column = pa.array([None, *values], kind)[1:]
            words = words_of(column)
            assert values_of(words, kind).equals(column)
            keys = list(zip(*(each.to_pylist() for each in words), strict=True))
            assert [value for _, value in sorted(zip(keys, values, strict=True))] == sorted(values)

        check()
