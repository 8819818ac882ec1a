"""A complete job in one thread that delivers to a real Redis server, which is killed and starts again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from redis_server import RedisKeys, RedisServer

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

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.said: list[tuple[int, str]] = []
        self.rows, self.totals = server.keys(("n",)), server.keys(("word",))
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("rows-out", self.rows.sink)
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", self.totals.sink)
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

    def finish(self) -> None:
        self._input.seal()
        for _ in range(200):
            if self.cluster.driver.outcome is not None:
                break
            self.cluster.pass_time(0.5)
        assert self.cluster.driver.outcome is not None and self.cluster.driver.outcome[0] == "finished"

    def is_shown(self) -> bool:
        """Return whether the keys hold exactly the results of all that was said."""
        of = {word: [n for n, said in self.said if said == word] for word in WORDS}
        totals = [(word, len(numbers), sum(numbers)) for word, numbers in of.items()]
        return found(self.rows) == self.said and found(self.totals) == totals


def found(keys: RedisKeys) -> list[tuple[object, ...]]:
    return sorted(keys.rows())


@pytest.mark.redis
class TestJob:
    def test_every_result_is_shown_although_the_server_is_killed_and_a_worker_crashes(
        self, redis: RedisServer, tmp_path: Path
    ) -> None:
        job = Job(tmp_path, redis)
        job.say(20)
        job.cluster.pass_time(3)
        assert job.is_shown()
        redis.kill()
        try:
            job.say(20)
            job.cluster.pass_time(2)
            job.cluster.crash(min(job.cluster.members))
            job.cluster.pass_time(2)
            assert job.cluster.driver.outcome is None, "the job waits"
        finally:
            redis.start()
        assert not job.is_shown()
        job.say(5)
        job.finish()
        assert job.is_shown()
