"""Delivering the changes of a running aggregate: a table of SQLite against a changelog, the same parts in one run."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from harness import Bench

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Delivered
from holdfast.sinks.log.sink import LogSink
from holdfast.sinks.protocol.staging import Stage, decode
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects

SCHEMA = pa.schema([("user", pa.int64()), ("rows", pa.int64()), ("total", pa.int64())])
KEY = ("user",)


def bench_upsert_sinks(bench: Bench) -> None:
    """One writer, epochs of changed keys, each one delivery; both targets end with the same rows."""
    keys = bench.size("keys", smoke=2_000, full=1_000_000)
    changed = bench.size("changed keys per epoch", smoke=500, full=100_000)
    epochs = bench.size("epochs", smoke=3, full=20)
    random = np.random.default_rng(1)
    parts = [part(random.choice(keys, changed, replace=False), epoch) for epoch in range(1, epochs + 1)]
    with TemporaryDirectory() as folder:
        table, log = SQLite(f"{folder}/out.db", "totals", KEY), LogSink(f"{folder}/log", KEY)
        with bench.timed():
            took = [seconds(sink, parts) for sink in (table, log)]
        found = in_log(f"{folder}/log")
        assert found == in_table(f"{folder}/out.db")
    bench.report(per=2 * epochs * changed, unit="row", check=len(found))
    rates = [epochs * changed / each for each in took]
    bench.note(f"SQLite {rates[0]:,.0f} rows/s, log {rates[1]:,.0f} rows/s: ratio {rates[1] / rates[0]:.1f}")


def part(users: np.ndarray, epoch: int) -> bytes:
    stage = Stage(SCHEMA, KEY)
    stage.add(
        pa.RecordBatch.from_arrays(
            [pa.array(users), pa.array(users % 97 + epoch), pa.array(users * epoch)], schema=SCHEMA
        )
    )
    sealed = stage.seal()
    assert sealed is not None
    return sealed.data


def seconds(sink: Sink, parts: list[bytes]) -> float:
    """Return how long the deliveries took, from staged parts to the last commit."""
    sink.prepare(SCHEMA, KEY)
    start = time.perf_counter()
    with closing(sink.open("job", Writer("out", Subtask(0)))) as target:
        for epoch, data in enumerate(parts, 1):
            assert isinstance(target.deliver(Tag(Timeline(1), Epoch(epoch)), decode(data)), Delivered)
    return time.perf_counter() - start


def in_log(path: str) -> list[tuple[int, ...]]:
    rows = pa.Table.from_batches([each.rows for each in read_table(LocalObjects(Path(path)))])
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def in_table(path: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute("SELECT user, rows, total FROM totals"))
