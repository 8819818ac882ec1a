"""The time from a record's send to Kafka until a reader of committed records has it, through q_pass as local processes.

For both deliveries and several intervals between checkpoints. Every record carries the time of its send; the reader
looks at one in `SAMPLED`. The report also has the CPU time of the job and, by its log, how far apart its epochs are.
LATENCY_MODES=0,2 chooses the first and the third of `MODES`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from cpu_clock import tree_s
from harness import Bench
from kafka_server import KafkaServer
from patience import Patience, wait_for_end
from peer_jobs import Places

from holdfast.checkpoint.repository import Repository
from holdfast.storage.objects import open_objects

PARTITIONS, SAMPLED, WARM_S = 4, 20, 2.0
BID = b'{"auction":1234,"bidder":567890,"price":4321,"channel":"channel-7","dateTime":%d}'
STAMP = b'"dateTime":'
MODES = (
    ("at-least-once", "1s", 5_000),
    ("at-least-once", "1s", 50_000),
    ("transactional", "100ms", 5_000),
    ("transactional", "100ms", 50_000),
    ("transactional", "30ms", 5_000),
)
"""How the sink delivers, the interval between checkpoints, records per second."""


@pytest.mark.kafka
@pytest.mark.e2e
def bench_kafka_latency(bench: Bench, kafka: KafkaServer, tmp_path: Path) -> None:
    """Budget at 5,000/s: at least once 15 / 26 ms, exactly once every 100 ms 65 / 110 and every 30 ms 32 / 65."""
    seconds = bench.size("seconds", smoke=1, full=15)
    chosen = map(int, os.environ.get("LATENCY_MODES", "0,1,2,3,4" if bench.full else "2").split(","))
    rows = 0
    with bench.timed():
        for n in chosen:
            delivery, every, rate = MODES[n]
            found = Run(kafka, tmp_path / str(n), delivery, every, rate).play(seconds)
            rows += found.read
            bench.note(f"{delivery}, every {every}, {rate:,}/s: {found.line()}")
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    bench.report(per=rows, unit="row", check=rows)


class Run:
    """One job with its own topics."""

    def __init__(self, kafka: KafkaServer, folder: Path, delivery: str, every: str, rate: int) -> None:
        folder.mkdir()
        self._kafka, self._folder, self._rate, self._every = kafka, folder, rate, every
        self._into, self._out = (kafka.topic(PARTITIONS) for _ in range(2))
        places = Places(kafka.servers, folder, self._into, "unused", self._out, delivery)  # type: ignore[arg-type]
        self._environment = {**os.environ, **places.environment("q_pass", every)}
        self._after_ms = 0.0
        self._sent = 0
        self.read = 0
        self._latencies: list[float] = []
        self._cpu_ms = 0.0

    def play(self, seconds: float) -> Run:
        """Send for so long after the first record was read and the job is warm; return what was found."""
        with self._job() as process, closing(self._reader()) as reader:
            settings = {"bootstrap.servers": self._kafka.servers, "linger.ms": 1}
            producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
            ends = threading.Event()
            looking = threading.Thread(target=self._look, args=(reader, ends), daemon=True)
            looking.start()
            patience = Patience(process.pid)
            while not self.read:
                assert process.poll() is None and not patience.over, (self._folder / "stderr.txt").read_text()[-3_000:]
                self._send(producer, PARTITIONS)
                ends.wait(0.1)
            start = time.monotonic()
            self._after_ms = time.time() * 1e3 + WARM_S * 1e3
            before_s = tree_s(process.pid)
            already = self._sent
            while (passed := time.monotonic() - start) < WARM_S + seconds:
                if (due := already + int(passed * self._rate) - self._sent) > 0:
                    self._send(producer, due)
                ends.wait(0.002)
            self._cpu_ms = (tree_s(process.pid) - before_s) * 1e3 / passed
            producer.flush()
            while self.read < self._sent:
                assert process.poll() is None and not patience.over
                ends.wait(0.01)
            ends.set()
            looking.join()
        return self

    def line(self) -> str:
        """Return the percentiles, the processor time, and where a record waited."""
        cuts = quantiles(self._latencies, n=100)
        epochs = self._epochs()
        return (
            f"p50 {median(self._latencies):.0f} ms, p99 {cuts[98]:.0f} ms, longest {max(self._latencies):.0f} ms "
            f"({len(self._latencies):,} samples); {self._cpu_ms:.0f} ms of CPU a second; {epochs}"
        )

    def _epochs(self) -> str:
        repository = Repository(open_objects(str(self._folder / "root" / "q_pass")))
        job = repository.read_log()
        assert job is not None
        at = [completed.at for completed in job.completed]
        apart = [(after - before) / 1e3 for before, after in pairwise(at)]
        return f"epochs {median(apart):.0f} ms apart (p90 {quantiles(apart, n=10)[8]:.0f})" if len(apart) > 1 else ""

    @contextmanager
    def _job(self) -> Iterator[subprocess.Popen[bytes]]:
        job = str(Path(__file__).with_name("peer_jobs.py"))
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", job, "--local", "--parallelism", "2"]
        with (self._folder / "stderr.txt").open("w") as errors:
            process = subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            yield process
        finally:
            process.terminate()
            wait_for_end(process, "the end of the job")
        assert process.returncode == 0, (self._folder / "stderr.txt").read_text()[-3_000:]

    def _reader(self) -> Consumer:
        settings = {
            "bootstrap.servers": self._kafka.servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
        reader = Consumer(settings)
        reader.assign([TopicPartition(self._out, partition, 0) for partition in range(PARTITIONS)])
        return reader

    def _look(self, reader: Consumer, ends: threading.Event) -> None:
        while not ends.is_set():
            for message in reader.consume(5_000, 0.01):
                value = message.value()
                if message.error() or value is None:
                    continue
                self.read += 1
                if self.read % SAMPLED == 0:
                    start = value.index(STAMP) + len(STAMP)
                    sent_ms = int(value[start : start + 13])
                    if self._after_ms and sent_ms >= self._after_ms:
                        self._latencies.append(time.time() * 1e3 - sent_ms)

    def _send(self, producer: Producer, count: int) -> None:
        value = BID % int(time.time() * 1e3)
        for _ in range(count):
            producer.produce(self._into, value, partition=self._sent % PARTITIONS)
            self._sent += 1
        producer.poll(0)
