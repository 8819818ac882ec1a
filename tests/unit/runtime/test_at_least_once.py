"""Whole jobs whose sink is written as rows come: no row is lost, and the last row of a key is its last value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from played_jobs import RandomJob

import holdfast as hf
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, JobUuid, Subtask, Tag, Timeline, Writer
from holdfast.runtime.execution.checks import microbatch, written_immediately
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.plan.compiler import render
from holdfast.runtime.plan.immediate import is_immediate, not_to_grow
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.worker import immediate
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner
from holdfast.sinks.memory.repeating import RepeatingTable
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

PARTITIONS = 4


@dataclass
class Said:
    word: str
    n: int


class Hostile(RepeatingTable):
    """A table that loses requests and replies."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(None)
        self.random = rng

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return HostileTarget(self, super().open_immediate(owner))


class HostileTarget:
    def __init__(self, table: Hostile, inner: ImmediateTarget) -> None:
        self._table, self._inner = table, inner
        self.fence, self.forget, self.close = inner.fence, inner.forget, inner.close

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        self._lose("request")
        written = self._inner.write(origin, offset, batches)
        self._lose("reply")
        return written

    def _lose(self, what: str) -> None:
        if self._table.random.random() < 0.2:
            raise hf.Unavailable(f"the {what} was lost", next_step="try again")


def topic(**given: Any) -> Any:
    return hf.Kafka("b.example:9092", "out", delivery="at-least-once", **given)


def app_of(folder: Path) -> hf.App:
    """A job that copies rows, and counts them by word behind a shuffle."""
    app = hf.App("words", root=str(folder / "root"))
    said = app.source("said", hf.Log(folder / "input", Said))
    said.sink("copy", topic())
    counted = said.key_by("word").agg("counted", emit="each", rows=hf.count(), last=hf.max("n"))
    counted.sink("counts", topic())
    return app


