"""How errors of the client library are understood, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from holdfast.errors import Unavailable
from holdfast.sinks.kafka import client, topics
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

    def close(self) -> None:
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

    def test_a_system_error_without_a_failed_transaction_is_not_hidden(self, producer: Any) -> None:
        producer._producer = Library(WRONG_STATE, None)
        with pytest.raises(SystemError):
            producer.flush()


NO_LEADER = KafkaError(KafkaError._NOENT, "No leaders found")
BROKEN = None
"""What the library gives if its connection to a leader breaks before the answer: OFFSET_INVALID, and no error."""


class Failing:
    """A client of an administrator that fails the first times."""

    def __init__(self, times: int, fault: KafkaError | None) -> None:
        self.left, self._fault = times, fault

    def list_offsets(self, wanted: dict[Any, Any], **_given: Any) -> dict[Any, Future[Any]]:
        answers: dict[Any, Future[Any]] = {each: Future() for each in wanted}
        for each in answers.values():
            if self.left and self._fault is not None:
                each.set_exception(KafkaException(self._fault))
            else:
                each.set_result(SimpleNamespace(offset=OFFSET_INVALID if self.left else 7))
        self.left = max(self.left - 1, 0)
        return answers

    def poll(self, timeout: float) -> int:
        return 0


@pytest.mark.parametrize("fault", [NO_LEADER, BROKEN], ids=["no leader", "connection broken"])
class TestOffsetsThatAreNotTold:
    """Of a topic that was created a moment ago, or while connections break: neither is an empty topic."""

    @pytest.fixture
    def reader(self) -> Any:
        made = ProgressReader(place_of("127.0.0.1:1", "bids", None))
        yield made
        made.close()

    def test_are_waited_for_before_progress_is_read(self, reader: Any, fault: KafkaError | None) -> None:
        reader._admin = failing = Failing(3, fault)
        assert reader._offset(OffsetSpec.latest()) == 7
        assert failing.left == 0

    def test_are_no_progress_if_that_lasts(
        self, reader: Any, fault: KafkaError | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "WAIT_S", 0.0)
        reader._admin = Failing(4, fault)
        for read in (reader.read, reader.read):
            with pytest.raises(Unavailable, match="leader of a partition broke|no broker leads its partitions"):
                read()

    def test_are_waited_for_by_a_question_about_them(self, fault: KafkaError | None) -> None:
        asking = Questions(place_of("127.0.0.1:1", "bids", None))
        asking._client = failing = Failing(3, fault)
        assert asking.offsets([0, 1], "end") == {0: 7, 1: 7}
        assert failing.left == 0
        asking.refuse_while_away()

    def test_are_asked_for_as_long_as_an_answer_may_take(
        self, fault: KafkaError | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(questions, "FIRST_ANSWER_WITHIN_S", 0.0)
        monkeypatch.setattr(questions, "ANSWER_WITHIN_S", 0.0)
        asking = Questions(place_of("127.0.0.1:1", "bids", None))
        asking._client = Failing(2, fault)
        with pytest.raises(Unavailable, match="leader of a partition broke|no broker leads its partitions"):
            asking.offsets([0], "first")
        with pytest.raises(Unavailable, match="did not answer a moment ago"):
            asking.offsets([0], "first")


class TestAnErrorOfARequest:
    """If it were raised, its traceback would keep the client in a cycle, which its own thread may then collect."""

    def test_is_not_raised_by_a_question(self) -> None:
        asked, error = failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert Questions(place_of("127.0.0.1:1", "bids", None))._answer(asked, 1.0, "nothing was read") is None
        assert error.__traceback__ is None

    def test_is_not_raised_by_a_sink_that_looks_for_its_topics(self) -> None:
        asked, error = failed(KafkaError.TOPIC_ALREADY_EXISTS)
        place = place_of("127.0.0.1:1", "bids", None)
        assert topics._answer(place, asked, forgiven=(KafkaError.TOPIC_ALREADY_EXISTS,)) is None
        with pytest.raises(Unavailable):
            topics._answer(place, asked)
        assert error.__traceback__ is None


def failed(code: int) -> tuple[Future[Any], KafkaException]:
    asked, error = Future[Any](), KafkaException(KafkaError(code))
    asked.set_exception(error)
    return asked, error
