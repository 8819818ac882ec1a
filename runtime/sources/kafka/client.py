"""A consumer of librdkafka that hands over messages by the batch, each partition from a queue of its own.

The library keeps the messages of every partition apart and in bounds: it stops fetching a partition whose queue is
full, and fetches no message twice. What it reports by itself, errors of connections and log lines, comes as events.

Invariants
    - A batch is given to one caller, and its messages are back at the library when the next batch is asked for.
    - Only messages and errors of a partition come from its queue.

For one thread at a time. Source: librdkafka, rdkafka.h; docs/decisions/0089-kafka-batches.md.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.gathering import dropped
from holdfast.runtime.sources.kafka.library import ERROR_BYTES, Library, Message, Metadata
from holdfast.storage.kafka.questions import log

BATCH_MESSAGES_MAX = 1 << 15
_CONSUMER = 1
_LOGS, _ERRORS = 0x4, 0x8
_LEVELS = (logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)
"""By the severity of syslog; the rest is for debugging."""


def wrong(code: int, text: str) -> Exception:
    """Return an error as confluent-kafka raises it."""
    from confluent_kafka import KafkaError, KafkaException

    raised: Exception = KafkaException(KafkaError(code, text))
    return raised


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
        library: Library,
        settings: Mapping[str, Any],
        reported: Callable[[Any], None],
        bell: Bell | None = None,
    ) -> None:
        self._library, self._reported, self._bell = library, reported, bell
        self._handle = _opened(library, settings)
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
        library, found = self._library, ctypes.POINTER(Metadata)()
        named = library.topic_new(self._handle, topic.encode(), None)
        try:
            code = library.metadata(self._handle, 0, named, ctypes.byref(found), int(timeout_s * 1_000))
        finally:
            library.topic_destroy(named)
        if code:
            raise wrong(code, self._named(code))
        try:
            [described] = found.contents.topics[: found.contents.topic_cnt]
            if described.err:
                raise wrong(described.err, self._named(described.err))
            return int(described.partition_cnt)
        finally:
            library.metadata_destroy(found)

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
        if error:
            code, text = library.error_code(error), library.error_string(error).decode(errors="replace")
            library.error_destroy(error)
            raise wrong(code, text)

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
        return KafkaError(message.err, text.decode(errors="replace") or self._named(message.err)), message.offset

    def headers(self, address: int) -> list[tuple[str, bytes | None]]:
        """Return names and values of `rd_kafka_headers_t`."""
        found = list[tuple[str, bytes | None]]()
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        parts = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
        while self._library.header_get_all(address, len(found), *parts) == 0:
            content = None if value.value is None else ctypes.string_at(value.value, size.value)
            found.append(((name.value or b"").decode(), content))
        return found

    def function(self, name: str) -> int:
        """Return the address of a function of the library."""
        return self._library.address(name)

    def _report(self) -> None:
        """Take what the library reports by itself."""
        from confluent_kafka import KafkaError

        library = self._library
        while event := library.queue_poll(self._events, 0):
            kind = library.event_type(event)
            if kind == _ERRORS:
                text = (library.event_error_string(event) or b"").decode(errors="replace")
                self._reported(KafkaError(library.event_error(event), text))
            elif kind == _LOGS:
                facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
                library.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
                severity = _LEVELS[level.value] if level.value < len(_LEVELS) else logging.DEBUG
                log.log(severity, "%s: %s", _text(facility), _text(text))
            library.event_destroy(event)

    def _named(self, code: int) -> str:
        return (self._library.err2str(code) or b"").decode(errors="replace")


def _text(found: ctypes.c_char_p) -> str:
    return (found.value or b"").decode(errors="replace")


def _opened(library: Library, settings: Mapping[str, Any]) -> int:
    from confluent_kafka import KafkaError

    text, options = ctypes.create_string_buffer(ERROR_BYTES), library.conf_new()
    for name, value in {**settings, "log.queue": True}.items():
        given = str(value).lower() if isinstance(value, bool) else str(value)
        if library.conf_set(options, name.encode(), given.encode(), text, ERROR_BYTES):
            library.conf_destroy(options)
            raise wrong(KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
    library.conf_set_events(options, _LOGS | _ERRORS)
    handle = library.new(_CONSUMER, options, text, ERROR_BYTES)
    if not handle:
        library.conf_destroy(options)
        raise wrong(KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
    return int(handle)


def _ended(library: Library, handle: int, events: int, queues: dict[int, int], _bell: Bell | None) -> None:
    """End the consumer; until then its bell stays open."""
    for queue in (*queues.values(), events):
        library.queue_destroy(queue)
    library.consumer_close(handle)
    library.destroy(handle)
