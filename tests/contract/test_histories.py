"""A root that was restored or copied: the same job, timeline and epochs, but another history.

Local folders of the other history still exist when a worker looks for state to start from. Plain Python computes the
expected answer from the input.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects

FILE = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Sale:
    item: str
    n: int

app = hf.App("sales", root={folder!r} + "/root", checkpoint_every="1s")
sales = app.source("sales", hf.Log({folder!r} + "/sales", Sale))
totals = sales.key_by("item").agg("totals", total=hf.sum("n"))
totals.sink("out", hf.SQLite({folder!r} + "/out.db", table="totals", key=["item"]))
"""
SALES = pa.schema([pa.field("item", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
SEEDS = itertools.count(1)
ITEMS = tuple(f"item {number}" for number in range(40))


class Site:
    """The job's root, log and targets in one folder; workers keep their state elsewhere."""

    def __init__(self, folder: Path, machine: Path) -> None:
        self.folder, self.machine = folder, machine
        if not folder.exists():
            folder.mkdir()
            create_log(LocalObjects(str(folder / "sales")), SALES)
        self.start()

    def start(self) -> None:
        (self.folder / "job.py").write_text(FILE.format(folder=str(self.folder)))
        plan = load(str(self.folder / "job.py")).plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        store = LocalObjects(str(self.folder / "root" / "sales"))
        self.cluster = Cluster(plan, 2, next(SEEDS), store, 1.0, {"sales": (0, 1, 2, 3)})
        self.cluster.local = lambda: LocalFolders(Home(self.machine))
        self.cluster.begin()
        self.cluster.pass_time(2.0)

    def sell(self, n: int, *items: str) -> None:
        """Sell `n` of each item, and wait until the totals are delivered and local state has followed."""
        rows = [{"item": item, "n": n} for item in items]
        LogWriter(LocalObjects(str(self.folder / "sales"))).append({0: pa.Table.from_pylist(rows, schema=SALES)})
        self.cluster.pass_time(4.0)

    def kill_all(self) -> None:
        """Leave root, targets and local folders as they are."""
        for member in self.cluster.members.values():
            member.loop.close()

    def kill_one(self) -> None:
        worker, member = next(iter(self.cluster.members.items()))
        member.loop.close()
        self.cluster.crash(worker)
        self.cluster.pass_time(3.0)

    @property
    def epoch(self) -> int:
        return self.cluster.driver.state.job.base_epoch

    def totals(self) -> Mapping[str, int]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return dict(db.execute("SELECT item, total FROM totals"))

    def expected(self) -> Mapping[str, int]:
        """Return the totals computed from the log, without the job."""
        found: Counter[str] = Counter()
        reader = LogReader(LocalObjects(str(self.folder / "sales")))
        batch, offset = reader.read(0, 0, 1 << 30)
        while batch is not None:
            for row in batch.to_pylist():
                found[row["item"]] += row["n"]
            batch, offset = reader.read(0, offset, 1 << 30)
        return found


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Path, Path]:
    """The folders in which the workers of two machines keep their state."""
    return tmp_path / "machine-a", tmp_path / "machine-b"


class TestRestoredHistory:
    def test_local_state_of_undone_epochs_is_not_a_base(self, tmp_path: Path, machines: tuple[Path, Path]) -> None:
        site = Site(tmp_path / "site", machines[0])
        site.sell(1, *ITEMS)
        site.kill_all()
        shutil.copytree(site.folder, tmp_path / "backup")
        site.start()
        site.sell(1_000, *ITEMS)
        undone = site.epoch
        site.kill_all()

        shutil.rmtree(site.folder)
        shutil.copytree(tmp_path / "backup", site.folder)
        site.machine = machines[1]
        site.start()
        while site.epoch < undone + 2:
            site.sell(10, *ITEMS[::2])
        site.machine = machines[0]  # which still has folders of the same epochs
        site.kill_one()
        site.kill_one()
        site.sell(100, *ITEMS)
        assert site.totals() == site.expected()
        site.kill_all()


class TestCopiedRoot:
    def test_two_jobs_that_share_local_folders_do_not_use_each_others_state(
        self, tmp_path: Path, machines: tuple[Path, Path]
    ) -> None:
        production = Site(tmp_path / "production", machines[0])
        production.sell(1, *ITEMS)
        production.kill_all()
        shutil.copytree(production.folder, tmp_path / "staging")
        staging = Site(tmp_path / "staging", machines[1])
        staging.sell(1_000, *ITEMS)
        staged = staging.epoch
        staging.kill_all()

        staging_folders = machines[1]
        production.start()
        while production.epoch < staged + 2:
            production.sell(10, *ITEMS[::3])
        production.machine = staging_folders
        production.kill_one()
        production.kill_one()
        production.sell(100, *ITEMS)
        assert production.totals() == production.expected()
        production.kill_all()
