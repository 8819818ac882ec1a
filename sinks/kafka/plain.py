"""A producer without transactions: sends the records of a write, and waits until the brokers have them.

librdkafka gives each record a sequence number, and resends it under that number until it is confirmed, so a reply that
is lost neither loses nor repeats a record. A wait that takes too long ends with Unavailable, but the records stay
where they are: the next call goes on waiting for the same ones.

Invariants
    - A producer is given up only when none of its records is on the way, or when the library has failed for good.
    - After the first record that failed, no further one is sent.

Source: confluent_kafka; librdkafka's INTRODUCTION.md, idempotent producer; docs/decisions/0093-repeating-sinks.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.sinks.kafka.client import ANY_PARTITION, FLUSH_S, POLL_EVERY, READ_WAIT_S, WAIT_S, find_topic, raising
from holdfast.sinks.kafka.errors import meaning_for_rows, unconfirmed
from holdfast.sinks.kafka.options import repeating_settings
from holdfast.sinks.kafka.repeating import GaveUp, RepeatingProducer
from holdfast.sinks.kafka.target import Records
from holdfast.storage.kafka.place import KafkaPlace

_log = logging.getLogger("holdfast.kafka")
CLOSE_WAIT_S = 5.0
"""How long records that are on the way are awaited when a generation ends."""
Record = tuple[bytes | None, bytes | None, int]


class PlainProducer(RepeatingProducer):
    """See repeating.RepeatingProducer."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place
        self._failed: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._left: Iterator[Record] = iter(())
        self._next: Record | None = None
        """The first record that is not in the library's queue."""
        self._unreported = 0
        """Records that the library has, and has not reported yet. Its own count includes other events."""
        callbacks = {"on_delivery": self._reported, "error_cb": self._troubled}
        with raising(place):
            self._producer = Producer({**repeating_settings(place), **callbacks}, logger=_log)

    def find_topic(self) -> None:
        try:
            find_topic(self._place, self._producer)
        except KafkaException as error:
            raise meaning_for_rows(self._place, error.args[0]) from None

    def begin(self, records: Sequence[Records]) -> None:
        assert self._next is None and not self._unreported, "the last write is not complete"
        self._left = _pairs(records)
        self._next = next(self._left, None)

    def complete(self) -> None:
        until, standing = time.monotonic() + WAIT_S, -1
        while True:
            self._feed()
            if self._next is None:
                self._producer.flush(FLUSH_S)
            else:
                self._producer.poll(READ_WAIT_S)
            if self._failed is not None and self._is_settled():
                raise GaveUp(meaning_for_rows(self._place, self._fatal or self._failed))
            if self._failed is None and self._next is None and not self._unreported:
                return
            if self._unreported != standing:
                standing, until = self._unreported, time.monotonic() + WAIT_S
            elif time.monotonic() >= until:
                raise unconfirmed(self._place, WAIT_S)

    def close(self) -> None:
        self._left, self._next = iter(()), None
        with suppress(KafkaException):
            self._producer.purge(in_queue=True, in_flight=False)
            self._producer.flush(CLOSE_WAIT_S)
            self._producer.purge()

    def _feed(self) -> None:
        """Put records into the library's queue until it is full."""
        produce, topic, until_poll = self._producer.produce, self._place.topic, POLL_EVERY
        try:
            while self._next is not None and self._failed is None:
                key, value, partition = self._next
                produce(topic, value, key, partition)
                self._unreported += 1
                self._next = next(self._left, None)
                until_poll -= 1
                if not until_poll:
                    until_poll = POLL_EVERY
                    self._producer.poll(0)
        except BufferError:
            return
        except KafkaException as error:
            self._failed = self._failed or error.args[0]

    def _is_settled(self) -> bool:
        """Take back what is queued after a failure; return whether nothing is on the way."""
        self._left, self._next = iter(()), None
        self._producer.purge(in_queue=True, in_flight=self._fatal is not None)
        self._producer.poll(0)
        return self._unreported == 0

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        self._unreported -= 1
        if error is not None and self._failed is None:
            self._failed = error

    def _troubled(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error
            self._failed = self._failed or error


def _pairs(records: Sequence[Records]) -> Iterator[Record]:
    for each in records:
        partition = ANY_PARTITION if each.partition is None else each.partition
        yield from zip(each.keys or repeat(None), each.values, repeat(partition), strict=False)
