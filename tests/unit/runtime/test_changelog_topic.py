"""Jobs whose changelog goes to a log: the state comes back from the log alone, in both modes.

Whenever the log has confirmed the changes of an epoch, the segments that hold them are deleted under the root. Through
killed workers and drivers, rescaling, rewinds and compactions, output equals a computation in plain Python.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cluster_steps
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from kafka_changelogs import InMemory
from kafka_fake import CommitFault
from played_jobs import RandomJob

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Damaged, ErrorReport, Fenced, Unavailable
from holdfast.model import CHANGELOG, Generation, Subtask, Tag, Writer
from holdfast.runtime.cli.operate.verify import verify_all
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.execution.checks import changelog
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.inspect import topic
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.job.status import of_run
from holdfast.runtime.plan.shown.report import describe, render
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import HEARTBEAT_S, Cluster
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.kept import LocalCopies
from holdfast.runtime.worker.local.opened import LocalFolders, LocalState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.runtime.worker.target import StateTarget
from holdfast.sinks.contract.changelogs import ROOT, Changelog, OpenChangelog
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Outcome
from holdfast.sinks.kafka.changelog.reading import OpenKafkaChangelog
from holdfast.sinks.kafka.changelog.sink import Brokers, KafkaChangelog
from holdfast.sinks.log.changelog import LogChangelog, OpenLogChangelog, TopicSink
from holdfast.sinks.log.sink import LogTarget
from holdfast.state.keys.keygroups import range_of
from holdfast.state.store import StateStore
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import LocalObjects, MemoryObjects

START = datetime(2026, 3, 1, tzinfo=UTC)
SHOPS = ["a", "b", "c", "d", "e", None]
IN_MEMORY = KafkaPlace("broker:9092", "changelog")
KNOWN = pl.col("shop").is_not_null()


@dataclass
class Sale:
    shop: str | None
    n: int
    at: datetime


@dataclass
class Switch:
    """Whether the topic refuses deliveries, and how often it was opened to be read."""

    on: bool = False
    reads: int = 0


class Refusing(LogTarget):
    """A writer's way into a topic that refuses deliveries at times."""

    switch: Switch

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        if self.switch.on:
            raise Unavailable("the topic is unreachable", next_step="wait")
        return super().deliver(tag, batches, known)


