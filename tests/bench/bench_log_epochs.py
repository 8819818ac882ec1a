"""One epoch of a log's writers: commits, requests and the time until all of its rows are visible, 15 ms a request.

Time passes only in requests. The staged output is in the same store, and all writers deliver at the same moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from harness import Bench
from slow_objects import REQUEST_S, SlowObjects
from virtual_time import VirtualTime

from holdfast.checkpoint.repository import read_each
from holdfast.model import Epoch, ObjectRef, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import Upload, UploadedOutput
from holdfast.sinks.log.sink import LogTarget, placed
from holdfast.sinks.log.uploads import LogUploader
from holdfast.sinks.protocol.staging import decode, encode, staged_schema
from holdfast.storage.log.log import LogReader, create_log

SCHEMA, PARTITIONS = pa.schema([("n", pa.int64()), ("v", pa.float64())]), 4


class Cost(NamedTuple):
    commits: int
    requests: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.commits} commits, {self.requests:,} requests, {self.seconds:.2f} s"


class Epochs:
    """A log with the output of epoch 1, and the staged output of epoch 2."""

    def __init__(self, writers: int, rows: int) -> None:
        self.virtual, self.writers, self.rows = VirtualTime(), writers, rows
        self.store = SlowObjects(self.virtual)
        create_log(self.store, SCHEMA, PARTITIONS, key=["n"])
        self.parts = [self._staged(n) for n in range(writers)]

    def _staged(self, writer: int) -> ObjectRef:
        numbers = np.arange(writer * self.rows, (writer + 1) * self.rows)
        data = encode(pa.table([numbers, numbers * 0.5], schema=staged_schema(SCHEMA, None)))
        path = f"staged/{writer}"
        self.store.put(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())

    def target(self, writer: int) -> LogTarget:
        target = LogTarget("log", lambda: self.store, "job", Writer("out", Subtask(writer)), self.virtual.pass_by)
        target.deliver(tag(1), [])
        return target

    def cost(self, *works: Callable[[], object]) -> Cost:
        """Carry out the works side by side, and count what they cost."""
        before = LogReader(self.store).newest().sequence
        self.store.requests.clear()
        self.store.slow = True
        began = self.virtual.now
        self.virtual.run(works)
        self.store.slow = False
        requests = self.store.requests.total()
        return Cost(LogReader(self.store).newest().sequence - before, requests, self.virtual.now - began)

    def count(self) -> int:
        reader = LogReader(self.store)
        return sum(reader.rows(partition) for partition in range(PARTITIONS))


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def each_for_itself(writers: int, rows: int) -> Cost:
    """Every writer commits its own output, as before."""
    epochs = Epochs(writers, rows)
    targets = [epochs.target(n) for n in range(writers)]

    def deliver(n: int) -> None:
        parts = (batch for data in read_each(epochs.store, [epochs.parts[n]]) for batch in decode(data))
        targets[n].deliver(tag(2), parts)

    cost = epochs.cost(*[lambda n=n: deliver(n) for n in range(writers)])
    assert epochs.count() == writers * rows
    return cost


def one_for_all(writers: int, rows: int, *, uploaded: bool) -> tuple[Cost, Cost]:
    """One committer; return the cost of the uploads, which precede the acks, and that of the delivery."""
    epochs = Epochs(writers, rows)
    target, named = epochs.target(0), dict[int, str]()
    uploaders = [LogUploader(lambda: epochs.store, placed) for _ in range(writers)]
    for n, uploader in enumerate(uploaders):
        uploader.upload(Upload("job", "out", 1, 1, 1, f"w{n}", n), [])  # it is open, as from the second epoch on

    def upload(n: int) -> None:
        rows = decode(epochs.store.get(epochs.parts[n].path))
        named[n] = uploaders[n].upload(Upload("job", "out", 1, 2, 1, f"w{n}", n), rows)

    before = Cost(0, 0, 0.0)
    if uploaded:
        before = epochs.cost(*[lambda n=n: upload(n) for n in range(writers)])
        before = Cost(0, before.requests - writers, before.seconds - REQUEST_S)  # a worker has its rows in memory

    def read(places: object) -> object:
        assert isinstance(places, list)
        return (b for data in read_each(epochs.store, [epochs.parts[p] for p in places]) for b in decode(data))

    output = UploadedOutput(tag(2), tuple(named.get(n) for n in range(writers)), read)  # type: ignore[arg-type]
    cost = epochs.cost(lambda: target.deliver_uploaded(output))
    assert epochs.count() == writers * rows and cost.commits == 1
    return before, cost


def bench_log_epoch(bench: Bench) -> None:
    """Writers deliver one epoch; the figures are for numbers of writers up to the size."""
    writers = bench.size("writers", smoke=8, full=200)
    rows = bench.size("rows of a writer", smoke=10, full=1_000)
    done = 0
    with bench.timed():
        for count in sorted({min(8, writers), min(100, writers), writers}):
            bench.note(f"{count} writers, each for itself: {each_for_itself(count, rows)}")
            _, small = one_for_all(count, rows, uploaded=False)
            before, large = one_for_all(count, rows, uploaded=True)
            bench.note(f"{count} writers, one committer: {small}")
            bench.note(f"{count} writers, uploads before the ack: {before.requests} requests, {before.seconds:.2f} s")
            bench.note(f"{count} writers, one committer that names uploads: {large}")
            done += 3 * count
    bench.report(per=done, unit="writer", check=done)
