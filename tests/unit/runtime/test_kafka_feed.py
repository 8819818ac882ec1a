"""Messages of a partition are handed over once and in order by both feeds, whatever the library hands over again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.runtime.sources.kafka.batches import _Partition
from holdfast.runtime.sources.kafka.columns import Columns
from holdfast.runtime.sources.kafka.feed import MESSAGE_BYTES, MessageFeed, _Queue
from holdfast.storage.kafka.place import KafkaPlace

PLACE = KafkaPlace("broker.example:9092", "orders", ())


class Given:
    """A message as the client hands it over, whose value is its offset; or an error of its partition."""

    def __init__(self, offset: int, partition: int = 0, error: KafkaError | None = None) -> None:
        self._offset, self._partition, self._error = offset, partition, error

    def __len__(self) -> int:
        return len(self.value())

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return self._partition

    def topic(self) -> str:
        return PLACE.topic

    def value(self) -> bytes:
        return str(self._offset).encode()


class Consumer:
    """A consumer that hands over what it is given, one list at each fetch."""

    def __init__(self, *fetches: list[Given]) -> None:
        self._fetches, self.assigned, self.closed = list(fetches), list[int](), 0

    def consume(self, count: int, timeout_s: float) -> list[Given]:
        return self._fetches.pop(0) if self._fetches and timeout_s == 0 else []

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned += [each.offset for each in places]

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def close(self) -> None:
        self.closed += 1


def fed_by(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> MessageFeed:
    """Return a feed that has this consumer whenever it opens one."""
    feed = MessageFeed(PLACE)

    def opened() -> Consumer:
        feed._consumer = consumer
        return consumer

    monkeypatch.setattr(feed, "_opened", opened)
    return feed


def read(feed: MessageFeed, partition: int, offset: int, bytes_max: int = 1 << 20) -> list[int]:
    taken = feed.take(partition, offset, bytes_max)
    return [] if taken.messages is None else taken.messages.offsets.tolist()


class TestMessagesThatComeAgain:
    @settings(max_examples=60)
    @given(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=6),
        st.lists(st.booleans(), max_size=12),
        st.integers(1, 4),
    )
    def test_are_handed_over_once_and_in_order(
        self, runs: list[tuple[int, int]], turns: list[bool], count: int
    ) -> None:
        """Each run begins so many messages before the end of what came, and has so many new ones."""
        for queue in (_Queue(0, 0), _Partition(0, 0)):
            taken, left, end, at = list[int](), list(runs), 0, iter(turns)
            while left or queue.waiting:
                if left and (not queue.waiting or next(at, False)):
                    back, more = left.pop(0)
                    run = list(range(max(0, end - back), end + more))
                    end += more
                    add(queue, run)
                else:
                    taken += took(queue, count)
            assert taken == list(range(end))

    def test_while_another_partition_is_read_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fetches = [Given(0), Given(1), Given(2)], [Given(1), Given(2), Given(3), Given(0, partition=1)]
        feed = fed_by(Consumer(*fetches), monkeypatch)
        found = read(feed, 0, 0, 1)
        assert read(feed, 1, 0) == [0]
        while found[-1] < 3:
            found += read(feed, 0, found[-1] + 1, 1)
        assert found == [0, 1, 2, 3]


class TestFaults:
    """Once a partition has failed, the next question begins with another consumer: the failure may be over."""

    def test_a_partition_fault_ends_with_its_consumer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        consumer = Consumer([Given(0)], [Given(-1, error=error)], [Given(1), Given(2)])
        feed = fed_by(consumer, monkeypatch)
        assert read(feed, 0, 0) == [0]
        with pytest.raises(HoldfastError):
            read(feed, 0, 1)
        assert read(feed, 0, 1) == [1, 2]
        assert (consumer.assigned, consumer.closed) == ([0, 1], 1)

    @pytest.mark.parametrize("queue", [_Queue(5, 5), _Partition(5, 5)], ids=["messages", "columns"])
    def test_reach_no_offset(self, queue: Any) -> None:
        assert queue.reaches(5)
        queue.fault = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        assert not queue.reaches(5)


def add(queue: _Queue | _Partition, run: list[int]) -> None:
    if isinstance(queue, _Queue):
        queue.add(list(map(Given, run)))
    else:
        queue.add(Columns(0, np.array(run, np.int64), pa.array([b"1"] * len(run), pa.binary())))


def took(queue: _Queue | _Partition, count: int) -> list[int]:
    """Take about so many messages."""
    found = queue.take(count * (MESSAGE_BYTES + 1))
    return found.offsets.tolist() if isinstance(found, Columns) else [each.offset() for each in found]
