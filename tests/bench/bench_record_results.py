"""A result per record, running or sliding, beside one per key and epoch, or per window: one thread, without Spark."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Bench

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore

BATCH_ROWS = 32_768
START_US = 1_767_225_600_000_000
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
SHAPES = ("changes", "each", "tumbling", "sliding", "counted")
WINDOWS: dict[str, Any] = {
    "tumbling": hf.tumbling("10s"),
    "sliding": hf.sliding("10s"),
    "counted": hf.all_time(hf.count_of(100)),
}


def bench_record_results(bench: Bench) -> None:
    """Count, sum and maximum, 20 rows a second of each key; windows of ten seconds, or of 100 rows."""
    rows = bench.size("rows", smoke=65_536, full=2_097_152)
    keys = bench.size("keys", smoke=100, full=1_000)
    spent, results = dict[str, float](), dict[str, int]()
    with bench.timed():
        for shape in SHAPES:
            spent[shape], results[shape] = run(shape, rows, keys)
    assert results["each"] == results["sliding"] == rows
    assert rows // 100 - keys < results["counted"] <= rows // 100
    bench.report(per=len(SHAPES) * rows, unit="row", check=sum(results.values()))
    bench.note("CPU ns per row: " + ", ".join(f"{shape} {s / rows * 1e9:.0f}" for shape, s in spent.items()))


def run(shape: str, rows: int, keys: int) -> tuple[float, int]:
    """Return the CPU seconds for all rows, and the number of results."""
    app = hf.App("results")
    source = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at")
    functions: dict[str, Any] = {"n": hf.count(), "total": hf.sum("v"), "top": hf.max("v")}
    keyed = source.key_by("k")
    if shape in ("changes", "each"):
        counted = keyed.agg("results", emit=shape, keep=(), **functions)
    else:
        counted = keyed.window(WINDOWS[shape]).agg("results", emit="close", **functions)
    counted.sink("out", MemorySink(key=counted.upsert_key))
    plan, given = app.plan(), 0

    def write(_: str, batch: pa.RecordBatch) -> None:
        nonlocal given
        given += batch.num_rows

    identity = Identity(JobUuid("bench"), Generation(1), Timeline(1), WorkerId("bench"))
    state = StateStore(identity, [each.table for each in plan.operators], plan.key_groups, (0, plan.key_groups))
    named = {each.name: state.table(each.id) for each in plan.operators}
    groups = KeyGroups(plan.key_groups, 0, plan.key_groups)
    fragment = FragmentRuntime(plan.fragments[1], named, lambda edge, batch: None, write, key_groups=groups)
    rng, spent, schema = np.random.default_rng(1), 0.0, plan.edges[0].schema
    for number, first in enumerate(range(0, rows, BATCH_ROWS)):
        at_us = START_US + (first + np.arange(BATCH_ROWS)) * 1_000_000 // (20 * keys)
        numbers = rng.integers(0, keys, BATCH_ROWS), rng.integers(0, 1_000, BATCH_ROWS)
        columns = [*numbers, pa.array(at_us).view(SCHEMA.field("at").type)]
        batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=SCHEMA).select(schema.names)
        began = time.thread_time()
        fragment.on_batch(batch)
        fragment.on_watermark(int(at_us[-1]))
        if number % 16 == 15:
            fragment.on_barrier()
            for each in plan.operators:
                state.freeze(each.id, Epoch(number // 16 + 1), Epoch(number // 16))
            state.commit(Epoch(number // 16 + 1))
        spent += time.thread_time() - began
    began = time.thread_time()
    fragment.on_watermark((1 << 63) - 1)
    fragment.on_barrier()
    return spent + time.thread_time() - began, given
