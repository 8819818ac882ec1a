"""The connections of a Kafka target: a transactional producer, and a reader of the progress topic.

librdkafka works in threads of its own; a producer is a queue in front of them. Records that fail are reported inside of
`poll` and `flush`.

Source: confluent_kafka; librdkafka's INTRODUCTION.md, transactional producer; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from holdfast.errors import Unavailable
from holdfast.sinks.contract.phrases import NOTHING, RETRIES, UNKNOWN
from holdfast.sinks.kafka.errors import is_fenced, late, meaning_of
from holdfast.sinks.kafka.options import producer_settings, reader_settings
from holdfast.sinks.kafka.progress import Progress, progress_topic
from holdfast.sinks.kafka.senders import sender_of
from holdfast.sinks.kafka.sending import Sender
from holdfast.sinks.kafka.target import BrokerConnection, Mark, ProducerFenced, Records, TransactionalProducer
from holdfast.storage.kafka.errors import NoOffsets, no_topic, offset_of, outcome_of
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import MISSING_FOR_S, topic_id

_log = logging.getLogger("holdfast.kafka")
WAIT_S = 15.0
"""How long a call waits for the brokers before it reports them as unreachable."""
ABORT_WAIT_S = 5.0
FLUSH_S = 1.0
"""How often a flush that takes long is looked at: it may take any time, as long as it gets on."""
ROOM_WAIT_S = 0.02
"""How long to wait before records are given again to the library, whose queue was full."""
READ_WITHIN_S = 15.0
"""How long the progress topic may take to be read, once its end is known: open transactions stand before it."""
READ_WAIT_S = 0.1
MARKER_WITHIN_S, MARKER_EVERY_S = 0.05, 0.001
"""How long, and how often, the marker of a transaction is looked for, before its records are read back."""
TOPIC_EVERY_S, TOPIC_WITHIN_S = 1.0, 1.0
"""How often a session asks whether its topic was replaced, and how long a delivery waits for the answer: one that was
left over from the delivery before would be as old as that."""
_FOLLOWING = (
    *(KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE, KafkaError._FATAL),
    *(KafkaError._INCONSISTENT, KafkaError._MSG_TIMED_OUT),
)
"""Errors that follow from another one."""


@contextmanager
def raising(place: KafkaPlace) -> Iterator[None]:
    """Raise the client's errors as ProducerFenced or as a HoldfastError."""
    try:
        yield
    except KafkaException as error:
        raise raised_for(place, error.args[0]) from None


def raised_for(place: KafkaPlace, error: KafkaError) -> Exception:
    """Return what to raise for an error of the client."""
    return ProducerFenced(error.str()) if is_fenced(error) else meaning_of(place, error)


def find_topic(place: KafkaPlace, sender: Sender) -> None:
    """Wait for a broker that knows the topic.

    Raises:
        ConfigError: the topic is missing.
        KafkaException: no broker answers, or it refuses to.
    """
    until = time.monotonic() + MISSING_FOR_S
    while True:
        try:
            sender.partitions(place.topic, WAIT_S)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        if time.monotonic() >= until:
            raise no_topic(place, NOTHING)
        sender.poll(READ_WAIT_S)


