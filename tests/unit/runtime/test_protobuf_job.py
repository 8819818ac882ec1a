"""A complete job that reads Protobuf from a real broker, and writes to it as rows come: damaged records, crashes."""

from __future__ import annotations

import json

import pytest
from kafka_server import KafkaServer
from played_jobs import PlayedJob
from protobuf_wire import VARINT, framed, messages, place, tagged

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink

pytestmark = pytest.mark.kafka
PLACE = 1
"""The index of Place in its file."""
DAMAGED = framed(tagged(1, VARINT, b"\1"), PLACE)


class Job(PlayedJob):
    """Reads places, and writes them to another topic at least once."""

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka, self.said, self.damaged = kafka, list[str](), 0
        self.topic, self.out, self.dead = kafka.topic(2), kafka.topic(1), MemorySink(None)
        app = hf.App("places", checkpoint_every="1s", dlq=self.dead)
        rows = app.source("rows", hf.Kafka(kafka.servers, self.topic, hf.Protobuf(messages()["Place"])))
        rows.sink("copy", hf.Kafka(kafka.servers, self.out, key="city", delivery="at-least-once"))
        self.play(app.plan(), 2, {"rows": range(2)})

    def say(self, count: int = 6) -> None:
        """Append rows to both partitions, and to each a damaged record."""
        for partition in range(2):
            cities = [f"city {n}" for n in range(len(self.said), len(self.said) + count)]
            values = [framed(place({"city": each, "lat": None}), PLACE) for each in cities]
            self._kafka.produce(self.topic, [*values, DAMAGED], partition)
            self.said, self.damaged = [*self.said, *cities], self.damaged + 1

    def copied(self) -> list[str]:
        return [json.loads(each.value())["city"] for each in self._kafka.records(self.out)]

    def catch_up(self) -> None:
        """Let time pass until every row was written."""

        def done() -> bool:
            assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
            return set(self.copied()) == set(self.said) and len(self.dead.rows()) == self.damaged

        self.until(done, "all rows")


@pytest.mark.thorough
def test_every_row_is_written_at_least_once_and_damaged_records_go_to_the_dlq(kafka: KafkaServer) -> None:
    job = Job(kafka)
    job.say()
    job.catch_up()
    assert sorted(job.copied()) == sorted(job.said), "without a failure, each row comes once"
    job.say()
    for _ in range(60):
        job.cluster.step()
    job.crash()
    job.say()
    job.catch_up()
    assert {row["raw"] for row in job.dead.rows()} == {DAMAGED}
    assert all("field 'city' (number 1) is not written as its type" in row["error"] for row in job.dead.rows())
