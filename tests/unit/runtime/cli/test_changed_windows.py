"""Windows whose code changed between two runs: allowed changes emit no window twice and reopen none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

CODE = """
import holdfast as hf
from dataclasses import dataclass
from datetime import datetime

@dataclass
class Ride:
    line: str
    at: datetime

app = hf.App("rides", root={folder!r} + "/root")
rides = app.source("rides", hf.Log({folder!r} + "/rides", Ride), event_time="at")
rides.key_by("line").window(hf.tumbling({size!r}), allowed_lateness={lateness!r}).agg(
    "counts", emit={emit!r}, rides=hf.count()
).sink("out", hf.SQLite({folder!r} + "/out.db", table="counts"))
"""
ROWS = pa.schema(
    [pa.field("line", pa.string(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Rides:
    """The job in its folder; every result is a row, so a window that is given twice is seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalObjects(str(folder / "root" / "rides"))
        create_log(LocalObjects(str(folder / "rides")), ROWS, 1)

    def run(
        self, minutes: list[float], *drop: str, size: str = "10m", lateness: str = "0s", emit: str = "final"
    ) -> None:
        """Run this code over rides at these minutes, in order, and stop."""
        file = self.folder / "job.py"
        file.write_text(CODE.format(folder=str(self.folder), size=size, lateness=lateness, emit=emit))
        app = load(str(file))
        prepared = prepare(app.plan(), resolve(app), Choices(drop))
        cluster = Cluster(prepared.plan, 2, 0, self.store, 1.0, {"rides": (0,)})
        cluster.change_rules(operators=prepared.state.operators)
        cluster.begin()
        for minute in minutes:
            table = pa.Table.from_pylist([{"line": "a", "at": START + timedelta(minutes=minute)}], schema=ROWS)
            LogWriter(LocalObjects(str(self.folder / "rides"))).append({0: table})
            cluster.pass_time(0.5)
        cluster.driver.stop()
        cluster.pass_time(2.0)
        assert cluster.driver.outcome == ("stopped", None)

    def given(self) -> list[tuple[int, int]]:
        """End of the window in minutes, and its count, in the order in which windows were given."""
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            rows = db.execute("SELECT window_end, rides FROM counts ORDER BY rowid").fetchall()
        return [(round((datetime.fromisoformat(end) - START) / timedelta(minutes=1)), rides) for end, rides in rows]


@pytest.fixture
def rides(tmp_path: Path) -> Rides:
    """The job, not yet run."""
    return Rides(tmp_path)


class TestReducedLateness:
    def test_emits_every_window_once_and_counts_no_row_into_a_closed_one(self, rides: Rides) -> None:
        rides.run([1, 2, 12, 18], lateness="15m")
        assert rides.given() == []
        rides.run([3, 19, 21, 4, 41])
        # 3 is late by the new lateness: the window [0, 10) is over although it was not given yet.
        assert rides.given() == [(10, 2), (20, 3), (30, 1)]


class TestDroppedState:
    def test_a_closed_window_does_not_open_again(self, rides: Rides) -> None:
        rides.run([1, 2, 12, 25])
        assert rides.given() == [(10, 2), (20, 1)]
        rides.run([3, 13, 26, 27, 45], "counts", size="5m")
        # The five-minute windows [0, 5) and [10, 15) are before the clock; the ride at 25 was dropped.
        assert rides.given()[2:] == [(30, 2)]
