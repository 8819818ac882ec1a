"""A complete job in one thread that sends its rows to a real receiver, which fails, loses replies and restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import cluster_steps
import pyarrow as pa
import pytest
from http_receiver import HttpReceiver, Reply

import holdfast as hf
from holdfast.model import Tag
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract import Delivered, Outcome
from holdfast.sinks.http.requests import requests_of
from holdfast.sinks.http.target import HttpTarget
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

UNREADY: Reply = (503, {}, b"not yet")


@dataclass
class Said:
    n: int
    word: str


class Job:
    """Sends rows, doubled, with three writers, seven rows in a request."""

    def __init__(self, folder: Path, receiver: HttpReceiver, mode: str) -> None:
        self.said = 0
        self._receiver = receiver
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("out", hf.Http(receiver.url, progress=folder / "progress", batch_rows=7))
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, 3, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)}, mode)
        self.cluster.begin()

    def say(self, count: int) -> None:
        for n in range(self.said, self.said + count):
            table = pa.Table.from_pylist([{"n": n, "word": f"w{n}"}], schema=schema_of(Said))
            self._input.append({n % 4: table})
        self.said += count

    def crash(self) -> None:
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))

    def start_again(self, parallelism: int) -> None:
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver(self.plan)

    def rewind(self, epoch: int, *accept: str) -> None:
        """Ask the driver for a rewind, and wait until it has begun."""
        job = self.cluster.driver.state.job
        wanted = {"epoch": epoch, "timeline": job.timeline, "accept": list(accept)}
        answer = self.cluster.driver.asked("rewind", wanted, job.generation, job.generation)
        assert answer is not None and answer["accepted"], answer
        while self.cluster.driver.state.job.timeline == job.timeline:
            self.cluster.pass_time(0.25)

    def finish(self) -> None:
        self._input.seal()
        cluster_steps.finish(self.cluster)

    def oracle(self) -> list[tuple[int, str]]:
        return [(n, f"w{n}") for n in range(self.said)]

    def received(self) -> list[tuple[int, str]]:
        """Return the rows of a receiver that takes each key once."""
        return sorted((row["n"], row["word"]) for row in self._receiver.rows())


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


def played(job: Job, receiver: HttpReceiver) -> None:
    """Play a job to its end through lost replies, refusals, crashes and rescales."""
    for step in (job.crash, lambda: job.start_again(2), lambda: job.start_again(4)):
        receiver.loses, receiver.replies = 2, [UNREADY]
        job.say(40)
        job.cluster.pass_time(1.4)
        step()
    job.say(5)
    job.finish()


def tag_first(self: HttpTarget, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
    """Deliver as it must not be done: the tag moves before the requests are answered."""
    outcome = self._progress.deliver(tag, [], known)
    if isinstance(outcome, Delivered):
        requests = requests_of(self._job, self._writer, tag, batches, self._batch_rows)
        for number, request in enumerate(requests, start=1):
            self._send(tag, number, request)
    return outcome


class TestJob:
    def test_rows_are_exact_by_key_though_workers_crash_and_replies_are_lost(
        self, tmp_path: Path, receiver: HttpReceiver, mode: str
    ) -> None:
        job = Job(tmp_path, receiver, mode)
        played(job, receiver)
        assert receiver.lost >= 3 and receiver.refused >= 2, "the faults happened"
        assert job.received() == job.oracle()
        repeated = [key for key, count in Counter(each.key for each in receiver.taken).items() if count > 1]
        assert repeated and len(receiver.rows_with_repetitions()) > job.said, "a lost reply is repeated with its key"

    def test_a_tag_that_moves_first_loses_rows_which_the_oracle_notices(
        self, tmp_path: Path, receiver: HttpReceiver, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(HttpTarget, "deliver", tag_first)
        job = Job(tmp_path, receiver, mode)
        played(job, receiver)
        assert receiver.refused and set(job.received()) < set(job.oracle())

    def test_it_waits_while_the_receiver_is_away(self, tmp_path: Path, receiver: HttpReceiver, mode: str) -> None:
        job = Job(tmp_path, receiver, mode)
        job.say(20)
        job.cluster.pass_time(3)
        assert job.received() == job.oracle()
        with receiver.away():
            job.say(20)
            job.cluster.pass_time(2)
            job.crash()
            job.cluster.pass_time(2)
            assert job.cluster.driver.outcome is None, "the job waits"
        assert len(job.received()) == 20
        job.finish()
        assert job.received() == job.oracle()

    def test_a_rewind_that_is_accepted_leaves_rows_which_come_again_with_other_keys(
        self, tmp_path: Path, receiver: HttpReceiver
    ) -> None:
        job = Job(tmp_path, receiver, CONTINUOUS)
        job.say(6)
        job.cluster.pass_time(3)
        base = cluster_steps.epoch_before(job.cluster, 0)
        job.say(6)
        job.cluster.pass_time(3)
        assert unrepairable(job.plan.sinks) == ("out",)
        job.rewind(base, "out:impossible")
        job.finish()
        assert set(job.received()) == set(job.oracle()), "no row is missing"
        assert len(job.received()) > job.said, "rows after the base have come twice, with two keys"
