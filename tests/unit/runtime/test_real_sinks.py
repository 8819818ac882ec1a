"""A complete job in one thread with real targets: logs, a DLQ and SQLite tables, crashes, lost replies, late zombies.

Every delivery that was ever attempted is repeated later, by a target of its own, as a process would that does not
know that its job went on without it.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from logged import rows_in
from played_jobs import RandomJob
from sinks_around import SinkAround, TargetAround

import holdfast as hf
from holdfast.model import Tag, Writer
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import AlreadyDelivered, Outcome, Target
from holdfast.sinks.log.sink import LogSink, LogTarget
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.traits import SinkTraits

WORDS = ["a", "b", "c", "d", "e"]


@dataclass
class Said:
    n: int
    word: str


def one(n: int) -> Said:
    return Said(n, WORDS[n % len(WORDS)])


def no_nine(row: Said) -> bool:
    if row.n % 10 == 9:
        raise ValueError("a nine")
    return True


class LossyObjects(LocalObjects):
    """A folder where now and then a reply to a create is lost, in either way."""

    def __init__(self, root: str, rng: random.Random) -> None:
        super().__init__(root)
        self._random = rng

    def create(self, path: str, data: bytes) -> None:
        fate = self._random.random()
        if fate > 0.3:
            super().create(path, data)
        if fate < 0.6:
            raise hf.Unavailable("the reply was lost", next_step="try again")


class Hostile(SinkAround[Sink]):
    """A sink whose targets lose requests and replies, and whose deliveries are kept to be repeated."""

    def __init__(self, inner: Sink, rng: random.Random, zombies: list[Callable[[], Outcome]]) -> None:
        super().__init__(inner)
        self._random, self._zombies = rng, zombies
        self.traits = SinkTraits(kind="Hostile", local_paths=(), keyed=inner.traits.keyed)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        again = lambda: self.inner.open(job_uuid, writer, claim)
        return HostileTarget(self, self.fresh(job_uuid, writer, claim), again)

    def fresh(self, job_uuid: str, writer: Writer, claim: Claim | None) -> Target:
        if isinstance(self.inner, LogSink):
            path = self.inner.path
            store = LossyObjects(path, self._random)
            return LogTarget(self.inner.where, lambda: store, job_uuid, writer, lambda _: None, claim)
        return self.inner.open(job_uuid, writer, claim)

    def attempted(self, zombie: Callable[[], Outcome]) -> None:
        self._zombies.append(zombie)

    def fails(self) -> bool:
        return self._random.random() < 0.2


class HostileTarget(TargetAround):
    def __init__(self, sink: Hostile, target: Target, again: Callable[[], Target]) -> None:
        super().__init__(target)
        self._sink, self._again = sink, again

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        rows = list(batches)

        def zombie() -> Outcome:
            with closing(self._again()) as target:
                return target.deliver(tag, rows)

        if self._sink.fails():
            raise hf.Unavailable("the request was lost", next_step="try again")
        outcome = self.inner.deliver(tag, rows, known)
        self._sink.attempted(zombie)
        if self._sink.fails():
            raise hf.Unavailable("the reply was lost", next_step="try again")
        return outcome


class Job(RandomJob):
    """The job, its input and what came out."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder, self.said = random.Random(seed), folder, list[tuple[int, str]]()
        self.zombies: list[Callable[[], Outcome]] = []
        self.fenced = 0
        self.create_input(folder, schema_of(Said))
        app = hf.App("words", checkpoint_every="1s", dlq=hf.Log(folder / "dead"))
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.filter(no_nine, on_error="dlq").sink("no_nines", hf.Log(folder / "no_nines"))
        rows.sink("copy", hf.Log(folder / "copy", key=["word"]))
        rows.filter(pl.col("n") % 2 == 0).sink("evens", hf.Log(folder / "evens"))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("all", hf.SQLite(folder / "out.db", "totals", ["word"], delivery="idempotent"))
        totals.sink("changes", hf.Log(folder / "changes", key=["word"]))
        some = totals.filter(pl.col("total") % 2 == 0)
        some.sink("some_changes", hf.Log(folder / "some_changes", key=["word"]))
        some.sink("some", hf.SQLite(folder / "out.db", "some", ["word"], delivery="idempotent"))
        plan = app.plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        sinks = [replace(spec, sink=Hostile(spec.sink, self.random, self.zombies)) for spec in plan.sinks]
        self.plan = replace(plan, sinks=tuple(sinks))
        self.cluster = Cluster(self.plan, 2, seed, MemoryObjects(), 1.0, {"rows": (0, 1, 2, 3)})
        self.cluster.begin()

    def say(self, count: int) -> None:
        rows = [(self.random.randrange(100), self.random.choice(WORDS)) for _ in range(count)]
        self.said += rows
        table = pa.Table.from_pylist([{"n": n, "word": word} for n, word in rows], schema=schema_of(Said))
        self.input.append({self.random.randrange(4): table})

    def come_late(self, before_each: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Repeat every delivery so far, in any order."""
        late = list(self.zombies)
        self.random.shuffle(late)
        outcomes = []
        for zombie in late:
            before_each()
            try:
                outcomes.append(zombie())
            except hf.Fenced:  # of a driver that was replaced
                self.fenced += 1
        return outcomes

    def forget_deliveries(self) -> None:
        """Delete SQLite's records of deliveries, except the tags of the rows."""
        self.ask("DELETE FROM holdfast_progress")
        self.ask("DELETE FROM holdfast_undo")

    def logged(self, name: str) -> Counter[tuple[int, str]]:
        return Counter((row["n"], row["word"]) for row in self.rows(name))

    def dead(self) -> Counter[tuple[int, str]]:
        records = [decode_row(letter["raw"]).to_pylist()[0] for letter in self.rows("dead")]
        return Counter((record["n"], record["word"]) for record in records)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return rows_in(self.folder / name)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db, db:
            return db.execute(sql).fetchall()

    def check(self) -> None:
        assert self.logged("copy") == Counter(self.said)
        assert self.logged("evens") == Counter(row for row in self.said if row[0] % 2 == 0)
        assert self.logged("no_nines") == Counter(row for row in self.said if row[0] % 10 != 9)
        assert self.dead() == Counter(row for row in self.said if row[0] % 10 == 9)
        totals = [(w, len(n), sum(n)) for w in WORDS if (n := [n for n, word in self.said if word == w])]
        assert self.ask("SELECT word, rows, total FROM totals ORDER BY word") == totals
        even = [row for row in totals if row[2] % 2 == 0]
        assert self.ask("SELECT word, rows, total FROM some ORDER BY word") == even
        assert hf.log(self.folder / "changes", as_table=True).sort("word").collect().rows() == totals
        assert hf.log(self.folder / "some_changes", as_table=True).sort("word").collect().rows() == even


@pytest.fixture(params=[0, 2, 4])  # with 4, a deleted row reappears if no trace of it is left
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


class TestJobWithRealTargets:
    def test_every_result_occurs_once_under_crashes_lost_replies_and_zombies(self, job: Job) -> None:
        for turn in range(6):
            job.say(job.random.randrange(1, 30))
            job.cluster.pass_time(1.5)
            job.crash()
            if turn == 3:
                job.cluster.replace_driver()
            job.come_late()
            job.cluster.pass_time(3)
        job.finish()
        job.check()
        assert all(isinstance(outcome, AlreadyDelivered) for outcome in job.come_late())
        assert job.fenced > 0
        job.check()

    def test_rows_with_tags_need_no_separate_progress_record(self, job: Job) -> None:
        for _ in range(8):
            job.say(2)
            job.cluster.pass_time(2)
        job.finish()
        job.come_late(before_each=job.forget_deliveries)
        job.check()


class TestStartOfAJob:
    """A log as the sink of a job that is started as `holdfast run` starts it."""

    def start(self, folder: Path, root: str) -> Prepared:
        if not (folder / "input").exists():
            create_log(LocalObjects(folder / "input"), schema_of(Said))
            table = pa.Table.from_pylist([{"n": 1, "word": "a"}], schema=schema_of(Said))
            LogWriter(LocalObjects(folder / "input")).append({0: table})
        app = hf.App("words", root=str(folder / root))
        app.source("rows", hf.Log(folder / "input", Said)).sink("copy", hf.Log(folder / "copy"))
        return prepare(app.plan(), resolve(app))

    def run_one_epoch(self, started: Prepared) -> None:
        cluster = Cluster(started.plan, 1, 0, started.folder.store, 1.0, started.inputs.partitions)
        cluster.begin()
        cluster.settle()
        while not cluster.driver.state.confirmed:
            cluster.pass_time(0.25)
        for member in cluster.members.values():
            member.loop.close()

    def test_a_missing_target_log_is_created_with_the_columns_of_the_stream(self, tmp_path: Path) -> None:
        self.start(tmp_path, "root")
        assert hf.Log(tmp_path / "copy").source().schema == schema_of(Said)

    def test_a_resumed_job_accepts_its_own_rows(self, tmp_path: Path) -> None:
        self.run_one_epoch(self.start(tmp_path, "root"))
        assert self.start(tmp_path, "root").folder.job is not None

    def test_a_job_that_was_deleted_and_recreated_is_refused(self, tmp_path: Path) -> None:
        self.run_one_epoch(self.start(tmp_path, "root"))
        with pytest.raises(hf.ConfigError, match="holds output of a sink 'copy' of another job"):
            self.start(tmp_path, "another root")

    def test_an_upsert_stream_without_its_key_is_refused_at_its_line(self, tmp_path: Path) -> None:
        app = hf.App("words")
        totals = app.source("rows", hf.Generator(Said, one)).key_by("word").agg("totals", rows=hf.count())
        with pytest.raises(
            hf.ConfigError, match=r"at test_real_sinks.py.*replaces rows by \['word'\], the sink has no"
        ):
            totals.sink("copy", hf.Log(tmp_path / "copy"))

    def test_an_upsert_stream_into_a_log_of_rows_is_refused(self, tmp_path: Path) -> None:
        self.start(tmp_path, "root")
        app = hf.App("totals", root=str(tmp_path / "root"))
        totals = app.source("rows", hf.Log(tmp_path / "input", Said)).key_by("word").agg("totals", rows=hf.count())
        totals.sink("copy", hf.Log(tmp_path / "totals", key=["word"]))
        create_log(
            LocalObjects(tmp_path / "totals"), pa.schema([("word", pa.utf8()), ("rows", pa.int64())]), key=["word"]
        )
        with pytest.raises(hf.ConfigError, match="the log is not a changelog"):
            prepare(app.plan(), resolve(app))

    def test_the_test_driver_replaces_the_log_by_a_table(self, tmp_path: Path) -> None:
        app = hf.App("words")
        app.source("rows", hf.Generator(Said, one)).sink("copy", hf.Log(tmp_path / "copy"))
        with hf.testing.TestDriver(app) as t:
            t.push("rows", [Said(1, "a"), Said(1, "a")])
            t.checkpoint()
            assert t.rows("copy") == [{"n": 1, "word": "a"}] * 2
        assert not (tmp_path / "copy").exists()
