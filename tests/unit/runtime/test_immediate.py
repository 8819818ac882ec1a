"""Whole jobs whose sink is written immediately: crashes, lost replies, zombies, code that changed, shared keys."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from played_jobs import RandomJob
from sinks_around import SinkAround

import holdfast as hf
from holdfast.errors import Fenced
from holdfast.model import Epoch, Generation, JobUuid, SnapshotHandle, SourcePosition, Subtask, Timeline
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.plan.immediate import immediate_sink
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster, MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker import immediate
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.under_way import SLOW_AFTER_S
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner, Written
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

PARTITIONS = 4


@dataclass
class Seen:
    place: int
    thing: str
    n: int


class Hostile(SinkAround[ImmediateSink], ImmediateSink):
    """A sink that loses requests and replies, and whose writes are kept to be repeated by zombies."""

    def __init__(self, inner: ImmediateSink, rng: random.Random, zombies: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self.random, self.zombies = rng, zombies

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return HostileTarget(self, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        return self.inner.written(job_uuid, sink)


class HostileTarget:
    def __init__(self, sink: Hostile, owner: Owner) -> None:
        self._sink, self._owner = sink, owner
        self._target = sink.inner.open_immediate(owner)
        self.forget, self.close = self._target.forget, self._target.close

    def fence(self, starts: Mapping[Origin, int]) -> None:
        self._lose("request")
        self._target.fence(starts)
        self._lose("reply")

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        def zombie() -> None:
            with closing(self._sink.inner.open_immediate(self._owner)) as target:
                target.write(origin, offset, batches)

        self._lose("request")
        deleted = self._target.write(origin, offset, batches)
        self._sink.zombies.append(zombie)
        self._lose("reply")
        return deleted

    def _lose(self, what: str) -> None:
        if self._sink.random.random() < 0.2:
            raise hf.Unavailable(f"the {what} was lost", next_step="try again")


class Job(RandomJob):
    """The job, its input and what came out."""

    steps_max = 40

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.seen: list[Seen] = []
        self.zombies: list[Callable[[], object]] = []
        self.create_input(folder, schema_of(Seen), PARTITIONS)
        plan = app_of(folder).plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        [spec] = plan.sinks
        sink = immediate_sink(spec)
        assert sink is not None
        plan = replace(plan, sinks=(replace(spec, sink=Hostile(sink, self.random, self.zombies)),))
        self.cluster = Cluster(plan, 2, seed, MemoryObjects(), 1.0, {"seen": tuple(range(PARTITIONS))})
        self.cluster.begin()

    def see(self, count: int) -> None:
        place = self.random.randrange(PARTITIONS)
        rows = [Seen(place, self.random.choice("abc"), len(self.seen) + i) for i in range(count)]
        self.seen += rows
        self.input.append({place: pa.Table.from_pylist([vars(row) for row in rows], schema=schema_of(Seen))})

    def let_a_zombie_write(self) -> None:
        if self.zombies:
            with suppress(Fenced):
                self.random.choice(self.zombies)()

    def rows(self) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return db.execute("SELECT place, thing, n FROM last ORDER BY place, thing").fetchall()

    def expected(self) -> list[tuple[Any, ...]]:
        last = {(row.place, row.thing): row.n for row in self.seen if row.n % 5}
        return sorted((*key, n) for key, n in last.items())


def app_of(folder: Path, least: int = 0, key: Sequence[str] = ("place", "thing"), root: str | None = None) -> hf.App:
    app = hf.App("seen", root=root or str(folder / "root"))
    seen = app.source("seen", hf.Log(folder / "input", Seen), partitioned_by=["place"])
    kept = seen.filter((pl.col("n") % 5 != 0) & (pl.col("n") >= least))
    kept.sink("last", hf.SQLite(folder / "out.db", "last", list(key), delivery="idempotent"))
    return app


class TestAnyFailure:
    @pytest.mark.parametrize("seed", range(6))
    def test_the_last_row_of_every_key_is_kept(self, tmp_path: Path, seed: int) -> None:
        job = Job(tmp_path, seed)
        for _ in range(12):
            job.see(job.random.randrange(1, 20))
            match job.random.randrange(6):
                case 0:
                    job.crash()
                case 1:
                    job.cluster.replace_driver()
                case 2:
                    job.cluster.pass_time(1.5)
                case 3:
                    job.let_a_zombie_write()
                case _:
                    for _ in range(job.random.randrange(30)):
                        job.cluster.step()
        job.finish()
        assert job.rows() == job.expected()
        before = job.rows()
        for zombie in job.zombies:
            with suppress(Fenced):
                zombie()
        assert job.rows() == before

    def test_rows_are_visible_before_their_epoch_is_committed(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.see(10)
        for _ in range(10_000):
            if job.rows() == job.expected():
                break
            if not job.cluster.step():
                job.cluster.clock.now += 0.05
        assert job.rows() == job.expected()
        assert job.cluster.driver.state.job.base_epoch == 0

    def test_an_epoch_waits_until_its_rows_are_written(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        job.see(10)
        job.cluster.pass_time(20.0)
        assert job.cluster.driver.state.job.base_epoch < job.cluster.driver.state.job.first_epoch
        errors = [hosted.heartbeat.progress.sink_errors for hosted in job.cluster.driver.state.workers.values()]
        assert {"last": "the request was lost"} in errors
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        job.finish()
        assert job.rows() == job.expected()

    def test_sources_stop_when_the_backlog_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(immediate, "QUEUE_BYTES_MAX", 1)
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        for _ in range(8):
            job.see(10)
            job.cluster.pass_time(1.0)
        workers = job.cluster.driver.state.workers.values()
        assert sum(hosted.heartbeat.progress.records_in for hosted in workers) <= 2 * 10
        assert "delivery" in {held for hosted in workers for held in hosted.heartbeat.progress.held_by}
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        job.finish()
        assert job.rows() == job.expected()


class TestInTheTestDriver:
    def test_rows_are_written_immediately_and_the_last_row_survives_a_crash(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Seen), PARTITIONS)
        with hf.testing.TestDriver(app_of(tmp_path)) as t:
            t.push("seen", [Seen(1, "a", 1), Seen(1, "b", 2)], partition=1)
            assert t.rows("last") == [{"place": 1, "thing": "a", "n": 1}, {"place": 1, "thing": "b", "n": 2}]
            t.crash(1)
            t.push("seen", [Seen(1, "a", 3)], partition=1)
            t.recover()
            t.checkpoint()
            assert t.rows("last") == [{"place": 1, "thing": "a", "n": 3}, {"place": 1, "thing": "b", "n": 2}]

    def test_a_key_from_two_partitions_fails_the_job(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Seen), PARTITIONS)
        with hf.testing.TestDriver(app_of(tmp_path)) as t:
            t.push("seen", [Seen(1, "a", 1)], partition=1)
            with pytest.raises(hf.JobFailed, match="belongs to one partition of one sink"):
                t.push("seen", [Seen(1, "a", 2)], partition=2)


class TestChangedCode:
    def begin(self, folder: Path, **changed: Any) -> Prepared:
        if not (folder / "input").exists():
            create_log(LocalObjects(folder / "input"), schema_of(Seen), PARTITIONS)
        app = app_of(folder, **changed)
        return prepare(app.plan(), resolve(app), Choices(takeover=True))

    def run(self, folder: Path, rows: int, stop: bool, prepared: Prepared | None = None) -> None:
        prepared = prepared or self.begin(folder)
        cluster = Cluster(prepared.plan, 1, 0, prepared.folder.store, 1.0, prepared.inputs.partitions)
        cluster.begin()
        cluster.settle()
        while not cluster.driver.state.job.completed:
            cluster.pass_time(0.25)
        table = pa.Table.from_pylist([vars(Seen(0, "a", n)) for n in range(1, rows + 1)], schema=schema_of(Seen))
        LogWriter(LocalObjects(folder / "input")).append({0: table})
        cluster.settle()
        if stop:
            cluster.driver.stop()
            while cluster.driver.outcome is None:
                cluster.pass_time(0.25)
        for member in cluster.members.values():
            member.loop.close()
            for lane in member.ports.lanes.waiting():
                while lane.jobs:
                    lane.step()

    def test_a_warning_after_a_crash_names_the_uncommitted_offsets(self, tmp_path: Path) -> None:
        self.run(tmp_path, rows=3, stop=False)
        [warning] = self.begin(tmp_path, least=2).warnings
        assert "the old code wrote rows from offsets 0 to 2 of partition 0 of source 'seen'" in warning
        assert "holdfast stop seen" in warning

    def test_the_same_code_gives_no_warning(self, tmp_path: Path) -> None:
        self.run(tmp_path, rows=3, stop=False)
        assert self.begin(tmp_path).warnings == ()

    def test_changed_code_after_a_stop_at_a_barrier_gives_no_warning(self, tmp_path: Path) -> None:
        self.run(tmp_path, rows=3, stop=True)
        assert self.begin(tmp_path, least=2).warnings == ()

    def test_a_sink_cannot_change_to_immediate_writing(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Seen), PARTITIONS)
        app = hf.App("seen", root=str(tmp_path / "root"))
        seen = app.source("seen", hf.Log(tmp_path / "input", Seen))
        seen.sink("last", hf.SQLite(tmp_path / "out.db", "last", ["place", "thing"], delivery="idempotent"))
        self.run(tmp_path, rows=3, stop=True, prepared=prepare(app.plan(), resolve(app)))
        with pytest.raises(hf.ConfigError, match="at each commit until now, and would now be written immediately"):
            self.begin(tmp_path)
        [spec] = app_of(tmp_path).plan().sinks
        job = prepare(app.plan(), resolve(app), Choices(takeover=True)).folder.job
        assert job is not None and spec.sink.ownership is not None
        with pytest.raises(
            hf.ConfigError, match="was written at each commit until now, and would be written immediately"
        ):
            spec.sink.ownership.check_owner(job.uuid, "last")

    def test_a_sink_cannot_change_to_writing_at_the_commit(self, tmp_path: Path) -> None:
        self.run(tmp_path, rows=3, stop=True)
        app = hf.App("seen", root=str(tmp_path / "root"))
        seen = app.source("seen", hf.Log(tmp_path / "input", Seen))
        seen.sink("last", hf.SQLite(tmp_path / "out.db", "last", ["place", "thing"], delivery="idempotent"))
        with pytest.raises(
            hf.ConfigError, match="was written immediately until now, and would be written at each commit"
        ):
            prepare(app.plan(), resolve(app), Choices(takeover=True))


class TestATargetThatDoesNotAnswer:
    def test_is_reported_after_a_while_and_until_it_does(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Seen), PARTITIONS)
        plan, failed = app_of(tmp_path).plan(), list[BaseException]()
        plan.sinks[0].sink.prepare(plan.sinks[0].schema, plan.sinks[0].upsert_key)
        ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        writes = immediate.ImmediateWrites(plan, ports, lambda _s, _then: None, failed.append)
        handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
        deployed = (JobUuid("j"), Generation(1), Timeline(1), Epoch(1), Epoch(0), m.ActiveRole(Subtask(0)))
        positions = (SourcePosition("seen", 0, 0),)
        writes.deploy(m.Deploy(*deployed, (), handle, positions, (), (), claim=Claim("first", Generation(1))))
        ports.clock.pass_by(SLOW_AFTER_S)
        assert "has not answered for more than 30 s" in writes.errors()["last"].what
        [lane] = ports.lanes.waiting()
        lane.step()
        assert writes.errors() == {} and failed == []
