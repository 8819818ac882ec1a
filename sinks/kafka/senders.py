"""Which producer sends the records of a sink: the one that takes them by the batch, or the one that takes each.

Source: docs/decisions/0127-producer-by-the-batch.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.sinks.kafka import by_batch
from holdfast.sinks.kafka.sending import OnError, OnFault, Sender
from holdfast.storage.kafka.handles import takes_tokens
from holdfast.storage.kafka.place import KafkaPlace


def sender_of(place: KafkaPlace, settings: Mapping[str, Any], on_fault: OnFault, on_error: OnError) -> Sender:
    """Return a producer for a topic.

    Args:
        settings: Options of librdkafka, with secrets.

    Raises:
        KafkaException: an option is wrong.
    """
    library = None if takes_tokens(place) else by_batch.found()
    if library is not None:
        return by_batch.ByBatch(library, settings, on_fault, on_error)
    from holdfast.sinks.kafka.one_by_one import OneByOne

    return OneByOne(settings, on_fault, on_error)
