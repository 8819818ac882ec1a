"""The connections of a reader of a changelog in a topic.

Source: confluent_kafka; docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.errors import HoldfastError, NotAdmitted, Unavailable
from holdfast.sinks.kafka.changelog.compacting import CompactedTopic
from holdfast.sinks.kafka.changelog.reading import ChangelogFeed, FeedRecord, RecordsGone
from holdfast.sinks.kafka.client import ProgressReader, raising
from holdfast.sinks.kafka.options import reader_settings
from holdfast.sinks.kafka.plain import PlainProducer
from holdfast.sinks.kafka.progress import Layout, Progress
from holdfast.sinks.kafka.repeating import GaveUp
from holdfast.sinks.kafka.target import Records
from holdfast.storage.kafka.errors import translated
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions

_log = logging.getLogger("holdfast.kafka")
NO_STATE = "no state was restored"
AGAIN = (
    "no action needed: a job that restores its state tries again; if this persists, check that the brokers run and "
    "that this machine reaches the addresses they advertise (advertised.listeners). An open transaction of a process "
    "that was killed may hide the rest, and ends automatically, or with holdfast txn"
)
POLL_S = 0.1
POLL_MESSAGES = 5_000
STANDS_FOR_S = 20.0
"""How long no record may come though there are more, while it is waited for one: longer than an open transaction of a
killed process may need. The time in which the reader handles records does not count."""
FETCHED_AHEAD_KIB = 32 << 10
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_HARMLESS = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
"""The library asks for a group that is not used; and it reconnects automatically."""


def token() -> str:
    """Return an id that nothing else has."""
    return uuid.uuid4().hex


class BrokerTopic(CompactedTopic):
    """See reading.Topic, compacting.CompactedTopic."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place, self._questions = place, Questions(place)

    def layout(self) -> Layout:
        found = self._questions.existing(NO_STATE)
        return Layout(len(found.partitions), found.id)

    def progress(self) -> Progress:
        try:
            with closing(ProgressReader(self._place)) as reader:
                return reader.read()
        except HoldfastError as error:
            error.not_done = NO_STATE
            if isinstance(error, Unavailable) and not isinstance(error, NotAdmitted):
                error.next_step = AGAIN
            raise

    def first(self, partitions: Iterable[int]) -> dict[int, int]:
        return self._questions.offsets(partitions, "first")

    def written(self, partitions: Iterable[int]) -> dict[int, int]:
        return self._questions.offsets(partitions, "written")

    def read(self, begins: Mapping[int, int]) -> BrokerFeed:
        return BrokerFeed(self._place, begins)

    def holds_records(self) -> bool:
        partitions = range(self.layout().partitions)
        first, ends = self.first(partitions), self._questions.offsets(partitions, "end")
        left = {each for each in partitions if first[each] < ends[each]}
        with closing(self.read({each: first[each] for each in left})) as feed:
            while left:
                try:
                    polled = feed.poll()
                except RecordsGone:
                    return True
                for found in polled:
                    if found.value is not None or found.key is not None:
                        return True
                    left.discard(found.partition)
        return False

    def write(self, records: Iterable[Records]) -> None:
        producer = PlainProducer(self._place)
        try:
            for each in records:
                producer.begin([each])
                producer.complete()
        except GaveUp as gave_up:
            raise gave_up.error from gave_up
        finally:
            producer.close()

    def remove(self, before: Mapping[int, int]) -> None:
        self._questions.remove(before)

    def close(self) -> None:
        self._questions.close()


class BrokerFeed(ChangelogFeed):
    """See reading.Feed."""

    def __init__(self, place: KafkaPlace, begins: Mapping[int, int]) -> None:
        self._place, self._waited_s = place, 0.0
        settings = {
            "queued.max.messages.kbytes": FETCHED_AHEAD_KIB,
            "check.crcs": True,
            **reader_settings(place),
        }
        with raising(place):
            self._consumer = Consumer(settings, logger=_log)
            self._consumer.assign([TopicPartition(place.topic, each, offset) for each, offset in begins.items()])

    def poll(self) -> Sequence[FeedRecord]:
        with raising(self._place):
            messages = self._consumer.consume(POLL_MESSAGES, POLL_S)
        records = [each for each in map(self._found, messages) if each is not None]
        self._waited_s = 0.0 if records else self._waited_s + POLL_S
        if self._waited_s >= STANDS_FOR_S:
            raise Unavailable(
                f"{self._place.where}: no record could be read for {STANDS_FOR_S:g} s, though there are more",
                not_done=NO_STATE,
                next_step=AGAIN,
            )
        return records

    def drop(self, partition: int) -> None:
        with raising(self._place):
            self._consumer.incremental_unassign([TopicPartition(self._place.topic, partition)])

    def close(self) -> None:
        self._consumer.close()

    def _found(self, message: Message) -> FeedRecord | None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is None:
            assert partition is not None and offset is not None
            return FeedRecord(partition, offset, message.key(), message.value())
        if error.code() == KafkaError._PARTITION_EOF:
            return FeedRecord(partition or 0, offset or 0, None, None)
        if error.code() in _OUT_OF_RANGE:
            assert partition is not None and offset is not None
            raise RecordsGone(partition, offset)
        if error.code() in _HARMLESS:
            return None
        raise translated(error, self._place, NO_STATE)
