"""The checker of alignment in event time finds every partition that waits without a reason (docs/decisions/0048)."""

from __future__ import annotations

import pytest

from holdfast.chaos.sim.checks.aligned import AlignmentCheck, HeldPartition
from holdfast.model import Generation, SourcePosition, Watermark, WorkerId
from holdfast.runtime.wire import messages as m

SLOW, FAST = ("in", 0), ("in", 1)


class World:
    """A checker and what it has found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.aligned = AlignmentCheck(lambda rule, what: self.found.append(f"{rule}: {what}"))

    def sent(self, at_us: int, *reports: m.WorkerProgress, until: dict[str, dict[int, int]] | None = None) -> list[str]:
        self.aligned.sent(limits(at_us), reports, until)
        return self.found

    def turned(self, now: float, held: HeldPartition, generation: int = 1) -> list[str]:
        self.aligned.turned("w1", generation, now, [held])
        return self.found


@pytest.fixture
def world() -> World:
    return World()


def limits(at_us: int | None, generation: int = 1) -> m.HoldBack:
    return m.HoldBack(Generation(generation), {} if at_us is None else {"in": at_us}, 2.0)


def report(
    place: tuple[str, int], offset: int, end: int, at_us: int | None, *, ended: bool = False
) -> m.WorkerProgress:
    at = SourcePosition(*place, offset, at_us)
    return m.WorkerProgress(positions=(at,), ends=(SourcePosition(*place, end),), ended=(at,) if ended else ())


def held(*, unread: bool = True, quiet: bool = False, idle: bool = False) -> HeldPartition:
    return HeldPartition(FAST, Watermark(500, quiet=quiet, idle=idle), unread)


class TestTheLimitsOfADriver:
    def test_may_be_as_low_as_the_partition_that_is_furthest_behind(self, world: World) -> None:
        assert world.sent(100, report(SLOW, 3, 9, 100), report(FAST, 5, 9, 500)) == []

    def test_are_not_below_that_partition(self, world: World) -> None:
        [found] = world.sent(99, report(SLOW, 3, 9, 100), report(FAST, 5, 9, 500))
        assert found == "0048 slowest: no partition is behind ('in', 0), which is held back at 100"

    @pytest.mark.parametrize("read", [{"ended": True}, {"end": 3}])
    def test_need_not_respect_a_partition_that_is_read(self, world: World, read: dict[str, int]) -> None:
        slow = report(SLOW, 3, read.get("end", 9), 100, ended="ended" in read)
        [found] = world.sent(99, slow, report(FAST, 5, 9, 500))
        assert "behind ('in', 1)" in found

    def test_are_not_sent_once_every_partition_is_read(self, world: World) -> None:
        [found] = world.sent(900, report(SLOW, 9, 9, 100), report(FAST, 9, 9, 500, ended=True))
        assert found == "0048 limits: sources are held back, although every partition is read to its end"

    def test_are_not_sent_once_the_run_has_read_what_it_reads(self, world: World) -> None:
        [found] = world.sent(900, report(SLOW, 3, 9, 100), until={"in": {0: 3}})
        assert "every partition is read to its end" in found

    def test_may_be_lifted_at_any_time(self, world: World) -> None:
        world.aligned.sent(limits(None), (), None)
        assert world.found == []


class TestAPartitionThatIsHeldBack:
    def test_waits_until_its_limit_lapses(self, world: World) -> None:
        world.aligned.received("w1", limits(400), 10.0)
        assert world.turned(11.9, held()) == []
        [found] = world.turned(12.0, held())
        assert found.startswith("0048 lapse: w1 holds ('in', 1) back")

    @pytest.mark.parametrize("message", [None, limits(None), limits(400, generation=2)])
    def test_has_a_limit_of_its_generation(self, world: World, message: m.HoldBack | None) -> None:
        if message is not None:
            world.aligned.received("w1", message, 10.0)
        [found] = world.turned(10.5, held())
        assert found == "0048 limits: w1 holds ('in', 1) back without a limit"

    def test_keeps_the_limit_of_its_generation_when_an_older_one_arrives(self, world: World) -> None:
        world.aligned.received("w1", limits(400, generation=2), 10.0)
        world.aligned.received("w1", limits(None, generation=1), 10.0)
        assert world.turned(10.5, held(), generation=2) == []

    @pytest.mark.parametrize("how", ["quiet", "idle"])
    def test_counts_neither_as_quiet_nor_as_idle_if_it_has_records(self, world: World, how: str) -> None:
        world.aligned.received("w1", limits(400), 10.0)
        assert world.turned(10.5, held(unread=False, **{how: True})) == []
        [found] = world.turned(10.5, held(**{how: True}))
        assert found == f"P11 held: w1 holds ('in', 1) back, which has records and counts as {how}"


class TestAnEpochInMicrobatchMode:
    @pytest.mark.parametrize(("until", "rules"), [({SLOW: 4, FAST: 5}, []), ({SLOW: 3, FAST: 9}, ["0048 slowest"])])
    def test_reads_of_the_partition_that_is_furthest_behind(
        self, world: World, until: dict[tuple[str, int], int], rules: list[str]
    ) -> None:
        positions = {SLOW: SourcePosition(*SLOW, 3, 100), FAST: SourcePosition(*FAST, 5, 500)}
        world.aligned.epoch(positions, {SLOW: 9, FAST: 9}, until)
        assert [found.split(":")[0] for found in world.found] == rules

    def test_takes_no_partition_for_silent_that_has_records(self, world: World) -> None:
        positions = {SLOW: SourcePosition(*SLOW, 3, 100), FAST: SourcePosition(*FAST, 5, 500)}
        until = {SLOW: 9, FAST: 5}
        world.aligned.epoch(positions, {SLOW: 9, FAST: 5}, until, [FAST])
        assert world.found == []
        world.aligned.epoch(positions, {SLOW: 9, FAST: 6}, until, [FAST])
        assert world.found == ["P11 held: an epoch holds ('in', 1) back, which has records and counts as silent"]

    def test_may_read_nothing_if_there_is_nothing(self, world: World) -> None:
        world.aligned.epoch({SLOW: SourcePosition(*SLOW, -1, None)}, {SLOW: 0}, {SLOW: 0})
        assert world.found == []


class TestStock:
    def test_counts_how_often_a_worker_waits_for_others(self, world: World) -> None:
        for held_by in (("event time",), ("memory", "event time"), ("memory",), ()):
            progress = m.WorkerProgress(held_by=held_by)
            world.aligned.took_stock(m.Heartbeat(WorkerId("w1"), Generation(1), False, False, (), progress))
        assert world.aligned.waited == 2
