"""What aggregate functions promise those that fold, merge and read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.runtime.rows.aggregate_functions import FUNCTIONS, INT64_MAX, AggregateFunction, Known, State
from holdfast.state.compiled.sources import Input, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import ColumnSpec, Table, TableSpec

KEYS = 3
KEY = KeyType(("k",), (pa.int64(),))
TYPES = {"int": pa.int64(), "short": pa.int16(), "float": pa.float64(), "time": pa.timestamp("us", "UTC")}


@dataclass
class Given:
    """Values, each with its slot."""

    slots: NDArray[np.int64]
    of: NDArray[Any]

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.of.astype(dtype)

    def texts(self) -> pa.Array:
        raise AssertionError("these values are numbers")


def given_of(rows: list[tuple[int, Any]]) -> Given:
    return Given(np.array([slot for slot, _ in rows], np.int64), np.array([value for _, value in rows]))


def new_state(function: AggregateFunction, kind: pa.DataType) -> State:
    result = function.result_type(kind)
    assert result is not None
    return {role: np.full(KEYS, default, dtype) for role, (dtype, default) in function.columns(result, True).items()}


def folded(function: AggregateFunction, kind: pa.DataType, *parts: list[tuple[int, Any]]) -> State:
    """Fold by the function's operations, as a table does."""
    state = new_state(function, kind)
    columns = tuple(ColumnSpec(role, column.dtype, column[0].item()) for role, column in state.items())
    table = Table(TableSpec(1, "folded", KEY, columns), 1)
    table.slots(KEY.from_ints(np.arange(KEYS)))
    operations = function.operations({role: column.dtype for role, column in state.items()})
    assert operations is not None
    program = table.program((operation, role, int(operation.floating)) for role, operation in operations.items())
    for part in parts:
        given = np.array([value for _, value in part])
        whole = given if given.dtype.kind == "i" else np.zeros(len(part), np.int64)
        inputs = [Input(whole), Input(given.astype(np.float64))]
        table.fold(KEY.from_ints(np.array([slot for slot, _ in part], np.int64)), program, sources_of(inputs))
    return {role: table.column(role).copy() for role in state}


def same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for role, column in one.items():
        np.testing.assert_allclose(column, other[role], rtol=1e-12, equal_nan=True)


def numbers(kind: str) -> st.SearchStrategy[Any]:
    if kind == "float":
        return st.one_of(st.integers(-(2**40), 2**40).map(float), st.just(float("nan")))
    return st.integers(-(2**15), 2**15 - 1)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
class TestMerging:
    @given(data=st.data())
    @settings(max_examples=25, deadline=None)
    def test_merging_two_folds_equals_folding_both(self, name: str, kind: str, data: st.DataObject) -> None:
        function, of = FUNCTIONS[name], TYPES[kind]
        if function.result_type(of) is None:
            assert name in ("sum", "mean") and kind == "time"
            return
        rows = st.lists(st.tuples(st.integers(0, KEYS - 1), numbers(kind)), max_size=12)
        a, b = data.draw(rows), data.draw(rows)
        merged = folded(function, of, a)
        function.merge(merged, np.arange(KEYS), folded(function, of, b))
        whole = folded(function, of, a, b)
        same(merged, whole)
        results = function.result(merged, np.arange(KEYS)), function.result(whole, np.arange(KEYS))
        np.testing.assert_allclose(*results, rtol=1e-12, equal_nan=True)

    def test_several_states_merge_into_one_slot(self, name: str, kind: str) -> None:
        function, of = FUNCTIONS[name], TYPES[kind]
        if function.result_type(of) is None:
            return
        merged = new_state(function, of)
        function.merge(merged, np.array([1, 1, 1]), folded(function, of, [(0, 4), (1, 7), (2, 1), (2, 3)]))
        same(merged, folded(function, of, [(1, 4), (1, 7), (1, 1), (1, 3)]))


class TestCheckedSums:
    def test_an_overflow_is_detected_before_anything_changes(self) -> None:
        total, state = FUNCTIONS["sum"], folded(FUNCTIONS["sum"], pa.int64(), [(0, INT64_MAX)])
        assert not total.check(state, given_of([(0, 1)]), Known())
        assert total.check(state, given_of([(0, -1)]), Known())
        assert state["sum"].tolist() == [INT64_MAX, 0, 0]

    def test_a_bound_that_was_exceeded_is_no_longer_used(self) -> None:
        """With many keys the sums are not checked again, so a sum near the bound is unknown."""
        total, state = FUNCTIONS["sum"], {"sum": np.zeros(1_000, np.int64)}
        state["sum"][0], known = INT64_MAX - 30, Known(INT64_MAX - 10)
        near = given_of([(0, 25)])
        assert total.check(state, near, known)
        state["sum"][0] += 25
        assert not total.check(state, given_of([(0, 8)]), known)
