"""Keyed functions with one value per key: a Python method per record, and the form over batches."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
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


@dataclass
class Bid:
    auction: int
    price: int


@dataclass
class Total:
    auction: int
    total: int


class Running(hf.KeyedProcess[Bid, Total]):
    """Adds up the bids of an auction, and reports every thousandth."""

    total = hf.Value(int)

    def on_record(self, ctx: hf.Context, r: Bid) -> None:
        total = self.total.get(0) + r.price
        self.total.set(total)
        if not total % 1_000:
            ctx.emit(Total(r.auction, total))


class RunningBatches(hf.KeyedProcess[Bid, Total]):
    """The same sums, whole columns at a time."""

    total = hf.Value(int)

    def on_batch(self, ctx: Any, batch: pa.RecordBatch) -> None:
        np.add.at(self.total.values, ctx.numbers, batch.column("price").to_numpy())  # type: ignore[attr-defined]
        self.total.present[:] = True  # type: ignore[attr-defined]


def bench_keyed_process(bench: Bench) -> None:
    """A method per record, over keys that all have state."""
    _run(bench, lambda bids: bids.process("totals", Running(), to=Total), smoke=5_000, full=2_000_000)


def bench_keyed_process_batches(bench: Bench) -> None:
    """A method per batch."""
    _run(bench, lambda bids: bids.process_batches("totals", RunningBatches(), to=Total), smoke=5_000, full=20_000_000)


def _run(bench: Bench, build: Any, *, smoke: int, full: int) -> None:
    rows = bench.size("rows", smoke=smoke, full=full)
    size = bench.size("batch", smoke=2_000, full=65_536)
    keys = bench.size("keys", smoke=100, full=100_000)
    app = hf.App("bench")
    source = hf.Generator(Bid, lambda i: Bid(i, 1), count=1)
    build(app.source("bids", source).key_by("auction")).sink("out", MemorySink())
    plan = app.plan()
    identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
    groups = (0, plan.key_groups)
    state = StateStore(identity, [o.table for o in plan.operators], plan.key_groups, groups)
    tables = {operator.name: state.table(operator.id) for operator in plan.operators}
    owned = KeyGroups(plan.key_groups, *groups)
    fragment = FragmentRuntime(plan.fragments[1], tables, lambda *_: None, lambda *_: None, key_groups=owned)
    chosen = np.random.default_rng(7).integers(0, keys, size * 16)
    schema = plan.edges[0].schema
    columns = {"auction": pa.array(chosen), "price": pa.array(np.ones(size * 16, np.int64))}
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    began = time.process_time()
    with bench.timed():
        for start in range(0, rows, size):
            fragment.on_batch(batch.slice(start % (size * 16), min(size, rows - start)))
    used_s = time.process_time() - began
    fragment.on_barrier()
    for operator in plan.operators:
        state.freeze(operator.id, Epoch(1), Epoch(0))
    state.commit(Epoch(1))
    table = tables["totals"]
    total = int(np.sum(table.read("total", table.present()).to_numpy()))
    assert total == rows
    bench.report(per=rows, unit="record", check=total)
    bench.note(f"CPU: {used_s / rows * 1e6:.3f} us per record, {rows / used_s:,.0f} records per CPU second")
    bench.note(f"memory: {sum(each.nbytes for each in tables.values()) >> 10:,} KiB of state")
    bench.note(f"peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB of the process")
