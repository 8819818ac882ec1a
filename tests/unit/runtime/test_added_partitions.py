"""Partitions that are added while a job runs, with the production loops: docs/decisions/0035-partition-discovery.md."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import JobFailed, Unavailable
from holdfast.runtime.driver.state import Hosted
from holdfast.runtime.job import status
from holdfast.runtime.testing.driver import PushedSource
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

SEEDS = pytest.mark.parametrize("seed", range(5))
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bid:
    auction: int
    at: datetime = START


def hot() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i), count=1))
    bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="t", key=["auction"]))
    return app


def windowed(idle_after: str = "30s") -> hf.App:
    app = hf.App("hot", key_groups=16)
    source = hf.Generator(Bid, lambda i: Bid(i), count=1)
    bids = app.source("bids", source, event_time="at", out_of_orderness="0s", idle_after=idle_after)
    per_minute = bids.key_by("auction").window(hf.tumbling("1m")).agg("hot", bids=hf.count())
    per_minute.sink("out", hf.SQLite("unused.db", table="t", key=["auction", "window_start"]))
    return app


def source_of(t: TestDriver) -> PushedSource:
    return t.sources["bids"]


def last_manifest(t: TestDriver) -> Manifest:
    job = job_of(t)
    return t.cluster.repository.load_manifest(job.completed[-1].body.manifest)


def job_of(t: TestDriver) -> joblog.Job:
    job = t.cluster.repository.read_log()
    assert job is not None
    return job


def stands(t: TestDriver) -> dict[int, int]:
    return {at.partition: at.offset for at in last_manifest(t).positions}


def total(t: TestDriver) -> int:
    return sum(row["bids"] for row in t.rows("out"))


class TestAddedPartition:
    @SEEDS
    def test_is_read_from_its_first_record_without_a_restart(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)] * 10)
            t.checkpoint()
            source_of(t).add_partitions(2)
            for partition in (4, 5):
                t.push("bids", [Bid(1)] * 100, partition=partition)
            t.advance("12s")
            t.checkpoint()
            assert total(t) == 210 and not t.restarts
            assert stands(t) == {0: 10, 1: 0, 2: 0, 3: 0, 4: 100, 5: 100}

    def test_begins_at_its_first_retained_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1)] * 10)
            t.checkpoint()
            monkeypatch.setattr(source_of(t), "retention_start", lambda partition: 3 if partition == 4 else 0)
            source_of(t).add_partitions(1)
            source_of(t).tables[4] = source_of(t).tables[0]
            t.advance("12s")
            t.checkpoint()
            assert total(t) == 17 and stands(t)[4] == 10
            t.crash()
            t.recover()
            t.push("bids", [Bid(1)], partition=4)
            t.checkpoint()
            assert total(t) == 18 and stands(t)[4] == 11

    @SEEDS
    def test_is_assigned_in_turn(self, seed: int) -> None:
        with TestDriver(hot(), parallelism=3, seed=seed) as t:
            t.add_partitions("bids", 3)
            read = {h.subtask: [at.partition for at in h.heartbeat.progress.positions] for h in workers(t)}
            assert read == {0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}

    @SEEDS
    def test_costs_an_idle_job_one_epoch(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.checkpoint()
            t.advance("1m")
            before = len(job_of(t).completed)
            t.add_partitions("bids")
            t.advance("5m")
            assert len(job_of(t).completed) == before + 1
            assert stands(t)[4] == 0

    @SEEDS
    def test_survives_the_death_of_a_worker_at_any_moment(self, seed: int) -> None:
        chance = random.Random(seed)
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)] * 50)
            source_of(t).add_partitions(3)
            for _ in range(4):
                t.push("bids", [Bid(1)] * 25, partition=chance.randrange(7))
                t.advance(f"{chance.randrange(8_000)}ms")
                t.crash(chance.randrange(2))
                t.recover()
            t.advance("30s")
            t.finish()
            assert total(t) == 150

    @SEEDS
    def test_is_read_by_a_driver_that_takes_over_the_job(self, seed: int) -> None:
        chance = random.Random(seed)
        with TestDriver(hot(), seed=seed) as t:
            source_of(t).add_partitions(3)
            for _ in range(3):
                t.push("bids", [Bid(1)] * 25, partition=chance.randrange(7))
                t.advance(f"{chance.randrange(15_000)}ms")
                t.cluster.replace_driver()  # it listed the sources before they were added
            t.advance("30s")
            t.finish()
            assert total(t) == 75

    @SEEDS
    def test_is_read_again_after_a_rewind_to_before_it(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)] * 10)
            before = t.checkpoint()
            t.add_partitions("bids")
            t.push("bids", [Bid(1)] * 20, partition=4)
            t.checkpoint()
            t.rewind(before)
            t.checkpoint()
            assert total(t) == 30 and stands(t)[4] == 20

    @SEEDS
    def test_is_read_before_a_job_whose_input_is_over_finishes(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)] * 10)
            t.checkpoint()
            source_of(t).add_partitions(1)
            source = source_of(t)
            source.tables[4] = source.tables[0]
            t.finish()
            assert total(t) == 20 and job_of(t).finished

    @SEEDS
    def test_is_read_before_a_finish_that_was_requested_later(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)] * 10)
            t.checkpoint()
            source_of(t).add_partitions(1)
            source = source_of(t)
            source.tables[4] = source.tables[0]
            t.cluster.driver.asked("stop", {"how": "finish"}, 1, job_of(t).generation)
            while t.cluster.driver.outcome is None:
                t.advance("250ms")
            assert total(t) == 20 and job_of(t).finished

    def test_waits_while_the_source_is_unreachable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(hot()) as t:
            source_of(t).add_partitions(1)

            def refuse() -> list[int]:
                raise Unavailable("the source is unreachable", next_step="wait")

            monkeypatch.setattr(source_of(t), "partitions", refuse)
            t.advance("30s")
            assert 4 not in {at.partition for h in workers(t) for at in h.heartbeat.progress.positions}
            monkeypatch.undo()
            t.advance("3s")
            assert 4 in {at.partition for h in workers(t) for at in h.heartbeat.progress.positions}

    def test_an_added_partition_of_a_recreated_source_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1)])
            t.checkpoint()
            source_of(t).add_partitions(1)
            monkeypatch.setattr(source_of(t), "changed", lambda _identity: "it was recreated")
            with pytest.raises(JobFailed, match="it was recreated"):
                t.advance("30s")

    def test_a_partition_that_disappears_fails_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1)])
            t.checkpoint()
            monkeypatch.setattr(source_of(t), "partitions", lambda: [0, 1, 2])
            with pytest.raises(JobFailed, match="no longer has partition 3"):
                t.advance("30s")

    def test_is_in_the_status(self) -> None:
        with TestDriver(hot()) as t:
            t.add_partitions("bids")
            t.push("bids", [Bid(1)] * 3, partition=4)
            t.checkpoint()
            shown = status.of_run(t.cluster.driver.state, "", "continuous", None)
            rows = {row.partition: (row.offset, row.lag) for row in shown.sources}
            assert rows == {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0), 4: (3, 0)}


class TestEventTime:
    """A new partition holds event time until its first record or until it is idle; event time never decreases."""

    @SEEDS
    def test_waits_for_a_new_partition(self, seed: int) -> None:
        with TestDriver(windowed(), seed=seed) as t:
            for partition in range(4):
                t.push("bids", [Bid(1, START)], partition=partition)
            t.add_partitions("bids")
            for partition in range(4):
                t.push("bids", [Bid(1, START + timedelta(minutes=2))], partition=partition)
            t.checkpoint()
            assert t.rows("out") == []
            t.push("bids", [Bid(1, START), Bid(1, START + timedelta(minutes=2))], partition=4)
            t.checkpoint()
            assert [row["bids"] for row in t.rows("out")] == [5]

    @SEEDS
    def test_does_not_wait_for_a_new_partition_that_stays_silent(self, seed: int) -> None:
        with TestDriver(windowed(idle_after="1m"), seed=seed) as t:
            t.add_partitions("bids")
            for _ in range(4):
                for partition in range(4):
                    t.push("bids", [Bid(1, START + timedelta(minutes=2))], partition=partition)
                t.advance("30s")
            for partition in range(4):
                t.push("bids", [Bid(1, START + timedelta(minutes=4))], partition=partition)
            t.checkpoint()
            assert [row["bids"] for row in t.rows("out")] == [16]

    @SEEDS
    def test_never_decreases(self, seed: int) -> None:
        """Records of a window that was closed before the partition was discovered are late, and nothing else is."""
        app = windowed()
        with TestDriver(app, seed=seed) as t:
            for partition in range(4):
                t.push("bids", [Bid(1, START), Bid(1, START + timedelta(minutes=2))], partition=partition)
            t.checkpoint()
            assert [row["bids"] for row in t.rows("out")] == [4]
            t.add_partitions("bids")
            times = (START, START + timedelta(minutes=2), START + timedelta(minutes=4))
            t.push("bids", [Bid(1, at) for at in times], partition=4)
            for partition in range(4):
                t.push("bids", [Bid(1, START + timedelta(minutes=4))], partition=partition)
            t.checkpoint()
            assert [row["bids"] for row in t.rows("out")] == [4, 5]


def workers(t: TestDriver) -> list[Hosted]:
    return list(t.cluster.driver.state.workers.values())


class TestImmediateSinks:
    """P22: a key of the target comes from one partition."""

    def app(self) -> hf.App:
        app = hf.App("last", key_groups=16)
        source = hf.Generator(Bid, lambda i: Bid(i), count=1)
        bids = app.source("bids", source, partitioned_by=["auction"])
        bids.sink("lasts", hf.SQLite("unused.db", table="t", key=["auction"], delivery="idempotent"))
        return app

    def test_refuse_additional_partitions_of_their_source(self) -> None:
        with TestDriver(self.app()) as t:
            t.push("bids", [Bid(1)])
            t.checkpoint()
            with pytest.raises(JobFailed, match="sink 'lasts' is written immediately from it"):
                t.add_partitions("bids")
            assert t.rows("lasts") == [{"auction": 1, "at": START}]
