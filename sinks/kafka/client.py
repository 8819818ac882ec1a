"""The connections of a Kafka target: a transactional producer, and a reader of the progress topic.

librdkafka works in threads of its own; a producer is a queue in front of them. Records that fail are reported to a
callback, which runs inside of `poll` and `flush`.

Source: confluent_kafka; librdkafka's INTRODUCTION.md, transactional producer; docs/design/0076-kafka-sink.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.kafka.errors import is_fenced, meaning_of
from holdfast.sinks.kafka.options import Options, admin_options, producer_options, reader_options
from holdfast.sinks.kafka.progress import Progress, progress_topic
from holdfast.sinks.kafka.target import ProducerFenced, Records

WAIT_S = 15.0
"""How long a call waits for the brokers before it reports them as unreachable."""
ABORT_WAIT_S = 5.0
READ_MAX = 1_000
"""Records of the progress topic per call of the client."""
READ_WAIT_S = 0.1
POLL_EVERY = 4_096
"""Records between two looks at the reports of failed ones."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise the client's errors as ProducerFenced or as a HoldfastError."""
    try:
        yield
    except KafkaException as error:
        raise raised_for(where, error.args[0]) from error


def raised_for(where: str, error: KafkaError) -> Exception:
    """Return what to raise for an error of the client."""
    return ProducerFenced(error.str()) if is_fenced(error) else meaning_of(where, error)


class KafkaConnection:
    """See target.Connection.

    Args:
        where: How messages name the topic.
        servers: The addresses of some brokers, as `bootstrap.servers`.
        topic: The topic of the rows.
        transactional_id: That of every writer of the sink.
        wait_s: How long a call waits for the brokers, in seconds.
    """

    def __init__(
        self, where: str, servers: str, topic: str, options: Options, transactional_id: str, wait_s: float = WAIT_S
    ) -> None:
        self._where, self._servers, self._topic, self._options = where, servers, topic, options
        self._id, self._wait_s = transactional_id, wait_s
        self._reader: ProgressReader | None = None

    def producer(self) -> ConfluentProducer:
        """See Connection.producer."""
        settings = producer_options(self._servers, self._options, self._id)
        return ConfluentProducer(self._where, settings, self._topic, self._wait_s)

    def progress(self) -> Progress:
        """See Connection.progress. After an error, the next call reads the topic from its start."""
        if self._reader is None:
            self._reader = ProgressReader(self._where, self._servers, self._topic, self._options, self._wait_s)
        try:
            return self._reader.read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See Connection.close."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class ConfluentProducer:
    """See target.TransactionalProducer."""

    def __init__(
        self, where: str, settings: dict[str, str | int | float | bool], topic: str, wait_s: float = WAIT_S
    ) -> None:
        self._where, self._topic, self._progress_topic, self._wait_s = where, topic, progress_topic(topic), wait_s
        self._failed: KafkaError | None = None
        self._disturbed = False
        callbacks = {"on_delivery": self._reported, "error_cb": self._troubled}
        with translated(where):
            self._producer: Producer | None = Producer({**settings, **callbacks})

    @property
    def disturbed(self) -> bool:
        """See TransactionalProducer.disturbed."""
        return self._disturbed

    def init(self) -> None:
        """See TransactionalProducer.init. Without a connection, the library would wait before it looks again."""
        producer = self._live()
        with translated(self._where):
            producer.list_topics(self._topic, timeout=self._wait_s)
            producer.init_transactions(self._wait_s)

    def begin(self) -> None:
        """See TransactionalProducer.begin."""
        with translated(self._where):
            self._live().begin_transaction()

    def mark(self, key: bytes, value: bytes) -> None:
        """See TransactionalProducer.mark."""
        with translated(self._where):
            self._live().produce(self._progress_topic, value=value, key=key, partition=0)

    def send(self, records: Records) -> None:
        """See TransactionalProducer.send."""
        producer = self._live()
        with translated(self._where):
            self._send(producer, records)

    def flush(self) -> None:
        """See TransactionalProducer.flush."""
        with translated(self._where):
            left = self._live().flush(self._wait_s)
        self._check()
        if left:
            raise self._late(f"{left} records were not confirmed")

    def commit(self) -> None:
        """See TransactionalProducer.commit."""
        producer = self._live()
        with translated(self._where):
            producer.commit_transaction(self._wait_s)
            producer.poll(0)  # Errors that were reported meanwhile show that a request may have been resent.
        self._check()

    def abort(self) -> None:
        """See TransactionalProducer.abort."""
        with suppress(KafkaException):
            producer = self._live()
            producer.purge()
            producer.abort_transaction(ABORT_WAIT_S)

    def destroy(self) -> None:
        """See TransactionalProducer.destroy."""
        if (producer := self._producer) is not None:
            self._producer = None
            with suppress(KafkaException):
                producer.purge()

    def _send(self, producer: Producer, records: Records) -> None:
        produce, topic = producer.produce, self._topic
        keys = records.keys or [None] * len(records.values)
        until_poll = POLL_EVERY
        for key, value in zip(keys, records.values, strict=True):
            try:
                produce(topic, value, key)
            except BufferError:
                self._wait_for_room(lambda k=key, v=value: produce(topic, v, k))  # type: ignore[misc]
            until_poll -= 1
            if not until_poll:
                until_poll = POLL_EVERY
                producer.poll(0)
                self._check()

    def _wait_for_room(self, produce: Callable[[], None]) -> None:
        end = time.monotonic() + self._wait_s
        while time.monotonic() < end:
            self._live().poll(READ_WAIT_S)
            self._check()
            try:
                produce()
            except BufferError:
                continue
            return
        raise self._late("the queue of records stayed full")

    def _live(self) -> Producer:
        assert self._producer is not None, "a destroyed producer is not used again"
        return self._producer

    def _check(self) -> None:
        """Raise for the first record that failed."""
        if self._failed is not None:
            raise raised_for(self._where, self._failed)

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _troubled(self, _error: KafkaError) -> None:
        self._disturbed = True

    def _late(self, what: str) -> HoldfastError:
        return Unavailable(
            f"{self._where}: {what} within {self._wait_s:g} s",
            not_done="nothing was committed",
            next_step="nothing: delivery retries; if it stays so, check the brokers, and that enough replicas are in sync",
        )


