"""What one driver costs with very many workers and epochs: a deployment, a start, a sweep, the split of a shuffle.

Each compares with the plain way in the same run; the notes give the ratio, requests and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
from control_plane import KEY_GROUPS, LongLog, completed, manifest_of, master_of, peak_bytes
from counted import BulkObjects, CountingObjects
from harness import Bench
from scale import WORKERS, aged, cost

from holdfast.checkpoint import folds, joblog
from holdfast.checkpoint.catalogue import FOLDERS, Retention
from holdfast.checkpoint.manifest import encode, named_in
from holdfast.checkpoint.recovery import handles_for
from holdfast.checkpoint.repository import Repository
from holdfast.model import Epoch, Subtask
from holdfast.ports import ObjectStore
from holdfast.runtime.driver.background.sweep import Sweep
from holdfast.runtime.driver.deployment import deployments
from holdfast.runtime.plan.model import Edge
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.runtime.worker.routing import Router
from holdfast.state.keys.batch import KeyType
from holdfast.state.keys.keygroups import owners

REQUEST_S = 0.015
"""How long a request to an object store takes, for estimates."""


def seconds(work: Callable[[], object]) -> float:
    """Return how long this takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_deployment(bench: Bench) -> None:
    """Every worker is told what to run, from a checkpoint of as many subtasks."""
    workers = bench.size("workers", smoke=4, full=200)
    base = manifest_of(100, workers)
    state = master_of(workers, base)
    with bench.timed():
        found = deployments(state, base, state.workers)
    assert [deploy.handle for _, deploy in found] == list(base.state)
    each = seconds(lambda: [deployments(state, base, [worker]) for worker in state.workers])
    wire = sum(len(msgspec.msgpack.encode(deploy)) for _, deploy in found)
    assert bench.seconds is not None
    bench.note(f"one by one {each:.2f} s, together {bench.seconds:.3f} s: {each / bench.seconds:.0f} times as fast")
    bench.note(
        f"{wire / 1e6:.1f} MB of messages, peak {peak_bytes(lambda: deployments(state, base, state.workers)):,} B"
    )
    rescaled = seconds(lambda: handles_for(base, master_of(workers * 3 // 2, base).rules.key_ranges))
    bench.note(f"handles after a rescale to half as many again: {rescaled:.3f} s")
    bench.note(f"manifest {len(encode(base)) / 1e6:.2f} MB, encoded in {seconds(lambda: encode(base)) * 1e3:.0f} ms")
    bench.report(per=workers, unit="worker", check=len(found))


def bench_split(bench: Bench) -> None:
    """One batch of a shuffle is split among all subtasks."""
    workers = bench.size("workers", smoke=4, full=200)
    rows = bench.size("rows", smoke=1_000, full=1 << 16)
    rounds = bench.size("batches", smoke=2, full=50)
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.float64()), pa.field("t", pa.utf8())])
    keys = np.random.default_rng(1).integers(0, 1 << 40, rows)
    batch = pa.record_batch([keys, keys * 0.5, [f"row {n}" for n in range(rows)]], schema=schema)
    router = Router(Edge(0, 0, 1, ("k",), schema), workers, KEY_GROUPS)
    key, owned = KeyType.of([schema.field("k")]), owners(workers, KEY_GROUPS)

    def plain() -> list[tuple[Subtask, pa.RecordBatch]]:
        owner = owned[key.encode([batch.column(0)]).key_groups(KEY_GROUPS)]
        found = ((Subtask(s), np.flatnonzero(owner == s)) for s in range(workers))
        return [(subtask, batch.take(pa.array(at))) for subtask, at in found if len(at)]

    assert router.split(batch) == plain()
    sent = 0
    with bench.timed():
        for _ in range(rounds):
            sent += sum(part.num_rows for _, part in router.split(batch))
    before = seconds(lambda: [plain() for _ in range(rounds)])
    assert bench.seconds is not None
    bench.note(f"a pass per subtask: {before / bench.seconds:.1f} times as long")
    assert sent == rows * rounds
    bench.report(per=sent, unit="row", check=sent)


