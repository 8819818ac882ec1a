"""Few rows have the JSON of many: the same bytes, whichever way they are made."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sinks.json_values import few, rows
from holdfast.sinks.json_values.few import objects_of_few

TIME = pa.timestamp("us", "UTC")
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9, 9)),
    "flöat": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e6, 1e6)),
    "bool": (pa.bool_(), st.none() | st.booleans()),
    'te"xt': (pa.string(), st.none() | st.text(max_size=5) | st.sampled_from(["\n", "\u2028", '"\\/', "\x00\x7f"])),
    "time": (TIME, st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)),
}
FORMS: tuple[rows.TimeForm, ...] = ("rfc3339", "s", "ms", "us")


def columns_of(data: st.DataObject) -> dict[str, pa.Array]:
    size = data.draw(st.integers(1, 4))
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True))
    return {
        name: pa.array(data.draw(st.lists(KINDS[name][1], min_size=size, max_size=size)), KINDS[name][0])
        for name in names
    }


def by_query(columns: dict[str, pa.Array], time: rows.TimeForm) -> list[bytes]:
    frame = pl.DataFrame([pl.Series(name, column) for name, column in columns.items()])
    kinds = tuple((name, column.type) for name, column in columns.items())
    return [each.encode() for each in frame.select(rows._object(kinds, time)).to_series()]


class TestFewObjects:
    @settings(max_examples=200, deadline=None)
    @given(data=st.data(), time=st.sampled_from(FORMS))
    def test_the_texts_are_those_of_a_query(self, data: st.DataObject, time: rows.TimeForm) -> None:
        columns = columns_of(data)
        texts = objects_of_few(columns, rows._PER_US.get(time))
        assert texts is None or texts == by_query(columns, time)

    @pytest.mark.parametrize("time", FORMS)
    def test_usual_rows_need_no_query(self, time: rows.TimeForm) -> None:
        columns = {
            "n": pa.array([1, 2], pa.int64()).slice(1),
            "x": pa.array([0.5, -3902.268], pa.float64()).slice(1),
            "s": pa.array(["a", "b\n"]).slice(1),
            "b": pa.array([True, None]).slice(1),
            "at": pa.array([0, 1_796_000_000_123_456], TIME).slice(1),
        }
        texts = objects_of_few(columns, rows._PER_US.get(time))
        assert texts == by_query(columns, time)

    @pytest.mark.parametrize(
        "column",
        [
            pa.array([1e16]),
            pa.array([1e-5]),
            pa.array([math.nan]),
            pa.array([math.inf]),
            pa.array([1, None], pa.int64()),
            pa.array([1], pa.uint8()),
            pa.array([b"x"]),
            pa.array([253_402_300_800_000_000], TIME),
        ],
        ids=str,
    )
    def test_other_values_are_left_to_a_query(self, column: pa.Array) -> None:
        assert objects_of_few({"x": column}, None) is None

    def test_many_rows_are_left_to_a_query(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []
        monkeypatch.setattr(rows, "objects_of_few", lambda columns, _: asked.append(len(columns["n"])))
        for size in (few.ROWS_MAX, few.ROWS_MAX + 1):
            assert len(rows.objects(pa.record_batch({"n": range(size)}), ["n"])) == size
        assert asked == [few.ROWS_MAX]
