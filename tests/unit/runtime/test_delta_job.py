"""A complete job in one thread that delivers to Delta tables: crashes, other writers of the tables, and rewinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cluster_steps
import polars as pl
import pyarrow as pa
import pytest
from delta_tables import FolderTable
from deltalake import DeltaTable

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

WORDS = ["a", "b", "c"]
LATE = 8
"""The least number in a row of the table of late ones."""


@dataclass
class Said:
    n: int
    word: str


class Job:
    """Copies rows, and counts them by word, with three writers."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.said: list[tuple[int, str]] = []
        self.rows = FolderTable(folder / "rows", partition_by=["word"])
        self.totals = FolderTable(folder / "totals", ("word",))
        self.late = FolderTable(folder / "late")
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("rows-out", self.rows.sink)
        rows.filter(pl.col("n") >= LATE).sink("late-out", self.late.sink)
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", self.totals.sink)
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, 3, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)}, mode)
        self.cluster.begin()

    def say(self, count: int) -> None:
        for n in range(len(self.said), len(self.said) + count):
            self.said.append((n, WORDS[n % len(WORDS)]))
            table = pa.Table.from_pylist([{"n": n, "word": self.said[-1][1]}], schema=schema_of(Said))
            self._input.append({n % 4: table})

    def crash(self) -> None:
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))

    def start_again(self, parallelism: int) -> None:
        """Kill the driver, and start another one with so many writers."""
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

    def shows(self, count: int | None = None) -> bool:
        """Return whether the tables hold exactly the results of so many rows; None: of all."""
        said = self.said[:count]
        of = {word: [n for n, each in said if each == word] for word in WORDS}
        totals = [(word, len(numbers), sum(numbers)) for word, numbers in of.items() if numbers]
        return (sorted(self.rows.rows()), sorted(self.totals.rows())) == (said, totals)


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], Job]:
    return lambda mode: Job(tmp_path, mode)


class TestJob:
    def test_results_are_exact_though_workers_crash_and_writers_change(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        for step in (job.crash, lambda: job.start_again(2), lambda: job.start_again(4)):
            job.say(20)
            job.cluster.pass_time(1.4)
            step()
        job.say(5)
        job.finish()
        assert job.shows()

    def test_an_epoch_is_one_commit_for_all_writers(self, start: Callable[[str], Job], mode: str) -> None:
        job = start(mode)
        job.say(20)
        job.finish()
        made = [each["holdfast"] for each in job.rows.load().history() if "holdfast" in each]
        assert len({(each["timeline"], each["epoch"]) for each in made}) == len(made) > 0

    def test_an_epoch_without_rows_for_the_table_commits_nothing(self, start: Callable[[str], Job], mode: str) -> None:
        job = start(mode)
        job.say(6)
        job.cluster.pass_time(3)
        epoch = job.cluster.driver.state.job.base_epoch
        assert job.shows() and job.late.rows() == [] and job.late.load().version() == 0
        job.say(6)
        job.cluster.pass_time(3)
        assert job.cluster.driver.state.job.base_epoch > epoch
        assert job.shows() and sorted(job.late.rows()) == [each for each in job.said if each[0] >= LATE]

    def test_maintenance_runs_beside_the_job(self, start: Callable[[str], Job], mode: str) -> None:
        job = start(mode)
        for _ in range(3):
            job.say(10)
            job.cluster.pass_time(3)
            for table in (job.rows.load(), job.totals.load()):
                table.optimize.compact()
                table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
                table.create_checkpoint()
        job.finish()
        assert job.shows()

    def test_a_rewind_shows_the_base_epoch_and_ends_with_exact_results(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        job.say(6)
        job.cluster.pass_time(3)
        base = cluster_steps.epoch_before(job.cluster, 0)
        versions = job.rows.load().version(), job.totals.load().version()
        shown = job.rows.rows(), job.totals.rows()
        job.say(6)
        job.cluster.pass_time(3)
        assert job.shows() and unrepairable(job.plan.sinks) == ()
        job.rewind(base)
        job.finish()
        assert job.shows()
        assert _as_of(job.rows, versions[0]) == sorted(shown[0]) and _as_of(job.totals, versions[1]) == sorted(shown[1])
        assert [each["operation"] for each in job.rows.load().history()].count("RESTORE") == 1


def _as_of(table: FolderTable, version: int) -> list[tuple[object, ...]]:
    found = DeltaTable(str(table.path), version=version).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)
