"""Forks: whole jobs in one thread, of which another one begins with a checkpoint, in both modes.

Both jobs run on, and their output equals a computation in plain Python. The attempt to fork is cut off at every
operation on the new job's store, and the job that is forked is unchanged byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import cluster_steps
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.forks import NewJob
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.checkpoint.timeline import lineage_of
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import JobUuid, Tag
from holdfast.ports import ObjectStore
from holdfast.runtime.cli.operate.events import events_of
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.execution.checks import changelog
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.fork.forking import ATTEMPTS_MAX, Fork, check_new, fork
from holdfast.runtime.inspect.stored import Stored, checkpoint_of
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.sinks.contract.target import Outcome
from holdfast.sinks.log.changelog import LogChangelog
from holdfast.sinks.log.sink import LogTarget
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

START = datetime(2026, 3, 1, tzinfo=UTC)
SHOPS = ["a", "b", "c", "d", "e", "f", "g", "h"]
TEN = timedelta(seconds=10)


@dataclass
class Sale:
    shop: str
    n: int
    at: datetime


class Input:
    """The log that both jobs read."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        create_log(LocalObjects(folder / "input"), schema_of(Sale))
        self.folder, self.sold, self._random = folder, list[Sale](), Random(seed)
        self.writer = LogWriter(LocalObjects(folder / "input"))

    def sell(self, count: int) -> None:
        before = len(self.sold)
        for n in range(before, before + count):
            at = START + timedelta(seconds=n / 2 - self._random.choice((0, 0, 3)))
            self.sold.append(Sale(self._random.choice(SHOPS), self._random.randrange(12), at))
        rows = [vars(each) for each in self.sold[before:]]
        self.writer.append({self._random.randrange(4): pa.Table.from_pylist(rows, schema=schema_of(Sale))})


class Running:
    """A job with a total per shop and per window, each in a log of its own."""

    def __init__(
        self, name: str, given: Input, mode: str, store: ObjectStore, *, topic: bool = False, parallelism: int = 2
    ) -> None:
        self.name, self.given, self.mode, self.store, self.topic = name, given, mode, store, topic
        self.folder = given.folder / name
        self.plan = self.app().plan()
        for spec in outputs_of(self.plan):
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, parallelism, len(name), store, 1.0, {"sales": (0, 1, 2, 3)}, mode)

    def app(self) -> hf.App:
        changelog: Any = hf.Log(self.folder / "changelog", partitions=4) if self.topic else "root"
        app = hf.App(self.name, checkpoint_every="1s", changelog=changelog)
        sales = app.source("sales", hf.Log(self.given.folder / "input", Sale), event_time="at", out_of_orderness="5s")
        totals = sales.key_by("shop").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", hf.Log(self.folder / "totals", key=["shop"], partitions=2))
        windows = sales.key_by("shop").window(hf.tumbling("10s"), allowed_lateness="20s").agg("windows", n=hf.sum("n"))
        windows.sink("windows-out", hf.Log(self.folder / "windows", key=["window_end", "shop"]))
        return app

    @property
    def repository(self) -> Repository:
        return Repository(self.store)

    @property
    def job(self) -> Job:
        job = self.repository.read_log()
        assert job is not None
        return job

    @property
    def stored(self) -> Stored:
        return Stored(self.name, "", self.store, self.repository, self.job)

    def manifest(self) -> Manifest:
        return self.repository.load_manifest(self.job.completed[-1].body.manifest)

    def begin(self) -> Running:
        self.cluster.begin()
        return self

    def run(self, *counts: int) -> None:
        for count in counts:
            self.given.sell(count)
            self.cluster.pass_time(2.0)

    def settle(self) -> None:
        self.cluster.pass_time(20.0)
        assert self.cluster.driver.outcome is None
        self.cluster.driver.close_epoch()
        self.cluster.pass_time(5.0)

    def start_again(self, parallelism: int) -> None:
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver()

    def forked(self, name: str = "trial", parallelism: int = 2) -> Running:
        """Return the fork of the last checkpoint, not started."""
        made = fork_into(self, store := MemoryObjects(), name, attempt=len(name))
        assert made.manifest.job_uuid != self.job.uuid
        return Running(name, self.given, self.mode, store, parallelism=parallelism)

    def table(self, log: str) -> set[tuple[Any, ...]]:
        rows = hf.log(self.folder / log, as_table=True).collect().rows()
        assert len(rows) == len(set(rows))
        return set(rows)

    def windows(self) -> set[tuple[str, datetime]]:
        """Return the windows that are in the target."""
        return {(shop, end) for shop, _, end, _ in self.table("windows")}


