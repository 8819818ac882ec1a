"""A complete job in one thread that reads real topics by a pattern: topics that appear, crashes, rewinds, damage."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from kafka_server import PASSWORD, USER, KafkaServer
from patience import wait
from played_jobs import ReadingJob

import holdfast as hf
from holdfast.errors import ConfigError, Damaged
from holdfast.runtime.config.settings import CONTINUOUS, MODES
from holdfast.runtime.job.status import of_run
from holdfast.runtime.plan.source import Source
from holdfast.runtime.sources.kafka.reading import OnLost
from holdfast.storage.kafka.place import Option

pytestmark = pytest.mark.kafka
GROUP = "orders"
_FAMILIES = count()


@dataclass
class Order:
    n: int


class Job(ReadingJob):
    """The job, its input and its results. Each has a family of topics of its own."""

    def __init__(self, kafka: KafkaServer, folder: Path, mode: str, on_lost: OnLost = "fail") -> None:
        self._kafka, self._mode, self._job_folder = kafka, mode, folder / "job"
        self.family, self.partitions = f"orders{next(_FAMILIES)}", dict[str, int]()
        kafka.topic(1, f"old.{self.family}.de")
        self.topic("fr", 2)
        self.topic("de", 1)
        pattern = re.compile(rf"{self.family}[.].*")
        source = hf.Kafka(kafka.servers, pattern, hf.JSON(Order), meta=True, group=GROUP, on_lost=on_lost)
        super().__init__("orders", source, self._job_folder, "kafka_topic")

    def run(self) -> None:
        """Start the job with the topics that are there."""
        self.begin(self._mode)

    def started(self, source: Source, *, again: bool) -> Source:
        return source.in_folder(str(self._job_folder)).copied(again=again)

    def topic(self, country: str, partitions: int = 1) -> str:
        """Create a topic, or widen it."""
        name = f"{self.family}.{country}"
        if name in self.partitions:
            self._kafka.widen(name, partitions)
        else:
            self._kafka.topic(partitions, name)
        self.partitions[name] = partitions
        return name

    def say(self, rows: int) -> None:
        """Append rows to every partition of every topic, some in a transaction behind an aborted one."""
        for topic, partitions in self.partitions.items():
            for partition in range(partitions):
                numbers = range(len(self.said), len(self.said) + rows)
                self.said += [(n, topic) for n in numbers]
                values = [json.dumps({"n": n}).encode() for n in numbers]
                self._kafka.produce(topic, values[: rows // 2], partition)
                for commit in (False, True):
                    with self._kafka.transaction(commit=commit) as producer:
                        for value in values[rows // 2 :]:
                            producer.produce(topic, value, partition=partition)

    def check(self) -> None:
        super().check()
        for topic in self.partitions:
            assert self._kafka.stored(GROUP, topic) == self._kafka.ends(topic), "tools of Kafka show no lag"


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
class TestJob:
    @pytest.mark.slow
    def test_counts_every_record_once_through_crashes_and_topics_that_appear(
        self, kafka: KafkaServer, tmp_path: Path, mode: str
    ) -> None:
        """The new topics sort before, between and behind those that are read."""
        job = Job(kafka, tmp_path, mode)
        job.say(6)
        job.run()
        job.catch_up()
        job.check()
        job.topic("at")
        job.topic("es", 2)
        job.say(6)
        job.crash()
        job.catch_up()
        job.topic("uk")
        job.topic("de", 3)
        job.say(6)
        job.cluster.pass_time(11)
        job.crash()
        job.cluster.replace_driver(job.restarted())
        job.catch_up()
        job.check()
        shown = of_run(job.cluster.driver.state, "", mode, None)
        assert {row.partition: row.lag for row in shown.sources} == dict.fromkeys(range(9), 0)

    @pytest.mark.slow
    def test_goes_on_with_another_parallelism(self, kafka: KafkaServer, tmp_path: Path, mode: str) -> None:
        job = Job(kafka, tmp_path, mode)
        job.say(6)
        job.run()
        job.catch_up()
        for parallelism, country in ((1, "at"), (3, "uk")):
            job.topic(country)
            job.say(6)
            job.start_again(parallelism)
            job.catch_up()
            job.check()

    @pytest.mark.slow
    def test_reads_a_topic_again_after_a_rewind_to_before_it_existed(
        self, kafka: KafkaServer, tmp_path: Path, mode: str
    ) -> None:
        job = Job(kafka, tmp_path, mode)
        job.say(4)
        job.run()
        job.catch_up()
        base = job.base()
        job.topic("at", 2)
        job.say(4)
        job.catch_up()
        job.rewind(base)
        job.topic("be")
        job.say(4)
        job.catch_up()
        job.check()

    @pytest.mark.parametrize("read", [True, False])
    def test_ends_if_one_of_its_topics_is_recreated(
        self, kafka: KafkaServer, tmp_path: Path, mode: str, read: bool
    ) -> None:
        """Also if no record of that topic was read."""
        job = Job(kafka, tmp_path, mode)
        if read:
            job.say(4)
        job.run()
        job.cluster.pass_time(3.0)
        if read:
            job.catch_up()
        topic = f"{job.family}.de"
        kafka.delete(topic)
        kafka.topic(1, topic)
        job.crash()
        job.ends(Damaged, topic, "was recreated")
        assert len(job.copy.rows()) == len(job.said)


@pytest.mark.thorough
class TestTopicThatIsGone:
    @pytest.mark.parametrize("mode", MODES)
    def test_has_ended_if_losses_are_accepted_and_the_others_go_on(
        self, kafka: KafkaServer, tmp_path: Path, mode: str
    ) -> None:
        """Also through a crash, another driver and a topic of the same name."""
        job = Job(kafka, tmp_path, mode, "earliest")
        job.say(6)
        job.run()
        job.catch_up()
        topic = f"{job.family}.de"
        kafka.delete(topic)
        del job.partitions[topic]
        job.say(6)
        job.catch_up()
        job.crash()
        job.cluster.replace_driver(job.restarted())
        job.topic("de")
        job.say(6)
        job.cluster.pass_time(11)
        job.catch_up()
        job.check()
        (folder,) = (tmp_path / "job").glob("topics-*")
        assert any(f'"ended":["{topic}"]' in each.read_text() for each in folder.iterdir())

    def test_ends_the_run_with_its_name(self, kafka: KafkaServer, tmp_path: Path) -> None:
        job = Job(kafka, tmp_path, CONTINUOUS)
        job.say(4)
        job.run()
        job.catch_up()
        kafka.delete(f"{job.family}.de")
        job.ends(Damaged, f"{job.family}.de", "no longer exists")


@pytest.mark.thorough
class TestStart:
    def test_is_refused_if_a_topic_was_recreated_meanwhile(self, kafka: KafkaServer, tmp_path: Path) -> None:
        job = Job(kafka, tmp_path, CONTINUOUS)
        job.bound(again=True)
        topic = f"{job.family}.de"
        kafka.delete(topic)
        kafka.topic(1, topic)
        with pytest.raises(Damaged, match=f"{topic}.* was recreated"):
            job.restarted()

    def test_is_refused_with_a_pattern_that_leaves_out_a_topic_but_not_with_a_wider_one(
        self, kafka: KafkaServer, tmp_path: Path
    ) -> None:
        job = Job(kafka, tmp_path, CONTINUOUS)
        job.bound(again=True)

        def by(pattern: str) -> Source:
            return hf.Kafka(kafka.servers, re.compile(pattern), hf.JSON(Order), meta=True).source()

        with pytest.raises(ConfigError, match=f"reads topic '{job.family}.fr', which the pattern"):
            job.started(by(rf"{job.family}[.]de"), again=False)
        wider = job.started(by(rf"(old[.])?{job.family}[.].*"), again=False)
        assert wider.open().partitions() == [0, 1, 2, 3]

    def test_is_refused_if_no_topic_matches_or_one_may_not_be_read(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ConfigError, match="no topic that the job's user may see matches"):
            hf.Kafka(kafka.servers, re.compile("nothing[.].*"), hf.Raw()).source().check()
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        options: dict[str, Option] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": hf.secret("env:KAFKA_PASSWORD"),
        }
        family = f"guarded{next(_FAMILIES)}"
        seen, hidden = kafka.topic(1, f"{family}.seen"), kafka.topic(1, f"{family}.hidden")
        kafka.allow(seen, "DESCRIBE")
        source = hf.Kafka(kafka.guarded, re.compile(rf"{family}[.].*"), hf.Raw(), options=options).source()

        def refused() -> str:
            with pytest.raises(ConfigError) as caught:
                source.check()
            return caught.value.what

        wait(lambda: "may see this topic, but not read it" in refused(), "the right to see it")
        assert seen in refused() and hidden not in refused()
