"""The checkers of event time and of dead letters find every violation and raise no false alarm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.chaos.sim.checks.clocks import LAST, NEVER, Clocks
from holdfast.chaos.sim.jobs.lettered import CHECKED, Lettered
from holdfast.chaos.sim.jobs.oracle import Input
from holdfast.chaos.sim.jobs.workload import EndAsked, Scenario, scenario

DELAY = 10
INPUT = ((Input(0, 1, 1, 5, at=100), Input(1, 1, 1, 6, at=200)), (Input(1_000_000, 1, 1, 7, at=150),))
"""Two partitions; the first record's function fails."""


class Found:
    """Collects the rules reported as broken."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def __call__(self, rule: str, what: str) -> None:
        self.rules.append(rule)


class TestClocks:
    @pytest.mark.parametrize(
        ("cut", "idles", "bounds"),
        [
            ({}, False, (NEVER, NEVER)),
            ({0: 1}, False, (NEVER, NEVER)),
            ({0: 1, 1: 1}, False, (90, 90)),
            ({0: 1, 1: 1}, True, (90, 140)),
            ({0: 2, 1: 0}, False, (NEVER, NEVER)),
            ({0: 2, 1: 0}, True, (NEVER, 190)),
            ({0: 2, 1: 1}, False, (140, LAST)),
        ],
    )
    def test_offsets_bound_the_clocks(self, cut: Mapping[int, int], idles: bool, bounds: tuple[int, int]) -> None:
        assert Clocks(INPUT, DELAY, idles, Found()).bounds(cut) == bounds

    def test_a_partition_without_event_time_does_not_hold_back_a_run_to_its_end(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, Found())
        clocks.reads_to("once", {0: 1, 1: 0})
        clocks.completed(1, 0, {0: 1}, "once")
        assert (clocks.latest(1), clocks.overtaken) == (90, {1})

    @pytest.mark.parametrize(("follows", "latest"), [(0, NEVER), (1, 90)])
    def test_a_partition_holds_time_back_again_in_a_longer_run_but_time_never_decreases(
        self, follows: int, latest: int
    ) -> None:
        clocks = Clocks(INPUT, DELAY, False, Found())
        clocks.reads_to("once", {0: 1, 1: 0})
        clocks.completed(1, 0, {0: 1}, "once")
        clocks.completed(2, follows, {0: 2}, "on")
        assert clocks.latest(2) == latest

    def test_a_run_that_completes_nothing_overtakes_nothing(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, Found())
        clocks.reads_to("once", {0: 1, 1: 0})
        clocks.completed(1, 0, {0: 1}, "on")
        assert (clocks.latest(1), clocks.overtaken) == (NEVER, set())

    def test_a_channel_whose_watermark_decreases_is_found(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, found := Found())
        for at_us in (5, 7, 7):
            clocks.said((1, "0: 0->0"), at_us)
        clocks.said((2, "0: 0->0"), 1)
        assert found.rules == []
        clocks.said((1, "0: 0->0"), 6)
        assert found.rules == ["P11 watermark"]

    @pytest.mark.parametrize("at_us", [89, 91])
    def test_a_clock_that_is_behind_or_ahead_of_its_offsets_is_found(self, at_us: int) -> None:
        clocks = Clocks(INPUT, DELAY, False, found := Found())
        for epoch in (1, 2):
            clocks.completed(epoch, epoch - 1, {0: 1, 1: 1}, "on")
        clocks.restored(1, [1], {0: 1, 1: 1}, {0: 90})
        assert found.rules == []
        clocks.restored(2, [1, 2], {0: 1, 1: 1}, {0: at_us})
        assert found.rules[0] == "P11 clock"

    @pytest.mark.parametrize(
        ("order", "lineage", "rules"),
        [
            ((1, 2), [1, 2], ["P11 clock"]),
            ((2, 1), [1, 2], ["P11 clock"]),
            ((1, 2), [2], []),
            ((2, 1), [1], []),
        ],
    )
    def test_a_clock_that_decreases_along_the_lineage_is_found_in_any_order(
        self, order: tuple[int, int], lineage: list[int], rules: list[str]
    ) -> None:
        clocks = Clocks(INPUT, DELAY, True, found := Found())
        held = {1: {0: 120}, 2: {0: 110}}
        for epoch in (1, 2):
            clocks.completed(epoch, epoch - 1, {0: 1, 1: 1}, "on")
        for epoch in order:
            clocks.restored(epoch, lineage, {0: 1, 1: 1}, held[epoch])
        assert found.rules == rules


class TestLettered:
    def test_every_row_that_passes_occurs_exactly_once(self) -> None:
        lettered = Lettered(INPUT, found := Found())
        lettered.compare(CHECKED, "now", {0: 2, 1: 1}, [{"id": 1}, {"id": 1_000_000}])
        lettered.look(CHECKED, "now", [{"id": 1}])
        assert found.rules == []
        lettered.look(CHECKED, "now", [{"id": 1}, {"id": 1}])
        lettered.look(CHECKED, "now", [{"id": 0}])
        lettered.compare(CHECKED, "now", {0: 2, 1: 1}, [{"id": 1}])
        assert found.rules == ["I2 duplicate", "I5 visible", "I1 loss"]


def seeds_with(feature: str) -> list[Scenario]:
    found = [made for seed in range(200) if getattr(made := scenario(seed), feature)]
    assert found, f"no seed has {feature}"
    return found


class TestScenarios:
    def test_a_partition_is_idle_while_another_moves_past_its_window(self) -> None:
        for made in seeds_with("rests"):
            assert made.windowing is not None and made.windowing.idles
            [late] = made.rests
            resting = next(p for p, records in enumerate(made.partitions) if records and records[-1].id == late)
            active = max((p for p in range(len(made.partitions)) if p != resting), key=lambda p: made.arrivals[p][-1:])
            assert made.heal_at < made.arrivals[active][-1] < made.arrivals[resting][-1]
            assert all(list(times) == sorted(times) for times in made.arrivals)
            over = (made.windowing.size_s + made.windowing.lateness_s) * 1_000_000
            assert made.partitions[active][-1].at - 1_000_000 > over > made.partitions[resting][-1].at

    def test_scenarios_stop_finish_end_and_read_once(self) -> None:
        hows = {end.how for made in seeds_with("ends") for end in made.ends if isinstance(end, EndAsked)}
        assert hows == {None, "finish", "now"}
        assert {made.once for made in seeds_with("seed")} == {(False,), (True, False), (True, True, False)}
