"""A consumer of librdkafka that hands over messages by the batch, each partition from a queue of its own.

The library keeps the messages of every partition apart and in bounds: it stops fetching a partition whose queue is
full, and fetches no message twice. Its own reports, connection errors and log lines, come as events.

Invariants
    - A batch is given to one caller, and its messages are back at the library when the next batch is asked for.
    - Only messages and errors of a partition come from its queue.

For one thread at a time. Source: librdkafka, rdkafka.h; docs/decisions/0089-kafka-batches.md.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.gathering import dropped
from holdfast.storage.kafka.handles import CONSUMER, ERRORS, LOGS, named, opened, partition_count, raise_for, take_in
from holdfast.storage.kafka.library import Librdkafka, Message

BATCH_MESSAGES_MAX = 1 << 15


class Client:
    """A consumer without a group.

    Args:
        settings: Options of librdkafka.
        reported: Gets each error that concerns no partition, a `confluent_kafka.KafkaError`.
        bell: Rings when messages come into the empty queue of a partition; None: nothing waits for it.

    Raises:
        KafkaException: an option is wrong.
    """

    def __init__(
        self,
        library: Librdkafka,
        settings: Mapping[str, Any],
        reported: Callable[[Any], None],
        bell: Bell | None = None,
    ) -> None:
        self._library, self._reported, self._bell = library, reported, bell
        self._handle = opened(library, CONSUMER, settings, LOGS | ERRORS)
        library.poll_set_consumer(self._handle)
        library.set_log_queue(self._handle, None)
        self._events = library.queue_get_consumer(self._handle)
        self._queues: dict[int, int] = {}
        self._messages = np.zeros(BATCH_MESSAGES_MAX, np.int64)
        self._drop = library.address("message_destroy")
        self._end = weakref.finalize(self, _ended, library, self._handle, self._events, self._queues, bell)
        self._end.atexit = False

    def close(self) -> None:
        """End the consumer; there must be no batch that is not dropped."""
        self._end()

    def partitions(self, topic: str, timeout_s: float) -> int:
        """Return how many partitions a topic has, which the consumer then knows. Raises KafkaException."""
        return partition_count(self._library, self._handle, topic, timeout_s)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Fetch a partition from an offset on. Raises KafkaException."""
        library, name = self._library, topic.encode()
        queue = self._queues[partition] = library.queue_get_partition(self._handle, name, partition)
        library.queue_forward(queue, None)
        if self._bell is not None:
            library.queue_io_event_enable(queue, self._bell.handle, b"\0", 1)
        places = library.topic_partition_list_new(1)
        library.topic_partition_list_add(places, name, partition).contents.offset = offset
        error = library.incremental_assign(self._handle, places)
        library.topic_partition_list_destroy(places)
        raise_for(library, error)

    def batch(self, partition: int, count: int, timeout_s: float) -> tuple[NDArray[np.int64], int]:
        """Return the addresses of messages, which must be dropped, and how many they are.

        Args:
            timeout_s: How long to wait for the first one; the others are those that are there then.
        """
        self._report()
        take, queue, at = self._library.consume_batch_queue, self._queues[partition], self._messages.ctypes.data
        count = min(count, BATCH_MESSAGES_MAX)
        if timeout_s == 0:
            return self._messages, max(0, take(queue, 0, at, count))
        found = max(0, take(queue, int(timeout_s * 1_000), at, 1))
        if found and count > 1:
            found += max(0, take(queue, 0, at + self._messages.itemsize, count - 1))
        return self._messages, found

    def drop(self, count: int) -> None:
        """Hand the messages of the last batch back."""
        dropped(self._messages, count, self._drop)

    def error_of(self, address: int) -> tuple[Any, int]:
        """Return the error that a message is, and its offset."""
        from confluent_kafka import KafkaError

        message = Message.from_address(address)
        text = ctypes.string_at(message.payload, message.len) if message.payload else b""
        said = text.decode(errors="replace") or named(self._library, message.err)
        return KafkaError(message.err, said), message.offset

    def headers(self, address: int) -> list[tuple[str, bytes | None]]:
        """Return names and values of `rd_kafka_headers_t`."""
        headers = list[tuple[str, bytes | None]]()
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        parts = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
        while self._library.header_get_all(address, len(headers), *parts) == 0:
            content = None if value.value is None else ctypes.string_at(value.value, size.value)
            headers.append(((name.value or b"").decode(), content))
        return headers

    def function(self, name: str) -> int:
        """Return the address of a function of the library."""
        return self._library.address(name)

    def _report(self) -> None:
        """Take the library's own reports: connection errors and log lines."""
        while event := self._library.queue_poll(self._events, 0):
            take_in(self._library, self._handle, event, self._reported)
            self._library.event_destroy(event)


def _ended(library: Librdkafka, handle: int, events: int, queues: dict[int, int], _bell: Bell | None) -> None:
    """End the consumer; until then its bell stays open."""
    for queue in (*queues.values(), events):
        library.queue_destroy(queue)
    library.consumer_close(handle)
    library.destroy(handle)
