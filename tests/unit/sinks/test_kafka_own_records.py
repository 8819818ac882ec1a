"""When a session need not read back what it has written to the progress topic, with brokers that answer as told."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.kafka import client
from holdfast.sinks.kafka.client import ProgressReader
from holdfast.sinks.kafka.progress import tag_record
from holdfast.storage.kafka.place import place_of

JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
START = 10
"""Where the topic ended when it was read last."""


@dataclass
class Offset:
    offset: int


@dataclass
class Record:
    place: int
    content: tuple[bytes, bytes]

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes:
        return self.content[0]

    def value(self) -> bytes:
        return self.content[1]


@dataclass
class Brokers:
    """What an AdminClient and a Consumer of one topic are told."""

    stable: list[int] = field(default_factory=list)
    """What the last stable offset is, each time that it is asked for; the last one stays."""
    high: int = START
    low: int = START - 1
    records: list[Record] = field(default_factory=list)
    """What the consumer gives next."""
    assigned: list[int] = field(default_factory=list)
    asked: list[IsolationLevel] = field(default_factory=list)

    def poll(self, _: float) -> Any:
        return self.records.pop(0) if self.records else None

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append(partitions[0].offset)


@dataclass
class Admin:
    brokers: Brokers

    def poll(self, _: float) -> int:
        return 0

    def list_offsets(self, which: dict[TopicPartition, Any], *, isolation_level: IsolationLevel, **_: Any) -> Any:
        if list(which.values()) == [OffsetSpec.earliest()]:
            return {each: _done(self.brokers.low) for each in which}
        self.brokers.asked.append(isolation_level)
        stable = isolation_level == IsolationLevel.READ_COMMITTED
        answers = self.brokers.stable if stable else [self.brokers.high]
        return {each: _done(answers.pop(0) if len(answers) > 1 else answers[0]) for each in which}


def _done(offset: int) -> Future[Offset]:
    answer: Future[Offset] = Future()
    answer.set_result(Offset(offset))
    return answer


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(client, "AdminClient", lambda *_, **__: Admin(brokers))
    monkeypatch.setattr(client, "Consumer", lambda *_, **__: brokers)
    return brokers


@pytest.fixture
def reader(brokers: Brokers) -> ProgressReader:
    """A reader that has read an epoch, after which its session committed the next one."""
    reader = ProgressReader(place_of("127.0.0.1:1", "numbers", None))
    brokers.records = [Record(START - 1, tag_record(JOB, WRITER, tag(1)))]
    assert reader.read().tag_of(JOB, WRITER) == tag(1)
    reader._ids["numbers-holdfast-progress"] = "first"
    reader.committed([tag_record(JOB, WRITER, tag(2))])
    brokers.asked.clear()
    brokers.assigned.clear()
    return reader


class TestRecordsOfThisSession:
    def test_are_not_read_back_if_the_topic_ends_behind_them_and_their_marker(
        self, brokers: Brokers, reader: ProgressReader
    ) -> None:
        brokers.stable, brokers.high = [START + 2], START + 2
        assert reader.read().tag_of(JOB, WRITER) == tag(2)
        assert brokers.assigned == [START + 2], "what comes later is read from there"

    def test_are_not_read_back_if_their_marker_comes_in_time(self, brokers: Brokers, reader: ProgressReader) -> None:
        brokers.stable, brokers.high = [START, START, START + 2], START + 2
        assert reader.read().tag_of(JOB, WRITER) == tag(2)
        assert brokers.assigned == [START + 2]

    def test_are_read_back_if_no_leader_says_where_the_topic_ends(
        self, brokers: Brokers, reader: ProgressReader
    ) -> None:
        brokers.stable, brokers.high = [OFFSET_INVALID], START + 1
        brokers.records = [Record(START, tag_record(JOB, WRITER, tag(2)))]
        assert reader.read().tag_of(JOB, WRITER) == tag(2)

    def test_own_records_of_several_transactions_have_one_marker_each(
        self, brokers: Brokers, reader: ProgressReader
    ) -> None:
        reader.committed([tag_record(JOB, WRITER, tag(3))])
        brokers.stable, brokers.high = [START + 4], START + 4
        assert reader.read().tag_of(JOB, WRITER) == tag(3)

    def test_are_read_with_what_another_process_added(self, brokers: Brokers, reader: ProgressReader) -> None:
        """As a restored target has it: a tag that is older."""
        brokers.stable, brokers.high = [START + 3], START + 3
        brokers.records = [
            Record(START, tag_record(JOB, WRITER, tag(2))),
            Record(START + 2, tag_record(JOB, WRITER, tag(1))),
        ]
        assert reader.read().tag_of(JOB, WRITER) == tag(1)
        assert brokers.assigned == [], "the reader goes on where it was"

    def test_are_read_if_a_record_of_another_process_has_the_place_of_the_marker(
        self, brokers: Brokers, reader: ProgressReader
    ) -> None:
        """The high watermark alone would not show it: the marker is still to come, or behind that record."""
        brokers.stable, brokers.high = [START], START + 2
        brokers.records = [
            Record(START, tag_record(JOB, WRITER, tag(2))),
            Record(START + 1, tag_record(JOB, WRITER, tag(1))),
        ]
        assert reader.read().tag_of(JOB, WRITER) == tag(1)

    def test_are_forgotten_with_a_topic_that_was_recreated(self, brokers: Brokers, reader: ProgressReader) -> None:
        brokers.stable, brokers.high, brokers.low = [1], 1, 0
        brokers.records = [Record(0, tag_record(JOB, WRITER, tag(9)))]
        assert reader.read().tag_of(JOB, WRITER) == tag(9)

    def test_the_last_stable_offset_is_asked_for_first(self, brokers: Brokers, reader: ProgressReader) -> None:
        """Else the marker might be behind what the high watermark was, with a record of another process before it."""
        brokers.stable, brokers.high = [START + 2], START + 2
        reader.read()
        assert brokers.asked == [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED]

    def test_are_read_back_if_the_brokers_have_no_ids_of_topics(self, brokers: Brokers, reader: ProgressReader) -> None:
        """A topic that was recreated with as many records would look the same."""
        reader._ids["numbers-holdfast-progress"] = None
        brokers.stable, brokers.high = [START + 2], START + 2
        brokers.records = [
            Record(START, tag_record(JOB, WRITER, tag(2))),
            Record(START + 1, tag_record(JOB, WRITER, tag(7))),
        ]
        assert reader.read().tag_of(JOB, WRITER) == tag(7)
