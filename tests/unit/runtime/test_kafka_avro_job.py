"""A complete job that reads and writes Avro on a real broker: a new schema, a registry that is away, crashes."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import pytest
import registry_server
from kafka_server import KafkaServer
from played_jobs import WORDS, PlayedJob
from registry_server import RegistryServer

import holdfast as hf
from holdfast.runtime.config.settings import MODES
from holdfast.runtime.sources.kafka import batches, feed
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.kafka import registry

pytestmark = pytest.mark.kafka


@dataclass
class Said:
    n: int
    word: str
    loud: bool = False


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Said", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


OLD = record(n="int", word="string")
NEW = record(more=["null", "string"], word={"type": "enum", "name": "Word", "symbols": WORDS}, loud="boolean", n="long")


def encoded(schema: Any, number: int, row: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + file.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setattr(registry, "AWAY_S", 0.0)
    with registry_server.running() as server:
        yield server


class Job(PlayedJob):
    """The job, its input and its results."""

    def __init__(self, kafka: KafkaServer, server: RegistryServer, mode: str) -> None:
        self.said, self.damaged = list[tuple[int, str, bool]](), 0
        self._kafka, self._server = kafka, server
        self.topic, self.out = kafka.topic(2), kafka.topic(1)
        self.dead = MemorySink(None)
        app = hf.App("words", checkpoint_every="1s", dlq=self.dead)
        value = hf.Avro(Said, registry=server.url)
        rows = app.source("rows", hf.Kafka(kafka.servers, self.topic, value))
        rows.sink("copy", hf.Kafka(kafka.servers, self.out, value))
        self.play(app.plan(), 2, {"rows": range(2)}, mode)

    def say(self, schema: Any, count: int = 6) -> None:
        """Append rows of a schema to both partitions, and to each a damaged record."""
        number = self._server.add(f"{self.topic}-value", schema)
        for partition in range(2):
            rows = []
            for n in range(len(self.said), len(self.said) + count):
                rows.append({"n": n, "word": WORDS[n % 3], "loud": bool(n % 2), "more": None})
                self.said.append((n, WORDS[n % 3], bool(n % 2) and schema is NEW))
            values = [encoded(schema, number, row) for row in rows]
            self._kafka.produce(self.topic, [*values, values[0][:-1]], partition)
            self.damaged += 1

    def copied(self) -> Counter[tuple[int, str, bool]]:
        """Return what the sink wrote, as the library reads it with the schema that its records name."""
        found = Counter[tuple[int, str, bool]]()
        for each in self._kafka.records(self.out):
            number = int.from_bytes(each.value()[1:5], "big")
            schema = fastavro.parse_schema(json.loads(self._server.text(number)))
            row: Any = fastavro.schemaless_reader(io.BytesIO(each.value()[5:]), schema, None)
            found[row["n"], row["word"], row["loud"]] += 1
        return found

    def catch_up(self) -> None:
        """Let time pass until everything was delivered, each row once."""

        def done() -> bool:
            assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
            return self.copied().total() >= len(self.said) and len(self.dead.rows()) >= self.damaged

        self.until(done, "all rows")
        self.cluster.pass_time(3.0)
        assert self.copied() == Counter(self.said)
        assert len(self.dead.rows()) == self.damaged


@pytest.mark.thorough
class TestJob:
    @pytest.mark.parametrize("mode", MODES)
    def test_copies_every_record_once_through_a_new_schema_an_outage_and_crashes(
        self, kafka: KafkaServer, server: RegistryServer, mode: str
    ) -> None:
        job = Job(kafka, server, mode)
        job.say(OLD)
        job.catch_up()
        job.crash()
        server.fails = 30
        job.say(NEW)
        job.say(OLD)
        job.catch_up()
        assert server.fails == 0, "the job waited"
        job.crash()
        job.say(NEW)
        job.catch_up()

    @pytest.mark.parametrize("mode", MODES)
    def test_ends_at_a_schema_that_does_not_fit_and_skips_nothing(
        self, kafka: KafkaServer, server: RegistryServer, mode: str
    ) -> None:
        job = Job(kafka, server, mode)
        job.say(OLD)
        job.catch_up()
        other = record(n="string", word="string")
        number = server.add(f"{job.topic}-value", other)
        kafka.produce(job.topic, [encoded(other, number, {"n": "7", "word": "a"})], 1)
        wrong = f"schema {number} of subject '{job.topic}-value'", "its field 'n' is string"
        error = job.ends(hf.ConfigError, *wrong)
        assert (error.partition, error.offset) == (1, 7)
        assert len(job.dead.rows()) == job.damaged


class TestSource:
    def test_fetches_messages_once_while_a_registry_is_away(
        self, kafka: KafkaServer, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = kafka.topic()
        number = server.add(f"{topic}-value", OLD)
        kafka.produce(topic, [encoded(OLD, number, {"n": n, "word": "a"}) for n in range(3)])
        opened = hf.Kafka(kafka.servers, topic, hf.Avro(Said, registry=server.url)).source().open()
        takes, take = list[int](), batches.BatchFeed.take

        def counted(self: batches.BatchFeed, partition: int, offset: int, bytes_max: int) -> feed.Taken:
            takes.append(offset)
            return take(self, partition, offset, bytes_max)

        monkeypatch.setattr(batches.BatchFeed, "take", counted)
        try:
            server.stop()
            for _ in range(3):
                with pytest.raises(hf.Unavailable, match="the schema registry .* is unreachable"):
                    opened.read(0, 0, 1 << 20)
            server.start()
            batch, following = opened.read(0, 0, 1 << 20)
            assert batch is not None and batch.num_rows == 3 and following == 3 and takes == [0]
            again, _ = opened.read(0, 1, 1 << 20)
            assert again is not None and [row["n"] for row in again.to_pylist()] == [1, 2]
        finally:
            opened.close()

    def test_names_the_place_of_a_record_whose_schema_does_not_fit(
        self, kafka: KafkaServer, server: RegistryServer
    ) -> None:
        topic, other = kafka.topic(), record(n="string", word="string")
        number = server.add(f"{topic}-value", other)
        kafka.produce(topic, [encoded(other, number, {"n": "7", "word": "a"})])
        opened = hf.Kafka(kafka.servers, topic, hf.Avro(Said, registry=server.url)).source().open()
        try:
            with pytest.raises(
                hf.ConfigError, match=f"{topic}.*, partition 0, at offset 0 or behind: schema {number} of"
            ):
                opened.read(0, 0, 1 << 20)
        finally:
            opened.close()
