"""Expressions that are computed without a query give what Polars gives, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.operators.arithmetic import NeedsQuery, as_array, compiled
from holdfast.runtime.operators.direct import Direct, direct
from holdfast.runtime.rows.frames import twice

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float64()),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("s", pa.string()),
        ("t", pa.string()),
        ("n", pa.int32()),
    ]
)
INTEGER = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3) | st.sampled_from([1 << 53, (1 << 53) + 1])
FLOAT = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 1.5, float(1 << 53), math.nan])
TEXT = st.text(max_size=4) | st.sampled_from(["", "a", "é", "\x00"])
VALUES = {
    "i": INTEGER,
    "j": INTEGER,
    "f": FLOAT,
    "g": FLOAT,
    "b": st.booleans(),
    "c": st.booleans(),
    "s": TEXT,
    "t": TEXT,
    "n": st.integers(-9, 9),
}
ROW = st.fixed_dictionaries(VALUES)
FINITE = st.floats(width=64, allow_nan=False, allow_infinity=False)


@st.composite
def numbers(draw: Any, depth: int = 3) -> Any:
    if depth == 0 or draw(st.booleans()):
        leaf = st.sampled_from("ijfg").map(pl.col) | INTEGER.map(pl.lit) | FINITE.map(pl.lit)
        return draw(leaf | st.sampled_from("ijfg").map(pl.col))
    left, right = draw(numbers(depth - 1)), draw(numbers(depth - 1))
    match draw(st.sampled_from(["+", "-", "*", "/", "neg"])):
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return -left


@st.composite
def conditions(draw: Any, depth: int = 2) -> Any:
    choice = draw(st.sampled_from(["number", "text", "column"] + (["and", "or", "not"] if depth else [])))
    compare = draw(st.sampled_from(["__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__"]))
    match choice:
        case "number":
            return getattr(draw(numbers(2)), compare)(draw(numbers(2)))
        case "text":
            leaf = st.sampled_from("st").map(pl.col)
            return getattr(draw(leaf), compare)(draw(leaf | TEXT.map(pl.lit)))
        case "column":
            return pl.col(draw(st.sampled_from("bc")))
        case "and":
            return draw(conditions(depth - 1)) & draw(conditions(depth - 1))
        case "or":
            return draw(conditions(depth - 1)) | draw(conditions(depth - 1))
        case _:
            return ~draw(conditions(depth - 1))


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def bits(array: pa.Array) -> Any:
    """Return the values so that -0.0 differs from 0.0, and every NaN is the same."""
    if array.type != pa.float64():
        return array.to_pylist()
    return [None if value is None else "nan" if math.isnan(value) else value.hex() for value in array.to_pylist()]


def by_polars(expr: pl.Expr, batch: pa.RecordBatch) -> pa.Array:
    column = twice(pl.DataFrame(batch)).select(x=expr).to_series().head(len(batch))
    return column.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


class TestCompiled:
    @settings(max_examples=120, deadline=None)
    @given(expr=numbers() | conditions(), rows=st.lists(ROW, min_size=1, max_size=6))
    def test_an_expression_has_the_values_and_the_type_that_polars_gives(
        self, expr: pl.Expr, rows: list[dict[str, Any]]
    ) -> None:
        function, batch = compiled(expr, SCHEMA), batch_of(rows)
        if function is None:
            return
        try:
            with np.errstate(all="ignore"):
                array = as_array(function.compute(columns_of(batch)), function.kind)
        except NeedsQuery:
            return
        expected = by_polars(expr, batch)
        assert array.type == expected.type
        assert bits(array) == bits(expected)

    @pytest.mark.parametrize(
        "expr",
        [
            pl.col("f") / 3.7,
            pl.col("f") / 7,
            pl.col("i") / 7,
            pl.col("i") / 3.7,
            3.7 / pl.col("f"),
            pl.col("f") / 0,
            pl.col("i") / 5e-324,
        ],
        ids=str,
    )
    def test_a_quotient_is_that_of_polars_and_of_a_single_row(self, expr: pl.Expr) -> None:
        batch = batch_of([{"i": each, "f": each / 10} for each in range(-50, 50)])
        function = compiled(expr, SCHEMA)
        assert function is not None
        with np.errstate(all="ignore"):
            whole = as_array(function.compute(columns_of(batch)), function.kind)
            single = [
                as_array(function.compute(columns_of(batch.slice(row, 1))), function.kind) for row in range(len(batch))
            ]
        assert bits(whole) == bits(by_polars(expr, batch)) == bits(pa.concat_arrays(single))

    @pytest.mark.parametrize(
        "expr",
        [pl.col("f") + 0.0, 0 + pl.col("f"), pl.col("f") - 0, 0.0 - pl.col("f"), 0.0 - pl.col("i")],
        ids=str,
    )
    def test_signs_of_zero_that_polars_makes_are_left_to_it(self, expr: pl.Expr) -> None:
        assert compiled(expr, SCHEMA) is None

    @pytest.mark.parametrize(
        ("expr", "kind"),
        [
            (pl.col("i") > 100, pa.bool_()),
            (pl.col("i") * 0.908, pa.float64()),
            (pl.col("i") + pl.col("j") * 2, pa.int64()),
            (pl.col("i") / pl.col("j"), pa.float64()),
            (-pl.col("f") - 1, pa.float64()),
            ((pl.col("s") == "a") & ~(pl.col("f") <= 1.5) | pl.col("b"), pa.bool_()),
        ],
    )
    def test_usual_expressions_are_compiled(self, expr: pl.Expr, kind: pa.DataType) -> None:
        function = compiled(expr, SCHEMA)
        assert function is not None and function.kind == kind

    @pytest.mark.parametrize(
        "expr",
        [
            pl.lit(1) + 2,
            pl.col("i") // 2,
            pl.col("i") % 2,
            pl.col("i") > (1 << 70),
            pl.col("n") + 1,
            pl.col("s") + "a",
            pl.col("i").is_null(),
            pl.col("i").sum(),
            pl.col("i").cast(pl.Float64),
            pl.col("b") + pl.col("c"),
            pl.col("b") == pl.col("c"),
            pl.col("i") == pl.lit(None),
            pl.col("f") > pl.lit(math.nan),
            pl.when(pl.col("b")).then(1).otherwise(2),
        ],
        ids=str,
    )
    def test_other_expressions_are_left_to_polars(self, expr: pl.Expr) -> None:
        assert compiled(expr, SCHEMA) is None

    @pytest.mark.parametrize("column", ["i", "f", "b", "s"])
    def test_a_null_is_left_to_polars(self, column: str) -> None:
        batch = batch_of([dict.fromkeys(SCHEMA.names)])
        value: Any = {"i": 1, "f": 1.0, "b": True, "s": "a"}[column]
        expr = pl.col(column) & pl.col(column) if column == "b" else pl.col(column) == value
        function = compiled(expr, SCHEMA)
        assert function is not None
        with pytest.raises(NeedsQuery):
            function.compute(columns_of(batch))

    def test_nan_is_left_to_polars_in_a_comparison(self) -> None:
        batch = batch_of([{"i": 1, "f": math.nan, "g": 1.0}])
        function = compiled(pl.col("f") > pl.col("i"), SCHEMA)
        assert function is not None
        with pytest.raises(NeedsQuery):
            function.compute(columns_of(batch))


def play(steps: list[Any], batch: pa.RecordBatch) -> pa.Table:
    frame = twice(pl.DataFrame(batch)).lazy()
    for step in steps:
        if isinstance(step, pl.Expr):
            frame = frame.filter(step)
        else:
            frame = frame.select(
                **{name: pl.col(each) if isinstance(each, str) else each for name, each in step.items()}
            )
    found = frame.collect(optimizations=pl.QueryOptFlags.none())
    return found.head(found.height // 2).to_arrow(compat_level=pl.CompatLevel.oldest())


PROJECT: dict[str, Any] = {
    "i": "j",
    "f": pl.col("f") * pl.col("i"),
    "j": "i",
    "g": "g",
    "b": pl.col("i") < pl.col("j"),
    "c": "b",
    "s": "t",
    "t": "s",
    "n": "n",
}


class TestDirect:
    def form(self, steps: list[Any]) -> Direct | None:
        return direct(steps, [SCHEMA] * (len(steps) + 1), SCHEMA)

    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.lists(ROW, min_size=1, max_size=8),
        steps=st.lists(conditions(1) | st.just(PROJECT), min_size=1, max_size=4),
    )
    def test_steps_give_the_rows_that_polars_gives(self, rows: list[dict[str, Any]], steps: list[Any]) -> None:
        batch, form = batch_of(rows), self.form(steps)
        if form is None:
            return
        try:
            result = form.run(batch.slice(len(rows) // 3))
        except NeedsQuery:
            return
        expected = play(steps, batch.slice(len(rows) // 3))
        if result is None:
            assert not expected.num_rows
            return
        assert result.schema == SCHEMA
        for name in SCHEMA.names:
            assert bits(result.column(name)) == bits(
                expected.column(name).combine_chunks().cast(SCHEMA.field(name).type)
            )

    def test_columns_that_are_only_passed_on_keep_their_nulls(self) -> None:
        batch = batch_of([{"i": 1, "s": None}, {"i": 5, "s": None}, {"i": 7, "s": "x"}])
        form = direct(
            [pl.col("i") > 2, {"s": "s", "k": pl.col("i") * 2}],
            [SCHEMA, SCHEMA, pa.schema([("s", pa.string()), ("k", pa.int64())])],
            pa.schema([("s", pa.string()), ("k", pa.int64())]),
        )
        assert form is not None
        result = form.run(batch)
        assert result is not None and result.to_pylist() == [{"s": None, "k": 10}, {"s": "x", "k": 14}]

    def test_a_type_that_the_plan_does_not_have_is_left_to_polars(self) -> None:
        assert (
            direct(
                [{"x": pl.col("i") + 1}], [SCHEMA, pa.schema([("x", pa.float64())])], pa.schema([("x", pa.float64())])
            )
            is None
        )
