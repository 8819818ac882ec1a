"""Savepoints and the ways to end a run, played with the production loops through crashes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.errors import Unavailable
from holdfast.model import Generation
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver


@dataclass
class Bid:
    auction: int


SEEDS = pytest.mark.parametrize("seed", range(5))


def hot() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i), count=1))
    bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="t", key=["auction"]))
    return app


def append(driver: TestDriver, rows: int, partition: int = 0) -> None:
    """Put records where the job reads; it has not read any of them yet."""
    source = driver.sources["bids"]
    more = pa.Table.from_pylist([{"auction": i % 7} for i in range(rows)], schema=source.schema)
    source.tables[partition] = pa.concat_tables([source.tables[partition], more])


def take_back(driver: TestDriver, rows: int, partition: int) -> None:
    """Leave only so many records where the job reads."""
    source = driver.sources["bids"]
    source.tables[partition] = source.tables[partition].slice(0, rows)


def process_messages(driver: TestDriver, partition: int) -> int:
    """Let the workers process the driver's messages; return how many records of the partition they have read."""
    for member in driver.cluster.members.values():
        while member.inbox:
            member.loop.received(member.inbox.popleft())
    positions = [at for member in driver.cluster.members.values() for at in member.loop.heartbeat().progress.positions]
    return next(at.offset for at in positions if at.partition == partition)


def counts(driver: TestDriver) -> dict[int, int]:
    return {row["auction"]: row["bids"] for row in driver.rows("out")}


def ask(driver: TestDriver, kind: str, **args: Any) -> bool:
    loop = driver.cluster.driver
    reply = loop.asked(kind, args, loop.state.job.generation, Generation(1))
    assert reply is not None
    return bool(reply["accepted"])


def run_out(driver: TestDriver) -> str:
    while driver.cluster.driver.outcome is None:
        driver.cluster.pass_time(0.25)
    return driver.cluster.driver.outcome[0]


def job_of(driver: TestDriver) -> joblog.Job:
    job = driver.cluster.repository.read_log()
    assert job is not None
    return job


class TestSavepoint:
    @SEEDS
    def test_the_death_of_a_worker_loses_neither_the_name_nor_a_record(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(i % 7) for i in range(100)])
            before = t.checkpoint()
            t.push("bids", [Bid(i % 7) for i in range(50)], partition=1)
            assert ask(t, "savepoint", name="v1")
            for _ in range(seed):
                t.cluster.step()
            t.crash(seed % 2)
            t.recover()
            t.advance("2s")
            found = job_of(t).savepoint("v1")
            assert found is not None and found.epoch > before
            t.finish()
            assert sum(counts(t).values()) == 150
            assert job_of(t).savepoints == (found,)

    def test_a_savepoint_named_by_another_process_does_not_disturb_the_run(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1)])
            epoch = t.checkpoint()
            job = job_of(t)
            body = joblog.SavepointNamed(epoch, "v1")
            record = joblog.Record(job.next_seq, job.uuid, job.generation, job.timeline, "somebody", 0, body)
            assert t.cluster.repository.create_record(record) == record
            t.push("bids", [Bid(1)])
            t.checkpoint()
            t.crash(1)
            t.recover()
            t.finish()
            assert counts(t) == {1: 2}
            assert job_of(t).savepoints == (joblog.Savepoint("v1", epoch),)


def take_the_end(t: TestDriver) -> None:
    """The driver lists the sources and notifies all workers that the input ends; they do nothing else."""
    for _ in range(100):
        t.cluster.driver.turn()
        for lane in t.cluster._lanes.waiting():
            lane.step()
        if all(any(isinstance(each, m.EndInput) for each in member.inbox) for member in t.cluster.members.values()):
            break
    for member in t.cluster.members.values():
        while member.inbox:
            member.loop.received(member.inbox.popleft())


