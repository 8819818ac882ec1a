"""What every registered aggregate function promises, against plain Python, however its rows are divided and merged."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import aggregate_oracles as oracles
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merged_states import merge_states

import holdfast as hf
from holdfast.runtime.functions.adding import INT64_MAX, Adding
from holdfast.runtime.functions.aggregation import BoundAggregation, bound
from holdfast.runtime.functions.contract import Known, defaults_of
from holdfast.runtime.functions.registry import KINDS
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import StateTable, TableSpec

KEYS = 3
KEY = KeyType(("k",), (pa.int64(),))
FLOATS = [math.nan, -1.5, 0.25, 3.0, 1e6, 0.0]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int16(): [-(2**15), -7, 0, 1, 5, 2**15 - 1],
    pa.int64(): [-(2**40), -7, 0, 1, 5, 2**40],
    pa.uint64(): [0, 1, 5, 2**40],
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.bool_(): [False, True],
    pa.decimal128(9, 2): [Decimal("-12345.67"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999.99")],
    pa.string(): ["", "a", "ab\x00", "é", "z" * 40],
    pa.large_binary(): [b"", b"\x00", b"\xff\x00", b"abc"],
    pa.timestamp("us", "UTC"): [datetime(1960, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=UTC)],
    pa.date32(): [date(1960, 1, 1), date(2024, 2, 29)],
    pa.duration("ms"): [timedelta(-1), timedelta(0), timedelta(seconds=1.5)],
}
NUMBERS = {pa.int16(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()}
TAKES: dict[str, set[pa.DataType]] = {
    "sum": NUMBERS - {pa.uint64()} | {pa.decimal128(9, 2)},
    "mean": NUMBERS | {pa.decimal128(9, 2)},
    "min": set(VALUES) - {pa.bool_()},
    "max": set(VALUES) - {pa.bool_()},
    "var": NUMBERS,
    "quantile": NUMBERS,
}
"""Types that a function takes; every type if it is not listed."""
ROUNDED = {"var"}
"""Functions that round in their state, also with integers: merged states differ in the last digits."""
EVERY = [(name, kind) for name in KINDS for kind in VALUES if kind in TAKES.get(name, VALUES)]
OTHERS = [(name, kind) for name in KINDS for kind in VALUES if kind not in TAKES.get(name, VALUES)]
Row = tuple[int, Any, Any, bool | None]
"""Key, value, by, and the column that filters."""


def schema_of(kind: pa.DataType, nullable: bool = True) -> pa.Schema:
    fields = [("k", pa.int64(), False), ("v", kind, nullable), ("by", pa.float64(), True), ("on", pa.bool_(), True)]
    return pa.schema([pa.field(name, of, null) for name, of, null in fields])


def bound_of(name: str, kind: pa.DataType, filtered: bool = False, nullable: bool = True) -> BoundAggregation:
    given = oracles.CALLS[name](filter=pl.col("on")) if filtered else oracles.CALLS[name]()
    return bound("x", given, schema_of(kind, nullable), "a test")


class Kept:
    """One aggregate in a table."""

    def __init__(self, of: BoundAggregation, schema: pa.Schema) -> None:
        self.table = StateTable(TableSpec(1, "kept", KEY, value_columns([of])), 1)
        self.folding, self.schema, self.of = Folding("kept", [of], self.table, "job"), schema, of

    def take(self, rows: list[Row]) -> None:
        if rows:
            columns = [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), self.schema, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            self.folding.fold(KEY.encode([batch.column("k")]), batch)

    def slots(self, *keys: int) -> Any:
        return self.table.slots(KEY.encode([pa.array(keys, pa.int64())]))

    def results(self, *keys: int) -> list[Any]:
        (array,) = self.folding.results(self.slots(*keys))
        array.validate(full=True)
        assert array.type == self.of.result.type and (self.of.result.nullable or not array.null_count)
        return list(array.to_pylist())

    def state(self, *keys: int) -> dict[str, list[Any]]:
        held = self.folding._held(self.of, self.slots(*keys))
        return {role: pa.array(values).to_pylist() for role, values in held.items()}


def oracle(name: str, rows: list[Row], filtered: bool) -> list[Any]:
    needs_by = name in ("first", "last", "top")
    counted = [
        (k, (v, by))
        for k, v, by, on in rows
        if v is not None and not (needs_by and by is None) and (on or not filtered)
    ]
    return [oracles.expected(name, [row for key, row in counted if key == k]) for k in range(KEYS)]


def rows_of(kind: pa.DataType) -> st.SearchStrategy[list[Row]]:
    value = st.sampled_from([*VALUES[kind], None])
    by = st.sampled_from([None, math.nan, -1.0, 0.0, 2.5])
    return st.lists(st.tuples(st.integers(0, KEYS - 1), value, by, st.sampled_from([True, False, None])), max_size=25)


def agree(name: str, found: list[Any], wanted: list[Any]) -> None:
    assert all(oracles.same(name, a, b) for a, b in zip(found, wanted, strict=True)), (found, wanted)


def test_every_registered_function_has_an_oracle() -> None:
    assert set(oracles.CALLS) == set(KINDS)
    for name, kind in KINDS.items():
        given = oracles.CALLS[name]()
        assert given.kind.name == name and kind.of(given.kind.parameters()) == given.kind


@pytest.mark.parametrize(("name", "kind"), EVERY, ids=str)
class TestEveryFunction:
    @given(data=st.data())
    @settings(max_examples=5, deadline=None)
    def test_batches_and_filters_do_not_matter(self, name: str, kind: pa.DataType, data: st.DataObject) -> None:
        rows, filtered = data.draw(rows_of(kind)), data.draw(st.booleans())
        cuts = sorted(data.draw(st.lists(st.integers(0, 25), max_size=4)))
        kept = Kept(bound_of(name, kind, filtered), schema_of(kind))
        for first, end in zip([0, *cuts], [*cuts, 25], strict=True):
            kept.take(rows[first:end])
        agree(name, kept.results(*range(KEYS)), oracle(name, rows, filtered))

    @given(data=st.data())
    @settings(max_examples=4, deadline=None)
    def test_merged_states_are_those_of_all_rows(self, name: str, kind: pa.DataType, data: st.DataObject) -> None:
        """Every key has a session of its own and others, in which its rows fall; all are merged into its own."""
        rows = data.draw(rows_of(kind))
        sessions = [KEYS * data.draw(st.integers(0, 3)) + row[0] for row in rows]
        kept, whole = (Kept(bound_of(name, kind), schema_of(kind)) for _ in range(2))
        kept.take([(k, *row[1:]) for k, row in zip(sessions, rows, strict=True)])
        whole.take(rows)
        others = sorted({each for each in sessions if each >= KEYS})
        kept.table.touch(own := kept.slots(*range(KEYS)))
        merge_states(
            kept.table, kept.folding, kept.slots(*others), own[np.array([each % KEYS for each in others], np.int64)]
        )
        agree(name, kept.results(*range(KEYS)), oracle(name, rows, filtered=False))
        if not pa.types.is_floating(kind) and name not in ROUNDED:
            assert repr(kept.state(*range(KEYS))) == repr(whole.state(*range(KEYS)))  # NaN equals NaN

    def test_without_a_row_the_state_is_neutral(self, name: str, kind: pa.DataType) -> None:
        kept = Kept(bound_of(name, kind), schema_of(kind))
        rows: list[Row] = [(0, value, 1.0, True) for value in VALUES[kind]]
        kept.take(rows)
        kept.table.touch(kept.slots(1, 2))
        before = kept.state(0)
        merge_states(kept.table, kept.folding, kept.slots(1, 2, 0), kept.slots(0, 0, 1))
        assert repr(kept.state(0)) == repr(before)
        agree(name, kept.results(1), kept.results(0))

    def test_a_column_that_forbids_nulls_gives_the_same(self, name: str, kind: pa.DataType) -> None:
        kept = Kept(bound_of(name, kind, nullable=False), schema_of(kind, nullable=False))
        rows: list[Row] = [(at % KEYS, value, float(at), True) for at, value in enumerate(VALUES[kind] * 3)]
        kept.take(rows)
        agree(name, kept.results(*range(KEYS)), oracle(name, rows, filtered=False))


@pytest.mark.parametrize(("name", "kind"), OTHERS, ids=str)
def test_other_types_are_refused_with_a_way_out(name: str, kind: pa.DataType) -> None:
    with pytest.raises(hf.ConfigError, match="does not take") as refused:
        bound_of(name, kind)
    assert refused.value.next_step


class TestCheckedSums:
    """Sums of int64, whose operations would wrap."""

    total = Adding("sum", pa.int64(), Do.ADD_INT, counted=False)

    def test_a_bound_that_was_exceeded_is_no_longer_used(self) -> None:
        """With many keys the sums are not checked again, so a sum near the bound is unknown."""
        state, known = dict(defaults_of(self.total.columns, 1_000)), Known(INT64_MAX - 10)
        state["sum"][0] = INT64_MAX - 30
        assert self.total.check(state, _Given(25), known)
        state["sum"][0] += 25
        assert not self.total.check(state, _Given(8), known)

    def test_merged_sums_that_do_not_fit_fail_and_change_nothing(self) -> None:
        kept = Kept(bound_of("sum", pa.int64()), schema_of(pa.int64()))
        kept.take([(0, INT64_MAX, None, None), (1, 1, None, None)])
        with pytest.raises(
            hf.JobFailed, match=r"x = sum\('v'\) of operator 'kept' does not fit into 64 bits for the key '0'"
        ):
            merge_states(kept.table, kept.folding, kept.slots(1), kept.slots(0))
        assert kept.results(0, 1) == [INT64_MAX, 1]


class TestSumsOfFloats:
    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("values", [[math.inf, -math.inf], [1e308, 1e308]])
    def test_sums_of_floats_that_are_not_finite_give_no_warning(self, values: list[float]) -> None:
        total = Adding("sum", pa.float64(), Do.ADD_FLOAT, counted=False)
        merged = total.combine({"sum": np.array(values)}, np.zeros(2, np.int64), 1)
        assert not math.isfinite(merged["sum"][0])


class _Given:
    """One value of slot 0."""

    def __init__(self, value: int) -> None:
        self.value, self.slots = value, np.array([0])

    def values(self, dtype: np.dtype[Any]) -> Any:
        return np.array([self.value], dtype)
