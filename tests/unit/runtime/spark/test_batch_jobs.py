"""Tasks of microbatches in Spark."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from holdfast.model import Barrier, Epoch
from holdfast.runtime.microbatch.blocks import result_in
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.spark import batch_jobs
from holdfast.runtime.spark.batch_jobs import BatchTask

PLAN = Plan("job", 4, (), (), (), (), ())
BATCH = Batch(PLAN, (frozenset(),), Barrier(Epoch(1), Epoch(0), last=False), False, (), {}, {})


def test_the_sessions_of_a_notebook_keep_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, own = dict[str, str](), dict[str, str]()

    def session(_: object) -> SimpleNamespace:
        opened = SimpleNamespace(conf=SimpleNamespace(set=own.__setitem__))
        return SimpleNamespace(conf=SimpleNamespace(set=notebook.__setitem__), newSession=lambda: opened)

    monkeypatch.setattr(batch_jobs, "SparkSession", session)
    batch_jobs.SparkJobs(cast(Any, None), "root", (), lambda _job, _result: None)
    assert own and not notebook


class Executors:
    """A Spark context that counts its executors, as given; its last answer is the last one asked for."""

    master = "spark://host:7077"

    def __init__(self, counts: list[int], over: threading.Event) -> None:
        self._counts, self._over = iter(counts), over
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=self._status))

    def _status(self) -> SimpleNamespace:
        count = next(self._counts, None)
        if count is None:
            self._over.set()
        return SimpleNamespace(size=lambda: 1 + (count or 0))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([2, 0, 0, 0, 0, 0], ["", "", "", "", "15 s", "20 s"]),
        ([2, 0, 0, 0, 0, 1, 0], ["", "", "", "", "15 s", "", ""]),
        ([2, 2, 2], ["", "", ""]),
    ],
)
def test_how_long_spark_has_had_no_executor_is_known(
    counts: list[int], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over, found, times = threading.Event(), list[str](), itertools.count(0, 5)
    context = Executors(counts, over)
    monkeypatch.setattr(batch_jobs, "SparkSession", MagicMock())
    monkeypatch.setattr(batch_jobs, "WATCH_EVERY_S", 0.0)
    jobs = batch_jobs.SparkJobs(cast(Any, context), "root", (), lambda _job, _result: None)

    def monotonic() -> float:
        found.append(jobs.stalled())
        return float(next(times))

    monkeypatch.setattr(batch_jobs, "time", SimpleNamespace(monotonic=monotonic))
    jobs._watch(over)
    # Each answer is seen at the look after it.
    assert [text.partition(" for ")[2].partition(";")[0] for text in found[1:]] == said
    assert jobs.stalled() == ""


def test_a_task_on_another_machine_than_the_driver_refuses_local_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: 1))
    monkeypatch.setattr(batch_jobs, "TaskContext", task)
    stage = batch_jobs._stage(BatchTask(BATCH, "/srv/jobs/job", ("driver", "boot"), ("the root at /srv/jobs",)), 0)
    (row,) = list(stage([]))
    result = result_in(row.column("data")[0].as_py())
    assert result is not None and result.error is not None and result.permanent
    assert "the root at /srv/jobs" in result.error.what and result.attempt.subtask == 1
