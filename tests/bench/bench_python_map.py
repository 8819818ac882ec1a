"""The cost of one row in a Python function: made from columns, passed to it, checked, and put into columns again."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench_keyed_count import PARTITIONS, Used, note_steady_state, run_job, write_input
from harness import Bench

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects


@dataclass
class Bid:
    auction: int
    price: float
    channel: str


@dataclass
class Scaled:
    auction: int
    total: float
    channel: str


def scale(bid: Bid) -> Scaled:
    return Scaled(bid.auction, bid.price * 1.19, bid.channel)


def scale_row(row: hf.Row) -> Scaled:
    return Scaled(row.auction, row.price * 1.19, row.channel)


def bench_python_map(bench: Bench) -> None:
    """Three columns in, three out, of dataclasses: the common case."""
    _run(bench, lambda bids: bids.map(scale, to=Scaled))


def bench_python_filter(bench: Bench) -> None:
    """Every row passes, so all of them are copied too."""
    _run(bench, lambda bids: bids.filter(lambda bid: bid.price >= 0.0))


def bench_python_map_of_hf_rows(bench: Bench) -> None:
    """After a select there is no dataclass: rows are `hf.Row`."""
    _run(bench, lambda bids: bids.select("auction", "price", "channel").map(scale_row, to=Scaled))


@pytest.mark.e2e
def bench_python_map_in_a_job(bench: Bench, tmp_path: Path) -> None:
    """The same in a complete job: embedded log, two workers on Spark, an epoch a second; the target gets few rows."""
    rows = bench.size("rows", smoke=200_000, full=16_000_000)
    keys = bench.size("keys", smoke=1_000, full=100_000)
    write_input(tmp_path, rows, keys)
    used = Used()
    with bench.timed():
        run_job(tmp_path, used, "map")
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as database:
        kept, total = database.execute("SELECT count(*), sum(v) FROM kept").fetchone()
    values = [part.filter(pc.equal(part.column("k"), 0)).column("v") for part in batches(tmp_path)]
    assert (kept, total) == (sum(map(len, values)), 2 * sum(pc.sum(value).as_py() or 0 for value in values))
    bench.report(per=rows, unit="row", check=kept)
    note_steady_state(bench, Repository(open_objects(str(tmp_path / "root" / "mapped"))))
    bench.note(f"CPU: {sum(used.cpu_s.values()) / rows * 1e6:.3f} us per row, both workers together")
    bench.note(f"memory: {', '.join(f'{size >> 20} MiB' for size in used.rss.values())} resident per worker")


def batches(folder: Path) -> Iterator[pa.RecordBatch]:
    """Return the entire input."""
    reader = LogReader(open_objects(str(folder / "input")))
    for partition in range(PARTITIONS):
        batch, following = reader.read(partition, 0, 64 << 20)
        while batch is not None:
            yield batch
            batch, following = reader.read(partition, following, 64 << 20)


def _run(bench: Bench, build: Callable[[Stream], Stream]) -> None:
    rows = bench.size("rows", smoke=5_000, full=2_000_000)
    size = bench.size("batch", smoke=2_000, full=65_536)
    app = hf.App("bench")
    source = hf.Generator(Bid, lambda i: Bid(i, 1.0, "web"), count=1)
    build(app.source("bids", source)).sink("out", MemorySink())
    plan = app.plan()
    written = 0

    def write(sink: str, batch: pa.RecordBatch) -> None:
        nonlocal written
        written += batch.num_rows

    fragment = FragmentRuntime(plan.fragments[0], {}, lambda edge, batch: None, write)
    numbers = np.arange(size)
    columns: list[Any] = [numbers, numbers * 0.5, pa.array([f"channel-{n % 50}" for n in range(size)])]
    batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=source.schema)
    with bench.timed():
        for start in range(0, rows, size):
            fragment.on_batch(batch.slice(0, min(size, rows - start)))
    assert written == rows
    bench.report(per=rows, unit="row", check=written)
