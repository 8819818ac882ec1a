"""Restored targets and duplicated jobs: complete jobs in one thread, on real folders and targets.

Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logged import rows_in
from start_facts import facts_of_targets

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository
from holdfast.checkpoint.timeline import Rewind
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Tag, Timeline
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.driver.state import RewindWanted
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.targets import adoption, holdings
from holdfast.runtime.execution.checks.targets.holdings import beyond, lost_rows
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.holdings import adopted_from, read_holdings
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.immediate import is_immediate
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.rewind.stopped import rewind_stopped
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.owners import Claim, Held, Holding
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects, open_objects


@dataclass
class Said:
    n: int
    word: str


class Site:
    """An input, a target, and any number of roots."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self._key = ["n"] if kind == "sqlite immediate" else None
        create_log(LocalObjects(folder / "input"), schema_of(Said), partitions=1, key=self._key)
        self._input = LogWriter(LocalObjects(folder / "input"))
        self._said = self._started = 0

    def app(self, root: str) -> hf.App:
        app = hf.App("words", root=str(self.folder / root))
        rows = app.source("rows", hf.Log(self.folder / "input", Said, key=self._key))
        if self.kind == "log":
            rows.sink("copy", hf.Log(self.folder / "copy"))
        else:
            delivery = "idempotent" if self.kind in ("sqlite idempotent", "sqlite immediate") else "transactional"
            key = None if self.kind == "sqlite" else ["n"]
            rows.sink("copy", hf.SQLite(self.folder / "out.db", "copy", key, delivery=delivery))
        return app

    def prepare(self, root: str = "root", adopt: Sequence[str] = ()) -> Prepared:
        app = self.app(root)
        given: dict[str, Any] = {"adopt_targets": adopt} if adopt else {}
        plan = app.plan()
        assert is_immediate(plan.sinks[0]) == (self.kind == "sqlite immediate")
        return prepare(plan, resolve(app), Choices(takeover=True, **given))

    def start(self, root: str = "root", adopt: Sequence[str] = ()) -> Cluster:
        started = self.prepare(root, adopt)
        self._started += 1  # the seed: every driver has its own token
        cluster = Cluster(started.plan, 1, self._started, started.folder.store, 1.0, started.inputs.partitions)
        cluster.change_rules(adopted=started.targets.adopted)
        cluster.begin()
        cluster.settle()
        return cluster

    def start_despite_targets(self, root: str) -> Cluster:
        """Start as if no target were reachable when the start compares them."""
        app = self.app(root)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.runtime.execution.prepare.OF_TARGETS", ())
            started = prepare(app.plan(), resolve(app), Choices(takeover=True))
        self._started += 1
        cluster = Cluster(started.plan, 1, self._started, started.folder.store, 1.0, started.inputs.partitions)
        cluster.begin()
        cluster.settle()
        return cluster

    def say(self, cluster: Cluster, count: int = 3) -> None:
        """Append records, and let the job process and deliver them if it can."""
        rows = [{"n": self._said + i, "word": "a"} for i in range(count)]
        self._said += count
        self._input.append({0: pa.Table.from_pylist(rows, schema=schema_of(Said))})
        cluster.pass_time(4)

    def prepare_for_rewind(self) -> tuple[joblog.Job, Plan, Repository]:
        repository = Repository(open_objects(str(self.folder / "root" / "words")))
        job = repository.read_log()
        assert job is not None
        return job, self.app("root").plan(), repository

    def rewind(self) -> None:
        """Take the root back to its newest checkpoint as `holdfast rewind --adopt-targets copy` does."""
        job, plan, repository = self.prepare_for_rewind()
        adopted = adopted_from(job, read_holdings(job, plan.sinks), ["copy"])
        rewind_stopped(
            repository, job, RewindWanted(job.base_epoch, True), plan.sinks, 60.0, lambda _reported: None, adopted
        )

    def numbers(self) -> list[int]:
        if self.kind == "log":
            return sorted(row["n"] for row in rows_in(self.folder / "copy"))
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return [n for (n,) in db.execute("SELECT n FROM copy ORDER BY n")]

    def back_up(self) -> Callable[[], None]:
        """Copy the target; return a function that restores the copy in place, even while the target is open."""
        if self.kind == "log":
            shutil.copytree(self.folder / "copy", self.folder / "backup")

            def restored_log() -> None:
                shutil.rmtree(self.folder / "copy")
                shutil.copytree(self.folder / "backup", self.folder / "copy")

            return restored_log
        _copy_database(self.folder / "out.db", self.folder / "backup.db")
        return lambda: _copy_database(self.folder / "backup.db", self.folder / "out.db")

    def delete(self) -> None:
        """Delete the target, as a user does who wants to start over."""
        if self.kind == "log":
            shutil.rmtree(self.folder / "copy")
        else:
            (self.folder / "out.db").unlink()

    def copy_root(self, name: str) -> None:
        shutil.copytree(self.folder / "root", self.folder / name)

    def restore_root(self, name: str) -> None:
        shutil.rmtree(self.folder / "root")
        shutil.copytree(self.folder / name, self.folder / "root")


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def outcome(cluster: Cluster) -> tuple[str, str, str]:
    """Return how the run ended: outcome, kind of the error, what happened."""
    assert cluster.driver.outcome is not None, "the job runs on"
    how, error = cluster.driver.outcome
    return how, getattr(error, "kind", "None"), getattr(error, "what", "None")


