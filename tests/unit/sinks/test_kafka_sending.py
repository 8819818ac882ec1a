"""Records that go to Kafka by the batch, and one by one: what arrives, and what is said of what does not.

The cluster is simulated by the client library.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from kafka_mock import PRODUCE, MockKafka, simulated
from kafka_ways import BY_BATCH, WAYS, take
from patience import Patience, wait

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.sinks.contract.immediate import ANYWHERE
from holdfast.sinks.kafka import by_batch, messages, plain
from holdfast.sinks.kafka.by_batch import ByBatch
from holdfast.sinks.kafka.client import ConfluentProducer
from holdfast.sinks.kafka.messages import MessageArray, messages_of
from holdfast.sinks.kafka.one_by_one import OneByOne
from holdfast.sinks.kafka.plain import PlainProducer
from holdfast.sinks.kafka.repeating import GaveUp, RepeatingTarget
from holdfast.sinks.kafka.target import ProducerFenced, Records
from holdfast.storage.kafka import library
from holdfast.storage.kafka.handles import REPORTS, takes_tokens
from holdfast.storage.kafka.library import Message
from holdfast.storage.kafka.place import place_of

Parts = list[bytes | None]
PARTS = st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=40)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    with simulated() as found:
        yield found


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records are given to the library."""
    take(request.param, monkeypatch)
    return str(request.param)


def numbered(first: int, end: int, partition: int | None = 0) -> Records:
    return Records([b"k%d" % (n % 7) for n in range(first, end)], [b"%d" % n for n in range(first, end)], partition)


def values(cluster: MockKafka, topic: str, count: int) -> list[int]:
    return [int(value or b"") for _, _, value in cluster.records(topic, count)]  # and no more than these


class TestMessages:
    @given(PARTS, st.integers(0, 5), st.integers(0, 50))
    def test_point_to_each_key_and_value(self, parts: Parts, first: int, count: int) -> None:
        """Also those of a slice, and whichever kind of column it is."""
        whole = pa.array(parts, pa.binary()).slice(first, count)
        for kind in (pa.binary(), pa.large_binary()):
            column = pa.array(parts, kind).slice(first, count)
            found = messages_of(Records(column, whole.to_pylist()))
            assert back(found) == [(each, each) for each in whole.to_pylist()]
        assert back(messages_of(Records(None, whole))) == [(None, each) for each in whole.to_pylist()]

    def test_have_their_size(self) -> None:
        found = messages_of(Records([b"ab", None, b""], [b"xyz", b"", None]))
        assert (found.sizes(0, 3).tolist(), found.sizes(1, 2).tolist()) == ([5, 0, 0], [0])


def back(found: MessageArray) -> list[tuple[bytes | None, bytes | None]]:
    """Read messages as the library does."""
    each = [Message.from_address(found.address(n)) for n in range(len(found))]
    return [(by_batch._part(m.key, m.key_len), by_batch._part(m.payload, m.len)) for m in each]


class TestLibrary:
    def test_the_bundled_client_library_takes_batches(self) -> None:
        assert by_batch.found() is not None

    def test_with_another_layout_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = library.found()
        assert found is not None and by_batch.is_laid_out(found)
        names = list(messages._FORMATS)
        for one, other in (("key", "payload"), ("len", "key_len"), ("err", "key_len")):
            places = {name: getattr(Message, name).offset for name in names}
            places[one], places[other] = places[other], places[one]
            layout = np.dtype(
                {
                    "names": names,
                    "formats": list(messages._FORMATS.values()),
                    "offsets": list(places.values()),
                    "itemsize": ctypes.sizeof(Message),
                }
            )
            monkeypatch.setattr(messages, "_LAYOUT", layout)
            assert not by_batch.is_laid_out(found), f"{one} is where {other} should be"

    def test_without_a_function_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(library._FUNCTIONS, "produce_batch_of_another_version", (None,))
        assert library.found.__wrapped__() is None

    def test_a_library_of_another_version_takes_no_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "MAJOR", 3)
        assert library.found.__wrapped__() is None

    def test_gets_records_one_by_one_if_it_takes_no_batch(self, path: str, cluster: MockKafka) -> None:
        with closing(PlainProducer(place_of(cluster.servers, cluster.topic(), None))) as producer:
            assert type(producer._sender) is (ByBatch if path == "by batch" else OneByOne)

    def test_gets_records_one_by_one_if_it_logs_in_by_tokens(self) -> None:
        place = place_of("b.example:9092", "t", {"sasl.mechanism": "OAUTHBEARER"})
        assert takes_tokens(place) and not takes_tokens(place_of("b.example:9092", "t", {"sasl.mechanism": "PLAIN"}))


