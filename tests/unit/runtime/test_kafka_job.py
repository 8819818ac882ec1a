"""A complete job in one thread that reads a real topic: crashes, a broker that is killed, partitions that are added."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from confluent_kafka import Producer
from kafka_server import KafkaServer
from patience import wait
from played_jobs import WORDS, ReadingJob, Said

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.runtime.audit.checks import chain
from holdfast.runtime.audit.reading import sources
from holdfast.runtime.audit.report import Report
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH, MODES
from holdfast.runtime.driver.background import loss_alarm
from holdfast.runtime.job.status import of_run
from holdfast.runtime.plan.loss import Risk
from holdfast.runtime.sources.kafka.reading import OnLost
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

pytestmark = pytest.mark.kafka
GROUP = "words"
"""Shows how far the job is."""


class Job(ReadingJob):
    """The job, its input and its results."""

    def __init__(
        self, kafka: KafkaServer, mode: str, on_lost: OnLost = "fail", *, alarm: bool = False, **settings: str
    ) -> None:
        self._kafka, self.topic, self.partitions, self._alarm = kafka, kafka.topic(2, **settings), 2, alarm
        super().__init__("words", hf.Kafka(kafka.servers, self.topic, hf.JSON(Said), group=GROUP, on_lost=on_lost))
        self.begin(mode)

    def configure(self) -> None:
        if self._alarm:
            self.cluster.change_rules(loss_alarm=3600.0)

    def say(self, count: int) -> None:
        """Append rows to every partition, some in a transaction between aborted ones, and a damaged record."""
        for partition in range(self.partitions):
            first = len(self.said)
            rows = [(n, WORDS[n % len(WORDS)]) for n in range(first, first + count)]
            self.said += rows
            values = [json.dumps({"n": n, "word": word}).encode() for n, word in rows]
            self._kafka.produce(self.topic, [b"damaged", *values[: count // 2]], partition)
            self.damaged += 1
            for commit in (False, True, False):
                with self._kafka.transaction(commit=commit) as producer:
                    for value in values[count // 2 :]:
                        producer.produce(self.topic, value, partition=partition)

    def widen(self) -> None:
        self.partitions += 1
        self._kafka.widen(self.topic, self.partitions)

    def stop(self) -> None:
        """Kill everything that reads."""
        self.cluster.held_launches = []
        for worker in list(self.cluster.members):
            self.cluster.crash(worker)
        self.cluster.pass_time(0.1)

    def audit(self) -> Report:
        """Audit all checkpoints that are kept."""
        log = self.cluster.repository.read_log()
        assert log is not None
        manifests = [self.cluster.repository.load_manifest(done.body.manifest) for done in log.completed]
        epochs = tuple(int(each.epoch) for each in manifests)
        lines = [*chain(manifests, epochs), *sources(self.plan.sources, manifests)]
        return Report("words", epochs, tuple(lines))

    def check(self) -> None:
        super().check()

        def shows_no_lag() -> bool:
            """The offsets of the group follow later: a broker that was killed may not know its groups yet."""
            if self._kafka.stored(GROUP, self.topic) == self._kafka.ends(self.topic):
                return True
            self.cluster.pass_time(1.0)
            return False

        wait(shows_no_lag, "tools of Kafka to show no lag")


class TestRetention:
    def test_a_job_counts_and_names_what_it_lost_and_continues(
        self, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = Job(kafka, CONTINUOUS, on_lost="earliest")
        job.say(4)
        job.catch_up()
        job.stop()
        read = kafka.ends(job.topic)[0]
        rows = [(n, "a") for n in range(100, 105)]
        kafka.produce(job.topic, [json.dumps({"n": n, "word": word}).encode() for n, word in rows], 0)
        kafka.delete_records(job.topic, 0, read + 3)
        job.said += rows[3:]
        job.cluster.release_launches()
        job.catch_up()
        job.check()
        shown = of_run(job.cluster.driver.state, "", CONTINUOUS, None)
        assert {row.partition: row.lost for row in shown.sources} == {0: 3, 1: 0}
        assert f"partition 0, offsets {read} to {read + 2} (3) were removed before they were read" in caplog.text
        report = job.audit()
        assert report.lost() == {("rows", 0): 3}, "also after epochs that passed nothing but markers"
        assert report.verdict == "proven in part"
        named = [line for line in report.lines if "lost" in dict(line.more)]
        assert [line.verdict for line in named] == ["not provable"]
        assert f"offsets {read} to {read + 2} were removed before they were read" in str(named[0].reason)
        assert named[0].found == named[0].rows, "what is left is compared"

    def test_a_job_ends_by_default_and_says_what_it_lost(self, kafka: KafkaServer) -> None:
        job = Job(kafka, CONTINUOUS)
        job.say(4)
        job.catch_up()
        job.stop()
        read = kafka.ends(job.topic)[0]
        kafka.produce(job.topic, [b"damaged"] * 5, 0)
        kafka.delete_records(job.topic, 0, read + 3)
        job.cluster.release_launches()
        job.ends(Damaged, f"partition 0, offsets {read} to {read + 2} (3) were removed")
        assert len(job.copy.rows()) == len(job.said) and len(job.dead.rows()) == job.damaged, "nothing was skipped"

    def test_a_job_is_warned_of_before_it_loses_records(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(loss_alarm, "WINDOW_S", 4.0)
        monkeypatch.setattr(loss_alarm, "LOOK_EVERY_S", 1.0)
        job = Job(kafka, CONTINUOUS, alarm=True, retention_ms=str(30 * 60_000))
        job.say(4)
        job.catch_up()
        job.cluster.pass_time(5)
        alarm = job.cluster.driver.loss_alarm
        assert alarm.risks == {} and {place: kept.first for place, kept in alarm.kept.items()} == {
            ("rows", 0): 0,
            ("rows", 1): 0,
        }
        job.stop()
        read = kafka.ends(job.topic)[0]
        job.said += [(100, "a")]
        kafka.produce(job.topic, [json.dumps({"n": 100, "word": "a"}).encode()], 0)
        job.cluster.pass_time(8)
        assert alarm.risks == {("rows", 0): Risk(read, read + 1, 0, 0.0)}
        assert f"unread records before offset {read + 1} will be removed within 3,600 s" in caplog.text
        job.cluster.release_launches()
        job.catch_up()
        job.check()
        job.cluster.pass_time(3)
        assert alarm.risks == {}

    @pytest.mark.thorough
    def test_microbatches_count_what_was_lost_too(self, kafka: KafkaServer) -> None:
        job = Job(kafka, MICROBATCH, on_lost="earliest")
        job.say(4)
        job.catch_up()
        read = kafka.ends(job.topic)[0]
        kafka.produce(job.topic, [json.dumps({"n": n, "word": "a"}).encode() for n in range(100, 105)], 0)
        kafka.delete_records(job.topic, 0, read + 3)
        job.said += [(n, "a") for n in (103, 104)]
        job.catch_up()
        job.check()
        assert job.audit().lost() == {("rows", 0): 3}


@pytest.mark.thorough
class TestJob:
    @pytest.mark.parametrize("mode", MODES)
    def test_counts_every_record_once_through_crashes_and_added_partitions(self, kafka: KafkaServer, mode: str) -> None:
        job = Job(kafka, mode)
        job.say(10)
        job.catch_up()
        job.check()
        job.crash()
        job.say(10)
        job.catch_up()
        job.widen()
        job.say(10)
        job.cluster.pass_time(12)
        job.crash()
        job.catch_up()
        job.check()
        assert job.replay() > 3

    @pytest.mark.parametrize("mode", [CONTINUOUS, pytest.param(MICROBATCH, marks=pytest.mark.slow)])
    def test_continues_after_its_broker_was_killed(self, kafka: KafkaServer, mode: str) -> None:
        job = Job(kafka, mode)
        job.say(10)
        job.catch_up()
        kafka.kill()
        try:
            job.cluster.pass_time(2)
            assert job.cluster.driver.outcome is None, "the job waits"
        finally:
            kafka.start()
        job.say(10)
        job.catch_up()
        job.check()

    @pytest.mark.parametrize("mode", MODES)
    def test_ends_if_its_topic_is_recreated(self, kafka: KafkaServer, mode: str) -> None:
        job = Job(kafka, mode)
        job.say(4)
        job.catch_up()
        kafka.delete(job.topic)
        kafka.topic(2, job.topic)
        job.crash()
        job.ends(Damaged, "recreated")


class TestBatchesBeyondTheLimit:
    """Batches of records that compress well and are too large when they are decompressed."""

    LIMIT = 1_200_000
    OPTIONS: ClassVar = {"receive.message.max.bytes": LIMIT, "fetch.max.bytes": 1_000_000, "message.max.bytes": 900_000}

    @pytest.mark.parametrize("mode", MODES)
    def test_are_dead_letters_and_what_lies_between_them_is_read(self, kafka: KafkaServer, mode: str) -> None:
        topic = kafka.topic(1)
        for value, count in (("1", 2), ("too large", 3), ("2", 1), ("too large", 1), ("too large", 2), ("3", 2)):
            produce_batch(kafka, topic, value.encode() if len(value) == 1 else b"4" * (LIMIT_TEXT // count), count)
        read, dead = MemorySink(None), MemorySink(None)
        app = hf.App("numbers", checkpoint_every="1s", dlq=dead)
        source = hf.Kafka(kafka.servers, topic, hf.Raw(), options=self.OPTIONS)
        app.source("numbers", source, on_error="dlq").sink("read", read)
        cluster = Cluster(app.plan(), 1, 0, MemoryObjects(), 1.0, {"numbers": (0,)}, mode)
        cluster.begin()

        def all_read() -> bool:
            cluster.pass_time(1.0)
            return len(read.rows()) == 5

        wait(all_read, "the records between")
        assert [row["value"] for row in read.rows()] == [b"1", b"1", b"2", b"3", b"3"]
        assert sorted((row["offset"], row["error"].partition(" are in")[0]) for row in dead.rows()) == [
            (2, "the records of offsets 2 to 4"),
            (6, "the records of offset 6"),
            (7, "the records of offsets 7 to 8"),
        ]
        assert all("takes more than 1,200,000 bytes when it is decompressed" in row["error"] for row in dead.rows())

    def test_end_a_job_by_default_with_offset_and_limit(self, kafka: KafkaServer) -> None:
        topic = kafka.topic(1)
        produce_batch(kafka, topic, b"4" * LIMIT_TEXT, 1)
        app = hf.App("numbers", checkpoint_every="1s")
        app.source("numbers", hf.Kafka(kafka.servers, topic, hf.Raw(), options=self.OPTIONS)).sink(
            "read", MemorySink(None)
        )
        cluster = Cluster(app.plan(), 1, 0, MemoryObjects(), 1.0, {"numbers": (0,)}, CONTINUOUS)
        cluster.begin()

        def ended() -> bool:
            cluster.pass_time(1.0)
            return cluster.driver.outcome is not None

        wait(ended, "the end of the run")
        assert cluster.driver.outcome is not None and cluster.driver.outcome[1] is not None
        assert 'options={"receive.message.max.bytes": ...}' in str(cluster.driver.outcome[1])


LIMIT_TEXT = 2_000_000


def produce_batch(kafka: KafkaServer, topic: str, value: bytes, count: int) -> None:
    """Append records as one compressed batch."""
    own = {"compression.type": "zstd", "linger.ms": 500, "batch.size": 8_000_000, "message.max.bytes": 8_000_000}
    producer = Producer({"bootstrap.servers": kafka.servers, **own})
    for _ in range(count):
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
