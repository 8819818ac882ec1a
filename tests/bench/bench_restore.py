"""Restoring a worker's state, and what it costs in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import Bench, wait

from holdfast.errors import Unavailable
from holdfast.model import Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.ports import KeyValue
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.rocks import RocksKeyValue, RocksMemory
from holdfast.state.store import Identity, StateStore
from holdfast.state.swap import resident_bytes
from holdfast.state.tables.spec import ColumnSpec, TableSpec

JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 128
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WORKER)
NUMBER = KeyType(("k",), (pa.int64(),))
COLUMNS = tuple(ColumnSpec(f"c{number}", np.dtype(np.int64)) for number in range(15))
SPEC = TableSpec(1, "wide", NUMBER, COLUMNS)
"""128 bytes a key: 8 of its own, 120 of values."""
AT_ONCE = 1 << 16


def new_store(cold: KeyValue | None = None) -> StateStore:
    return StateStore(IDENTITY, [SPEC], GROUPS, (0, GROUPS), cold)


def keys(first: int, count: int) -> Keys:
    return NUMBER.from_ints(np.arange(first, first + count))


def filled(store: StateStore, count: int) -> StateStore:
    """Write that many keys with random values, which do not compress, and freeze them as epoch 1."""
    table, chance = store.table(1), np.random.default_rng(1)
    for first in range(0, count, AT_ONCE):
        slots = table.slots(keys(first, min(AT_ONCE, count - first)))
        table.write(slots, {column.name: chance.integers(0, 1 << 62, len(slots)) for column in COLUMNS})
    store.freeze(1, Epoch(1), Epoch(0))
    return store


def sealed(store: StateStore) -> bytes:
    header = SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(1), Epoch(0), WORKER)
    return seal(header, store.deltas(Epoch(1)))


def leave_folder(path: Path, memory: RocksMemory, count: int) -> None:
    """Write the local folder of a worker that holds that many keys."""
    cold = RocksKeyValue(path, memory)
    store = filled(new_store(cold), count)
    store.commit(Epoch(1))
    store.completed(Cut(Epoch(1), "hash"))
    wait(lambda: applied(store), "RocksDB to take all rows", timeout_s=600)
    cold.flush()
    cold.close()


def applied(store: StateStore) -> bool:
    """Write all that is committed to the cold store; return False where RocksDB compacts first and refuses writes."""
    try:
        while store.apply():
            pass
    except Unavailable:
        return False
    return True


def bench_restore_of_a_base(bench: Bench) -> None:
    """All keys from one stored piece that is in memory, as from a checkpoint root."""
    count = bench.size("keys of 128 bytes", smoke=2_000, full=8 << 20)
    data = sealed(filled(new_store(), count))
    before = resident_bytes()
    store = new_store()
    with bench.timed():
        store.restore(Epoch(1), [data], None)
    assert len(store.table(1)) == count
    bench.report(per=count, unit="key", check=len(data))
    grown = resident_bytes() - before
    bench.note(
        f"{grown / count:.0f} bytes resident a key; state {count * 128 / 2**20:,.0f} MiB in {bench.seconds:.2f} s"
    )


def bench_restore_of_a_local_folder(bench: Bench, tmp_path: Path) -> None:
    """A worker's local folder is taken over; then a batch of random keys is read from it."""
    count = bench.size("keys of 128 bytes", smoke=2_000, full=8 << 20)
    memory = RocksMemory()
    leave_folder(tmp_path / "cold", memory, count)
    asked = np.random.default_rng(2).permutation(count)[:AT_ONCE]
    with bench.timed():
        cold = RocksKeyValue(tmp_path / "cold", memory)
        store = new_store(cold)
        store.restore(Epoch(1), [], Epoch(1))
    slots = store.table(1).slots(NUMBER.from_ints(asked))
    present = int(store.table(1).is_present(slots).sum())
    cold.close()
    assert present == len(asked)
    bench.report(per=count, unit="key", check=present)
    bench.note(f"state {count * 128 / 2**20:,.0f} MiB in {bench.seconds:.3f} s")
