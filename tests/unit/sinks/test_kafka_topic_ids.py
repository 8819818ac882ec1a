"""How a session finds out that its topic was deleted and created again, with brokers that answer when they like."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TopicCollection

from holdfast.sinks.kafka import client
from holdfast.sinks.kafka.client import ProgressReader
from holdfast.storage.kafka.place import place_of


@dataclass
class Described:
    topic_id: str


class Brokers:
    """Answers as an AdminClient does that has a connection, or later."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.topic, self.progress, self.late, self.asked = "first", "first progress", False, 0
        self._waiting: dict[str, Future[Described]] = {}

    def poll(self, _: float) -> int:
        return 0

    def describe_topics(self, _: TopicCollection, **__: Any) -> dict[str, Future[Described]]:
        self.asked += 1
        self._waiting = {"numbers": Future(), "numbers-holdfast-progress": Future()}
        if not self.late:
            self.answer()
        return self._waiting

    def answer(self) -> None:
        for each, described in zip(self._waiting.values(), (self.topic, self.progress), strict=True):
            each.set_result(Described(described))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(client, "AdminClient", lambda *_, **__: found)
    monkeypatch.setattr(client, "TOPIC_EVERY_S", 0.0)
    monkeypatch.setattr(client, "TOPIC_WITHIN_S", 0.0)
    return found


@pytest.fixture
def reader(brokers: Brokers) -> ProgressReader:
    reader = ProgressReader(place_of("127.0.0.1:1", "numbers", None))
    assert reader.topic() == "first"
    return reader


class TestReplaced:
    def test_is_known_to_the_first_delivery_after_it(self, brokers: Brokers, reader: ProgressReader) -> None:
        """However long ago the delivery before was: that one's answer says nothing of now."""
        assert not reader.replaced()
        brokers.topic = "second"
        assert reader.replaced()

    def test_applies_to_the_progress_topic_too(self, brokers: Brokers, reader: ProgressReader) -> None:
        brokers.progress = "second progress"
        assert reader.replaced()

    def test_by_an_answer_that_comes_late_is_known_to_the_next_delivery(
        self, brokers: Brokers, reader: ProgressReader
    ) -> None:
        brokers.topic, brokers.late = "second", True
        assert not reader.replaced()
        brokers.answer()
        assert reader.replaced()

    def test_is_asked_once_a_second_only(
        self, brokers: Brokers, reader: ProgressReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "TOPIC_EVERY_S", 3_600.0)
        asked = brokers.asked
        assert not any(reader.replaced() for _ in range(5))
        assert brokers.asked == asked
