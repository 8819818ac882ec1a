"""Tasks of microbatches in Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

import holdfast as hf
from holdfast.model import Barrier, Epoch
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.microbatch.blocks import result_in
from holdfast.runtime.microbatch.job_watch import LayerProgress
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.spark import batch_jobs
from holdfast.runtime.spark.batch_jobs import BatchTask

SETTINGS = resolve(hf.App("job"))
PLAN = Plan("job", 4, (), (), (), (), ())
BATCH = Batch(PLAN, (frozenset(),), Barrier(Epoch(1), Epoch(0), last=False), False, (), {}, {}, 0)


def test_the_sessions_of_a_notebook_keep_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, own = dict[str, str](), dict[str, str]()

    def session(_: object) -> SimpleNamespace:
        opened = SimpleNamespace(conf=SimpleNamespace(set=own.__setitem__))
        return SimpleNamespace(conf=SimpleNamespace(set=notebook.__setitem__), newSession=lambda: opened)

    monkeypatch.setattr(batch_jobs, "SparkSession", session)
    batch_jobs.SparkJobs(cast(Any, None), "root", (), SETTINGS, None, ended=lambda _job, _result: None)
    assert own and not notebook


class Tracked:
    """A Spark context without executors and with one stage, of which a task has ended; it is asked once."""

    master = "spark://host:7077"

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=self._status))
        self.groups = list[str]()

    def _status(self) -> SimpleNamespace:
        self._over.set()
        return SimpleNamespace(size=lambda: 1)

    def statusTracker(self) -> SimpleNamespace:
        def jobs(group: str) -> list[int]:
            self.groups.append(group)
            return [7]

        stage = SimpleNamespace(numTasks=2, numCompletedTasks=1, numFailedTasks=3)
        return SimpleNamespace(
            getJobIdsForGroup=jobs,
            getJobInfo=lambda _: SimpleNamespace(stageIds=[4, 3]),
            getStageInfo={3: stage, 4: None}.get,
        )


def test_a_job_is_watched_by_what_spark_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    over, seen = threading.Event(), list[Any]()
    context = Tracked(over)

    class Watch:
        def __init__(self, *_: object) -> None:
            """It has no need of the plan."""

        def look(self, now: float, executors: int, stages: list[LayerProgress]) -> str:
            seen.extend([executors, stages, jobs.stalled()])
            return "why"

    monkeypatch.setattr(batch_jobs, "SparkSession", MagicMock())
    monkeypatch.setattr(batch_jobs, "JobWatch", Watch)
    monkeypatch.setattr(batch_jobs, "WATCH_EVERY_S", 0.0)
    jobs = batch_jobs.SparkJobs(cast(Any, context), "root", (), SETTINGS, None, ended=lambda _job, _result: None)
    jobs._watch(5, BATCH, over)
    assert seen == [0, [LayerProgress(2, 1, 3)], ""]
    assert context.groups == [jobs._group(5)]
    assert jobs.stalled() == ""


def test_the_end_of_a_tasks_process_is_reported_with_what_it_ran() -> None:
    report = (
        "Job aborted: SparkException: Python worker exited unexpectedly (crashed): holdfast-mark: function: map parse\n"
        "\tat org.apache.spark.Something\nCaused by: Timeout (elsewhere)"
    )
    error = batch_jobs._job_ended(3, RuntimeError(report))
    assert error.what.endswith("ended unexpectedly, while it ran the Python function of step 'map parse'")
    hung = report.replace("map parse\n", "map parse\nTimeout (0:02:00)!\nThread 0x1 (most recent call first):\n")
    error = batch_jobs._job_ended(3, RuntimeError(hung))
    assert "longer than hung_after_ms, while it ran the Python function of step 'map parse'" in error.what
    error = batch_jobs._job_ended(3, RuntimeError("Python worker exited unexpectedly (crashed)\n\tat x"))
    assert error.what.endswith("while it ran code outside Python functions")


def test_a_task_on_another_machine_than_the_driver_refuses_local_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: 1))
    monkeypatch.setattr(batch_jobs, "TaskContext", task)
    stage = batch_jobs._stage(
        BatchTask(BATCH, "/srv/jobs/job", ("driver", "boot"), ("the root at /srv/jobs",), SETTINGS), 0
    )
    (row,) = list(stage([]))
    result = result_in(row.column("data")[0].as_py())
    assert result is not None and result.error is not None and result.permanent
    assert "the root at /srv/jobs" in result.error.what and result.attempt.subtask == 1