class KafkaConnection(BrokerConnection):
    """See target.Connection.

    Args:
        place: The topic of the rows.
        transactional_id: That of every writer of the sink.
    """

    def __init__(self, place: KafkaPlace, transactional_id: str) -> None:
        self._place, self._id = place, transactional_id
        self._reader: ProgressReader | None = None

    def producer(self) -> ConfluentProducer:
        return ConfluentProducer(self._place, self._id)

    def progress(self) -> Progress:
        """After an error, the next call reads the topic from its start."""
        try:
            return self._opened().read()
        except BaseException:
            self.close()
            raise

    def topic(self) -> str | None:
        """Comes after `progress`."""
        return self._opened().topic()

    def replaced(self) -> bool:
        return self._opened().replaced()

    def committed(self, marks: Sequence[Mark]) -> None:
        assert self._reader is not None, "it was read"
        self._reader.committed(marks)

    def added(self) -> int:
        assert self._reader is not None, "it was read"
        return self._reader.added()

    def _opened(self) -> ProgressReader:
        if self._reader is None:
            self._reader = ProgressReader(self._place)
        return self._reader

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class ConfluentProducer(TransactionalProducer):
    """See target.TransactionalProducer."""

    def __init__(self, place: KafkaPlace, transactional_id: str) -> None:
        self._place, self._progress_topic = place, progress_topic(place.topic)
        self._failed: KafkaError | None = None
        self._disturbed = False
        with raising(place):
            settings = producer_settings(place, transactional_id)
            self._producer: Sender | None = sender_of(place, settings, self._reported, self._troubled)

    @property
    def disturbed(self) -> bool:
        return self._disturbed

    def init(self) -> None:
        producer = self._live()
        with self._raising():
            # Before a broker is connected, the library finds no coordinator, and waits half a second to ask again.
            find_topic(self._place, producer)
            producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        with self._raising():
            self._live().begin_transaction()

    def mark(self, key: bytes, value: bytes) -> None:
        with self._raising():
            self._put(self._progress_topic, Records([key], [value], partition=0))

    def send(self, records: Records) -> None:
        with self._raising():
            self._put(self._place.topic, records)

    def flush(self) -> None:
        producer = self._live()
        left, until = len(producer) + 1, 0.0
        while left:
            with self._raising():
                still = producer.flush(min(FLUSH_S, WAIT_S))
                self._check()
            if still < left:
                left, until = still, time.monotonic() + WAIT_S
            elif time.monotonic() >= until:
                raise late(self._place, "no record was confirmed", WAIT_S)

    def commit(self) -> None:
        producer = self._live()
        with self._raising():
            producer.commit_transaction(WAIT_S)
            producer.poll(0)  # Errors that were reported meanwhile show that a request may have been resent.

    def abort(self) -> None:
        with suppress(KafkaException):
            producer = self._live()
            producer.purge()
            producer.abort_transaction(ABORT_WAIT_S)

    def destroy(self) -> None:
        if (producer := self._producer) is not None:
            self._producer = None
            with suppress(KafkaException):
                producer.purge()
            producer.close()

    @contextmanager
    def _raising(self) -> Iterator[None]:
        """Raise the client's errors. Those that only follow from another one are replaced by that one.

        If a fatal error and the report of a record come in one call, the client raises SystemError, with the error or
        with none; the producer's state has it then.
        """
        try:
            yield
        except KafkaException as error:
            raise raised_for(self._place, self._cause(error.args[0])) from None
        except SystemError as error:
            given = error.__cause__
            fault = self._cause(given.args[0]) if isinstance(given, KafkaException) else self._fault()
            if fault is None:
                raise
            raise raised_for(self._place, fault) from None

    def _cause(self, fault: KafkaError) -> KafkaError:
        """Return why a transaction fails: not an error that only follows from another one."""
        return self._fault() or fault if fault.code() in _FOLLOWING else fault

    def _fault(self) -> KafkaError | None:
        """Return the error that ended the producer's transaction: a call that its state forbids raises it."""
        if self._producer is not None:
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    fault: KafkaError = error.args[0]
                    return fault
        return None

    def _put(self, topic: str, records: Records) -> None:
        """Put records into the queue of the library; wait while it is full."""
        producer, at, until = self._live(), 0, time.monotonic() + WAIT_S
        messages = producer.messages(records)
        while at < len(messages):
            count, at, fault = producer.put(topic, messages, at)
            if fault is not None:
                raise KafkaException(fault)
            if count:
                until = time.monotonic() + WAIT_S
            elif time.monotonic() >= until:
                raise late(self._place, "the queue of records stayed full", WAIT_S)
            producer.poll(0) if count else producer.flush(ROOM_WAIT_S)
            self._check()

    def _live(self) -> Sender:
        assert self._producer is not None, "a destroyed producer is not used again"
        return self._producer

    def _check(self) -> None:
        """Raise KafkaException for the first record that failed."""
        if self._failed is not None:
            raise KafkaException(self._failed)

    def _reported(self, error: KafkaError) -> None:
        self._failed = self._failed or error

    def _troubled(self, _error: KafkaError) -> None:
        self._disturbed = True


