"""Whole jobs that would write one table: the second one is refused, until a user moves the table to it.

Source: PROTOCOL P1, P17; docs/decisions/0104-tables-with-one-owner.md, 0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog

import holdfast as hf
from holdfast.runtime.execution.holdings import adopted_from, read_holdings
from holdfast.runtime.testing.cluster import Cluster
from tests.unit.runtime.test_owned_targets import Said, Site, outcome

LAKE: dict[str, Any] = {"delta": FolderTable, "iceberg": FolderCatalog}
REWINDABLE = ["sqlite keyed", "sqlite idempotent", *LAKE]
KEYED = [*REWINDABLE, "sqlite immediate"]
THEIRS = "belongs to sink 'copy' of another job"


class Jobs(Site):
    """Jobs of several names and roots, which write the same table."""

    name, sink = "words", "copy"
    key: tuple[str, ...] | None = ("n",)

    def app(self, root: str) -> hf.App:
        app = hf.App(self.name, root=str(self.folder / root))
        rows = app.source("rows", hf.Log(self.folder / "input", Said, key=self._key))
        rows.sink(self.sink, self.table().sink if self.kind in LAKE else self.in_database())
        return app

    def table(self) -> Any:
        return LAKE[self.kind](self.folder, self.key)

    def in_database(self) -> Any:
        delivery = "transactional" if self.kind in ("sqlite", "sqlite keyed") else "idempotent"
        return hf.SQLite(self.folder / "out.db", "copy", self.key, delivery=delivery)

    def numbers(self) -> list[int]:
        return sorted(n for n, _ in self.table().rows()) if self.kind in LAKE else super().numbers()

    def drop(self) -> None:
        """Delete the table, and nothing beside it."""
        if self.kind in LAKE:
            self.table().drop()
            return
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            db.execute("DROP TABLE copy")

    def start_unchecked(self, root: str) -> Cluster:
        """Start as if the target were unreachable when the start compares owners."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.runtime.execution.prepare.OF_TARGETS", ())
            return self.start(root)

    def owner(self) -> str:
        """Return the name of the sink that has the table."""
        sink: Any = self.app("root").plan().sinks[0].sink
        rival = sink.holding("", "none").rival
        return str(rival.sink)

    def refused(self, root: str = "root", why: str = THEIRS) -> hf.ConfigError:
        """Start, and return why that was refused."""
        with pytest.raises(hf.ConfigError, match=why) as refused:
            self.prepare(root)
        return refused.value


def is_fenced(cluster: Cluster) -> bool:
    """Return whether a run ended since the table belongs to another job."""
    how, kind, what = outcome(cluster)
    return (how, kind) == ("failed", "fenced") and THEIRS in what


@pytest.fixture(params=KEYED)
def keyed(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, request.param)


@pytest.fixture(params=REWINDABLE)
def rewindable(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, request.param)


class TestTableWithAKey:
    def test_a_second_job_is_refused_at_its_start(self, keyed: Jobs) -> None:
        first = keyed.start()
        keyed.say(first)
        keyed.name = "others"
        refused = keyed.refused("elsewhere")
        assert refused.not_done == "the job was not started; state and output are untouched"
        assert "--adopt-targets" in refused.next_step and refused.exit_status == 2
        keyed.say(first)
        assert first.driver.outcome is None and keyed.numbers() == list(range(6))

    def test_a_job_that_was_deleted_and_recreated_is_refused(self, keyed: Jobs) -> None:
        keyed.say(keyed.start())
        shutil.rmtree(keyed.folder / "root")
        keyed.refused()

    def test_a_second_job_that_could_not_compare_is_refused_by_its_first_delivery(self, keyed: Jobs) -> None:
        keyed.say(keyed.start())
        keyed.name = "others"
        second = keyed.start_unchecked("elsewhere")
        keyed.say(second)
        assert is_fenced(second) and keyed.numbers() == [0, 1, 2]

    def test_the_second_of_two_jobs_that_start_together_is_refused_at_its_first_delivery(
        self, rewindable: Jobs
    ) -> None:
        first = rewindable.start()
        rewindable.name, rewindable.sink = "others", "more"
        second = rewindable.start("elsewhere")
        rewindable.say(first)
        second.pass_time(4)
        assert is_fenced(second)
        rewindable.say(first)
        assert first.driver.outcome is None and rewindable.numbers() == list(range(6))

    def test_a_second_job_takes_it_if_the_user_says_so_and_the_first_one_stops(self, keyed: Jobs) -> None:
        first = keyed.start()
        keyed.say(first)
        keyed.name = "others"
        second = keyed.start("elsewhere", adopt=["copy"])
        keyed.say(second)
        keyed.say(first)
        assert is_fenced(first)
        keyed.say(second)
        assert second.driver.outcome is None and keyed.numbers() == list(range(12))
        keyed.name = "words"
        keyed.refused()

    def test_a_sink_of_another_name_is_refused_too(self, keyed: Jobs) -> None:
        keyed.say(keyed.start())
        keyed.name, keyed.sink = "others", "renamed"
        keyed.refused("elsewhere")
        keyed.say(keyed.start("elsewhere", adopt=["renamed"]))
        assert keyed.owner() == "renamed"

    def test_a_table_that_was_dropped_is_free(self, keyed: Jobs) -> None:
        keyed.say(keyed.start())
        keyed.drop()
        keyed.name = "others"
        keyed.say(keyed.start("elsewhere"))
        assert keyed.numbers() == list(range(6))

    def test_a_rewind_keeps_it(self, rewindable: Jobs) -> None:
        rewindable.say(rewindable.start())
        rewindable.rewind()
        rewindable.say(rewindable.start())
        assert rewindable.owner() == "copy" and rewindable.numbers() == list(range(6))

    def test_a_rewind_moves_it_back_if_the_user_says_so(self, tmp_path: Path) -> None:
        keyed = Jobs(tmp_path, "sqlite keyed")
        first = keyed.start()
        keyed.say(first)
        keyed.name = "others"
        second = keyed.start("elsewhere", adopt=["copy"])
        keyed.say(second)
        keyed.name = "words"
        job, plan, _ = keyed.prepare_for_rewind()
        holdings = read_holdings(job, plan.sinks)
        assert holdings["copy"].rival is not None
        assert adopted_from(job, holdings, ["copy"]) != ()
        keyed.rewind()
        keyed.say(second)
        assert is_fenced(second)
        keyed.say(keyed.start())
        assert keyed.numbers() == list(range(12))


