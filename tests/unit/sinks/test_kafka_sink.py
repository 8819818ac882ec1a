"""What only a Kafka topic has: its partitions, its readers, rights, settings, and brokers that stop and return.

The contracts of all targets run in tests/contract; the order of calls is in test_kafka_order.py.
"""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka_server import ANSWER_WITHIN_S, PASSWORD, USER, KafkaServer
from kafka_topics import KafkaTopic
from patience import wait

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, HoldfastError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered, Delivered, FaultPoint, Outcome
from holdfast.sinks.kafka.options import producer_settings, reader_settings
from holdfast.sinks.kafka.progress import progress_topic, tag_record
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.kafka.sink import KafkaSink, transactional_id
from holdfast.sinks.kafka.target import KafkaTarget
from holdfast.storage.kafka.place import KafkaPlace, Option, place_of
from holdfast.storage.kafka.questions import Questions

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("n", pa.int64())])
KEY = ("name",)
JAVA = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
"""Hashes that Kafka's own tests expect of its partitioner (UtilsTest.testMurmur2)."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    names, numbers = zip(*rows, strict=True)
    return pa.record_batch([pa.array(names, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)


def changes(*rows: tuple[str, int | None]) -> pa.RecordBatch:
    ops = [DELETE if n is None else PUT for _, n in rows]
    return batch(*rows).append_column(OP, pa.array(ops, pa.int8()))


@pytest.mark.kafka
class TestRecords:
    def test_a_key_goes_to_the_partition_to_which_java_sends_it(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka, KEY, partitions=5)
        topic.sink.prepare(SCHEMA, None)
        topic.sink.open(JOB, LEFT).deliver(tag(1), [batch(*((name, 1) for name in JAVA))])
        found = {each.key().decode(): each.partition() for each in kafka.records(topic.name)}
        assert found == {name: (hashed & 0x7FFFFFFF) % 5 for name, hashed in JAVA.items()}

    def test_records_of_a_key_are_in_the_order_of_the_stream(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka, KEY, partitions=3)
        topic.sink.prepare(SCHEMA, None)
        target = topic.sink.open(JOB, LEFT)
        for epoch in range(1, 4):
            rows = [(f"k{n % 7}", 100 * epoch + n) for n in range(50)]
            target.deliver(tag(epoch), [batch(*rows[:20]), batch(*rows[20:])])
        found: dict[bytes, list[int]] = {}
        for each in kafka.records(topic.name):
            found.setdefault(each.key(), []).append(json.loads(each.value())["n"])
        assert sum(map(len, found.values())) == 150 and all(numbers == sorted(numbers) for numbers in found.values())

    def test_a_delete_is_a_tombstone_in_a_compacted_topic(self, kafka: KafkaServer) -> None:
        name = f"{kafka.topic()}-compacted"
        sink = KafkaSink(KafkaPlace(kafka.servers, name), key=KEY)
        sink.prepare(SCHEMA, KEY)
        sink.open(JOB, LEFT).deliver(tag(1), [changes(("ann", 1), ("bea", 2)), changes(("ann", None))])
        assert [(each.key(), each.value()) for each in kafka.records(name)] == [
            (b"ann", b'{"name":"ann","n":1}'),
            (b"bea", b'{"name":"bea","n":2}'),
            (b"ann", None),
        ]
        kafka.delete(name)
        kafka.delete(progress_topic(name))

    def test_many_rows_are_one_transaction(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka, partitions=3)
        topic.sink.prepare(SCHEMA, None)
        rows = [(f"name {n}", n) for n in range(20_000)]
        assert topic.sink.open(JOB, LEFT).deliver(tag(1), [batch(*rows)]) == Delivered(20_000)
        assert sorted(topic.rows()) == sorted(rows)


@pytest.mark.kafka
class TestReaders:
    def test_a_reader_sees_nothing_of_an_open_transaction(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka)
        topic.sink.prepare(SCHEMA, None)
        seen: list[int] = []

        def look(point: FaultPoint) -> None:
            if point == "before_commit":
                seen.append(len(kafka.records(topic.name, "read_uncommitted")))
                seen.append(len(kafka.records(topic.name)))

        topic.sink.opened(JOB, LEFT, fault=look).deliver(tag(1), [batch(("ann", 1), ("bea", 2))])
        assert seen == [2, 0] and len(topic.rows()) == 2

    def test_another_jobs_open_transaction_hides_no_tag(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It keeps the last stable offset below the tag: a target that read up to there would deliver again."""
        topic, rows = KafkaTopic(kafka), [batch(("ann", 1))]
        topic.sink.prepare(SCHEMA, None)
        key, value = tag_record("another", LEFT, tag(1))
        with kafka.transaction("another") as producer:
            producer.produce(progress_topic(topic.name), value, key, 0)
            producer.flush()
            with monkeypatch.context() as patch:
                patch.setattr("holdfast.sinks.kafka.client.READ_WITHIN_S", 1.0)
                with pytest.raises(Unavailable, match="could be read up to 0 of 1 only"):
                    topic.sink.open(JOB, LEFT).deliver(tag(1), rows)
        assert topic.sink.open(JOB, LEFT).deliver(tag(1), rows) == Delivered(1)
        assert topic.sink.open(JOB, LEFT).deliver(tag(1), rows) == AlreadyDelivered(tag(1))

    def test_a_zombie_of_another_writer_cannot_commit_after_a_takeover(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka)
        topic.sink.prepare(SCHEMA, None)
        first, second = Claim("first", Generation(1)), Claim("second", Generation(2), {"first": tag(9)})

        def taken_over(point: FaultPoint) -> None:
            if point == "before_commit":
                topic.sink.open(JOB, LEFT, second).deliver(tag(1), [batch(("ann", 1))])

        with pytest.raises(hf.Fenced, match="not in the log of this job"):
            topic.sink.opened(JOB, RIGHT, first, taken_over).deliver(tag(1), [batch(("zombie", 0))])
        assert topic.rows() == [("ann", 1)]


