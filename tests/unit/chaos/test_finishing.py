"""A job that was asked to finish has read what had arrived by then; the simulator expects that, and no more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from holdfast.chaos.sim.checks.clocks import LAST, NEVER, Clocks
from holdfast.chaos.sim.checks.finishing import FinishRequests
from holdfast.chaos.sim.jobs.arriving import ArrivingSource, batches_of
from holdfast.chaos.sim.jobs.oracle import Input
from holdfast.chaos.sim.jobs.workload import TIMED_SCHEMA, scenario
from holdfast.runtime.testing.lanes import VirtualClock

INPUT = (tuple(Input(n, 1, 1, 5, at=100 * n + 100) for n in range(3)), (Input(1_000_000, 1, 1, 7, at=150),))
ARRIVALS = ((0.5, 1.0, 1.5), (2.0,))
DELAY = 10


@pytest.fixture
def finishing() -> FinishRequests:
    return FinishRequests(replace(scenario(0), partitions=INPUT, arrivals=ARRIVALS, united=False, appears=()))


class TestTheWholeInput:
    def test_is_every_record_if_the_job_was_not_asked_to_finish(self, finishing: FinishRequests) -> None:
        finishing.accepted("another run", 0.0)
        assert finishing.everything("this run", {0: 2}) == {0: 3, 1: 1}

    def test_is_what_was_read_if_that_is_all_that_had_arrived_when_it_was_asked(
        self, finishing: FinishRequests
    ) -> None:
        assert finishing.accepted("run", 1.0) == {0: 2, 1: 0}
        assert finishing.everything("run", {0: 2, 1: 0}) == {0: 2, 1: 0}

    def test_may_hold_records_that_arrived_later(self, finishing: FinishRequests) -> None:
        finishing.accepted("run", 1.0)
        assert finishing.everything("run", {0: 3, 1: 1}) == {0: 3, 1: 1}

    def test_holds_what_had_arrived_even_if_it_was_not_read(self, finishing: FinishRequests) -> None:
        finishing.accepted("run", 1.0)
        assert finishing.everything("run", {0: 1}) == {0: 2, 1: 0}

    def test_ends_no_later_because_the_request_is_repeated(self, finishing: FinishRequests) -> None:
        finishing.accepted("run", 1.0)
        finishing.accepted("run", 2.0)
        assert finishing.everything("run", {0: 2, 1: 0}) == {0: 2, 1: 0}

    def test_lacks_a_partition_that_is_added_after_the_request(self, finishing: FinishRequests) -> None:
        grown = FinishRequests(replace(finishing._scenario, appears=(0.0, 1.7)))
        assert grown.accepted("run", 1.5) == {0: 3}
        assert grown.everything("run", {0: 3}) == {0: 3}
        assert grown.everything("run", {0: 3, 1: 0}) == {0: 3, 1: 0}


class TestClocksOfARunThatFinishes:
    def test_do_not_wait_for_records_after_the_end(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, lambda rule, what: None)
        clocks.finishes("run", {0: 2, 1: 1})
        clocks.completed(1, 0, {0: 1, 1: 1}, "run")
        clocks.completed(2, 1, {0: 2, 1: 1}, "run")
        assert (clocks.latest(1), clocks.latest(2)) == (90, LAST)
        assert clocks.overtaken == {0}

    def test_do_not_wait_for_a_partition_that_was_added_after_the_request(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, lambda rule, what: None, frozenset({1}))
        clocks.finishes("run", {0: 3})
        clocks.completed(1, 0, {0: 3, 1: 0}, "run")
        assert clocks.latest(1) == LAST

    def test_are_those_of_any_run_for_the_next_owner(self) -> None:
        clocks = Clocks(INPUT, DELAY, False, lambda rule, what: None)
        clocks.finishes("run", {0: 0, 1: 0})
        clocks.completed(1, 0, {}, "next")
        assert (clocks.latest(1), clocks.overtaken) == (NEVER, set())


class TestTheSourceOfTheSimulator:
    def test_ends_after_the_records_that_have_arrived_and_is_not_over_then(self) -> None:
        clock = VirtualClock()
        arrivals = tuple(tuple(clock.now + at for at in times) for times in ARRIVALS)
        source = ArrivingSource(batches_of(INPUT, TIMED_SCHEMA), arrivals, clock, random.Random(0), 5, TIMED_SCHEMA)
        clock.now += 1.2
        assert source.end_offsets() == {0: 2, 1: 0}
        assert not source.ended(0, 2)
        clock.now += 2.0
        assert source.end_offsets() == {0: 3, 1: 1}
        assert source.ended(0, 3)
