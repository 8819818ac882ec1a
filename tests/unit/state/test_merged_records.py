"""Values of several records become one by the operations that fold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.state.tables.table import StateTable

KEY = KeyType(("k",), (pa.int64(),))
LIMITS = np.iinfo(np.int64)
COLUMNS: dict[str, tuple[Do, Any, Any, Any]] = {
    "rows": (Do.COUNT, np.int64, 0, np.add),
    "total": (Do.ADD_INT, np.int64, 0, np.add),
    "sum": (Do.ADD_FLOAT, np.float64, 0.0, np.add),
    "low": (Do.MIN_INT, np.int16, np.iinfo(np.int16).max, np.minimum),
    "high": (Do.MAX_INT, np.int64, LIMITS.min, np.maximum),
    "small": (Do.MIN_INT, np.uint8, 255, np.minimum),
    "least": (Do.MIN_UINT, np.uint64, np.iinfo(np.uint64).max, np.minimum),
    "most": (Do.MAX_UINT, np.uint64, 0, np.maximum),
    "first": (Do.MIN_FLOAT, np.float64, float("nan"), np.fmin),
    "last": (Do.MAX_FLOAT32, np.float32, float("nan"), np.fmax),
}
COLUMN_SPECS = tuple(ColumnSpec(name, np.dtype(kind), default) for name, (_, kind, default, _) in COLUMNS.items())
SPEC = TableSpec(1, "merged", KEY, COLUMN_SPECS)
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-120, 120)), min_size=1, max_size=600)


def filled(values: np.ndarray[Any, Any]) -> tuple[StateTable, np.ndarray[Any, Any]]:
    """Return a table with a record per value, and their slots."""
    table = StateTable(SPEC, 4)
    slots = table.slots(KEY.from_ints(np.arange(values.size)))
    column = table.changing(slots)
    for name, (_, kind, _, _) in COLUMNS.items():
        column(name)[slots] = values.astype(kind)
    return table, slots


@settings(deadline=None)
@given(ROWS)
def test_every_operation_merges_as_numpy_does(rows: list[tuple[int, int]]) -> None:
    groups, values = (np.array(each, np.int64) for each in zip(*rows, strict=True))
    table, slots = filled(values)
    merging = table.merging([(do, name, 0) for name, (do, _, _, _) in COLUMNS.items()])
    found = table.merged(merging, slots, groups, 6)
    assert found is not None
    for name, (_, kind, default, merge) in COLUMNS.items():
        expected = np.full(6, default, kind)
        for group, value in zip(groups.tolist(), values.astype(kind), strict=True):
            expected[group] = merge(expected[group], value)
        assert np.asarray(found[name]).dtype == kind
        np.testing.assert_array_equal(np.asarray(found[name]), expected, name)


@pytest.mark.parametrize(("values", "fits"), [([LIMITS.max, -1], True), ([LIMITS.max, 1, -1], False)])
def test_a_sum_that_leaves_64_bits_on_the_way_is_reported(values: list[int], fits: bool) -> None:
    table, slots = filled(np.array(values))
    merging = table.merging([(Do.ADD_INT, "total", 0)])
    found = table.merged(merging, slots, np.zeros(len(values), np.int64), 1)
    assert (found is not None) == fits
