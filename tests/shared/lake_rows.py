"""Rows, tags, deliveries and rewinds of the tests of lakehouse tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog

from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import DELETE, OP, PUT, Delivered, FaultPoint

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
ANN, BEA, CAT = (1, "ann"), (2, "bea"), (3, "cat")
FIRST = Claim("0123456789abcdef0123456789abcdef", Generation(1))
OTHER = pa.table({"user": [9], "name": ["x"]}, SCHEMA)
"""A row of another program."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Return rows of an append stream."""
    columns = [pa.array([user for user, _ in rows], pa.int64()), pa.array([name for _, name in rows], pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def changes(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Return rows of an upsert stream; a name of None deletes."""
    ops = pa.array([DELETE if name is None else PUT for _, name in rows], pa.int8())
    return batch(*rows).append_column(OP, ops)


def deliver(table: FolderTable | FolderCatalog, epoch: int, *rows: tuple[int, str | None], timeline: int = 1) -> None:
    one = changes(*rows) if table.sink.key else batch(*rows)
    found = table.sink.open(JOB, LEFT).deliver(tag(epoch, timeline), [one] if rows else [])
    assert found == Delivered(len(rows))


def meanwhile(act: Callable[[], object]) -> Callable[[FaultPoint], None]:
    """Return a fault that acts once, between the last comparison and the commit."""
    left = [act]

    def fault(point: FaultPoint) -> None:
        if point == "before_commit" and left:
            left.pop()()

    return fault


def back(epoch: int, timeline: int = 2) -> Rewinding:
    return Rewinding(JOB, "out", tag(epoch, timeline), (LEFT, RIGHT))


def planned(table: FolderTable | FolderCatalog, epoch: int) -> Repair:
    found: Repair = table.sink.plan_repair(back(epoch), SCHEMA, table.sink.key)
    return found


EVERY_TYPE: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None]),
    "tiny": (pa.int8(), [-128, None]),
    "small": (pa.uint8(), [255, None]),
    "wide": (pa.uint32(), [2**32 - 1, None]),
    "whole": (pa.int64(), [-(2**63), None]),
    "part": (pa.float64(), [float("inf"), None]),
    "text": (pa.large_string(), ["ö\n", None]),
    "kind": (pa.dictionary(pa.int32(), pa.string()), ["x", None]),
    "bytes": (pa.binary(), [b"\0\xff", None]),
    "day": (pa.date32(), [date(2026, 1, 2), None]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None]),
    "seconds": (pa.timestamp("s", "UTC"), [datetime(2026, 1, 2, tzinfo=UTC), None]),
    "local": (pa.timestamp("ms"), [datetime(2026, 1, 2, 3), None]),
    "price": (pa.decimal128(38, 9), [Decimal("-0.123456789"), None]),
    "many": (pa.list_(pa.int32()), [[1, None, 3], None]),
    "inner": (pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None]),
}
"""Types that every table can hold, each with a value and null."""


def rows_of_every_type(*keys: int) -> pa.RecordBatch:
    columns = {"user": pa.array(keys, pa.int64())}
    for name, (kind, values) in EVERY_TYPE.items():
        columns[name] = pa.array((values * len(keys))[: len(keys)], kind)
    return pa.RecordBatch.from_pydict(columns)
