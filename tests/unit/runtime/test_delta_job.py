"""A complete job in one thread that delivers to Delta tables: crashes, other writers of the tables, and rewinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cluster_steps
import pytest
from delta_tables import FolderTable
from deltalake import DeltaTable
from lakehouse_jobs import LATE, Job

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.repair import unrepairable


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], Job]:
    return lambda mode: Job(FolderTable, tmp_path, mode)


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

    def test_a_table_that_was_taken_back_stops_the_job_until_its_rows_are_there_again(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        for _ in range(2):
            job.say(6)
            job.cluster.pass_time(3)
        assert job.shows() and job.ending() is None
        whole = job.rows.load().version()
        job.rows.load().restore(whole - 1)
        job.say(6)
        job.cluster.pass_time(6)
        assert job.ending().kind == "damaged" and "another program took rows back: RESTORE in" in job.ending().what
        assert len(job.rows.rows()) < 12
        assert "took rows back" in job.refusal().what
        job.rows.load().restore(whole)
        job.start_again(3)
        job.finish()
        assert job.shows()

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