class TestStopFinish:
    @SEEDS
    def test_input_ends_at_its_current_end_and_the_job_finishes(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(i % 7) for i in range(100)])
            assert ask(t, "stop", how="finish")
            assert run_out(t) == "finished"
            assert job_of(t).finished
            assert sum(counts(t).values()) == 100

    @SEEDS
    def test_the_death_of_a_worker_before_the_end_loses_nothing(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1) for _ in range(50)])
            t.checkpoint()
            ask(t, "stop", how="finish")
            t.crash(seed % 2)
            t.recover()
            assert run_out(t) == "finished"
            assert counts(t) == {1: 50}

    @SEEDS
    def test_unread_records_are_read_before_the_job_finishes(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            append(t, 500, partition=seed % 4)
            assert ask(t, "stop", how="finish")
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 500

    @SEEDS
    def test_records_appended_after_the_request_are_not_read(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1) for _ in range(50)])
            assert ask(t, "stop", how="finish")
            take_the_end(t)
            append(t, 500, partition=seed % 4)
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 50

    @SEEDS
    def test_the_death_of_a_worker_while_the_backlog_is_read_loses_no_record(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            append(t, 500, partition=seed % 4)
            ask(t, "stop", how="finish")
            for _ in range(3 * seed):
                t.cluster.step()
            t.crash(seed % 2)
            t.recover()
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 500

    @SEEDS
    def test_a_finish_does_not_wait_for_rows_that_become_void(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            append(t, 500, partition=seed % 4)
            ask(t, "stop", how="finish")
            read = process_messages(t, seed % 4)
            take_back(t, read, partition=seed % 4)
            t.cluster.pass_time(20.0)
            assert t.cluster.driver.outcome == ("finished", None)
            assert sum(counts(t).values()) == read

    @SEEDS
    def test_the_end_of_an_unreachable_source_is_requested_again(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            append(t, 500, partition=seed % 4)
            source = t.sources["bids"]
            known, refusals = source.end_offsets, iter([True] * 4)

            def sometimes() -> dict[int, int]:
                if next(refusals, False):
                    raise Unavailable("the log is unreachable", not_done="nothing was read", next_step="wait")
                return known()

            source.end_offsets = sometimes  # type: ignore[method-assign]
            ask(t, "stop", how="finish")
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 500

    @SEEDS
    def test_a_finish_of_a_run_to_fixed_ends_reads_to_the_end_of_the_input(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            append(t, 100)
            until = {name: source.end_offsets() for name, source in t.sources.items()}
            t.cluster.rules = replace(t.cluster.rules, until=until)
            t.cluster.replace_driver()
            while t.cluster.driver.state.log.job is None or not t.cluster.members:
                t.cluster.step()
            append(t, 400, partition=seed % 4)
            assert ask(t, "stop", how="finish")
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 500

    def test_the_backlog_is_dropped_only_on_request(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1) for _ in range(50)])
            append(t, 500)
            assert ask(t, "stop", how="finish", unread="drop")
            for member in t.cluster.members.values():
                while member.inbox:
                    member.loop.received(member.inbox.popleft())
            assert run_out(t) == "finished"
            assert sum(counts(t).values()) == 50


class TestStopNow:
    @SEEDS
    def test_uncommitted_records_are_read_again_by_the_next_run(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1) for _ in range(30)])
            t.checkpoint()
            t.push("bids", [Bid(1) for _ in range(30)], partition=1)
            before = job_of(t)
            ask(t, "stop", how="now")
            assert t.cluster.driver.outcome == ("ended", None)
            assert job_of(t) == before
            t.cluster.replace_driver()
            t.finish()
            assert counts(t) == {1: 60}


class TestOnce:
    def once(self, driver: TestDriver) -> None:
        """Start a run that reads as far as the sources reach now."""
        until = {name: source.end_offsets() for name, source in driver.sources.items()}
        driver.cluster.rules = replace(driver.cluster.rules, until=until)
        driver.cluster.replace_driver()

    @SEEDS
    def test_a_run_reads_to_the_ends_seen_at_its_start_and_no_further(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(i % 7) for i in range(100)])
            self.once(t)
            t.push("bids", [Bid(i % 7) for i in range(40)], partition=seed % 4)
            assert run_out(t) == "stopped"
            assert isinstance(job_of(t).ended, joblog.Stopped)
            assert sum(counts(t).values()) == 100
            self.once(t)
            assert run_out(t) == "stopped"
            assert sum(counts(t).values()) == 140

    @SEEDS
    def test_a_crash_changes_nothing(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(i % 7) for i in range(100)])
            self.once(t)
            t.cluster.step()
            t.cluster.driver.turn()
            t.push("bids", [Bid(3)])
            if t.cluster.driver.outcome is None and t.cluster.members:
                t.cluster.crash(next(iter(t.cluster.members)))
            assert run_out(t) == "stopped"
            assert sum(counts(t).values()) == 100

    @SEEDS
    def test_a_run_does_not_wait_for_rows_that_become_void(self, seed: int) -> None:
        with TestDriver(hot(), seed=seed) as t:
            t.push("bids", [Bid(1) for _ in range(50)], partition=seed % 4)
            append(t, 500, partition=seed % 4)
            self.once(t)
            take_back(t, 50, partition=seed % 4)
            t.cluster.pass_time(20.0)
            assert t.cluster.driver.outcome == ("stopped", None)
            assert counts(t) == {1: 50}

    def test_a_run_without_new_records_takes_a_checkpoint_and_ends(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1)])
            t.checkpoint()
            self.once(t)
            assert run_out(t) == "stopped"
            assert counts(t) == {1: 1}

    def test_sealed_input_finishes_the_job(self) -> None:
        with TestDriver(hot()) as t:
            t.sources["bids"].over = True
            t.push("bids", [])
            self.once(t)
            assert run_out(t) == "finished"
