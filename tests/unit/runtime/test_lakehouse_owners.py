"""Whole jobs that would write one table of a lakehouse: the second one is refused, until a user moves it to that job.

Source: PROTOCOL P1, P17; docs/design/0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog

import holdfast as hf
from tests.unit.runtime.test_owned_targets import Said, outcome
from tests.unit.runtime.test_table_owners import Jobs

MADE: dict[str, Any] = {"delta": FolderTable, "iceberg": FolderCatalog}


class LakeJobs(Jobs):
    """Jobs of several names and roots, which write the same table."""

    key: tuple[str, ...] | None = ("n",)

    def app(self, root: str) -> hf.App:
        app = hf.App(self.name, root=str(self.folder / root))
        app.source("rows", hf.Log(self.folder / "input", Said)).sink(self.sink, self.table().sink)
        return app

    def table(self) -> Any:
        return MADE[self.kind](self.folder, self.key)

    def numbers(self) -> list[int]:
        return sorted(n for n, _word in self.table().rows())


@pytest.fixture(params=sorted(MADE))
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> LakeJobs:
    return LakeJobs(tmp_path, request.param)


class TestTableWithAKey:
    def test_a_second_job_is_refused_until_the_user_moves_the_table_to_it(self, jobs: LakeJobs) -> None:
        first = jobs.start()
        jobs.say(first)
        jobs.name = "others"
        with pytest.raises(hf.ConfigError, match="belongs to sink 'copy' of another job") as refused:
            jobs.prepare("elsewhere")
        assert refused.value.not_done == "the job was not started; state and output are untouched"
        assert "--adopt-targets" in refused.value.next_step and refused.value.exit_status == 2
        second = jobs.start("elsewhere", adopt=["copy"])
        jobs.say(second)
        jobs.say(first)
        how, kind, what = outcome(first)
        assert (how, kind) == ("failed", "fenced") and "belongs to sink 'copy' of another job" in what
        jobs.say(second)
        assert second.driver.outcome is None and jobs.numbers() == list(range(12))
        jobs.name = "words"
        with pytest.raises(hf.ConfigError, match="belongs to sink 'copy' of another job"):
            jobs.prepare()

    def test_of_two_jobs_that_begin_together_one_is_refused_by_its_first_delivery(self, jobs: LakeJobs) -> None:
        first = jobs.start()
        jobs.name, jobs.sink = "others", "more"
        second = jobs.start("elsewhere")
        jobs.say(first)
        second.pass_time(4)
        how, kind, what = outcome(second)
        assert (how, kind) == ("failed", "fenced") and "belongs to sink 'copy' of another job" in what
        jobs.say(first)
        assert first.driver.outcome is None and jobs.numbers() == list(range(6))

    def test_a_rewind_keeps_it_and_a_recreated_job_is_refused(self, jobs: LakeJobs) -> None:
        jobs.say(jobs.start())
        jobs.rewind()
        jobs.say(jobs.start())
        assert jobs.numbers() == list(range(6))
        shutil.rmtree(jobs.folder / "root")
        with pytest.raises(hf.ConfigError, match="belongs to sink 'copy' of another job"):
            jobs.prepare()


class TestTableWithoutAKey:
    def test_jobs_share_it_if_their_sinks_have_different_names(self, jobs: LakeJobs) -> None:
        jobs.key = None
        first = jobs.start()
        jobs.say(first)
        jobs.name, jobs.sink = "others", "more"
        second = jobs.start("elsewhere")
        second.pass_time(4)
        jobs.say(first, 0)
        assert jobs.numbers() == [0, 0, 1, 1, 2, 2]
        jobs.key, jobs.sink = ("n",), "third"
        with pytest.raises(hf.ConfigError, match="belongs to sink 'copy' of another job"):
            jobs.prepare("anywhere")
