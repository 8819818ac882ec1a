"""A topic that a broker does not know: one that starts may not know its topics yet, so that is not believed at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.runtime.sources.kafka import reading
from holdfast.runtime.sources.kafka.reading import OpenKafka
from holdfast.storage.kafka import questions
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions, Topic

PLACE = KafkaPlace("broker.example:9092", "bids")
KNOWN = Topic("cluster", "id", (0, 1), frozenset(), None)


class Answers(Questions):
    """Questions with these answers; the last one stays."""

    given: Iterator[Topic | None]

    def topic(self, not_done: str = "nothing was read") -> Topic | None:
        return next(self.given)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpenKafka]:
    def with_answers(*answers: Topic | None, missing_for_s: float = 60.0) -> OpenKafka:
        for module in (questions, reading):
            monkeypatch.setattr(module, "MISSING_FOR_S", missing_for_s)
        monkeypatch.setattr(Answers, "given", iter(answers), raising=False)
        monkeypatch.setattr(reading, "Questions", Answers)
        return OpenKafka(PLACE, pa.schema([]), None, False)

    return with_answers


class TestTopicThatABrokerDoesNotKnow:
    def test_is_waited_for_when_a_source_is_opened(self, opened: Callable[..., OpenKafka]) -> None:
        assert opened(None, None, KNOWN).topic == KNOWN

    def test_is_an_error_of_the_user_if_that_lasts(self, opened: Callable[..., OpenKafka]) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            opened(None, missing_for_s=0.0)

    def test_makes_a_source_that_is_read_wait(self, opened: Callable[..., OpenKafka]) -> None:
        source = opened(KNOWN, None, KNOWN, None, KNOWN)
        with pytest.raises(Unavailable, match="a broker does not know it"):
            source.partitions()
        assert source.partitions() == [0, 1]
        with pytest.raises(Unavailable, match="a broker does not know it"):
            source.changed("kafka cluster id")
        assert source.changed("kafka cluster id") is None

    def test_no_longer_exists_if_that_lasts(self, opened: Callable[..., OpenKafka]) -> None:
        source = opened(KNOWN, None, None, missing_for_s=0.0)
        with pytest.raises(Damaged, match="no longer exists"):
            source.partitions()
        assert "no longer exists" in str(source.changed("kafka cluster id"))

    def test_has_to_be_missing_all_that_time(
        self, opened: Callable[..., OpenKafka], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = opened(KNOWN, None, KNOWN, None, None)
        with pytest.raises(Unavailable):
            source.partitions()
        source.partitions()
        now = time.monotonic()
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now + 61.0))
        with pytest.raises(Unavailable):
            source.partitions()
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now + 122.0))
        with pytest.raises(Damaged):
            source.partitions()
