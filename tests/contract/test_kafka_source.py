"""The Kafka source against a real broker: positions with gaps, faults of the broker, topics that change, errors."""

from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from kafka_server import ANSWER_WITHIN_S, PASSWORD, USER, KafkaServer
from patience import WALL_S, wait

import holdfast as hf
from holdfast.errors import Damaged, NotAdmitted, Unavailable
from holdfast.runtime.plan.ahead import Ahead, Read, inline
from holdfast.runtime.plan.source import Kept
from holdfast.runtime.rows.dead_letters import ERROR
from holdfast.runtime.sources.kafka import batches, feed
from holdfast.runtime.sources.kafka.reading import OpenKafka
from holdfast.runtime.sources.reading import split
from holdfast.storage.kafka import library, questions

pytestmark = pytest.mark.kafka


@pytest.fixture(params=["columns", "messages"], autouse=True)
def handed_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the client hands over: columns by functions of librdkafka, or, where these are not found, messages."""
    if request.param == "messages":
        monkeypatch.setattr(library, "found", lambda: None)
    else:
        assert library.found() is not None, "the tests need a client library that is as expected"
    return str(request.param)


NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])
ANY = 1 << 20


def number(n: int) -> bytes:
    return json.dumps({"n": n}).encode()


def numbers(first: int, end: int) -> list[bytes]:
    return [number(n) for n in range(first, end)]


@contextmanager
def opened(servers: str, topic: str, **more: Any) -> Iterator[OpenKafka]:
    source: Any = hf.Kafka(servers, topic, hf.JSON(NUMBERS), **more).source().open()
    try:
        yield source
    finally:
        source.close()


def read_all(source: OpenKafka, offset: int = 0, partition: int = 0) -> tuple[dict[int, Any], int]:
    """Return the records from an offset on, by offset, and the position behind them."""
    found: dict[int, Any] = {}
    while True:
        batch, following = source.read(partition, offset, ANY)
        if batch is not None:
            rows, given = split(batch)
            offsets = range(offset, following) if given is None else given.tolist()
            found.update(zip(offsets, (row["n"] for row in rows.to_pylist()), strict=True))
        if following == offset:
            return found, following
        offset = following


class _Thread:
    """A lane with a thread of its own, as in a worker; answers wait until they are taken."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], object], Callable[[object], None]] | None] = queue.Queue()
        self._answers: queue.Queue[tuple[Callable[[object], None], object]] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._jobs.put((work, done))

    def take(self) -> None:
        while not self._answers.empty():
            done, answer = self._answers.get()
            done(answer)

    def end(self) -> None:
        self._jobs.put(None)
        self._thread.join(WALL_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            answer: object
            try:
                answer = work()
            except (Damaged, Unavailable, hf.ConfigError) as error:
                answer = error
            self._answers.put((done, answer))


class TestPositions:
    def test_pass_markers_and_aborted_records_also_at_the_end(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        with kafka.transaction() as producer:
            for value in numbers(0, 3):
                producer.produce(topic, value, partition=0)
        with kafka.transaction(commit=False) as producer:
            for value in numbers(100, 103):
                producer.produce(topic, value, partition=0)
        with kafka.transaction() as producer:
            for value in numbers(3, 5):
                producer.produce(topic, value, partition=0)
        with kafka.transaction(commit=False) as producer:
            producer.produce(topic, number(200), partition=0)
        with opened(kafka.servers, topic) as source:
            assert read_all(source) == ({0: 0, 1: 1, 2: 2, 8: 3, 9: 4}, 13)
            assert source.end_offsets() == {0: 13}
            for offset, expected in ((3, {8: 3, 9: 4}), (5, {8: 3, 9: 4}), (9, {9: 4}), (10, {}), (12, {}), (13, {})):
                assert read_all(source, offset) == (expected, 13)

    def test_stop_before_a_transaction_that_is_open(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 2))
        with opened(kafka.servers, topic) as source:
            with kafka.transaction() as producer:
                producer.produce(topic, number(2), partition=0)
                producer.flush(30)
                kafka.produce(topic, [number(3)])
                assert kafka.ends(topic, "read_uncommitted") == {0: 4}
                assert source.end_offsets() == {0: 2}
                assert read_all(source) == ({0: 0, 1: 1}, 2)
            wait(lambda: source.end_offsets() == {0: 5}, "the end of the transaction")
            wait(lambda: read_all(source, 2) == ({2: 2, 3: 3}, 5), "its records")

    def test_positions_of_single_records_survive_a_compaction(self, kafka: KafkaServer) -> None:
        settings: dict[str, Any] = {
            "cleanup_policy": "compact",
            "segment_ms": "100",
            "min_cleanable_dirty_ratio": "0.01",
        }
        topic = kafka.topic(**settings)
        for n in range(5):
            kafka.produce(topic, [number(n)], key=b"same")

        def is_compacted() -> bool:
            kafka.produce(topic, [number(9)], key=b"other")
            return [each.offset() for each in kafka.records(topic)][:1] == [4]

        wait(is_compacted, "the cleaner")
        with opened(kafka.servers, topic) as source:
            found, _ = read_all(source)
            assert [offset for offset, n in found.items() if n < 9] == [4] and found[4] == 4
            assert source.retention_start(0) == 0
            assert source.whole_from(0) == source.end_offsets()[0], "nobody knows what else was removed"

    def test_are_the_same_however_small_the_batches_are(self, kafka: KafkaServer) -> None:
        topic = kafka.topic(2)
        for partition in (0, 1):
            kafka.produce(topic, numbers(0, 50), partition)
        with opened(kafka.servers, topic) as source:
            offsets = {0: 0, 1: 0}
            for partition in itertools.islice(itertools.cycle((0, 1)), 100):
                batch, offsets[partition] = source.read(partition, offsets[partition], 1)
                assert batch is not None and batch.num_rows == 1
            assert offsets == {0: 50, 1: 50}


class TestRecords:
    def test_undecodable_records_keep_their_offset_and_bytes(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, [number(0), b"nonsense", None, b'{"n": "7"}', number(4)])
        with opened(kafka.servers, topic) as source:
            batch, following = source.read(0, 0, ANY)
        assert batch is not None and following == 5
        assert batch.column("n").to_pylist() == [0, None, None, None, 4]
        assert batch.column("_raw").to_pylist() == [None, b"nonsense", b"", b'{"n": "7"}', None]
        assert "tombstone" in batch.column(ERROR)[2].as_py()

    def test_have_key_time_place_and_headers_if_they_are_wanted(self, kafka: KafkaServer) -> None:
        topic = kafka.topic(2)
        kafka.produce(
            topic, [number(7), b"?"], 1, b"key", headers=[("trace", b"\x01"), ("trace", None)], timestamp=1_500
        )
        kafka.produce(topic, [None], 0)
        with opened(kafka.servers, topic, meta=True) as source:
            batch, _ = source.read(1, 0, ANY)
        assert batch is not None
        assert batch.slice(0, 1).select(batch.schema.names[:6]).to_pylist() == [
            {
                "n": 7,
                "kafka_key": b"key",
                "kafka_timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
                "kafka_partition": 1,
                "kafka_offset": 0,
                "kafka_headers": [{"name": "trace", "value": b"\x01"}, {"name": "trace", "value": None}],
            }
        ]
        raw = hf.Kafka(kafka.servers, topic, hf.Raw(), meta=True).source().open()
        batch, _ = raw.read(0, 0, ANY)
        raw.close()
        assert batch is not None and batch.column("value").to_pylist() == [None]
        assert batch.column("kafka_headers").to_pylist() == [[]]


class TestTopicThatChanges:
    def test_records_lost_to_retention_are_never_skipped(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 10))
        with opened(kafka.servers, topic) as source:
            assert len(read_all(source)[0]) == 10
            kafka.delete_records(topic, 0, 6)
            assert source.retention_start(0) == 6
            lost = r"partition 0, offsets 2 to 5 \(4\) were removed before they were read; .* begins at offset 6"
            with pytest.raises(Damaged, match=lost) as caught:
                source.read(0, 2, ANY)
            assert "no record was skipped" in caught.value.not_done and "retention.ms" in caught.value.next_step
            assert 'on_lost="earliest"' in caught.value.next_step
            with pytest.raises(Damaged, match=lost):
                source.reader(0, 2, inline()).poll(ANY)
            assert read_all(source, 6)[0] == {n: n for n in range(6, 10)}

    def test_lost_records_are_reported_by_a_reader_that_is_told_to_continue(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 10))
        kafka.delete_records(topic, 0, 6)
        with opened(kafka.servers, topic, on_lost="earliest") as source:
            reader = source.reader(0, 2, inline())
            assert reader.poll(ANY) == Read(None, 6, lost=True)
            read = reader.poll(ANY)
            assert read is not None and read.batch is not None and not read.lost
            assert (read.batch.column("n").to_pylist(), read.following) == ([6, 7, 8, 9], 10)
            assert reader.poll(ANY) == Read(None, 10)
            with pytest.raises(Damaged, match="offsets 2 to 5"):
                source.read(0, 2, ANY)

    def test_a_topic_that_lost_all_its_records_is_continued_at_its_end(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 10))
        kafka.delete_records(topic, 0, 10)
        with opened(kafka.servers, topic, on_lost="earliest") as source:
            reader = source.reader(0, 2, inline())
            assert reader.poll(ANY) == Read(None, 10, lost=True)
            assert reader.poll(ANY) == Read(None, 10)

    def test_no_policy_continues_in_a_topic_that_has_less_than_was_read_or_is_another_one(
        self, kafka: KafkaServer
    ) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 2))
        with opened(kafka.servers, topic, on_lost="earliest") as source:
            with pytest.raises(Damaged, match=r"offsets 2 to 4 \(3\)"):
                source.reader(0, 5, inline()).poll(ANY)
            reader = source.reader(0, 2, inline())
            assert reader.poll(ANY) == Read(None, 2)
            kafka.delete(topic)
            kafka.topic(name=topic)
            kafka.produce(topic, numbers(0, 9))
            kafka.delete_records(topic, 0, 5)
            with pytest.raises(Damaged, match="was recreated"):
                wait(lambda: _lost(reader), "the next question about the topic")

    def test_a_position_behind_the_end_is_damage(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 2))
        with opened(kafka.servers, topic) as source, pytest.raises(Damaged, match="offset 5, but ends at 2"):
            source.read(0, 5, ANY)

    def test_a_recreated_topic_is_another_topic(self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.sources.kafka.reading.MISSING_FOR_S", 0.0)
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 3))
        with opened(kafka.servers, topic) as source:
            read_all(source)
            identity = source.identity(0, 3)
            assert source.changed(identity) is None
            kafka.delete(topic)
            assert "no longer exists" in str(source.changed(identity))
            kafka.topic(name=topic)
            kafka.produce(topic, numbers(0, 9))
            wait(lambda: "was recreated" in str(source.changed(identity)), "the id of the new topic")
            with pytest.raises(Damaged, match="was recreated"):
                source.partitions()
            with pytest.raises(Damaged, match="was recreated"):
                wait(lambda: source.read(0, 3, ANY) is None, "the next question about the topic")

    def test_a_partition_that_is_added_is_read_by_connections_that_are_open(self, kafka: KafkaServer) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 2))
        with opened(kafka.servers, topic) as driver, opened(kafka.servers, topic) as worker:
            assert read_all(worker)[0] == {0: 0, 1: 1}
            kafka.widen(topic, 3)
            kafka.produce(topic, numbers(5, 7), 2)
            assert driver.partitions() == [0, 1, 2]
            assert read_all(worker, partition=2)[0] == {0: 5, 1: 6}
            assert read_all(worker, 2)[0] == {}


