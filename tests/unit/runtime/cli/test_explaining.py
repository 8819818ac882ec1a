"""A key in a command is the key that the command then reads."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model import Epoch
from holdfast.runtime.cli.replay.explaining import columns_typed, typed, why
from holdfast.runtime.inspect import keys


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ([pa.string()], ["north"]),
        ([pa.string()], ["[17]"]),
        ([pa.string()], [""]),
        ([pa.string()], ["--json"]),
        ([pa.string()], ["17"]),
        ([pa.string()], ["with 'quotes' and \" and ü"]),
        ([pa.string()], [None]),
        ([pa.int64()], [-17]),
        ([pa.bool_()], [True]),
        ([pa.float64()], [0.1]),
        ([pa.binary()], [b"\x00\xff"]),
        ([pa.date32()], [date(2026, 3, 1)]),
        ([pa.timestamp("us", "UTC")], [datetime(2026, 3, 1, 12, 0, 0, 1, UTC)]),
        ([pa.string(), pa.int64(), pa.string()], ["GB", 17, None]),
    ],
)
def test_what_is_typed_is_read_as_the_same_key(kinds: list[pa.DataType], values: list[Any]) -> None:
    text = typed(values)
    assert text is not None
    [command] = [shlex.split(why("job.py", "totals", text, None, ()))]
    fields = [pa.field(f"c{at}", kind) for at, kind in enumerate(kinds)]
    assert [array[0].as_py() for array in keys.columns(command[4], fields)] == values


def test_a_value_that_cannot_be_typed_has_no_command() -> None:
    assert typed([[1, 2]]) is None and typed(["a", float("nan")]) is None
    assert columns_typed({"x": [1]}) is None


def test_columns_of_a_row_that_can_be_typed_are_given() -> None:
    text = columns_typed({"shop": "north", "tags": ["a"], "at": datetime(2026, 3, 1, tzinfo=UTC), "none": None})
    assert text is not None
    assert json.loads(text) == {"shop": "north", "at": "2026-03-01T00:00:00+00:00", "none": None}


def test_the_epoch_and_flags_are_part_of_the_command() -> None:
    assert why("new.py", "out", "a b", Epoch(7), ("--root", "r")) == "holdfast why new.py out 'a b' --at 7 --root r"
