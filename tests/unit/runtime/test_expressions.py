"""Which column expressions are accepted, which are refused and with what words, and what fields they give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars import selectors

from holdfast.errors import ConfigError
from holdfast.runtime.rows.expressions import Use, columns_of, predicate_of

USE = Use("with_columns", "job.py:7", "bids")
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.float64()),
        pa.field("s", pa.string(), nullable=False),
        pa.field("t", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("c", pa.bool_()),
        pa.field("l", pa.list_(pa.int64())),
        pa.field("p", pa.struct([pa.field("x", pa.int64())])),
        pa.field("d", pa.decimal128(18, 2)),
        pa.field("y", pa.date32()),
        pa.field("z", pa.binary()),
        pa.field("e", pa.timestamp("ms", "Europe/Berlin")),
        pa.field("u", pa.duration("us")),
    ]
)
A, B, S, T, L, P = pl.col("a"), pl.col("b"), pl.col("s"), pl.col("t"), pl.col("l"), pl.col("p")

ROW_WISE: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: A * 2 + B,
    "comparison": lambda: A > B,
    "when": lambda: pl.when(A > 0).then(B).otherwise(None),
    "literal": lambda: pl.lit(1),
    "arithmetic of literals": lambda: pl.lit(1) + pl.lit(2),
    "a literal that looks like a call": lambda: pl.lit('x.hash() "q" .sum()') + S,
    "text": lambda: S.str.to_uppercase(),
    "cast": lambda: A.cast(pl.Int32),
    "cast to enum": lambda: S.cast(pl.Enum(["a", "b"]), strict=False),
    "is_in": lambda: A.is_in([1, 2]),
    "fill_null": lambda: B.fill_null(0),
    "truncate": lambda: T.dt.truncate("1h"),
    "offset": lambda: T.dt.offset_by("1mo"),
    "struct": lambda: pl.struct("a", "b"),
    "field": lambda: P.struct.field("x"),
    "concat": lambda: pl.concat_str([S, S], separator="-"),
    "format": lambda: pl.format("{}:{}", A, S),
    "horizontal": lambda: pl.max_horizontal("a", "b"),
    "coalesce": lambda: pl.coalesce(B, A),
    "clip": lambda: A.clip(0, 5),
    "replace": lambda: A.replace({1: 2}),
    "list length": lambda: L.list.len(),
    "list sum": lambda: L.list.sum(),
    "list get": lambda: L.list.get(A, null_on_oob=True),
    "contains with a changing pattern": lambda: S.str.contains(S),
    "parse with a format": lambda: S.str.to_datetime("%Y", strict=False),
    "json": lambda: S.str.json_decode(pl.Struct({"x": pl.Int64})),
    "sql": lambda: pl.sql_expr("a + 1"),
    "duration": lambda: T + timedelta(hours=1),
    "is_null": lambda: B.is_null(),
    "other columns": lambda: pl.struct("d", "y", "z", "e", "u", "l", "p", "c"),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "aggregate": lambda: A.sum(),
    "share of the whole": lambda: A / A.sum(),
    "distance from the mean": lambda: A - A.mean(),
    "over": lambda: A.sum().over("s"),
    "row-wise inside over": lambda: (A + 1).over("s"),
    "shift": lambda: A.shift(1),
    "diff": lambda: A.diff(),
    "cum_sum": lambda: A.cum_sum(),
    "cum_sum inside when": lambda: pl.when(A.cum_sum() > 3).then(1).otherwise(0),
    "cum_sum inside structs": lambda: pl.struct(x=pl.struct(y=A.cum_sum())),
    "aggregate inside a struct": lambda: pl.struct(A, B.sum().alias("q")),
    "aggregate as a bound": lambda: A.clip(A.min(), 5),
    "aggregate as a pattern": lambda: S.str.contains(S.first()),
    "aggregate in is_in": lambda: A.is_in(A.unique().implode()),
    "aggregate of a literal": lambda: A + pl.lit(1).sum(),
    "rank": lambda: A.rank(),
    "sort": lambda: A.sort(),
    "reverse": lambda: A.reverse(),
    "unique": lambda: A.unique(),
    "head": lambda: A.head(2),
    "gather": lambda: A.gather([0]),
    "sample": lambda: A.sample(2),
    "shuffle": lambda: A.shuffle(),
    "sample in lists": lambda: L.list.sample(1),
    "explode": lambda: L.explode(),
    "explode beside a column": lambda: A + L.explode(),
    "implode": lambda: A.implode(),
    "drop_nulls": lambda: B.drop_nulls(),
    "filter": lambda: A.filter(A > 1),
    "filters of equal length": lambda: A.filter(A > 1) + A.filter(A > 1),
    "filter inside when": lambda: pl.when(A > 0).then(1).otherwise(A.filter(A > 1)),
    "forward fill": lambda: B.forward_fill(),
    "fill with the mean": lambda: B.fill_null(strategy="mean"),
    "interpolate": lambda: B.interpolate(),
    "rolling": lambda: B.rolling_mean(2),
    "rolling by time": lambda: A.sum().rolling("t", period="1h"),
    "ewm": lambda: B.ewm_mean(alpha=0.5),
    "number of rows": lambda: pl.len(),
    "row numbers": lambda: pl.int_range(pl.len()),
    "first column": lambda: pl.first() + 1,
    "a series": lambda: A + pl.Series([1, 2, 3]),
    "a series of one": lambda: A + pl.lit(pl.Series([1])),
    "is_duplicated": lambda: A.is_duplicated(),
    "rle": lambda: A.rle_id(),
    "qcut": lambda: B.rank() > 1,
    "fold in Python": lambda: pl.fold(pl.lit(0), lambda x, y: x + y, [A, B]),
    "map_batches": lambda: A.map_batches(lambda s: s),
    "map_batches that claims to be row-wise": lambda: A.map_batches(lambda s: s, is_elementwise=True),
    "map_elements": lambda: A.map_elements(lambda x: x, return_dtype=pl.Int64),
    "Python inside": lambda: 1 + A.map_batches(lambda s: s) * 2,
    "parse without a format": lambda: S.str.to_datetime(),
    "categorical codes": lambda: S.cast(pl.Categorical).to_physical(),
    "categorical": lambda: S.cast(pl.Categorical),
    "hash": lambda: A.hash(),
    "list.eval": lambda: L.list.eval(pl.element().cum_sum()),
    "element": lambda: pl.element() + 1,
    "unnest": lambda: P.struct.unnest(),
    "computed selector": lambda: selectors.numeric() + 1,
    "several columns computed": lambda: pl.col("a", "b") * 2,
    "untyped null": lambda: pl.lit(None),
    "sql aggregate": lambda: pl.sql_expr("sum(a)"),
}


class TestRowWiseExpressions:
    @pytest.mark.parametrize("name", ROW_WISE)
    def test_an_expression_of_the_same_row_is_accepted(self, name: str) -> None:
        assert [column.name for column in columns_of([], {"x": ROW_WISE[name]()}, SCHEMA, USE)] == ["x"]

    @pytest.mark.parametrize("name", REFUSED)
    def test_an_expression_of_other_rows_or_of_randomness_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"with_columns on stream 'bids' at job.py:7"):
            columns_of([], {"x": REFUSED[name]()}, SCHEMA, USE)

    @pytest.mark.parametrize("divisor", [3, 7, 10, 1000, 3.7, 0.908])
    def test_a_quotient_by_any_constant_is_accepted(self, divisor: float) -> None:
        expr = pl.col("n") * 1.0 / divisor
        assert predicate_of(expr > 1, pa.schema([("n", pa.int64())]), "here").meta.eq(expr > 1)

    def test_the_refusal_shows_the_offending_part(self) -> None:
        with pytest.raises(ConfigError, match=r'`col\("a"\).sum\(\)` looks at more than one row'):
            columns_of([], {"x": A / A.sum()}, SCHEMA, USE)

    def test_a_python_function_is_named_as_the_reason(self) -> None:
        with pytest.raises(ConfigError, match="calls a Python function"):
            columns_of([], {"x": A.map_batches(lambda s: s)}, SCHEMA, USE)


class TestColumns:
    def test_strings_lists_and_selectors_name_columns(self) -> None:
        given = ["s", ["a"], pl.col("b", "c"), selectors.by_name("t")]
        assert [column.name for column in columns_of(given, {}, SCHEMA, USE)] == ["s", "a", "b", "c", "t"]

    def test_all_columns_are_taken_in_order(self) -> None:
        assert [column.name for column in columns_of([pl.all()], {}, SCHEMA, USE)] == SCHEMA.names

    def test_plain_values_are_constants(self) -> None:
        (column,) = columns_of([], {"x": 2.5}, SCHEMA, USE)
        assert column.field == pa.field("x", pa.float64(), nullable=False)

    def test_a_column_passed_on_unchanged_keeps_type_and_nullability(self) -> None:
        columns = columns_of(["a"], {"moment": "t", "l2": "l"}, SCHEMA, USE)
        assert [column.field for column in columns] == [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("moment", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("l2", pa.list_(pa.int64())),
        ]
        assert [column.passes for column in columns] == ["a", "t", "l"]

    def test_a_computed_column_may_be_null(self) -> None:
        (column,) = columns_of([], {"x": A + 1}, SCHEMA, USE)
        assert column.field == pa.field("x", pa.int64(), nullable=True)

    def test_the_result_of_is_null_is_never_null(self) -> None:
        (column,) = columns_of([], {"x": B.is_null()}, SCHEMA, USE)
        assert not column.field.nullable

    def test_computed_texts_are_plain_strings(self) -> None:
        (column,) = columns_of([], {"x": S.str.split(",")}, SCHEMA, USE)
        assert column.field.type.value_type == pa.string()

    def test_an_unknown_column_is_refused_with_the_closest_one(self) -> None:
        schema = pa.schema([("price", pa.float64()), ("bidder", pa.int64())])
        with pytest.raises(ConfigError, match="did you mean 'price'"):
            columns_of([], {"x": pl.col("prise") + 1}, schema, USE)

    def test_a_selection_of_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="nope"):
            columns_of([pl.col("a", "nope")], {}, SCHEMA, USE)

    def test_mismatched_types_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="does not fit the columns"):
            columns_of([], {"x": S.dt.hour()}, SCHEMA, USE)

    @pytest.mark.parametrize("name", ["_op", "_x", ""])
    def test_reserved_names_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="is not allowed"):
            columns_of([A.alias(name)], {}, SCHEMA, USE)

    def test_a_column_given_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'a' is given twice"):
            columns_of(["a", B.alias("a")], {}, SCHEMA, USE)

    @pytest.mark.parametrize("given", [1, None, lambda row: row, pl.Series([1])])
    def test_an_object_that_is_no_expression_is_refused(self, given: Any) -> None:
        with pytest.raises(ConfigError):
            columns_of([given], {}, SCHEMA, USE)


class TestPredicates:
    def test_a_boolean_is_accepted(self) -> None:
        assert predicate_of(A > 1, SCHEMA, USE).meta.root_names() == ["a"]

    def test_anything_else_is_refused_with_its_type(self) -> None:
        with pytest.raises(ConfigError, match="is of type int64, not bool"):
            predicate_of(A + 1, SCHEMA, USE)

    @pytest.mark.parametrize("given", ["a > 1", True, lambda row: True, A.sum() > 1, pl.col("a", "b") > 1])
    def test_an_object_that_is_no_row_wise_expression_is_refused(self, given: Any) -> None:
        with pytest.raises(ConfigError):
            predicate_of(given, SCHEMA, USE)
