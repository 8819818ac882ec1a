"""Keyed count and sum: the cost of one batch and of a barrier for a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from numpy.typing import NDArray

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

COLUMNS = (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("sum", np.dtype(np.int64)))
NUMBER = KeyType(("k",), (pa.int64(),))
TEXT = KeyType(("k",), (pa.utf8(),))
TIME = pa.timestamp("us", "UTC")
WINDOW = KeyType(("end", "k"), (TIME, pa.int64()), unrouted=1)


def batches(bench: Bench, kind: KeyType) -> tuple[int, list[tuple[pa.Array, NDArray[np.int64]]]]:
    """Return how many keys there are, and batches of uniformly drawn ones, with values."""
    rows = bench.size("batch rows", smoke=512, full=65_536)
    count = bench.size("batches", smoke=4, full=128)
    keys = bench.size("keys", smoke=1_000, full=1_000_000)
    drawn = np.random.default_rng(1).integers(0, keys, (count, rows))
    return keys, [(named(kind, part), part) for part in drawn]


def named(kind: KeyType, numbers: NDArray[np.int64]) -> pa.Array:
    return pa.array([f"user-{n}" for n in numbers.tolist()]) if kind is TEXT else pa.array(numbers)


def columns_of(kind: KeyType, given: pa.Array) -> list[pa.Array]:
    if kind is not WINDOW:
        return [given]
    return [pa.array(np.full(len(given), 10_000_000)).view(TIME), given]


def whole_table(kind: KeyType, keys: int) -> StateTable:
    table = StateTable(TableSpec(1, "counts", kind, COLUMNS), 128)
    table.slots(kind.encode(columns_of(kind, named(kind, np.arange(keys)))))
    return table


@pytest.mark.parametrize("kind", [NUMBER, TEXT, WINDOW], ids=["integer keys", "text keys", "window and integer"])
def bench_keyed_count_and_sum(bench: Bench, kind: KeyType) -> None:
    """Encode and fold, as a keyed aggregate does per batch; all keys are known."""
    keys, columns = batches(bench, kind)
    table = whole_table(kind, keys)
    rows = sum(len(given) for given, _ in columns)
    program = table.program([(Do.COUNT, "count", 0), (Do.ADD_INT, "sum", 0)])
    with bench.timed():
        for given, values in columns:
            table.fold(kind.encode(columns_of(kind, given)), program, sources_of([KernelInput(values)]))
    counted = int(table.column("count").sum())
    assert counted == rows
    bench.report(per=rows, unit="row", check=counted)


@pytest.mark.parametrize("keys", [100_000, 1_000_000, 10_000_000])
@pytest.mark.parametrize("what", ["insert", "find", "fold", "touch"])
def bench_parts(bench: Bench, what: str, keys: int) -> None:
    """One part of the work on integer keys in random order, and the memory of a key."""
    keys = bench.size("keys", smoke=keys // 1_000, full=keys)
    rng, size = np.random.default_rng(1), 65_536
    table = StateTable(TableSpec(1, "counts", NUMBER, COLUMNS), 128)
    program = table.program([(Do.COUNT, "count", 0), (Do.ADD_INT, "sum", 0)])
    numbers = rng.permutation(keys)
    born = [NUMBER.from_ints(numbers[first : first + size]) for first in range(0, keys, size)]
    if what == "insert":
        with bench.timed():
            for part in born:
                table.slots(part)
        assert len(table) == keys
        bench.report(per=keys, unit="key", check=len(table))
        bench.note(f"{table.nbytes / keys:.0f} bytes per key")
        return
    for part in born:
        table.slots(part)
    drawn = [rng.integers(0, keys, size) for _ in range(bench.size("batches", smoke=2, full=32))]
    asked, inputs = [NUMBER.from_ints(part) for part in drawn], [KernelInput(part) for part in drawn]
    slots = [table.slots(part) for part in asked]
    with bench.timed():
        for number, part in enumerate(asked):
            if what == "find":
                table.slots(part)
            elif what == "fold":
                table.fold(part, program, sources_of([inputs[number]]))
            else:
                table.touch(slots[number])
    changed = table.changed().size
    assert changed == (0 if what == "find" else np.unique(np.concatenate(drawn)).size)
    bench.report(per=size * len(drawn), unit="row", check=changed)


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
        done = len(table.delta(two))
    elif what == "roll back":
        table.commit(one)
        with bench.timed():
            assert table.roll_back(one)
        table.touch(slots)
        table.freeze(two, one)
        done = len(table.delta(two))
    else:
        table.freeze(two, one)
        done = len(table.delta(two))
        if what == "commit":
            with bench.timed():
                table.commit(two)
            assert table.committed_through == two
        elif what == "seal":
            delta = table.delta(two)
            with bench.timed():
                seal(header, [delta])
        else:
            data = seal(header, [table.delta(two)])
            with bench.timed():
                _, (read,) = unseal(data)
            done = len(read)
    assert done == dirty
    bench.report(per=dirty, unit="key", check=done)
