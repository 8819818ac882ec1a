"""Restoring a worker's state from what the root and the local disk have, what it costs in memory, and to keep it there.

The same keys come from a base in a root, from a copy of it in RocksDB, and from an image that is read or mapped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench

from holdfast.checkpoint.repository import open_verified
from holdfast.model import Cut, Epoch, Generation, JobUuid, ObjectRef, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.evolution import declaration
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.local.copies import Copies
from holdfast.state.local.image import Image, Wanted, create
from holdfast.state.local.rocks import RocksKeyValue
from holdfast.state.paging.swap import resident_bytes
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import PLAIN, Memory
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.local import LocalObjects

JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 128
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WORKER)
NUMBER = KeyType(("k",), (pa.int64(),))
COLUMNS = tuple(ColumnSpec(f"c{number}", np.dtype(np.int64)) for number in range(15))
SPEC = TableSpec(1, "wide", NUMBER, COLUMNS)
"""128 bytes a key: 8 of its own, 120 of values."""
AT_ONCE = 1 << 16
COPIED_BYTES = 16 << 20


def new_store(memory: Memory = PLAIN) -> StateStore:
    return StateStore(IDENTITY, [SPEC], GROUPS, (0, GROUPS), memory)


def keys(first: int, count: int) -> Keys:
    return NUMBER.from_ints(np.arange(first, first + count))


def sealed(store: StateStore, epoch: int, count: int) -> bytes:
    """Write the first keys with random values, which do not compress; return the segment of that epoch."""
    table, chance = store.table(1), np.random.default_rng(epoch)
    for first in range(0, count, AT_ONCE):
        slots = table.slots(keys(first, min(AT_ONCE, count - first)))
        table.write(slots, {column.name: chance.integers(0, 1 << 62, len(slots)) for column in COLUMNS})
    store.freeze(1, Epoch(epoch), Epoch(epoch - 1))
    header = SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(epoch - 1), WORKER)
    return seal(header, store.deltas(Epoch(epoch)))


def ref_of(path: str, data: bytes) -> ObjectRef:
    return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())


def wanted(epoch: int) -> Wanted:
    return Wanted(JOB, (0, GROUPS), {1: declaration(SPEC)}, Cut(Epoch(epoch), f"manifest {epoch}"), {})


def image_of(folder: Path, data: bytes) -> Image:
    """Return an image with the rows of a base."""
    image = create(folder, wanted(1))
    memory = image.begin()
    store = new_store(memory)
    store.restore(Epoch(1), [data])
    image.finish(store, memory, wanted(1), hashed=True)
    return image


@contextmanager
def measured(bench: Bench, count: int, unit: str = "key") -> Iterator[None]:
    """Time a block, and note its CPU time and what it leaves in memory."""
    before, cpu = resident_bytes(), time.process_time()
    with bench.timed():
        yield
    cpu, grown = time.process_time() - cpu, resident_bytes() - before
    bench.note(f"{cpu:.3f} s of CPU, {cpu / count * 1e6:.3f} us a {unit}; {grown / count:,.0f} bytes resident")


def keys_of(bench: Bench) -> int:
    return bench.size("keys of 128 bytes", smoke=2_000, full=4 << 20)


@pytest.mark.parametrize("place", ["root", "copy", "image that is read", "image that is mapped"])
def bench_restore(bench: Bench, tmp_path: Path, place: str) -> None:
    """All keys; from a stored piece, it is verified first as a worker does, and a mapped image is verified later."""
    count = keys_of(bench)
    data = sealed(new_store(), 1, count)
    ref, root, copies = ref_of("base", data), LocalObjects(tmp_path / "root"), RocksKeyValue(tmp_path / "copies")
    (tmp_path / "images").mkdir()
    image = image_of(tmp_path / "images", data) if "image" in place else None
    if place == "root":
        root.put("base", data)
    elif image is None:
        Copies(copies, time.sleep).put("base", data)
    del data
    with measured(bench, count):
        if place == "root":
            store = new_store()
            with open_verified(root, ref) as file:
                store.restore(Epoch(1), [file])
        elif image is None:
            copy, store = Copies(copies).get(ref), new_store()
            assert copy is not None
            store.restore(Epoch(1), [copy])
        elif place == "image that is read":
            store = new_store()
            image.read(store, PLAIN)
        else:
            memory = image.private()
            store = new_store(memory)
            image.load(store, memory)
    began = time.perf_counter()
    asked = np.random.default_rng(2).permutation(count)[:AT_ONCE]
    present = store.table(1).is_present(store.table(1).slots(NUMBER.from_ints(asked)))
    bench.note(f"then the first {len(asked):,} random keys in {time.perf_counter() - began:.3f} s")
    assert present.all() and len(store.table(1)) == count
    bench.report(per=count, unit="key", check=ref.size)
    if image is not None:
        began, cpu = time.perf_counter(), time.process_time()
        image.verify()
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        bench.note(f"its hashes are compared in {wall_s:.3f} s, {cpu_s:.3f} s of CPU")
        image.release()
    copies.close()


def bench_copy(bench: Bench, tmp_path: Path) -> None:
    """Segments of 16 MiB are copied into RocksDB, the older ones removed as an image takes their place."""
    count = bench.size("segments", smoke=2, full=64)
    store, data = RocksKeyValue(tmp_path), np.random.default_rng(1).bytes(COPIED_BYTES)
    copies, total = Copies(store, time.sleep), count * COPIED_BYTES >> 20
    with measured(bench, total, "MiB"):
        for number in range(count):
            copies.put(f"{number}", data)
            if not (number + 1) % 16:
                copies.remove(lambda path, number=number: int(path) <= number - 8)  # type: ignore[misc]
    assert copies.get(ref_of(f"{count - 1}", data)) == data
    store.close()
    bench.report(per=total, unit="MiB", check=copies.nbytes)


def bench_renewed_image(bench: Bench, tmp_path: Path) -> None:
    """An image is copied and brought up to date by a segment in which one of 16 rows has changed."""
    count = keys_of(bench)
    changed = count // 16
    worker = new_store()
    before = image_of(tmp_path, sealed(worker, 1, count))
    segment = sealed(worker, 2, changed)
    image = create(tmp_path, wanted(2))
    with measured(bench, changed, "changed row"):
        image.copy(before)
        memory = image.begin()
        store = new_store(memory)
        image.load(store, memory)
        store.follow(Epoch(2), [segment])
        image.finish(store, memory, wanted(2), hashed=True)
        before.remove()
    image.verify()
    assert image.head is not None and len(store.table(1)) == count
    bench.report(per=changed, unit="changed row", check=image.head.nbytes)
    image.release()
