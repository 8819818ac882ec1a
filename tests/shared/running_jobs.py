"""Jobs with running aggregates, and what they are after each record, by the oracles of the functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import polars as pl
import pyarrow as pa
from aggregate_oracles import CALLS, expected, same

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("by", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def app_of(emit: str = "each", **keep: Any) -> hf.App:
    app = hf.App("running", key_groups=8)
    rows = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at", idle_after="1h")
    functions = {name: call() for name, call in CALLS.items()} | {"rows": hf.count()}
    functions["even"] = hf.sum("v", filter=pl.col("by") % 2 == 0)
    counted = rows.key_by("k").agg("totals", emit=emit, **keep, **functions)
    counted.sink("out", MemorySink(key=counted.upsert_key))
    return app


def row(k: str, number: int, v: int | None, by: int) -> dict[str, Any]:
    return {"k": k, "id": number, "v": v, "by": by, "at": START + timedelta(seconds=number)}


def check(t: TestDriver, records: dict[str, list[dict[str, Any]]]) -> None:
    """Compare every row with the aggregates over the records of its key up to its own."""
    found = {each["id"]: each for each in t.rows("out")}
    assert len(found) == len(t.rows("out")), "a record has two rows"
    assert found.keys() == {each["id"] for rows in records.values() for each in rows}
    for rows in records.values():
        for number, record in enumerate(rows):
            before, result = rows[: number + 1], found[record["id"]]
            given = [(each["v"], each["by"]) for each in before if each["v"] is not None]
            assert result["rows"] == number + 1
            even = [(v, by) for v, by in given if by % 2 == 0]
            assert result["even"] == expected("sum", even)
            for name in CALLS:
                assert same(name, result[name], expected(name, given)), (name, before)


def play(t: TestDriver, steps: list[Any], records: dict[str, list[dict[str, Any]]]) -> None:
    """Check all rows after every step but pushes: the records of several pushes are in one epoch."""
    own = {"push": pushing(t, records)}
    job_player.play(t, steps, own, lambda: check(t, records), ends_epoch=lambda name: name != "push")


def pushing(t: TestDriver, records: dict[str, list[dict[str, Any]]]) -> Callable[[int, list[tuple[Any, ...]]], None]:
    """Return a step that pushes; all records of a key are in one partition, which has their order."""

    def take(record: dict[str, Any]) -> None:
        records[record["k"]].append(record)

    before = sum(map(len, records.values()))
    push = job_player.pushing(t, lambda number, k, v, by: row(k, number, v, by), take, before)
    return lambda partition, given: push(partition, [(f"{k}{partition}", v, by) for k, v, by in given])
