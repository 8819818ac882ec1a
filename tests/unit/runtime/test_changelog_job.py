"""Jobs whose upsert streams go to logs: what the logs hold as tables equals a computation in plain Python.

Through lost replies, killed workers and drivers, rescaling, rewinds and compactions, in both modes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cluster_steps
import polars as pl
import pyarrow as pa
import pytest
from played_jobs import RandomJob

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.format import sequence_of
from holdfast.storage.log.log import LogReader
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects, MemoryObjects

START = datetime(2026, 3, 1, tzinfo=UTC)
SHOPS = ["a", "b", "c", "d", "e"]
LOGS = ("totals", "odd", "windows", "large")


@dataclass
class Sale:
    shop: str
    n: int
    at: datetime


class Job(RandomJob):
    """Totals and windows of sales, each whole and filtered, in four logs."""

    def __init__(self, folder: Path, mode: str, seed: int = 0) -> None:
        self.random, self.folder, self.sold = random.Random(seed), folder, list[Sale]()
        self.create_input(folder, schema_of(Sale))
        app = hf.App("sales", checkpoint_every="1s")
        sales = app.source("sales", hf.Log(folder / "input", Sale), event_time="at", out_of_orderness="5s")
        totals = sales.key_by("shop").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", hf.Log(folder / "totals", key=["shop"], partitions=2))
        totals.filter(pl.col("total") % 2 == 1).sink("odd-out", hf.Log(folder / "odd", key=["shop"]))
        windows = sales.key_by("shop").window(hf.tumbling("10s"), allowed_lateness="10m").agg("windows", n=hf.sum("n"))
        windows.sink("windows-out", hf.Log(folder / "windows", key=["window_end", "shop"]))
        large = windows.filter(pl.col("n") > 20).select("shop", "window_end")
        large.sink("large-out", hf.Log(folder / "large", key=["shop", "window_end"]))
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.store = MemoryObjects()
        self.cluster = Cluster(self.plan, 2, seed, self.store, 1.0, {"sales": (0, 1, 2, 3)}, mode)
        if self.cluster.batches is not None:
            faults = self.cluster.batches.jobs.faults
            faults.losses, faults.twice, faults.fails = 0.05, 0.05, 0.02
        self.cluster.begin()

    def sell(self, count: int) -> None:
        """Append sales; many of them are late, and correct a window that is closed already."""
        before = len(self.sold)
        for n in range(before, before + count):
            at = START + timedelta(seconds=n / 4 - self.random.choice((0, 0, 3, 60)))
            self.sold.append(Sale(self.random.choice(SHOPS), self.random.randrange(12), at))
        rows = [vars(each) for each in self.sold[before:]]
        self.input.append({self.random.randrange(4): pa.Table.from_pylist(rows, schema=schema_of(Sale))})

    def run(self, *counts: int) -> None:
        for count in counts:
            self.sell(count)
            self.cluster.pass_time(2.0)

    def go_back(self, back: int) -> None:
        """Go back by so many checkpoints."""
        self.rewind(cluster_steps.epoch_before(self.cluster, back))

    def compact(self, log: str) -> None:
        wishes = Wishes(0, self.random.choice((0, 10**15)))
        Compactor(LocalObjects(self.folder / log), pause=lambda _: None).compact(wishes)

    def settle(self) -> None:
        """Read everything, and deliver it."""
        self.cluster.pass_time(20.0)
        assert self.cluster.driver.outcome is None
        self.cluster.driver.close_epoch()
        self.cluster.pass_time(5.0)

    def table(self, log: str) -> set[tuple[Any, ...]]:
        rows = hf.log(self.folder / log, as_table=True).collect().rows()
        assert len(rows) == len(set(rows))
        return set(rows)

    def deletes(self, log: str) -> int:
        marks = hf.log(self.folder / log).select("holdfast_deleted").collect()
        return int(marks.to_series().sum())

    def held(self, operator: str) -> set[tuple[Any, ...]]:
        """Return what an operator holds as of the newest checkpoint."""
        log = self.cluster.repository.read_log()
        assert log is not None
        stored = Stored("sales", "", self.store, self.cluster.repository, log)
        reading = reading_of(stored, operator)
        frame = pl.from_arrow(pa.Table.from_batches(reading.batches(), schema=reading.view.schema))
        assert isinstance(frame, pl.DataFrame)
        return set(frame.rows())

    def wanted(self) -> dict[str, set[tuple[Any, ...]]]:
        rows, totals, windows = Counter[str](), Counter[str](), Counter[tuple[str, datetime]]()
        for sale in self.sold:
            rows[sale.shop] += 1
            totals[sale.shop] += sale.n
            windows[sale.shop, START + ((sale.at - START) // timedelta(seconds=10) + 1) * timedelta(seconds=10)] += (
                sale.n
            )
        return {
            "totals": {(shop, rows[shop], totals[shop]) for shop in rows},
            "odd": {(shop, rows[shop], totals[shop]) for shop in rows if totals[shop] % 2 == 1},
            "windows": {(shop, end - timedelta(seconds=10), end, n) for (shop, end), n in windows.items()},
            "large": {(shop, end) for (shop, end), n in windows.items() if n > 20},
        }

    def check(self) -> None:
        assert {log: self.table(log) for log in LOGS} == self.wanted()


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


class TestTables:
    def test_are_those_of_plain_python(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.run(60, 60, 60, 60)
        assert job.deletes("odd") > 0
        assert job.deletes("totals") == job.deletes("windows") == 0
        job.finish()
        job.check()

    def test_hold_what_the_operator_holds(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.run(40, 40)
        job.settle()
        assert job.table("totals") == job.held("totals")

    @pytest.mark.thorough
    @pytest.mark.parametrize("seed", range(5))
    def test_survive_any_sequence_of_faults(self, tmp_path: Path, mode: str, seed: int) -> None:
        job = Job(tmp_path, mode, seed)
        rng = random.Random(seed)
        job.run(30)
        for turn in range(10):
            rewind, compact = (lambda: job.go_back(rng.randrange(2))), (lambda: job.compact(rng.choice(LOGS)))
            rng.choice(
                (
                    lambda: job.run(rng.randrange(1, 60)),
                    job.crash,
                    lambda: job.start_again(rng.choice((1, 2, 3))),
                    rewind if turn < 5 else compact,  # compacted output cannot be taken back
                )
            )()
            job.run(rng.randrange(1, 30))
        job.finish()
        job.check()


class TestRewind:
    def test_shows_every_table_as_of_the_base_epoch_again(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.run(50)
        job.settle()
        before = {log: job.table(log) for log in LOGS}
        base = job.cluster.driver.state.job.base_epoch
        job.run(50)
        job.settle()
        assert all(job.table(log) != before[log] for log in ("totals", "windows"))
        back = [each.body.epoch for each in job.cluster.driver.state.job.completed][::-1].index(base)
        job.go_back(back)
        job.finish()
        assert {log: self.repaired(tmp_path / log) for log in LOGS} == before
        job.check()

    @staticmethod
    def repaired(log: Path) -> set[tuple[Any, ...]]:
        """Return the table as of the commit that took rows back."""
        newest, copy = LogReader(LocalObjects(log)).newest(), MemoryObjects()
        assert newest.void
        for path in LocalObjects(log).list(""):
            if not path.startswith("commits/") or sequence_of(path) <= newest.void:
                copy.put(path, LocalObjects(log).get(path))
        return {tuple(row.values()) for each in read_table(copy) for row in each.rows.to_pylist()}
