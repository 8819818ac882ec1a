"""A producer of librdkafka that takes records by the batch, and reports only those that fail.

See sending.Sender. The library's reports, about records and about itself, come as events, which every call that
waits takes. A record that failed stays with the library until its report was taken. So if it has none, the brokers have
every record whose fault was not reported.

Invariants
    - Nothing calls back into Python: the interpreter is not held while the library works or waits.
    - After a record that the library can never take, none that follows it in the same `put` is sent.
    - A process that was forked touches no producer of its parent, whose threads it does not have.

For one thread at a time, but `ring`. Source: librdkafka, rdkafka.h; docs/decisions/0127-producer-by-the-batch.md.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from holdfast.sinks.kafka.encoding import RECORD_OVERHEAD
from holdfast.sinks.kafka.messages import MessageArray, messages_of
from holdfast.sinks.kafka.options import MESSAGE_MAX_BYTES
from holdfast.sinks.kafka.sending import PUT_MAX, OnError, OnFault, Put, Sender
from holdfast.sinks.kafka.target import Records
from holdfast.storage.kafka import library as libraries
from holdfast.storage.kafka.handles import (
    ERRORS,
    LOGS,
    PRODUCER,
    REPORTS,
    named,
    opened,
    partition_count,
    raise_for,
    take_in,
)
from holdfast.storage.kafka.library import ERROR_BYTES, Librdkafka, Message

LOOK_S = 0.005
"""How often a flush looks whether a record failed, or it is rung. The end of the last record ends it immediately."""
AHEAD_MAX = 4
"""Writes that may be under way."""
_ONLY_FAULTS = {"delivery.report.only.error": True}
_COPY = 0x2
_QUEUED, _IN_FLIGHT = 0x1, 0x2
_PROBE_MS = 1_000
"""How long the library has to give up the records that show the layout."""


class ByBatch(Sender):
    """See the module.

    Args:
        settings: Options of librdkafka, with secrets.

    Raises:
        KafkaException: an option is wrong.
    """

    ahead_max = AHEAD_MAX

    def __init__(self, library: Librdkafka, settings: Mapping[str, Any], on_fault: OnFault, on_error: OnError) -> None:
        self._library, self._on_fault, self._on_error = library, on_fault, on_error
        self._largest = int(settings.get("message.max.bytes", MESSAGE_MAX_BYTES)) - RECORD_OVERHEAD
        self._handle = opened(library, PRODUCER, {**settings, **_ONLY_FAULTS}, REPORTS | LOGS | ERRORS)
        library.set_log_queue(self._handle, None)
        self._events = library.queue_get_main(self._handle)
        self._topics: dict[str, int] = {}
        self._end = weakref.finalize(self, _ended, library, self._handle, self._events, self._topics, os.getpid())
        self._end.atexit = False
        self._rung = False

    def __len__(self) -> int:
        return int(self._library.outq_len(self._live))

    def close(self) -> None:
        self._end()

    def messages(self, records: Records) -> MessageArray:
        return messages_of(records)

    def partitions(self, topic: str, timeout_s: float) -> int:
        return partition_count(self._library, self._live, topic, timeout_s)

    def put(self, topic: str, messages: MessageArray, first: int) -> Put:
        end = min(len(messages), first + PUT_MAX)
        if messages.bytes > self._largest:  # else no record is too large
            too_large = np.flatnonzero(messages.sizes(first, end) > self._largest)
            if len(too_large):  # the library would take those that follow it
                end = first + int(too_large[0]) + 1
        at = messages.address(first)
        count = self._library.produce_batch(self._topic(topic), messages.partition, _COPY, at, end - first)
        if count == end - first:
            return Put(count, end)
        refused = messages.refused(first, end)
        assert refused is not None, "the library says which record it does not take"
        return self._refused(count, *refused)

    def poll(self, timeout_s: float) -> int:
        count, wait_ms = 0, int(timeout_s * 1_000)
        while event := self._library.queue_poll(self._events, 0 if count else wait_ms):
            count += 1
            try:
                self._take(event)
            finally:
                self._library.event_destroy(event)
        return count

    def flush(self, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        while True:
            look_s = min(LOOK_S, max(0.0, until - time.monotonic()))
            has_records = self._library.flush(self._live, int(look_s * 1_000))
            heard = self.poll(0)
            if not has_records:
                return 0
            if heard or self._rung or time.monotonic() >= until:
                self._rung = False
                return len(self)

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        self._library.purge(self._live, _QUEUED * in_queue | _IN_FLIGHT * in_flight)

    def ring(self) -> None:
        self._rung = True

    def init_transactions(self, timeout_s: float) -> None:
        raise_for(self._library, self._library.init_transactions(self._live, int(timeout_s * 1_000)))

    def begin_transaction(self) -> None:
        raise_for(self._library, self._library.begin_transaction(self._live))

    def commit_transaction(self, timeout_s: float) -> None:
        """Its records must be flushed: the library would wait for reports that no thread takes meanwhile."""
        raise_for(self._library, self._library.commit_transaction(self._live, int(timeout_s * 1_000)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Its records must be purged, likewise."""
        self.poll(0)
        raise_for(self._library, self._library.abort_transaction(self._live, int(timeout_s * 1_000)))

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            self._topics[name] = self._library.topic_new(self._live, name.encode(), None)
        return self._topics[name]

    def _refused(self, taken: int, place: int, code: int) -> Put:
        if code == KafkaError._QUEUE_FULL:  # nor has it taken those that follow
            return Put(taken, place)
        return Put(taken, place, self._fault(code))

    def _take(self, event: int) -> None:
        if self._library.event_type(event) != REPORTS:
            take_in(self._library, self._live, event, self._on_error)
            return
        addresses = np.empty(self._library.event_message_count(event), np.int64)
        count = self._library.event_message_array(event, addresses.ctypes.data, len(addresses))
        codes = {Message.from_address(each).err for each in addresses[:count].tolist()} - {0}
        if cause := sorted(codes, key=lambda code: code == KafkaError._INVALID_DIFFERENT_RECORD):
            self._on_fault(self._fault(cause[0]))

    def _fault(self, code: int) -> Any:
        """Return the error of a record; of one that a fatal error took along, that one."""
        if code in (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            text = ctypes.create_string_buffer(ERROR_BYTES)
            if cause := self._library.fatal_error(self._live, text, ERROR_BYTES):
                return KafkaError(cause, text.value.decode(errors="replace"), fatal=True)
        return KafkaError(code, named(self._library, code))

    @property
    def _live(self) -> int:
        assert self._end.alive, "a closed producer is not used again"
        return self._handle


def _ended(library: Librdkafka, handle: int, events: int, topics: dict[str, int], process: int) -> None:
    if os.getpid() != process:
        return
    for topic in topics.values():
        library.topic_destroy(topic)
    library.queue_destroy(events)
    library.destroy(handle)


@cache
def found() -> Librdkafka | None:
    """Return the library if records can be given to it by the batch."""
    library = libraries.found()
    return library if library is not None and is_laid_out(library) else None


def is_laid_out(library: Librdkafka) -> bool:
    """Return whether the library reads and writes messages as they are laid out here.

    A producer without brokers is given records, has to give them up, and reports them.
    """
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"key", b"value"), (None, b""), (b"", None)]
    messages = messages_of(Records([key for key, _ in pairs], [value for _, value in pairs]))
    addresses = np.zeros(len(pairs), np.int64)
    producer = ByBatch(library, {"log_level": 0}, lambda _: None, lambda _: None)
    try:
        if producer.put("layout", messages, 0) != Put(len(pairs), len(pairs)):
            return False
        producer.purge()
        event = library.queue_poll(producer._events, _PROBE_MS)
        if not event or library.event_type(event) != REPORTS:
            return False
        count = library.event_message_array(event, addresses.ctypes.data, len(pairs))
        parts = [Message.from_address(each) for each in addresses[:count].tolist()]
        back = [(_part(each.key, each.key_len), _part(each.payload, each.len)) for each in parts]
        only_purges = {each.err for each in parts} == {KafkaError._PURGE_QUEUE}
        library.event_destroy(event)
    finally:
        producer.close()
    return back == pairs and only_purges


def _part(address: int | None, size: int) -> bytes | None:
    return None if address is None else ctypes.string_at(address, size)
