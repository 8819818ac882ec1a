"""Which consumer reads a topic: the one that hands over columns, or the one that hands over messages.

Source: docs/decisions/0089-kafka-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.feed import MessageFeed, Taken
from holdfast.storage.kafka import library
from holdfast.storage.kafka.errors import no_client
from holdfast.storage.kafka.handles import takes_tokens
from holdfast.storage.kafka.place import KafkaPlace


class AnyFeed(Protocol):
    """See MessageFeed."""

    def take(self, partition: int, offset: int, bytes_max: int) -> Taken: ...
    def close(self) -> None: ...


def feed_of(
    place: KafkaPlace,
    more: bool,
    partitions: Callable[[], int],
    interrupted: Callable[[], bool],
    bell: Bell | None = None,
) -> AnyFeed:
    """Return a consumer of a topic.

    Args:
        more: Whether keys, times and headers are wanted besides values.
        partitions: How many the topic has.
        interrupted: Whether messages are no longer wanted.
        bell: Rings when messages come, if the library can do that; None: nothing waits for it.

    Raises:
        ConfigError: the client library is missing.
    """
    try:
        librdkafka = library.found()
    except ImportError as error:
        raise no_client(error) from error
    if librdkafka is None or takes_tokens(place):
        return MessageFeed(place, interrupted)
    from holdfast.runtime.sources.kafka.batches import BatchFeed  # compiled, so it is loaded where records are read

    return BatchFeed(place, librdkafka, more, partitions, interrupted, bell)