class TestWrites:
    @pytest.fixture
    def closed(self) -> list[PlainProducer]:
        """Those that a test closes itself."""
        return []

    @pytest.fixture
    def open(self, path: str, cluster: MockKafka, closed: list[PlainProducer]) -> Iterator[Callable[..., Any]]:
        made = list[PlainProducer]()

        def opened(topic: str, **options: Any) -> PlainProducer:
            named = {name.replace("_", "."): value for name, value in options.items()}
            made.append(PlainProducer(place_of(cluster.servers, topic, named)))
            made[-1].find_topic()
            return made[-1]

        yield opened
        cluster.serve(PRODUCE)
        cluster.delay(0)
        for each in made:
            if each not in closed:
                each.close()

    def test_are_in_the_topic_when_they_are_complete(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        topic = cluster.topic()
        producer = open(topic)
        producer.begin([numbered(0, 20_000), numbered(20_000, 20_003)])
        producer.complete()
        producer.begin([numbered(20_003, 20_004)])
        producer.complete()
        assert values(cluster, topic, 20_004) == list(range(20_004))

    def test_have_keys_values_and_partitions(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        topic = cluster.topic(3)
        producer = open(topic)
        producer.begin(
            [
                Records([b"a", None, b""], pa.array([b"x", b"", None], pa.large_binary()), 2),
                Records(None, [b"y"], 1),
                Records([b"21"], [None]),
            ]
        )
        producer.complete()
        murmur = (-973932308 & 0x7FFFFFFF) % 3
        expected = [(2, b"a", b"x"), (2, None, b""), (2, b"", None), (1, None, b"y"), (murmur, b"21", None)]
        assert cluster.records(topic, 5) == sorted(expected, key=lambda each: each[0])

    def test_outlive_the_columns_that_they_were_made_of(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        topic = cluster.topic()
        producer = open(topic)
        cluster.delay(0.2)
        producer.begin([Records(None, pa.array([b"%d" % n for n in range(5_000)], pa.large_binary()), 0)])
        producer._feed()
        gc.collect()
        filled = [np.full(1 << 20, 255, np.uint8) for _ in range(16)]
        producer.complete()
        assert len(filled) == 16 and values(cluster, topic, 5_000) == list(range(5_000))

    def test_wait_for_room_in_a_full_queue(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        topic = cluster.topic()
        producer = open(topic, queue_buffering_max_messages=100)
        producer.begin([numbered(0, 1_234)])
        producer.complete()
        assert values(cluster, topic, 1_234) == list(range(1_234))

    def test_end_with_the_record_that_is_too_large(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        """None of those that follow is sent: it would be before the record when all of them are sent again."""
        topic = cluster.topic()
        producer = open(topic, message_max_bytes=2_000)
        parts = [b"%d" % n for n in range(10)]
        parts[4] = b"4" * 3_000
        producer.begin([Records(None, parts, 0), numbered(10, 20)])
        with pytest.raises(GaveUp) as caught:
            producer.complete()
        assert isinstance(caught.value.error, ConfigError) and "too large" in str(caught.value.error)
        found = [value for _, _, value in cluster.records(topic, 0)]
        assert found == parts[: len(found)] and len(found) <= 4

    @pytest.mark.parametrize(
        ("code", "kind", "what"),
        [
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAdmitted, "does not permit"),
            (KafkaError.INVALID_RECORD, ConfigError, "refuses a record"),
            (KafkaError.RECORD_LIST_TOO_LARGE, ConfigError, "too large"),
        ],
    )
    def test_end_with_what_a_broker_says_of_a_record(
        self, open: Callable[..., Any], cluster: MockKafka, code: int, kind: type[HoldfastError], what: str
    ) -> None:
        producer = open(cluster.topic())
        producer.begin([numbered(0, 100)])
        producer.complete()
        cluster.refuse(PRODUCE, *[code] * 20)
        producer.begin([numbered(100, 200)])
        with pytest.raises(GaveUp) as caught:
            producer.complete()
        assert isinstance(caught.value.error, kind) and what in str(caught.value.error)

    def test_go_on_after_what_passes(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        topic = cluster.topic()
        producer = open(topic)
        cluster.refuse(PRODUCE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT)
        producer.begin([numbered(0, 500)])
        producer.complete()
        assert values(cluster, topic, 500) == list(range(500))

    def test_are_complete_when_all_that_are_under_way_are(
        self, open: Callable[..., Any], cluster: MockKafka, path: str
    ) -> None:
        topic = cluster.topic()
        producer = open(topic)
        cluster.delay(0.2)
        assert producer.ahead_max == (4 if path == "by batch" else 1)
        for n in range(producer.ahead_max):
            assert n == 0 or producer.advance(0.02) == 0
            producer.begin([numbered(100 * n, 100 * (n + 1))])
        assert producer.advance(5.0) == producer.ahead_max
        cluster.delay(0)
        assert values(cluster, topic, 100 * producer.ahead_max) == list(range(100 * producer.ahead_max))

    def test_end_a_wait_that_is_rung(self, open: Callable[..., Any], cluster: MockKafka, path: str) -> None:
        producer = open(cluster.topic())
        producer.begin([numbered(0, 1)])
        producer.complete()
        cluster.delay(5.0)
        producer.begin([numbered(1, 2)])
        began = time.monotonic()
        Timer(0.1, producer.ring).start()
        assert producer.advance(30.0) == 0 or path == "one by one"
        if path == "by batch":
            assert time.monotonic() - began < 4.5
        producer.ring()
        began = time.monotonic()
        assert producer.advance(30.0) == 0 or path == "one by one"
        if path == "by batch":
            assert time.monotonic() - began < 4.0, "it was rung before the wait"
        cluster.delay(0)
        producer.complete()
        producer.ring()

    def test_are_kept_while_brokers_do_not_answer(
        self, open: Callable[..., Any], cluster: MockKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plain, "WAIT_S", 0.2)
        monkeypatch.setattr(plain, "FLUSH_S", 0.05)
        topic = cluster.topic()
        producer = open(topic)
        cluster.delay(0.5)
        producer.begin([numbered(0, 50)])
        with pytest.raises(Unavailable, match="no record was confirmed"):
            producer.complete()
        while producer._writes:
            with suppress(Unavailable):
                producer.complete()
        cluster.delay(0)
        assert values(cluster, topic, 50) == list(range(50))

    @pytest.mark.parametrize("path", [BY_BATCH], indirect=True)  # the other way keeps its handle to itself
    def test_end_with_the_failure_of_the_producer(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        producer = open(cluster.topic())
        cluster.delay(0.5)
        producer.begin([numbered(0, 50)])
        producer._feed()
        cluster.break_for_good(producer._sender._handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(GaveUp) as caught:
            producer.complete()
        assert "a test" in str(caught.value.error)

    def test_on_the_way_are_awaited_when_the_producer_is_closed(
        self,
        open: Callable[..., Any],
        cluster: MockKafka,
        closed: list[PlainProducer],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        topic = cluster.topic()
        producer = open(topic)
        producer.begin([numbered(0, 1)])
        producer.complete()
        cluster.delay(0.3)
        producer.begin([numbered(1, 200)])
        monkeypatch.setattr(plain, "WAIT_S", 0.0)
        monkeypatch.setattr(plain, "FLUSH_S", 0.05)
        with pytest.raises(Unavailable):
            producer.complete()
        producer.close()
        closed.append(producer)
        producer.ring()
        cluster.delay(0)
        assert values(cluster, topic, 200) == list(range(200))

    def test_do_not_hold_a_process_that_was_forked(self, open: Callable[..., Any], cluster: MockKafka) -> None:
        producer = open(cluster.topic())
        if (child := os.fork()) == 0:
            try:
                del producer._sender  # as the collector does
                gc.collect()
            finally:
                os._exit(0)
        try:
            wait(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), "the child, which waits for threads that it lacks")
        except AssertionError:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise
        producer.begin([numbered(0, 10)])
        producer.complete()


class TestFaults:
    """A target that writes ahead, while a broker refuses records, answers late, or is away."""

    REFUSALS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE)
    PASSING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS)

    @pytest.mark.parametrize("seed", range(3))
    def test_lose_no_row_and_each_key_ends_with_its_last(
        self, seed: int, path: str, cluster: MockKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plain, "WAIT_S", 0.3)
        monkeypatch.setattr(plain, "CLOSE_WAIT_S", 0.5)
        rng, topic, confirmed, sent, failed, faults = random.Random(seed), cluster.topic(3), 0, 0, 0, 0
        place = place_of(cluster.servers, topic, {"queue.buffering.max.messages": 500})

        def rows(batch: pa.RecordBatch) -> Records:
            numbers = batch.column(0).to_pylist()
            return Records([b"k%d" % (n % 7) for n in numbers], [b"%d" % n for n in numbers])

        with closing(RepeatingTarget(lambda: PlainProducer(place), rows)) as target:
            target.fence({})
            target.write(ANYWHERE, 0, [pa.record_batch([pa.array([], pa.int64())], names=["n"])])
            under_way, patience, timers = deque[int](), Patience(None), list[Timer]()
            while confirmed < 6_000:
                assert not patience.over
                if sent < 6_000 and target.room:
                    count = min(rng.choice((1, 10, 200, 900)), 6_000 - sent)
                    target.begin([pa.record_batch([pa.array(range(sent, sent + count))], names=["n"])])
                    under_way.append(count)
                    sent += count
                faults += 1
                match rng.randrange(4) if faults < 10 else None:
                    case 0:
                        cluster.refuse(PRODUCE, 0, rng.choice(self.REFUSALS))
                    case 1:
                        cluster.refuse(PRODUCE, *rng.choices(self.PASSING, k=3))
                    case 2:
                        cluster.delay(rng.choice((0.0, 0.01, 0.05)))
                    case 3:
                        cluster.away(True)
                        timers.append(Timer(0.1, cluster.away, (False,)))
                        timers[-1].start()
                try:
                    for _ in range(target.advance(rng.choice((0.0, 0.05, 0.5)))):
                        confirmed += under_way.popleft()
                except HoldfastError:
                    failed += 1
        for each in timers:
            each.join()
        cluster.delay(0)
        cluster.serve(PRODUCE)
        of_key: dict[bytes, list[int]] = {}
        for _, key, value in cluster.records(topic, 6_000):
            of_key.setdefault(key or b"", []).append(int(value or b""))
        for key, found in of_key.items():
            given = range(int(key[1:]), 6_000, 7)
            assert set(found) == set(given) and found[-1] == given[-1]
        assert failed, "nothing failed: this showed nothing"


class Events:
    """The library as far as a report is read from it.

    Args:
        codes: The errors of its records.
    """

    def __init__(self, *codes: int) -> None:
        self._messages = [Message(err=code) for code in codes]

    def event_type(self, event: int) -> int:
        return REPORTS

    def event_message_count(self, event: int) -> int:
        return len(self._messages)

    def event_message_array(self, event: int, array: int, room: int) -> int:
        given = (ctypes.c_int64 * room).from_address(array)
        given[:] = [ctypes.addressof(each) for each in self._messages]
        return room

    def err2str(self, code: int) -> bytes:
        return b"why"


class TestReports:
    def test_reports_of_records_that_fail_together_give_the_cause(self) -> None:
        """Of a batch with an invalid record, the others are reported as having been in a batch with it."""
        other, cause = KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD
        for codes in ((other, cause, other), (cause, other), (cause,)):
            heard = list[KafkaError]()
            producer = ByBatch.__new__(ByBatch)
            producer._library, producer._on_fault = Events(*codes), heard.append  # type: ignore[assignment]
            producer._take(1)
            assert [each.code() for each in heard] == [cause]


class TestTransactions:
    @pytest.fixture
    def open(self, path: str, cluster: MockKafka) -> Iterator[Callable[[str], ConfluentProducer]]:
        made = list[ConfluentProducer]()

        def opened(topic: str) -> ConfluentProducer:
            made.append(ConfluentProducer(place_of(cluster.servers, topic, None), f"id of {topic}"))
            made[-1].init()
            return made[-1]

        yield opened
        cluster.serve(PRODUCE)
        for each in made:
            each.destroy()

    def test_have_every_record(self, open: Callable[[str], ConfluentProducer], cluster: MockKafka) -> None:
        topic = cluster.topic()
        producer = open(topic)
        for first in (0, 20_000):
            producer.begin()
            producer.send(numbered(first, first + 15_000))
            producer.send(numbered(first + 15_000, first + 20_000))
            producer.flush()
            producer.commit()
        assert values(cluster, topic, 40_000) == list(range(40_000))
        assert not producer.disturbed

    @pytest.mark.parametrize(
        ("code", "raised"),
        [
            (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFenced),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAdmitted),
            (KafkaError.MSG_SIZE_TOO_LARGE, ConfigError),
        ],
    )
    def test_end_with_what_a_broker_says(
        self, open: Callable[[str], ConfluentProducer], cluster: MockKafka, code: int, raised: type[Exception]
    ) -> None:
        topic = cluster.topic()
        producer = open(topic)
        cluster.refuse(PRODUCE, *[code] * 20)
        producer.begin()
        with pytest.raises(raised):
            producer.send(numbered(0, 1_000))
            producer.flush()
        producer.abort()

    def test_can_be_aborted_with_records_in_the_queue(
        self, open: Callable[[str], ConfluentProducer], cluster: MockKafka
    ) -> None:
        topic = cluster.topic()
        producer = open(topic)
        producer.begin()
        producer.send(numbered(0, 9_000))
        began = time.monotonic()
        producer.abort()
        assert time.monotonic() - began < 4.0, "an abort waits for reports that no one takes"
