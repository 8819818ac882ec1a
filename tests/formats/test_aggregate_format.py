"""The states of aggregates in columns, of every function and several types, stay readable: one golden file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import aggregate_oracles as oracles
import pyarrow as pa
import pytest

from holdfast.runtime.functions.aggregation import bound, state_columns
from holdfast.runtime.functions.registry import KINDS
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable, TableSpec

GOLDEN = Path(__file__).with_name("aggregates_v1.json")
KEY = KeyType(("k",), (pa.int64(),))
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [5, -3, 5, 2**40]),
    "double": (pa.float64(), [0.5, -1e10, 0.5, -0.0]),
    "decimal": (pa.decimal128(9, 2), [Decimal("0.50"), Decimal("-3.00"), Decimal("0.50"), Decimal("9999999.99")]),
    "string": (pa.string(), ["b", "", "b", "é"]),
}
NUMBERS_ONLY = ("sum", "mean", "var", "quantile")
CASES = [
    (name, kind)
    for name in KINDS
    for kind in VALUES
    if not (kind == "string" and name in NUMBERS_ONLY or kind == "decimal" and name in ("var", "quantile"))
]


def stored(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes | float) else value


def state_of(name: str, kind: str) -> dict[str, list[Any]]:
    """Return every column of state after the values, as JSON has it: its type and its value."""
    of, values = VALUES[kind]
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("v", of), pa.field("by", pa.int64(), nullable=False)]
    schema = pa.schema(fields)
    aggregation = bound("x", oracles.CALLS[name](), schema, "a test")
    table = StateTable(TableSpec(1, "kept", KEY, value_columns([aggregation])), 1)
    folding, keys = Folding("kept", [aggregation], table, "job"), pa.array([1] * len(values))
    slots = folding.fold(
        KEY.encode([keys]),
        pa.RecordBatch.from_arrays([keys, pa.array(values, of), pa.array(range(len(values)))], schema=schema),
    )
    held = folding._held(aggregation, slots[:1])
    columns = zip(state_columns(aggregation), held.values(), strict=True)
    return {column.name: [column.type_name, stored(pa.array(value).to_pylist()[0])] for column, value in columns}


def test_the_golden_file_has_every_function() -> None:
    assert set(json.loads(GOLDEN.read_text())) == {f"{name} {kind}" for name, kind in CASES}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_state_is_what_the_golden_file_says(name: str, kind: str) -> None:
    assert state_of(name, kind) == json.loads(GOLDEN.read_text())[f"{name} {kind}"]
