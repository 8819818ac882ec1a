"""A sweep also removes what killed writers left in a root that is a local folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.checkpoint.joblog import Job, JobCreated, Record, fold
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Unavailable
from holdfast.model import Generation, JobUuid, Timeline
from holdfast.runtime.driver.background.sweep import Sweep
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.storage.objects import LocalObjects


@pytest.fixture
def job() -> Job:
    return fold(None, Record(1, JobUuid("1"), Generation(0), Timeline(1), "a", 0, JobCreated("job", 8)))


def swept(store: LocalObjects, job: Job) -> Sweep:
    lane = InlineLane()
    sweep = Sweep(Repository(store), lambda: lane)
    sweep.request(job)
    lane.step()
    return sweep


def test_a_sweep_removes_temporary_files_and_empty_folders(tmp_path: Path, job: Job) -> None:
    left = tmp_path / "segments" / "00000001" / "000000000007" / ".tmp-0123"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert swept(LocalObjects(tmp_path), job).problem is None
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["segments"]


def test_a_root_that_cannot_be_tidied_is_a_problem_of_the_sweep(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".tmp-0123").write_bytes(b"half")
    os.utime(tmp_path / ".tmp-0123", (0, 0))

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    problem = swept(LocalObjects(tmp_path), job).problem
    assert isinstance(problem, Unavailable) and "tidying" in problem.what
