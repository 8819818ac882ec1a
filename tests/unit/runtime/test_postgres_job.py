"""A complete job in one thread that delivers to a real Postgres server, which stops and returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from postgres_server import PostgresPlace, PostgresServer

import holdfast as hf
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

WORDS = ["a", "b", "c"]


@dataclass
class Said:
    n: int
    word: str


class Job:
    """The job, its input and its results."""

    def __init__(self, folder: Path, place: PostgresPlace) -> None:
        self.said, self._place = list[tuple[int, str]](), place
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("copy", place.sink("copy", None))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", place.sink("totals", ("word",)))
        plan = app.plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(plan, 2, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)})
        self.cluster.begin()

    def say(self, count: int) -> None:
        first = len(self.said)
        rows = [(n, WORDS[n % len(WORDS)]) for n in range(first, first + count)]
        self.said += rows
        table = pa.Table.from_pylist([{"n": n, "word": word} for n, word in rows], schema=schema_of(Said))
        self._input.append({first % 4: table})

    def crash(self) -> None:
        self.cluster.crash(min(self.cluster.members))

    def finish(self) -> None:
        self._input.seal()
        for _ in range(200):
            if self.cluster.driver.outcome is not None:
                break
            self.cluster.pass_time(0.5)
        assert self.cluster.driver.outcome is not None and self.cluster.driver.outcome[0] == "finished"

    def copied(self) -> Counter[tuple[int, str]]:
        return Counter(self._place.ask("SELECT n, word FROM copy"))

    def check(self) -> None:
        assert self.copied() == Counter(self.said)
        totals = [(word, len(n), sum(n)) for word in WORDS if (n := [n for n, said in self.said if said == word])]
        assert self._place.ask("SELECT word, totals.rows, total FROM totals ORDER BY word") == totals


@pytest.fixture
def job(postgres: PostgresServer, tmp_path: Path) -> Job:
    return Job(tmp_path, postgres.place())


class TestJob:
    def test_every_result_occurs_once_although_the_server_stops_and_a_worker_crashes(
        self, postgres: PostgresServer, job: Job
    ) -> None:
        job.say(20)
        job.cluster.pass_time(3)
        before = job.copied()
        assert before == Counter(job.said)
        postgres.stop()
        try:
            job.say(20)
            job.cluster.pass_time(2)
            job.crash()
            job.cluster.pass_time(2)
            assert job.cluster.driver.outcome is None, "the job waits"
        finally:
            postgres.start()
        assert job.copied() == before
        job.say(5)
        job.finish()
        job.check()
