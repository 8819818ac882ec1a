"""A changelog in Kafka without a network: the reader's side of kafka_fake.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from kafka_fake import FakeBrokers, FakeConnection

from holdfast.sinks.kafka.changelog.reading import FeedRecord, RecordsGone
from holdfast.sinks.kafka.changelog.sink import Brokers
from holdfast.sinks.kafka.progress import Layout, Progress
from holdfast.sinks.kafka.target import BrokerConnection, Records
from holdfast.storage.kafka.place import KafkaPlace


def ready() -> None:
    """Let every call be answered."""


@dataclass
class InMemory(Brokers):
    """One topic, in the memory of this process.

    Args:
        refuse: Called at every call of a writer; raises while the brokers are to be unreachable.
    """

    fake: FakeBrokers = field(default_factory=FakeBrokers)
    partitions: int = 4
    id: str = "the first"
    refuse: Callable[[], None] = ready
    prepared: int = 0
    removed: dict[int, int] = field(default_factory=dict)
    """Per partition, the offset before which records were removed."""
    keeps: bool = False
    """Nothing is removed, as if the process had ended before."""
    made: Iterator[int] = field(default_factory=count)

    def topic(self, place: KafkaPlace) -> FakeTopic:
        """See Brokers.topic."""
        return FakeTopic(self)

    def connection(self, place: KafkaPlace, transactional_id: str) -> BrokerConnection:
        """See Brokers.connection."""
        return Refusing(self, transactional_id)

    def prepare(self, place: KafkaPlace) -> None:
        """See Brokers.prepare."""
        self.prepared += 1

    def token(self) -> str:
        """See Brokers.token."""
        return f"base-{next(self.made)}"

    def probe(self, place: KafkaPlace) -> str:
        """See Brokers.probe."""
        return "the topic is in memory"


class Refusing(FakeConnection):
    """Refuses at times."""

    def __init__(self, memory: InMemory, name: str) -> None:
        super().__init__(memory.fake, name)
        self._memory = memory

    def progress(self) -> Progress:
        """See BrokerConnection.progress."""
        self._memory.refuse()
        return super().progress()


class FakeTopic:
    """See reading.ReadableTopic, compacting.CompactedTopic."""

    def __init__(self, memory: InMemory) -> None:
        self._memory = memory

    def layout(self) -> Layout:
        """See ReadableTopic.layout."""
        return Layout(self._memory.partitions, self._memory.id)

    def progress(self) -> Progress:
        """See ReadableTopic.progress."""
        self._memory.fake.cut("poll")
        found = Progress("the progress topic")
        for key, value in self._memory.fake.marks:
            found.apply(key, value)
        return found

    def first(self, partitions: Iterable[int]) -> dict[int, int]:
        """See ReadableTopic.first."""
        return {each: self._memory.removed.get(each, 0) for each in partitions}

    def written(self, partitions: Iterable[int]) -> dict[int, int]:
        """See ReadableTopic.written."""
        return {each: len(self._memory.fake.logs.get(each, ())) for each in partitions}

    def read(self, begins: Mapping[int, int]) -> FakeFeed:
        """See ReadableTopic.read."""
        return FakeFeed(self._memory, dict(begins))

    def write(self, records: Iterable[Records]) -> None:
        """See CompactedTopic.write."""
        for each in records:
            assert each.partition is not None
            log = self._memory.fake.logs.setdefault(each.partition, [])
            log += [(key or b"", value or b"") for key, value in zip(each.keys or (), each.values, strict=True)]

    def remove(self, before: Mapping[int, int]) -> None:
        """See CompactedTopic.remove."""
        if self._memory.keeps:
            return
        for partition, offset in before.items():
            self._memory.removed[partition] = offset
            log = self._memory.fake.logs[partition]
            log[:offset] = [None] * offset

    def holds_records(self) -> bool:
        """See ReadableTopic.holds_records."""
        return any(record for log in self._memory.fake.logs.values() for record in log)

    def close(self) -> None:
        """See ReadableTopic.close."""


@dataclass
class FakeFeed:
    """See reading.Feed: hands over all that is there, then the ends."""

    memory: InMemory
    positions: dict[int, int]

    def poll(self) -> Sequence[FeedRecord]:
        """See ChangelogFeed.poll."""
        self.memory.fake.cut("poll")
        found = []
        for partition, position in self.positions.items():
            log = self.memory.fake.logs.get(partition, [])
            if not self.memory.removed.get(partition, 0) <= position <= len(log):
                raise RecordsGone(partition, position)
            for offset in range(position, len(log)):
                if (record := log[offset]) is not None:
                    found.append(FeedRecord(partition, offset, *record))
            found.append(FeedRecord(partition, len(log), None, None))
            self.positions[partition] = len(log)
        return found

    def drop(self, partition: int) -> None:
        """See ChangelogFeed.drop."""
        self.positions.pop(partition, None)

    def close(self) -> None:
        """See ChangelogFeed.close."""
