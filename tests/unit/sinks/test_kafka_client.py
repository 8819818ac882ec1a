"""How errors of the client library are understood, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.sinks.kafka.client import ConfluentProducer
from holdfast.sinks.kafka.target import ProducerFenced
from holdfast.storage.kafka.place import place_of

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
