"""Sources whose records appear at a rate: the driver counts those that have, and no task waits for any."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast.ports import Clock
from holdfast.runtime.sources.generator import Generator, OpenGenerator
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

MODES = pytest.mark.parametrize("mode", ["microbatch", "continuous"])

RATE = 10


@dataclass
class Number:
    n: int


class Now:
    """The clock of the cluster, once there is one."""

    cluster: Cluster | None = None

    def monotonic(self) -> float:
        return 1_000.0 if self.cluster is None else self.cluster.clock.now

    def wall_us(self) -> int:
        return 0


class Clocked(Generator[Number]):
    """A generator in virtual time."""

    now = Now()

    def open(self, clock: Clock | None = None) -> OpenGenerator:
        return super().open(self.now)


class Job:
    """A job in one thread that copies numbers; `computed` has those that the source was asked for."""

    def __init__(self, mode: str, count: int | None = None) -> None:
        Clocked.now.cluster = None
        self.computed: list[int] = []
        app = hf.App("numbers", parallelism=2)
        source = Clocked(Number, self.number, rate=RATE, count=count, partitions=2)
        app.source("numbers", source).sink("out", MemorySink())
        plan = app.plan()
        plan.sinks[0].sink.prepare(plan.sinks[0].schema, None)
        self.cluster = Clocked.now.cluster = Cluster(plan, 2, 0, MemoryObjects(), 1.0, {"numbers": (0, 1)}, mode)

    def begin(self) -> None:
        self.computed.clear()
        self.cluster.begin()
        self.cluster.settle()

    def number(self, n: int) -> Number:
        self.computed.append(n)
        return Number(n)

    def read(self) -> int:
        """Return how many records the last checkpoint holds."""
        job = self.cluster.driver.state.job
        if not job.completed:
            return 0
        return sum(at.offset for at in self.cluster.repository.load_manifest(job.completed[-1].body.manifest).positions)

    def stop(self, how: str) -> None:
        generation = self.cluster.driver.state.job.generation
        answer = self.cluster.driver.asked("stop", {"how": how}, generation, generation)
        assert answer is None or answer["accepted"]

    def lasts(self, limit_s: float) -> float:
        """Return how long the run takes to end."""
        began = self.cluster.clock.now
        self.cluster.pass_time(limit_s)
        assert self.cluster.driver.outcome is not None, f"{self.read()} records after {limit_s} s"
        return self.cluster.clock.now - began


class TestRate:
    @MODES
    def test_records_are_read_as_they_appear(self, mode: str) -> None:
        job = Job(mode)
        job.begin()
        for seconds in (10, 20, 30):
            job.cluster.pass_time(10)
            assert RATE * (seconds - 3) <= job.read() <= RATE * seconds

    def test_no_task_waits_and_none_computes_records_of_later_epochs(self) -> None:
        job = Job("microbatch")
        job.begin()
        began = job.cluster.clock.now
        job.cluster.pass_time(10)
        assert job.cluster.clock.now == began + 10
        assert job.read() > 0 and sorted(job.computed) == list(range(job.read()))

    @MODES
    def test_a_run_that_starts_again_counts_from_where_it_begins(self, mode: str) -> None:
        job = Job(mode)
        job.begin()
        job.cluster.pass_time(20)
        before = job.read()
        job.cluster.clock.now += 3_600  # nothing runs
        job.cluster.replace_driver()
        job.cluster.settle()
        job.cluster.pass_time(10)
        assert RATE * 7 <= job.read() - before <= RATE * 10

    def test_a_recovery_reads_again_without_waiting(self) -> None:
        job = Job("microbatch")
        job.begin()
        job.cluster.pass_time(10)
        assert job.cluster.batches is not None
        faults = job.cluster.batches.jobs.faults
        faults.fails = 1.0
        job.cluster.pass_time(20)
        assert job.read() <= RATE * 10
        faults.fails = 0.0
        job.cluster.pass_time(10)
        assert job.cluster.driver.state.job.generation > 1
        assert RATE * 37 <= job.read() <= RATE * 40


class TestCountAndRate:
    @MODES
    def test_the_job_commits_while_records_appear_and_finishes_after_the_last(self, mode: str) -> None:
        job = Job(mode, count=400)
        job.begin()
        job.cluster.pass_time(10)
        assert RATE * 7 <= job.read() <= RATE * 10
        assert 28 <= job.lasts(60) <= 33
        assert job.cluster.driver.outcome == ("finished", None)
        assert job.read() == 400

    @MODES
    def test_a_run_with_once_reads_all_of_the_count(self, mode: str) -> None:
        job = Job(mode, count=400)
        job.cluster.change_rules(until={"numbers": {0: 200, 1: 200}})
        job.begin()
        assert 38 <= job.lasts(60) <= 43
        assert job.read() == 400

    @MODES
    def test_a_request_to_finish_reads_all_of_the_count(self, mode: str) -> None:
        job = Job(mode, count=400)
        job.begin()
        job.cluster.pass_time(10)
        job.stop("finish")
        assert 28 <= job.lasts(60) <= 33
        assert job.read() == 400

    @MODES
    def test_a_request_to_finish_reads_what_has_appeared_if_there_is_no_count(self, mode: str) -> None:
        job = Job(mode)
        job.begin()
        job.cluster.pass_time(20)
        job.cluster.replace_driver()
        job.cluster.settle()
        job.cluster.pass_time(10)
        job.stop("finish")
        assert job.lasts(60) < 5
        assert RATE * 27 <= job.read() <= RATE * 32
