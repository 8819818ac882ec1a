"""A job whose root is deleted or replaced while it runs stops before it commits anything more.

Source: docs/decisions/0116-roots-that-go.md; docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.joblog import record_path
from holdfast.errors import Damaged, ErrorReport, Fenced
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects


@dataclass
class Said:
    n: int


class Root(MemoryObjects):
    """A root that can be replaced, and deleted while a record is on its way into it."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted_before: str | None = None

    def create(self, path: str, data: bytes) -> None:
        if path == self.deleted_before:
            self.replace({})
        super().create(path, data)

    def copy(self) -> dict[str, bytes]:
        return {path: self.get(path) for path in self.list("")}

    def replace(self, objects: Mapping[str, bytes]) -> None:
        for path in self.list(""):
            self.delete(path)
        for path, data in objects.items():
            self.put(path, data)


class Job:
    """A running job that completes an epoch with each record it is fed."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.input = LocalObjects(folder / "input")
        for name in ("input", "out"):
            create_log(LocalObjects(folder / name), schema_of(Said), partitions=1)
        app = hf.App("words", root=str(folder / "root"))
        app.source("rows", hf.Log(folder / "input", Said)).sink("out", hf.Log(folder / "out"))
        self.plan, self.mode, self.store = app.plan(), mode, Root()
        self.run = self.start(0)
        self.feed(3)

    def start(self, seed: int) -> Cluster:
        run = Cluster(self.plan, 1, seed, self.store, 1.0, {"rows": (0,)}, self.mode)
        run.begin()
        run.settle()
        return run

    def feed(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            LogWriter(self.input).append({0: pa.record_batch({"n": pa.array([1], pa.int64())}, schema=schema_of(Said))})
            self.run.pass_time(2.5)

    @property
    def records(self) -> list[str]:
        return self.store.list("log")

    @property
    def ended(self) -> tuple[str, ErrorReport]:
        assert self.run.driver.outcome is not None, "the run goes on"
        how, error = self.run.driver.outcome
        assert error is not None
        return how, error


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(tmp_path, request.param)


class TestARootThatIsDeleted:
    def test_ends_the_run_as_damaged_before_a_record_is_added(self, job: Job) -> None:
        job.store.replace({})
        job.feed()
        how, error = job.ended
        assert (how, error.kind, job.records) == ("refused", Damaged.kind, [])

    def test_while_a_record_is_written_ends_the_run_before_the_next_one(self, job: Job) -> None:
        job.store.deleted_before = record_path(job.run.driver.state.job.next_seq)
        job.feed(2)
        assert job.ended[1].kind == Damaged.kind and job.records == [job.store.deleted_before]

    def test_ends_a_stop_as_damaged_too(self, job: Job) -> None:
        job.store.replace({})
        job.run.driver.stop()
        job.run.pass_time(3)
        assert job.ended[0] == "refused" and job.records == []

    def test_is_no_reason_to_end_if_it_comes_back_before_the_next_record(self, job: Job) -> None:
        whole = job.store.copy()
        job.store.replace({})
        job.store.replace(whole)
        job.feed()
        assert (
            job.run.driver.outcome is None and len(job.records) == len([p for p in whole if p.startswith("log/")]) + 1
        )

    def test_the_error_says_what_is_left(self, job: Job) -> None:
        epoch = job.run.driver.state.job.base_epoch
        job.store.replace({})
        job.feed()
        error = job.ended[1]
        assert f"last checkpoint was that of epoch {epoch}" in error.not_done
        assert "rows:0 at 3" in error.not_done and "out" in error.not_done
        assert f"as of epoch {epoch} is in the memory of the workers, which ends with this run" in error.not_done


class TestARootThatIsReplaced:
    def test_by_an_older_copy_ends_the_run_before_a_record_is_added(self, job: Job) -> None:
        older = job.store.copy()
        job.feed(2)
        job.store.replace(older)
        job.feed()
        assert job.ended[1].kind == Damaged.kind and job.store.copy().keys() >= older.keys()
        assert job.records == [path for path in older if path.startswith("log/")]

    def test_by_a_copy_from_before_the_run_is_not_called_a_takeover(self, job: Job) -> None:
        before = {path: data for path, data in job.store.copy().items() if path <= record_path(1)}
        job.store.replace(before)
        job.feed()
        assert job.ended[0] == "refused" and job.ended[1].kind == Damaged.kind

    def test_by_a_copy_that_another_driver_has_continued_ends_the_run_as_fenced(self, job: Job) -> None:
        older = job.store.copy()
        job.feed(2)
        job.store.replace(older)
        job.start(seed=1)
        job.feed()
        assert (job.ended[0], job.ended[1].kind) == ("fenced", Fenced.kind)


class TestARecordThatCannotBeRead:
    def test_does_not_end_the_run_while_it_is_there(self, job: Job) -> None:
        """It is damaged where it lies: verification and the next start report that."""
        newest = job.records[-1]
        job.store.put(newest, job.store.get(newest)[:-40])
        job.feed()
        assert job.run.driver.outcome is None and len(job.records) > 1