def fork_into(of: Running, store: ObjectStore, name: str = "trial", wanted: str = "latest", attempt: int = 1) -> Fork:
    new = NewJob(name, JobUuid(f"{attempt:032x}"), f"{attempt + 1_000:032x}", 1_000_000 + attempt)
    return fork(of.stored, checkpoint_of(of.job, wanted), store, new, VirtualClock(), lambda: None)


def check(job: Running, since: int = 0, shown: frozenset[tuple[str, datetime]] = frozenset()) -> None:
    """Compare the targets of a finished job with all results that sales after the first `since` changed.

    Args:
        shown: Windows that another job had shown by then.
    """
    sold = job.given.sold
    rows, totals, windows = Counter[str](), Counter[str](), Counter[tuple[str, datetime]]()
    new, touched = set[str](), set[tuple[str, datetime]]()
    for number, sale in enumerate(sold):
        end = START + ((sale.at - START) // TEN + 1) * TEN
        rows[sale.shop] += 1
        totals[sale.shop] += sale.n
        windows[sale.shop, end] += sale.n
        if number >= since:
            new.add(sale.shop)
            touched.add((sale.shop, end))
    assert job.table("totals") == {(shop, rows[shop], totals[shop]) for shop in new}
    due = {window for window in windows if window in touched or window not in shown}
    assert job.table("windows") == {(shop, end - TEN, end, windows[shop, end]) for shop, end in due}


def finish(*jobs: Running) -> None:
    jobs[0].given.writer.seal()
    for job in jobs:
        cluster_steps.finish(job.cluster)


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {path: store.get(path) for path in store.list("")}


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture(params=["root", "topic"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the first job keeps its state: in the root, or in a topic as the only copy."""
    place: str = request.param
    return place


@pytest.fixture
def first(tmp_path: Path, mode: str, place: str) -> Running:
    """A job with one checkpoint after all that it has read."""
    return settled(tmp_path, mode, place)


@pytest.fixture
def resting(tmp_path: Path, place: str) -> Running:
    """The same for tests in which it does not run on."""
    return settled(tmp_path, CONTINUOUS, place)


def settled(folder: Path, mode: str, place: str) -> Running:
    job = Running("first", Input(folder), mode, MemoryObjects(), topic=place == "topic").begin()
    job.run(60, 60)
    job.settle()
    if job.topic:
        for path in job.store.list("segments"):
            job.store.delete(path)
        assert not job.manifest().pending and not job.store.list("base")
    return job


class TestBothJobs:
    def test_continue_from_the_checkpoint_each_on_its_own(self, first: Running) -> None:
        since, shown = len(first.given.sold), frozenset(first.windows())
        before = contents(first.store)
        trial = first.forked()
        assert contents(first.store) == before
        first.run(40)
        trial.begin()
        trial.run(30)
        first.run(20)
        finish(first, trial)
        check(first)
        check(trial, since, shown)

    def test_number_their_epochs_from_the_same_one_on(self, first: Running) -> None:
        trial, epoch = first.forked(), first.job.base_epoch
        job = trial.job
        assert (job.generation, job.timeline, job.base_epoch, job.expired_through) == (0, 1, epoch, 0)
        assert job.uuid != first.job.uuid and job.ended is not None
        assert trial.manifest().positions == first.manifest().positions
        assert (trial.manifest().pending, trial.manifest().confirmed) == ((), ())
        trial.begin().run(10)
        assert trial.job.completed[1].body.epoch == epoch + 1 and trial.job.completed[1].body.follows == epoch

    @pytest.mark.parametrize("parallelism", [1, 3])
    def test_may_have_another_parallelism(self, first: Running, parallelism: int) -> None:
        since, shown = len(first.given.sold), frozenset(first.windows())
        trial = first.forked(parallelism=parallelism).begin()
        trial.run(30)
        trial.start_again(2)
        trial.run(10)
        finish(first, trial)
        check(first)
        check(trial, since, shown)

    def test_may_be_forked_again(self, first: Running) -> None:
        trial = first.forked().begin()
        trial.run(30)
        trial.settle()
        since, shown = len(first.given.sold), frozenset(first.windows() | trial.windows())
        second = trial.forked("second").begin()
        second.run(20)
        finish(first, trial, second)
        check(first)
        check(second, since, shown)
        assert [each.job for each in second.repository.origins()] == ["first", "trial"]

    def test_do_not_need_each_other(self, first: Running) -> None:
        since, shown = len(first.given.sold), frozenset(first.windows())
        trial = first.forked().begin()
        for path in first.store.list(""):
            first.store.delete(path)
        trial.run(30)
        trial.start_again(3)
        trial.run(10)
        finish(trial)
        check(trial, since, shown)


class TestRewindOfAFork:
    def test_reaches_the_checkpoint_with_which_it_began_and_nothing_older(self, first: Running) -> None:
        since, shown = len(first.given.sold), frozenset(first.windows())
        trial, epoch = first.forked().begin(), first.job.base_epoch
        trial.run(30, 30)
        assert trial.table("totals")
        older = first.job.completed[-2].body.epoch
        wanted = {"epoch": older, "timeline": 1}
        answer = trial.cluster.driver.asked("rewind", wanted, trial.job.generation, trial.job.generation)
        assert answer is not None and answer["reason"] == f"no checkpoint of epoch {older} exists"
        cluster_steps.rewind(trial.cluster, epoch)
        job = trial.job
        assert (job.timeline, job.rewinds[-1].base_epoch) == (2, epoch)
        trial.run(20)
        finish(first, trial)
        check(first)
        check(trial, since, shown)


class TestOutputThatTheFirstJobOwes:
    """It is committed and not delivered when the job is forked; nor are, to a topic, its last changes."""

    @pytest.fixture
    def owing(
        self, tmp_path: Path, mode: str, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Running, Callable[[], None]]:
        deliver = LogTarget.deliver

        def refuse(self: LogTarget, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
            raise Unavailable("the log is unreachable", next_step="wait")

        job = Running("first", Input(tmp_path), mode, MemoryObjects(), topic=place == "topic").begin()
        job.run(60)
        monkeypatch.setattr(LogTarget, "deliver", refuse)
        monkeypatch.setattr(LogTarget, "deliver_uploaded", refuse)
        job.run(30)
        assert {each.writer.sink for each in job.manifest().pending} >= {"totals-out"}
        assert not job.topic or any(each.segments for each in job.manifest().state)

        def mend() -> None:
            monkeypatch.undo()
            assert LogTarget.deliver is deliver

        return job, mend

    def test_is_delivered_by_the_first_job_alone(self, owing: tuple[Running, Callable[[], None]]) -> None:
        first, mend = owing
        manifest = first.manifest()
        trial = first.forked()
        read = sum(at.offset for at in manifest.positions)
        assert not trial.manifest().pending and read == len(first.given.sold)
        mend()
        first.settle()
        since, shown = len(first.given.sold), frozenset(first.windows())
        trial.begin()
        trial.run(30)
        finish(first, trial)
        check(first)
        check(trial, since, shown)


class TestTheFirstJob:
    def test_may_expire_and_sweep_the_checkpoint_afterwards(self, tmp_path: Path, mode: str) -> None:
        first = Running("first", Input(tmp_path), mode, MemoryObjects())
        first.cluster.change_rules(retention=Retention(2, 0))
        first.begin().run(60)
        first.settle()
        since, shown, epoch = len(first.given.sold), frozenset(first.windows()), first.job.base_epoch
        trial = first.forked()
        first.run(*[10] * 8)
        assert epoch not in [each.body.epoch for each in first.job.retained]
        with pytest.raises(ConfigError, match="they have expired up to epoch"):
            checkpoint_of(first.job, str(epoch))
        trial.begin().run(20)
        finish(first, trial)
        check(first)
        check(trial, since, shown)

    def test_expiry_of_the_checkpoint_during_the_copy_ends_the_fork_attempt(self, tmp_path: Path) -> None:
        first = Running("first", Input(tmp_path), CONTINUOUS, MemoryObjects())
        first.cluster.change_rules(retention=Retention(2, 0))
        first.begin().run(60)
        stored, done = first.stored, first.job.completed[-1]
        first.run(*[10] * 8)
        assert done not in first.job.retained
        with pytest.raises(ConfigError, match="expired while it was copied") as refused:
            fork(stored, done, store := MemoryObjects(), a_job(), VirtualClock(), lambda: None)
        assert "holdfast savepoint first KEPT" in refused.value.next_step
        assert Repository(store).read_log() is None

    def test_with_a_damaged_object_is_reported(self, resting: Running) -> None:
        segments = [each.object for handle in resting.manifest().state for each in handle.segments]
        path = (segments[-1] if segments else resting.job.completed[-1].body.manifest).path
        resting.store.put(path, resting.store.get(path)[:-1] + b"!")
        store = MemoryObjects()
        with pytest.raises(Damaged, match=r"checkpoint of epoch \d+ of job 'first' is damaged") as refused:
            fork_into(resting, store)
        assert refused.value.not_done == "job 'trial' was not created; job 'first' was only read"
        assert Repository(store).read_log() is None

    def test_whose_topic_lost_records_is_reported(self, tmp_path: Path) -> None:
        first = Running("first", Input(tmp_path), CONTINUOUS, MemoryObjects(), topic=True).begin()
        first.run(20, 20)
        first.settle()
        log = LocalObjects(first.folder / "changelog")
        for path in log.list("commits")[1:]:
            log.delete(path)
        with pytest.raises(Damaged, match="restored from a backup, replaced or emptied"):
            fork_into(first, MemoryObjects())

    def test_whose_topic_is_compacted_beyond_the_checkpoint_is_reported(self, tmp_path: Path) -> None:
        first = Running("first", Input(tmp_path), CONTINUOUS, MemoryObjects(), topic=True).begin()
        first.run(20, 20)
        first.settle()
        done, job = first.job.completed[0], first.job
        assert isinstance(first.plan.changelog, LogChangelog)
        compaction = replace(first.plan.changelog, compacted_from=1, grace_s=0.0)
        assert compaction.compaction(job.uuid).compact(job.owner, lineage_of(()), job.base_epoch)
        with pytest.raises(ConfigError, match="no longer holds the state as of epoch") as refused:
            fork(first.stored, done, MemoryObjects(), a_job(), VirtualClock(), lambda: None)
        assert refused.value.not_done == "job 'trial' was not created; job 'first' was only read"


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Cut:
    """A store whose writes end the process: before or after the write of this number."""

    store: MemoryObjects
    at: int
    after: bool
    raises: type[BaseException] = Killed
    writes: int = field(default=0)

    def _write(self, write: Callable[[], None]) -> None:
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise self.raised()
        write()
        if self.writes == self.at:
            raise self.raised()

    def raised(self) -> BaseException:
        return Killed() if self.raises is Killed else Unavailable("the store is unreachable", next_step="wait")

    def create(self, path: str, data: bytes) -> None:
        self._write(lambda: self.store.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._write(lambda: self.store.put(path, data))

    def get(self, path: str) -> bytes:
        return self.store.get(path)

    def list(self, prefix: str) -> list[str]:
        return self.store.list(prefix)

    def delete(self, path: str) -> None:
        raise AssertionError("a fork deletes nothing")


class TestAnAttemptThatIsCutOff:
    @pytest.mark.parametrize("after", [False, True])
    def test_at_any_write_leaves_no_job_or_a_whole_one(self, resting: Running, after: bool) -> None:
        resting.store.put("sources/rows/catalogue.json", b"what a source keeps in the folder of its job")
        before, wrote = contents(resting.store), Cut(MemoryObjects(), 0, after=False)
        fork_into(resting, wrote)
        assert wrote.writes >= 4
        for at in range(1, wrote.writes + 1):
            store = MemoryObjects()
            with pytest.raises(Killed):
                fork_into(resting, Cut(store, at, after))
            if after and at == wrote.writes:
                with pytest.raises(ConfigError, match="job 'trial' exists already: it was forked from epoch"):
                    check_new("trial", store)
            else:
                check_new("trial", store)
                fork_into(resting, store, attempt=2)
            job = Repository(store).read_log()
            assert job is not None and job.uuid == JobUuid(f"{1 + (at < wrote.writes or not after):032x}")
            assert contents(resting.store) == before

    def test_leaves_nothing_behind_once_the_job_runs(self, tmp_path: Path) -> None:
        first = Running("first", Input(tmp_path), CONTINUOUS, store := MemoryObjects()).begin()
        first.run(60)
        first.settle()
        since, shown = len(first.given.sold), frozenset(first.windows())
        with pytest.raises(Killed):
            fork_into(first, Cut(into := MemoryObjects(), 2, after=True))
        left = set(into.list(""))
        fork_into(first, into, attempt=2)
        assert left and left < set(into.list("")) and store.list("")
        trial = Running("trial", first.given, CONTINUOUS, into).begin()
        trial.run(20)
        assert not left & set(into.list(""))
        finish(first, trial)
        check(trial, since, shown)

    def test_does_not_keep_another_job_from_the_name(self, resting: Running) -> None:
        """What it left proves no log that was cut short."""
        fork_into(resting, wrote := Cut(MemoryObjects(), 0, after=False))
        for at in range(1, wrote.writes):
            with pytest.raises(Killed):
                fork_into(resting, Cut(store := MemoryObjects(), at, after=True))
            check_new("trial", store)

    def test_by_a_lost_reply_is_settled(self, resting: Running) -> None:
        wrote = Cut(MemoryObjects(), 0, after=False)
        fork_into(resting, wrote)
        for after in (False, True):
            store = MemoryObjects()
            fork_into(resting, Cut(store, wrote.writes, after, Unavailable))
            job = Repository(store).read_log()
            assert job is not None and job.uuid == JobUuid(f"{1:032x}")

    def test_by_a_store_that_stays_away_does_not_know_the_outcome(self, resting: Running) -> None:
        class Away(Cut):
            def create(self, path: str, data: bytes) -> None:
                if not path.startswith("log/"):
                    return super().create(path, data)
                self.writes += 1
                raise self.raised()

        away = Away(MemoryObjects(), 0, after=False, raises=Unavailable)
        with pytest.raises(Unavailable, match="the outcome of the last is unknown") as error:
            fork_into(resting, away)
        assert error.value.not_done == "whether 'trial' exists is unknown; job 'first' was only read"
        assert away.list("manifests") and ATTEMPTS_MAX == 5

    def test_by_a_store_that_takes_no_copy_says_that_there_is_no_job(self, resting: Running) -> None:
        with pytest.raises(Unavailable, match="unreachable") as error:
            fork_into(resting, Cut(MemoryObjects(), 1, after=False, raises=Unavailable))
        assert error.value.not_done == "job 'trial' was not created; job 'first' was only read"


class TestTwoAttempts:
    def test_under_one_name_make_one_job(self, resting: Running) -> None:
        fork_into(resting, store := MemoryObjects())
        there = contents(store)
        with pytest.raises(ConfigError, match=r"job 'trial' exists already: it was forked from epoch \d+ of job 'fir"):
            fork_into(resting, store, attempt=2)
        assert there.items() <= contents(store).items() and Repository(store).read_log() is not None

    def test_with_other_copies_of_a_source_do_not_mix_them(self, resting: Running) -> None:
        resting.store.put("sources/rows/catalogue.json", b"of this job")
        (store := MemoryObjects()).put("sources/rows/catalogue.json", b"of another job")
        with pytest.raises(ConfigError, match=r"holds sources/rows/catalogue\.json of another fork"):
            fork_into(resting, store)

    def test_beside_a_start_of_that_name_end_the_start(self, resting: Running) -> None:
        """The driver has checked its code against no checkpoint."""
        trial = Running("trial", resting.given, resting.mode, store := MemoryObjects())
        there = trial.repository.read_log()
        fork_into(resting, store)
        trial.cluster.driver.begin(there, "started")
        trial.cluster.pass_time(5.0)
        assert trial.cluster.driver.outcome is not None
        ended, error = trial.cluster.driver.outcome
        assert ended == "fenced" and error is not None
        assert error.what == "holdfast fork created job 'trial' while this run started"


class TestStarts:
    def test_keep_the_state_of_a_fork_in_the_root(self, resting: Running) -> None:
        trial = resting.forked()
        refuse(changelog.refusal(trial.plan, trial.manifest()))
        with_topic = Running("trial", resting.given, resting.mode, trial.store, topic=True)
        with pytest.raises(ConfigError, match=r"its changelog in log .*, but the state of epoch \d+ is in the root"):
            refuse(changelog.refusal(with_topic.plan, trial.manifest()))

    def test_are_events_after_the_fork_also_once_the_log_starts_over(self, tmp_path: Path) -> None:
        first = Running("first", Input(tmp_path), CONTINUOUS, MemoryObjects()).begin()
        first.run(60)
        trial = first.forked()
        trial.cluster.change_rules(retention=Retention(2, 0, log_records=5))
        trial.begin().run(*[10] * 8)
        assert trial.job.log_start and Repository(trial.store).read_record(3) is None
        begun, started, *_ = events_of(trial.stored, checkpoints=False)
        origin = trial.repository.origins()[-1]
        assert (begun["event"], begun["epoch"]) == ("forked", origin.epoch)
        assert begun["cause"] == f"forked from epoch {origin.epoch} of first" and started["event"] == "started"


def a_job() -> NewJob:
    return NewJob("trial", JobUuid("1" * 32), "2" * 32, 1)
