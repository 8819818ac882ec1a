"""The port of a sink's producer to the client library: it takes records, and reports the outcome of each.

by_batch.py and one_by_one.py are the two ways to do so; senders.py chooses.

Pure: no clock, thread or I/O. Source: librdkafka's INTRODUCTION.md; docs/decisions/0127-producer-by-the-batch.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, NamedTuple, Protocol

from holdfast.sinks.kafka.target import Records

ANY_PARTITION = -1
"""RD_KAFKA_PARTITION_UA: the partitioner decides."""
PUT_MAX = 8_192
"""Records that one `put` takes; between two of them reports can be taken."""


class Put(NamedTuple):
    """The outcome of records that were put.

    Args:
        taken: How many the library has taken: it reports each of them that fails.
        following: The place of the first record that is to be put again, or next.
        fault: Why the library can never take the record there, a `confluent_kafka.KafkaError`.
    """

    taken: int
    following: int
    fault: Any = None


OnFault = Callable[[Any], None]
"""Gets the error of a record that failed, a `confluent_kafka.KafkaError`; of records that fail together, one."""
OnError = Callable[[Any], None]
"""Gets each error that concerns no record."""


class Sender(Protocol):
    """One producer of the client library. Errors are raised as KafkaException. One call at a time, but `ring`."""

    ahead_max: int
    """How many writes may be under way: one, if a wait for the first cannot be ended."""

    def __len__(self) -> int:
        """Return how many records and reports the library has."""

    def messages(self, records: Records) -> Sized:
        """Return records as `put` takes them."""

    def put(self, topic: str, messages: Any, first: int) -> Put:
        """Give records from a place on to the library, `PUT_MAX` at most. It takes fewer if its queue is full."""

    def partitions(self, topic: str, timeout_s: float) -> int:
        """Return how many partitions a topic has, once a broker answers."""

    def poll(self, timeout_s: float) -> int:
        """Take reports; wait so long for the first one. Return how many there were."""

    def flush(self, timeout_s: float) -> int:
        """Send what is queued, and wait until the library has no record: brokers have each, or its fault was reported.

        Returns:
            How many records and reports the library has. The wait may end early if a record fails.
        """

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        """Give up records; each is reported as failed."""

    def ring(self) -> None:
        """Let a flush end soon, or the next one. Any thread may call it, also after `close`."""

    def init_transactions(self, timeout_s: float) -> None: ...
    def begin_transaction(self) -> None: ...
    def commit_transaction(self, timeout_s: float) -> None: ...
    def abort_transaction(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        """End the producer; records that it still has are lost."""
