"""A job on Spark from Kafka to Kafka, while workers, connections and broker fail; a reader compares all along.

Everything that the job does with the broker goes through Toxiproxy; the rows and their reader go past it. Each fault is
seen to take effect, and after it every row that was given until then has to arrive.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from kafka_numbers import Numbers, Seen
from kafka_server import KafkaServer
from patience import wait
from proxied import Proxied
from running import Run, lasts, pid_gone, running
from striking import Striking

from holdfast.chaos.live.faults.proxy import Toxiproxy
from holdfast.chaos.live.faults.sockets import established
from holdfast.sinks.kafka.progress import progress_topic

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.toxiproxy, pytest.mark.timeout(1_800)]

JOB = Path(__file__).with_name("kafka_job.py")
"""Two workers, and room for the successors of two that are stopped."""
SETTINGS = {"HOLDFAST_SILENT_AFTER_MS": "3s", "HOLDFAST_RESTART_FAILURES_MAX": "1000"}
PARTITIONS, PER_SECOND = 4, 400
LASTS_S = (0.5, 3.0)
PAUSE_S = (0.0, 1.0)
MARKED_WITHIN_S = 10.0
"""A commit is confirmed before its markers are in all partitions. Brokers end one that was left open much later."""


@dataclass(frozen=True)
class Topics:
    """The topics of a job, and its way to them."""

    kafka: KafkaServer
    link: Proxied
    given: str
    counted: str

    @property
    def environment(self) -> dict[str, str]:
        """What the job needs."""
        return {"KAFKA_SERVERS": self.link.address, "KAFKA_INPUT": self.given, "KAFKA_OUTPUT": self.counted, **SETTINGS}

    def connections(self) -> dict[bytes, int]:
        """Return the connections of the job to the proxy, and how many bytes each has brought."""
        return {each.cookie: each.received for each in established() if each.local == self.kafka.ports.proxy}

    def answers(self) -> dict[bytes, int]:
        """Return the connections of the proxy to the broker, and how many bytes each has brought."""
        return {each.cookie: each.received for each in established() if each.remote == self.kafka.ports.behind}

    def past_proxy(self, run: Run) -> list[int]:
        """Return the processes of the job that are connected with the broker itself."""
        driver = psutil.Process(run.process.pid)
        return [each.pid for each in (driver, *driver.children(recursive=True)) if self._is_connected(each)]

    def is_settled(self) -> bool:
        """Return whether no transaction is open in what the job writes."""
        written = (self.counted, progress_topic(self.counted))
        return all(self.kafka.ends(each) == self.kafka.ends(each, "read_uncommitted") for each in written)

    def _is_connected(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = process.net_connections("tcp")
            return any(each.raddr and each.raddr.port in self.kafka.ports.of_broker for each in connections)
        return False


@pytest.fixture
def topics(tmp_path: Path, kafka: KafkaServer) -> Iterator[Topics]:
    with contextlib.closing(Toxiproxy(tmp_path / "toxiproxy.log")) as proxies:
        link = Proxied("kafka", kafka.behind_proxy, proxies, kafka.proxied)
        link.create()
        yield Topics(kafka, link, kafka.topic(PARTITIONS), kafka.topic(PARTITIONS))


@dataclass(kw_only=True)
class Chaos(Striking):
    """Strikes workers, connections and the broker."""

    topics: Topics
    numbers: Numbers
    seen: Seen

    def strike(self, kind: str) -> None:
        super().strike(kind)
        self.numbers.abort()
        lasts(self.chance.uniform(*PAUSE_S))

    def catch_up(self) -> float:
        """Wait until the rows that were given by now have arrived; return the seconds that it took."""
        given, began = self.numbers.rows, time.monotonic()
        ended = self.run.process.poll
        wait(lambda: self.seen.rows >= given or ended() is not None, f"row {given}")
        assert ended() is None, self.run.errors()
        return time.monotonic() - began

    # Faults

    def kill_worker(self) -> None:
        self.replaced(self.signal_worker(signal.SIGKILL))

    def kill_worker_out_of_reach(self) -> None:
        """Kill a worker that cannot reach Kafka: its successor cannot either, at first."""
        with self._out_of_reach():
            killed = self.signal_worker(signal.SIGKILL)
        self.replaced(killed)

    def stop_worker(self) -> None:
        """Stop a worker until another one has its work; when it resumes, its deliveries must be fenced."""
        generation, pid = self.signal_worker(signal.SIGSTOP)
        try:
            self.next_generation(generation)
            assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        finally:
            os.kill(pid, signal.SIGCONT)

    def cut_link(self) -> None:
        with self._out_of_reach():
            pass

    def limit_link(self) -> None:
        """End connections in the middle of answers."""
        self._end_connections("limit_data", bytes=self.chance.randint(100, 2_000))

    def reset_link(self) -> None:
        self._end_connections("reset_peer", timeout=0)

    def slow_link(self) -> None:
        self.topics.link.toxic("latency", latency=self.chance.randint(100, 400), jitter=100)
        before = self.topics.answers()
        wait(lambda: self._received_since(before), "bytes that are late")
        lasts(self.chance.uniform(*LASTS_S))
        self.topics.link.untoxic("latency")

    def kill_broker(self) -> None:
        kafka = self.topics.kafka
        pid = kafka.pid
        kafka.kill()
        assert pid_gone(pid)
        lasts(self.chance.uniform(*LASTS_S))
        kafka.start()

    @contextlib.contextmanager
    def _out_of_reach(self) -> Iterator[None]:
        """End all connections, and refuse new ones for some time."""
        assert self.topics.connections()
        self.topics.link.reachable(False)
        wait(lambda: not self.topics.connections(), "the end of connections")
        yield
        lasts(self.chance.uniform(*LASTS_S))
        self.topics.link.reachable(True)

    def _end_connections(self, toxic: str, **given: int) -> None:
        before = self.topics.connections()
        self.topics.link.toxic(toxic, "downstream", **given)
        wait(lambda: before.keys() - self.topics.connections().keys(), f"a connection ended by {toxic}")
        lasts(self.chance.uniform(*LASTS_S))
        self.topics.link.untoxic(toxic)

    def _received_since(self, before: Mapping[bytes, int]) -> bool:
        return any(size > before.get(each, 0) for each, size in self.topics.answers().items())

    FAULTS: ClassVar = {
        "worker killed": kill_worker,
        "worker killed while Kafka is out of reach": kill_worker_out_of_reach,
        "worker stopped": stop_worker,
        "link cut": cut_link,
        "link ended in the middle of answers": limit_link,
        "link reset": reset_link,
        "link slow": slow_link,
        "broker killed": kill_broker,
    }


def read_more_in_microbatch_mode(topics: Topics, folder: Path, numbers: Numbers) -> None:
    """Append further rows, and let the job read them in the other mode, from where it was."""
    numbers.append(1_000)
    numbers.flush()
    with running(folder, "--mode", "microbatch", "--once", job=JOB, **topics.environment) as run:
        assert run.finish() == 0, run.errors()
    wait(topics.is_settled, "the end of all transactions", within_s=MARKED_WITHIN_S)


@pytest.mark.parametrize("minutes", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_a_reader_sees_each_row_once_and_in_order_whatever_fails_meanwhile(
    topics: Topics, tmp_path: Path, minutes: int
) -> None:
    kafka, chance = topics.kafka, random.Random(minutes)
    numbers = Numbers(kafka, topics.given, PARTITIONS, PER_SECOND, chance)
    with Seen(kafka, topics.counted, PARTITIONS) as seen:
        with numbers, running(tmp_path, job=JOB, **topics.environment) as run:
            run.wait_until_running(1_000)
            assert topics.connections() and topics.past_proxy(run) == []
            chaos = Chaos(run=run, topics=topics, numbers=numbers, seen=seen, chance=random.Random(minutes))
            chaos.strike_for(60.0 * minutes)
            numbers.stop()
            chaos.catch_up()
            run.process.send_signal(signal.SIGTERM)
            assert run.finish() == 0, run.errors()
            wait(topics.is_settled, "the end of all transactions", within_s=MARKED_WITHIN_S)
        if minutes:  # it takes another minute
            read_more_in_microbatch_mode(topics, tmp_path, numbers)
        wait(lambda: seen.rows >= numbers.rows, "the last rows")
    restarts = run.lines[-1]["restarts"]
    voided = len(kafka.records(topics.counted, "read_uncommitted")) - seen.rows
    took = ", ".join(f"{kind} {count} ({chaos.caught_up_s[kind]:.1f} s)" for kind, count in sorted(chaos.fired.items()))
    print(f"{seen.rows:,} rows, {voided:,} more in aborted transactions, {len(restarts)} restarts; {took}")
    assert chaos.fired.keys() == Chaos.FAULTS.keys()
    assert seen.faults == []
    assert seen.newest == numbers.given
    assert len(kafka.records(topics.counted)) == seen.rows == numbers.rows
    assert len(restarts) >= sum(count for kind, count in chaos.fired.items() if kind.startswith("worker"))
    assert all(each["cause"].startswith("worker ") for each in restarts), "no fault of Kafka restarts anything"
