from __future__ import annotations

from typing import Any

import pytest

from holdfast.chaos.explore.report import failure_lines
from holdfast.chaos.mutants.mutation import Mutant, Right, Swap, applied
from holdfast.chaos.sim.faults.schedule import Schedule
from holdfast.chaos.sim.jobs.workload import scenario
from holdfast.chaos.sim.simulator import play, simulate
from holdfast.chaos.sim.world import World
from holdfast.state.store import StateStore


def restores_for_workers_only(right: Right) -> Right:
    def restore(store: StateStore, *rest: Any) -> None:
        assert store.identity.worker != "checker", "more segments than ever"
        right(store, *rest)

    return restore


class TestLanding:
    def test_an_operation_is_in_flight_until_it_lands(self) -> None:
        schedule, seen = Schedule(), list[int]()
        schedule.land(2.0, "a delivery lands late", lambda: seen.append(schedule.under_way))
        assert schedule.under_way == 1
        schedule.step()
        assert seen == [0]


class TestAftermath:
    @pytest.mark.parametrize("seed", [12, 27])
    def test_a_run_ends_only_after_every_operation_in_flight_has_landed(self, seed: int) -> None:
        world = World(scenario(seed))
        assert play(world).passed
        assert world.checks.finished
        assert world.schedule.under_way == 0

    @pytest.mark.parametrize("seed", [3, 4])
    def test_the_oldest_and_the_newest_retained_checkpoint_were_restored(self, seed: int) -> None:
        world = World(scenario(seed))
        assert play(world).passed
        oldest, *between, newest = sorted(world.checks.history.named)
        assert between
        assert {oldest, newest} <= set(world.checks.restored)

    def test_an_invariant_that_only_the_last_check_finds_broken_names_its_seed(self) -> None:
        planted = Swap(StateStore, "restore", restores_for_workers_only)
        with applied(Mutant("unrestorable-at-the-end", "I9", "nobody but the last check meets it", (planted,))):
            run = simulate(0)
        [violation] = run.violations
        assert violation.startswith("raised: AssertionError in restore")
        assert failure_lines(run)[0].startswith("seed 0 failed")
