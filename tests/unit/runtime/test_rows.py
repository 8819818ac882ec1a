"""Python rows become batches only if every value fits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from holdfast.runtime.rows.rows import WrongRow, batch_of_columns, batch_of_rows

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Word:
    n: int
    word: str | None = None


class TestBatchOfRows:
    def test_instances_mappings_and_tuples_are_rows(self) -> None:
        batch = batch_of_rows(SCHEMA, [Word(1, "a"), {"n": 2, "word": "b"}, (3, "c"), {"n": 4}])
        assert batch.schema == SCHEMA
        assert batch.to_pydict() == {"n": [1, 2, 3, 4], "word": ["a", "b", "c", None]}

    def test_rows_of_one_form_give_the_same_batch_as_mixed_forms(self) -> None:
        expected = batch_of_rows(SCHEMA, [(1, "a"), {"n": 2}])
        assert batch_of_rows(SCHEMA, [Word(1, "a"), Word(2)]) == expected
        assert batch_of_rows(SCHEMA, [{"word": "a", "n": 1}, {"word": None, "n": 2}]) == expected
        assert batch_of_rows(SCHEMA, [{"word": "a", "n": 1}, {"n": 2}]) == expected

    def test_named_values_are_matched_by_name_not_by_position(self) -> None:
        class Swapped(NamedTuple):
            word: str
            n: int

        assert batch_of_rows(SCHEMA, [Swapped("a", 1)]).to_pylist() == [{"n": 1, "word": "a"}]

    def test_a_missing_attribute_of_an_instance_is_named(self) -> None:
        hollow = Word(1)
        del hollow.n
        with pytest.raises(WrongRow, match="Word has no field 'n'") as caught:
            batch_of_rows(SCHEMA, [Word(2), hollow])
        assert caught.value.row == 1

    @pytest.mark.parametrize(
        ("row", "message", "column"),
        [
            ({"word": "a"}, "'n' is missing", "n"),
            ({"n": None}, "'n' is null", "n"),
            ({"n": 1, "x": 2}, "'x' is not in the schema", None),
            ((1,), "1 values for 2 columns", None),
            (7, "int is not a row", None),
            (NOON, "datetime is not a row", None),
            ({"n": "1"}, "takes int64, not str '1'", "n"),
            ({"n": 1.0}, "takes int64, not float 1.0", "n"),
            ({"n": True}, "takes int64, not bool True", "n"),
            ({"n": 2**63}, "cannot hold 9223372036854775808", "n"),
            ({"n": 1, "word": b"a"}, "takes string, not bytes", "word"),
        ],
    )
    def test_a_row_that_does_not_fit_is_named(self, row: object, message: str, column: str | None) -> None:
        with pytest.raises(WrongRow, match=message) as caught:
            batch_of_rows(SCHEMA, [Word(1), row])
        assert (caught.value.column, caught.value.row) == (column, 1)

    @pytest.mark.parametrize(
        ("kind", "value", "stored"),
        [
            (pa.float64(), 1, 1.0),
            (pa.float64(), np.float32(0.5), 0.5),
            (pa.int64(), np.int32(5), 5),
            (pa.timestamp("us", "UTC"), NOON.astimezone(timezone(timedelta(hours=2))), NOON),
            (pa.date32(), date(2026, 1, 2), date(2026, 1, 2)),
            (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.50")),
            (pa.binary(), b"\x00", b"\x00"),
        ],
    )
    def test_values_that_fit_are_stored(self, kind: pa.DataType, value: object, stored: object) -> None:
        assert batch_of_rows(pa.schema([("x", kind)]), [(value,)]).column(0).to_pylist() == [stored]

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=None)),
            (pa.date32(), NOON),
            (pa.binary(), "text"),
            (pa.bool_(), 1),
            (pa.float64(), "1.5"),
            (pa.decimal128(10, 2), Decimal("1.555")),
            (pa.decimal128(10, 2), 1.5),
            (pa.utf8(), "\ud800"),
        ],
    )
    def test_ambiguous_values_are_refused(self, kind: pa.DataType, value: object) -> None:
        with pytest.raises(WrongRow) as caught:
            batch_of_rows(pa.schema([("x", kind)]), [(value,)])
        assert caught.value.column == "x"


class TestBatchOfColumns:
    @pytest.mark.parametrize("numbers", [[1, 2], np.array([1, 2]), pa.array([1, 2]), pa.chunked_array([[1], [2]])])
    def test_columns_can_be_given_in_many_forms(self, numbers: object) -> None:
        batch = batch_of_columns(SCHEMA, {"word": pl.Series(["a", None]), "n": numbers}, 2)
        assert batch.schema == SCHEMA
        assert batch.to_pydict() == {"n": [1, 2], "word": ["a", None]}

    def test_a_record_batch_is_matched_by_column_name(self) -> None:
        given = pa.record_batch({"word": ["a"], "n": pa.array([1], pa.int32())})
        assert batch_of_columns(SCHEMA, given, 1).to_pydict() == {"n": [1], "word": ["a"]}

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"n": [1, 2]}, "'word' is missing"),
            ({"n": [1], "word": ["a", "b"]}, "'n' has 1 values instead of 2"),
            ({"n": [1, 2], "word": ["a", "b"], "x": [1, 2]}, "'x' is not in the schema"),
            ({"n": np.array([1.5, 2.0]), "word": ["a", "b"]}, "'n' takes int64"),
            ({"n": pa.array([1, None]), "word": ["a", "b"]}, "'n' is null"),
            ({"n": ["1", "2"], "word": ["a", "b"]}, "'n' takes int64, not str"),
            ({"n": 5, "word": ["a", "b"]}, "'n' takes int64"),
        ],
    )
    def test_columns_that_do_not_fit_are_named(self, columns: dict[str, object], message: str) -> None:
        with pytest.raises(WrongRow, match=message):
            batch_of_columns(SCHEMA, columns, 2)