class ProgressReader:
    """Reads the progress topic of a topic, and goes on where it was."""

    def __init__(self, where: str, servers: str, topic: str, options: Options, wait_s: float = WAIT_S) -> None:
        self._where, self._name, self._wait_s = where, progress_topic(topic), wait_s
        with translated(where):
            self._admin = AdminClient(admin_options(servers, options))
            self._consumer = Consumer(reader_options(servers, options))
        self._begin()

    def read(self) -> Progress:
        """Return what all records up to the topic's end add up to.

        Raises:
            HoldfastError: the end cannot be read now.
        """
        with translated(self._where):
            end = self._end()
            if end < self._position:  # The topic was restored, or recreated.
                self._begin()
            self._read_to(end)
        return self._progress

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _begin(self) -> None:
        self._progress, self._position = Progress(f"topic {self._name}"), 0
        with translated(self._where):
            self._consumer.assign([TopicPartition(self._name, 0, 0)])

    def _end(self) -> int:
        """Return the high watermark: the last stable offset would leave out what other transactions hide."""
        whole = TopicPartition(self._name, 0)
        found = self._admin.list_offsets({whole: OffsetSpec.latest()}, request_timeout=self._wait_s)
        return int(found[whole].result().offset)

    def _read_to(self, end: int) -> None:
        until = time.monotonic() + self._wait_s
        while self._position < end:
            for message in self._consumer.consume(READ_MAX, READ_WAIT_S):
                self._take(message)
            if self._position < end and time.monotonic() >= until:
                raise Unavailable(
                    f"{self._where}: the topic {self._name} could be read up to offset {self._position} of {end} only",
                    not_done="nothing was delivered",
                    next_step="nothing: delivery retries; an open transaction of another job, or of a process that was "
                    "killed, may stand before the rest, and ends by itself",
                )

    def _take(self, message: Message) -> None:
        error, offset = message.error(), message.offset()
        if error is None:
            assert offset is not None
            self._progress.apply(message.key(), message.value())
            self._position = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, offset or 0)
        else:
            raise KafkaException(error)
