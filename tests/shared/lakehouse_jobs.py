"""A job in one thread that writes to tables of a lakehouse, as the tests of each table format play it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster_steps
import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.runtime.execution.holdings import check_targets
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

WORDS = ["a", "b", "c"]
LATE = 8
"""The least number in a row of the table of late ones."""


@dataclass
class Said:
    n: int
    word: str


class Job:
    """Copies rows, and counts them by word, with three writers.

    Args:
        made: Makes a table in a folder of its own: FolderTable or FolderCatalog.
    """

    def __init__(self, made: Callable[..., Any], folder: Path, mode: str) -> None:
        self.said: list[tuple[int, str]] = []
        self.rows = made(folder / "rows", partition_by=["word"])
        self.totals = made(folder / "totals", ("word",))
        self.late = made(folder / "late")
        create_log(LocalObjects(folder / "input"), schema_of(Said))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("rows-out", self.rows.sink)
        rows.filter(pl.col("n") >= LATE).sink("late-out", self.late.sink)
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", self.totals.sink)
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, 3, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)}, mode)
        self.cluster.begin()

    def say(self, count: int) -> None:
        for n in range(len(self.said), len(self.said) + count):
            self.said.append((n, WORDS[n % len(WORDS)]))
            table = pa.Table.from_pylist([{"n": n, "word": self.said[-1][1]}], schema=schema_of(Said))
            self._input.append({n % 4: table})

    def crash(self) -> None:
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))

    def start_again(self, parallelism: int) -> None:
        """Kill the driver, and start another one with so many writers."""
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver(self.plan)

    def rewind(self, epoch: int, *accept: str) -> None:
        """Ask the driver for a rewind, and wait until it has begun."""
        job = self.cluster.driver.state.job
        wanted = {"epoch": epoch, "timeline": job.timeline, "accept": list(accept)}
        answer = self.cluster.driver.asked("rewind", wanted, job.generation, job.generation)
        assert answer is not None and answer["accepted"], answer
        while self.cluster.driver.state.job.timeline == job.timeline:
            self.cluster.pass_time(0.25)

    def ending(self) -> Any:
        """Return the report with which the run ended; None: it goes on."""
        found = self.cluster.driver.outcome
        return None if found is None else found[1]

    def refusal(self) -> Damaged:
        """Start as a command does, and return why it was refused."""
        repository, job = self.cluster.repository, self.cluster.repository.read_log()
        assert job is not None
        with pytest.raises(Damaged) as caught:
            check_targets(repository, job, self.plan.sinks, ())
        return caught.value

    def finish(self) -> None:
        self._input.seal()
        cluster_steps.finish(self.cluster)

    def shows(self, count: int | None = None) -> bool:
        """Return whether the tables hold exactly the results of so many rows; None: of all."""
        said = self.said[:count]
        of = {word: [n for n, each in said if each == word] for word in WORDS}
        totals = [(word, len(numbers), sum(numbers)) for word, numbers in of.items() if numbers]
        return (sorted(self.rows.rows()), sorted(self.totals.rows())) == (said, totals)
