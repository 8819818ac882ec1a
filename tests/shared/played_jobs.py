"""Complete jobs in one thread, as the tests of every source and sink play them: crashes, other drivers, rewinds, ends.

A `WordsJob` is for sinks: it reads a log. A `ReadingJob` is for sources: what it has read is in memory. Both copy rows,
count them by word, and compare the results with a computation in plain Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import cluster_steps
import pyarrow as pa
from patience import wait

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.checking import checked
from holdfast.runtime.replay.epochs import newest
from holdfast.runtime.replay.player import opened
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

WORDS = ["a", "b", "c"]


@dataclass
class Said:
    n: int
    word: str


def totals_of(said: Iterable[tuple[Any, ...]]) -> list[tuple[str, int, int]]:
    """Return word, count and sum of the numbers of every word that was said."""
    numbers: dict[str, list[int]] = {}
    for n, word, *_ in said:
        numbers.setdefault(word, []).append(n)
    return [(word, len(found), sum(found)) for word, found in sorted(numbers.items())]


class PlayedJob:
    """A job whose driver and workers run in this thread."""

    plan: Plan
    cluster: Cluster

    def play(self, plan: Plan, parallelism: int, partitions: dict[str, Sequence[int]], mode: str = CONTINUOUS) -> None:
        """Create what the sinks need, and begin."""
        self.plan = plan
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        given = {name: tuple(numbers) for name, numbers in partitions.items()}
        self.cluster = Cluster(plan, parallelism, 0, MemoryObjects(), 1.0, given, mode)
        self.configure()
        self.cluster.begin()

    def configure(self) -> None:
        """Change rules of the run before it begins."""

    def restarted(self) -> Plan:
        """Return the plan as a later start makes it."""
        return self.plan

    def crash(self) -> None:
        """Kill a worker; in microbatch mode, the driver."""
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))
        else:
            self.cluster.replace_driver()

    def start_again(self, parallelism: int) -> None:
        """Kill the driver, and start another one with so many workers."""
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver(self.restarted())

    def rewind(self, epoch: int, *accept: str) -> None:
        """Ask the driver for a rewind, and wait until it has begun."""
        cluster_steps.rewind(self.cluster, epoch, *accept)

    def base(self) -> int:
        """Return the epoch of the newest checkpoint."""
        return cluster_steps.epoch_before(self.cluster, 0)

    def ending(self) -> Any:
        """Return the report with which the run ended; None: it continues."""
        found = self.cluster.driver.outcome
        return None if found is None else found[1]

    def until(self, met: Callable[[], object], what: str) -> None:
        """Let time pass until a condition is met."""

        def passed() -> object:
            self.cluster.pass_time(1.0)
            return met()

        wait(passed, what)

    def ends(self, error: type[hf.HoldfastError], *words: str) -> Any:
        """Let time pass until the run has failed with such an error, which says this; return its report."""
        self.until(lambda: self.cluster.driver.outcome is not None, "the end of the run")
        assert self.cluster.driver.outcome is not None
        outcome, report = self.cluster.driver.outcome
        assert outcome == "failed" and report is not None and report.kind == error.kind, report
        assert all(word in report.what for word in words), report.what
        return report

    def waits_through(self, outage: Callable[[], object]) -> None:
        """Let a server be away and a worker crash meanwhile: the job waits."""
        outage()
        self.cluster.pass_time(2)
        self.crash()
        self.cluster.pass_time(2)
        assert self.cluster.driver.outcome is None, "the job waits"


class RandomJob(PlayedJob):
    """A job that reads a log, and fails wherever it is at random moments."""

    random: Random
    input: LogWriter
    steps_max = 60

    def create_input(self, folder: Path, schema: pa.Schema, partitions: int = 4) -> None:
        """Create the log that the job reads."""
        create_log(LocalObjects(folder / "input"), schema, partitions)
        self.input = LogWriter(LocalObjects(folder / "input"))

    def some_steps(self) -> None:
        """Stop at any place between two epochs."""
        for _ in range(self.random.randrange(self.steps_max)):
            self.cluster.step()

    def crash(self) -> None:
        """Kill a worker, wherever it is."""
        self.some_steps()
        if self.cluster.members:
            self.cluster.crash(self.random.choice(sorted(self.cluster.members)))

    def start_again(self, parallelism: int) -> None:
        """Kill the driver, wherever it is, and start with another parallelism."""
        self.some_steps()
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver()

    def finish(self) -> None:
        """Seal the input, and let the job finish."""
        self.input.seal()
        cluster_steps.finish(self.cluster)


class WordsJob(PlayedJob):
    """Copies rows of a log into a sink, and their counts by word into another one.

    Args:
        rows: Gets every row.
        totals: Gets a row for each word; None: there is no such sink.
        more: Adds further sinks to the stream of rows.
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        rows: Any,
        totals: Any = None,
        *,
        parallelism: int = 3,
        row_type: type[Any] = Said,
        more: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._type = row_type
        create_log(LocalObjects(folder / "input"), schema_of(row_type))
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s")
        stream = app.source("rows", hf.Log(folder / "input", row_type))
        stream.sink("rows-out", rows)
        more(stream)
        if totals is not None:
            counted = stream.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
            counted.sink("totals-out", totals)
        self.play(app.plan(), parallelism, {"rows": range(4)}, mode)

    def row(self, n: int) -> tuple[Any, ...]:
        """Return the row of a number, in the order of its columns."""
        return n, WORDS[n % len(WORDS)]

    def say(self, count: int) -> None:
        schema = schema_of(self._type)
        for n in range(len(self.said), len(self.said) + count):
            self.said.append(self.row(n))
            row = dict(zip(schema.names, self.said[-1], strict=True))
            self._input.append({n % 4: pa.Table.from_pylist([row], schema=schema)})

    def deliver(self, count: int) -> None:
        """Say so many rows, and let time pass until they are delivered."""
        self.say(count)
        self.cluster.pass_time(3)

    def disturb(self, *, before: Callable[[], object] = lambda: None, each: int = 20) -> None:
        """Say rows between crashes and starts with other numbers of workers, and finish."""
        for step in (self.crash, lambda: self.start_again(2), lambda: self.start_again(4)):
            before()
            self.say(each)
            self.cluster.pass_time(1.4)
            step()
        self.say(5)
        self.finish()

    def finish(self) -> None:
        self._input.seal()
        cluster_steps.finish(self.cluster)


