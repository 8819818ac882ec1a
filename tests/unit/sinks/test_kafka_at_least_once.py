"""A topic that is written as rows come: doubtful replies, refused records, brokers that stop and return."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from kafka_server import ANSWER_WITHIN_S, PASSWORD, USER, KafkaServer
from kafka_ways import WAYS, take

import holdfast as hf
from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.model import Generation, Timeline
from holdfast.sinks.contract.immediate import ANYWHERE, ImmediateTarget, Owner
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.sinks.kafka.repeating import GaveUp, RepeatingTarget
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.kafka.target import Records, listed

SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("n", pa.int64())])
OWNER = Owner("6f9b0f6e-0000-4000-8000-000000000001", "out", Generation(1), Timeline(1), "any")
AWAY = Unavailable("the brokers do not answer", next_step="nothing")


def batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    names, numbers = zip(*rows, strict=True)
    return pa.record_batch([pa.array(names, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)


def as_records(rows: pa.RecordBatch) -> Records:
    return Records(None, [str(n).encode() for n in rows.column("n").to_pylist()])


class Producer:
    """A producer that ends each wait as it is told; it says what it was asked for."""

    ahead_max = 3

    def __init__(self, number: int, said: list[str], ends: list[Exception | int]) -> None:
        self._number, self._said, self._ends = number, said, ends

    def find_topic(self) -> None:
        self._said.append(f"{self._number} connects")

    def begin(self, records: Sequence[Records]) -> None:
        texts = [b"" if value is None else value for each in records for value in listed(each.values)]
        self._said.append(f"{self._number} takes {b' '.join(texts).decode()}")

    def advance(self, wait_s: float) -> int:
        self._said.append(f"{self._number} waits")
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def ring(self) -> None:
        self._said.append(f"{self._number} is rung")

    def close(self) -> None:
        self._said.append(f"{self._number} closes")


class TestTarget:
    """What a target asks of its producers."""

    def played(self, *ends: Exception | int) -> tuple[RepeatingTarget, list[str]]:
        said, left, made = list[str](), list(ends), iter(range(1, 9))
        return RepeatingTarget(lambda: Producer(next(made), said, left), as_records), said

    def test_goes_on_waiting_for_records_that_are_not_confirmed(self) -> None:
        target, said = self.played(AWAY, AWAY, 1, 1)
        rows = [batch(("a", 1)), batch(("a", 2))]
        for _ in range(2):
            with pytest.raises(Unavailable):
                target.write(ANYWHERE, 0, rows)
        target.write(ANYWHERE, 0, rows)
        target.write(ANYWHERE, 0, [batch(("a", 3))])
        assert said == ["1 connects", "1 takes 1 2", "1 waits", "1 waits", "1 waits", "1 takes 3", "1 waits"]

    def test_makes_records_of_all_rows_of_a_write_together(self) -> None:
        asked = list[list[int]]()

        def noted(rows: pa.RecordBatch) -> Records:
            asked.append(rows.column("n").to_pylist())
            return as_records(rows)

        said = list[str]()
        target = RepeatingTarget(lambda: Producer(1, said, [1, 1]), noted)
        target.write(ANYWHERE, 0, [batch(("a", 1), ("b", 2)), batch(("a", 3)), batch(("c", 4))])
        target.write(ANYWHERE, 0, [batch(("a", 5))])
        assert asked == [[1, 2, 3, 4], [5]]
        assert said == ["1 connects", "1 takes 1 2 3 4", "1 waits", "1 takes 5", "1 waits"]

    def test_sends_the_whole_write_by_a_new_producer_if_a_record_is_refused(self) -> None:
        target, said = self.played(GaveUp(AWAY), 1)
        rows = [batch(("a", 1), ("a", 2))]
        with pytest.raises(Unavailable):
            target.write(ANYWHERE, 0, rows)
        target.write(ANYWHERE, 0, rows)
        assert said == [
            *("1 connects", "1 takes 1 2", "1 waits", "1 closes"),
            *("2 connects", "2 takes 1 2", "2 waits"),
        ]

    def test_refuses_another_write_before_the_first_is_complete(self) -> None:
        target, _ = self.played(AWAY, 1)
        with pytest.raises(Unavailable):
            target.write(ANYWHERE, 0, [batch(("a", 1))])
        with pytest.raises(AssertionError, match="another write"):
            target.write(ANYWHERE, 0, [batch(("a", 2))])

    def test_begins_writes_before_others_are_confirmed(self) -> None:
        target, said = self.played(0, 2, 1)
        target.fence({})
        assert target.room == 3
        target.begin([batch(("a", 1))])
        target.begin([batch(("a", 2))])
        assert target.room == 1 and target.advance(0.1) == 0
        target.begin([batch(("a", 3))])
        assert target.room == 0 and target.advance(0.1) == 2 and target.room == 2 and target.advance(0.1) == 1
        assert said == [
            *("1 connects", "1 takes 1", "1 takes 2", "1 waits", "1 takes 3", "1 waits", "1 waits"),
        ]

    def test_sends_all_that_is_not_confirmed_again_in_order_if_a_record_is_refused(self) -> None:
        target, said = self.played(1, GaveUp(AWAY), 2)
        target.fence({})
        for n in range(3):
            target.begin([batch(("a", n))])
        assert target.advance(0.1) == 1
        with pytest.raises(Unavailable):
            target.advance(0.1)
        assert target.advance(0.1) == 2 and target.room == 3
        assert said[5:] == ["1 waits", "1 closes", "2 connects", "2 takes 1", "2 takes 2", "2 waits"]

    def test_asks_for_the_form_of_rows_again_if_it_was_not_known(self) -> None:
        said, faults = list[str](), [AWAY]

        def asked(rows: pa.RecordBatch) -> Records:
            if faults:
                raise faults.pop()
            return as_records(rows)

        target = RepeatingTarget(lambda: Producer(1, said, [1]), asked)
        target.begin([batch(("a", 1))])
        with pytest.raises(Unavailable):
            target.advance(0.1)
        assert target.advance(0.1) == 1 and said == ["1 connects", "1 takes 1", "1 waits"]


class TestConnector:
    def test_survives_a_pickle_and_connects_to_nothing(self) -> None:
        sink = hf.Kafka("nowhere.example:9092", "out", delivery="at-least-once").sink()
        sink.check(SCHEMA, None)
        assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: hf.Kafka("b.example:1", "t", delivery="exactly-once"),  # type: ignore[arg-type]
                "delivery is 'exactly-once'",
            ),
            (
                lambda: hf.Kafka("b.example:1", "t", hf.Raw(), delivery="at-least-once").source(),
                "a source with delivery=",
            ),
        ],
    )
    def test_refuses(self, make: Callable[[], object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make()

    def test_refuses_rows_that_the_topic_can_never_take(self) -> None:
        sink = hf.Kafka("b.example:1", "t", options={"message.max.bytes": 1_000}, delivery="at-least-once").sink()
        with pytest.raises(ConfigError, match="the limit is 1,000"):
            sink.accept(batch(("a" * 2_000, 1)))


@pytest.fixture
def name(kafka: KafkaServer) -> str:
    return kafka.topic(3)


def sink_of(servers: str, name: str, **options: Any) -> RepeatingKafka:
    made = hf.Kafka(servers, name, key="name", delivery="at-least-once", **options).sink()
    assert isinstance(made, RepeatingKafka)
    return made


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records are given to the client library."""
    take(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def target(kafka: KafkaServer, name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImmediateTarget]:
    monkeypatch.setattr("holdfast.sinks.kafka.plain.WAIT_S", 1.0)
    sink = sink_of(kafka.servers, name)
    sink.prepare(SCHEMA, None)
    with closing(sink.open_immediate(OWNER)) as opened:
        yield opened


def numbers(kafka: KafkaServer, name: str) -> dict[str, list[int]]:
    """Return the numbers of each key, in the topic's order."""
    found: dict[str, list[int]] = {}
    for each in kafka.records(name):
        found.setdefault(each.key().decode(), []).append(json.loads(each.value())["n"])
    return found


def written_at_last(target: ImmediateTarget, rows: list[pa.RecordBatch]) -> None:
    """Write as the worker does: the same rows, until they are in."""
    for _ in range(60):
        try:
            target.write(ANYWHERE, 0, rows)
            return
        except Unavailable:
            continue
    raise AssertionError("the broker has returned, but takes nothing")


@pytest.mark.kafka
class TestTopic:
    def test_a_start_creates_no_progress_topic(self, kafka: KafkaServer, name: str, target: ImmediateTarget) -> None:
        target.write(ANYWHERE, 0, [batch(("a", 1))])
        assert progress_topic(name) not in kafka.admin.list_topics(timeout=ANSWER_WITHIN_S).topics

    def test_records_of_a_key_are_in_one_partition_in_order(
        self, kafka: KafkaServer, name: str, target: ImmediateTarget
    ) -> None:
        for at in range(0, 9_000, 3_000):
            target.write(ANYWHERE, 0, [batch(*((f"k{n % 7}", n) for n in range(at, at + 3_000)))])
        found = numbers(kafka, name)
        assert sorted(n for each in found.values() for n in each) == list(range(9_000))
        assert all(each == sorted(each) for each in found.values())

    def test_a_topic_that_is_deleted_ends_the_write_with_its_name(
        self, kafka: KafkaServer, name: str, target: ImmediateTarget
    ) -> None:
        kafka.delete(name)
        with pytest.raises(ConfigError, match=f"{name}.*does not exist"):
            sink_of(kafka.servers, name).open_immediate(OWNER).fence({})


@pytest.mark.kafka
class TestOutage:
    @pytest.mark.slow
    def test_a_broker_that_is_killed_and_returns_has_every_row_once_and_in_order(
        self, kafka: KafkaServer, name: str, target: ImmediateTarget
    ) -> None:
        target.write(ANYWHERE, 0, [batch(("a", 1), ("b", 1))])
        rows = [batch(*((key, n) for n in range(2, 500) for key in "ab"))]
        kafka.kill()
        try:
            with pytest.raises(Unavailable, match="no record was confirmed"):
                target.write(ANYWHERE, 0, rows)
        finally:
            kafka.start()
        written_at_last(target, rows)
        target.write(ANYWHERE, 0, [batch(("a", 500), ("b", 500))])
        assert numbers(kafka, name) == {"a": list(range(1, 501)), "b": list(range(1, 501))}

    @pytest.mark.slow
    def test_a_broker_that_is_frozen_in_a_write_has_every_row_once(
        self, kafka: KafkaServer, name: str, target: ImmediateTarget
    ) -> None:
        """Its replies are late: the records may be in, or not."""
        target.write(ANYWHERE, 0, [batch(("a", 0))])
        os.kill(kafka.pid, signal.SIGSTOP)
        rows = [batch(*(("a", n) for n in range(1, 200)))]
        try:
            with pytest.raises(Unavailable):
                target.write(ANYWHERE, 0, rows)
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        written_at_last(target, rows)
        assert numbers(kafka, name) == {"a": list(range(200))}


@pytest.mark.kafka
class TestRights:
    @pytest.fixture
    def guarded(self, kafka: KafkaServer, name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> RepeatingKafka:
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": hf.secret("env:KAFKA_PASSWORD"),
        }
        return sink_of(kafka.guarded, name, options=login)

    def test_a_right_that_is_revoked_and_granted_again_loses_no_row(
        self, kafka: KafkaServer, name: str, guarded: RepeatingKafka
    ) -> None:
        kafka.allow(name, "DESCRIBE", "WRITE")
        guarded.prepare(SCHEMA, None)
        with closing(guarded.open_immediate(OWNER)) as target:
            target.write(ANYWHERE, 0, [batch(("a", 1))])
            revoke(kafka, name)
            rows = [batch(*(("a", n) for n in range(2, 50)))]
            with pytest.raises(NotAdmitted) as caught:
                while True:  # until the broker has heard of it
                    target.write(ANYWHERE, 0, rows)
            assert "WRITE and DESCRIBE on the topic" in caught.value.next_step
            kafka.allow(name, "DESCRIBE", "WRITE")
            written_at_last(target, rows)
        found = numbers(kafka, name)["a"]
        assert set(found) == set(range(1, 50)) and found[-48:] == list(range(2, 50))


def revoke(kafka: KafkaServer, topic: str) -> None:
    """Take every right on the topic away."""
    of = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    every = AclBindingFilter(*of, AclOperation.ANY, AclPermissionType.ANY)
    for future in kafka.admin.delete_acls([every]).values():
        future.result(ANSWER_WITHIN_S)
