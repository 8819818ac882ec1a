"""Tasks of microbatches in Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.model import Barrier, Epoch
from holdfast.runtime.microbatch.blocks import result_in
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.spark import batch_jobs
from holdfast.runtime.spark.batch_jobs import BatchTask

PLAN = Plan("job", 4, (), (), (), (), ())
BATCH = Batch(PLAN, (frozenset(),), Barrier(Epoch(1), Epoch(0), last=False), False, (), {}, {})


def test_a_task_on_another_machine_than_the_driver_refuses_local_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: 1))
    monkeypatch.setattr(batch_jobs, "TaskContext", task)
    stage = batch_jobs._stage(BatchTask(BATCH, "/srv/jobs/job", ("driver", "boot"), ("the root at /srv/jobs",)), 0)
    (row,) = list(stage([]))
    result = result_in(row.column("data")[0].as_py())
    assert result is not None and result.error is not None and result.permanent
    assert "the root at /srv/jobs" in result.error.what and result.attempt.subtask == 1