JOB = replace(
    joblog.Job(JobUuid("j"), "words", 128, 0, 9, Generation(3), Timeline(2), "third", Epoch(119)),
    completed=(
        joblog.Completed(
            joblog.CheckpointCompleted(Epoch(120), Epoch(57), ObjectRef("m", 1, "0"), 0, 0, 0),
            Generation(3),
            Timeline(2),
            0,
        ),
    ),
    rewinds=(Rewind(Timeline(2), Epoch(57), Epoch(119), 0),),
    owners=("first", "second", "third"),
    reached=(Tag(Timeline(1), Epoch(50)), Tag(Timeline(2), Epoch(57))),
)
SPECS: list[SinkSpec] = [SinkSpec("out", MemorySink(), 0, schema_of(Said), None)]


def tag(epoch: int, timeline: int) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


AT_THE_COMMIT = ["sqlite", "sqlite keyed", "sqlite idempotent", "log"]


@pytest.fixture(params=[*AT_THE_COMMIT, "sqlite immediate"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, request.param)


@pytest.fixture(params=AT_THE_COMMIT)
def tagged(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A target that keeps the tags of epochs; an immediate one does not, and cannot be repaired."""
    return Site(tmp_path, request.param)


class TestTargetRestoredWhileTheJobRuns:
    def test_the_job_fails_with_damage(self, site: Site) -> None:
        cluster = site.start()
        site.say(cluster)
        restore = site.back_up()
        site.say(cluster)
        restore()
        site.say(cluster)
        how, kind, what = outcome(cluster)
        assert (how, kind) == ("failed", "damaged") and "restored from a backup" in what
        assert site.numbers() == [0, 1, 2]

    def test_a_target_emptied_to_before_the_first_delivery_fails_the_job(self, site: Site) -> None:
        cluster = site.start()
        restore = site.back_up()
        site.say(cluster)
        restore()
        site.say(cluster)
        how, kind, what = outcome(cluster)
        assert (how, kind) == ("failed", "damaged") and "restored from a backup" in what
        assert site.numbers() == []


class TestTargetLostWhileTheJobWasStopped:
    """With nothing new to deliver no worker compares tags, so the start does."""

    def test_a_deleted_target_is_refused_although_it_could_be_recreated(self, tagged: Site) -> None:
        cluster = tagged.start()
        tagged.say(cluster)
        tagged.say(cluster)
        tagged.delete()
        with pytest.raises(hf.Damaged, match="the target has no tag, but timeline 1, epoch") as refused:
            tagged.prepare()
        assert refused.value.not_done == "the job was not started; a target that was missing exists again, empty"
        assert "delete the job's folder too" in refused.value.next_step

    def test_a_target_restored_from_a_backup_is_refused(self, tagged: Site) -> None:
        cluster = tagged.start()
        tagged.say(cluster)
        restore = tagged.back_up()
        tagged.say(cluster)
        tagged.say(cluster)
        restore()
        with pytest.raises(hf.Damaged, match="restored from a backup") as refused:
            tagged.prepare()
        assert refused.value.not_done == "the job was not started; state and output are untouched"

    def test_a_target_whose_entire_output_is_still_kept_is_refilled(self, tagged: Site) -> None:
        tagged.say(tagged.start())
        tagged.delete()
        tagged.start().pass_time(4)
        assert tagged.numbers() == [0, 1, 2]


class TestTwoRootsOfOneJob:
    def test_the_overtaken_run_stops_as_fenced_and_writes_nothing(self, site: Site) -> None:
        first = site.start()
        site.say(first)
        site.copy_root("staging")
        second = site.start("staging")
        site.say(second)
        site.say(first)
        how, kind, what = outcome(first)
        assert (how, kind) == ("failed", "fenced") and "not in the log of this job" in what
        assert second.driver.outcome is None and site.numbers() == [0, 1, 2, 3, 4, 5]

    def test_a_start_detects_the_other_root_before_anything_is_written(self, site: Site) -> None:
        site.say(site.start())
        site.copy_root("staging")
        site.say(site.start("staging"))
        before = sorted((site.folder / "root").rglob("*.json"))
        with pytest.raises(hf.ConfigError, match="not in the log of this job") as refused:
            site.prepare()
        assert "--adopt-targets" in refused.value.next_step and "'copy'" in refused.value.what
        assert sorted((site.folder / "root").rglob("*.json")) == before

    def test_a_rewind_with_adoption_takes_over_the_target_and_the_other_root_stops(self, tagged: Site) -> None:
        tagged.say(tagged.start())
        tagged.copy_root("staging")
        second = tagged.start("staging")
        tagged.say(second)
        tagged.rewind()
        assert tagged.numbers() == [0, 1, 2]
        tagged.say(second)
        how, kind, what = outcome(second)
        assert (how, kind) == ("failed", "fenced") and "not in the log of this job" in what
        tagged.say(tagged.start())
        assert tagged.numbers() == list(range(12))


class TestHoldings:
    """Decisions of a start from a target's owner and tags."""

    def test_a_named_sink_is_taken_over_from_its_owner(self) -> None:
        adopted = adopted_from(JOB, {"out": Holding(Held("other", Generation(9)), None)}, ["out"])
        assert adopted == ("other",)

    def test_an_owner_in_the_job_log_needs_no_adoption(self) -> None:
        assert adopted_from(JOB, {"out": Holding(Held("second", Generation(2)), None)}, ["out"]) == ()

    def test_an_unknown_sink_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="no sink of this name"):
            refuse(adoption.refusal(JOB, SPECS, {}, ["elsewhere"]))

    def test_a_target_on_a_timeline_that_the_log_has_not_reached_is_not_taken_over(self) -> None:
        with pytest.raises(hf.Damaged, match="timeline 3"):
            ahead = {"out": Holding(Held("other", Generation(9)), tag(300, 3))}
            refuse(adoption.refusal(JOB, SPECS, ahead, ["out"]))

    @pytest.mark.parametrize(
        ("newest", "refused"),
        [
            (None, False),
            (tag(57, 2), False),
            (tag(120, 2), False),
            (tag(121, 2), True),
            (tag(57, 1), False),
            (tag(118, 1), False),
            (tag(119, 1), True),
            (tag(1, 3), True),
        ],
    )
    def test_a_target_beyond_the_epochs_completed_in_the_log_is_refused(
        self, newest: Tag | None, refused: bool
    ) -> None:
        """Timeline 2 goes back to epoch 57, begins at 119, and has completed 120. The target names no owner."""
        assert (beyond(JOB, "the target", Holding(None, newest)) is not None) == refused

    @pytest.mark.parametrize(
        ("owner", "newest", "refused"),
        [
            ("first", tag(50, 1), False),
            ("first", tag(51, 1), True),
            ("second", tag(51, 1), False),
            ("second", tag(57, 2), False),
            ("second", tag(58, 2), True),
            ("third", tag(120, 2), False),
            ("third", tag(121, 2), True),
            ("other", tag(118, 1), False),
        ],
    )
    def test_a_target_beyond_the_epochs_that_its_owner_completed_is_refused(
        self, owner: str, newest: Tag, refused: bool
    ) -> None:
        found = beyond(JOB, "the target", Holding(Held(owner, Generation(1)), newest))
        assert (found is not None) == refused

    @pytest.mark.parametrize(
        ("newest", "by", "refused"),
        [(tag(120, 2), "RESTORE", True), (tag(57, 1), "RESTORE", False), (tag(120, 2), None, False)],
    )
    def test_a_target_that_others_took_back_is_refused_until_a_rewind(
        self, newest: Tag, by: str | None, refused: bool
    ) -> None:
        """The log is on timeline 2."""
        found = lost_rows(JOB, "the target", Holding(None, newest, taken_back=by))
        assert (found is not None) == refused


class TestLogAtAStart:
    def test_is_read_after_the_targets(self) -> None:
        """A driver that starts in between takes a target over: that is not another history."""
        sink, repository = MemorySink(), Repository(MemoryObjects())
        sink.prepare(schema_of(Said), None)
        first = joblog.Record(1, JobUuid("j"), Generation(0), Timeline(1), "first", 0, joblog.JobCreated("words", 8))
        repository.create_record(first)
        stale = repository.read_log()
        assert stale is not None
        start = joblog.GenerationStarted(Epoch(1), Epoch(0), "here", "started")
        repository.create_record(
            joblog.Record(2, JobUuid("j"), Generation(1), Timeline(1), "second", 0, start, prev=first.hash)
        )
        sink.take_over("j", "out", Claim("second", Generation(1)))
        spec = SinkSpec("out", sink, 0, schema_of(Said), None)
        assert holdings.check(facts_of_targets(repository, stale, [spec])) is None


class TestLogCutShort:
    def test_a_target_beyond_the_completed_epochs_is_refused_at_the_start(self, tagged: Site) -> None:
        cluster = tagged.start()
        tagged.say(cluster)
        tagged.copy_root("older")
        tagged.say(cluster)
        tagged.restore_root("older")
        with pytest.raises(hf.Damaged, match="cut short") as refused:
            tagged.prepare()
        assert "rewind" in refused.value.next_step


class TestCopyStartedWhileTheOriginalRuns:
    def test_output_delivered_by_the_original_before_its_fence_is_not_duplicated(self, tagged: Site) -> None:
        first = tagged.start()
        tagged.say(first)
        tagged.copy_root("staging")
        second = tagged.start("staging")
        tagged.say(first)
        assert tagged.numbers() == list(range(6))
        second.pass_time(12)
        how, kind, what = outcome(second)
        assert (how, kind) == ("failed", "damaged") and "the job log ends at" in what
        assert tagged.numbers() == list(range(6)) and first.driver.outcome is None
        tagged.say(first)
        assert tagged.numbers() == list(range(9))

    def test_the_first_output_of_the_original_is_not_duplicated(self, tagged: Site) -> None:
        first = tagged.start()
        tagged.copy_root("staging")
        second = tagged.start("staging")
        tagged.say(first)
        second.pass_time(12)
        assert outcome(second)[1] == "damaged" and tagged.numbers() == list(range(3))

    def test_an_epoch_with_the_same_number_is_not_treated_as_its_own(self, tagged: Site) -> None:
        first = tagged.start()
        tagged.say(first)
        tagged.copy_root("staging")
        second = tagged.start("staging")
        first.crash(next(iter(first.members)))
        tagged.say(first)
        tagged.say(second)
        assert first.driver.state.job.base_epoch == second.driver.state.job.base_epoch == 102
        assert outcome(second)[1] == "damaged" and tagged.numbers() == list(range(6))
        tagged.say(first)
        assert tagged.numbers() == list(range(12))

    def test_a_copy_that_has_completed_more_since_is_refused_at_every_later_start(self, tagged: Site) -> None:
        """Its own epochs are above those of the original by then; the original continues beyond them, too."""
        first = tagged.start()
        tagged.say(first)
        tagged.copy_root("staging")
        for count in (1, 4):
            second = tagged.start_despite_targets("staging")
            for _ in range(count):
                tagged.say(first)
            tagged.say(second)
            assert outcome(second)[1] == "damaged" and "ends at timeline 1, epoch 1 for" in outcome(second)[2]
            with pytest.raises(hf.Damaged, match="epoch 1 for the run that delivered this") as refused:
                tagged.prepare("staging")
            assert refused.value.not_done == "the job was not started; state and output are untouched"
            assert "--to-epoch 1 --adopt-targets" in refused.value.next_step
        assert second.driver.state.job.base_epoch > first.driver.state.job.base_epoch
        tagged.say(first)
        assert first.driver.outcome is None and tagged.numbers() == list(range(27))
