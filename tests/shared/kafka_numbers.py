"""Rows that are numbered per key, as they enter a topic, and what a reader of another topic sees of them.

A job that counts the rows of each key gives every row the count that equals its number. So a reader knows after each
record which one of its key has to come next: a lost, a repeated or a reordered row is recognised when it is read, and
by its number. Both sides work in threads of their own while faults strike, and share no code with the runtime.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from kafka_server import ANSWER_WITHIN_S, KafkaServer

KEYS = 97
PAUSE_S = 0.05
READ_MAX = 1_000
ABORTED = -1
"""The number of a row whose transaction was aborted."""


class Numbers:
    """Appends numbered rows to a topic, at a rate, while its block lasts or until it is stopped.

    The rows of a key are in one partition, in order.

    Args:
        partitions: Of the topic.
        per_second: Rows of all partitions.
    """

    def __init__(self, kafka: KafkaServer, topic: str, partitions: int, per_second: int, chance: random.Random) -> None:
        from confluent_kafka import Producer

        self.given = Counter[str]()
        """The number of the newest row of each key."""
        self.rows = 0
        """How many were appended, or wait for the broker."""
        self._kafka, self._topic, self._partitions = kafka, topic, partitions
        self._per_second, self._chance = per_second, chance
        self._failed: list[str] = []
        self._producer = Producer({**kafka.quiet(), "enable.idempotence": True, "on_delivery": self._reported})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbers")

    def append(self, count: int) -> None:
        """Append so many rows of random keys."""
        for _ in range(count):
            place = self._chance.randrange(KEYS)
            key = f"key-{place}"
            self._producer.produce(self._topic, _value(key, self.given[key] + 1), partition=place % self._partitions)
            self.given[key] += 1
            self.rows += 1
        self._producer.poll(0)

    def abort(self) -> None:
        """Append a row to each partition in a transaction that is aborted: it must not count."""
        with self._kafka.transaction("aborted", commit=False) as producer:
            for partition in range(self._partitions):
                producer.produce(self._topic, _value(f"key-{partition}", ABORTED), partition=partition)

    def stop(self) -> None:
        """Append no more by itself, and wait until the broker has all rows."""
        self._stopped.set()
        self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has all rows."""
        assert self._producer.flush(ANSWER_WITHIN_S) == 0, "the broker did not take the rows"
        assert self._failed == []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        began, appended = time.monotonic(), 0
        while not self._stopped.wait(PAUSE_S):
            due = int((time.monotonic() - began) * self._per_second)
            self.append(due - appended)
            appended = due

    def _reported(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))


class Order:
    """Compares each record with the one that its key must have next."""

    def __init__(self) -> None:
        self.rows = 0
        self.newest = Counter[str]()
        """The number of the newest record of each key."""
        self.lost, self.repeated, self.wrong = list[str](), list[str](), list[str]()
        """Records whose predecessor is missing, that came before or too late, and with a count that is not theirs."""

    @property
    def faults(self) -> list[str]:
        """Return what was wrong, a part of it if that is much."""
        return [*self.lost[:5], *self.repeated[:5], *self.wrong[:5]]

    def take(self, key: str, row: dict[str, Any]) -> None:
        """Take the next record of a partition."""
        n, due = row["n"], self.newest[key] + 1
        if n > due:
            self.lost.append(f"{key}: {n} came instead of {due}")
        if n < due:
            self.repeated.append(f"{key}: {n} came again or late, instead of {due}")
        if row != {"key": key, "n": n, "count": n}:
            self.wrong.append(f"{key}: {row}")
        self.newest[key] = max(n, due - 1)
        self.rows += 1


class Seen(Order):
    """The committed records of a topic, read all along.

    Args:
        topic: Its records have the key of a row, and its key, number and count as JSON.
        partitions: Of the topic.
    """

    def __init__(self, kafka: KafkaServer, topic: str, partitions: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        super().__init__()
        settings = {"group.id": "seen", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({**kafka.quiet(), **settings, "auto.offset.reset": "error"})
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seen")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            for message in self._consumer.consume(READ_MAX, PAUSE_S):
                if message.error() is None:  # the client retries; what it never reads is missing at the end
                    self.take(message.key().decode(), json.loads(message.value()))


def _value(key: str, n: int) -> bytes:
    return json.dumps({"key": key, "n": n}).encode()
