"""Whole jobs whose sink is pointed at another target, and a rewind to a checkpoint from before that.

Source: PROTOCOL P21; docs/decisions/0106-sinks-that-move.md.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.model import Epoch
from holdfast.runtime.driver.state import RewindWanted
from holdfast.runtime.rewind.plan import check, plan_of
from holdfast.runtime.rewind.stopped import rewind_stopped
from holdfast.runtime.wire.clock import SystemClock
from tests.unit.runtime.test_owned_targets import Said, Site


class Jobs(Site):
    """A job whose sink has one target after the other."""

    to = "first"

    def app(self, root: str) -> hf.App:
        app = hf.App("words", root=str(self.folder / root))
        rows = app.source("rows", hf.Log(self.folder / "input", Said))
        rows.sink("copy", self.target())
        return app

    def target(self) -> Any:
        if self.kind == "log":
            return hf.Log(self.folder / self.to)
        if self.kind == "files":
            return hf.Files(self.folder / self.to)
        key = None if self.kind == "sqlite" else ["n"]
        delivery = "idempotent" if self.kind == "sqlite idempotent" else "transactional"
        return hf.SQLite(self.folder / "out.db", self.to, key, delivery=delivery)

    def create(self) -> None:
        """Create the target as a start does."""
        spec = self.app("root").plan().sinks[0]
        spec.sink.prepare(spec.schema, spec.upsert_key)

    def ran(self, count: int = 3) -> int:
        """Process so many more records, and stop once they are delivered; return the last epoch."""
        cluster = self.start()
        self.say(cluster, count)
        cluster.driver.stop()
        cluster.pass_time(4)
        assert cluster.driver.outcome is not None and cluster.driver.outcome[0] == "stopped"
        return self.prepare_for_rewind()[0].base_epoch

    def planned(self, epoch: int) -> dict[str, Any]:
        """Return what `holdfast rewind JOB.py --to-epoch` shows."""
        job, plan, repository = self.prepare_for_rewind()
        base = next(each for each in job.completed if each.body.epoch == epoch)
        return plan_of(repository, job, base, plan, stop=True, clock=SystemClock())

    def rewound(self, epoch: int, *accepted: str, timeout_s: float = 60.0) -> None:
        job, plan, repository = self.prepare_for_rewind()
        wanted = RewindWanted(Epoch(epoch), True, accepted)
        rewind_stopped(repository, job, wanted, plan.sinks, timeout_s, lambda _reported: None)

    def rows(self, target: str) -> list[int]:
        if self.kind == "log":
            return sorted(hf.log(self.folder / target).collect()["n"].to_list())
        if self.kind == "files":
            files = (self.folder / target).glob("*.parquet")
            return sorted(n for file in files for n in pl.read_parquet(file)["n"])
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return [n for (n,) in db.execute(f"SELECT n FROM {target} ORDER BY n")]


@pytest.fixture(params=["sqlite", "sqlite keyed", "sqlite idempotent"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    """Another target is another table of the same file, where tags and before-images are."""
    return Jobs(tmp_path, request.param)


@pytest.fixture(params=["log", "files"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    """Another target is another folder, with tags of its own."""
    return Jobs(tmp_path, request.param)


def wrote_until(table: str, shown: dict[str, Any]) -> int:
    """Return up to which epoch the sink wrote to another table, as the plan of a rewind says."""
    found = re.search(rf"this sink wrote to the table '{table}' up to epoch (\d+)", shown["sinks"][0]["reason"])
    assert found is not None
    return int(found[1])


class TestAnotherTable:
    def test_a_rewind_to_before_the_switch_is_refused_and_names_the_table(self, tables: Jobs) -> None:
        early, last = tables.ran(), tables.ran()
        tables.to = "second"
        tables.ran()
        shown = tables.planned(early)
        assert (shown["sinks"][0]["verdict"], shown["accept"]) == ("impossible", ["copy:impossible"])
        assert early < wrote_until("first", shown) <= last
        with pytest.raises(hf.ConfigError, match="wrote to the table 'first'"):
            check(shown, [])

    def test_two_rewinds_undo_both_tables(self, tables: Jobs) -> None:
        early, last = tables.ran(), tables.ran()
        tables.to = "second"
        tables.ran()
        assert (tables.rows("first"), tables.rows("second")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])
        check(tables.planned(last), [])
        tables.rewound(last)
        assert (tables.rows("first"), tables.rows("second")) == ([0, 1, 2, 3, 4, 5], [])
        tables.to = "first"
        check(tables.planned(early), [])
        tables.rewound(early)
        assert (tables.rows("first"), tables.rows("second")) == ([0, 1, 2], [])
        tables.ran()
        assert (tables.rows("first"), tables.rows("second")) == (list(range(12)), [])

    def test_accepted_it_leaves_the_rows_of_both_tables(self, tables: Jobs) -> None:
        early, _ = tables.ran(), tables.ran()
        tables.to = "second"
        tables.ran()
        tables.rewound(early, "copy:impossible")
        assert (tables.rows("first"), tables.rows("second")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])

    def test_another_spelling_of_a_table_is_no_other_one(self, tables: Jobs) -> None:
        early, _ = tables.ran(), tables.ran()
        tables.to = "FIRST"
        check(tables.planned(early), [])
        tables.rewound(early)
        assert tables.rows("first") == [0, 1, 2]

    def test_back_at_its_first_table_a_sink_undoes_nothing_of_the_other_one(self, tables: Jobs) -> None:
        early, _ = tables.ran(), tables.ran()
        tables.to = "second"
        last = tables.ran()
        tables.to = "first"
        tables.ran()
        assert early < wrote_until("second", tables.planned(early)) <= last
        tables.rewound(last)
        assert (tables.rows("first"), tables.rows("second")) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])


class TestAnotherFolder:
    """A start with another folder is refused, as it lacks what was delivered; a rewind has to say so too."""

    def test_a_rewind_into_a_folder_without_the_output_is_refused(self, folders: Jobs) -> None:
        early = folders.ran()
        folders.ran()
        folders.to = "second"
        folders.create()
        shown = folders.planned(early)
        assert shown["sinks"][0]["verdict"] == "impossible"
        assert str(folders.folder / "first") in shown["sinks"][0]["reason"]
        with pytest.raises(hf.ConfigError, match="cannot undo its output"):
            check(shown, [])

    def test_a_rewind_of_a_copy_is_carried_out(self, folders: Jobs) -> None:
        early = folders.ran()
        folders.ran()
        shutil.copytree(folders.folder / "first", folders.folder / "second")
        folders.to = "second"
        check(folders.planned(early), [])
        folders.rewound(early)
        assert folders.rows("second") == [0, 1, 2]

    def test_a_start_that_has_to_complete_a_rewind_needs_the_former_folder(
        self, folders: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        early = folders.ran()
        folders.ran()

        def unreachable(*_given: object) -> None:
            raise hf.Unavailable("the disk is away", not_done="nothing", next_step="nothing")

        with monkeypatch.context() as patch:
            patch.setattr("holdfast.runtime.driver.repair.repair_one", unreachable)
            with pytest.raises(hf.Unavailable):
                folders.rewound(early, timeout_s=1.0)
        folders.to = "second"
        with pytest.raises(hf.ConfigError, match="the job was rewound") as refused:
            folders.prepare()
        assert str(folders.folder / "first") in refused.value.what
        folders.to = "first"
        folders.start().pass_time(4)
        assert folders.rows("first") == [0, 1, 2, 3, 4, 5]
