"""A complete job in one thread that writes to topics of a real broker, which is killed and returns.

The sinks' doubles stand in for topics where a test only asks what a job sends.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster_steps
import pyarrow as pa
import pytest
from kafka_server import KafkaServer

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

WORDS = ["a", "b", "c"]


@dataclass
class Said:
    n: int
    word: str


@dataclass
class Total:
    word: str
    rows: int
    total: int


class Job:
    """Copies rows, and counts them by word, with three writers."""

    def __init__(self, folder: Path, kafka: KafkaServer, mode: str) -> None:
        self.said, self._kafka = list[tuple[int, str]](), kafka
        self.copy, self.totals = kafka.topic(2), kafka.topic(2, cleanup_policy="compact")
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("copy", hf.Kafka(kafka.servers, self.copy, hf.JSON(Said)))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", hf.Kafka(kafka.servers, self.totals, key=["word"]))
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, 3, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)}, mode)
        self.cluster.begin()

    def say(self, count: int) -> None:
        for n in range(len(self.said), len(self.said) + count):
            self.said.append((n, WORDS[n % len(WORDS)]))
            table = pa.Table.from_pylist([{"n": n, "word": self.said[-1][1]}], schema=schema_of(Said))
            self._input.append({n % 4: table})

    def crash(self) -> None:
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))

    def start_again(self, parallelism: int) -> None:
        """Kill the driver, and start another one with so many writers."""
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver(self.plan)

    def finish(self) -> None:
        self._input.seal()
        cluster_steps.finish(self.cluster)

    def copied(self) -> Counter[tuple[int, str]]:
        found = (json.loads(each.value()) for each in self._kafka.records(self.copy))
        return Counter((row["n"], row["word"]) for row in found)

    def rewind(self, epoch: int, *accept: str) -> str | None:
        """Ask the driver for a rewind; return why it refuses."""
        job = self.cluster.driver.state.job
        wanted = {"epoch": epoch, "timeline": job.timeline, "accept": list(accept)}
        answer = self.cluster.driver.asked("rewind", wanted, job.generation, job.generation)
        assert answer is not None
        return None if answer["accepted"] else str(answer["reason"])

    def check(self) -> None:
        assert self.copied() == Counter(self.said)
        assert self.newest_totals() == self.expected_totals()

    def newest_totals(self) -> dict[bytes, dict[str, Any]]:
        return {each.key(): json.loads(each.value()) for each in self._kafka.records(self.totals)}

    def expected_totals(self) -> dict[bytes, dict[str, Any]]:
        return {
            word.encode(): {"word": word, "rows": len(n), "total": sum(n)}
            for word in WORDS
            if (n := [n for n, said in self.said if said == word])
        }

    def writers(self) -> set[int]:
        """Return the writers that have a tag."""
        keys = (json.loads(each.key()) for each in self._kafka.records(progress_topic(self.copy)))
        return {key[3] for key in keys if key[0] == "tag"}


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def start(kafka: KafkaServer, tmp_path: Path) -> Callable[[str], Job]:
    return lambda mode: Job(tmp_path, kafka, mode)


@pytest.mark.kafka
class TestJob:
    def test_every_result_occurs_once_though_workers_crash_and_writers_change(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job, chance = start(mode), random.Random(1)
        for step in (job.crash, lambda: job.start_again(2)):
            job.say(20)
            job.cluster.pass_time(1.0 + chance.random())
            step()
        job.say(5)
        job.finish()
        job.check()
        assert job.writers() == {0}, "one committer delivers for all writers"

    @pytest.mark.slow
    def test_every_result_occurs_once_although_the_broker_is_killed(
        self, kafka: KafkaServer, start: Callable[[str], Job], mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.sinks.kafka.client.WAIT_S", 1.0)
        job = start(mode)
        job.say(20)
        job.cluster.pass_time(3)
        kafka.kill()
        try:
            job.say(20)
            job.cluster.pass_time(2)
            job.crash()
            job.cluster.pass_time(2)
            assert job.cluster.driver.outcome is None, "the job waits"
        finally:
            kafka.start()
        monkeypatch.setattr("holdfast.sinks.kafka.client.WAIT_S", 15.0)
        job.say(5)
        job.finish()
        job.check()

    def test_a_rewind_leaves_records_and_fences_the_old_timeline(self, start: Callable[[str], Job]) -> None:
        """The user has accepted that they stay; what is processed again is added to them."""
        job = start(CONTINUOUS)
        job.say(6)
        job.cluster.pass_time(3)
        base = cluster_steps.epoch_before(job.cluster, 0)
        job.say(6)
        job.cluster.pass_time(3)
        assert job.copied() == Counter(job.said)
        assert unrepairable(job.plan.sinks) == ("copy", "totals-out"), "so a rewind has to be accepted for them"
        assert job.rewind(base, "copy:impossible", "totals-out:impossible") is None
        while job.cluster.driver.state.job.timeline == 1:
            job.cluster.pass_time(0.25)
        job.finish()
        assert job.copied() == Counter(job.said) + Counter(job.said[6:])
        assert job.newest_totals() == job.expected_totals()


class TestWhatAJobSends:
    def app(self) -> hf.App:
        app = hf.App("words")
        rows = app.source("rows", hf.Log("input", Said))
        rows.sink("copy", hf.Kafka("broker.example:9092", "copy", hf.JSON(Said), key="word"))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", hf.Kafka("broker.example:9092", "totals", hf.JSON(Total), key="word"))
        return app

    def test_a_test_driver_needs_no_broker(self, mode: str) -> None:
        with TestDriver(self.app(), mode=mode) as t:
            t.push("rows", [Said(1, "a"), Said(2, "b"), Said(3, "a")])
            t.finish()
            assert sorted(row["n"] for row in t.rows("copy")) == [1, 2, 3]
            assert sorted(t.rows("totals-out"), key=lambda row: str(row["word"])) == [
                {"word": "a", "rows": 2, "total": 4},
                {"word": "b", "rows": 1, "total": 2},
            ]

    def test_a_stream_that_replaces_rows_needs_its_key(self) -> None:
        app = hf.App("words")
        totals = app.source("rows", hf.Log("input", Said)).key_by("word").agg("totals", rows=hf.count())
        with pytest.raises(hf.ConfigError, match=r"the stream replaces rows by \['word'\], the sink has no key"):
            totals.sink("out", hf.Kafka("broker.example:9092", "totals"))
