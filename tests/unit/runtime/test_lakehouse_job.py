"""A complete job in one thread that delivers to tables of a lakehouse: other programs, maintenance, and rewinds.

Crashes and other writers are in test_sink_jobs.py, as for all targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog
from played_jobs import WordsJob, totals_of
from start_facts import facts_of_targets

from holdfast.errors import Damaged
from holdfast.runtime.config.settings import MODES
from holdfast.runtime.driver.repair import unrepairable
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.targets import holdings

LATE = 8
"""The least number in a row of the table of late ones."""


class Job(WordsJob):
    """Writes three tables: all rows, late rows, and totals that replace others."""

    def __init__(self, folder: Path, made: Any, mode: str) -> None:
        self.rows, self.totals = made(folder / "rows", partition_by=["word"]), made(folder / "totals", ("word",))
        self.late = made(folder / "late")
        late = lambda rows: rows.filter(pl.col("n") >= LATE).sink("late-out", self.late.sink)
        super().__init__(folder, mode, self.rows.sink, self.totals.sink, more=late)

    def refusal(self) -> Damaged:
        """Start as a command does, and return why it was refused."""
        repository, job = self.cluster.repository, self.cluster.repository.read_log()
        assert job is not None
        with pytest.raises(Damaged) as caught:
            refuse(holdings.check(facts_of_targets(repository, job, self.plan.sinks)))
        return caught.value

    def shows(self) -> bool:
        """Return whether the tables hold exactly the results of all rows."""
        return (sorted(self.rows.rows()), sorted(self.totals.rows())) == (self.said, totals_of(self.said))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture(params=[FolderTable, FolderCatalog], ids=["delta", "iceberg"])
def job(request: pytest.FixtureRequest, tmp_path: Path, mode: str) -> Job:
    return Job(tmp_path, request.param, mode)


class TestJob:
    def test_an_epoch_without_rows_for_the_table_commits_nothing(self, job: Job) -> None:
        job.deliver(6)
        epoch = job.base()
        assert job.shows() and job.late.rows() == [] and job.late.versions() == 0
        job.deliver(6)
        assert job.base() > epoch
        assert job.shows() and sorted(job.late.rows()) == [each for each in job.said if each[0] >= LATE]

    def test_a_table_that_was_taken_back_stops_the_job_until_its_rows_are_there_again(self, job: Job) -> None:
        versions = []
        for _ in range(2):
            job.deliver(6)
            versions.append(job.rows.version())
        assert job.shows() and job.ending() is None
        job.rows.go_back(versions[0])
        job.say(6)
        job.cluster.pass_time(6)
        assert job.ending().kind == "damaged" and "another program took rows back: " in job.ending().what
        assert len(job.rows.rows()) < 12
        assert "took rows back" in job.refusal().what
        job.rows.go_back(versions[1])
        job.start_again(3)
        job.finish()
        assert job.shows()

    def test_maintenance_runs_beside_the_job(self, job: Job) -> None:
        for _ in range(3):
            job.deliver(10)
            for table in (job.rows, job.totals):
                table.maintain()
        job.finish()
        assert job.shows()

    def test_a_rewind_shows_the_base_epoch_and_ends_with_exact_results(self, job: Job) -> None:
        job.deliver(6)
        base = job.base()
        before = [(table, table.version(), sorted(table.rows())) for table in (job.rows, job.totals)]
        job.deliver(6)
        assert job.shows() and unrepairable(job.plan.sinks) == ()
        job.rewind(base)
        job.finish()
        assert job.shows()
        for table, version, rows in before:
            assert table.as_of(version) == rows
            assert table.restores() == 1, "the rewind took the rows of later epochs back"
