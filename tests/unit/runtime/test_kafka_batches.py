"""What is made of the messages that librdkafka hands over together, without a broker."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.sources.kafka.batches import BatchFeed
from holdfast.runtime.sources.kafka.columns import Columns
from holdfast.runtime.sources.kafka.feed import Taken, Unpackable
from holdfast.runtime.sources.kafka.unpackable import behind
from holdfast.storage.kafka.library import Message
from holdfast.storage.kafka.place import KafkaPlace

END, GONE, BROKEN = KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._BAD_COMPRESSION
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
        fault = feed._partitions[0].fault
        assert fault is not None and (fault[0].code(), fault[1]) == (GONE, 2)

    def test_without_any_record_show_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed, _ = fed(monkeypatch, [(5, END), (5, END)])
        assert feed.take(0, 5, 1 << 20) == (None, 5)


class TestUnpackable:
    """Batches that cannot be decompressed, each reported by its first offset."""

    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=1, max_size=8), st.data())
    def test_every_offset_of_other_batches_is_read(self, batches: list[tuple[bool, int]], data: st.DataObject) -> None:
        """Wherever reading begins, and however such batches and others follow each other."""
        ends = list(accumulate((count for _, count in batches), initial=0))
        of = {n: ends[i] for i in range(len(batches)) for n in range(ends[i], ends[i + 1])}
        good = [n for n in range(ends[-1]) if batches[ends.index(of[n])][0]]

        def take(at: int) -> None:
            if at < ends[-1] and at not in good:
                raise Unpackable(of[at], "")

        offset = first = data.draw(st.integers(0, ends[-1] - 1))
        read = []
        while offset < ends[-1]:
            try:
                take(offset)
                read.append(offset)
                offset += 1
            except Unpackable as error:
                offset = behind(error, offset, ends[-1], take)
        assert read == [n for n in good if n >= first]

    def test_a_large_one_takes_few_questions(self) -> None:
        asked = list[int]()

        def take(at: int) -> None:
            asked.append(at)
            if at < 100_000:
                raise Unpackable(0, "")

        assert behind(Unpackable(0, ""), 0, 1 << 40, take) == 100_000
        assert len(asked) < 40

    def test_a_broken_one_is_named_by_the_library_as_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed, _ = fed(monkeypatch, [(3, BROKEN)])
        with pytest.raises(Unpackable) as caught:
            feed.take(0, 5, 1 << 20)
        assert caught.value.first == 3
