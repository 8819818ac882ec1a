"""A job reads a log that gets more partitions while it runs: docs/decisions/0035-partition-discovery.md."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logged import rows_in

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import SourcePosition
from holdfast.runtime.audit import checks, reading
from holdfast.runtime.cli.operate.events import events_of
from holdfast.runtime.cli.start.plan import obstacles
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.job import status
from holdfast.runtime.job.explain import findings
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Job:
    """Copies numbers from a log of two partitions to another one."""

    def __init__(self, folder: Path, parallelism: int = 2) -> None:
        self.folder, self.parallelism = folder, parallelism
        create_log(LocalObjects(folder / "rows"), SCHEMA, partitions=2)
        self.log = LogWriter(LocalObjects(folder / "rows"))
        self.started: Prepared
        self.cluster: Cluster

    def app(self) -> hf.App:
        app = hf.App("copy", root=str(self.folder / "root"))
        app.source("rows", hf.Log(self.folder / "rows")).sink("out", hf.Log(self.folder / "out"))
        return app

    def start(self, **options: Any) -> Cluster:
        """Prepare a run as the command does, and start it."""
        app = self.app()
        self.started = started = prepare(app.plan(), resolve(app), Choices(**options))
        self.cluster = Cluster(started.plan, self.parallelism, 0, started.folder.store, 1.0, started.inputs.partitions)
        if started.inputs.until is not None:
            self.cluster.change_rules(until=started.inputs.until)
        self.cluster.begin()
        self.cluster.pass_time(3)
        return self.cluster

    def append(self, partition: int, *numbers: int) -> None:
        LogWriter(LocalObjects(self.folder / "rows")).append(
            {partition: pa.table([pa.array(numbers, pa.int64())], schema=SCHEMA)}
        )

    def end(self, **args: Any) -> str:
        job = self.job()
        if not args:
            self.cluster.driver.stop()
        else:
            self.cluster.driver.asked("stop", args, job.generation, job.generation)
        return self.ended()

    def ended(self) -> str:
        for _ in range(100):
            if self.cluster.driver.outcome is not None:
                break
            self.cluster.pass_time(1)
        assert self.cluster.driver.outcome is not None
        return self.cluster.driver.outcome[0]

    def job(self) -> joblog.Job:
        job = self.cluster.repository.read_log()
        assert job is not None
        return job

    def stands(self) -> dict[int, int]:
        manifest = self.cluster.repository.load_manifest(self.job().completed[-1].body.manifest)
        return {at.partition: at.offset for at in manifest.positions}

    def rows(self) -> Sequence[int]:
        return sorted(next(iter(row.values())) for row in rows_in(self.folder / "out"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


class TestLogWithAddedPartitions:
    def test_is_read_completely_without_a_restart(self, job: Job) -> None:
        job.append(0, 1)
        cluster = job.start()
        job.log.widen(5)
        for partition in range(5):
            job.append(partition, 10 + partition)
        cluster.pass_time(15)
        assert job.rows() == [1, 10, 11, 12, 13, 14]
        assert job.job().generation == 1 and job.stands() == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}

    def test_is_read_completely_by_the_next_run(self, job: Job) -> None:
        job.append(0, 1)
        job.start()
        assert job.end() == "stopped"
        job.log.widen(3)
        job.append(2, 2)
        job.start().pass_time(3)
        assert job.rows() == [1, 2]

    def test_a_widened_log_that_is_sealed_is_read_completely_before_the_job_finishes(self, job: Job) -> None:
        """Rows of partitions unknown to the driver when the others have ended would be lost permanently."""
        job.append(0, 1)
        job.start()
        job.log.widen(4)
        job.append(3, 2)
        job.log.seal()
        assert job.ended() == "finished"
        assert job.rows() == [1, 2] and job.stands()[3] == 1

    def test_is_read_completely_before_a_finish(self, job: Job) -> None:
        job.append(0, 1)
        job.start()
        job.log.widen(4)
        job.append(3, 2)
        assert job.end(how="finish") == "finished"
        assert job.rows() == [1, 2]

    def test_after_the_start_of_a_run_to_fixed_ends_is_left_to_the_next_run(self, job: Job) -> None:
        job.append(0, 1)
        app = job.app()
        job.started = prepare(app.plan(), resolve(app), Choices(once=True))
        job.log.widen(3)
        job.append(2, 2)
        job.log.seal()
        job.cluster = Cluster(job.started.plan, 2, 0, job.started.folder.store, 1.0, job.started.inputs.partitions)
        job.cluster.change_rules(until=job.started.inputs.until)
        job.cluster.begin()
        assert job.ended() == "stopped" and job.rows() == [1]
        job.start(once=True)
        assert job.ended() == "finished" and job.rows() == [1, 2]

    def test_before_the_start_of_a_run_to_fixed_ends_is_read_completely(self, job: Job) -> None:
        job.append(0, 1)
        job.log.widen(3)
        job.append(2, 2)
        job.start(once=True)
        assert job.ended() == "stopped" and job.rows() == [1, 2]

    def test_is_redistributed_when_the_parallelism_changes(self, job: Job) -> None:
        job.append(0, 1)
        job.start()
        job.log.widen(5)
        for partition in range(5):
            job.append(partition, 10 + partition)
        job.cluster.pass_time(15)
        assert job.end() == "stopped"
        for partition in range(5):
            job.append(partition, 20 + partition)
        job.parallelism = 3
        job.start().pass_time(5)
        assert job.rows() == [1, *range(10, 15), *range(20, 25)]

    def test_can_be_audited(self, job: Job) -> None:
        job.append(0, 1)
        cluster = job.start()
        job.log.widen(4)
        for partition in range(4):
            job.append(partition, 10 + partition)
        cluster.pass_time(15)
        job.append(3, 20)
        assert job.end() == "stopped"
        manifests = [cluster.repository.load_manifest(each.body.manifest) for each in job.job().completed]
        lines = checks.chain(manifests, [each.epoch for each in manifests])
        lines += reading.sources(job.started.plan.sources, manifests)
        assert {line.verdict for line in lines} == {"proven"}
        assert {line.part for line in lines if line.kind == "source"} == {0, 1, 2, 3}

    def test_has_the_epoch_of_the_addition_in_the_job_log(self, job: Job) -> None:
        cluster = job.start()
        job.log.widen(4)
        cluster.pass_time(15)
        assert [done.body.added for done in job.job().completed if done.body.added] == [{"rows": (2, 3)}]

    def test_has_its_added_partitions_in_the_events_of_the_job(self, job: Job) -> None:
        cluster = job.start()
        job.log.widen(4)
        cluster.pass_time(15)
        events = events_of(open_job(str(job.folder / "root"), "copy"), checkpoints=False)
        assert [e["cause"] for e in events if e["event"] == "partitions"] == ["new partitions: rows 2, 3"]
        assert status.of_run(cluster.driver.state, "", "continuous", None).problems == ()

    def test_has_its_added_partitions_in_the_status_before_they_are_read(self, job: Job) -> None:
        job.append(0, 1)
        cluster = job.start()
        master_state = cluster.driver.state
        job.log.widen(3)
        listing = replace(master_state, discovered=(SourcePosition("rows", 2, 0),))
        rows = status.of_run(listing, "", "continuous", None).sources
        assert [(row.partition, row.offset, row.lag) for row in rows] == [(0, 1, 0), (1, 0, 0), (2, 0, None)]

    def test_a_log_that_cannot_be_listed_is_a_problem_with_the_next_step(self, job: Job) -> None:
        cluster = job.start()
        error = Unavailable("the log is unreachable", next_step="check the disk").report()
        shown = status.of_run(replace(cluster.driver.state, list_error=error), "", "continuous", None)
        (problem,) = shown.problems
        assert (problem.code, "the log is unreachable" in problem.what) == ("source_unlisted", True)
        assert problem.next == "make the source reachable; the driver retries. Check the disk"
        assert "source_unlisted" in [finding.code for finding in findings(shown)]


class TestReplacedLog:
    def test_adds_no_partitions_to_a_job_that_runs(self, job: Job) -> None:
        job.append(0, 1)
        cluster = job.start()
        shutil.rmtree(job.folder / "rows")
        create_log(LocalObjects(job.folder / "rows"), SCHEMA, partitions=8)
        for n in range(9):
            job.append(0, 90 + n)
            job.append(7, 80 + n)
        cluster.pass_time(30)
        assert cluster.driver.outcome is not None
        kind, error = cluster.driver.outcome
        assert kind == "failed" and error is not None and error.kind == "damaged"
        assert job.rows() == [1]

    def test_a_replaced_log_without_an_added_partition_is_refused(self, job: Job) -> None:
        """A copy from before they were added, with all records that were read."""
        job.append(0, 1)
        cluster = job.start()
        shutil.copytree(job.folder / "rows", job.folder / "older")
        job.log.widen(3)
        cluster.pass_time(15)
        assert job.end() == "stopped"
        shutil.rmtree(job.folder / "rows")
        shutil.copytree(job.folder / "older", job.folder / "rows")
        with pytest.raises(Damaged, match="no longer has partition 2"):
            job.start()
        positions = cluster.repository.load_manifest(job.job().completed[-1].body.manifest).positions
        (refusal,) = obstacles(job.app().plan(), resolve(job.app()), positions)
        assert "no longer has partition 2" in refusal["what"]


class TestImmediateSink:
    """P22: the number of partitions decides which partition a key is in."""

    def app(self, folder: Path) -> hf.App:
        app = hf.App("last", root=str(folder / "root"))
        rows = app.source("rows", hf.Log(folder / "rows"), partitioned_by=["n"])
        rows.sink("lasts", hf.SQLite(folder / "out.db", table="t", key=["n"], delivery="idempotent"))
        return app

    def test_refuses_additional_partitions_at_the_next_start(self, job: Job, tmp_path: Path) -> None:
        job.append(0, 1)
        job.app = lambda: self.app(tmp_path)  # type: ignore[method-assign]
        job.start()
        assert job.end() == "stopped"
        job.log.widen(3)
        with pytest.raises(ConfigError, match="sink 'lasts' is written immediately from it") as refused:
            job.start()
        assert "give the sink another name" in str(refused.value.next_step)

    def test_accepts_any_number_of_partitions_at_the_first_start(self, job: Job, tmp_path: Path) -> None:
        job.log.widen(3)
        job.append(2, 1)
        job.app = lambda: self.app(tmp_path)  # type: ignore[method-assign]
        job.start()
        assert job.end() == "stopped"


class TestCommand:
    def test_widen_adds_partitions_and_shows_them(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        from holdfast.runtime.cli.main import main

        path = str(job.folder / "rows")
        assert main(["log", "add-partitions", path, "--to", "4"]) == 0
        assert "has 4 partitions, 2 of them new" in capsys.readouterr().out
        assert main(["log", "add-partitions", path, "--to", "4", "--json"]) == 0
        assert '"added":[]' in capsys.readouterr().out
        assert main(["log", "add-partitions", path, "--to", "3"]) == 2
        assert "never removed" in capsys.readouterr().err


def test_a_sink_keeps_writing_to_a_log_with_added_partitions(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.append(0, 1)
    cluster = job.start()
    LogWriter(LocalObjects(tmp_path / "out")).widen(6)
    for n in range(12):
        job.append(n % 2, 10 + n)
        cluster.pass_time(1.5)
    assert job.rows() == [1, *range(10, 22)]
    ends = LogReader(LocalObjects(tmp_path / "out")).end_offsets()
    assert len(ends) == 6 and ends[2] and ends[4]


def test_discovery_can_be_turned_off(job: Job) -> None:
    app = job.app()
    job.started = prepare(app.plan(), resolve(app))
    job.cluster = Cluster(job.started.plan, 2, 0, job.started.folder.store, 1.0, job.started.inputs.partitions)
    job.cluster.rules = replace(job.cluster.rules, discover_every=0.0)
    job.cluster.change_rules()
    job.cluster.begin()
    job.log.widen(3)
    job.append(2, 1)
    job.cluster.pass_time(60)
    assert job.rows() == []
    assert job.end(how="finish") == "finished" and job.rows() == [1]
