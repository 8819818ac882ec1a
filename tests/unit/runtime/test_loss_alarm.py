"""The alarm before a source removes records that a job has not read: when it is raised, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, JobUuid, SourcePosition, Timeline
from holdfast.runtime.cli.operate.status import _sources
from holdfast.runtime.driver.background.loss_alarm import LOOK_EVERY_S, WINDOW_S, LossAlarm
from holdfast.runtime.job.live import SourceRow, Status
from holdfast.runtime.job.status import RECORDS_AT_RISK, records_at_risk, with_oldest
from holdfast.runtime.plan.loss import PartitionLook, Risk, at_risk, described
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import Kept
from holdfast.traits import SourceTraits

HOUR_S = 3_600.0


class TestRisk:
    @pytest.mark.parametrize(
        ("earlier", "position", "kept", "expected"),
        [
            pytest.param(None, 50, Kept(0, 100, 40), None, id="stopped, what is old is read"),
            pytest.param(None, 30, Kept(0, 100, 40), Risk(30, 40, 0, None), id="stopped, some unread is old"),
            pytest.param(None, 100, Kept(0, 100, 100), None, id="stopped, everything is read"),
            pytest.param(None, 30, Kept(35, 100), Risk(30, 35, 5, None), id="some is removed already"),
            pytest.param(None, 30, Kept(20, 100), None, id="nothing is known of ages"),
            pytest.param((30, Kept(0, 100)), 30, Kept(0, 100, 40), Risk(30, 40, 0, 0.0), id="reads nothing"),
            pytest.param((29, Kept(0, 100)), 30, Kept(0, 100, 70), Risk(30, 70, 0, 0.01), id="reads too slowly"),
            pytest.param((28, Kept(0, 100)), 30, Kept(0, 100, 70), None, id="reads fast enough"),
            pytest.param((10, Kept(0, 30)), 30, Kept(0, 100, 100), None, id="keeps up with what comes"),
            pytest.param((10, Kept(10, 30)), 30, Kept(35, 100), Risk(30, 35, 5, 0.2), id="keeps up too late"),
            pytest.param(
                (90, Kept(50, 150)), 90, Kept(50, 200, None, True), Risk(90, 200, 0, 0.0), id="full, none read"
            ),
            pytest.param(
                (40, Kept(50, 150)), 90, Kept(50, 151, None, True), None, id="full, reads faster than it fills"
            ),
            pytest.param((90, Kept(50, 150)), 90, Kept(50, 150, None, True), None, id="full, and nothing comes"),
        ],
    )
    def test_is_what_is_removed_before_it_is_read(
        self, earlier: tuple[int, Kept] | None, position: int, kept: Kept, expected: Risk | None
    ) -> None:
        before = None if earlier is None else PartitionLook(0.0, *earlier)
        assert at_risk(before, PartitionLook(100.0, position, kept), HOUR_S) == expected

    def test_is_described_with_offsets_and_pace(self) -> None:
        said = described("orders", 3, Risk(30, 40_000, 0, 2.5), "3,600 s")
        assert said == (
            "source 'orders', partition 3: unread records before offset 40,000 will be removed within 3,600 s; the "
            "last checkpoint is at offset 30, and the job reads 2.5 offsets per second"
        )
        assert described("orders", 3, Risk(30, 40, 0, None), "1 h").endswith("and the job is not running")
        assert "offsets 30 to 34 (5), which the last checkpoint has not read, were removed" in described(
            "orders", 3, Risk(30, 35, 5, 2.5), "1 h"
        )


@dataclass
class Topic:
    """A source that removes records; what it has is what the test says."""

    now: dict[int, Kept] | Unavailable = field(default_factory=dict)
    asked: list[float] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    traits = SourceTraits(kind="Topic", local_paths=(), removes_old=True)

    def open(self) -> Topic:
        return self

    def kept(self, within_s: float) -> Mapping[int, Kept]:
        self.asked.append(within_s)
        if isinstance(self.now, Unavailable):
            raise self.now
        return self.now

    def close(self) -> None:
        self.closed.append(True)


class Lane:
    """Does the work when it is submitted, or keeps it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] | None = None

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        if self.held is None:
            done(work())
        else:
            self.held.append(lambda: done(work()))


def manifest(offset: int) -> Manifest:
    header = Manifest(JobUuid("job"), Generation(1), Timeline(1), Epoch(1), Epoch(0), 1, 1, (), (), (), (), ())
    return msgspec.structs.replace(header, positions=(SourcePosition("orders", 0, offset),))


class Watched:
    """An alarm of one hour, and what it watches."""

    def __init__(self, *, within_s: float = HOUR_S, every_s: float = 1.0) -> None:
        self.topic, self.lane, self.now_s = Topic(), Lane(), 0.0
        spec = SourceSpec("orders", cast(Any, self.topic), 0)
        self.alarm = LossAlarm([spec], lambda: self.lane, within_s, every_s)

    def pass_time(self, seconds: float, offset: int | None) -> None:
        """Let time pass in which the last checkpoint is at this offset."""
        until, given = self.now_s + seconds, None if offset is None else manifest(offset)
        while self.now_s < until:
            self.alarm.turn(self.now_s, given)
            self.now_s += 0.5


