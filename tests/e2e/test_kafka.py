"""A job on real Spark that reads a topic of a real broker: workers and broker are killed, the mode changes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from exact_targets import delivered, differences
from harness import wait
from kafka_server import KafkaServer
from running import running

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.slow]

JOB = Path(__file__).with_name("kafka_job.py")


class Input:
    """The topic of the job, and the rows appended to it."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka, self.topic, self.rows = kafka, kafka.topic(2), list[tuple[str, int]]()
        self.environment = {"KAFKA_SERVERS": kafka.servers, "KAFKA_TOPIC": self.topic}

    def append(self, count: int) -> int:
        """Append so many rows to every partition, and an aborted one; return how many there are by now."""
        for partition in (0, 1):
            more = [(f"key-{n % 17}", len(self.rows) + n) for n in range(count)]
            self.rows += more
            self.kafka.produce(self.topic, [_value(*row) for row in more], partition)
            with self.kafka.transaction(commit=False) as producer:
                producer.produce(self.topic, _value("aborted", -1), partition=partition)
        return len(self.rows)


def _value(key: str, n: int) -> bytes:
    return json.dumps({"key": key, "n": n}).encode()


def test_every_record_counts_once_although_workers_and_broker_are_killed_and_the_mode_changes(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    given = Input(kafka)
    total = given.append(500)
    with running(tmp_path, "--master", "local[3]", job=JOB, **given.environment) as run:
        run.wait_until_running(total)
        os.kill(run.lines[-1]["workers"][0]["pid"], signal.SIGKILL)
        kafka.kill()
        kafka.start()
        total = given.append(500)
        wait(lambda: delivered(tmp_path) == total, f"{total} rows", timeout_s=80)
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
    given.append(500)
    with running(tmp_path, "--mode", "microbatch", "--once", job=JOB, **given.environment) as run:
        assert run.finish() == 0, run.errors()
    assert differences(tmp_path, given.rows) == []
