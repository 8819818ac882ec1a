"""A Kafka topic as tests of sinks see it: its rows, decoded, and its progress topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kafka_server import KafkaServer

from holdfast.sinks.contract.target import Fault, FaultPoint, no_fault
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.storage.kafka.place import KafkaPlace

SETTLES_WITHIN_S, HANGS_FOR_S = 30.0, 0.7


class KafkaTopic:
    """A topic of its own, with a sink of JSON values.

    Args:
        key: The sink's key; its columns are the first ones of a row.
    """

    def __init__(self, server: KafkaServer, key: tuple[str, ...] | None = None, partitions: int = 2) -> None:
        self._server, self._key, self._partitions, self._crashed = server, key, partitions, False
        self.name = server.topic(partitions)
        self.sink = KafkaSink(KafkaPlace(server.servers, self.name), key=key)
        self._lost: list[tuple[int, int]] = []
        self._reader: Any = None

    def watched(self, fault: Fault) -> Fault:
        """Return a fault that tells this object when it crashes a delivery, which leaves a transaction open."""

        def watch(point: FaultPoint) -> None:
            self._crashed = True
            fault(point)
            self._crashed = False

        return no_fault if fault is no_fault else watch

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the visible rows; with a key, the newest of each key."""
        self._settle()
        return self.records_alone()

    def records_alone(self) -> list[tuple[Any, ...]]:
        """Return the rows of a topic that is written without transactions, and has no progress topic."""
        records = [each for each in self._records(self.name, self._partitions) if not self._is_lost(each.offset())]
        if self._key is None:
            return [tuple(json.loads(each.value()).values()) for each in records]
        newest = {each.key(): each.value() for each in records}
        return [tuple(json.loads(value).values()) for value in newest.values() if value is not None]

    def back_up(self) -> Callable[[], None]:
        """Remember the records; return what makes those that follow invisible, as a restored cluster lacks them."""
        self._settle()
        [end] = self._server.ends(self.name).values()
        kept = self._progress()

        def restore() -> None:
            self._settle()
            [now] = self._server.ends(self.name).values()
            self._lost.append((end, now))
            for key in self._progress():
                self._server.produce(progress_topic(self.name), [kept.get(key)], key=key)

        return restore

    def _progress(self) -> dict[bytes, bytes | None]:
        return {each.key(): each.value() for each in self._records(progress_topic(self.name), 1)}

    def _records(self, topic: str, partitions: int) -> list[Any]:
        """Return all committed records, like `KafkaServer.records`, by one consumer, which needs a second to start."""
        from confluent_kafka import Consumer, TopicPartition

        if self._reader is None:
            settings = {"bootstrap.servers": self._server.servers, "group.id": "test", "enable.partition.eof": True}
            self._reader = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 20, "log_level": 0})
        self._reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found, ended = list[Any](), set[int]()
        while len(ended) < partitions:
            message = self._reader.poll(SETTLES_WITHIN_S)
            assert message is not None, f"the broker does not answer about {topic}"
            if message.error() is None:
                found.append(message)
            elif message.topic() == topic:
                ended.add(message.partition())
        return sorted(found, key=lambda each: (each.partition(), each.offset()))

    def _is_lost(self, offset: int) -> bool:
        return any(first <= offset < end for first, end in self._lost)

    def _settle(self) -> None:
        """Wait until no transaction is open: a commit is confirmed before its markers are in the partitions.

        A transaction that a crash left open ends with the next init; until then it hides the rows behind it.
        """
        until = time.monotonic() + (HANGS_FOR_S if self._crashed else SETTLES_WITHIN_S)
        while not all(map(self._is_settled, (self.name, progress_topic(self.name)))):
            if time.monotonic() >= until:
                assert self._crashed, "a transaction stayed open"
                return
            self._server.admin.poll(0.01)

    def _is_settled(self, topic: str) -> bool:
        return self._server.ends(topic) == self._server.ends(topic, "read_uncommitted")
