"""Restoring a worker's state, and what it costs in memory."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import Bench
from patience import wait

from holdfast.checkpoint.repository import open_verified
from holdfast.errors import Unavailable
from holdfast.model import Cut, Epoch, Generation, JobUuid, ObjectRef, Timeline, WorkerId
from holdfast.ports import KeyValue
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.local.rocks import RocksKeyValue, RocksMemory
from holdfast.state.paging.swap import resident_bytes
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.local import LocalObjects

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
    wait(lambda: applied(store), "RocksDB to take all rows")
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


def stored(root: LocalObjects, count: int) -> ObjectRef:
    """Put a base segment with that many keys into a root."""
    data = sealed(filled(new_store(), count))
    root.put("base", data)
    return ObjectRef("base", len(data), hashlib.sha256(data).hexdigest())


def in_time(bench: Bench, count: int, cpu_s: float) -> str:
    return f"state {count * 128 / 2**20:,.0f} MiB in {bench.seconds:.3f} s, of which {cpu_s:.3f} s of CPU"


def bench_restore_of_a_base(bench: Bench, tmp_path: Path) -> None:
    """All keys from one stored piece of a root on the local disk, verified as a worker verifies it."""
    count = bench.size("keys of 128 bytes", smoke=2_000, full=8 << 20)
    root = LocalObjects(tmp_path)
    ref = stored(root, count)
    before, cpu = resident_bytes(), time.process_time()
    store = new_store()
    with bench.timed(), open_verified(root, ref) as file:
        store.restore(Epoch(1), [file], None)
    cpu = time.process_time() - cpu
    assert len(store.table(1)) == count
    bench.report(per=count, unit="key", check=ref.size)
    bench.note(f"{(resident_bytes() - before) / count:.0f} bytes resident a key; {in_time(bench, count, cpu)}")


def bench_restore_of_a_local_folder(bench: Bench, tmp_path: Path) -> None:
    """A worker's local folder is taken over; then a batch of random keys is read from it."""
    count = bench.size("keys of 128 bytes", smoke=2_000, full=8 << 20)
    memory = RocksMemory()
    leave_folder(tmp_path / "cold", memory, count)
    asked = np.random.default_rng(2).permutation(count)[:AT_ONCE]
    cpu = time.process_time()
    with bench.timed():
        cold = RocksKeyValue(tmp_path / "cold", memory)
        store = new_store(cold)
        store.restore(Epoch(1), [], Epoch(1))
    cpu = time.process_time() - cpu
    began = time.perf_counter()
    slots = store.table(1).slots(NUMBER.from_ints(asked))
    present = int(store.table(1).is_present(slots).sum())
    first_s = time.perf_counter() - began
    cold.close()
    assert present == len(asked)
    bench.report(per=count, unit="key", check=present)
    bench.note(f"{in_time(bench, count, cpu)}; then the first {AT_ONCE:,} random keys in {first_s:.3f} s")
