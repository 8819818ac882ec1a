"""Bids and auctions like those of the peers' generator: the same shapes and skews, for a broker of the tests' own.

A bid comes every 0.1 ms and is up to two seconds late, most of them far less. Bidders are skewed: the hottest has 3 %.
An auction is one that opened in the last 20 seconds. Auctions open every millisecond, in order.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from kafka_server import KafkaServer
from peer_jobs import AUCTION, BID

START_MS, BIDDERS, PRIME = 1_700_000_000_000, 1_000_000, 1_000_003
PARTITIONS, PIECE = 4, 40_000
READ_WITHIN_S = 60.0
MARKERS = 50
"""More than the ends of transactions behind the last row of a partition."""
Rows = list[dict[str, Any]]


def bids(count: int) -> Iterator[Rows]:
    """Yield bids, a piece at a time."""
    for first in range(0, count, PIECE):
        size = min(PIECE, count - first)
        rng, ms = np.random.default_rng([42, first]), np.arange(first, first + size) // 10
        columns = {
            "auction": np.maximum(ms - (20_000 * rng.random(size) ** 1.5).astype(np.int64), 0),
            "bidder": ((BIDDERS * rng.random(size) ** 4).astype(np.int64) * 7_919 + 17) % PRIME,
            "price": np.exp(rng.normal(6, 2, size)).astype(np.int64) + 1,
            "channel": np.char.add("channel-", rng.integers(0, 64, size).astype(str)),
            "dateTime": START_MS + ms - (rng.random(size) ** 3 * 2_000).astype(np.int64),
        }
        yield pl.DataFrame(columns).to_dicts()


def auctions(count: int) -> Iterator[Rows]:
    """Yield auctions, a piece at a time."""
    for first in range(0, count, PIECE):
        ids = range(first, min(first + PIECE, count))
        yield [
            {"id": n, "seller": n * 31 % 10_000, "category": 10 + n % 5}
            | {"dateTime": START_MS + n, "expires": START_MS + n + 10_000}
            for n in ids
        ]


def filled(kafka: KafkaServer, pieces: Iterator[Rows]) -> str:
    """Return a new topic with these rows as JSON, one after the other in each of four partitions."""
    topic = kafka.topic(PARTITIONS)
    for rows in pieces:
        values = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
        for partition in range(PARTITIONS):
            kafka.produce(topic, values[partition::PARTITIONS], partition)
    return topic


def read(servers: str, topic: str, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return all rows of a topic that a reader of committed records sees."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    given = {"bootstrap.servers": servers, "group.id": "oracle", "enable.auto.commit": False}
    consumer = Consumer({**given, "enable.partition.eof": True, "isolation.level": "read_committed"})
    partitions = consumer.list_topics(topic, READ_WITHIN_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    frames, ended = [pl.DataFrame(schema=dict(schema))], 0
    while ended < len(partitions):
        messages = consumer.consume(PIECE, READ_WITHIN_S if ended == 0 else 1.0)
        values = [each.value() for each in messages if each.error() is None]
        faults = [each.error() for each in messages if each.error() is not None]
        assert messages or ended, f"the broker does not answer about {topic}"
        assert all(fault.code() == KafkaError._PARTITION_EOF for fault in faults), faults
        ended += len(faults)
        if values:
            frames.append(pl.read_ndjson(io.BytesIO(b"\n".join(values)), schema=dict(schema)))
    consumer.close()
    return pl.concat(frames)


def last_written(servers: str, topic: str) -> float:
    """Return when the last row of a topic was written, in seconds since 1970."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "oracle", "enable.partition.eof": True})
    found = list[int]()
    for partition in consumer.list_topics(topic, READ_WITHIN_S).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), READ_WITHIN_S)
        consumer.assign([TopicPartition(topic, partition, max(low, high - MARKERS))])
        while (message := consumer.poll(READ_WITHIN_S)) is not None and message.error() is None:
            found.append(message.timestamp()[1])
    consumer.close()
    return max(found) / 1e3


def all_bids(count: int) -> pl.DataFrame:
    """Return the bids as a frame."""
    return pl.concat([pl.DataFrame(rows, schema=BID) for rows in bids(count)])


def all_auctions(count: int) -> pl.DataFrame:
    """Return the auctions as a frame."""
    return pl.concat([pl.DataFrame(rows, schema=AUCTION) for rows in auctions(count)])