class ProgressReader:
    """Reads the progress topic of a topic, and goes on where it was."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place, self._name = place, progress_topic(place.topic)
        with raising(place):
            self._admin = AdminClient(place.settings(), logger=_log)
            self._consumer = Consumer(reader_settings(place), logger=_log)
        self._progress = self._nothing()
        self._position: int | None = None
        """The offset up to which it has been read; None: not begun."""
        self._own: list[Sequence[Mark]] = []
        """The records of transactions that were committed since."""
        self._ids: dict[str, str | None] = {}
        """Those of the topic and of its progress topic."""
        self._asked: dict[str, Any] = {}
        """By topic, the requests for ids that are under way."""
        self._asked_at = 0.0

    def read(self) -> Progress:
        """Return what all records up to the topic's end add up to.

        Raises:
            HoldfastError: the end cannot be read now.
        """
        with suppress(NoOffsets):  # It has no leader now, for which the next question waits.
            if self._own and self._has_only_own():
                return self._progress
        self._own.clear()
        end = self._offset(OffsetSpec.latest())
        with raising(self._place):
            if self._position is None or end < self._position:  # Below it, the topic was restored or recreated.
                self._begin()
            self._read_to(end)
            self._admin.poll(0)  # forwards what the library logs
        return self._progress

    def committed(self, marks: Sequence[Mark]) -> None:
        """A transaction of the only producer of its id was committed with these records."""
        self._own.append(marks)

    def _has_only_own(self) -> bool:
        """Take in the records of this session's transactions, if nothing else came to the topic since it was read.

        Each transaction adds its records and its marker. So if the topic ends behind just as many and no transaction is
        open, all of them are ours: one record of another process would make it longer. Reading them back takes ten
        times as long: a reader waits for the marker and for the next fetch.
        """
        assert self._position is not None
        if self._ids.get(self._name) is None:
            return False  # it may have been recreated with as many records
        expected_end = self._position + sum(len(marks) + 1 for marks in self._own)
        until = time.monotonic() + MARKER_WITHIN_S
        while (ends := self._ends()) != (expected_end, expected_end):
            # The marker of our last transaction may be on its way.
            if ends[0] > expected_end or ends[1] > expected_end or time.monotonic() >= until:
                return False
            self._admin.poll(MARKER_EVERY_S)
        for mark in chain.from_iterable(self._own):
            self._progress.apply(*mark)
        self._own.clear()
        self._position = expected_end
        with raising(self._place):
            self._consumer.assign([TopicPartition(self._name, 0, expected_end)])
        return True

    def topic(self) -> str | None:
        """Return the id of the topic; None if the brokers have no ids.

        Raises:
            HoldfastError: it cannot be asked for now.
        """
        self._ask()
        while self._asked:
            name, asked = self._asked.popitem()
            described, fault = outcome_of(asked, 2 * WAIT_S)
            if fault is not None:
                raise raised_for(self._place, fault)
            self._ids[name] = topic_id(described)
        return self._ids[self._place.topic]

    def replaced(self) -> bool:
        """Return whether a topic has another id than `topic` found, as far as the brokers answer soon."""
        self._admin.poll(0)
        if self._differs(0.0):
            return True
        if time.monotonic() - self._asked_at < TOPIC_EVERY_S:
            return False
        if not self._asked:
            self._ask()
        return self._differs(TOPIC_WITHIN_S)

    def _differs(self, within_s: float) -> bool:
        """Return whether a request that is under way was answered with another id. An error proves nothing: the
        delivery meets it too."""
        for name, asked in list(self._asked.items()):
            try:
                description, fault = outcome_of(asked, within_s)
            except TimeoutError:
                continue
            del self._asked[name]
            if fault is None and topic_id(description) != self._ids[name]:
                return True
        return False

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        topics = TopicCollection([self._place.topic, self._name])
        self._asked = dict(self._admin.describe_topics(topics, request_timeout=WAIT_S))

    def added(self) -> int:
        """Return how many records came since it was read, those of open transactions too.

        Raises:
            HoldfastError: the end cannot be read now.
        """
        assert self._position is not None
        return self._offset(OffsetSpec.latest()) - self._position

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _begin(self) -> None:
        """Start over. A logical offset would be looked up by the consumer, half a second after it has a connection."""
        self._progress, self._position = self._nothing(), self._offset(OffsetSpec.earliest())
        self._consumer.assign([TopicPartition(self._name, 0, self._position)])

    def _nothing(self) -> Progress:
        return Progress(f"{self._place.where}: its progress topic")

    def _ends(self) -> tuple[int, int]:
        """Return the last stable offset and, asked for later, the high watermark.

        In this order, our marker is below the high watermark if the last stable offset is behind our records.
        """
        stable = self._answered(self._ask_offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED, WAIT_S))
        return stable, self._answered(self._ask_offset(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED, WAIT_S))

    def _offset(self, which: OffsetSpec) -> int:
        """Return an end of the topic, once a broker leads it; the later one is the high watermark.

        The last stable offset would leave out what other transactions hide.
        """
        until = time.monotonic() + WAIT_S
        while True:
            left = max(until - time.monotonic(), READ_WAIT_S)
            asked = self._ask_offset(which, IsolationLevel.READ_UNCOMMITTED, left)
            try:
                return self._answered(asked)
            except NoOffsets:
                if time.monotonic() >= until:
                    raise
            self._admin.poll(READ_WAIT_S)

    def _ask_offset(self, which: OffsetSpec, isolation: IsolationLevel, within_s: float) -> Any:
        whole = TopicPartition(self._name, 0)
        return self._admin.list_offsets({whole: which}, request_timeout=within_s, isolation_level=isolation)[whole]

    def _answered(self, asked: Any) -> int:
        offset, fault = outcome_of(asked, 2 * WAIT_S)
        if fault is not None:
            raise raised_for(self._place, fault)
        return offset_of(offset, self._place, UNKNOWN)

    def _read_to(self, end: int) -> None:
        until = time.monotonic() + READ_WITHIN_S
        assert self._position is not None
        while self._position < end:
            message = self._consumer.poll(READ_WAIT_S)
            if message is not None and not _about_the_group(message):
                self._take(message)
            elif time.monotonic() >= until:
                raise Unavailable(
                    f"{self._place.where}: its progress topic could be read up to {self._position} of {end} only",
                    not_done=NOTHING,
                    next_step=f"{RETRIES}; an open transaction of another job, or of a process that was killed, may "
                    "hide the rest, and ends automatically",
                )

    def _take(self, message: Message) -> None:
        error, offset = message.error(), message.offset()
        if error is None:
            assert offset is not None
            self._progress.apply(message.key(), message.value())
            self._position = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position or 0, offset or 0)
        else:
            raise KafkaException(error)


def _about_the_group(message: Message) -> bool:
    """Return whether this is a refusal of the consumer's group, about which the library asks automatically.

    Partitions are assigned and no offset is committed, so the user needs no right to a group.
    """
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
