"""A Kafka topic as a target that is written as rows come, at least once.

A write is confirmed when the brokers have confirmed all of its records. If they do not answer, the records stay with
the producer, and a retry goes on waiting for them. If a record is refused, a new producer sends all records of the
writes that are not confirmed again, in order.

Invariants
    - A write that is confirmed has put every row into the topic, and so have those before it.
    - Records are sent in the order of the writes, by one producer at a time, so a key's records are in the stream's
      order until one is refused; all that follow it are then sent again.
    - Nothing of a former producer is on the way when its successor sends.

Pure: no clock, thread or I/O of its own; plain.py has the connections.
Source: docs/decisions/0093-repeating-sinks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.sinks.contract.immediate import AheadTarget, Origin
from holdfast.sinks.kafka.target import Records

WAIT_S = 1.0
"""How long a write waits at a time."""


class GaveUp(Exception):
    """The producer has failed: none of its records is on the way, and it may not have delivered all of them."""

    def __init__(self, error: HoldfastError) -> None:
        self.error = error
        super().__init__(error.what)


class RepeatingProducer(Protocol):
    """One producer without transactions."""

    def find_topic(self) -> None:
        """Wait for a broker that knows the topic. Raises HoldfastError."""

    @property
    def ahead_max(self) -> int:
        """How many writes may be under way."""

    def begin(self, records: Sequence[Records]) -> None:
        """Take the records of a write, which follow those of the writes before."""

    def advance(self, wait_s: float) -> int:
        """Send what is left; return how many writes have become complete, the first ones: the brokers have each record.

        Args:
            wait_s: How long to wait for the first one of them.

        Raises:
            Unavailable: nothing was confirmed within some time; to be called again.
            GaveUp: a record failed, or the producer did.
        """

    def ring(self) -> None:
        """Let a call of `advance` return soon. Any thread may call it."""

    def close(self) -> None:
        """Drop records that are not sent yet, and wait a little for those on the way."""


@dataclass
class _Write:
    batches: Sequence[pa.RecordBatch]
    sent: bool = False
    """The producer has its records."""


class RepeatingTarget(AheadTarget):
    """One worker's way into a topic. See immediate.AheadTarget.

    Args:
        producer: Opens a producer.
        records: Returns rows as records. Raises HoldfastError.
    """

    def __init__(self, producer: Callable[[], RepeatingProducer], records: Callable[[pa.RecordBatch], Records]) -> None:
        self._open, self._records = producer, records
        self._producer: RepeatingProducer | None = None
        self._writes = deque[_Write]()
        """Those that are not confirmed, in order."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """Connect. No producer without transactions can be fenced."""
        self._ready()

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        """After Unavailable, the next call has the same rows."""
        if not self._writes:
            self.begin(batches)
        assert len(self._writes) == 1 and _same(self._writes[0].batches, batches), "another write was begun before"
        while self._writes:
            self.advance(WAIT_S)
        return 0

    @property
    def room(self) -> int:
        producer = self._producer
        return max(0, (1 if producer is None else producer.ahead_max) - len(self._writes))

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._writes.append(_Write(list(batches)))

    def advance(self, wait_s: float) -> int:
        producer = self._ready()
        for each in self._writes:
            if not each.sent:
                producer.begin([self._records(batch) for batch in _together(each.batches)])
                each.sent = True
        try:
            count = producer.advance(wait_s)
        except GaveUp as end:
            self._drop()
            raise end.error from end
        for _ in range(count):
            self._writes.popleft()
        return count

    def ring(self) -> None:
        if (producer := self._producer) is not None:
            producer.ring()

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """There are no tombstones of Holdfast's own."""
        return False

    def close(self) -> None:
        self._drop()
        self._writes.clear()

    def _drop(self) -> None:
        """Give the producer up; the next one gets all that is not confirmed."""
        if (producer := self._producer) is not None:
            self._producer = None
            producer.close()
        for each in self._writes:
            each.sent = False

    def _ready(self) -> RepeatingProducer:
        if self._producer is None:
            producer = self._open()
            try:
                producer.find_topic()
            except BaseException:
                producer.close()
                raise
            self._producer = producer
        return self._producer


def _together(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Return the rows in as few batches as possible: to encode a batch takes as long as to encode hundreds of rows."""
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def _same(begun: Sequence[pa.RecordBatch], given: Sequence[pa.RecordBatch]) -> bool:
    return len(begun) == len(given) and all(one is other for one, other in zip(begun, given, strict=True))