class ReadingJob(PlayedJob):
    """Copies rows of a source into memory, and counts them by word; damaged records become dead letters.

    Args:
        folder: That of the job; None: the source keeps nothing there.
        key: The column by which rows are counted.
    """

    def __init__(self, name: str, source: Any, folder: Path | None = None, key: str = "word") -> None:
        self.said, self.damaged, self._folder, self._key = list[tuple[Any, str]](), 0, folder, key
        self.copy, self.totals, self.dead = MemorySink(None), MemorySink((key,)), MemorySink(None)
        app = hf.App(name, checkpoint_every="1s", dlq=self.dead)
        rows = app.source("rows", source)
        rows.sink("copy", self.copy)
        rows.key_by(key).agg("totals", rows=hf.count(), total=hf.sum("n")).sink("totals-out", self.totals)
        self.planned = app.plan()

    def begin(self, mode: str, parallelism: int = 2) -> None:
        plan = self.bound(again=True)
        self.play(plan, parallelism, {"rows": plan.sources[0].source.open().partitions()}, mode)

    def bound(self, *, again: bool) -> Plan:
        """Return the plan as a start of the job makes it."""
        if self._folder is None:
            return self.planned
        (spec,) = self.planned.sources
        source = spec.source.in_folder(str(self._folder)).copied(again=again)
        source.open().partitions()
        return replace(self.planned, sources=(replace(spec, source=source),))

    def restarted(self) -> Plan:
        return self.bound(again=False)

    def catch_up(self) -> None:
        """Let time pass until everything was delivered."""

        def done() -> bool:
            assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
            return len(self.copy.rows()) >= len(self.said) and len(self.dead.rows()) >= self.damaged

        self.until(done, "all rows")
        self.cluster.pass_time(3.0)

    def replay(self) -> int:
        """Replay every epoch that is retained, compare it with its checkpoint, and return how many there are."""
        log = self.cluster.repository.read_log()
        assert log is not None
        stored = Stored(self.plan.app, "memory", self.cluster._store, self.cluster.repository, log)
        with ExitStack() as within:
            proofs = list(checked(opened(self.restarted(), within), newest(stored, 1_000)))
        assert [proof.differences for proof in proofs] == [()] * len(proofs)
        return len(proofs)

    def check(self) -> None:
        """Compare copies, totals and dead letters with what was said."""
        assert Counter((row["n"], row[self._key]) for row in self.copy.rows()) == Counter(self.said)
        totals = sorted((row[self._key], row["rows"], row["total"]) for row in self.totals.rows())
        assert totals == totals_of(self.said)
        assert [row["raw"] for row in self.dead.rows()] == [b"damaged"] * self.damaged
