"""Orders that are looked up in a table of customers: the look-up and its state, in one thread without Spark.

Every order finds its customer; as of event time, the version of its own second, which is checked.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from planned_source import PlannedSource

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([pa.field("customer", pa.int64(), False), pa.field("at", TIME, False)])
CUSTOMERS = pa.schema(
    [pa.field("customer", pa.int64(), False), pa.field("since", TIME, False), pa.field("second", pa.int64(), False)]
)
CHANGES = pa.schema([*CUSTOMERS, pa.field("_op", pa.int8(), False)])
START_US = 1_767_225_600_000_000
SECOND_US = 1_000_000
BATCHES_PER_EPOCH = 16
FRAGMENT = 3
"""That of the look-up: behind those of two sources, and of the table's rows as upserts."""


@pytest.mark.parametrize("as_of", ["latest", "event_time"])
def bench_lookup(bench: Bench, as_of: str) -> None:
    """Each second a twentieth of the customers changes, and orders come for all of them."""
    customers = bench.size("customers", smoke=1_000, full=100_000)
    seconds = bench.size("seconds", smoke=4, full=100)
    rows = bench.size("orders per second", smoke=2_000, full=50_000)
    rng, lookup = np.random.default_rng(1), Lookup(as_of)
    lookup.change(np.arange(customers), 0)
    given = [(rng.permutation(customers)[: customers // 20], rng.integers(0, customers, rows)) for _ in range(seconds)]
    latest, expected = np.zeros(customers, np.int64), 0
    for second, (changed, ordered) in enumerate(given, 1):
        latest[changed] = second
        expected += int(latest[ordered].sum())
    with bench.timed():
        for second, (changed, ordered) in enumerate(given, 1):
            lookup.change(changed, second)
            lookup.ask(ordered, second)
            lookup.pass_second(second)
        lookup.pass_second(seconds + 1)
    assert (lookup.rows_out, lookup.found) == (seconds * rows, expected)
    bench.report(per=seconds * rows, unit="row", check=lookup.rows_out)
    bench.note(f"tables: {lookup.nbytes >> 10} KiB")
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


class Lookup:
    """The look-up on all key groups, with the epochs of its state."""

    def __init__(self, as_of: str) -> None:
        app = hf.App("orders")
        orders = app.source("orders", PlannedSource(ORDERS), event_time="at")
        table = app.table("customers", PlannedSource(CUSTOMERS), key="customer", event_time="since")
        orders.lookup("found", table, on="customer", as_of=as_of).sink("out", MemorySink())
        plan = app.plan()
        self.rows_out = self.found = self._epoch = 0
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

    def change(self, customers: np.ndarray[tuple[int], np.dtype[np.int64]], second: int) -> None:
        times = pa.array(np.full(customers.size, START_US + second * SECOND_US)).view(TIME)
        arrays = [pa.array(customers), times, pa.array(np.full(customers.size, second))]
        batch = pa.RecordBatch.from_arrays([*arrays, pa.array(np.zeros(customers.size, np.int8))], schema=CHANGES)
        self._fragment.on_batch(batch.select(self._names[1]), port=1)

    def ask(self, customers: np.ndarray[tuple[int], np.dtype[np.int64]], second: int) -> None:
        times = START_US + second * SECOND_US + np.arange(customers.size) % SECOND_US
        batch = pa.RecordBatch.from_arrays([pa.array(customers), pa.array(times).view(TIME)], schema=ORDERS)
        self._fragment.on_batch(batch.select(self._names[0]), port=0)

    def pass_second(self, second: int) -> None:
        self._fragment.on_watermark(START_US + second * SECOND_US)
        if second % BATCHES_PER_EPOCH == 0:
            self._epoch += 1
            self._fragment.on_barrier()
            for operator in self._operators:
                self._state.freeze(operator.id, Epoch(self._epoch), Epoch(self._epoch - 1))
            self._state.commit(Epoch(self._epoch))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        self.rows_out += batch.num_rows
        self.found += int(batch.column("second").to_numpy().sum())
