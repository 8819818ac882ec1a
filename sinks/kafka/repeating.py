"""A Kafka topic as a target that is written as rows come, at least once.

A write returns when the brokers have confirmed all of its records. If they do not answer, the records stay with the
producer, and the retry of the same write goes on waiting for them. If a record is refused, a new producer sends all
records of the write again, in order.

Invariants
    - A write that returned has put every row into the topic.
    - No record of a write is sent before the write before it is complete, so a key's records are in the stream's order.
    - Nothing of a former producer is on the way when its successor sends.

Pure: no clock, thread or I/O of its own; plain.py has the connections.
Source: docs/decisions/0093-repeating-sinks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin
from holdfast.sinks.kafka.target import Records


class GaveUp(Exception):
    """The producer has failed: none of its records is on the way, and it may not have delivered all of them."""

    def __init__(self, error: HoldfastError) -> None:
        self.error = error
        super().__init__(error.what)


class RepeatingProducer(Protocol):
    """One producer without transactions."""

    def find_topic(self) -> None:
        """Wait for a broker that knows the topic. Raises HoldfastError."""

    def begin(self, records: Sequence[Records]) -> None:
        """Take the records of a write; the one before is complete."""

    def complete(self) -> None:
        """Send what is left, and wait until the brokers have confirmed every record.

        Raises:
            Unavailable: they did not, within some time; to be called again.
            GaveUp: a record failed, or the producer did.
        """

    def close(self) -> None:
        """Drop records that are not sent yet, and wait a little for those on the way."""


class RepeatingTarget(ImmediateTarget):
    """One worker's way into a topic. See immediate.ImmediateTarget.

    Args:
        producer: Opens a producer.
        records: Returns rows as records. Raises HoldfastError.
    """

    def __init__(self, producer: Callable[[], RepeatingProducer], records: Callable[[pa.RecordBatch], Records]) -> None:
        self._open, self._records = producer, records
        self._producer: RepeatingProducer | None = None
        self._begun: Sequence[pa.RecordBatch] | None = None
        """The rows of the write that is not complete, which the producer has."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """Connect. No producer without transactions can be fenced."""
        self._ready()

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        """After Unavailable, the next call has the same rows."""
        producer = self._ready()
        if self._begun is None:
            producer.begin([self._records(batch) for batch in _together(batches)])
            self._begun = list(batches)
        assert _same(self._begun, batches), "another write was begun before"
        try:
            producer.complete()
        except GaveUp as end:
            self.close()
            raise end.error from end
        self._begun = None
        return 0

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """There are no tombstones of Holdfast's own."""
        return False

    def close(self) -> None:
        if self._producer is not None:
            producer, self._producer, self._begun = self._producer, None, None
            producer.close()

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
