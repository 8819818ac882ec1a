"""The messages of one topic's partitions as columns, from one consumer of librdkafka.

Does the same as feed.py with `consume()`, without a Python object per message: see the contract of `MessageFeed` there.

Invariants
    - Messages of a partition are handed over in order, each once, from the offset that was asked for.
    - "No messages" is an answer only after a fetch that reached the end; until then the answer is unknown.
    - Asking for another offset than the one that follows begins with another consumer.
    - Less than one batch of each partition is taken from the library and not handed over; the library keeps
      `QUEUED_BYTES_MAX` of all partitions together, or `QUEUE_BYTES_MIN` of each if that is more, and one fetch beyond.

For one thread at a time. Source: docs/decisions/0089-kafka-batches.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.client import BATCH_MESSAGES_MAX, Client
from holdfast.runtime.sources.kafka.columns import Columns, columns_of
from holdfast.runtime.sources.kafka.feed import (
    ANSWER_WITHIN_S,
    NOTHING_READ,
    POLL_S,
    QUEUE_BYTES_MIN,
    QUEUED_BYTES_MAX,
    Taken,
    fault_of,
    meaning_of,
    no_answer,
    settings_of,
)
from holdfast.runtime.sources.kafka.gathering import ends_last, without_error
from holdfast.storage.kafka.errors import unavailable
from holdfast.storage.kafka.library import Librdkafka
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Reported

QUEUED_MESSAGES_MAX, QUEUE_MESSAGES_MIN = 200_000, 5_000
"""Beyond so many, the library fetches no more of a partition; each takes some 300 bytes besides its value."""
COPIED_BYTES_MAX = 1 << 30
"""The limit for messages that are copied together: their places in a column are numbers of 32 bits."""
FIRST_MESSAGES = 1_000
"""How many are asked for while their size is not known."""


@dataclass
class _Partition:
    following: int
    """The offset after the last message that was handed over, or where reading began."""
    received: int
    """The offset after the last message that came."""
    waiting: list[Columns] = field(default_factory=list)
    """Messages that were not handed over yet, in order."""
    end: int | None = None
    """Behind the last message that exists, as the last fetch showed; None after other messages came."""
    fault: tuple[Any, int] | None = None
    """An error of the library, and the offset that it names."""
    message_bytes: float = 0.0
    """The average size of a message of the last batch."""

    def reaches(self, offset: int) -> bool:
        """Return whether what comes next is what follows this offset: nothing or a gap lies between."""
        first = self.waiting[0].first if self.waiting else self.end
        return self.fault is None and self.following <= offset <= (self.following if first is None else first)

    def wanted(self, bytes_max: int) -> int:
        """Return how many messages to ask for, so that they have about so many bytes."""
        if not self.message_bytes:
            return FIRST_MESSAGES
        return min(BATCH_MESSAGES_MAX, max(1, int(bytes_max / self.message_bytes)))

    def add(self, found: Columns) -> None:
        """Take messages that came; those that came before are left out."""
        found = found.since(self.received)
        if len(found):
            self.message_bytes = found.size / len(found)
            self.waiting.append(found)
            self.received, self.end = found.last + 1, None

    def take(self, bytes_max: int) -> Columns:
        """Hand over messages, at most so many bytes, but at least one."""
        columns = self.waiting.pop(0)
        fitting = columns.fitting(bytes_max)
        if fitting < len(columns):
            self.waiting.insert(0, columns.slice(fitting, len(columns)))
            columns = columns.slice(0, fitting)
        self.following = columns.last + 1
        return columns


class BatchFeed:
    """The consumer of one source in one process. It may be used again after `close`.

    Args:
        more: Whether keys, times and headers are wanted besides values.
        partitions: How many the topic has, among which the library's memory is divided.
        interrupted: Whether messages are no longer wanted.
        bell: Rings when messages come.
    """

    def __init__(
        self,
        place: KafkaPlace,
        library: Librdkafka,
        more: bool,
        partitions: Callable[[], int],
        interrupted: Callable[[], bool] = lambda: False,
        bell: Bell | None = None,
    ) -> None:
        self._place, self._library, self._more, self._bell = place, library, more, bell
        self._count, self._interrupted = partitions, interrupted
        self._client: Client | None = None
        self._reported = Reported()
        self._partitions: dict[int, _Partition] = {}
        self._known = 0
        """How many partitions the consumer knows."""

    def take(self, partition: int, offset: int, bytes_max: int) -> Taken:
        """Take the records of a partition from an offset on, as `MessageFeed.take` does."""
        client, state = self._at(partition, offset)
        until = time.monotonic() + ANSWER_WITHIN_S
        timeout_s = 0.0
        while not state.waiting:
            self._receive(client, partition, state, bytes_max, timeout_s)
            timeout_s = POLL_S
            if state.waiting:
                break
            if state.fault is not None:
                raise fault_of(*state.fault, self._place)
            if state.end is not None:
                return Taken(None, max(state.end, offset))
            if self._interrupted() or time.monotonic() > until:
                raise no_answer(partition, self._reported, self._place)
        taken = state.take(bytes_max)
        return Taken(taken, state.following)

    def close(self) -> None:
        """Drop the consumer and all that waits."""
        self._partitions.clear()
        if self._client is not None:
            self._client.close()
            self._client, self._known = None, 0

    def _at(self, partition: int, offset: int) -> tuple[Client, _Partition]:
        """Return the consumer, and the partition, which begins at the offset."""
        from confluent_kafka import KafkaException

        state = self._partitions.get(partition)
        if self._client is not None and state is not None and state.reaches(offset):
            return self._client, state
        if state is not None:
            self.close()
        try:
            client = self._opened()
            if partition >= self._known:  # it would look for new partitions every few minutes only
                self._known = client.partitions(self._place.topic, ANSWER_WITHIN_S)
            if partition >= self._known:
                raise unavailable(self._place, f"no broker knows partition {partition} yet", NOTHING_READ)
            client.assign(self._place.topic, partition, offset)
        except KafkaException as error:
            raise meaning_of(error.args[0], self._place) from None
        state = self._partitions[partition] = _Partition(offset, offset)
        return client, state

    def _opened(self) -> Client:
        if self._client is None:
            self._reported = Reported()
            settings = {**self._bounds(), **settings_of(self._place)}
            self._client = Client(self._library, settings, self._reported, self._bell)
        return self._client

    def _bounds(self) -> dict[str, int]:
        count = max(1, self._count())
        return {
            "queued.max.messages.kbytes": max(QUEUE_BYTES_MIN, QUEUED_BYTES_MAX // count) >> 10,
            "queued.min.messages": max(QUEUE_MESSAGES_MIN, QUEUED_MESSAGES_MAX // count),
        }

    def _receive(self, client: Client, partition: int, state: _Partition, bytes_max: int, timeout_s: float) -> None:
        """Take what the library has of a partition."""
        self._sort(client, partition, state, client.batch(partition, state.wanted(bytes_max), timeout_s))

    def _sort(self, client: Client, partition: int, state: _Partition, batch: tuple[NDArray[np.int64], int]) -> None:
        """Copy the messages of a batch, and note the errors that are among them.

        A reader that keeps up finds a message about the end behind every few records. Only one behind all of them says
        something, and the records between the others stay together: small batches would cost more than they are worth.
        """
        messages, count = batch
        try:
            at, others, last = 0, count, int(messages[count - 1]) if count else 0
            run = int(without_error(messages, 0, count, COPIED_BYTES_MAX))
            if run < count:
                others = int(ends_last(messages, count, np.empty(count, np.int64)))
            while at < others:
                end = run if run == others else int(without_error(messages, at, others, COPIED_BYTES_MAX))
                if end > at:
                    state.add(columns_of(client, messages, at, end, partition, self._more))
                else:
                    end = at + 1
                    self._failed(state, *client.error_of(int(messages[at])))
                at = end
            if others < count and int(messages[count - 1]) == last:
                self._failed(state, *client.error_of(last))
        finally:
            client.drop(count)

    def _failed(self, state: _Partition, error: Any, offset: int) -> None:
        if error.name() == "_PARTITION_EOF":
            state.end = max(offset, state.received)
        else:
            state.fault = (error, offset)
