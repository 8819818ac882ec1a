"""Runs the job of an epoch in Spark: a stage of tasks per layer, a shuffle between two layers.

Rows of the shuffle are few and large: a block of frames, or a result, in a binary column, with the subtask that
receives it. A task is the partition of its subtask in every stage.

Invariants
    - Every attempt of a task has its own identity.
    - The end of a job is reported once, from a separate thread.

Source: DESIGN section 8; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession

from holdfast import children
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.model import Subtask
from holdfast.runtime.config.settings import Settings
from holdfast.runtime.driver.gathering import elsewhere
from holdfast.runtime.microbatch.blocks import Attempt, Parcel, Result, parcel_of
from holdfast.runtime.microbatch.deaths import ProcessEnded, TaskDeath
from holdfast.runtime.microbatch.job_watch import JobWatch, LayerProgress
from holdfast.runtime.microbatch.task import Batch, TaskPorts, run_task
from holdfast.runtime.processes.memory import budget_of
from holdfast.runtime.spark import marks
from holdfast.runtime.spark.launch import first_line, is_one_process
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.presence import boot_id
from holdfast.runtime.wire.vitals import FUNCTION, SOURCE
from holdfast.runtime.worker.local.images import LocalImages
from holdfast.runtime.worker.local.warm import WarmState
from holdfast.storage.objects import open_objects

_log = logging.getLogger(__name__)
_COLUMNS = "to int, data binary"
_SCHEMA = pa.schema([("to", pa.int32()), ("data", pa.binary())])
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # it would merge partitions, and a partition is a subtask
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8",
    marks.SETTING: "true",
}
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
WATCH_EVERY_S = 1.0
CONF = {
    "spark.task.maxFailures": "4",
    "spark.locality.wait": "3s",
    "spark.locality.wait.node": "3s",
}
"""Spark's own defaults, which resident workers change: here Spark tries tasks again."""


@dataclass(frozen=True)
class BatchTask:
    """The parameters of the tasks of one job; Spark sends them to the executors."""

    batch: Batch
    root: str
    """URL or path of the job's folder."""
    driver: tuple[str, str]
    """Host name and boot id of the driver's machine."""
    local_paths: tuple[str, ...]
    """Paths of the job on that machine's disk, as text for messages; empty if every machine sees them."""
    settings: Settings
    container: int | None = None
    """See memory.budget_of."""


class SparkJobs:
    """Submits and cancels the jobs of epochs.

    Args:
        local_paths, settings, container: See BatchTask.
        ended: Takes the number of a job with the last messages of its tasks, or with the error that ended it; from
            another thread.
    """

    def __init__(
        self,
        context: SparkContext,
        root: str,
        local_paths: tuple[str, ...],
        settings: Settings,
        container: int | None,
        *,
        ended: Callable[[int, Sequence[bytes] | HoldfastError], None],
    ) -> None:
        self._context, self._root, self._local_paths, self._ended = context, root, local_paths, ended
        self._settings, self._container = settings, container
        self._stalled = ""
        self._cancelled = 0
        """Jobs up to this number were cancelled, or have ended: one runs at a time."""
        # A notebook's session keeps its settings.
        self._session = SparkSession(context).newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        self._prefix = f"holdfast-batches-{id(self)}"

    def run(self, job: int, batch: Batch) -> None:
        """See Jobs.run."""
        over = threading.Event()
        threading.Thread(target=self._submit, args=(job, batch, over), name=f"batch-{job}", daemon=True).start()
        threading.Thread(target=self._watch, args=(job, batch, over), name=f"watch-{job}", daemon=True).start()

    def stalled(self) -> str:
        """See Jobs.stalled."""
        return self._stalled

    def cancel(self, job: int) -> None:
        """See Jobs.cancel."""
        self._cancelled = max(self._cancelled, job)
        threading.Thread(target=self._cancel, args=(job,), name=f"cancel-{job}", daemon=True).start()

    def _cancel(self, job: int) -> None:
        try:
            self._context.cancelJobGroup(self._group(job))
        except (Py4JError, OSError, AttributeError) as error:  # a Spark that has stopped runs no job either
            _log.warning("job %d was not cancelled: %s", job, first_line(error))

    def _watch(self, job: int, batch: Batch, over: threading.Event) -> None:
        """Note the waits of the job, until it is over."""
        watch = JobWatch(batch.plan, batch.layers, time.monotonic())
        while not over.wait(WATCH_EVERY_S):
            try:
                stages = self._stages(self._group(job))
                # The driver counts as one; if there is nothing else, it runs the tasks itself, or nothing does.
                executors = int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1
            except (Py4JError, OSError, AttributeError):  # Spark has stopped, which ends the job
                break
            alone = is_one_process(self._context)
            self._stalled = watch.look(time.monotonic(), executors + alone, stages)
        self._stalled = ""

    def _stages(self, group: str) -> list[LayerProgress]:
        """Return the stages of a job that have begun, in their order."""
        tracker = self._context.statusTracker()
        infos = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
        numbers = sorted({number for info in infos if info is not None for number in info.stageIds})
        stages = (tracker.getStageInfo(number) for number in numbers)
        return [LayerProgress(s.numTasks, s.numCompletedTasks, s.numFailedTasks) for s in stages if s is not None]

    def _submit(self, job: int, batch: Batch, over: threading.Event) -> None:
        try:
            self._run(job, batch)
        finally:
            over.set()

    def _run(self, job: int, batch: Batch) -> None:
        epoch = batch.barrier.epoch
        if job <= self._cancelled:
            return
        try:
            self._context.setJobGroup(self._group(job), f"holdfast epoch {epoch}", interruptOnCancel=True)
            result_table = _frame(self._session, self._task(batch)).toArrow()
        except Exception as error:  # noqa: BLE001 - whatever ended the Spark job, the driver must learn of it
            failed = _job_ended(epoch, error)
            if job > self._cancelled:
                _log.warning("%s. Next: %s", failed.what, failed.next_step)
            self._ended(job, failed)
        else:
            self._ended(job, [bytes(value.as_buffer()) for value in result_table.column("data")])

    def _task(self, batch: Batch) -> BatchTask:
        here = socket.gethostname(), boot_id()
        return BatchTask(batch, self._root, here, self._local_paths, settings=self._settings, container=self._container)

    def _group(self, job: int) -> str:
        return f"{self._prefix}-{job}"