@pytest.mark.kafka
class TestTopics:
    def test_missing_topics_are_created(self, kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
        name = f"{kafka.topic()}-new"
        sink = KafkaSink(KafkaPlace(kafka.servers, name))
        sink.prepare(SCHEMA, None)
        sink.prepare(SCHEMA, None)
        sink.open(JOB, LEFT).deliver(tag(1), [batch(("ann", 1))])
        assert len(kafka.records(name)) == 1 and not caplog.messages
        for each in (name, progress_topic(name)):
            kafka.delete(each)

    def test_a_doctor_looks_and_creates_nothing(self, kafka: KafkaServer) -> None:
        name = f"{kafka.topic()}-new"
        sink = KafkaSink(KafkaPlace(kafka.servers, name))
        assert sink.probe(SCHEMA, None) == "the first start creates the topic"
        with pytest.raises(ConfigError, match="does not exist"):
            Questions(sink.place).existing()
        risky = KafkaSink(KafkaPlace(kafka.servers, kafka.topic(unclean_leader_election_enable="true")))
        assert "has unclean.leader.election.enable=true" in risky.probe(SCHEMA, None)
        kafka.topic(2, progress_topic(risky.place.topic), cleanup_policy="compact")
        with pytest.raises(ConfigError, match="has 2 partitions"):
            risky.probe(SCHEMA, None)
        compacted = KafkaSink(KafkaPlace(kafka.servers, kafka.topic(cleanup_policy="compact")))
        with pytest.raises(ConfigError, match="takes no record without a key"):
            compacted.probe(SCHEMA, None)

    def test_a_compacted_topic_needs_a_key(self, kafka: KafkaServer) -> None:
        place = KafkaPlace(kafka.servers, kafka.topic(cleanup_policy="compact"))
        with pytest.raises(ConfigError, match="is compacted and takes no record without a key"):
            KafkaSink(place).prepare(SCHEMA, None)
        KafkaSink(place, key=KEY).prepare(SCHEMA, None)

    def test_a_topic_that_takes_less_than_a_record_may_have_is_refused(self, kafka: KafkaServer) -> None:
        name = kafka.topic(max_message_bytes="50000")
        with pytest.raises(ConfigError, match=r'give options=\{"message.max.bytes": 50000\}'):
            KafkaSink(KafkaPlace(kafka.servers, name)).prepare(SCHEMA, None)
        sink = KafkaSink(KafkaPlace(kafka.servers, name, (("message.max.bytes", 50_000),)))
        sink.prepare(SCHEMA, None)
        with pytest.raises(ConfigError, match="the limit is 50,000"):
            sink.accept(batch(("x" * 60_000, 1)))

    @pytest.mark.parametrize(
        ("partitions", "policy", "fault"),
        [
            (1, "delete", "has cleanup.policy=delete"),
            (2, "compact", "has 2 partitions"),
            (1, "compact,delete", "has cle"),
        ],
    )
    def test_a_progress_topic_that_would_forget_or_hide_tags_is_refused(
        self, kafka: KafkaServer, partitions: int, policy: str, fault: str
    ) -> None:
        name = kafka.topic()
        kafka.topic(partitions, progress_topic(name), cleanup_policy=policy)
        with pytest.raises(ConfigError, match=f"which holds the tags of deliveries, {fault}"):
            KafkaSink(KafkaPlace(kafka.servers, name)).prepare(SCHEMA, None)

    def test_a_topic_that_disappears_is_missing(self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.sinks.kafka.client.MISSING_FOR_S", 0.5)
        topic = KafkaTopic(kafka)
        topic.sink.prepare(SCHEMA, None)
        kafka.delete(topic.name)
        with pytest.raises(ConfigError, match="does not exist"):
            topic.sink.open(JOB, LEFT).delivered()

    def test_output_of_another_job_is_refused(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka)
        topic.sink.prepare(SCHEMA, None)
        topic.sink.check_owner(None, "out")
        topic.sink.open("another", LEFT).deliver(tag(3), [])
        topic.sink.check_owner("another", "out")
        topic.sink.check_owner(JOB, "else")
        for job in (None, JOB):
            with pytest.raises(
                ConfigError, match="holds output of a sink 'out' of another job, another, up to epoch 3"
            ):
                topic.sink.check_owner(job, "out")


@pytest.fixture
def guarded(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
    """A sink of a user who has no rights yet."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    options: dict[str, Option] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": hf.secret("env:KAFKA_PASSWORD"),
    }
    yield KafkaSink(place_of(kafka.guarded, KafkaTopic(kafka).name, options))


@pytest.mark.kafka
class TestRights:
    def test_each_missing_right_is_named(self, kafka: KafkaServer, guarded: KafkaSink) -> None:
        """One after the other, as an operator would find them."""
        name, progress = guarded.place.topic, progress_topic(guarded.place.topic)
        refused(guarded, "DESCRIBE")
        kafka.allow(name, "DESCRIBE")
        refused(guarded, f"grant the user WRITE on topic {name!r}")
        kafka.allow(name, "WRITE")
        kafka.topic(1, progress, cleanup_policy="compact")
        kafka.allow(progress, "DESCRIBE", "READ")
        refused(guarded, f"DESCRIBE_CONFIGS on topic {progress!r}")  # by default it would forget tags
        kafka.allow(progress, "DESCRIBE_CONFIGS")
        refused(guarded, f"grant the user WRITE on topic {progress!r}")
        kafka.allow(progress, "WRITE")
        guarded.prepare(SCHEMA, None)
        refused(guarded, "transactional ids with the prefix holdfast-")  # only a delivery can tell
        allow_transactions(kafka)
        assert guarded.open(JOB, LEFT).deliver(tag(1), [batch(("ann", 1))]) == Delivered(1)

    def test_a_doctor_names_those_that_a_start_would(self, kafka: KafkaServer, guarded: KafkaSink) -> None:
        name, progress = guarded.place.topic, progress_topic(guarded.place.topic)
        repeating = RepeatingKafka(guarded)
        unseen(guarded, "DESCRIBE")
        unseen(repeating, "DESCRIBE")
        kafka.allow(name, "DESCRIBE")
        kafka.topic(1, progress, cleanup_policy="compact")
        kafka.allow(progress, "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
        unseen(guarded, f"grant the user WRITE on topic {progress!r}")
        unseen(repeating, f"grant the user WRITE on topic {name!r}")
        kafka.allow(name, "WRITE")
        kafka.allow(progress, "WRITE")
        assert repeating.probe(SCHEMA, None) == guarded.probe(SCHEMA, None) == "the topic exists"

    def test_a_job_goes_on_without_a_right_to_any_group(self, kafka: KafkaServer, guarded: KafkaSink) -> None:
        """Tags are read without a group, and the brokers refuse the one that the client asks about by itself."""
        name = guarded.place.topic
        progress = progress_topic(name)
        kafka.topic(1, progress, cleanup_policy="compact")
        kafka.allow(name, "DESCRIBE", "WRITE")
        kafka.allow(progress, "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
        allow_transactions(kafka)
        guarded.prepare(SCHEMA, None)
        for epoch in (1, 2, 3):
            with closing(guarded.open(JOB, LEFT)) as target:
                assert target.delivered() == (tag(epoch - 1) if epoch > 1 else None)
                assert target.deliver(tag(epoch), [batch(("ann", epoch))]) == Delivered(1)

    def test_a_wrong_password_is_refused_and_not_shown(
        self, guarded: KafkaSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", "open sesame")
        with pytest.raises(NotAdmitted, match="credentials") as caught:
            guarded.prepare(SCHEMA, None)
        assert "open sesame" not in str(caught.value)


def allow_transactions(kafka: KafkaServer) -> None:
    """Let the user write in transactions of Holdfast."""
    who = (ResourceType.TRANSACTIONAL_ID, "holdfast-", ResourcePatternType.PREFIXED, f"User:{USER}", "*")
    rights = [AclBinding(*who, each, AclPermissionType.ALLOW) for each in (AclOperation.DESCRIBE, AclOperation.WRITE)]
    for future in kafka.admin.create_acls(rights).values():
        future.result(ANSWER_WITHIN_S)


def unseen(sink: KafkaSink | RepeatingKafka, remedy: str) -> None:
    with pytest.raises(NotAdmitted) as caught:
        sink.probe(SCHEMA, None)
    assert remedy in caught.value.next_step, str(caught.value)


def refused(sink: KafkaSink, remedy: str) -> None:
    with pytest.raises(NotAdmitted) as caught:  # so a job that runs waits
        sink.prepare(SCHEMA, None)
        sink.open(JOB, LEFT).deliver(tag(1), [batch(("ann", 1))])
    assert remedy in caught.value.next_step, str(caught.value)


@pytest.mark.kafka
class TestOutage:
    @pytest.mark.slow
    @pytest.mark.parametrize("point", ["before_begin", "after_tag", "before_commit"])
    def test_a_broker_that_is_killed_during_a_delivery_and_returns_has_every_row_once(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, point: FaultPoint
    ) -> None:
        topic, strikes = KafkaTopic(kafka), list[FaultPoint]()
        topic.sink.prepare(SCHEMA, None)

        def kill(reached: FaultPoint) -> None:
            if strikes == [reached]:
                strikes.clear()
                kafka.kill()

        target = topic.sink.opened(JOB, LEFT, fault=kill)
        target.deliver(tag(1), [batch(("ann", 1))])
        monkeypatch.setattr("holdfast.sinks.kafka.client.WAIT_S", 2.0)
        strikes.append(point)
        try:
            with pytest.raises(Unavailable):
                target.deliver(tag(2), [batch(("bea", 2))])
            with pytest.raises(Unavailable):
                target.delivered()
        finally:
            kafka.start()
        assert delivered_at_last(target) == Delivered(1)
        assert sorted(topic.rows()) == [("ann", 1), ("bea", 2)]


@pytest.mark.kafka
class TestReplacedTopic:
    """The topic is deleted and created again; the topic with the tags stays."""

    def test_while_the_job_is_stopped_is_found_at_its_start(self, kafka: KafkaServer) -> None:
        topic = KafkaTopic(kafka)
        topic.sink.prepare(SCHEMA, None)
        topic.sink.open(JOB, LEFT).deliver(tag(1), [batch(("ann", 1))])
        assert topic.sink.holding(JOB, "out").taken_back is None
        replace_topic(topic)
        topic.sink.prepare(SCHEMA, None)
        assert topic.sink.holding(JOB, "out").taken_back == "the topic was deleted and created again"
        with pytest.raises(Damaged, match="epoch 1 was delivered .* the topic was deleted and created again"):
            topic.sink.open(JOB, LEFT).deliver(tag(2), [batch(("bea", 2))], tag(1))
        assert topic.rows() == []

    def test_between_two_deliveries_of_a_session_is_found(self, kafka: KafkaServer) -> None:
        """Requests name a topic by its name, so that the brokers take rows for the new one: within a second or two."""
        topic, epochs = KafkaTopic(kafka), itertools.count(1)
        topic.sink.prepare(SCHEMA, None)
        target = topic.sink.open(JOB, LEFT)
        target.deliver(tag(next(epochs)), [batch(("ann", 1))])
        replace_topic(topic)
        topic.sink.prepare(SCHEMA, None)

        def deliver() -> None:
            epoch = next(epochs)
            with suppress(Unavailable):
                target.deliver(tag(epoch), [batch(("bea", epoch))])
            time.sleep(0.1)

        with pytest.raises(Damaged, match="the topic was deleted and created again"):
            for _ in range(200):
                deliver()


def replace_topic(topic: KafkaTopic) -> None:
    """Delete a topic and create it again, as its administrator does."""
    before = topic_id(topic)
    admin = AdminClient(topic.sink.place.settings())
    admin.delete_topics([topic.name])[topic.name].result()

    def is_another() -> bool:
        with suppress(KafkaException):
            admin.create_topics([NewTopic(topic.name, 2)])[topic.name].result()
        return topic_id(topic) not in (before, None)

    wait(is_another, "the other topic")


def topic_id(topic: KafkaTopic) -> str | None:
    with closing(Questions(topic.sink.place)) as questions:
        found = questions.topic()
    return None if found is None else found.id


def delivered_at_last(target: KafkaTarget) -> Outcome:
    """Deliver epoch 2 as the delivery machine does: after a failure, read the tag, then try again."""
    for _ in range(20):
        try:
            assert target.delivered() == tag(1)
            return target.deliver(tag(2), [batch(("bea", 2))], tag(1))
        except Unavailable:
            continue
    raise AssertionError("the broker has returned, but takes nothing")


class TestConfiguration:
    def test_a_sink_travels(self) -> None:
        sink = KafkaSink(KafkaPlace("one:9092", "t", (("linger.ms", 5),)), key=KEY)
        assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301
        assert sink.traits.place == {"servers": "one:9092", "topic": "t"}

    def test_what_makes_delivery_exactly_once_cannot_be_changed(self) -> None:
        place = KafkaPlace("one:9092", "t", (("delivery.report.only.error", False),))
        with pytest.raises(ConfigError, match="the option 'delivery.report.only.error' is set by the sink"):
            KafkaSink(place).check(SCHEMA, None)
        settings = producer_settings(place, "id")
        assert (settings["enable.idempotence"], settings["delivery.report.only.error"]) == (True, True)
        assert (settings["partitioner"], settings["transaction.timeout.ms"]) == ("murmur2_random", 60_000)
        assert settings["allow.auto.create.topics"] is False and settings["transactional.id"] == "id"

    def test_other_options_are_the_jobs(self) -> None:
        options = (("partitioner", "consistent"), ("transaction.timeout.ms", 5_000), ("group.id", "mine"))
        place = KafkaPlace("one:9092", "t", options)
        KafkaSink(place).check(SCHEMA, None)
        settings = producer_settings(place, "id")
        assert (settings["partitioner"], settings["transaction.timeout.ms"]) == ("consistent", 5_000)
        reader = reader_settings(place)
        assert (reader["group.id"], reader["isolation.level"]) == ("mine", "read_committed")

    def test_it_can_take_dead_letters(self) -> None:
        sink = KafkaSink(KafkaPlace("one:9092", "t"))
        sink.check(DEAD_LETTERS, None)
        assert not sink.traits.keyed

    def test_a_size_that_is_no_number_is_refused(self) -> None:
        place = KafkaPlace("one:9092", "t", (("message.max.bytes", "1MB"),))
        with pytest.raises(ConfigError, match="'message.max.bytes' is '1MB'"):
            KafkaSink(place).check(SCHEMA, None)

    def test_a_name_whose_progress_topic_would_be_too_long_is_refused(self) -> None:
        KafkaSink(KafkaPlace("one:9092", "t" * 231)).check(SCHEMA, None)
        with pytest.raises(ConfigError, match="at most 231 characters"):
            KafkaSink(KafkaPlace("one:9092", "t" * 232)).check(SCHEMA, None)

    def test_columns_that_differ_from_the_given_ones_are_refused(self) -> None:
        expected = pa.schema([SCHEMA.field("n").with_nullable(False), pa.field("more", pa.string())])
        sink = KafkaSink(KafkaPlace("one:9092", "t"), expected=expected)
        with pytest.raises(ConfigError, match="more is missing; name is not expected; n may be null"):
            sink.check(SCHEMA, None)
        replace(sink, expected=SCHEMA).check(pa.schema(reversed(list(SCHEMA))), None)

    def test_all_writers_of_a_sink_have_one_id(self) -> None:
        assert transactional_id(JOB, "out") == f"holdfast-{JOB}-out"

    def test_no_client_library_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
        acts: tuple[Callable[[KafkaSink], object], ...] = (
            lambda sink: sink.prepare(SCHEMA, None),
            lambda sink: sink.open(JOB, LEFT),
            lambda sink: sink.holding(JOB, "out"),
        )
        for act in acts:
            with pytest.raises(HoldfastError, match="needs confluent-kafka"):
                act(KafkaSink(KafkaPlace("one:9092", "t")))
