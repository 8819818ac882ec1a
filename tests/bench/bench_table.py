"""Keyed count and sum: the cost of one batch and of a barrier for a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import ColumnSpec, Table, TableSpec

COLUMNS = (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("sum", np.dtype(np.int64)))
NUMBER = KeyType(("k",), (pa.int64(),))
TEXT = KeyType(("k",), (pa.utf8(),))


def batches(bench: Bench, kind: KeyType) -> tuple[int, list[pa.Array]]:
    """Return how many keys there are, and batches of uniformly drawn ones."""
    rows = bench.size("batch rows", smoke=512, full=65_536)
    count = bench.size("batches", smoke=4, full=128)
    keys = bench.size("keys", smoke=1_000, full=1_000_000)
    drawn = np.random.default_rng(1).integers(0, keys, (count, rows))
    return keys, [
        pa.array(part) if kind is NUMBER else pa.array([f"user-{n}" for n in part.tolist()]) for part in drawn
    ]


def whole_table(kind: KeyType, keys: int) -> Table:
    table = Table(TableSpec(1, "counts", kind, COLUMNS), 128)
    numbers = np.arange(keys)
    column = pa.array(numbers) if kind is NUMBER else pa.array([f"user-{n}" for n in numbers.tolist()])
    table.slots(kind.encode([column]))
    return table


@pytest.mark.parametrize("kind", [NUMBER, TEXT], ids=["integer keys", "text keys"])
def bench_keyed_count_and_sum(bench: Bench, kind: KeyType) -> None:
    """Encode, find, touch and add, as a keyed aggregate does per batch; all keys are known."""
    keys, columns = batches(bench, kind)
    table = whole_table(kind, keys)
    rows = sum(len(column) for column in columns)
    with bench.timed():
        for column in columns:
            slots = table.slots(kind.encode([column]))
            table.touch(slots)
            np.add.at(table.column("count"), slots, 1)
            np.add.at(table.column("sum"), slots, slots)
    counted = int(table.column("count").sum())
    assert counted == rows
    bench.report(per=rows, unit="row", check=counted)


@pytest.mark.parametrize("what", ["freeze", "commit", "roll back", "seal", "unseal"])
def bench_barrier(bench: Bench, what: str) -> None:
    """One epoch of dirty integer keys, through all work that a barrier causes."""
    keys = bench.size("keys", smoke=1_000, full=1_000_000)
    dirty = bench.size("dirty", smoke=500, full=500_000)
    table = whole_table(NUMBER, keys)
    slots = table.slots(NUMBER.encode([pa.array(np.random.default_rng(1).permutation(keys)[:dirty])]))
    one, two, none = Epoch(1), Epoch(2), Epoch(0)
    header = SegmentHeader(JobUuid("job"), Generation(1), Timeline(1), two, one, WorkerId("w"))
    table.touch(slots)
    table.freeze(one, none)
    table.touch(slots)
    if what == "freeze":
        table.commit(one)
        with bench.timed():
            table.freeze(two, one)
    elif what == "roll back":
        table.commit(one)
        with bench.timed():
            assert table.roll_back(one)
        table.touch(slots)
        table.freeze(two, one)
    else:
        table.freeze(two, one)
        if what == "commit":
            delta = table.delta(two)
            with bench.timed():
                table.commit(two)
            assert table.committed_through == two
        elif what == "seal":
            delta = table.delta(two)
            with bench.timed():
                data = seal(header, [delta])
        else:
            data = seal(header, [table.delta(two)])
            with bench.timed():
                _, (delta,) = unseal(data)
    done = len(delta) if what in ("commit", "seal", "unseal") else len(table.delta(two))
    assert done == dirty
    bench.report(per=dirty, unit="key", check=done)