class Job(RandomJob):
    """The job, its input and what came out."""

    steps_max = 40

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.said = random.Random(seed), list[Said]()
        self.create_input(folder, schema_of(Said), PARTITIONS)
        plan = app_of(folder).plan()
        self.tables = {spec.name: Hostile(self.random) for spec in plan.sinks}
        sinks = tuple(replace(spec, sink=self.tables[spec.name]) for spec in plan.sinks)
        for spec in sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(
            replace(plan, sinks=sinks), 2, seed, MemoryObjects(), 1.0, {"said": tuple(range(PARTITIONS))}
        )
        self.cluster.begin()

    def say(self, count: int) -> None:
        """Add rows; a word has one partition."""
        place = self.random.randrange(PARTITIONS)
        rows = [Said(f"w{place}", len(self.said) + i) for i in range(count)]
        self.said += rows
        self.input.append({place: pa.Table.from_pylist([vars(row) for row in rows], schema=schema_of(Said))})

    def per_word(self, sink: str, column: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in self.tables[sink].rows():
            found.setdefault(row["word"], []).append(row[column])
        return found

    def expected(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in self.said:
            found.setdefault(row.word, []).append(row.n)
        return found


def goes_back_but_skips_nothing(found: list[int], given: list[int]) -> bool:
    """Return whether rows come in order, apart from steps back to a row before, and end with the last."""
    place = {n: i for i, n in enumerate(given)}
    reached = -1
    for n in found:
        if place[n] > reached + 1:
            return False
        reached = max(reached, place[n])
    return reached == len(given) - 1 and found[-1] == given[-1]


class TestAnyFailure:
    @pytest.mark.parametrize("seed", range(6))
    def test_no_row_is_lost_and_each_key_ends_with_its_last(self, tmp_path: Path, seed: int) -> None:
        job = Job(tmp_path, seed)
        for _ in range(12):
            job.say(job.random.randrange(1, 20))
            match job.random.randrange(6):
                case 0:
                    job.crash()
                case 1:
                    job.cluster.replace_driver()
                case 2:
                    job.cluster.pass_time(1.5)
                case _:
                    for _ in range(job.random.randrange(30)):
                        job.cluster.step()
        job.finish()
        expected, copied, counted = job.expected(), job.per_word("copy", "n"), job.per_word("counts", "rows")
        assert copied.keys() == expected.keys() == counted.keys()
        for word, given in expected.items():
            assert goes_back_but_skips_nothing(copied[word], given)
            assert goes_back_but_skips_nothing(counted[word], list(range(1, len(given) + 1)))

    def test_without_a_failure_every_row_comes_once(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        for _ in range(5):
            job.say(10)
            job.cluster.pass_time(0.5)
        job.finish()
        assert job.per_word("copy", "n") == job.expected()

    def test_rows_behind_a_shuffle_are_visible_before_their_epoch_is_committed(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.say(10)
        for _ in range(10_000):
            if sum(map(len, job.per_word("counts", "rows").values())) >= 10:
                break
            if not job.cluster.step():
                job.cluster.clock.now += 0.05
        assert [max(each) for each in job.per_word("counts", "rows").values()] == [10]
        assert job.cluster.driver.state.job.base_epoch == 0

    def test_an_epoch_waits_until_its_rows_are_written(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        job.say(10)
        job.cluster.pass_time(20.0)
        assert job.cluster.driver.state.job.base_epoch < job.cluster.driver.state.job.first_epoch
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        job.finish()
        assert {word: set(found) for word, found in job.per_word("copy", "n").items()} == {
            word: set(given) for word, given in job.expected().items()
        }

    def test_sources_stop_when_the_backlog_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(immediate, "QUEUE_BYTES_MAX", 1)
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        for _ in range(8):
            job.say(10)
            job.cluster.pass_time(1.0)
        workers = job.cluster.driver.state.workers.values()
        assert sum(hosted.heartbeat.progress.records_in for hosted in workers) <= 2 * 10
        assert "delivery" in {held for hosted in workers for held in hosted.heartbeat.progress.held_by}


class TestPlan:
    def plan(self, tmp_path: Path) -> Plan:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Said), PARTITIONS)
        return app_of(tmp_path).plan()

    def test_a_sink_is_written_immediately_from_anywhere(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path)
        assert all(is_immediate(spec) for spec in plan.sinks)
        assert render(plan).endswith(
            "written immediately: copy (at least once), counts (at least once); other sinks at the commit"
        )

    def test_sources_may_get_partitions(self, tmp_path: Path) -> None:
        assert not_to_grow(self.plan(tmp_path)) == {}

    def test_dead_letters_are_refused(self) -> None:
        app = hf.App("words", dlq=topic())
        app.source("said", hf.Generator(Said, lambda n: Said("a", n), count=1)).sink("out", hf.Console())
        with pytest.raises(ConfigError, match="dead letters are delivered at the commit"):
            app.plan()

    def test_microbatch_mode_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is written immediately") as caught:
            refuse(microbatch.refusal(self.plan(tmp_path)))
        assert "leave delivery= out" in caught.value.next_step

    def test_a_sink_that_was_delivered_at_the_commit_needs_another_name(self, tmp_path: Path) -> None:
        done = (Confirmed(Writer("counts", Subtask(0)), Tag(Timeline(1), Epoch(3))),)
        sources = (JobUuid("a"), Generation(1), Timeline(1), Epoch(3), Epoch(2), 1, 128)
        before = Manifest(*sources, positions=(), state=(), pending=(), confirmed=done, operators=())
        with pytest.raises(ConfigError, match="sink 'counts' was written at each commit until now"):
            refuse(written_immediately.refusal(self.plan(tmp_path), before))

    def test_a_stream_that_replaces_rows_needs_a_key(self, tmp_path: Path) -> None:
        app = hf.App("words")
        said = app.source("said", hf.Generator(Said, lambda n: Said("a", n), count=1))
        counted = said.key_by("word").agg("counted", rows=hf.count())
        with pytest.raises(ConfigError, match="key"):
            counted.sink("counts", topic())


class TestInTheTestDriver:
    def test_rows_come_again_after_a_crash(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Said), PARTITIONS)
        with TestDriver(app_of(tmp_path)) as t:
            t.push("said", [Said("a", 1)])
            t.checkpoint()
            t.push("said", [Said("a", 2)])
            assert [row["n"] for row in t.rows("copy")] == [1, 2]
            t.crash(0)
            t.recover()
            t.checkpoint()
            assert [row["n"] for row in t.rows("copy")] == [1, 2, 2]
            assert t.rows("counts")[-1] == {"word": "a", "rows": 2, "last": 2}
