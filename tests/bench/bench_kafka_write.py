"""What a record costs until a topic has it: given to the client library by the batch, beside one by one.

Both write the same rows in turn, in this process: processor time of all threads, those of the library included, from
rows in Arrow to the confirmation of the brokers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from kafka_server import KafkaServer
from kafka_ways import BY_BATCH, ONE_BY_ONE, take

from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.immediate import ANYWHERE, Owner
from holdfast.sinks.contract.target import Delivered
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.storage.kafka.place import KafkaPlace

pytestmark = pytest.mark.kafka

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("auction", "bidder", "price", "at")])
KEY = ("auction",)
JOB = "6f9b0f6e-0000-4000-8000-000000000001"
SIZES = (10, 1_000, 10_000)
PARTITIONS = 4
Write = Callable[[pa.RecordBatch], None]


def rows(count: int) -> pa.RecordBatch:
    n = np.arange(count)
    columns = (1_000_000 + n % 1_000, 1_000_000 + n * 7_919 % 1_000_000, 100_000 + n % 1_000, 1_700_000_000_000 + n)
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=SCHEMA)


@contextmanager
def one_by_one(on: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        take(ONE_BY_ONE if on else BY_BATCH, patch)
        yield


def at_least_once(sink: KafkaSink, stack: ExitStack) -> Write:
    owner = Owner(JOB, "out", Generation(1), Timeline(1), "any")
    target = stack.enter_context(closing(RepeatingKafka(sink).open_immediate(owner)))
    target.fence({})

    def write(batch: pa.RecordBatch) -> None:
        target.write(ANYWHERE, 0, [batch])

    return write


def in_transactions(sink: KafkaSink, stack: ExitStack) -> Write:
    target = stack.enter_context(closing(sink.open(JOB, Writer("out", Subtask(0)))))
    target.delivered()
    epochs = iter(range(1, 1 << 30))

    def write(batch: pa.RecordBatch) -> None:
        assert target.deliver(Tag(Timeline(1), Epoch(next(epochs))), [batch]) == Delivered(batch.num_rows)

    return write


MODES = {"at least once": at_least_once, "in transactions": in_transactions}


class Spent(NamedTuple):
    """What writes took: processor time of all threads and of the one that writes, and time."""

    all: float
    own: float
    wall: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.process_time(), time.thread_time(), time.perf_counter())


def bench_kafka_write(bench: Bench, kafka: KafkaServer) -> None:
    """Keyed rows of JSON into four partitions; of each pair of runs, the second begins with the other way."""
    records = bench.size("records a run", smoke=1_000, full=100_000)
    rounds = bench.size("rounds", smoke=1, full=7)
    spent, topics, written = dict[tuple[str, int, bool], list[Spent]](), list[str](), 0
    with ExitStack() as stack, bench.timed():
        writes = dict[tuple[str, bool], Write]()
        for mode, opened in MODES.items():
            for single in (False, True):
                topics.append(kafka.topic(PARTITIONS))
                sink = KafkaSink(KafkaPlace(kafka.servers, topics[-1]), key=KEY)
                sink.prepare(SCHEMA, None)
                with one_by_one(single):
                    writes[mode, single] = opened(sink, stack)
                    writes[mode, single](rows(SIZES[0]))
                written += SIZES[0]
        for round_, mode, size in product(range(rounds), MODES, SIZES):
            batch, times = rows(size), max(1, min(records // size, 200 if mode == "at least once" else 40))
            for single in (False, True) if round_ % 2 else (True, False):
                write = writes[mode, single]
                with one_by_one(single):
                    began = Spent.now()
                    for _ in range(times):
                        write(batch)
                    took = Spent(*((end - at) / times for end, at in zip(Spent.now(), began, strict=True)))
                spent.setdefault((mode, size, single), []).append(took)
                written += times * size
    assert sum(count_of(kafka, topic) for topic in topics) == written
    bench.report(per=written, unit="record", check=written)
    for mode, size in product(MODES, SIZES):
        one, many = (Spent(*np.median(spent[mode, size, single], axis=0)) for single in (True, False))
        bench.note(
            f"{mode}, writes of {size:,}, one by one and by batch: us of CPU a record {one.all / size * 1e6:.2f} and "
            f"{many.all / size * 1e6:.2f}, of the writing thread {one.own / size * 1e6:.2f} and "
            f"{many.own / size * 1e6:.2f}; ms a write {one.wall * 1e3:.1f} and {many.wall * 1e3:.1f}"
        )


def count_of(kafka: KafkaServer, topic: str) -> int:
    """Return how many records a reader of a topic sees, without keeping them."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    ends, count = kafka.ends(topic), 0
    consumer = Consumer({**kafka.quiet(), "group.id": "bench", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in ends])
    while any(at.offset < ends[at.partition] for at in consumer.position(consumer.assignment())):
        came = consumer.consume(10_000, 0.2)
        assert not any(each.error() for each in came)
        count += len(came)
    consumer.close()
    return count
