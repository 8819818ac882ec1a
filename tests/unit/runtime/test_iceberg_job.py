"""A complete job in one thread that delivers to Iceberg tables: crashes, other writers of the tables, and rewinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster_steps
import pytest
from iceberg_tables import FolderCatalog
from lakehouse_jobs import LATE, Job

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.driver.repair import unrepairable


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], Job]:
    return lambda mode: Job(FolderCatalog, tmp_path, mode)


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
        made = [(each["timeline"], each["epoch"]) for each in _said(job.rows)]
        assert len(set(made)) == len(made) > 0

    def test_an_epoch_without_rows_for_the_table_commits_nothing(self, start: Callable[[str], Job], mode: str) -> None:
        job = start(mode)
        job.say(6)
        job.cluster.pass_time(3)
        assert job.shows() and job.late.rows() == [] and job.late.load().snapshots() == []
        job.say(6)
        job.cluster.pass_time(3)
        assert job.shows() and sorted(job.late.rows()) == [each for each in job.said if each[0] >= LATE]

    def test_a_table_that_was_taken_back_stops_the_job_until_its_rows_are_there_again(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        for _ in range(2):
            job.say(6)
            job.cluster.pass_time(3)
        assert job.shows() and job.ending() is None
        whole, before = [each.snapshot_id for each in job.rows.load().snapshots()][:-3:-1]
        _set_current(job.rows, before)
        job.say(6)
        job.cluster.pass_time(6)
        assert (
            job.ending().kind == "damaged" and "another program took rows back: an older snapshot" in job.ending().what
        )
        assert len(job.rows.rows()) < 12
        assert "took rows back" in job.refusal().what
        _set_current(job.rows, whole)
        job.start_again(3)
        job.finish()
        assert job.shows()

    def test_a_rewind_shows_the_base_epoch_and_ends_with_exact_results(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        job.say(6)
        job.cluster.pass_time(3)
        base = cluster_steps.epoch_before(job.cluster, 0)
        shown = [(table, table.load().current_snapshot(), sorted(table.rows())) for table in (job.rows, job.totals)]
        job.say(6)
        job.cluster.pass_time(3)
        assert job.shows() and unrepairable(job.plan.sinks) == ()
        job.rewind(base)
        job.finish()
        assert job.shows()
        for table, snapshot, rows in shown:
            then = table.load().scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
            assert sorted(tuple(row.values()) for row in then) == rows


def _said(table: FolderCatalog) -> list[dict[str, Any]]:
    """Return what the commits of sinks say of themselves."""
    summaries = [each.summary for each in table.load().snapshots()]
    said = [None if each is None else each.additional_properties.get("holdfast") for each in summaries]
    return [json.loads(each) for each in said if each is not None]


def _set_current(table: FolderCatalog, snapshot: int) -> None:
    table.load().manage_snapshots().set_current_snapshot(snapshot).commit()
