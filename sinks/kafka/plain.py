"""A producer without transactions: sends the records of writes in order, and says when the brokers have them.

librdkafka gives each record a sequence number, and resends it under that number until it is confirmed, so a reply that
is lost neither loses nor repeats a record. A wait that takes too long ends with Unavailable, but the records stay
where they are: the next call goes on waiting for the same ones.

Invariants
    - A producer is given up only when none of its records is on the way, or when the library has failed permanently.
    - After the first record that failed, no further one is put into the library's queue; what is in it is taken back.
    - A write is complete only if the library has none of its records or of those before, and reported none as failed.

Source: confluent_kafka; librdkafka's INTRODUCTION.md, idempotent producer; docs/decisions/0093-repeating-sinks.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from holdfast.sinks.kafka.client import FLUSH_S, ROOM_WAIT_S, WAIT_S, find_topic, raising
from holdfast.sinks.kafka.errors import meaning_for_rows, unconfirmed
from holdfast.sinks.kafka.options import repeating_settings
from holdfast.sinks.kafka.repeating import GaveUp, RepeatingProducer
from holdfast.sinks.kafka.senders import sender_of
from holdfast.sinks.kafka.target import Records
from holdfast.storage.kafka.place import KafkaPlace

CLOSE_WAIT_S = 5.0
"""How long records that are on the way are awaited when a generation ends."""


class PlainProducer(RepeatingProducer):
    """See repeating.RepeatingProducer."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place
        self._failed: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._writes = 0
        """How many are not complete."""
        self._left = deque[Any]()
        """Records that are not, or not all, in the library's queue; the first from `_at` on."""
        self._at = 0
        self._standing, self._until = 0, 0.0
        """How many records the library had when that changed last, and until when it must change again."""
        self._rung = False
        """Since the last call of `advance` that saw it: a ring before a wait ends it, too."""
        with raising(place):
            self._sender = sender_of(place, repeating_settings(place), self._reported, self._troubled)

    @property
    def ahead_max(self) -> int:
        return self._sender.ahead_max

    def find_topic(self) -> None:
        try:
            find_topic(self._place, self._sender)
        except KafkaException as error:
            raise meaning_for_rows(self._place, error.args[0]) from None

    def begin(self, records: Sequence[Records]) -> None:
        assert self._writes < self.ahead_max, "too many writes are under way"
        if not self._writes:
            self._progressed(0)
        self._writes += 1
        self._left.extend(map(self._sender.messages, records))

    def advance(self, wait_s: float) -> int:
        """The writes that are under way become complete together: when the library has none of their records."""
        until = time.monotonic() + wait_s
        while True:
            self._feed()
            left_s = max(0.0, until - time.monotonic())
            has = self._sender.flush(min(ROOM_WAIT_S if self._left else FLUSH_S, left_s))
            if self._failed is not None and self._is_settled():
                raise GaveUp(meaning_for_rows(self._place, self._fatal or self._failed))
            if self._failed is None and not self._left and not has:
                done, self._writes = self._writes, 0
                return done
            if has != self._standing:
                self._progressed(has)
            elif time.monotonic() >= self._until:
                self._progressed(has)
                raise unconfirmed(self._place, WAIT_S)
            if self._rung or time.monotonic() >= until:
                self._rung = False
                return 0

    def complete(self) -> None:
        """Wait until every write is complete. Raises as `advance`."""
        while self._writes:
            self.advance(FLUSH_S)

    def ring(self) -> None:
        self._rung = True
        self._sender.ring()

    def close(self) -> None:
        self._left.clear()
        with suppress(KafkaException):
            self._sender.purge(in_queue=True, in_flight=False)
            until = time.monotonic() + CLOSE_WAIT_S
            while self._sender.flush(FLUSH_S) and time.monotonic() < until:
                pass
            self._sender.purge()
        self._sender.close()

    def _feed(self) -> None:
        """Put records into the library's queue until it is full."""
        while self._left and self._failed is None:
            messages = self._left[0]
            count, self._at, fault = self._sender.put(self._place.topic, messages, self._at)
            if fault is not None:
                self._failed = self._failed or fault
            elif self._at == len(messages):
                self._left.popleft()
                self._at = 0
            elif not count:
                return
            self._sender.poll(0)

    def _is_settled(self) -> bool:
        """Take back what is queued after a failure; return whether nothing is on the way."""
        self._left.clear()
        self._sender.purge(in_queue=True, in_flight=self._fatal is not None)
        return not self._sender.flush(0)

    def _progressed(self, has: int) -> None:
        self._standing, self._until = has, time.monotonic() + WAIT_S

    def _reported(self, error: KafkaError) -> None:
        self._failed = self._failed or error
        self._fatal = self._fatal or (error if error.fatal() else None)

    def _troubled(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error
            self._failed = self._failed or error