def _lost(reader: Any) -> bool:
    """Poll once; a broker that recreates the topic may not answer."""
    try:
        read = reader.poll(ANY)
    except Unavailable:
        return False
    assert read.batch is None and not read.lost, "nothing of the new topic is read, nor skipped"
    return False


class TestKept:
    def ages(self, kafka: KafkaServer, *minutes: int, **settings: str) -> str:
        """Create a topic with records of these ages."""
        topic, now_ms = kafka.topic(1, None, **settings), round(time.time() * 1000)
        for n, each in enumerate(minutes):
            kafka.produce(topic, [number(n)], timestamp=now_ms - each * 60_000)
        return topic

    def test_says_what_is_removed_soon_for_its_age(self, kafka: KafkaServer) -> None:
        topic = self.ages(kafka, 50, 50, 50, 10, 0, retention_ms="3600000")
        with opened(kafka.servers, topic) as source:
            assert source.kept(60) == {0: Kept(0, 5, 0)}
            assert source.kept(30 * 60) == {0: Kept(0, 5, 3)}
            assert source.kept(55 * 60) == {0: Kept(0, 5, 4)}
            assert source.kept(2 * 3600) == {0: Kept(0, 5, 5)}

    def test_knows_no_age_where_nothing_is_removed_for_it(self, kafka: KafkaServer) -> None:
        for settings in ({"retention_ms": "-1"}, {"cleanup_policy": "compact", "retention_ms": "1000"}):
            topic = kafka.topic(1, None, **settings)
            kafka.produce(topic, numbers(0, 2), key=b"k", timestamp=1_000)
            with opened(kafka.servers, topic) as source:
                assert source.kept(3600) == {0: Kept(0, 2)}

    def test_is_full_once_something_was_removed_of_a_topic_with_a_size(self, kafka: KafkaServer) -> None:
        topic = kafka.topic(2, retention_ms="-1", retention_bytes="1000000")
        kafka.produce(topic, numbers(0, 5))
        kafka.delete_records(topic, 0, 2)
        with opened(kafka.servers, topic) as source:
            assert source.kept(60) == {0: Kept(2, 5, None, True), 1: Kept(0, 0)}