def _frame(session: SparkSession, task: BatchTask) -> DataFrame:
    """Return the job as a data frame whose rows are the results of its tasks."""
    width = len(task.batch.deploys)
    rows = session.range(0, width, 1, width)
    frame = rows.mapInArrow(_stage(task, 0), _COLUMNS)
    for layer in range(1, len(task.batch.layers)):
        frame = frame.repartitionById(width, "to").mapInArrow(_stage(task, layer), _COLUMNS)
    return frame


def _stage(task: BatchTask, layer: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        children.guard()
        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(layer, Subtask(context.partitionId()), uuid.uuid4().hex[:12])
        here = socket.gethostname(), boot_id()
        refused = elsewhere(task.batch.plan.app, task.driver, task.local_paths, here)
        if refused is not None:
            yield _row(parcel_of(Result(attempt, error=refused, permanent=True)))
            return
        clock, store = SystemClock(), open_objects(task.root)
        incoming = _values(batches) if layer else _nothing(batches)
        with closing(marks.CallMarks(task.settings.hung_after_ms / 1000, attempt.subtask)) as calls:
            budget = budget_of(task.batch.plan, task.settings, task.container)
            state = WarmState(clock, time.sleep, LocalImages(budget=budget))
            paused = _paused_uploads(task.batch.deploys[0].job_uuid)
            ports = TaskPorts(clock, store, state, time.sleep, calls.mark, budget, paused)
            for parcel in run_task(task.batch, ports, attempt, incoming):
                yield _row(parcel)

    return run


@cache
def _paused_uploads(job_uuid: str) -> Counter[str]:
    """Return the uploads of a job that this process leaves out: it runs one task after another."""
    return Counter[str]()


def _values(batches: Iterable[pa.RecordBatch]) -> Iterator[memoryview]:
    for batch in batches:
        for value in batch.column(1):
            yield memoryview(value.as_buffer())


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[memoryview]:
    """Take Spark's input to tasks that read sources: a number, which only makes the partition."""
    for _ in batches:
        yield from ()


def _row(parcel: Parcel) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([parcel.to], pa.int32()), pa.array([parcel.data], pa.binary())], schema=_SCHEMA
    )


def _job_ended(epoch: int, error: Exception) -> HoldfastError:
    if missing := _NO_MODULE.search(str(error)):
        return ConfigError(
            f"the executors cannot import {missing[1]!r}, which the job's code needs",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step="send it with --py-files or --archives, or install it on the executors",
        )
    if (process := marks.ended(str(error))) is not None:
        killed = process.mark is not None and process.mark.startswith((FUNCTION, SOURCE)) and not process.hung
        death = TaskDeath(process.mark, process.subtask, process.at, process.how) if killed else None
        return ProcessEnded(
            f"the Spark job of epoch {epoch} failed: the Python process of a task {process.what}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f"{process.advice}; the job runs again from the same offsets",
            death=death,
        )
    return Unavailable(
        f"the Spark job of epoch {epoch} failed: {first_line(error)}",
        not_done="the epoch was not completed; state and output stay as of the last checkpoint",
        next_step="it runs again from the same offsets; if this repeats, see the log of the executors",
    )
