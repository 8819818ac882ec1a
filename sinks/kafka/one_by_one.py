"""The producer of confluent-kafka, which takes a call per record, and makes a call for each report.

For builds of the library whose functions or structures are not as by_batch.py needs them.

Source: confluent_kafka; docs/decisions/0127-producer-by-the-batch.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.sinks.kafka.sending import ANY_PARTITION, PUT_MAX, OnError, OnFault, Put, Sender
from holdfast.sinks.kafka.target import Records, listed

_log = logging.getLogger("holdfast.kafka")


@dataclass(frozen=True)
class _MessageLists:
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    partition: int

    def __len__(self) -> int:
        return len(self.values)


class OneByOne(Sender):
    """See the module.

    Args:
        settings: Options of librdkafka, with secrets.

    Raises:
        KafkaException: an option is wrong.
    """

    ahead_max = 1

    def __init__(self, settings: Mapping[str, Any], on_fault: OnFault, on_error: OnError) -> None:
        self._on_fault = on_fault
        callbacks = {"on_delivery": self._reported, "error_cb": on_error}
        self._producer: Producer | None = Producer({**settings, **callbacks}, logger=_log)

    def __len__(self) -> int:
        return len(self._live())

    def messages(self, records: Records) -> _MessageLists:
        keys = None if records.keys is None else listed(records.keys)
        partition = ANY_PARTITION if records.partition is None else records.partition
        return _MessageLists(keys, listed(records.values), partition)

    def put(self, topic: str, messages: _MessageLists, first: int) -> Put:
        produce, at, partition = self._live().produce, first, messages.partition
        keys = repeat(None) if messages.keys is None else islice(messages.keys, first, None)
        try:
            for value, key in zip(islice(messages.values, first, first + PUT_MAX), keys, strict=False):
                produce(topic, value, key, partition)
                at += 1
        except BufferError:
            return Put(at - first, at)
        except KafkaException as error:
            return Put(at - first, at, error.args[0])
        return Put(at - first, at)

    def partitions(self, topic: str, timeout_s: float) -> int:
        found = self._live().list_topics(topic, timeout=timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return len(found.partitions)

    def poll(self, timeout_s: float) -> int:
        return int(self._live().poll(timeout_s))

    def flush(self, timeout_s: float) -> int:
        return int(self._live().flush(timeout_s))

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        self._live().purge(in_queue=in_queue, in_flight=in_flight)

    def ring(self) -> None:
        """A flush of this library cannot be ended."""

    def init_transactions(self, timeout_s: float) -> None:
        self._live().init_transactions(timeout_s)

    def begin_transaction(self) -> None:
        self._live().begin_transaction()

    def commit_transaction(self, timeout_s: float) -> None:
        self._live().commit_transaction(timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        self._live().abort_transaction(timeout_s)

    def close(self) -> None:
        self._producer = None

    def _live(self) -> Producer:
        assert self._producer is not None, "a closed producer is not used again"
        return self._producer

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._on_fault(error)
