"""Patterns of three steps: rows kept by event time, the automaton, epochs of state, in one thread without Spark.

Two of a thousand rows begin a match, which is the usual rule; the matches found are counted against those planted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from harness import Bench

import holdfast as hf
from holdfast.model import LAST_US, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore

START_US = 1_767_225_600_000_000
ROW_US = 10
"""Between two rows."""
EVERY = 500
"""One of so many rows begins a match."""


@dataclass
class Payment:
    card: int
    amount: int
    at: datetime


@dataclass
class Fraud:
    card: int
    tiny_amount: int
    large_amount: int
    at: datetime


def pattern_of(how: str) -> Any:
    tiny, small, large = pl.col("amount") == 1, pl.col("amount") == 2, pl.col("amount") == 3
    if how == "followed_by":
        return hf.pattern("tiny", tiny).followed_by("small", small).followed_by("large", large)
    if how == "functions":
        begun = hf.pattern("tiny", tiny).followed_by("small", small, lambda r, m: r.amount > m.tiny.amount)
        return begun.followed_by("large", large, lambda r, m: r.amount > m.small.amount)
    return hf.pattern("tiny", tiny).then("small", small).then("large", large)


@pytest.mark.parametrize("how", ["followed_by", "functions", "then"])
def bench_pattern(bench: Bench, how: str) -> None:
    """`then` keeps every row until the watermark, as any of them could break a neighbourhood."""
    rows = bench.size("rows", smoke=6_000, full=2_000_000)
    size = bench.size("batch", smoke=2_000, full=65_536)
    keys = bench.size("cards", smoke=300, full=100_000)
    app = hf.App("bench")
    source = hf.Generator(Payment, lambda i: None, count=1)
    payments = app.source("payments", source, event_time="at")
    payments.match("fraud", pattern_of(how).within("1h"), key="card", to=Fraud).sink("out", MemorySink())
    plan, found = app.plan(), list[int]()
    identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
    groups = (0, plan.key_groups)
    state = StateStore(identity, [o.table for o in plan.operators], plan.key_groups, groups)
    tables = {operator.name: state.table(operator.id) for operator in plan.operators}
    fragment = FragmentRuntime(
        plan.fragments[1],
        tables,
        lambda *_: None,
        lambda _, batch: found.append(batch.num_rows),
        key_groups=KeyGroups(plan.key_groups, *groups),
    )
    batches = list(input_of(plan.edges[0].schema, rows, size, keys))
    began = time.process_time()
    with bench.timed():
        for number, batch in enumerate(batches, 1):
            fragment.on_batch(batch)
            fragment.on_watermark(START_US + (number * size - size // 2) * ROW_US)
            while fragment.backlog:
                fragment.backlog.go_on()
            if not number % 8:
                fragment.on_barrier()
                for operator in plan.operators:
                    state.freeze(operator.id, Epoch(number // 8), Epoch(number // 8 - 1))
                state.commit(Epoch(number // 8))
        fragment.on_watermark(LAST_US)
    used_s = time.process_time() - began
    assert sum(found) == planted(rows)
    bench.report(per=rows, unit="record", check=sum(found))
    bench.note(f"CPU: {used_s / rows * 1e6:.3f} us per record, {rows / used_s:,.0f} records per CPU second")
    bench.note(f"memory: {sum(each.nbytes for each in tables.values()) >> 10:,} KiB of state")


def planted(rows: int) -> int:
    """Return how many matches are in the input: three rows of one card, 100 rows apart."""
    return len(range(0, rows - 200, EVERY))


def input_of(schema: pa.Schema, rows: int, size: int, keys: int) -> Any:
    """Return batches of payments, in order; planted rows have cards of their own."""
    rng = np.random.default_rng(5)
    cards, amounts = rng.integers(0, keys, rows), rng.integers(10, 1_000, rows)
    for begins in range(0, rows - 200, EVERY):
        for step in range(3):
            cards[begins + 100 * step], amounts[begins + 100 * step] = keys + begins // EVERY, step + 1
    columns = {
        "card": pa.array(cards),
        "amount": pa.array(amounts),
        "at": pa.array(START_US + np.arange(rows) * ROW_US).view(schema.field("at").type),
    }
    whole = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    for first in range(0, rows, size):
        yield whole.slice(first, size)