class TestBrokerThatIsAway:
    def test_is_waited_for_and_reading_continues_where_it_was(
        self, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic, lane, got = kafka.topic(2), _Thread(), list[int]()
        for partition in (0, 1):
            kafka.produce(topic, numbers(0, 5), partition)
        with opened(kafka.servers, topic) as source, caplog.at_level(logging.WARNING, "holdfast.kafka"):
            readers = [source.reader(partition, 0, Ahead(lane)) for partition in (0, 1)]
            failures = itertools.count()

            def poll() -> int:
                for reader in readers:
                    lane.take()
                    try:
                        read = reader.poll(ANY)
                    except Unavailable:
                        next(failures)
                        read = None
                    if read is not None and read.batch is not None:
                        got.extend(row["n"] for row in split(read.batch)[0].to_pylist())
                return len(got)

            wait(lambda: poll() == 10, "the first records")
            kafka.kill()
            try:
                wait(lambda: poll() == 10 and "reading waits" in caplog.text, "a warning")
            finally:
                kafka.start()
            kafka.produce(topic, numbers(5, 8), 1)
            wait(lambda: poll() == 13 and "answers again" in caplog.text, "the records behind the outage")
            for reader in readers:
                reader.close()
            lane.end()
        assert sorted(got) == sorted([*range(5), *range(8)])
        assert next(failures) > 0
        assert caplog.text.count("reading waits") == 1, "one warning per outage"

    def test_does_not_look_like_a_topic_without_records_and_holds_up_no_end_of_a_generation(
        self, kafka: KafkaServer
    ) -> None:
        topic, lane = kafka.topic(), _Thread()
        kafka.produce(topic, numbers(0, 2))
        with opened(kafka.servers, topic) as source:
            assert read_all(source)[1] == 2
            kafka.kill()
            try:
                with pytest.raises(Unavailable):
                    wait(lambda: source.read(0, 2, ANY)[1] != 2, "an error")
                with pytest.raises(Unavailable):
                    source.end_offsets()
                reader = source.reader(0, 2, Ahead(lane))
                assert reader.poll(ANY) is None
                reader.close()
                source.close()
            finally:
                kafka.start()
            lane.end()
            assert wait(lambda: _answers(source), "the broker") == {0: 2}
            assert read_all(source)[0] == {0: 0, 1: 1}, "a source that was closed is opened by its next reader"


def _answers(source: OpenKafka) -> dict[int, int] | None:
    try:
        return source.end_offsets()
    except Unavailable:
        return None


GUARDED: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}


