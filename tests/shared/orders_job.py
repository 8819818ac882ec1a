"""A job whose code changes between its runs: checks, log and tables are real, workers are in this process."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

CODE = """
import holdfast as hf, polars as pl
from dataclasses import dataclass

@dataclass
class Order:
    word: str
    v: int
    u: int

app = hf.App("orders", root={folder!r} + "/root")
orders = app.source("orders", hf.Log({folder!r} + "/orders", Order))
orders.key_by("word").agg("totals", total=hf.sum("v")).sink(
    "out", hf.SQLite({folder!r} + "/out.db", table="totals", key=["word"]))
orders.sink("copy", hf.Log({folder!r} + "/copy"))
"""
COPY = 'orders.sink("copy", hf.Log({folder!r} + "/copy"))\n'
ROWS = pa.schema(
    [pa.field("word", pa.string(), nullable=False), *(pa.field(n, pa.int64(), nullable=False) for n in "vu")]
)


class Orders:
    """The job in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, str(folder / "job.py")
        self.store = LocalObjects(str(folder / "root" / "orders"))
        create_log(LocalObjects(str(folder / "orders")), ROWS)
        self.code = CODE

    def change(self, old: str, new: str) -> None:
        assert old in self.code
        self.code = self.code.replace(old, new)

    def write(self) -> None:
        Path(self.file).write_text(self.code.format(folder=str(self.folder)))

    def start(self, *drop_state: str) -> None:
        """Start the job as `holdfast run` does, with workers in this process."""
        self.begin(self.checked(*drop_state))

    def checked(self, *drop_state: str) -> Prepared:
        """Run the checks of a start."""
        self.write()
        app = load(self.file)
        return prepare(app.plan(), resolve(app), Choices(drop_state))

    def begin(self, prepared: Prepared) -> None:
        self.cluster = Cluster(prepared.plan, 2, 0, self.store, 1.0, {"orders": (0, 1, 2, 3)})
        self.cluster.change_rules(
            operators=prepared.state.operators,
            shape=shape_of(prepared.plan),
            gone_sinks=prepared.targets.gone,
            checked=prepared.state.checked,
        )
        self.cluster.begin()

    def append(self, **words: int) -> None:
        """Append records (u is ten times v)."""
        rows = [{"word": word, "v": n, "u": 10 * n} for word, n in words.items()]
        LogWriter(LocalObjects(str(self.folder / "orders"))).append({0: pa.Table.from_pylist(rows, schema=ROWS)})

    def order(self, **words: int) -> None:
        """Append records, and run until they are delivered."""
        self.append(**words)
        self.cluster.pass_time(2.0)

    def append_and_stop(self, **words: int) -> None:
        """Append records, and stop once they are read: the last checkpoint has output to deliver."""
        self.append(**words)
        self.cluster.pass_time(0.25)
        self.stop()

    def stop(self) -> None:
        self.cluster.driver.stop()
        self.cluster.pass_time(2.0)
        assert self.cluster.driver.outcome == ("stopped", None)

    def manifest(self) -> Manifest:
        repository = Repository(self.store)
        job = repository.read_log()
        assert job is not None
        return repository.load_manifest(job.completed[-1].body.manifest)

    def totals(self, table: str = "totals") -> dict[str, int]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return dict(db.execute(f"SELECT word, total FROM {table}").fetchall())

    def plan(self, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[dict[str, Any], str]:
        """The output of `holdfast plan`: the changes as JSON, and the text."""
        self.write()
        assert main(["plan", self.file, *flags, "--json"]) == 0
        changes = json.loads(capsys.readouterr().out)["changes"]
        assert main(["plan", self.file, *flags]) == 0
        return changes, capsys.readouterr().out.split("\nchanges\n")[1]
