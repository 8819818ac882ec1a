"""What a record of a topic costs until it is a row in Arrow, beside what the client library alone takes for it.

Both read the same topic in turn, in this process: processor time of all threads, those of the library included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness import Bench
from kafka_server import KafkaServer

import holdfast as hf
from holdfast.runtime.plan.ahead import inline

pytestmark = pytest.mark.kafka

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("auction", "bidder", "price", "at")])
START, RECORD_BYTES = 1_700_000_000_000, 81
READ_BYTES = 2 << 20
ROUNDS = 3


def value(n: int) -> bytes:
    """Return a record."""
    bidder, price = 1_000_000 + n * 7_919 % 1_000_000, 100_000 + n % 1_000
    text = b'{"auction":%d,"bidder":%d,"price":%d,"at":%d,"url":"we"}'
    return text % (1_000_000 + n % 1_000_000, bidder, price, START + n)


def cpu(work: Callable[[], int]) -> tuple[float, int]:
    """Return the processor time that something takes in this process, and its result."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def bench_kafka_read(bench: Bench, kafka: KafkaServer) -> None:
    """A topic of one partition, from its first record to its last."""
    records = bench.size("records", smoke=20_000, full=1_000_000)
    assert len(value(0)) == len(value(records)) == RECORD_BYTES
    topic = kafka.topic()
    kafka.fill(topic, (value(n) for n in range(records)))
    alone, ours = float("inf"), float("inf")

    def bare() -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "bench", "check.crcs": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while count < records:
            count += len(consumer.consume(10_000, 0.05))
        consumer.close()
        return count

    def decoded() -> int:
        opened = hf.Kafka(kafka.servers, topic, hf.JSON(SCHEMA)).source().open()
        reader, count, total = opened.reader(0, 0, inline()), 0, 0
        while count < records:
            read = reader.poll(READ_BYTES)
            assert read is not None
            if read.batch is not None:
                count += read.batch.num_rows
                total += pc.sum(read.batch.column("at")).as_py() - START * read.batch.num_rows
        reader.close()
        opened.close()
        return int(total)

    with bench.timed():
        for _ in range(ROUNDS):
            seconds, count = cpu(bare)
            assert count == records
            alone = min(alone, seconds)
            seconds, total = cpu(decoded)
            assert total == records * (records - 1) // 2
            ours = min(ours, seconds)
    bench.note(
        f"processor time a record, the best of {ROUNDS}: consume() alone {alone / records * 1e6:.2f} us, into Arrow "
        f"{ours / records * 1e6:.2f} us: {ours / alone:.2f} x"
    )
    bench.report(per=records * ROUNDS * 2, unit="record", check=records)