class TestErrors:
    def check(self, servers: str, topic: str, **options: Any) -> hf.HoldfastError:
        with pytest.raises(hf.HoldfastError) as caught:
            hf.Kafka(servers, topic, hf.JSON(NUMBERS), options=options).source().check()
        assert PASSWORD not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
        return caught.value

    def test_the_error_for_a_missing_topic_shows_how_to_create_it(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(questions, "MISSING_FOR_S", 0.0)
        error = self.check(kafka.servers, "no-such-topic")
        assert isinstance(error, hf.ConfigError) and "'no-such-topic'" in error.what and "--create" in error.next_step

    def test_the_error_for_unreachable_servers_names_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(questions, "FIRST_ANSWER_WITHIN_S", 1.0)
        error = self.check("127.0.0.1:1", "bids")
        assert isinstance(error, Unavailable) and "127.0.0.1:1" in error.what and "refused" in error.what

    def test_the_error_for_an_unknown_option_names_the_option(self, kafka: KafkaServer) -> None:
        error = self.check(kafka.servers, "bids", **{"fetch.min.bites": 1})
        assert isinstance(error, hf.ConfigError) and "fetch.min.bites" in error.what

    def test_credential_errors_never_show_the_password(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = kafka.topic()
        monkeypatch.setenv("KAFKA_PASSWORD", f"{PASSWORD}-wrong")
        secret = {"sasl.password": hf.secret("env:KAFKA_PASSWORD")}
        error = self.check(kafka.guarded, topic, **GUARDED, **secret)
        assert isinstance(error, hf.ConfigError) and "refused the credentials" in error.what

    def test_the_error_for_missing_rights_names_the_topic(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = kafka.topic()
        kafka.produce(topic, numbers(0, 2))
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        options = {**GUARDED, "sasl.password": hf.secret("env:KAFKA_PASSWORD")}
        error = self.check(kafka.guarded, topic, **options)
        assert isinstance(error, hf.ConfigError) and "does not permit this" in error.what and topic in error.next_step
        kafka.allow(topic, "DESCRIBE")
        error = wait(lambda: self._other(lambda: self.check(kafka.guarded, topic, **options)), "the right to see it")
        assert isinstance(error, hf.ConfigError) and "not read it" in error.what
        kafka.allow(topic, "READ")
        source = hf.Kafka(kafka.guarded, topic, hf.JSON(NUMBERS), options=options).source()
        wait(lambda: self._checked(source), "the right to read it")
        reading: Any = source.open()
        assert read_all(reading)[0] == {0: 0, 1: 1}
        assert reading.whole_from(0) == 2, "without the right to see its settings, the topic may be compacted"
        assert reading.kept(3600) == {0: Kept(0, 2)}, "nor is it known how long it keeps records"
        reading.close()

    def _other(self, check: Callable[[], hf.HoldfastError]) -> hf.HoldfastError | None:
        error = check()
        return None if "does not permit this" in error.what else error

    def _checked(self, source: Any) -> bool:
        try:
            source.check()
        except hf.ConfigError:
            return False
        return True


class TestReaders:
    def test_readers_of_many_partitions_bound_what_they_fetch(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, handed_over: str
    ) -> None:
        bounds = batches if handed_over == "columns" else feed
        monkeypatch.setattr(bounds, "QUEUED_BYTES_MAX", 0)
        monkeypatch.setattr(bounds, "QUEUE_BYTES_MIN", 20_000)
        monkeypatch.setattr(feed, "MESSAGES_MAX", 50)
        topic = kafka.topic(3)
        for partition in range(3):
            kafka.produce(topic, numbers(0, 1_000), partition)
        with opened(kafka.servers, topic) as source:
            readers = [source.reader(partition, 0, inline()) for partition in range(3)]
            first: list[Read] = []
            for reader in readers:  # all are assigned, then only one is read
                read = reader.poll(1)
                assert read is not None
                first.append(read)
            assert _drained(readers[0]) == list(range(1, 1_000))
            if handed_over == "messages":
                assert isinstance(source._feed, feed.MessageFeed)
                queues = source._feed._queues
                assert all(queues[partition].size <= 20_000 + 50 * 220 for partition in (1, 2))
                assert any(queues[partition].paused for partition in (1, 2))
            else:  # the library keeps the rest, in the bounds that it was given
                assert isinstance(source._feed, batches.BatchFeed)
                assert source._feed._bounds()["queued.max.messages.kbytes"] == 20_000 >> 10
                kept = (each.waiting for each in source._feed._partitions.values())
                assert all(sum(map(len, waiting)) <= batches.FIRST_MESSAGES for waiting in kept)
            assert [_drained(reader) for reader in readers[1:]] == [list(range(1, 1_000))] * 2


def _drained(reader: Any) -> list[int]:
    found = list[int]()
    while (read := reader.poll(ANY)) is not None and read.batch is not None:
        found += [row["n"] for row in split(read.batch)[0].to_pylist()]
    return found


class TestConsumerGroup:
    def test_shows_what_was_published_and_refuses_a_group_that_has_members(self, kafka: KafkaServer) -> None:
        from confluent_kafka import Consumer, TopicPartition

        topic = kafka.topic(2)
        for partition in range(2):
            kafka.produce(topic, numbers(0, 10), partition)
        source = hf.Kafka(kafka.servers, topic, hf.JSON(NUMBERS), group="billing").source()
        publisher = source.publishes
        assert publisher is not None
        settings = {"bootstrap.servers": kafka.servers, "group.id": "billing", "enable.auto.commit": False}
        consumer = Consumer(settings)
        try:
            publisher.publish({0: 3, 1: 10})
            publisher.publish({0: 4, 1: 10})
            asked = [TopicPartition(topic, partition) for partition in range(2)]
            assert [each.offset for each in consumer.committed(asked, timeout=ANSWER_WITHIN_S)] == [4, 10]
            consumer.subscribe([topic])
            wait(lambda: consumer.consume(1, 0.1), "a member of the group")
            with pytest.raises(hf.ConfigError, match="consumer group 'billing' has members"):
                publisher.publish({0: 5, 1: 10})
        finally:
            consumer.close()
        publisher.publish({0: 6, 1: 10})
        publisher.close()

    def test_cannot_be_used_without_the_right_to_it(self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        topic = kafka.topic()
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        kafka.allow(topic, "READ", "DESCRIBE")
        options = {**GUARDED, "sasl.password": hf.secret("env:KAFKA_PASSWORD")}
        publisher = hf.Kafka(kafka.guarded, topic, hf.Raw(), options=options, group="billing").source().publishes
        assert publisher is not None
        with pytest.raises(NotAdmitted, match="Group authorization failed"):
            publisher.publish({0: 1})
        publisher.close()

    def test_a_consumer_group_on_a_sink_or_without_a_name_is_refused_at_planning(self) -> None:
        with pytest.raises(hf.ConfigError, match="a sink has no offsets"):
            hf.Kafka("localhost:1", "t", group="billing").sink()
        with pytest.raises(hf.ConfigError, match="group is empty"):
            hf.Kafka("localhost:1", "t", hf.Raw(), group=" ")