@dataclass(frozen=True)
class RefusingSink(TopicSink):
    switch: Switch = field(default_factory=Switch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget:
        target = super().open(job_uuid, writer, claim)
        target.__class__ = Refusing
        assert isinstance(target, Refusing)
        target.switch = self.switch
        return target


@dataclass(frozen=True)
class RefusingChangelog(LogChangelog):
    """A topic that refuses deliveries while the test wants it to."""

    switch: Switch = field(default_factory=Switch)

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink:
        sink = super().sink(schema, key, key_groups)
        assert isinstance(sink, TopicSink)
        return RefusingSink(sink.log, sink.key_groups, self.switch)

    def open(self, job_uuid: str) -> OpenLogChangelog:
        self.switch.reads += 1
        return super().open(job_uuid)


@dataclass(frozen=True)
class RefusingKafka(KafkaChangelog):
    """A topic of Kafka in memory, which refuses deliveries while the test wants it to."""

    switch: Switch = field(default_factory=Switch)

    def open(self, job_uuid: str) -> OpenKafkaChangelog:
        self.switch.reads += 1
        return super().open(job_uuid)


def refused_while(switch: Switch) -> Callable[[], None]:
    def refuse() -> None:
        if switch.on:
            raise Unavailable("the topic is unreachable", next_step="wait")

    return refuse


class Job(RandomJob):
    """Totals, windows and first sales, each in a log, with the changelog in another one, or in Kafka."""

    def __init__(
        self,
        folder: Path,
        mode: str,
        seed: int = 0,
        retained: int = 1_000,
        standbys: int = 0,
        local: Callable[[], LocalState] | None = None,
        kind: str = "log",
        brokers: Brokers | None = None,
        kafka: KafkaPlace = IN_MEMORY,
        past: Changelog | None = None,
    ) -> None:
        self.past = past
        """How the test reads the changelog, if not as the job does: past a proxy."""
        self.kind, self.brokers, self.kafka = kind, brokers or InMemory(), kafka
        self.random, self.folder, self.sold = random.Random(seed), folder, list[Sale]()
        self.create_input(folder, schema_of(Sale))
        plan = self.app().plan()
        place = self.refusing(Switch())
        assert plan.changelog.place == place.place
        self.plan = replace(plan, changelog=place)
        for spec in outputs_of(self.plan):
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.store = MemoryObjects()
        self.cluster = Cluster(self.plan, 2, seed, self.store, 1.0, {"sales": (0, 1, 2, 3)}, mode)
        self.cluster.change_rules(retention=Retention(retained, 0), standbys=standbys)
        if local is not None:
            self.cluster.local = local
        self.cluster.begin()

    def refusing(self, switch: Switch) -> RefusingChangelog | RefusingKafka:
        """Return the place of the changelog, with a switch of its own."""
        self.topic = switch
        if self.kind == "log":
            return RefusingChangelog(str(self.folder / "changelog"), 4, compacted_from=1, grace_s=0.0, switch=switch)
        brokers = self.brokers
        if isinstance(brokers, InMemory):
            brokers = replace(brokers, refuse=refused_while(switch))
        return RefusingKafka(self.kafka, brokers, 1, switch)

    def copied(self, folder: Path) -> Job:
        """Return a copy of the root and of the sinks' logs, not started; input and changelog stay where they are."""
        twin = copy.copy(self)
        twin.folder = folder
        for log in ("totals", "windows", "all"):
            shutil.copytree(self.folder / log, folder / log)
        for log in ("input", "changelog"):
            (folder / log).symlink_to(self.folder / log)
        place = twin.refusing(Switch())
        twin.plan = replace(twin.app().plan(), changelog=place)
        twin.store = MemoryObjects()
        for path in self.store.list(""):
            twin.store.put(path, self.store.get(path))
        return twin

    def failure(self) -> ErrorReport:
        """Return why the run ended."""
        assert self.cluster.driver.outcome is not None
        ended, error = self.cluster.driver.outcome
        assert ended == "failed" and isinstance(error, ErrorReport)
        return error

    def begin_copy(self, mode: str, seed: int) -> None:
        self.cluster = Cluster(self.plan, 2, seed, self.store, 1.0, {"sales": (0, 1, 2, 3)}, mode)
        self.cluster.begin()

    def app(self) -> hf.App:
        folder = self.folder
        log = hf.Log(folder / "changelog", partitions=4)
        changelog = log if self.kind == "log" else hf.Kafka(self.kafka.servers, self.kafka.topic)
        app = hf.App("sales", checkpoint_every="1s", changelog=changelog)
        sales = app.source("sales", hf.Log(folder / "input", Sale), event_time="at", out_of_orderness="5s")
        named = sales.filter(KNOWN)
        totals = named.key_by("shop").agg("totals", rows=hf.count(), total=hf.sum("n"), low=hf.min("shop"))
        totals.sink("totals-out", hf.Log(folder / "totals", key=["shop"], partitions=2))
        windows = named.key_by("shop").window(hf.tumbling("10s"), allowed_lateness="20s").agg("windows", n=hf.sum("n"))
        windows.sink("windows-out", hf.Log(folder / "windows", key=["window_end", "shop"]))
        unnamed = sales.key_by("shop").agg("all", rows=hf.count())
        unnamed.filter(KNOWN).sink("all-out", hf.Log(folder / "all", key=["shop"]))
        return app

    def held(self, operator: str, epoch: int | None = None) -> set[tuple[Any, ...]]:
        """Return what commands show of an operator's state."""
        log = self.cluster.repository.read_log()
        assert log is not None
        stored = Stored("sales", "", self.store, self.cluster.repository, log)
        with pytest.MonkeyPatch.context() as patch:  # what a manifest names is in no other process
            if self.kind == "kafka":
                patch.setattr(topic, "changelog_of", lambda _: self.uncounted())
            reading = reading_of(stored, operator, None if epoch is None else str(epoch))
        frame = pl.from_arrow(pa.Table.from_batches(reading.batches(), schema=reading.view.schema))
        assert isinstance(frame, pl.DataFrame)
        return set(frame.rows())

    def sell(self, count: int) -> None:
        before = len(self.sold)
        for n in range(before, before + count):
            at = START + timedelta(seconds=n / 2 - self.random.choice((0, 0, 3)))
            self.sold.append(Sale(self.random.choice(SHOPS), self.random.randrange(12), at))
        rows = [vars(each) for each in self.sold[before:]]
        self.input.append({self.random.randrange(4): pa.Table.from_pylist(rows, schema=schema_of(Sale))})

    def run(self, *counts: int) -> None:
        for count in counts:
            self.sell(count)
            self.cluster.pass_time(2.0)

    def manifest(self) -> Manifest:
        log = self.cluster.repository.read_log()
        assert log is not None
        return self.cluster.repository.load_manifest(log.completed[-1].body.manifest)

    def opened(self) -> OpenChangelog:
        """Open the changelog, without a count of that."""
        log = self.cluster.repository.read_log()
        assert log is not None
        return self.uncounted().open(log.uuid)

    def uncounted(self) -> Changelog:
        if self.past is not None:
            return self.past
        assert isinstance(self.plan.changelog, RefusingChangelog | RefusingKafka)
        return replace(self.plan.changelog, switch=Switch())

    def forget_segments(self) -> int:
        """Delete the segments of all epochs that the changelog has confirmed; return how many are left."""
        confirmed = self.opened().delivered
        owed = {
            part.path
            for item in self.manifest().pending
            if item.writer.sink == CHANGELOG
            for part in item.staged.parts
            if item.tag.epoch > confirmed.get(item.writer.subtask, 0)
        }
        self.check_topic()
        last = self.manifest().epoch
        for path in self.store.list("segments"):
            if path not in owed and int(path.split("/")[2]) <= last:
                self.store.delete(path)
        assert not self.store.list("base") and not self.store.list("merged")
        return len(self.store.list("segments"))

    def settle(self) -> None:
        self.cluster.pass_time(20.0)
        assert self.cluster.driver.outcome is None
        self.cluster.driver.close_epoch()
        self.cluster.pass_time(5.0)

    def some_steps(self) -> None:
        """Stop at any place between two epochs."""
        for _ in range(self.random.randrange(60)):
            self.cluster.step()
            self.check_topic()

    def watch(self, seconds: float) -> None:
        """Let time pass, and look at the topic after every step."""
        end = self.cluster.clock.now + seconds
        while self.cluster.clock.now < end:
            self.cluster.clock.now += HEARTBEAT_S
            for member in list(self.cluster.members.values()):
                member.loop.beat()
            while self.cluster.step():
                self.check_topic()

    def check_topic(self) -> None:
        """No record is in the topic before its epoch is completed, and none that a checkpoint needs is compacted."""
        log, found = self.cluster.repository.read_log(), self.opened()
        assert log is not None
        newest = max((each.body.epoch for each in log.retained), default=0)
        assert all(epoch <= newest for epoch in found.delivered.values()), "a record of an epoch that is not completed"
        if log.retained:
            floor = found.floor
            assert floor <= log.retained[0].body.epoch, "a compaction beyond a retained checkpoint"

    def go_back(self, back: int) -> None:
        self.rewind(cluster_steps.epoch_before(self.cluster, back))

    def refuse(self, count: int) -> None:
        """Complete some epochs that the topic does not take yet, then lose all workers."""
        self.topic.on = True
        for _ in range(count):
            self.run(self.random.randrange(1, 30))
        self.cluster.replace_driver()
        self.run(self.random.randrange(1, 30))
        self.topic.on = False

    def finish(self) -> None:
        self.topic.on = False
        super().finish()

    def table(self, log: str) -> set[tuple[Any, ...]]:
        rows = hf.log(self.folder / log, as_table=True).collect().rows()
        assert len(rows) == len(set(rows))
        return set(rows)

    def check(self) -> None:
        rows, totals, windows = Counter[str](), Counter[str](), Counter[tuple[str, datetime]]()
        for sale in self.sold:
            if sale.shop is not None:
                rows[sale.shop] += 1
                totals[sale.shop] += sale.n
                end = START + ((sale.at - START) // timedelta(seconds=10) + 1) * timedelta(seconds=10)
                windows[sale.shop, end] += sale.n
        assert self.table("totals") == {(shop, rows[shop], totals[shop], shop) for shop in rows}
        assert self.table("all") == {(shop, rows[shop]) for shop in rows}
        ten = timedelta(seconds=10)
        assert self.table("windows") == {(shop, end - ten, end, n) for (shop, end), n in windows.items()}


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Where the changelog is."""
    kind: str = request.param
    return kind


IN_EVERY_PLACE = pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (CONTINUOUS, "log"),
        (MICROBATCH, "log"),
        (CONTINUOUS, "kafka"),
        pytest.param(MICROBATCH, "kafka", marks=pytest.mark.slow),
    ],
    indirect=True,
)


class TestTheTopicAlone:
    @IN_EVERY_PLACE
    def test_restores_the_state_after_every_worker_was_lost(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path, mode, kind=kind)
        job.run(60, 60)
        job.settle()
        assert job.forget_segments() == 0
        job.start_again(2)
        job.run(60)
        job.finish()
        job.check()

    def test_shows_how_far_a_restore_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A long one is not taken for a hang."""
        job, shown = Job(tmp_path, CONTINUOUS), list[tuple[int, int]]()
        right = WorkerLoop._restored

        def restored(loop: WorkerLoop, generation: Generation, done_bytes: int, all_bytes: int) -> None:
            shown.append((done_bytes, all_bytes))
            right(loop, generation, done_bytes, all_bytes)

        monkeypatch.setattr(WorkerLoop, "_restored", restored)
        job.run(60, 60)
        job.settle()
        assert job.forget_segments() == 0 and not shown
        job.start_again(1)
        job.run(10)
        assert len(shown) > len(LogReader(LocalObjects(tmp_path / "changelog")).tags()) and shown[-1][0] > 0
        assert all(done <= expected for done, expected in shown)

    @IN_EVERY_PLACE
    def test_shows_the_state_as_of_every_checkpoint(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path, mode, kind=kind)
        job.run(60, 60)
        job.settle()
        job.forget_segments()
        base = job.manifest().epoch
        first, ends = job.held("totals"), {row[:3] for row in job.held("windows")}
        assert first == job.table("totals") and None in {shop for shop, _ in job.held("all")}
        job.run(60)
        job.settle()
        job.forget_segments()
        assert job.held("totals") == job.table("totals") != first
        assert job.held("totals", base) == first
        assert ends - {row[:3] for row in job.held("windows")}, "windows that expired are not in the state"

    @IN_EVERY_PLACE
    def test_is_followed_by_the_segments_that_it_has_not_confirmed(self, tmp_path: Path, mode: str, kind: str) -> None:
        unconfirmed(Job(tmp_path, mode, kind=kind))

    @IN_EVERY_PLACE
    def test_is_never_ahead_of_a_commit_and_keeps_what_is_needed(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path, mode, retained=3, kind=kind)
        watched(job)
        assert job.opened().floor

    @IN_EVERY_PLACE
    def test_restores_another_parallelism(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path, mode, kind=kind)
        job.run(60, 60)
        job.settle()
        job.forget_segments()
        for parallelism in (3, 1, 2):
            job.start_again(parallelism)
            job.run(30)
            job.settle()
            job.forget_segments()
        job.finish()
        job.check()

    @IN_EVERY_PLACE
    def test_restores_an_earlier_epoch_of_a_rewind(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path, mode, kind=kind)
        job.run(50, 50, 50)
        job.settle()
        job.forget_segments()
        job.go_back(4)
        job.run(30)
        job.settle()
        job.forget_segments()
        job.start_again(2)
        job.run(10)
        job.forget_segments()
        job.go_back(2)
        job.finish()
        job.check()

    def test_restores_an_earlier_epoch_after_the_brokers_lost_later_ones(self, tmp_path: Path) -> None:
        """As by an election of a broker that lacked the last records, in one partition."""
        job = Job(tmp_path, CONTINUOUS, kind="kafka")
        job.run(50, 50, 50)
        job.settle()
        job.forget_segments()
        assert isinstance(job.brokers, InMemory)
        log = job.brokers.fake.logs[0]
        whole = len(log)
        del log[-4:]
        job.go_back(4)
        job.run(30)
        job.settle()
        assert job.cluster.driver.outcome is None and len(log) > whole
        job.forget_segments()
        job.start_again(2)
        job.run(10)
        job.finish()
        job.check()

    @IN_EVERY_PLACE
    def test_restores_what_compactions_left(self, tmp_path: Path, mode: str, kind: str) -> None:
        compacted(Job(tmp_path, mode, retained=3, kind=kind))

    @IN_EVERY_PLACE
    @pytest.mark.parametrize("seed", range(2))
    def test_survives_any_sequence_of_faults(self, tmp_path: Path, mode: str, kind: str, seed: int) -> None:
        survive(Job(tmp_path, mode, seed, retained=4, kind=kind), seed)

    @IN_EVERY_PLACE
    @pytest.mark.thorough
    @pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
    def test_survives_longer_sequences(self, tmp_path: Path, mode: str, kind: str, seed: int) -> None:
        survive(Job(tmp_path, mode, seed, retained=random.Random(seed).choice((4, 1_000)), kind=kind), seed, turns=14)


def unconfirmed(job: Job) -> None:
    """Lose all workers while the topic lacks the last epochs, twice."""
    job.run(60, 60)
    job.settle()
    assert job.forget_segments() == 0
    job.topic.on = True
    job.run(30, 30)
    assert job.forget_segments() > 0
    for parallelism in (2, 3):
        job.cluster.change_rules(key_ranges=tuple(range_of(i, parallelism, 128) for i in range(parallelism)))
        job.cluster.replace_driver()
        job.run(30)
    job.finish()
    job.check()


def watched(job: Job) -> None:
    """Look at the topic all the time."""
    for _ in range(10):
        job.sell(20)
        job.watch(1.0)


def compacted(job: Job) -> None:
    """Restore, rewind and restore again from a topic that was compacted."""
    job.run(60, 60, 60, 60, 60, 60)
    job.settle()
    assert job.opened().floor, "the driver has compacted the topic"
    job.forget_segments()
    job.start_again(3)
    job.run(30)
    job.go_back(2)
    job.run(30)
    job.settle()
    job.forget_segments()
    job.start_again(2)
    job.finish()
    job.check()


def survive(job: Job, seed: int, turns: int = 7) -> None:
    rng = random.Random(seed)
    job.run(30)
    for _ in range(turns):
        rng.choice(
            (
                lambda: job.run(rng.randrange(1, 60)),
                job.crash,
                lambda: job.start_again(rng.choice((1, 2, 3))),
                lambda: job.go_back(rng.randrange(3)),
                lambda: job.refuse(rng.randrange(1, 4)),
            )
        )()
        job.run(rng.randrange(1, 30))
        job.forget_segments()
    job.finish()
    job.check()


def how(job: Job) -> set[str | None]:
    """Return how the workers obtained their state in this generation."""
    return {hosted.how for hosted in job.cluster.driver.state.workers.values() if hosted.subtask is not None}


@dataclass
class Outage:
    """Brokers in memory that are unreachable for some calls.

    Args:
        job: Its changelog is in Kafka.
        call: The one that fails; see FakeBrokers.cut.
    """

    job: Job
    call: str
    on: bool = False
    times: int = 0

    def __post_init__(self) -> None:
        assert isinstance(self.job.brokers, InMemory)
        self.job.brokers.fake.cut = self.refuse

    def refuse(self, call: str) -> None:
        if self.on and call == self.call:
            self.times += 1
            raise Unavailable("the brokers are unreachable", next_step="wait")


@pytest.mark.thorough
class TestOutages:
    """The brokers are unreachable at some call: the job waits, and loses nothing."""

    @pytest.mark.parametrize("call", ["init", "begin", "mark", "send", "flush", "commit"])
    def test_while_an_epoch_is_written_leave_it_to_the_segments(self, tmp_path: Path, call: str) -> None:
        job = Job(tmp_path, CONTINUOUS, kind="kafka")
        job.run(60)
        job.settle()
        confirmed = job.opened().delivered
        outage = Outage(job, call)
        job.cluster.crash(min(job.cluster.members))  # a new session, so that each of its calls is made
        outage.on = True
        job.run(30, 30)
        assert outage.times > 1 and job.opened().delivered == confirmed, "the fault has fired, and nothing came through"
        assert job.cluster.driver.outcome is None and job.forget_segments() > 0
        job.start_again(2)
        job.run(30)
        assert job.opened().delivered == confirmed
        outage.on = False
        job.settle()
        assert job.forget_segments() == 0
        job.start_again(3)
        job.finish()
        job.check()

    @pytest.mark.parametrize("fault", ["lost", "resent and lost", "timed out"])
    def test_with_the_answer_to_a_commit_leave_each_epoch_in_the_topic_once(
        self, tmp_path: Path, fault: CommitFault
    ) -> None:
        job, fired = Job(tmp_path, CONTINUOUS, kind="kafka"), list[CommitFault]()

        def every_other() -> CommitFault:
            fired.append(fault if len(fired) % 2 == 0 else "none")
            return fired[-1]

        assert isinstance(job.brokers, InMemory)
        job.brokers.fake.fault = every_other
        job.run(*[20] * 6)
        job.settle()
        assert fired.count(fault) > 1 and job.forget_segments() == 0
        job.start_again(2)
        job.finish()
        job.check()

    def test_while_state_is_restored_make_the_workers_try_again(self, tmp_path: Path) -> None:
        job = Job(tmp_path, CONTINUOUS, kind="kafka")
        job.run(60, 60)
        job.settle()
        assert job.forget_segments() == 0
        outage, base = Outage(job, "poll"), job.manifest().epoch
        outage.on = True
        job.cluster.replace_driver()
        job.run(60)
        assert outage.times > 2 and job.cluster.driver.outcome is None and job.manifest().epoch == base
        shown = of_run(job.cluster.driver.state, "root", CONTINUOUS, None).as_json()
        assert "the brokers are unreachable" in json.dumps(shown), "the status says what is waited for"
        outage.on = False
        job.finish()
        job.check()


class TestCopies:
    """Standbys and local folders: state as of an epoch to which records of the topic are added."""

    @pytest.mark.parametrize(("retained", "kind"), [(1_000, "log"), (3, "log"), (3, "kafka")], indirect=["kind"])
    def test_a_standby_follows_the_topic_and_takes_over(self, tmp_path: Path, retained: int, kind: str) -> None:
        job = Job(tmp_path, CONTINUOUS, retained=retained, standbys=1, kind=kind)
        for _ in range(4):
            job.run(40)
            job.settle()
            job.forget_segments()
            standbys = [m for m in job.cluster.driver.state.workers.values() if m.subtask is None]
            assert standbys and all(copy.epoch == job.manifest().epoch for m in standbys for copy in m.heartbeat.copies)
        victim = next(w for w, hosted in job.cluster.driver.state.workers.items() if hosted.subtask is not None)
        job.cluster.crash(victim)
        job.cluster.pass_time(5.0)
        assert how(job) == {"promoted", "rolled back"}
        job.finish()
        job.check()

    def test_a_standby_that_lacks_one_epoch_does_not_read_the_topic(self, tmp_path: Path) -> None:
        job = Job(tmp_path, CONTINUOUS, standbys=1)
        job.run(40)
        job.settle()
        before, epoch = job.topic.reads, job.manifest().epoch
        job.run(40, 40, 40)
        standbys = [m for m in job.cluster.driver.state.workers.values() if m.subtask is None]
        assert all(copy.epoch > epoch for m in standbys for copy in m.heartbeat.copies)
        followed = sum(each.body.epoch > epoch for each in job.cluster.driver.state.job.completed)
        assert job.topic.reads - before < followed, "two copies; an epoch without a change leaves no segment to follow"

    @pytest.mark.parametrize("retained", [1_000, 2])
    def test_an_image_is_brought_up_by_the_topic(
        self, tmp_path: Path, retained: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home, found = Home(tmp_path / "local", "machine", "boot"), list[tuple[int, int]]()
        from_image = LocalCopies._from_image

        def noted(kept: LocalCopies[Any, Any], image: Any, target: StateTarget, *rest: Any) -> StateStore:
            found.append((image.head.cut.epoch, target.base_epoch))
            return from_image(kept, image, target, *rest)

        monkeypatch.setattr(LocalCopies, "_from_image", noted)
        monkeypatch.setattr("holdfast.runtime.worker.local.images.unfit", lambda folder: "")
        job = Job(tmp_path, CONTINUOUS, retained=retained, local=lambda: LocalFolders(home))
        job.cluster.limits = Limits(image_from=1)
        job.run(40, 40)
        for _ in range(3):
            job.settle()
            base = job.manifest().epoch
            job.sell(40)
            while not (job.table("totals") and job.forget_segments() == 0 and job.manifest().epoch > base):
                job.cluster.pass_time(0.25)
            for member in job.cluster.members.values():
                member.loop.close()
            job.cluster.replace_driver()
            job.run(10)
        assert found and any(epoch < base for epoch, base in found), found
        job.finish()
        job.check()


class TestStarts:
    def test_with_another_kind_of_place_are_refused(self, tmp_path: Path) -> None:
        job = Job(tmp_path, CONTINUOUS)
        job.run(20)
        job.settle()
        with_topic = job.manifest()
        in_root = msgspec.structs.replace(with_topic, changelog=msgspec.UNSET)
        refuse(changelog.refusal(job.plan, with_topic))
        refuse(changelog.refusal(replace(job.plan, changelog=ROOT), in_root))
        with pytest.raises(
            ConfigError, match=r"its changelog in the root, but the state of epoch \d+ is in log .*/change"
        ):
            refuse(changelog.refusal(replace(job.plan, changelog=ROOT), with_topic))
        with pytest.raises(
            ConfigError, match=r"its changelog in log .*/changelog, but the state of epoch \d+ is in the"
        ):
            refuse(changelog.refusal(job.plan, in_root))

    def test_after_the_topic_lost_what_was_delivered_end_with_the_reason(self, tmp_path: Path) -> None:
        job = Job(tmp_path, CONTINUOUS)
        job.run(20, 20)
        job.settle()
        topic = LocalObjects(tmp_path / "changelog")
        for path in topic.list("commits")[1:]:
            topic.delete(path)
        job.start_again(2)
        job.cluster.pass_time(5.0)
        assert job.cluster.driver.outcome is not None
        ended, error = job.cluster.driver.outcome
        assert ended == "failed" and error is not None and "restored from a backup, replaced or emptied" in error.what


class TestACopyOfTheRoot:
    """Both jobs write to one topic, and number other epochs alike."""

    @pytest.mark.parametrize(
        ("mode", "recoveries", "kind"),
        [(CONTINUOUS, 0, "log"), (CONTINUOUS, 2, "log"), (MICROBATCH, 0, "log"), (CONTINUOUS, 2, "kafka")],
        indirect=["kind"],
    )
    def test_never_restores_what_the_original_delivered_since(
        self, tmp_path: Path, mode: str, recoveries: int, kind: str
    ) -> None:
        """Not even once its own epochs are beyond, or if those of the original went beyond its first one."""
        job = Job(tmp_path / "original", mode, kind=kind)
        job.run(60, 60)
        job.settle()
        twin = job.copied(tmp_path / "copy")
        twin.topic.on = True  # it has seen the topic, but cannot deliver to it
        twin.begin_copy(mode, seed=77)
        first = job.manifest().epoch
        twin.run(30)
        assert twin.cluster.driver.outcome is None and twin.manifest().epoch > first + 100
        job.run(5)
        for _ in range(recoveries):  # by the same driver, so that the copy knows the owner; epochs jump each time
            job.cluster.crash(min(job.cluster.members))
            job.run(5)
            job.settle()
        assert (job.manifest().epoch > twin.manifest().epoch) == (recoveries > 0)
        for seed in (78, 79):
            twin.begin_copy(mode, seed)
            twin.cluster.pass_time(20.0)
            error = twin.failure()
            assert error.kind == Damaged.kind
            assert error.not_done == "no state was restored" or mode == MICROBATCH  # it delivers meanwhile
            assert f"ends at timeline 1, epoch {first} for the run" in error.what
        with pytest.raises(Damaged, match="for the run that delivered this"):
            twin.held("totals")
        job.finish()
        job.check()

    @IN_EVERY_PLACE
    def test_takes_the_topic_over_if_the_original_has_not_continued(self, tmp_path: Path, mode: str, kind: str) -> None:
        job = Job(tmp_path / "original", mode, kind=kind)
        job.run(60, 60)
        job.settle()
        twin, first = job.copied(tmp_path / "copy"), job.manifest().epoch
        twin.begin_copy(mode, seed=77)
        twin.run(30)
        twin.settle()
        assert twin.plan.changelog.open(twin.manifest().job_uuid).delivered[Subtask(0)] > first + 100
        job.run(5)
        job.cluster.pass_time(20.0)
        assert job.failure().kind == Fenced.kind
        with pytest.raises(Fenced, match="no state was restored"):
            job.held("totals")
        twin.finish()
        twin.check()


class TestReports:
    def test_name_the_place(self, tmp_path: Path) -> None:
        job = Job(tmp_path, CONTINUOUS)
        place = {"kind": "log", "path": str(tmp_path / "changelog")}
        assert describe(job.plan)["changelog"] == place
        assert f"changelog of all state: log {place['path']}" in render(job.plan)
        shown = of_run(job.cluster.driver.state, "root", CONTINUOUS, None).as_json()
        assert shown["changelog"] == place
        root = replace(job.plan, changelog=ROOT)
        assert describe(root)["changelog"] == {"kind": "root"} and "changelog" not in render(root)

    def test_verify_reports_damage_in_the_changelog_topic(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job = Job(tmp_path, CONTINUOUS)
        job.run(20, 20)
        job.settle()
        log = job.cluster.repository.read_log()
        assert log is not None
        stored = Stored("sales", "", job.store, job.cluster.repository, log)
        assert verify_all(stored, log.completed, as_json=True) == 0
        spoilt = min((tmp_path / "changelog" / "data").rglob("*.arrow"))
        spoilt.write_bytes(spoilt.read_bytes()[:-1] + b"!")
        capsys.readouterr()
        assert verify_all(stored, log.completed, as_json=True) == 4
        (broken,) = json.loads(capsys.readouterr().out)["damaged"]
        assert broken["kind"] == "topic" and "does not match its hash" in broken["what"]
