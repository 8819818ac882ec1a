"""How a driver ends whose target reports a takeover: only the job log shows whether another run took over.

Source: PROTOCOL P16; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import Damaged, Fenced, Unavailable
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.wire import messages as m
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

REFUSED = Fenced("another run took the target over", next_step="stop this one").report()


@dataclass
class Said:
    n: int


class Flaky(MemoryObjects):
    """A store whose next reads of the job log fail."""

    def __init__(self) -> None:
        super().__init__()
        self.torn, self.unreachable = 0, 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        if path.startswith("log/") and self.unreachable:
            self.unreachable -= 1
            raise Unavailable(f"{path} cannot be read", next_step="try again")
        if path.startswith("log/") and self.torn:
            self.torn -= 1
            return data[: len(data) // 2]
        return data


class Job:
    """A running job whose job log can be damaged or unreachable."""

    def __init__(self, folder: Path) -> None:
        create_log(LocalObjects(folder / "input"), schema_of(Said), partitions=1)
        app = hf.App("words", root=str(folder / "root"))
        app.source("rows", hf.Log(folder / "input", Said)).sink("out", hf.Log(folder / "out"))
        self.plan, self.store = app.plan(), Flaky()
        self.first = self.start(seed=0)

    def start(self, seed: int) -> Cluster:
        cluster = Cluster(self.plan, 1, seed, self.store, 1.0, {"rows": (0,)})
        cluster.begin()
        cluster.settle()
        return cluster

    def refuse(self) -> tuple[str, str]:
        """Let a target refuse the first driver; return how its run ends, and the kind of its error."""
        [worker] = self.first.members
        generation = self.first.driver.state.job.generation
        self.first.driver.received(m.Failed(worker, generation, REFUSED, permanent=True))
        self.first.pass_time(2)
        assert self.first.driver.outcome is not None
        how, error = self.first.driver.outcome
        assert error is not None
        return how, error.kind


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


class TestDriverRefusedByATarget:
    def test_ends_as_fenced_if_a_newer_generation_owns_the_job(self, job: Job) -> None:
        job.start(seed=1)
        assert job.refuse() == ("fenced", "fenced")

    def test_ends_as_failed_if_it_still_owns_the_job(self, job: Job) -> None:
        assert job.refuse() == ("failed", "fenced")

    @pytest.mark.parametrize("reads", [1, 2])
    def test_rereads_a_log_that_one_read_finds_damaged(self, job: Job, reads: int) -> None:
        job.start(seed=1)
        job.store.torn = reads
        assert job.refuse() == ("fenced", "fenced")
        assert job.store.torn == 0

    def test_reports_a_log_that_stays_damaged(self, job: Job) -> None:
        job.start(seed=1)
        job.store.torn = 1_000
        assert job.refuse() == ("failed", Damaged.kind)

    def test_waits_for_a_log_that_is_unreachable(self, job: Job) -> None:
        job.start(seed=1)
        job.store.unreachable = 5
        assert job.refuse() == ("fenced", "fenced")
        assert job.store.unreachable == 0
