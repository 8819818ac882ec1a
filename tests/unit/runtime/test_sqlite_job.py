"""A complete job in one thread that reads the captured changes of a SQLite table, over crashes of its workers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from captured_tables import Until
from patience import wait

import holdfast as hf
from holdfast.runtime.capture.sqlite import outbox
from holdfast.runtime.capture.sqlite.process import Capture, position_in
from holdfast.runtime.config.settings import MODES
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import LocalObjects, MemoryObjects

ROUNDS = [
    "INSERT INTO t VALUES (4, 'd', 'Wien'), (5, 'e', 'Linz')",
    "UPDATE t SET city = 'Linz' WHERE id = 1",
    "INSERT OR REPLACE INTO t VALUES (6, 'b', 'Wien')",
    "UPDATE t SET id = 9 WHERE id = 3",
    "DELETE FROM t WHERE city = 'Linz'",
]


@pytest.mark.parametrize("mode", MODES)
def test_a_job_follows_the_table_in_both_modes_over_crashes(tmp_path: Path, mode: str) -> None:
    db = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, city TEXT)")
    db.execute("INSERT INTO t VALUES (1, 'a', 'Wien'), (2, 'b', 'Graz'), (3, 'c', 'Graz')")
    changes = hf.SQLiteChanges(tmp_path / "a.db", "t", hf.Log(tmp_path / "log", partitions=2))
    store = LocalObjects(tmp_path / "log")

    def captured() -> bool:
        at = position_in(store)
        return at is not None and outbox.is_idle(db, "t", at)

    def capture() -> None:
        Capture(changes.capturing, store, lambda _: None, Until(captured)).run()

    copy, cities = MemorySink(("id",)), MemorySink(("city",))
    app = hf.App("customers", checkpoint_every="1s")
    table = app.table("t", changes, key="id")
    table.sink("copy", copy)
    table.group_by("city").agg("cities", n=hf.count()).sink("cities-out", cities)
    plan = app.plan()
    capture()
    cluster = Cluster(plan, 2, 0, MemoryObjects(), 1.0, {"t": (0, 1)}, mode)
    cluster.begin()

    def is_equal() -> bool:
        cluster.pass_time(1.0)
        assert cluster.driver.outcome is None, cluster.driver.outcome
        rows = sorted((row["id"], row["u"], row["city"]) for row in copy.rows())
        totals = sorted((row["city"], row["n"]) for row in cities.rows())
        return rows == db.execute("SELECT * FROM t ORDER BY id").fetchall() and totals == (
            db.execute("SELECT city, count(*) FROM t GROUP BY city ORDER BY city").fetchall()
        )

    wait(is_equal, "the rows of the snapshot")
    for statement in ROUNDS:
        db.execute(statement)
        capture()
        if cluster.members:
            cluster.crash(min(cluster.members))
        else:
            cluster.replace_driver()
        wait(is_equal, statement)
