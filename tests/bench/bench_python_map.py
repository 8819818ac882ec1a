"""What one row costs in a Python function: made from columns, called, checked, and put into columns again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Bench

import holdfast as hf
from holdfast.runtime.dataflow import Stream
from holdfast.runtime.operators.fragment import FragmentRuntime
from holdfast.sinks.memory import MemorySink


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


def bench_python_map(bench: Bench) -> None:
    """Three columns in, three out, of dataclasses: the common case."""
    _run(bench, lambda bids: bids.map(scale, to=Scaled))


def bench_python_filter(bench: Bench) -> None:
    """Every row passes, so that all of them are also copied."""
    _run(bench, lambda bids: bids.filter(lambda bid: bid.price >= 0.0))


def bench_python_map_of_hf_rows(bench: Bench) -> None:
    """Behind a select there is no dataclass: rows are `hf.Row`."""
    _run(bench, lambda bids: bids.select("auction", "price", "channel").map(scale, to=Scaled))


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
