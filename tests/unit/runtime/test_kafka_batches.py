"""What is made of the messages that librdkafka hands over together, without a broker."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError

from holdfast.runtime.sources.kafka.batches import BatchFeed
from holdfast.runtime.sources.kafka.columns import Columns
from holdfast.runtime.sources.kafka.feed import Taken
from holdfast.runtime.sources.kafka.library import Message
from holdfast.storage.kafka.place import KafkaPlace

END, GONE = KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART
PLACE = KafkaPlace("broker.example:9092", "orders", ())


class Library:
    """A client that hands over what it is given, and counts what it gets back.

    Args:
        given: Offset and value of a message, or offset and error.
    """

    def __init__(self, given: list[tuple[int, bytes | int]]) -> None:
        self._parts = [ctypes.create_string_buffer(each, len(each)) for _, each in given if isinstance(each, bytes)]
        parts = iter(self._parts)
        self.messages = list[Message]()
        for offset, each in given:
            if isinstance(each, bytes):
                message = Message(offset=offset, payload=ctypes.addressof(next(parts)), len=len(each))
            else:
                message = Message(err=each, offset=offset)
            self.messages.append(message)
        self._words = np.array([ctypes.addressof(each) for each in self.messages], np.int64)
        self._given, self.back = False, list[int]()

    def batch(self, partition: int, count: int, timeout_s: float) -> tuple[Any, int]:
        taken, self._given = 0 if self._given else len(self.messages), True
        return self._words, taken

    def drop(self, count: int) -> None:
        self.back += self._words[:count].tolist()

    def error_of(self, address: int) -> tuple[KafkaError, int]:
        message = Message.from_address(address)
        return KafkaError(message.err), message.offset

    def assign(self, topic: str, partition: int, offset: int) -> None:
        pass

    def partitions(self, topic: str, timeout_s: float) -> int:
        return 1

    def close(self) -> None:
        pass


def fed(monkeypatch: pytest.MonkeyPatch, given: list[tuple[int, bytes | int]]) -> tuple[BatchFeed, Library]:
    library = Library(given)
    feed = BatchFeed(PLACE, None, False, lambda: 1)  # type: ignore[arg-type]
    monkeypatch.setattr(feed, "_client", library)
    return feed, library


def values_of(taken: Taken) -> list[bytes | None]:
    assert isinstance(taken.messages, Columns)
    found: list[bytes | None] = taken.messages.values.to_pylist()
    return found


class TestMessagesOfOneBatch:
    def test_come_together_though_the_end_was_reached_between_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader that keeps up finds an end behind every fetch: apart, it would read ever smaller batches."""
        given: list[tuple[int, bytes | int]] = [(0, b"a"), (1, END), (1, b"b"), (2, b"cc"), (3, END), (3, b"d")]
        feed, library = fed(monkeypatch, given)
        taken = feed.take(0, 0, 1 << 20)
        assert taken.following == 4 and values_of(taken) == [b"a", b"b", b"cc", b"d"]
        assert feed._partitions[0].end is None, "a record came behind the last end"
        assert sorted(library.back) == sorted(ctypes.addressof(each) for each in library.messages)

    def test_show_the_end_if_it_is_behind_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed, _ = fed(monkeypatch, [(0, b"a"), (1, END), (1, b"b"), (2, END)])
        assert feed.take(0, 0, 1 << 20).following == 2 and feed._partitions[0].end == 2
        assert feed.take(0, 2, 1 << 20) == (None, 2)

    def test_before_a_fault_are_handed_over_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed, _ = fed(monkeypatch, [(0, b"a"), (1, END), (1, b"b"), (2, GONE)])
        assert values_of(feed.take(0, 0, 1 << 20)) == [b"a", b"b"]
        assert feed._partitions[0].fault.code() == GONE

    def test_without_any_record_show_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed, _ = fed(monkeypatch, [(5, END), (5, END)])
        assert feed.take(0, 5, 1 << 20) == (None, 5)