def bench_start(bench: Bench) -> None:
    """A driver reads the log of a job that has closed an epoch a second and keeps an hour of checkpoints."""
    records = bench.size("records", smoke=600, full=7_200)
    store = BulkObjects()
    log = LongLog(store)
    for _ in range(records):
        job = log.complete()
        if job.next_seq % folds.EVERY == 0:
            Repository(store).store_fold(job)
    store.requests.clear()
    with bench.timed():
        found = Repository(store).read_log()
    assert found == log.job
    gets, lists = store.requests["get"], store.requests["list"] + store.requests["list after"]
    rounds = -(-gets // 32) + lists
    bare = CountingObjects()
    for path in store.list("log"):
        bare.put(path, store.get(path))
    bare.requests.clear()
    before = seconds(lambda: Repository(bare).read_log())
    assert bench.seconds is not None
    bench.note(f"{gets} reads and {lists} listings, {rounds * REQUEST_S:.1f} s at 15 ms a request and 32 side by side")
    one_by_one = bare.requests["get"] + bare.requests["list"]
    bench.note(f"without a fold, one by one: {one_by_one:,} requests, {one_by_one * REQUEST_S:.0f} s")
    bench.note(f"computing alone {bench.seconds:.2f} s, without a fold {before:.2f} s")
    bench.note(f"peak {peak_bytes(lambda: Repository(store).read_log()) / 1e6:.0f} MB")
    bench.note(f"the fold has {len(folds.encode(found)) / 1e6:.2f} MB")  # type: ignore[arg-type]
    bench.report(per=records, unit="record", check=found.next_seq if found else 0)


def bench_sweep(bench: Bench) -> None:
    """A tenth of the retained checkpoints expires."""
    workers = bench.size("workers", smoke=4, full=200)
    retained = bench.size("checkpoints", smoke=10, full=200)
    store, gone = BulkObjects(), max(1, retained // 10)
    job = stored_checkpoints(store, workers, retained + gone)
    lane = InlineLane()
    sweep = Sweep(Repository(store), lambda: lane)
    sweep.request(job)  # reads all manifests
    first = seconds(lane.step)
    kept = replace(job, completed=job.completed[gone:], expired_through=Epoch(gone))
    known = sweep._catalogue
    spans = {path: (first, known._last[path]) for path, first in known._first.items()}
    store.requests.clear()
    before = sum(len(store.list(folder)) for folder in FOLDERS)
    listings = store.requests.pop("list")
    sweep.request(kept)
    with bench.timed():
        lane.step()
    assert sweep.problem is None and store.requests["list"] <= listings
    deleted = before - sum(len(store.list(folder)) for folder in FOLDERS)
    assert deleted >= workers * gone
    size = job.completed[-1].body.manifest.size
    bench.note(f"the first sweep reads all manifests, each {size / 1e6:.2f} MB: {first:.1f} s")
    bench.note(f"{listings} listings, {store.requests['delete together']} deletions; one by one {deleted:,} deletions")
    epochs = [each.body.epoch for each in kept.retained]
    plain = seconds(lambda: [p for p, (low, high) in spans.items() if not any(low <= e <= high for e in epochs)])
    bench.note(f"expiry with {len(spans):,} objects: every object against every checkpoint takes {plain:.2f} s more")
    bench.report(per=deleted, unit="deleted object", check=deleted)


def stored_checkpoints(store: ObjectStore, workers: int, count: int) -> joblog.Job:
    """Store the objects of so many checkpoints; return a fold that retains them."""
    repository, done, fold = Repository(store), list[joblog.Completed](), master_of(1, manifest_of(2, 1)).job
    for epoch in range(1, count + 1):
        made = manifest_of(epoch, workers)
        ref = repository.store_manifest(made, "a" * 32)
        for path in named_in(encode(made), ref).paths[1:]:
            if f"/{epoch:012d}/" in path:
                store.put(path, b"1")
        body = msgspec.structs.replace(completed(epoch).body, manifest=ref)
        done.append(msgspec.structs.replace(completed(epoch), body=body))
    return replace(fold, completed=tuple(done))


def bench_scale(bench: Bench) -> None:
    """Epochs, heartbeats and a recovery of masters with more and more workers: docs/operate/scale.md and its plot."""
    most = bench.size("workers", smoke=10, full=WORKERS[-1])
    epochs = bench.size("epochs", smoke=3, full=40)
    taken = 0
    with bench.timed():
        for workers in WORKERS:
            if workers <= most:
                found = cost(workers, epochs)
                bench.note(
                    f"{workers} workers: {1 / found.ack_s:,.0f} acks/s, {found.epoch_s * 1e3:.1f} ms an epoch besides, "
                    f"{1 / found.heartbeat_s:,.0f} heartbeats/s, recovery {found.recovery_s * 1e3:.1f} ms, "
                    f"{found.manifest_bytes / 1e6:.3f} MB and {found.requests:.2f} requests an epoch"
                )
                taken += workers * epochs
    bench.report(per=taken, unit="ack", check=taken)


def bench_old_job(bench: Bench) -> None:
    """A driver starts a job with very many epochs behind it, and the default retention."""
    epochs = bench.size("epochs", smoke=3_000, full=1_000_000)
    rule = Retention() if bench.full else Retention(age_us=600_000_000, log_records=200)
    store, job = aged(epochs, rule)
    objects = len(store.list("log"))
    store.requests.clear()
    with bench.timed():
        found = Repository(store).read_log()
    assert found == job and found.base_epoch == epochs and found.expired_through > 0
    gets, lists = store.requests["get"], store.requests["list"] + store.requests["list after"]
    rounds = -(-gets // 32) + lists
    bench.note(f"{objects:,} records are left, {len(job.completed):,} checkpoints retained")
    bench.note(f"{gets} reads and {lists} listings, {rounds * REQUEST_S:.2f} s at 15 ms a request and 32 side by side")
    bench.note(f"peak {peak_bytes(lambda: Repository(store).read_log()) / 1e6:.0f} MB")
    bench.report(per=1, unit="start", check=found.next_seq)
