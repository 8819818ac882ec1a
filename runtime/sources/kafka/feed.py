"""The messages of one topic's partitions, from one consumer.

A consumer gives the messages of all its partitions mixed. Those of other partitions than the one that is asked for wait
in a queue per partition. A partition whose queue is full is paused until half of it was taken; the library then fetches
again what it had fetched.

Invariants
    - Messages of a partition are handed over in order, each once, from the offset that was asked for.
    - "No messages" is an answer only after a fetch that reached the end; until then the answer is unknown.
    - Asking for another offset than the one that follows begins with another consumer: one that is told to go elsewhere
      may still give messages from where it was, and these would look like messages behind a gap.
    - Queues hold `QUEUED_BYTES_MAX` together, or `QUEUE_BYTES_MIN` each if that is more, and one poll beyond it.

For one thread at a time. Source: docs/decisions/0075-kafka-source.md; librdkafka, rdkafka.h.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import methodcaller
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.runtime.sources.kafka.messages import MessageList, Messages
from holdfast.storage.kafka.errors import NO_TOPIC, no_client, translated, unavailable
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Reported, log

FETCHED_AHEAD_KIB = 16 << 10
"""The most that the library itself may keep, of all partitions together."""
QUEUED_BYTES_MAX, QUEUE_BYTES_MIN = 32 << 20, 256 << 10
MESSAGE_BYTES = 200
"""The bytes that a message takes besides its value."""
MESSAGES_MAX = 10_000
"""Messages of one poll."""
REFILL_AFTER_MS = 10
"""After a full queue the library waits this long before it fetches again; its own second starves a fast reader."""
POLL_S = 0.05
ANSWER_WITHIN_S = 5.0
NOTHING_READ = "no record was read; the worker asks again"
_ERROR, _PARTITION = methodcaller("error"), methodcaller("partition")
_OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")


class OutOfRange(Exception):
    """The server does not have the offset that was asked for."""


class Unpackable(Exception):
    """The records from the offset that was asked for on are in a batch that cannot be decompressed.

    Args:
        first: The library's name for the batch: an offset that is the same for all offsets in it.
        said: The library's message about the batch.
    """

    def __init__(self, first: int, said: str) -> None:
        super().__init__(said)
        self.first, self.said = first, said


class Taken(NamedTuple):
    """The messages that follow an offset.

    Args:
        messages: In order; None if there are no messages before `following`.
        following: The offset to ask for next.
    """

    messages: Messages | None
    following: int


@dataclass
class _Queue:
    """One partition."""

    following: int
    """The offset after the last message that was handed over, or where reading began."""
    received: int
    """The offset after the last message that came."""
    waiting: deque[tuple[list[Any], int]] = field(default_factory=deque)
    """Messages that wait, and their size in bytes."""
    size: int = 0
    end: int | None = None
    """Behind the last message that exists, as the last fetch showed; None after other messages came."""
    fault: tuple[Any, int] | None = None
    """An error of the library, and the offset that it names."""
    paused: bool = False

    def reaches(self, offset: int) -> bool:
        """Return whether what comes next is what follows this offset: nothing or a gap lies between."""
        first = self.waiting[0][0][0].offset() if self.waiting else self.end
        return self.fault is None and self.following <= offset <= (self.following if first is None else first)

    def add(self, messages: list[Any]) -> None:
        """Take messages that came; those that came before are left out."""
        if messages[0].offset() < self.received:
            messages = [each for each in messages if each.offset() >= self.received]
        if messages:
            size = sum(map(len, messages)) + MESSAGE_BYTES * len(messages)
            self.waiting.append((messages, size))
            self.size += size
            self.received, self.end = messages[-1].offset() + 1, None

    def take(self, bytes_max: int) -> list[Any]:
        """Hand over messages, at most so many bytes, but at least one."""
        portion: list[Any] = []
        while self.waiting and (not portion or bytes_max > 0):
            messages, size = self.waiting.popleft()
            count = len(messages) if size <= bytes_max else _fitting(messages, bytes_max, not portion)
            if count < len(messages):
                rest = messages[count:]
                left = sum(map(len, rest)) + MESSAGE_BYTES * len(rest)
                self.waiting.appendleft((rest, left))
                messages, size, bytes_max = messages[:count], size - left, 0
            portion += messages
            self.size -= size
            bytes_max -= size
        self.following = portion[-1].offset() + 1
        return portion


class MessageFeed:
    """The consumer of one source in one process. It may be used again after `close`.

    Args:
        interrupted: Whether messages are no longer wanted.
    """

    def __init__(self, place: KafkaPlace, interrupted: Callable[[], bool] = lambda: False) -> None:
        self._place, self._interrupted = place, interrupted
        self._consumer: Any = None
        self._reported = Reported()
        self._queues: dict[int, _Queue] = {}
        """The queues of all partitions that the consumer has."""
        self._known = 0
        """How many partitions the consumer knows."""

    def take(self, partition: int, offset: int, bytes_max: int) -> Taken:
        """Return the messages from an offset on; waits for an answer, not for messages.

        Raises:
            OutOfRange: the server does not have the offset.
            Unpackable: the batch with the offset cannot be decompressed.
            ConfigError: the options are wrong.
            NotAdmitted: the topic may not be read.
            Unavailable: there was no answer within `ANSWER_WITHIN_S`, or it was interrupted.
        """
        queue = self._at(partition, offset)
        until = time.monotonic() + ANSWER_WITHIN_S
        timeout_s = 0.0
        while not queue.waiting:
            self._receive(timeout_s, partition)
            timeout_s = POLL_S
            if queue.waiting:
                break
            if queue.fault is not None:
                raise fault_of(*queue.fault, self._place)
            if queue.end is not None:
                return Taken(None, max(queue.end, offset))
            if self._interrupted() or time.monotonic() > until:
                raise no_answer(partition, self._reported, self._place)
        messages = queue.take(bytes_max)
        if queue.paused and queue.size <= self._share() // 2:
            self._consumer.resume([self._named(partition)])
            queue.paused = False
        return Taken(MessageList(messages), queue.following)

    def close(self) -> None:
        """Drop the consumer and all that waits."""
        self._queues.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer, self._known = None, 0

    def _at(self, partition: int, offset: int) -> _Queue:
        """Return the queue of a partition, which begins at the offset."""
        from confluent_kafka import KafkaException

        queue = self._queues.get(partition)
        if queue is not None and queue.reaches(offset):
            return queue
        if queue is not None:
            self.close()
        try:
            consumer = self._opened()
            if partition >= self._known:  # it would look for new partitions every few minutes only
                found = consumer.list_topics(self._place.topic, ANSWER_WITHIN_S).topics[self._place.topic]
                if found.error is not None:
                    raise meaning_of(found.error, self._place)
                self._known = len(found.partitions)
            if partition >= self._known:
                raise unavailable(self._place, f"no broker knows partition {partition} yet", NOTHING_READ)
            consumer.incremental_assign([self._named(partition, offset)])
        except KafkaException as error:
            raise meaning_of(error.args[0], self._place) from None
        queue = self._queues[partition] = _Queue(offset, offset)
        return queue

    def _receive(self, timeout_s: float, wanted: int) -> None:
        """Take what the consumer has, into the queues."""
        from confluent_kafka import KafkaException

        try:
            messages = self._consumer.consume(1, timeout_s) if timeout_s > 0 else []
            if messages or timeout_s == 0:
                messages += self._consumer.consume(MESSAGES_MAX, 0)
        except KafkaException as error:
            raise meaning_of(error.args[0], self._place) from None
        # By type, as an error of the library cannot be compared with None. That there are none is the common case.
        if not set(map(type, map(_ERROR, messages))) - {type(None)}:
            self._sort(messages, wanted)
            return
        for faulty, group in groupby(messages, key=lambda each: each.error() is not None):
            if faulty:
                for each in group:
                    self._reports(each)
            else:
                self._sort(group, wanted)

    def _sort(self, messages: Iterable[Any], wanted: int) -> None:
        for partition, run in groupby(messages, key=_PARTITION):
            self._add(partition, list(run), wanted)

    def _add(self, partition: int, messages: list[Any], wanted: int) -> None:
        queue = self._queues[partition]
        queue.add(messages)
        if partition != wanted and not queue.paused and queue.size > self._share():
            self._consumer.pause([self._named(partition)])
            queue.paused = True

    def _reports(self, message: Any) -> None:
        error = message.error()
        queue = None if message.topic() is None else self._queues.get(message.partition())
        if queue is None:  # it is about the client, such as a group without which it can do
            self._reported(error)
        elif error.name() == "_PARTITION_EOF":
            queue.end = max(message.offset(), queue.received)
        else:
            queue.fault = (error, message.offset())

    def _share(self) -> int:
        return max(QUEUE_BYTES_MIN, QUEUED_BYTES_MAX // max(1, len(self._queues)))

    def _named(self, partition: int, offset: int | None = None) -> Any:
        from confluent_kafka import TopicPartition

        place = (self._place.topic, partition)
        return TopicPartition(*place) if offset is None else TopicPartition(*place, offset)

    def _opened(self) -> Any:
        if self._consumer is None:
            try:
                from confluent_kafka import Consumer
            except ImportError as error:
                raise no_client(error) from error
            self._reported = Reported()
            given = {"queued.max.messages.kbytes": FETCHED_AHEAD_KIB, **settings_of(self._place)}
            self._consumer = Consumer({**given, "error_cb": self._reported}, logger=log)
        return self._consumer


def settings_of(place: KafkaPlace) -> dict[str, Any]:
    """Return the options of a consumer."""
    own = place.settings(
        isolation_level="read_committed",
        auto_offset_reset="error",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        check_crcs=True,
    )
    return {"group.id": "holdfast", "fetch.queue.backoff.ms": REFILL_AFTER_MS, **own}


def fault_of(error: Any, offset: int, place: KafkaPlace) -> Exception:
    """Return what to raise for an error of a partition."""
    if error.name() == "_BAD_COMPRESSION":
        return Unpackable(offset, place.without_secrets(error.str()))
    return OutOfRange() if error.name() in _OUT_OF_RANGE else meaning_of(error, place)


def meaning_of(error: Any, place: KafkaPlace) -> HoldfastError:
    """Return the error to raise. A topic that is unknown may be gone: the next question to the brokers shows that."""
    if error.name() in NO_TOPIC:
        return unavailable(place, place.without_secrets(error.str()), NOTHING_READ)
    return translated(error, place, NOTHING_READ)


def no_answer(partition: int, reported: Reported, place: KafkaPlace) -> HoldfastError:
    """Return the error for a wait that ended, with what the client has reported meanwhile."""
    why = "" if reported.error is None else f": {place.without_secrets(reported.error.str())}"
    reported.error = None
    return unavailable(place, f"no answer about partition {partition}{why}", NOTHING_READ)


def _fitting(messages: list[Any], bytes_max: int, at_least_one: bool) -> int:
    """Return how many of the first messages fit."""
    sizes = accumulate(len(each) + MESSAGE_BYTES for each in messages)
    return max(int(at_least_one), sum(1 for size in sizes if size <= bytes_max))
