"""How errors of the client library are understood, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from holdfast.errors import Unavailable
from holdfast.sinks.kafka import client
from holdfast.sinks.kafka.client import ConfluentProducer, ProgressReader
from holdfast.sinks.kafka.target import ProducerFenced
from holdfast.storage.kafka import questions
from holdfast.storage.kafka.place import place_of
from holdfast.storage.kafka.questions import Questions

FENCED = KafkaError(KafkaError._FENCED, "fenced by a newer instance")
WRONG_STATE = KafkaError(KafkaError._STATE, "a transaction is open")


class Library:
    """A producer of the library whose flush fails as it does when a fatal error and a report come together."""

    def __init__(self, state: KafkaError, cause: KafkaError | None) -> None:
        self._state, self._cause = state, cause

    def __len__(self) -> int:
        return 1

    def flush(self, timeout: float) -> int:
        error = SystemError("returned NULL without setting an exception")
        raise error from None if self._cause is None else KafkaException(self._cause)

    def begin_transaction(self) -> None:
        raise KafkaException(self._state)

    def purge(self) -> None:
        pass


@pytest.fixture
def producer() -> Any:
    made = ConfluentProducer(place_of("127.0.0.1:1", "bids", None), "id")
    yield made
    made.destroy()


class TestSystemError:
    def test_with_a_cause_is_the_cause(self, producer: Any) -> None:
        producer._producer = Library(WRONG_STATE, FENCED)
        with pytest.raises(ProducerFenced, match="newer instance"):
            producer.flush()

    def test_without_a_cause_is_what_ended_the_transaction(self, producer: Any) -> None:
        """Some versions of the library lose the fatal error; the producer's state still has it."""
        producer._producer = Library(FENCED, None)
        with pytest.raises(ProducerFenced, match="newer instance"):
            producer.flush()

    def test_of_a_sound_transaction_is_not_hidden(self, producer: Any) -> None:
        producer._producer = Library(WRONG_STATE, None)
        with pytest.raises(SystemError):
            producer.flush()


class Electing:
    """A client of an administrator that finds no leader the first times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def list_offsets(self, wanted: dict[Any, Any], **_given: Any) -> dict[Any, Future[Any]]:
        answers: dict[Any, Future[Any]] = {each: Future() for each in wanted}
        for each in answers.values():
            if self.left:
                each.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
            else:
                each.set_result(SimpleNamespace(offset=7))
        self.left = max(self.left - 1, 0)
        return answers

    def poll(self, timeout: float) -> int:
        return 0


class TestTopicWithoutLeaders:
    """A topic that was created a moment ago, or whose brokers start. The library gives up at the first answer."""

    @pytest.fixture
    def reader(self) -> Any:
        made = ProgressReader(place_of("127.0.0.1:1", "bids", None))
        yield made
        made.close()

    def test_is_waited_for_before_its_progress_is_read(self, reader: Any) -> None:
        reader._admin = electing = Electing(3)
        assert reader._offset(OffsetSpec.latest()) == 7
        assert electing.left == 0

    def test_is_unavailable_if_that_lasts(self, reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "WAIT_S", 0.0)
        reader._admin = Electing(1)
        with pytest.raises(Unavailable, match="no broker leads its partitions now"):
            reader._offset(OffsetSpec.latest())

    def test_is_waited_for_by_a_question_about_offsets(self) -> None:
        asking = Questions(place_of("127.0.0.1:1", "bids", None))
        asking._client = electing = Electing(3)
        assert asking.offsets([0, 1], "end") == {0: 7, 1: 7}
        assert electing.left == 0
        asking.refuse_while_away()

    def test_is_asked_about_for_as_long_as_an_answer_may_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(questions, "FIRST_ANSWER_WITHIN_S", 0.0)
        asking = Questions(place_of("127.0.0.1:1", "bids", None))
        asking._client = Electing(1)
        with pytest.raises(Unavailable, match="no broker leads its partitions now"):
            asking.offsets([0], "first")
