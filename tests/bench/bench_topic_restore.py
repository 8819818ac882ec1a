"""A restore from a changelog's topic, and the look for a compaction at each sweep: requests and time, 15 ms a request.

Time passes only in requests. A store that reads one object after another is the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from harness import Bench
from slow_objects import SlowObjects
from virtual_time import VirtualTime

from holdfast.model import CHANGELOG, EPOCH_MAX, NO_EPOCH, Epoch, Generation, Stretch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.changelogs import AsOf
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.target import OP
from holdfast.sinks.log.changelog import by_key_group
from holdfast.sinks.log.compacting import TopicCompaction, When
from holdfast.sinks.log.records import RecordsReader
from holdfast.sinks.log.sink import LogTarget
from holdfast.state.records import KEY, RECORDS
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import create_log
from holdfast.storage.log.reader import existing_meta

JOB, PARTITIONS, GROUPS = "1" * 32, 4, 128
HISTORY = (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)


class SideBySide(SlowObjects):
    """The same, as a store of which many objects are read at the same time."""

    def create_many(self, objects: Mapping[str, bytes]) -> Sequence[str]:
        for path, data in objects.items():
            self.create(path, data)
        return []


class Topic:
    """A topic to which one writer has delivered some epochs, each with a record for every partition."""

    def __init__(self, virtual: VirtualTime, store: SlowObjects, epochs: int) -> None:
        self.virtual, self.store = virtual, store
        create_log(store, RECORDS, PARTITIONS, KEY, changelog=True)
        writer, claim, place = Writer(CHANGELOG, Subtask(0)), Claim("owner", Generation(1)), by_key_group(GROUPS)
        target = LogTarget("topic", lambda: store, JOB, writer, virtual.pass_by, claim, place)
        for epoch in range(1, epochs + 1):
            target.deliver(Tag(Timeline(1), Epoch(epoch)), [records(epoch)])
        self.compaction = TopicCompaction("topic", lambda: store, JOB, When(1 << 40, 0.0))

    def cost(self, work: object) -> str:
        assert callable(work)
        self.store.requests.clear()
        self.store.slow, began = True, self.virtual.now
        self.virtual.run([work])
        self.store.slow = False
        return f"{self.store.requests.total():,} requests, {self.virtual.now - began:.2f} s"

    def restore(self) -> int:
        """Read all records, as a restore of a quarter of the key groups does."""
        reader = RecordsReader("topic", JOB, self.store, Commits(self.store, existing_meta(self.store)))
        which = AsOf(JOB, HISTORY, EPOCH_MAX, NO_EPOCH, (0, GROUPS // PARTITIONS), GROUPS)
        return sum(batch.num_rows for batch in reader.read(which, lambda *_: None))

    def sweep(self, horizon: int) -> None:
        assert not self.compaction.compact("owner", HISTORY, Epoch(horizon))


def records(epoch: int) -> pa.RecordBatch:
    keys = [
        b"\x00\x01" + (partition * GROUPS // PARTITIONS).to_bytes(2, "big") + b"k" for partition in range(PARTITIONS)
    ]
    texts = {name: ["{}"] * PARTITIONS for name in ("row_key", "row", "layout")}
    columns = {"operator": ["op"] * PARTITIONS, "key": pa.array(keys, pa.large_binary()), "epoch": [epoch] * PARTITIONS}
    columns |= {"value": pa.array([b"v" * 100] * PARTITIONS, pa.large_binary())}
    columns |= {OP: pa.array([0] * PARTITIONS, pa.int8())}
    schema = RECORDS.append(pa.field(OP, pa.int8(), nullable=False))
    return pa.RecordBatch.from_pydict({**columns, **texts}, schema=schema)


def bench_topic_restore(bench: Bench) -> None:
    """One worker of four restores its state; then the driver looks for a compaction, twice."""
    epochs = bench.size("epochs", smoke=40, full=3_000)
    found = 0
    with bench.timed():
        for name, made in (("one after another", SlowObjects), ("side by side", SideBySide)):
            virtual = VirtualTime()
            topic = Topic(virtual, made(virtual), epochs)
            read = list[int]()
            bench.note(f"restore, {name}: {topic.cost(lambda t=topic, r=read: r.append(t.restore()))}")
            bench.note(f"first sweep, {name}: {topic.cost(lambda t=topic: t.sweep(epochs - 10))}")
            bench.note(f"next sweep, {name}: {topic.cost(lambda t=topic: t.sweep(epochs - 9))}")
            assert read == [epochs]
            found += read[0]
    bench.report(per=found, unit="commit", check=found)