class TestTableWithoutAKey:
    @pytest.fixture(params=["sqlite", *LAKE])
    def added(self, request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
        jobs = Jobs(tmp_path, request.param)
        jobs.key = None
        return jobs

    def test_jobs_share_it_if_their_sinks_have_different_names(self, added: Jobs) -> None:
        first = added.start()
        added.say(first)
        added.name, added.sink = "others", "more"
        second = added.start("elsewhere")
        added.say(second)
        added.say(first, 0)
        assert added.numbers() == sorted([*range(6), *range(6)])
        added.key, added.sink = ("n",), "third"
        if added.kind in LAKE:  # a table of a database has its key from its first start
            added.refused("anywhere")

    def test_a_job_that_was_deleted_and_recreated_is_refused(self, added: Jobs) -> None:
        added.say(added.start())
        shutil.rmtree(added.folder / "root")
        added.refused(why="holds (rows|output) of a sink 'copy' of another job")
        assert added.numbers() == [0, 1, 2]


class TestPlan:
    def test_two_sinks_with_one_table_are_refused_if_one_has_a_key(self, tmp_path: Path) -> None:
        for keys in ((["n"], ["n"]), (["n"], None), (None, ["n"])):
            app = hf.App("words", root=str(tmp_path / "root"))
            rows = app.source("rows", hf.Generator(Said, one))
            for name, key in zip(("left", "right"), keys, strict=True):
                rows.sink(name, hf.SQLite(tmp_path / "out.db", "both", key))
            with pytest.raises(hf.ConfigError, match="sinks 'left' and 'right' write to SQLite") as refused:
                app.plan()
            assert refused.value.not_done == "the job was not planned"

    @pytest.mark.parametrize(
        "sink",
        [
            lambda folder: hf.Delta(folder / "lake", key=["n"]),
            lambda folder: hf.Iceberg("a.both", f"sqlite:///{folder}/catalog.db", folder / "lake", key=["n"]),
            lambda _folder: hf.Redis("redis://redis.example", "both:", key=["n"]),
        ],
        ids=["delta", "iceberg", "redis"],
    )
    def test_two_sinks_with_one_target_of_another_kind_are_refused_too(
        self, tmp_path: Path, sink: Callable[[Path], Any]
    ) -> None:
        app = hf.App("words", root=str(tmp_path / "root"))
        rows = app.source("rows", hf.Generator(Said, one))
        for name in ("left", "right"):
            rows.sink(name, sink(tmp_path))
        with pytest.raises(hf.ConfigError, match="sinks 'left' and 'right' write to"):
            app.plan()

    def test_two_sinks_with_one_table_without_a_key_are_planned(self, tmp_path: Path) -> None:
        app = hf.App("words", root=str(tmp_path / "root"))
        rows = app.source("rows", hf.Generator(Said, one))
        for name in ("left", "right"):
            rows.sink(name, hf.SQLite(tmp_path / "out.db", "both"))
        assert len(app.plan().sinks) == 2


def one(number: int) -> Said:
    return Said(number, "a")
