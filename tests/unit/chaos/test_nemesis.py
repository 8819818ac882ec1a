"""The schedule of faults: the same for the same seed, and with everything that the scenario asks for."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos.judge.kinds import KINDS
from holdfast.chaos.live.faults.nemesis import Planned, schedule
from holdfast.chaos.live.faults.scenario import LiveScenario, parse
from holdfast.errors import ConfigError

ALL = dict.fromkeys(KINDS, 1)


def scenario(faults: dict[str, Any], duration: str = "30m", every: str = "1s..5s") -> LiveScenario:
    raw = {
        "duration": duration,
        "every": every,
        "platform": "standalone",
        "check": "module:function",
        "faults": faults,
    }
    return parse(raw, "name", toxiproxy=True)


def planned(scenario: LiveScenario, seed: int = 1) -> tuple[Planned, ...]:
    return schedule(scenario, random.Random(seed).random)


class TestSchedule:
    def test_the_same_seed_gives_the_same_faults(self) -> None:
        assert planned(scenario(ALL)) == planned(scenario(ALL))
        assert planned(scenario(ALL)) != planned(scenario(ALL), seed=2)

    @given(st.integers(0, 10_000))
    def test_every_fault_occurs_once_before_any_occurs_twice(self, seed: int) -> None:
        first = planned(scenario(ALL), seed)[: len(KINDS)]
        assert {fault.kind for fault in first} == set(KINDS)

    @given(st.integers(0, 10_000))
    def test_a_fault_begins_after_the_previous_one_and_a_pause(self, seed: int) -> None:
        faults = planned(scenario(ALL), seed)
        gaps = [after.at_ms - before.at_ms - before.lasts_ms for before, after in pairwise(faults)]
        assert all(1_000 <= gap <= 5_000 for gap in gaps)
        assert faults[-1].at_ms < 30 * 60_000

    def test_faults_occur_at_their_rates(self) -> None:
        faults = planned(scenario({"worker-kill": 9, "driver-kill": 1}, "10h"))
        counts = Counter(fault.kind for fault in faults)
        assert 7 < counts["worker-kill"] / counts["driver-kill"] < 12

    def test_a_stop_outlasts_every_timeout_and_a_pause_outlasts_none(self) -> None:
        for fault in planned(scenario({"worker-stop": 1, "worker-pause": 1})):
            assert fault.lasts_ms > 10_000 if fault.kind == "worker-stop" else fault.lasts_ms < 5_000

    def test_a_toxic_has_a_direction_with_traffic_and_attributes_in_range(self) -> None:
        for fault in planned(scenario(ALL)):
            kind = KINDS[fault.kind]
            assert fault.direction in (kind.directions or (None,))
            assert all(low <= dict(fault.attributes)[name] <= high for name, (low, high) in kind.attributes.items())
            assert (fault.direction is None) == (kind.plane is None or kind.does == "down")

    def test_a_run_too_short_to_show_every_fault_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="too short"):
            planned(scenario(ALL, "20s"))

    def test_whether_a_duration_is_long_enough_does_not_depend_on_the_seed(self) -> None:
        five = dict.fromkeys(("worker-kill", "worker-stop", "worker-pause", "driver-kill", "daemon-pause"), 1)
        short = scenario(five, "60s", "5s..15s")
        with pytest.raises(ConfigError, match="too short"):
            planned(scenario(five, "50s", "5s..15s"))
        for seed in range(300):
            assert {fault.kind for fault in planned(short, seed)} >= set(five)
