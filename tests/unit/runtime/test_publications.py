"""Positions of completed checkpoints that a source shows in its own system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import pytest
from patience import wait

import holdfast as hf
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import Unavailable
from holdfast.model import SourcePosition
from holdfast.runtime.driver.background.publications import Publications
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

AWAY = Unavailable("it is away", not_done="nothing was shown", next_step="wait")


@dataclass(frozen=True)
class Shown:
    """What was published, and what happens to the next publication."""

    offsets: list[dict[int, int]] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    failing: list[Exception] = field(default_factory=list)

    def publish(self, offsets: Mapping[int, int]) -> None:
        if self.failing:
            raise self.failing.pop()
        self.offsets.append(dict(offsets))

    def close(self) -> None:
        self.closed.append(True)


class Publishing(hf.Generator):
    """A generator that shows positions."""

    shown: Shown

    @property
    def publishes(self) -> Shown:
        return self.shown


class SlowLane:
    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        self.later: list[Callable[[], object]] = []
        """What is due after a wait."""

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        assert seconds > 0
        self.later.append(action)

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.jobs.append((work, done))

    def step(self) -> None:
        work, done = self.jobs.pop(0)
        try:
            result = work()
        except Unavailable as error:
            result = error
        done(result)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def specs(app: hf.App) -> tuple[SourceSpec, ...]:
    return tuple(app.plan().sources)


def app_of(shown: Shown, count: int = 1_000) -> tuple[hf.App, MemorySink]:
    app, sink = hf.App("publishing", checkpoint_every="1s"), MemorySink(None)
    numbers = Publishing(pa.schema([("n", pa.int64())]), lambda n: {"n": n}, count=count, rate=1_000)
    numbers.shown = shown
    app.source("numbers", numbers).sink("out", sink)
    return app, sink


class TestPublications:
    def last(self, run: Cluster) -> Manifest | None:
        running = run.driver.state.deployed
        return None if running is None else running.last

    def manifest(self, run: Cluster, offset: int) -> Manifest:
        last = self.last(run)
        assert last is not None
        return msgspec.structs.replace(last, positions=(SourcePosition("numbers", 0, offset),))

    @pytest.fixture
    def made(self, shown: Shown) -> tuple[Publications, SlowLane, Callable[[int], Manifest]]:
        app, _ = app_of(Shown(), 1_000_000)
        run = Cluster(app.plan(), 1, 0, MemoryObjects(), 1.0, {"numbers": (0,)})
        run.begin()
        wait(lambda: run.pass_time(1.0) or self.last(run), "a checkpoint")  # type: ignore[func-returns-value]
        lane = SlowLane()
        published = Publications(specs(app_of(shown)[0]), lambda: lane, lane.after)
        return published, lane, lambda offset: self.manifest(run, offset)

    def test_only_the_last_of_several_completed_checkpoints_is_published(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        for offset in (10, 20, 30):
            completed = manifest(offset)
            published.completed(completed)
            published.completed(completed)
        assert len(lane.jobs) == 1
        lane.step()
        lane.step()
        assert not lane.jobs and shown.offsets == [{0: 10}, {0: 30}]

    def test_a_failure_is_a_problem_until_a_later_checkpoint_is_published(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        shown.failing.append(AWAY)
        published.completed(manifest(10))
        lane.step()
        assert str(published.problem) == str(AWAY) and not lane.jobs
        published.completed(manifest(20))
        lane.step()
        assert published.problem is None and shown.offsets == [{0: 20}]

    def test_publishers_are_closed_after_what_is_due(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        published.completed(manifest(10))
        published.close()
        lane.step()
        assert shown.offsets == [{0: 10}] and not shown.closed
        lane.step()
        assert shown.closed == [True]

    def test_the_last_checkpoint_is_published_although_the_one_before_is_under_way_when_the_run_ends(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        published.completed(manifest(10))
        published.completed(manifest(20))
        published.close()
        published.completed(manifest(30))
        lane.step()
        lane.step()
        assert not lane.jobs, "nothing is published after the publishers were closed: nothing would close them again"
        assert shown.offsets == [{0: 10}, {0: 20}] and shown.closed == [True]

    def test_publishers_are_closed_although_the_last_publication_fails(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        published.completed(manifest(10))
        published.completed(manifest(20))
        published.close()
        lane.step()
        shown.failing.append(AWAY)
        lane.step()
        assert shown.closed == [True] and str(published.problem) == str(AWAY)

    def test_a_failure_is_tried_again_although_no_checkpoint_follows(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        """A topic without new records would show a lag that is none."""
        published, lane, manifest = made
        shown.failing.extend([AWAY, AWAY])
        published.completed(manifest(10))
        for _ in range(2):
            lane.step()
            assert str(published.problem) == str(AWAY) and not lane.jobs
            lane.later.pop()()
        lane.step()
        assert published.problem is None and shown.offsets == [{0: 10}]
        assert not lane.jobs and not lane.later

    def test_what_is_tried_again_is_the_last_checkpoint(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        shown.failing.append(AWAY)
        published.completed(manifest(10))
        lane.step()
        published.completed(manifest(20))
        [retry] = lane.later
        retry()
        lane.step()
        retry()
        assert not lane.jobs and shown.offsets == [{0: 20}]

    def test_an_end_tries_once_more_what_could_not_be_published(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        published, lane, manifest = made
        shown.failing.append(AWAY)
        published.completed(manifest(10))
        lane.step()
        published.close()
        [retry] = lane.later
        retry()
        lane.step()
        assert not lane.jobs and shown.closed == [True]
        assert published.problem is None and shown.offsets == [{0: 10}]

    def test_a_source_that_cannot_be_published_holds_back_no_other_one(
        self, shown: Shown, made: tuple[Publications, SlowLane, Callable[[int], Manifest]]
    ) -> None:
        _, lane, manifest = made
        away = Shown(failing=[AWAY])
        [first] = specs(app_of(away)[0])
        [second] = specs(app_of(shown)[0])
        both = msgspec.structs.replace(
            manifest(10), positions=(SourcePosition("first", 0, 5), SourcePosition("second", 0, 10))
        )
        published = Publications(
            [replace(first, name="first"), replace(second, name="second")], lambda: lane, lane.after
        )
        published.completed(both)
        lane.step()
        assert shown.offsets == [{0: 10}] and str(published.problem) == str(AWAY)


class TestAJob:
    def test_shows_what_completed_checkpoints_cover_and_in_the_end_all_it_has_read(self, shown: Shown) -> None:
        app, sink = app_of(shown)
        run = Cluster(app.plan(), 2, 0, MemoryObjects(), 1.0, {"numbers": (0,)})
        run.begin()
        wait(lambda: run.pass_time(1.0) or shown.offsets, "a publication")  # type: ignore[func-returns-value]
        run.crash(min(run.members))
        wait(lambda: run.pass_time(1.0) or run.driver.outcome, "the end of the job")  # type: ignore[func-returns-value]
        offsets = [each[0] for each in shown.offsets]
        assert offsets == sorted(offsets) and len(offsets) > 1
        assert run.driver.outcome == ("finished", None) and offsets[-1] == 1_000 == len(sink.rows())
