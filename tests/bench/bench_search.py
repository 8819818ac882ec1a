"""Payments that are searched by standing queries: the queries and their state, in one thread without Spark.

Every query has a range of amounts and may have a category. What all payments find is counted by plain numpy.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from numpy.typing import NDArray
from planned_source import PlannedSource

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore

PAYMENTS = pa.schema(
    [pa.field(name, pa.int64(), False) for name in ("payment", "merchant", "category")]
    + [pa.field("amount", pa.int64())]
)
QUERIES = pa.schema(
    [
        pa.field("query", pa.int64(), False),
        pa.field("merchant", pa.int64(), False),
        *(pa.field(name, pa.int64()) for name in ("category", "least", "most")),
    ]
)
ADDED = pa.schema([*QUERIES, pa.field("_weight", pa.int64(), False)])
CATEGORIES, AMOUNTS, WIDTH = 8, 10_000, 500
FRAGMENT = 4
"""That of the search: behind those of two sources, of the queries as upserts, and of what they replace."""
Numbers = NDArray[np.int64]


@pytest.mark.parametrize("per_merchant", [10, 100, 1_000])
def bench_search(bench: Bench, per_merchant: int) -> None:
    """Between batches of payments a thousandth of the queries changes."""
    count = bench.size("queries", smoke=2_000, full=100_000)
    batches = bench.size("batches", smoke=4, full=30)
    rows = bench.size("payments per batch", smoke=200, full=10_000)
    rng, search = np.random.default_rng(1), Search()
    merchants = max(1, count // per_merchant)
    queries = {name: rng.integers(0, end, count) for name, end in (("merchant", merchants), ("category", CATEGORIES))}
    queries["least"] = rng.integers(0, AMOUNTS, count)
    search.change(np.arange(count), queries, 1)
    given, expected = [], 0
    for _ in range(batches):
        changed = rng.permutation(count)[: count // 1_000]
        before = {name: values[changed] for name, values in queries.items()}
        queries["least"][changed] = rng.integers(0, AMOUNTS, changed.size)
        ends = (("merchant", merchants), ("category", CATEGORIES), ("amount", AMOUNTS))
        payments = {name: rng.integers(0, end, rows) for name, end in ends}
        given.append((changed, before, {name: values[changed] for name, values in queries.items()}, payments))
        expected += counted(queries, payments)
    with bench.timed():
        for changed, before, now, payments in given:
            search.change(changed, before, -1)
            search.change(changed, now, 1)
            search.ask(payments)
        search.end_epoch()
    assert search.found == expected > 0
    bench.report(per=batches * rows, unit="row", check=search.found)
    bench.note(f"tables: {search.nbytes >> 10} KiB; {expected / batches / rows:.2f} queries found per row")
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def counted(queries: dict[str, Numbers], payments: dict[str, Numbers]) -> int:
    """Return how many pairs of payments and queries there are; a query with an even number has no category."""
    order = np.argsort(queries["merchant"], kind="stable")
    merchants = queries["merchant"][order]
    first, end = (np.searchsorted(merchants, payments["merchant"], side=side) for side in ("left", "right"))
    found = 0
    for row, (start, stop) in enumerate(zip(first.tolist(), end.tolist(), strict=True)):
        own = order[start:stop]
        fits = (own % 2 == 0) | (queries["category"][own] == payments["category"][row])
        least, amount = queries["least"][own], payments["amount"][row]
        found += int((fits & (least <= amount) & (amount <= least + WIDTH)).sum())
    return found


class Search:
    """The search on all key groups, with an epoch of its state."""

    def __init__(self) -> None:
        app = hf.App("alerts")
        payments = app.source("payments", PlannedSource(PAYMENTS))
        queries = app.table("queries", PlannedSource(QUERIES), key="query")
        terms = {"category": "category", "amount": ("least", "most")}
        found = payments.search("found", queries, on="merchant", terms=terms)
        found.select("payment", "query", "amount").sink("out", MemorySink())
        plan = app.plan()
        self.found = 0
        identity = Identity(JobUuid("bench"), Generation(1), Timeline(1), WorkerId("bench"))
        tables = [operator.table for operator in plan.operators]
        self._state = StateStore(identity, tables, plan.key_groups, (0, plan.key_groups))
        self._operators, groups = plan.operators, KeyGroups(plan.key_groups, 0, plan.key_groups)
        self._tables = {operator.name: self._state.table(operator.id) for operator in plan.operators}
        fragment = plan.fragments[FRAGMENT]
        self._names = [plan.edges[index].schema.names for index in fragment.input_edges]
        self._fragment = FragmentRuntime(fragment, self._tables, self._send, self._write, key_groups=groups)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self._tables.values())

    def change(self, numbers: Numbers, values: dict[str, Numbers], weight: int) -> None:
        category = pa.array(values["category"], mask=numbers % 2 == 0)
        bounds = pa.array(values["least"]), pa.array(values["least"] + WIDTH)
        arrays = [pa.array(numbers), pa.array(values["merchant"]), category, *bounds]
        weights = pa.array(np.full(numbers.size, weight))
        batch = pa.RecordBatch.from_arrays([*arrays, weights], schema=ADDED)
        self._fragment.on_batch(batch.select(self._names[1]), port=1)

    def ask(self, payments: dict[str, Numbers]) -> None:
        numbers = np.arange(payments["merchant"].size)
        arrays = [pa.array(each) for each in (numbers, *payments.values())]
        batch = pa.RecordBatch.from_arrays(arrays, schema=PAYMENTS)
        self._fragment.on_batch(batch.select(self._names[0]), port=0)

    def end_epoch(self) -> None:
        self._fragment.on_barrier()
        for operator in self._operators:
            self._state.freeze(operator.id, Epoch(1), Epoch(0))
        self._state.commit(Epoch(1))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        self.found += batch.num_rows
