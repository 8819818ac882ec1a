"""Jobs in microbatch mode with tasks that are lost, run twice, refused or fail, against counts in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.bases import Thresholds
from holdfast.errors import Unavailable
from holdfast.model import Epoch
from holdfast.runtime.job import status
from holdfast.runtime.job.explain import findings
from holdfast.runtime.microbatch import machine
from holdfast.runtime.spark.batch_jobs import _job_ended
from holdfast.runtime.testing.batches import TaskFaults
from holdfast.testing import TestDriver
from tests.unit.runtime.test_local_refusal import NoBases

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Visit:
    user: str
    page: int
    at: datetime


def app() -> hf.App:
    """Return a job with two shuffles: state in two layers of tasks."""
    job = hf.App("visits", checkpoint_every="1s", mode="microbatch")
    visits = job.source("visits", hf.Log("unused", Visit), event_time="at")
    once = visits.key_by("user", "page").dedup("once", within="1h")
    pages = once.key_by("page").agg("pages", users=hf.count())
    pages.sink("out", hf.SQLite("unused.db", table="pages", key=["page"]))
    return job


def visit(number: int) -> dict[str, Any]:
    return {"user": f"user {number % 7}", "page": number % 5, "at": AT}


def expected(numbers: range) -> dict[int, int]:
    return dict(Counter(page for _, page in {(number % 7, number % 5) for number in numbers}))


def shown(t: TestDriver) -> dict[int, int]:
    return {row["page"]: row["users"] for row in t.rows("out")}


def faults_of(t: TestDriver) -> TaskFaults:
    assert t.cluster.batches is not None
    return t.cluster.batches.jobs.faults


def epochs(t: TestDriver) -> int:
    return len(t.cluster.driver.state.job.completed)


def newest_segments(t: TestDriver) -> list[int]:
    """Return how many segments of the last epoch each subtask has."""
    job = t.cluster.driver.state.job
    manifest = t.cluster.repository.load_manifest(job.completed[-1].body.manifest)
    return [sum(segment.epoch == manifest.epoch for segment in handle.segments) for handle in manifest.state]


def crash_and_rewind(t: TestDriver) -> None:
    """Let the job crash, and go back to a checkpoint: its results are right after both."""
    t.push("visits", [visit(number) for number in range(10)])
    epoch = t.checkpoint()
    t.push("visits", [visit(number) for number in range(10, 40)])
    t.checkpoint()
    t.crash()
    t.recover()
    assert shown(t) == expected(range(40))
    t.rewind(Epoch(epoch))
    t.checkpoint()
    assert shown(t) == expected(range(40))


class TestFaults:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        ("what", "faults"),
        [("lost", TaskFaults(losses=0.3)), ("twice", TaskFaults(twice=0.7)), ("failed", TaskFaults(fails=0.1))],
        ids=["output lost after it was read", "tasks run twice", "jobs fail"],
    )
    def test_results_are_exact(self, what: str, faults: TaskFaults, seed: int) -> None:
        with TestDriver(app(), parallelism=3, seed=seed) as t:
            assert t.cluster.batches is not None
            faults = t.cluster.batches.jobs.faults = TaskFaults(faults.losses, faults.twice, faults.fails)
            for first in range(0, 60, 15):
                t.push("visits", [visit(number) for number in range(first, first + 15)], partition=first % 4)
                t.checkpoint()
                assert shown(t) == expected(range(first + 15))
            assert faults.happened[what] > 0

    def test_the_lag_counts_records_before_anything_was_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(app()) as t:
            assert t.cluster.batches is not None
            monkeypatch.setattr(t.cluster.batches.jobs, "step", lambda: False)
            t.push("visits", [visit(number) for number in range(5)], partition=2)
            for _ in range(20):
                rows = status.of_run(t.cluster.driver.state, "", "microbatch", None).sources
                lags = {row.partition: (row.offset, row.lag) for row in rows}
                if lags[2] != (-1, 0):
                    break
                t.advance("50ms")
            assert lags == {0: (-1, 0), 1: (-1, 0), 2: (-1, 5), 3: (-1, 0)}

    def test_only_the_first_epoch_of_a_generation_does_not_wait_until_it_is_due(self) -> None:
        job = app()
        job.checkpoint_every = "1h"
        with TestDriver(job) as t:
            t.push("visits", [visit(number) for number in range(5)])
            t.advance("2s")
            assert shown(t) == expected(range(5))
            t.push("visits", [visit(number) for number in range(5, 30)])
            t.advance("50m")
            assert shown(t) == expected(range(5))
            t.crash()
            t.recover()
            t.advance("2s")
            assert shown(t) == expected(range(30))

    def test_a_generation_after_one_without_an_epoch_waits_until_its_first_one_is_due(self) -> None:
        job = app()
        job.checkpoint_every = "1m"
        with TestDriver(job) as t:
            t.push("visits", [visit(number) for number in range(5)])
            t.checkpoint()
            assert t.cluster.batches is not None
            t.cluster.batches.jobs.faults = TaskFaults(fails=1.0)
            t.push("visits", [visit(number) for number in range(5, 30)])
            t.advance("10m")
            assert 2 < t.cluster.driver.state.job.generation < 15
            t.cluster.batches.jobs.faults = TaskFaults()
            t.advance("2m")
            assert shown(t) == expected(range(30))

    def test_a_spark_without_executors_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(app()) as t:
            assert t.cluster.batches is not None
            jobs = t.cluster.batches.jobs
            monkeypatch.setattr(jobs, "stalled", lambda: "Spark has had no executor for 12 s")
            monkeypatch.setattr(jobs, "step", lambda: False)
            t.push("visits", [visit(number) for number in range(5)])
            t.advance("40s")
            shown = status.of_run(t.cluster.driver.state, "", "microbatch", None)
            (found,) = [each for each in findings(shown) if each.code == "not_acked"]
            assert found.what.endswith("s: Spark has had no executor for 12 s")
            monkeypatch.undo()
            t.checkpoint()
            assert all(not worker.refused for worker in status.of_run(t.cluster.driver.state, "", "", None).workers)

    def test_state_of_several_layers_is_in_segments_of_its_own(self) -> None:
        with TestDriver(app()) as t:
            t.push("visits", [visit(number) for number in range(40)])
            t.checkpoint()
            assert newest_segments(t) == [2, 2]
            assert t.state("pages", 1) is not None

    def test_the_size_of_the_state_of_every_subtask_is_in_the_status(self) -> None:
        with TestDriver(app(), parallelism=2) as t:
            t.push("visits", [visit(number) for number in range(20)])
            t.checkpoint()
            workers = status.of_run(t.cluster.driver.state, "", "microbatch", None).workers
            assert len(workers) == 2
            for worker in workers:
                assert worker.rss_bytes is None, "processes of tasks come and go"
                assert worker.state_bytes is not None and 0 < worker.state_bytes < 100 << 20

    def test_a_crash_and_a_rewind_restore_the_state_of_all_layers(self) -> None:
        with TestDriver(app()) as t:
            crash_and_rewind(t)


class TestRefusals:
    def test_a_source_that_is_away_is_waited_for_in_the_same_generation(self) -> None:
        with TestDriver(app()) as t:
            source = t.sources["visits"]
            read, refused = source.reader, list[float]()

            def reader(*given: Any) -> Any:
                if t.cluster.clock.now < until:
                    refused.append(t.cluster.clock.now)
                    raise Unavailable("the log is unreachable", not_done="nothing was read", next_step="wait")
                return read(*given)

            until = t.cluster.clock.now + 120.0
            source.reader = reader  # type: ignore[assignment, method-assign]
            t.push("visits", [visit(number) for number in range(20)])
            t.checkpoint()
            assert shown(t) == expected(range(20))
            assert refused and t.cluster.driver.state.job.generation == 1

    def test_a_merge_that_is_refused_is_a_problem_until_one_succeeds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "start", partial(machine.start, limits=Thresholds(segments_max=2)))
        with TestDriver(app()) as t:
            assert t.cluster.batches is not None
            store = t.cluster.batches.ports.store = NoBases(t.cluster._store)

            def problems() -> list[str]:
                return [each.code for each in status.of_run(t.cluster.driver.state, "", "microbatch", None).problems]

            for first in range(0, 30, 10):
                t.push("visits", [visit(number) for number in range(first, first + 10)])
                t.checkpoint()
            assert store.refused and set(problems()) == {status.MERGE_REFUSED}
            store.refusing = False
            t.advance("2m")
            assert problems() == []

    def test_an_error_of_one_record_ends_the_job_with_its_cause(self) -> None:
        job = hf.App("visits", checkpoint_every="1s", mode="microbatch")
        visits = job.source("visits", hf.Log("unused", Visit))
        visits.map(_fails_on_three, to=Visit).sink("out", hf.Log("out"))
        for partition in range(4):
            with TestDriver(job) as t, pytest.raises(hf.JobFailed, match="page three"):
                t.push("visits", [visit(3)], partition)
                t.checkpoint()

    def test_a_job_whose_code_the_executors_cannot_import_is_not_run_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spark = "Traceback ...\nModuleNotFoundError: No module named 'pricing'\n at org.apache.spark.api.python"
        with TestDriver(app()) as t, pytest.raises(hf.JobFailed, match="cannot import 'pricing'"):
            assert t.cluster.batches is not None
            host, ran = t.cluster.batches.host, list[int]()

            def run(job: int, _: object) -> None:
                ran.append(job)
                t.cluster._inbox.append(lambda: host.ended(job, _job_ended(1, RuntimeError(spark))))

            monkeypatch.setattr(t.cluster.batches.jobs, "run", run)
            t.push("visits", [visit(1)])
            t.checkpoint()
        assert len(ran) == 1


class TestQuiet:
    @pytest.mark.parametrize("full", [True, False])
    def test_nothing_runs_while_targets_take_no_more_output(self, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
        with TestDriver(app()) as t:
            t.push("visits", [visit(0)])
            t.checkpoint()
            assert t.cluster.batches is not None
            monkeypatch.setattr(t.cluster.batches.host._deliveries, "full", lambda: full)
            t.push("visits", [visit(number) for number in range(20)])
            before = epochs(t)
            t.advance("10s")
            assert (epochs(t) == before) == full

    def test_nothing_runs_while_there_is_nothing_to_read(self) -> None:
        with TestDriver(app()) as t:
            t.push("visits", [visit(0)])
            t.checkpoint()
            t.advance("60s")  # the first epochs also record that partitions have become idle
            before = epochs(t)
            t.advance("10s")
            assert epochs(t) == before


def _fails_on_three(row: Visit) -> Visit:
    if row.page == 3:
        raise ValueError("page three")
    return row
