"""A job without anything new closes no epochs, and still delivers, notices time, and is ready for what comes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.checkpoint.catalogue import Retention
from holdfast.model import Generation
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver

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


def windowed() -> hf.App:
    app = hf.App("hot", key_groups=16)
    source = hf.Generator(Bid, lambda i: Bid(i), count=1)
    bids = app.source("bids", source, event_time="at", out_of_orderness="0s", idle_after="30s")
    per_minute = bids.key_by("auction").window(hf.tumbling("1m")).agg("hot", bids=hf.count())
    per_minute.sink("out", hf.SQLite("unused.db", table="t", key=["auction", "window_start"]))
    return app


def job_of(driver: TestDriver) -> joblog.Job:
    job = driver.cluster.repository.read_log()
    assert job is not None
    return job


def epochs(driver: TestDriver) -> int:
    return len(job_of(driver).completed)


def objects(driver: TestDriver) -> int:
    return len(driver.cluster._store.list(""))


class TestIdleJob:
    @SEEDS
    def test_closes_no_epoch_and_stores_nothing(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("10s")
            before = epochs(t), objects(t)
            t.advance("1m")
            assert (epochs(t), objects(t)) == before

    @SEEDS
    def test_has_delivered_its_last_epoch(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("10s")
            assert t.rows("out") == [{"auction": 1, "bids": 1}]
            assert t.state("hot", 1) == {"bids.count": 1}

    @SEEDS
    def test_delivers_its_last_epoch_even_if_the_announcement_is_lost(self, seed: int) -> None:
        """P9: no barrier follows that would announce it."""
        with TestDriver(hot(), seed=seed) as t:
            lost, send = list[m.FromDriver](), t.cluster.send

            def lossy(worker: object, message: m.FromDriver) -> None:
                if isinstance(message, m.Committed) and len(lost) < 4:
                    lost.append(message)
                else:
                    send(worker, message)  # type: ignore[arg-type]

            t.cluster.send = lossy  # type: ignore[method-assign]
            t.push("bids", [Bid(1)])
            t.advance("10s")
            assert len(lost) == 4
            assert t.rows("out") == [{"auction": 1, "bids": 1}]

    @SEEDS
    def test_closes_an_epoch_as_soon_as_a_record_arrives(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("20s")
            before = epochs(t)
            t.push("bids", [Bid(1)], partition=seed % 4)
            assert epochs(t) > before, "no time has passed"
            assert t.rows("out") == [{"auction": 1, "bids": 2}]

    @SEEDS
    def test_takes_a_savepoint_and_stops(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("20s")
            before = epochs(t)
            loop = t.cluster.driver
            loop.asked("savepoint", {"name": "v1"}, loop.state.job.generation, Generation(1))
            t.advance("1s")
            assert epochs(t) == before + 1
            loop.stop()
            t.advance("10s")
            assert loop.outcome == ("stopped", None)

    @SEEDS
    def test_closes_one_epoch_after_a_recovery(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("20s")
            before = epochs(t)
            t.crash(seed % 2)
            t.recover()
            t.advance("20s")
            assert epochs(t) == before + 1
            assert t.rows("out") == [{"auction": 1, "bids": 1}]

    @SEEDS
    def test_still_expires_old_checkpoints(self, seed: int) -> None:
        driver = TestDriver(hot(), seed=seed)
        driver.cluster.change_rules(retention=Retention(2, 60_000_000))
        with driver as t:
            for _ in range(5):
                t.push("bids", [Bid(1)])
                t.checkpoint()
            assert job_of(t).expired_through == 0
            t.advance("2m")
            assert job_of(t).expired_through > 0

    @SEEDS
    def test_stays_idle_with_event_time(self, seed: int) -> None:
        with TestDriver(windowed(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("40s")
            before = epochs(t)
            t.advance("1m")
            assert epochs(t) == before


class TestTimeThatAdvancesWithoutARecord:
    @SEEDS
    def test_closes_the_windows_that_become_due(self, seed: int) -> None:
        with TestDriver(windowed(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("10s")
            before = epochs(t)
            t.watermark("bids", START + timedelta(minutes=5))
            t.advance("2s")
            assert epochs(t) > before
            assert [(row["auction"], row["bids"]) for row in t.rows("out")] == [(1, 1)]

    @SEEDS
    def test_closes_windows_when_the_other_partitions_become_idle(self, seed: int) -> None:
        with TestDriver(windowed(), seed=seed) as t:
            t.push("bids", [Bid(1), Bid(2, START + timedelta(minutes=3))], partition=seed % 4)
            for _ in range(20):  # one partition lives on, without moving its watermark
                t.advance("2s")
                t.push("bids", [Bid(2, START + timedelta(minutes=3))], partition=seed % 4)
            t.advance("2s")
            assert [(row["auction"], row["bids"]) for row in t.rows("out")] == [(1, 1)]

    @SEEDS
    def test_closes_windows_when_partitions_become_idle_without_any_record(self, seed: int) -> None:
        with TestDriver(windowed(), seed=seed) as t:
            t.advance("25s")
            t.push("bids", [Bid(1), Bid(2, START + timedelta(minutes=3))], partition=seed % 4)
            t.advance("2s")
            assert t.rows("out") == []
            t.advance("8s")  # the other three have been silent for 30 s, this one has not
            assert [(row["auction"], row["bids"]) for row in t.rows("out")] == [(1, 1)]

    @SEEDS
    def test_an_offset_that_passes_a_gap_closes_an_epoch(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1)])
            t.advance("10s")
            source, before = t.sources["bids"], epochs(t)
            read = source.read

            def gap(partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
                if partition == 3 and offset == 0:
                    return None, 7
                return read(partition, offset, max_bytes)

            source.read = gap  # type: ignore[method-assign]
            t.advance("10s")
            manifest = t.cluster.repository.load_manifest(job_of(t).completed[-1].body.manifest)
            assert [at.offset for at in manifest.positions if at.partition == 3] == [7]
            assert epochs(t) == before + 1


class TestEpochThatWasGivenUp:
    @SEEDS
    def test_is_merged_into_another_epoch_even_without_new_records(self, seed: int) -> None:
        """P8"""
        with TestDriver(hot(), seed=seed) as t:
            lost, given = list[m.FromWorker](), t.cluster._from

            def losing(worker: object) -> object:
                send = given(worker)  # type: ignore[arg-type]

                def lossy(message: m.FromWorker) -> None:
                    if isinstance(message, m.Ack) and not lost:
                        lost.append(message)
                    else:
                        send(message)

                return lossy

            t.advance("5s")
            for worker, member in t.cluster.members.items():
                member.ports._send = losing(worker)  # type: ignore[assignment]
            t.push("bids", [Bid(1)])
            t.advance("60s")
            assert len(lost) == 1 and t.cluster.driver.state.given_up == 1
            assert t.rows("out") == [{"auction": 1, "bids": 1}]


class TestTheLog:
    @pytest.mark.parametrize("every", ["100ms", "1s"])
    @SEEDS
    def test_contains_one_epoch_per_change_and_no_more(self, seed: int, every: str) -> None:
        """Also where the interval is shorter than that of heartbeats."""
        app = hot()
        app.checkpoint_every = every
        with TestDriver(app, seed=seed) as t:
            t.advance("5s")
            for number in range(4):
                before = epochs(t)
                t.push("bids", [Bid(seed)], partition=number)
                t.advance("5s")
                assert epochs(t) == before + 1
