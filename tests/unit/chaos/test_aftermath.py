from __future__ import annotations

import pytest

from holdfast.chaos.schedule import Schedule
from holdfast.chaos.simulator import play
from holdfast.chaos.workload import scenario
from holdfast.chaos.world import World


class TestLanding:
    def test_it_is_under_way_until_it_has_landed(self) -> None:
        schedule, seen = Schedule(), list[int]()
        schedule.land(2.0, "a delivery lands late", lambda: seen.append(schedule.under_way))
        assert schedule.under_way == 1
        schedule.step()
        assert seen == [0]


class TestAftermath:
    @pytest.mark.parametrize("seed", [12, 27])
    def test_a_run_is_not_over_before_everything_under_way_has_landed(self, seed: int) -> None:
        world = World(scenario(seed))
        assert play(world).passed
        assert world.checks.finished
        assert world.schedule.under_way == 0