STUCK = {0: Kept(0, 100, 40)}


class TestAlarm:
    def test_is_raised_once_the_pace_is_known_and_warns_once(self, caplog: pytest.LogCaptureFixture) -> None:
        watched = Watched()
        watched.topic.now = STUCK
        with caplog.at_level(logging.WARNING, "holdfast.driver"):
            watched.pass_time(WINDOW_S / 2, 30)
            assert watched.alarm.risks == {} and watched.alarm.kept == {("orders", 0): STUCK[0]}
            watched.pass_time(2 * WINDOW_S, 30)
        assert watched.alarm.risks == {("orders", 0): Risk(30, 40, 0, 0.0)}
        assert caplog.text.count("unread records before offset 40 will be removed within 3,600 s") == 1
        assert set(watched.topic.asked) == {HOUR_S}
        assert len(watched.topic.asked) == 2.5 * WINDOW_S / LOOK_EVERY_S

    def test_ends_when_the_job_reads_fast_enough_and_is_raised_again(self, caplog: pytest.LogCaptureFixture) -> None:
        watched = Watched()
        watched.topic.now = STUCK
        watched.pass_time(WINDOW_S, 30)
        watched.pass_time(LOOK_EVERY_S, 60)
        assert watched.alarm.risks == {}
        watched.topic.now = {0: Kept(0, 100, 90)}
        watched.pass_time(2 * WINDOW_S, 60)
        assert watched.alarm.risks == {("orders", 0): Risk(60, 90, 0, 0.0)}
        assert caplog.text.count("will be removed within") == 2

    def test_begins_to_measure_anew_after_a_rewind(self) -> None:
        watched = Watched()
        watched.topic.now = {0: Kept(0, 100, 90)}
        watched.pass_time(WINDOW_S, 95)
        watched.pass_time(WINDOW_S / 2, 30)
        assert watched.alarm.risks == {}
        watched.pass_time(WINDOW_S, 30)
        assert watched.alarm.risks == {("orders", 0): Risk(30, 90, 0, 0.0)}

    def test_waits_for_several_checkpoints(self) -> None:
        watched = Watched(every_s=600.0)
        watched.topic.now = STUCK
        watched.pass_time(899, 30)
        assert watched.alarm.risks == {}
        watched.pass_time(20, 30)
        assert watched.alarm.risks != {}

    def test_is_about_the_last_checkpoint_while_the_job_recovers(self) -> None:
        watched = Watched()
        watched.topic.now = STUCK
        watched.pass_time(1, 30)
        watched.pass_time(WINDOW_S, None)
        assert watched.alarm.risks == {("orders", 0): Risk(30, 40, 0, 0.0)}

    def test_is_not_raised_by_a_source_that_gives_no_answer(self) -> None:
        watched = Watched()
        watched.topic.now = Unavailable("it is away", not_done="nothing was asked", next_step="wait")
        watched.pass_time(WINDOW_S, 30)
        assert watched.alarm.risks == {} and watched.alarm.kept == {}
        watched.topic.now = STUCK
        watched.pass_time(WINDOW_S, 30)
        assert watched.alarm.risks != {}

    def test_looks_once_at_a_time_and_closes_what_it_opened(self) -> None:
        watched = Watched()
        watched.topic.now = STUCK
        watched.lane.held = []
        watched.pass_time(5 * LOOK_EVERY_S, 30)
        watched.alarm.close()
        assert len(watched.lane.held) == 2 and watched.topic.asked == []
        for step in watched.lane.held:
            step()
        assert (len(watched.topic.asked), watched.topic.closed) == (1, [True])

    def test_an_alarm_of_zero_duration_queries_nothing(self) -> None:
        watched = Watched(within_s=0.0)
        watched.pass_time(WINDOW_S, 30)
        watched.alarm.close()
        assert watched.topic.asked == [] and watched.topic.closed == []


class TestStatus:
    def test_names_every_partition_at_risk_and_the_oldest_offsets(self) -> None:
        (problem,) = records_at_risk({("orders", 0): Risk(30, 40, 0, 0.0)}, HOUR_S)
        assert (problem.code, problem.source, problem.partition, problem.offset) == (RECORDS_AT_RISK, "orders", 0, 30)
        assert "retention.ms" in str(problem.next) and "--parallelism" in str(problem.next)
        rows = (SourceRow("orders", 0, 30), SourceRow("orders", 1, 3))
        shown = Status(
            job="hot",
            root="/data",
            state="running",
            reason=None,
            mode=None,
            generation=1,
            timeline=1,
            workers=(),
            sources=rows,
            sinks=(),
            operators=(),
            restarts=(),
            problems=(),
        )
        oldest = {("orders", 0): Kept(7, 100, called="orders.de 3")}
        found = with_oldest(shown, oldest).sources
        assert [row.oldest_offset for row in found] == [7, None]
        assert [row.shown for row in found] == ["0 (orders.de 3)", "1"]
        _, _, lines = _sources(with_oldest(shown, oldest))
        assert [line[1] for line in lines] == ["0 (orders.de 3)", 1]
